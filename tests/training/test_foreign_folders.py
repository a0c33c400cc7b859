"""Run folders from elsewhere, damaged or tampered with: refused with our error, never followed, never a traceback."""

import json
import os
import random
import re
import shutil
import signal
import threading
import time
from dataclasses import replace

import pytest
from safetensors import safe_open
from safetensors.torch import save_file
from small_tasks import blocks

from difformer.data import load
from difformer.data.catalogue import entry
from difformer.errors import UserError
from difformer.files import only_one
from difformer.report.comparison import _test_to_train
from difformer.report.gather import _read_predictions, gather
from difformer.training import (
    RunFolder,
    RunFolderError,
    TaskSource,
    TrainConfig,
    evaluate,
    fit,
    load_run,
    predict,
    resume,
)
from difformer.training.checkpoint import Snapshot

CONFIG = TrainConfig(options={"hidden_channels": 4}, epochs=3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    fit(blocks(), CONFIG, seeds=2, out=path, device="cpu", stacked=False)
    return path


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def test_weights_swapped_between_seeds_are_noticed(run):
    first, second = run / "seed-0/model.safetensors", run / "seed-1/model.safetensors"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    for seed in (0, 1):
        with pytest.raises(RunFolderError, match=r"does not hold the weights that seed \d was measured with"):
            load_run(run, seed=seed, task=blocks(), device="cpu")


def test_results_swapped_between_seeds_are_noticed(run):
    shutil.copy(run / "seed-0/result.json", run / "seed-1/result.json")
    with pytest.raises(RunFolderError, match="is the result of seed 0"):
        evaluate(run, task=blocks(), device="cpu")


def without_hash(run, seed, *names):
    path = run / f"seed-{seed}/result.json"
    found = json.loads(path.read_text())
    for name in names:
        assert found.pop(name)
    path.write_text(json.dumps(found))


def set_hashes(run, text):
    config = run / "config.toml"
    changed, count = re.subn(r"(?m)^hashes = .*\n", text, config.read_text())
    assert count == 1
    config.write_text(changed)


def test_weights_without_their_hash_are_refused(run):
    without_hash(run, 0, "weights")
    shutil.copy(run / "seed-1/model.safetensors", run / "seed-0/model.safetensors")
    with pytest.raises(RunFolderError, match="has no hash of the weights"):
        load_run(run, seed=0, task=blocks(), device="cpu")


def test_folders_written_before_weights_were_hashed_are_read(run):
    for seed in (0, 1):
        without_hash(run, seed, "weights", "predictions")
    set_hashes(run, "")
    assert len(evaluate(run, task=blocks(), device="cpu")) == 2
    assert len(gather(run, task=blocks(), device="cpu").predictions) == 2


def test_predictions_of_another_seed_are_noticed(run):
    shutil.copy(run / "seed-1/predictions.npz", run / "seed-0/predictions.npz")
    with pytest.raises(RunFolderError, match="does not hold the predictions that seed 0 was measured with"):
        gather(run, task=blocks(), device="cpu")


def test_predictions_without_their_hash_are_refused(run):
    without_hash(run, 0, "predictions")
    with pytest.raises(RunFolderError, match="has no hash of the predictions"):
        gather(run, task=blocks(), device="cpu")


def test_folders_written_before_predictions_were_hashed_are_read_and_their_weights_checked(run):
    set_hashes(run, "hashes = true\n")
    for seed in (0, 1):
        without_hash(run, seed, "predictions")
    assert len(gather(run, task=blocks(), device="cpu").predictions) == 2
    without_hash(run, 0, "weights")
    with pytest.raises(RunFolderError, match="has no hash of the weights"):
        load_run(run, seed=0, task=blocks(), device="cpu")


def test_a_run_killed_between_predictions_and_result_is_noticed_and_resumed(tmp_path, monkeypatch):
    path, config = tmp_path / "run", CONFIG.replace(epochs=6, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        fit(blocks(), config, seeds=1, out=path, device="cpu", callbacks=[Interrupt()])
    _read_predictions(RunFolder.open(path), blocks(), 0)

    def killed(*given, **more):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_result", killed)
        with pytest.raises(RuntimeError, match="killed"):
            resume(path, task=blocks(), device="cpu")
    with pytest.raises(RunFolderError, match="does not hold the predictions that seed 0 was measured with"):
        _read_predictions(RunFolder.open(path), blocks(), 0)
    assert resume(path, task=blocks(), device="cpu").complete
    assert len(gather(path, task=blocks(), device="cpu").predictions) == 1


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
def test_a_lock_that_is_a_symbolic_link_is_named(run, tmp_path):
    (run / "seed-1/result.json").unlink()
    (run / ".lock").unlink(missing_ok=True)
    (run / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match=r"\.lock is a symbolic link.*delete it"):
        resume(run, task=blocks(), device="cpu")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("setting", ["source_weight = 1e308", "step_size = -1e300", "graph_weight = 1e308"])
def test_absurd_numbers_in_a_configuration_get_our_error(run, setting):
    name = setting.partition(" ")[0]
    config = run / "config.toml"
    text, count = re.subn(rf"(?m)^{name} = .*$", setting, config.read_text())
    assert count == 1
    config.write_text(text)
    with pytest.raises((RunFolderError, UserError)):
        evaluate(run, task=blocks(), device="cpu")


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
@pytest.mark.parametrize(
    "name",
    [
        *("config.toml", "metrics.jsonl", "summary.json", "seed-0"),
        *(f"seed-0/{name}" for name in ("model.safetensors", "result.json", "predictions.npz", "split.npz")),
    ],
)
def test_links_that_leave_the_folder_are_refused(run, name, tmp_path):
    outside = tmp_path / "outside"
    shutil.move(run / name, outside)
    (run / name).symlink_to(outside)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("outside*")}

    def read():
        folder = RunFolder.open(run)
        _ = folder.metrics
        evaluate(folder, task=blocks(), device="cpu")

    def write():
        (run / "seed-1/result.json").unlink()
        RunFolder.open(run).read_weights(0)
        resume(run, task=blocks(), device="cpu")

    for use in (read, write):
        with pytest.raises(RunFolderError, match="leads out of the run folder through a symbolic link"):
            use()
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("outside*")} == before


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
def test_links_within_the_folder_are_followed(run):
    (run / "config.toml").rename(run / "other.toml")
    (run / "config.toml").symlink_to("other.toml")
    assert len(evaluate(run, task=blocks(), device="cpu")) == 2


