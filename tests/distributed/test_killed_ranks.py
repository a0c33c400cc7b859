"""A rank that dies ends all others soon, with an error that names it; the run goes on from its last checkpoint."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from group_of_ranks import free_port, starter
from test_exact import graph_task

from difformer.distributed import watch
from difformer.distributed.partition_folder import write_partition
from difformer.training import RunFolder, TrainConfig, fit, resume

SECONDS = 30  # within which all must have ended


def _work(rank, size, port, how, pipe, job):
    """A rank that sums for ever, or trains on `job`; rank 1 comes to an end by `how`."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch

    from difformer.distributed.process_group import join

    torch.set_num_threads(1)
    try:
        with join("cpu") as ranks:
            if job is not None:
                _train(ranks, *job)
            for i in range(100_000):
                ranks.sum_(torch.ones(4), "sums")
                if i == 20:
                    pipe.send("ready")
                if i == 30 and rank == 1 and how == "error":
                    raise ValueError("the disk is full")
                time.sleep(0.01)
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise SystemExit(7) from error


def _train(ranks, parts, out, config):
    """Trains; at epoch 12 rank 0 kills rank 1."""
    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.rank_runs import fit_sharded

    class Kill:
        def on_epoch(self, event):
            if event.epoch == 12:
                os.kill(ranks.watch._known(1)["process"], signal.SIGKILL)

    fit_sharded(Partition.open(parts), config, ranks=ranks, seeds=[0], out=out, callbacks=[Kill()])


def _group(how, size=3, job=None):
    context = starter()
    port, pipes, processes = free_port(), [], []
    for rank in range(size):
        here, there = context.Pipe()
        processes.append(context.Process(target=_work, args=(rank, size, port, how, there, job), daemon=True))
        processes[-1].start()
        there.close()
        pipes.append(here)
    for pipe in pipes if job is None else ():
        assert pipe.poll(60)
        assert pipe.recv() == "ready"
    return processes, pipes


def _ended(processes, pipes, but=()):
    """What each rank said at its end."""
    until, said = time.monotonic() + SECONDS, {}
    for rank, process in enumerate(processes):
        if rank not in but:
            process.join(max(0.0, until - time.monotonic()))
            assert process.exitcode is not None, f"rank {rank} is still there after {SECONDS} s"
            with suppress(EOFError):
                said[rank] = pipes[rank].recv() if pipes[rank].poll() else ""
    return said


def test_a_killed_rank_is_named_by_all_others_and_the_run_can_be_resumed(tmp_path):
    task = graph_task()
    write_partition(task, tmp_path / "parts", 3)
    config = TrainConfig(options={"hidden_channels": 8, "dropout": 0.2}, epochs=20, checkpoint_every=5)
    expected = fit(task, config, seeds=1, device="cpu", stacked=False).records[0]
    processes, pipes = _group("kill", job=(tmp_path / "parts", tmp_path / "run", config))
    processes[1].join(90)  # the others wait for it from then on
    assert processes[1].exitcode == -signal.SIGKILL
    said = _ended(processes, pipes)
    for rank in (0, 2):
        assert said[rank].startswith(f"RankLostError: rank 1 ({socket.gethostname()}, process "), said
        assert f"process {processes[1].pid}) is gone" in said[rank]
        assert processes[rank].exitcode == 7
    # One process goes on from epoch 10, to what it would have reached by itself.
    assert not (tmp_path / "run" / "seed-0" / "result.json").exists()
    result = resume(tmp_path / "run", task=task, device="cpu").results[0]
    assert (result["best_epoch"], result["epochs"]) == (expected.best_epoch, 20)
    assert result["loss"] == pytest.approx(expected.loss, abs=2e-5)
    assert [row["epoch"] for row in RunFolder.open(tmp_path / "run").rows()] == list(range(1, 21))


def test_rank_0_leaves_last_so_that_all_can_read_who_failed(monkeypatch):
    monkeypatch.setattr(watch, "BEAT", 0.1)
    for rank, failure, least in ((0, "rank 1 is gone", 0.2), (0, None, 0.0), (1, "rank 2 is gone", 0.0)):
        begun = time.monotonic()
        watch.Watch(rank, 3, None, failure).stop()
        assert least <= time.monotonic() - begun < least + 0.15


@pytest.mark.slow
def test_a_rank_that_fails_says_why_to_all_others():
    processes, pipes = _group("error")
    said = _ended(processes, pipes)
    assert said[1] == "ValueError: the disk is full"
    for rank in (0, 2):
        assert "failed: ValueError: the disk is full" in said[rank]
        assert said[rank].startswith("RankLostError: rank 1")


