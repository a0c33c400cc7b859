"""``difformer reproduce`` as a person uses it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from difformer.experiments.spec import NAMES


def test_list_names_every_experiment(call):
    answer = call("reproduce", "--list")
    assert answer.code == 0
    for name in NAMES:
        assert f"\n {name} " in answer.out or f"\n{name} " in answer.out
    assert [one["name"] for one in json.loads(call("reproduce", "--list", "--json").out)] == list(NAMES)


def test_listing_experiments_does_not_import_torch(environment):
    code = (
        "import sys, difformer.cli as c\n"
        "try: c.main(['reproduce', '--list'])\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert seen.stdout.strip().endswith("False")


def test_a_second_quick_run_repeats_nothing(call, tmp_path):
    first = call("reproduce", "unobserved", "--quick", "--seeds", "1", "--models", "mlp,difformer-s", "--device", "cpu")
    assert first.code == 0, first.err
    assert "2 runs made, 0 existed, 0 left" in first.out
    folder = tmp_path / "results-quick" / "unobserved"
    assert {path.name for path in folder.iterdir()} >= {"runs.jsonl", "table.md", "figure.svg", "figure.png"}
    again = call("reproduce", "unobserved", "--quick", "--seeds", "1", "--models", "mlp", "--device", "cpu", "--json")
    said = json.loads(again.out)
    assert (said["made"], said["there"]) == (0, 1)
    (folder / "table.md").unlink()
    assert "there are no runs in results/unobserved" in call("reproduce", "unobserved", "--table-only").err
    table = call("reproduce", "unobserved", "--quick", "--seeds", "2", "--models", "mlp,difformer-s", "--table-only")
    assert table.code == 0
    assert "0 runs made, 2 existed, 2 left" in table.out
    assert "DIFFormer-s" in (folder / "table.md").read_text()


def test_baselines_are_run_with_rows_of_every_preset(call, tmp_path):
    words = ("reproduce", "temporal", "--quick", "--seeds", "1", "--preset", "untuned", "--models", "zeros,mlp")
    answer = call(*words, "--runs-only", "--device", "cpu")
    assert answer.code == 0, answer.err
    lines = (tmp_path / "results-quick/temporal/runs.jsonl").read_text().splitlines()
    assert {json.loads(line)["system"] for line in lines} == {"zeros", "mlp"}


def test_limit_option_reaches_the_runner(call, tmp_path):
    words = ("reproduce", "unobserved", "--quick", "--seeds", "1", "--models", "mlp", "--device", "cpu")
    answer = call(*words, "--limit", "1e-9")
    assert answer.code == 0, answer.err
    assert "0 runs made" in answer.out
    assert "too long: over 1e-09 s per run on " in (tmp_path / "results-quick/unobserved/table.md").read_text()
    assert "1 run made" in call(*words).out  # without a limit it is tried again


def test_runs_only_needs_neither_pandas_nor_matplotlib(call, tmp_path, monkeypatch):
    for name in ("pandas", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    words = ("reproduce", "unobserved", "--quick", "--seeds", "1", "--models", "mlp", "--device", "cpu")
    refused = call(*words)
    assert refused.code == 2
    assert "pip install 'difformer[figures]'" in refused.err
    answer = call(*words, "--runs-only")
    assert answer.code == 0, answer.err
    assert [path.name for path in (tmp_path / "results-quick/unobserved").glob("[!.]*")] == ["runs.jsonl"]
    assert "exclude each other" in call(*words, "--runs-only", "--table-only").err


def test_table_only_without_runs_is_refused(call, tmp_path):
    answer = call("reproduce", "citation", "--table-only", "--out", "elsewhere")
    assert answer.code == 2
    assert "--table-only: there are no runs in elsewhere/citation" in answer.err
    assert not (tmp_path / "elsewhere").exists()
    said = call("reproduce", "citation", "--quick", "--models", "gatt").err
    assert "--models: the quick form of citation has no 'gatt'" in said


def test_missing_data_are_reported_without_failure(call, tmp_path, monkeypatch):
    monkeypatch.delenv("DIFFORMER_DATA", raising=False)
    monkeypatch.setenv("DIFFORMER_CACHE", str(tmp_path / "cache"))
    answer = call("reproduce", "particles", "--datasets", "actstrack", "--models", "mlp", "--device", "cpu")
    assert answer.code == 0
    assert "data not here" in answer.err
    assert "data not here" in (tmp_path / "results" / "particles" / "table.md").read_text()
    words = ("--datasets", "actstrack", "--models", "mlp", "--seeds", "3", "--table-only", "--json")
    said = json.loads(call("reproduce", "particles", *words).out)
    sections = {one["data"] for one in said["failed"] if one["reason"].startswith("data not here")}
    assert "actstrack" in sections
    assert (said["there"], said["left"]) == (0, 3 * len(sections))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "NAME is missing"),
        (("citatoin",), "did you mean citation?"),
        (("citation", "--models", "gatt"), "--models: citation has no 'gatt'"),
        (("citation", "--models", "h2gcn"), "--models: citation has no 'h2gcn'; it has"),
        (("citation", "--datasets", "mnist"), "--datasets: citation has no 'mnist'"),
        (("citation", "--limit", "-1"), "Invalid value for '--limit'"),
        (("citation", "--quick", "--limit", "0"), "limit must be a positive number of seconds"),
        (("citation", "--seeds", "0"), "Invalid value for '--seeds'"),
        (("citation", "--quick", "--device", "gpu"), "device must be auto, cpu"),
        (("--results", "page.md"), "there is no folder results"),
    ],
    ids=["nothing", "name", "model", "family", "data", "limit", "no time", "seeds", "device", "results"],
)
def test_invalid_requests_are_explained(call, words, complaint):
    answer = call("reproduce", *words)
    assert answer.code == 2
    assert complaint in answer.err


def test_results_option_writes_the_results_page(call, tmp_path):
    call("reproduce", "depth", "--quick", "--models", "K2-t0.5", "--device", "cpu")
    assert call("reproduce", "--quick", "--results", "RESULTS.md").code == 0
    assert "only the quick form was run" in (tmp_path / "RESULTS.md").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_keeps_finished_runs_and_says_how_to_continue(environment, tmp_path):
    words = ["reproduce", "citation", "--quick", "--seeds", "400", "--models", "lp,difformer-s", "--device", "cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "difformer", *words], cwd=tmp_path, env={**environment, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    path = tmp_path / "results-quick" / "citation" / "runs.jsonl"
    deadline = time.monotonic() + 120
    while (
        time.monotonic() < deadline and process.poll() is None and not (path.is_file() and path.stat().st_size > 5000)
    ):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted; finished runs are kept. Continue with: difformer reproduce citation --quick" in err
    done = path.read_text().splitlines()
    assert 0 < len(done) < 800
    assert all(json.loads(one)["status"] == "done" for one in done)
    assert (path.parent / "table.md").is_file()