def test_a_lock_removed_during_a_run_is_noticed(tmp_path):
    path = tmp_path / "run"

    class Remove:
        def on_epoch(self, event):
            if event.epoch == 3:
                (path / ".lock").unlink()

    with pytest.raises(RunFolderError, match="was removed or replaced while this process was writing"):
        fit(blocks(), CONFIG.replace(epochs=50), seeds=1, out=path, device="cpu", callbacks=[Remove()])
    lines = (path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
    assert resume(path, task=blocks(), device="cpu").complete


def test_a_lock_that_another_process_has_taken_since_is_noticed(tmp_path):
    path = tmp_path / "run"

    class Replace:
        def on_epoch(self, event):
            if event.epoch == 3:
                (path / ".lock").unlink()
                (path / ".lock").touch()

    with pytest.raises(RunFolderError, match="another process may be writing there too"):
        fit(blocks(), CONFIG.replace(epochs=50), seeds=1, out=path, device="cpu", callbacks=[Replace()])


def test_a_second_thread_or_process_is_kept_out(run):
    found = []

    def other():
        try:
            with only_one(run):
                pass
        except RunFolderError as error:
            found.append(str(error))

    with only_one(run):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "being written by another process" in found[0]
    other()
    assert len(found) == 1


DEEP = "[" * 100_000
BROKEN = ["", "[]", "null", "5", '"text"', "{}", '{"seed": 0}', DEEP, '{"a":' * 50_000, "\x00", "{", "true"]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_broken_json_gets_our_error(run, content):
    (run / "seed-0/result.json").write_text(content)
    for use in (evaluate, predict, resume):
        with pytest.raises(RunFolderError, match=r"result\.json"):
            use(run, task=blocks(), device="cpu")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seeds = ", "seeds = 7 # "),
        ("seeds = ", "seeds = [] # "),
        ("seeds = ", "seeds = [0, 'a'] # "),
        ("seeds = ", "seeds = [0, 0] # "),
        ("stacked = ", "stacked = 'no' # "),
        ("[versions]", "[other]"),
        ("[training]", "[[training]]"),
        ("[model.options]", "[model.opt]\nname = 1\n[x.y]"),
        ("fingerprint = ", "fingerprint = 3 # "),
        ("protocol = ", "protocol = [] # "),
        ("[run]", f"a = {DEEP}\n[run]"),
        ("threads = ", "threads = 'two' # "),
        ("format = 1", "format = 'one'"),
    ],
)
def test_broken_configurations_get_our_error(run, old, new):
    path = run / "config.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    for use in (evaluate, resume):
        with pytest.raises(RunFolderError, match=r"config\.toml|weights are of another model"):
            use(run, task=blocks(), device="cpu")


def test_truncated_and_mutated_files_get_our_error_or_are_read(run, whole):
    """400 random cuts and changes of every text file: our error or a result, never another exception."""
    chance = random.Random(0)
    names = ["config.toml", "seed-0/result.json", "metrics.jsonl"]
    for case in range(400):
        path = run / names[case % len(names)]
        original = (whole / names[case % len(names)]).read_bytes()
        changed = bytearray(original)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(changed) or 1)
            kind = chance.random()
            if kind < 0.3:
                del changed[place:]
            elif kind < 0.6:
                changed[place : place + 1] = bytes([chance.randrange(256)])
            else:
                changed[place:place] = chance.choice([b"[", b"{", b"null", b"[]", b"-", b'"', b"1e999"])
        path.write_bytes(changed)
        try:
            folder = RunFolder.open(run)
            folder.rows()
            folder.summary().to_dict()
            assert folder.unfinished is not None
        except (RunFolderError, UserError):
            continue
        finally:
            path.write_bytes(original)