@pytest.mark.slow
def test_a_hanging_rank_times_out():
    """Nothing ever comes of what the others wait for: their watches end them."""
    processes, pipes = _group("stop")
    os.kill(processes[1].pid, signal.SIGSTOP)
    try:
        _ended(processes, pipes, but=[1])
        assert [processes[rank].exitcode for rank in (0, 2)] == [3, 3]
    finally:
        os.kill(processes[1].pid, signal.SIGKILL)


@pytest.mark.slow
def test_rank_0_is_named_although_it_keeps_the_store():
    processes, pipes = _group("kill", size=2)
    os.kill(processes[0].pid, signal.SIGKILL)
    said = _ended(processes, pipes)[1]
    assert said.startswith(f"RankLostError: rank 0 ({socket.gethostname()}, process {processes[0].pid}) is gone")


@pytest.mark.slow
def test_a_hanging_rank_0_with_the_store_times_out():
    processes, pipes = _group("stop", size=2)
    os.kill(processes[0].pid, signal.SIGSTOP)
    try:
        _ended(processes, pipes, but=[0])
        assert processes[1].exitcode == 3
    finally:
        os.kill(processes[0].pid, signal.SIGKILL)


def test_a_store_that_never_answers_means_that_rank_0_is_gone(monkeypatch):
    class Store:
        def __init__(self):
            self.kept, self.asked = {}, threading.Event()

        def check(self, keys):
            if keys == ["difformer/failure"]:
                self.asked.wait()  # for ever
            return keys[0] in self.kept

        def set(self, key, value):
            self.kept[key] = value

        def get(self, key):
            return self.kept[key].encode()

        def compare_set(self, key, expected, value):
            self.kept.setdefault(key, value)

    for name, seconds in (("BEAT", 0.01), ("SILENCE", 0.1), ("GRACE", 30)):
        monkeypatch.setattr(watch, name, seconds)
    store = Store()
    store.set("difformer/where/0", json.dumps({"host": "far", "process": 11, "machine": "m"}))
    one = watch.Watch(1, 2, store)
    threads = [threading.Thread(target=work, daemon=True) for work in (one._run, one._guard)]
    for thread in threads:
        thread.start()
    said = one.wait(20)
    one._ended.set()
    store.asked.set()
    for thread in threads:
        thread.join(20)
    assert said.startswith("rank 0 (far, process 11) is gone")
    assert said.endswith("no answer for 0 s")


def _rank_process(launcher, rank):
    """The process of a rank that `torchrun` started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == launcher and f"\0RANK={rank}\0" in f"\0{(entry / 'environ').read_text()}":
                    return int(entry.name)
    raise AssertionError(f"torchrun {launcher} has no rank {rank}")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to find a rank's process")
def test_torchrun_ends_and_the_run_can_be_resumed(tmp_path):
    task = graph_task()
    write_partition(task, tmp_path / "parts", 2)
    words = ["fit", "parts", "--out", "run", "--seeds", "1", "--device", "cpu"]
    settings = ["epochs=200000", "hidden_channels=8", "dropout=0.2", "checkpoint_every=5", "eval_every=5"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    started = subprocess.Popen(
        [*command, "-m", "difformer", *words, *(word for value in settings for word in ("--set", value))],
        cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    checkpoint, until = tmp_path / "run" / "seed-0" / "checkpoint.safetensors", time.monotonic() + 90
    try:
        while not checkpoint.exists():
            assert started.poll() is None, started.stderr.read()
            assert time.monotonic() < until, "no checkpoint within 90 s"
            time.sleep(0.1)
        os.kill(_rank_process(started.pid, 1), signal.SIGKILL)
        _, said = started.communicate(timeout=SECONDS)
    finally:
        started.kill()
    assert started.returncode != 0
    assert "rank      : 1" in said or "rank 1 (" in said, said
    # One process goes on where the ranks were, to what it would have reached by itself.
    about = (tmp_path / "run" / "config.toml").read_text().replace("epochs = 200000", "epochs = 400")
    (tmp_path / "run" / "config.toml").write_text(about)
    found = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert found["epoch"] < 400, "too late to go on"
    options = {"hidden_channels": 8, "dropout": 0.2}
    config = TrainConfig(options=options, epochs=400, eval_every=5)
    expected = fit(task, config, seeds=1, device="cpu", stacked=False).records[0]
    result = resume(tmp_path / "run", task=task, device="cpu").results[0]
    assert result["best_epoch"] == expected.best_epoch
    assert result["loss"] == pytest.approx(expected.loss, abs=1e-3)
