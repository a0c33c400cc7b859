"""Runs that are killed, interrupted or out of room, in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from small_tasks import blocks

from difformer.training import RunFolder, evaluate, fit, resume

HERE = Path(__file__).parent
# A server that loads torch once and trains in forked children, which can be killed at any moment.
SERVER = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[1])
folder, kills, seed = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
import torch
torch.set_num_threads(1)
from small_tasks import blocks
from difformer.training import TrainConfig, fit, resume
import difformer.training.loop, difformer.training.run, difformer.zoo.model_registry

task = blocks(n=200)
config = TrainConfig(
    options={"hidden_channels": 16, "dropout": 0.2}, epochs=40, learning_rate=0.01, checkpoint_every=3, eval_every=2
)

def train(path):
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        fit(task, config, seeds=2, out=path, device="cpu", resume=True, stacked=False)
        status = 0
    finally:
        os._exit(status)

started = time.monotonic()
assert os.waitpid(train(folder + "/whole"), 0)[1] == 0
duration = time.monotonic() - started
chance = random.Random(seed)
killed = 0
while True:
    child = train(folder + "/killed")
    if killed < kills:
        time.sleep(chance.uniform(0.02, 2 * duration / kills))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        killed += 1
        continue
    assert status == 0, status
    if killed == kills:
        break
    # It got through before it could be killed: from the beginning, to have all kills asked for.
    os.rename(folder + "/killed", f"{folder}/through-{time.monotonic_ns()}")
print(killed)
"""


def plain(folder):
    """Everything that a run folder says, without times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = _timeless(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                found[name] = {key: arrays[key].tolist() for key in arrays.files}
        elif path.is_file() and path.name != "config.toml":
            found[name] = path.read_bytes()
    return found


def _timeless(value):
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key != "seconds"}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def killed_run(tmp_path, kills, seed=None):
    """The moments of the kills differ from day to day; a failure names the seed they come from, to be repeated."""
    seed = int(os.environ.get("DIFFORMER_KILL_SEED", time.time())) if seed is None else seed
    print(f"kills at moments of seed {seed}: repeat with DIFFORMER_KILL_SEED={seed}")
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(HERE), str(tmp_path), str(kills), str(seed)],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    assert done.stdout.strip() == str(kills), f"seed {seed}"
    whole, killed = plain(tmp_path / "whole"), plain(tmp_path / "killed")
    assert killed.keys() == whole.keys(), f"seed {seed}"
    for name in whole:
        assert killed[name] == whole[name], f"seed {seed}: {name}"
    epochs = [(line["seed"], line["epoch"]) for line in killed["metrics.jsonl"]]
    assert epochs == [(run, epoch) for run in range(2) for epoch in range(1, 41)]
    assert "seed-1/model.safetensors" in whole
    assert not any("checkpoint" in name or name.endswith(".part") for name in whole)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_resume_after_three_sigkills_is_bit_identical(tmp_path):
    killed_run(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_resume_after_twenty_sigkills_is_bit_identical(tmp_path):
    killed_run(tmp_path, 20)


CONTROL_C = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from small_tasks import blocks
from difformer.training import TrainConfig, TrainingInterrupted, fit
config = TrainConfig(options={"hidden_channels": 16, "dropout": 0.2}, epochs=int(sys.argv[3]), checkpoint_seconds=1000)
try:
    fit(blocks(n=200), config, seeds=[0, 1], out=sys.argv[2], device="cpu", stacked=False)
except TrainingInterrupted as told:
    print(told, told.summary.results[0]["epochs"])
    sys.exit(130)
"""


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_control_c_saves_the_results_so_far(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-c", CONTROL_C, str(HERE), str(run), "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = run / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") > 5):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "the state was saved, resume it from" in out
    epochs = int(out.split()[-1])
    found = plain(run)
    assert found["seed-0/result.json"]["status"] == "interrupted"
    assert found["summary.json"]["complete"] is False
    assert [line["epoch"] for line in found["metrics.jsonl"]] == list(range(1, epochs + 1))
    assert {"seed-0/model.safetensors", "seed-0/predictions.npz", "seed-0/checkpoint.safetensors"} <= found.keys()
    with pytest.warns(UserWarning, match=r"is not finished \(2 of 2 seeds"):
        measured = evaluate(run, task=blocks(n=200))[0].values["accuracy"]["test"]
    assert measured == found["seed-0/result.json"]["test"]

    # Shortened to a bearable length, the run goes on to the end that it would have had.
    config = run / "config.toml"
    config.write_text(config.read_text().replace("epochs = 100000", f"epochs = {epochs + 5}"))
    resume(run, task=blocks(n=200), device="cpu")
    fit(blocks(n=200), RunFolder.open(run).config, seeds=[0, 1], out=tmp_path / "whole", device="cpu", stacked=False)
    assert plain(run) == plain(tmp_path / "whole")


TROUBLE = """
import os, resource, signal, sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from small_tasks import blocks
from difformer.training import RunFolderError, TrainConfig, fit

# Loads everything that training needs: a child that gives up its rights may not be able to read the package.
fit(blocks(), TrainConfig(options={"hidden_channels": 8}, epochs=2), seeds=1, out=sys.argv[4], device="cpu")

def read_only():
    if os.geteuid() == 0:
        os.setuid(65534)  # who may do everything is told nothing

def full():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

for trouble, folder in ((read_only, sys.argv[2]), (full, sys.argv[3])):
    child = os.fork()
    if not child:
        trouble()
        try:
            fit(blocks(), TrainConfig(options={"hidden_channels": 8}, epochs=400), seeds=1, out=folder, device="cpu")
        except RunFolderError as told:
            print(told, flush=True)
            os._exit(2)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="permissions and limits of file sizes are POSIX")
@pytest.mark.usefixtures("one_thread")
def test_a_read_only_folder_and_a_full_disk_are_reported(tmp_path):
    """For the second the system itself refuses to let a file grow, as it does where a disk is full."""
    closed, run = tmp_path / "closed", tmp_path / "run"
    closed.mkdir()
    closed.chmod(0o555)
    command = [sys.executable, "-c", TROUBLE, str(HERE), str(closed / "run"), str(run), str(tmp_path / "first")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    read_only, first, full, second = done.stdout.splitlines()
    assert (first, second) == ("2", "2")
    assert "no write permission; choose another folder" in read_only
    assert list(closed.iterdir()) == []
    assert "metrics.jsonl cannot be written" in full
    assert "continue with resume. Nothing was overwritten." in full
    lines = (run / "metrics.jsonl").read_text()
    assert lines.endswith("\n")
    assert [json.loads(line)["epoch"] for line in lines.splitlines()] == list(range(1, lines.count("\n") + 1))
    assert not list(run.rglob(".*.part"))
    assert resume(run, task=blocks(), device="cpu").complete