@pytest.mark.parametrize(
    "options", ["num_layers = 1000000000", "hidden_channels = 1000000000", "num_heads = 1000000000"]
)
def test_a_configuration_larger_than_its_weights_is_refused_at_once(run, options):
    path = run / "config.toml"
    name = options.split()[0]
    lines = [options if line.startswith(f"{name} =") else line for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines))
    started = time.monotonic()
    with pytest.raises(RunFolderError, match="weights are of another model"):
        load_run(run, task=blocks(), device="cpu")
    assert time.monotonic() - started < 5


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
@pytest.mark.parametrize("name", ["predictions.npz", "split.npz"])
def test_reports_follow_no_link_to_arrays_outside_of_the_folder(run, name, tmp_path):
    folder = RunFolder.open(run)  # before the link is made
    outside = tmp_path / "outside.npz"
    shutil.move(run / "seed-0" / name, outside)
    (run / "seed-0" / name).symlink_to(outside)
    reader = _test_to_train if name == "split.npz" else lambda one: _read_predictions(one, blocks(), 0)
    with pytest.raises(RunFolderError, match="leads out of the run folder"):
        reader(folder)


class Interrupt:
    """Ctrl-C after the second epoch."""

    def on_epoch(self, event):
        if event.epoch == 2:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("stacked", "name"), [(False, "seed-0/checkpoint.safetensors"), (True, "stack.safetensors")])
def test_a_checkpoint_that_was_changed_is_noticed(tmp_path, stacked, name):
    config = CONFIG.replace(epochs=5, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        fit(blocks(), config, seeds=2, out=tmp_path / "run", device="cpu", stacked=stacked, callbacks=[Interrupt()])
    path = tmp_path / "run" / name
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    changed = {key: value.clone() for key, value in tensors.items()}
    next(value for value in changed.values() if value.is_floating_point() and value.dim()).view(-1)[0] += 1
    save_file(changed, path, metadata)
    with pytest.raises(RunFolderError, match="damaged: its content does not match its hash; delete it to train"):
        resume(tmp_path / "run", task=blocks(), device="cpu")
    without = {key: value for key, value in metadata.items() if key != "hash"}
    save_file(tensors, path, without)
    with pytest.raises(RunFolderError, match=f"{re.escape(name)}: damaged.*delete it to train"):
        resume(tmp_path / "run", task=blocks(), device="cpu")
    save_file(tensors, path, {**metadata, "difformer": metadata["difformer"].replace('"format": 1', '"format": "x"')})
    with pytest.raises(RunFolderError, match="not a checkpoint of a training run"):
        resume(tmp_path / "run", task=blocks(), device="cpu")
    snapshot = Snapshot(tensors, json.loads(metadata["difformer"]))
    moments = [key for key in tensors if "exp_avg" in key or key == "optimizer.mean"]
    assert moments
    for key in moments:
        replace(snapshot, tensors={**tensors, key: tensors[key][:1]}).write(path)
        with pytest.raises(RunFolderError, match=f"{re.escape(name)}: the checkpoint is of another model.*delete it"):
            resume(tmp_path / "run", task=blocks(), device="cpu")
    snapshot.write(path)
    assert resume(tmp_path / "run", task=blocks(), device="cpu").complete


def test_an_unknown_option_of_the_data_is_named(tmp_path):
    (tmp_path / "f.csv").write_text("a,label\n" + "".join(f"{i},{'uv'[i % 2]}\n" for i in range(12)))
    with pytest.raises(UserError, match="from_files has no option 'unknown'"):
        TaskSource(files={"features": tmp_path / "f.csv"}, options={"unknown": 1}).load()
    with pytest.raises(UserError, match="from_files has no option 'colour'"):
        TaskSource(files={"features": tmp_path / "f.csv", "colour": tmp_path / "f.csv"}).load()


def test_a_result_without_a_score_is_refused(run):
    path = run / "seed-0/result.json"
    found = json.loads(path.read_text())
    del found["train"]
    path.write_text(json.dumps(found))
    with pytest.raises(RunFolderError, match=r"result\.json is not the result of a run \(train is missing\)"):
        RunFolder.open(run).summary()


@pytest.mark.parametrize("name", ["heat", "two-moons", "random-graph", "covid", "synmol"])
def test_folders_that_name_options_of_earlier_versions_load_the_same_data(name):
    """Earlier versions wrote every option with its default; other values of options that are gone are refused."""
    former = dict(entry(name).former)
    assert former
    options = {"num_nodes": 40, "num_edges": 90} if name == "random-graph" else {}
    if name in ("covid", "synmol") and not os.environ.get("DIFFORMER_DATA"):
        pytest.skip("DIFFORMER_DATA is not set")
    loaded = TaskSource(name, options={**options, **former}).load()
    assert loaded.fingerprint() == load(name, **options).fingerprint()
    option = next(iter(former))
    with pytest.raises(UserError, match=f"has no option '{option}'"):
        TaskSource(name, options={**options, option: "another"}).load()
