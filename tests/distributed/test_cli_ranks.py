"""The command over ranks: what is said, by whom, and what is refused."""

import json
import os
import subprocess
import sys

import pytest
import torch
from group_of_ranks import free_port

from difformer.cli import main
from difformer.cli.description import describe_sent
from difformer.distributed.rank_runs import Sent
from difformer.training.run_folder import RunFolder


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def answer(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return ended.value.code, *capsys.readouterr()

    return answer


def torchrun(size, *words, cwd):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    command += ["--master-port", str(free_port()), "-m", "difformer", *map(str, words)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


SETTINGS = ["--seeds", 1, "--device", "cpu", "--set", "epochs=3", "--set", "hidden_channels=8"]


def test_partition_and_fit_without_torchrun(call, tmp_path):
    code, out, _ = call("partition", "iris", "--data", "knn=5", "--parts", 3, "--out", "parts", "--method", "stream")
    assert code == 0
    assert "3 parts by stream: cut:" in out
    assert "balance:" in out
    code, out, _ = call("fit", "parts", "--out", "run", *SETTINGS)
    assert code == 0
    assert "iris: 150 nodes" in out
    assert "in 3 parts of 48 to 52 nodes (stream)" in out
    assert "ranks: 1 (cpu, gloo)" in out
    assert "sent: nothing, there was one rank" in out
    code, out, _ = call("evaluate", "run", "--json")  # from the data set itself: the parts are not needed
    assert code == 0
    assert json.loads(out)


def test_shard_partitions_on_the_fly_and_reuses_the_parts(call, tmp_path):
    words = ("fit", "iris", "--data", "knn=5", "--shard", *SETTINGS)
    code, out, _ = call(*words, "--out", "one")
    assert code == 0
    assert "in 1 parts of 150 to 150 nodes" in out
    (parts,) = (tmp_path / "parts").iterdir()
    assert parts.name.startswith("iris-1-")
    written = (parts / "partition.json").stat().st_mtime_ns
    assert call(*words, "--out", "two")[0] == 0
    assert (parts / "partition.json").stat().st_mtime_ns == written
    assert call("fit", "iris", "--data", "knn=5", "--out", "plain", *SETTINGS)[0] == 0
    one, plain = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "plain"))
    assert one["results"][0]["loss"] == pytest.approx(plain["results"][0]["loss"], abs=1e-5)
    code, _, err = call(*words, "--stacked", "--out", "three")
    assert code == 2
    assert "--stacked: only for one process" in err


def test_a_table_with_text_is_partitioned_and_new_rows_are_predicted(call, tmp_path):
    rows = "".join(f"{20 + i},{('rome', 'oslo')[i % 2]},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "customers.csv").write_text("age,city,segment\n" + rows)
    (tmp_path / "new.csv").write_text("city,age\noslo,30\n")
    assert call("partition", "customers.csv", "--label", "segment", "--parts", 2, "--out", "parts")[0] == 0
    assert call("fit", "parts", "--out", "run", *SETTINGS)[0] == 0
    code, out, _ = call("predict", "run", "--features", "new.csv", "--out", "-")
    assert code == 0
    assert out.startswith("instance,prediction,probability,probability a,probability b\n")


def test_json_output_reports_what_ranks_sent(call):
    assert call("partition", "iris", "--data", "knn=5", "--parts", 2, "--out", "parts", "--json")[0] == 0
    code, out, _ = call("fit", "parts", "--out", "run", "--json", *SETTINGS)
    assert code == 0
    assert json.loads(out)["sent"]["ranks"] == 1


def test_a_run_on_parts_knows_its_preset(call, tmp_path):
    call("partition", "iris", "--data", "knn=5", "--parts", 2, "--out", "parts")
    (tmp_path / "mine.toml").write_text(
        'name = "best"\nmodel = "difformer-s"\ndataset = "iris"\nsource = "by hand"\n[settings]\nnum_layers = 1\n'
    )
    assert call("fit", "parts", "--out", "run", "--preset", "mine.toml", *SETTINGS)[0] == 0
    assert RunFolder.open("run").preset == "mine.toml"


def test_requests_that_do_not_fit_a_partition_are_refused(call):
    call("partition", "iris", "--data", "knn=5", "--parts", 2, "--out", "parts")
    for words, said in (
        (
            ["fit", "parts", "--protocol", "random"],
            "parts is a partitioned task, trained as it is; leave out --protocol",
        ),
        (["fit", "parts", "--model", "gcn", "--seeds", 1], "model 'gcn' cannot be trained on a partitioned graph"),
        (["fit", "parts", "--batch-size", 10, "--seeds", 1], "a partitioned graph is trained whole"),
        (["partition", "iris", "--out", "parts"], "parts already exists"),
        (["partition", "iris", "--out", "other", "--method", "best"], "method must be one of auto, metis, stream"),
    ):
        code, _, err = call(*words)
        assert code == 2
        assert said in err.replace("\n", " "), err


def test_bytes_sent_are_reported_by_kind():
    sent = Sent({"sums": 1500.0, "boundary": 2e6, "ring": 0.0}, {"plan": 10.0, "results": 0.0}, 4)
    assert describe_sent(sent) == (
        "sent per epoch by the busiest of 4 ranks: sums 1.5 kB, boundary 2.0 MB; once: plan 10 bytes"
    )
    ring = describe_sent(Sent({"ring": 5e3}, {"plan": 0.0}, 2))
    assert "ring 5.0 kB (ring: keys and values of all nodes, O(N d)); once: nothing" in ring


@pytest.mark.slow
def test_torchrun_partition_seeds_and_errors(call, tmp_path):
    call("partition", "iris", "--data", "knn=5", "--parts", 2, "--out", "parts")
    done = torchrun(2, "fit", "parts", "--out", "run", *SETTINGS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ranks: 2 (cpu, gloo)") == 1  # one rank speaks
    assert "sent per epoch by the busiest of 2 ranks: sums" in done.stdout
    again = torchrun(2, "fit", "parts", "--out", "run", *SETTINGS, cwd=tmp_path)
    assert again.returncode != 0
    assert again.stderr.count("already holds a run") == 1
    goes_on = torchrun(2, "fit", "--resume", "run", "--device", "cpu", cwd=tmp_path)
    assert goes_on.returncode == 0, goes_on.stderr
    seeds = torchrun(2, "fit", "iris", "--out", "seeds", *SETTINGS, "--seeds", 3, cwd=tmp_path)
    assert "3 seeds spread over them" in seeds.stdout, seeds.stderr
    assert json.loads((tmp_path / "seeds" / "summary.json").read_text())["runs"] == 3
    shard = torchrun(2, "fit", "iris", "--data", "knn=5", "--shard", "--out", "shard", *SETTINGS, cwd=tmp_path)
    assert shard.returncode == 0, shard.stderr
    assert shard.stdout.count("in 2 parts of 75 to 75 nodes") == 1
    mine, theirs = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("shard", "run"))
    assert mine["results"][0]["loss"] == pytest.approx(theirs["results"][0]["loss"], abs=1e-5)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_with_nccl(call, tmp_path):
    call("partition", "iris", "--data", "knn=5", "--parts", 2, "--out", "parts")
    words = ["--seeds", 1, "--set", "epochs=20", "--set", "hidden_channels=16"]
    done = torchrun(1, "fit", "parts", "--out", "gpu", "--device", "cuda", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "NCCL" in done.stdout
    call("fit", "parts", "--out", "cpu", "--device", "cpu", *words)
    mine, theirs = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("gpu", "cpu"))
    assert mine["results"][0]["loss"] == pytest.approx(theirs["results"][0]["loss"], rel=1e-3)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_of_a_group_end_with_it(tmp_path):
    """Threads that outlive the group can abort the process when the interpreter ends."""
    program = tmp_path / "rank.py"
    program.write_text(
        "from pathlib import Path\n"
        "import torch\n"
        "from difformer.distributed.process_group import join\n"
        "def threads():\n"
        "    return {(task / 'comm').read_text().strip() for task in Path('/proc/self/task').iterdir()}\n"
        "with join('cpu') as ranks:\n"
        "    import torch.distributed.nn.functional  # as libraries do while a group exists\n"
        "    sent = ranks.exchange(torch.ones(2), [1, 1], [1, 1], 'plan')\n"
        "    sent.wait()\n"
        "    inside = threads()\n"
        "print('inside' if any('gloo' in name for name in inside) else '', *threads())\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "--master-port", str(free_port()), str(program)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("inside") and "gloo" not in line.removeprefix("inside") for line in lines), lines
