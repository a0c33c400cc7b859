import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small_tasks import blocks, many_labels, point_sets, series

import difformer
from difformer import toml
from difformer.data import DataError, load, load_splits
from difformer.files import only_one
from difformer.training import (
    NonFiniteLossError,
    RunFolder,
    RunFolderError,
    TaskSource,
    TrainConfig,
    evaluate,
    fit,
    resume,
    train_one,
)

CONFIG = TrainConfig(options={"hidden_channels": 8, "dropout": 0.1}, epochs=6, learning_rate=0.05)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return path, fit(blocks(), CONFIG, seeds=3, out=path, device="cpu", stacked=False)


def test_run_folder_contains_all_files(run):
    path, summary = run
    assert {file.name for file in path.iterdir()} == {
        ".lock", "config.toml", "metrics.jsonl", "summary.json", "seed-0", "seed-1", "seed-2",
    }  # fmt: skip
    for seed in range(3):
        here = path / f"seed-{seed}"
        assert {file.name for file in here.iterdir()} == {
            "model.safetensors", "predictions.npz", "predictions.csv", "split.npz", "result.json",
        }  # fmt: skip
        # Seeds go round the splits of the task, and each equals a run by itself.
        alone = train_one(blocks(), seed % 2, CONFIG, seed, "cpu")
        weights = load_file(here / "model.safetensors")
        assert all(torch.equal(weights[name], alone.state[name]) for name in alone.state)
        assert load_splits(here / "split.npz")[0].same_as(blocks().splits[seed % 2])
        with np.load(here / "predictions.npz") as arrays:
            assert np.array_equal(arrays["outputs"], alone.outputs.numpy())
            assert np.array_equal(arrays["prediction"], alone.outputs.argmax(1).numpy())
            test = blocks().splits[seed % 2].test.numpy()
            assert set(arrays["part"][test]) == {"test"}
            assert (arrays["prediction"] == arrays["target"])[test].mean() == pytest.approx(alone.test)
        result = json.loads((here / "result.json").read_text())
        assert (result["test"], result["best_epoch"]) == (alone.test, alone.best_epoch)
    tests = [result["test"] for result in summary.results]
    written = json.loads((path / "summary.json").read_text())
    assert written["test"]["mean"] == pytest.approx(np.mean(tests)) == summary.mean()
    assert written["test"]["std"] == pytest.approx(np.std(tests, ddof=1)) == summary.std()
    assert written["complete"] is True


def test_metrics_have_one_line_per_epoch_and_seed(run):
    lines = [json.loads(line) for line in (run[0] / "metrics.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["epoch"]) for line in lines] == [(s, e) for s in range(3) for e in range(1, 7)]
    assert set(lines[0]) == {"seed", "epoch", "loss", "train", "valid", "test", "seconds"}


def test_the_configuration_is_complete(run):
    about = toml.loads((run[0] / "config.toml").read_text())
    assert about["run"]["seeds"] == [0, 1, 2]
    assert about["run"]["device"] == "cpu"
    assert about["versions"]["torch"] == torch.__version__
    assert about["versions"]["difformer"] == difformer.__version__
    assert set(about["versions"]) == {"difformer", "torch", "numpy", "python"}
    assert about["data"]["fingerprint"] == blocks().fingerprint()
    assert about["data"]["protocol"] == "a block model"
    fields = set(TrainConfig().to_dict()) - {"model", "options"}
    assert set(about["training"]) == fields
    # Defaults of the model too, those that are none included.
    assert about["model"]["options"]["step_size"] == 0.5
    assert about["model"]["options"]["graph_weight"] == 0.8
    assert about["model"]["options"]["activation"] is None
    again = RunFolder.open(run[0]).config
    assert again.replace(options=CONFIG.options) == CONFIG


def test_a_run_of_a_data_set_needs_nothing_but_its_folder(tmp_path):
    source = TaskSource("iris", options={"num_splits": 2})
    fit(source, CONFIG.replace(epochs=2), seeds=1, out=tmp_path / "run", device="cpu")
    folder = RunFolder.open(tmp_path / "run")
    assert folder.source.options["num_splits"] == 2
    assert folder.source.options["seed"] == 0  # a default of the data set
    assert folder.task().fingerprint() == load("iris", num_splits=2).fingerprint()
    assert resume(tmp_path / "run").complete


def test_an_existing_folder_is_never_overwritten(run, tmp_path):
    before = {file: file.read_bytes() for file in run[0].rglob("*") if file.is_file()}
    with pytest.raises(RunFolderError, match="already holds a run; nothing was changed"):
        fit(blocks(), CONFIG, seeds=1, out=run[0], device="cpu")
    assert {file: file.read_bytes() for file in run[0].rglob("*") if file.is_file()} == before
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunFolderError, match="already exists and is not empty"):
        fit(blocks(), CONFIG, seeds=1, out=tmp_path, device="cpu")
    with pytest.raises(RunFolderError, match="already exists"):
        fit(blocks(), CONFIG, seeds=1, out=tmp_path / "mine.txt", device="cpu")
    with pytest.raises(RunFolderError, match="a part of the path is a file"):
        fit(blocks(), CONFIG, seeds=1, out=tmp_path / "mine.txt" / "run", device="cpu")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "empty").mkdir()
    assert fit(blocks(), CONFIG.replace(epochs=1), seeds=1, out=tmp_path / "empty", device="cpu").complete


def test_resuming_another_run_is_refused(run, tmp_path):
    with pytest.raises(RunFolderError, match=r"holds another run: epochs is 6 there and 7 here"):
        fit(blocks(), CONFIG.replace(epochs=7), seeds=3, out=run[0], device="cpu", resume=True)
    with pytest.raises(RunFolderError, match=r"seeds are \[0, 1, 2\] there and \[0\] here"):
        fit(blocks(), CONFIG, seeds=1, out=run[0], device="cpu", resume=True)
    with pytest.raises(RunFolderError, match=r"the data of .* have changed"):
        fit(blocks(seed=1), CONFIG, seeds=3, out=run[0], device="cpu", resume=True)
    with pytest.raises(RunFolderError, match="trained on a task object; pass that task again"):
        resume(run[0])
    with pytest.raises(RunFolderError, match="does not exist; `difformer fit` creates run folders"):
        resume(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=r"has no config\.toml"):
        resume(tmp_path)
    with pytest.raises(ValueError, match="resume=True needs the folder"):
        fit(blocks(), CONFIG, resume=True)


def test_resuming_a_finished_run_changes_nothing(run):
    path, summary = run
    before = (path / "seed-0" / "model.safetensors").read_bytes()
    again = fit(blocks(), CONFIG, seeds=3, out=path, device="cpu", resume=True)
    assert again.results == summary.results
    assert again.records == ()
    assert (path / "seed-0" / "model.safetensors").read_bytes() == before


def stopped(path, after, **changes):
    """A run that a callback broke off."""

    class Stop:
        def on_epoch(self, event):
            if (event.seed, event.epoch) == after:
                raise RuntimeError("the light went out")

    with pytest.raises(RuntimeError, match="light"):
        fit(blocks(), CONFIG.replace(**changes), seeds=2, out=path, device="cpu", callbacks=[Stop()], stacked=False)


def test_half_lines_and_lines_after_the_checkpoint_are_removed(tmp_path):
    whole = fit(blocks(), CONFIG, seeds=2, out=tmp_path / "whole", device="cpu", stacked=False)
    stopped(tmp_path / "run", (1, 5), checkpoint_every=2)
    metrics = tmp_path / "run" / "metrics.jsonl"
    with metrics.open("a") as file:
        file.write('{"seed": 1, "epo')
    (tmp_path / "run" / "seed-1" / ".checkpoint.safetensors.abc.part").write_bytes(b"half")
    again = resume(tmp_path / "run", task=blocks(), device="cpu")
    assert [result["test"] for result in again.results] == [result["test"] for result in whole.results]
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    expected = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    for line in (*lines, *expected):
        line.pop("seconds")
    assert lines == expected
    assert not list(tmp_path.rglob("*.part"))
    assert not list(tmp_path.rglob("checkpoint*"))


def test_files_that_cannot_be_used_are_named(tmp_path):
    path = tmp_path / "run"
    stopped(path, (0, 5), checkpoint_every=2)
    checkpoint, config = path / "seed-0" / "checkpoint.safetensors", path / "config.toml"
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: len(content) // 2])
    with pytest.raises(RunFolderError, match=r"damaged.*delete it to train seed 0 from its beginning"):
        resume(path, task=blocks())
    checkpoint.unlink()
    text = config.read_text()
    config.write_text(text.replace("format = 1", "format = 99"))
    with pytest.raises(RunFolderError, match="in format 99, this difformer reads up to 1: upgrade"):
        resume(path, task=blocks())
    config.write_text(text.replace("epochs = 6", "epochs = -6"))
    with pytest.raises(RunFolderError, match="epochs must be a whole number of at least 1, got -6"):
        resume(path, task=blocks())
    config.write_text("not [ toml")
    with pytest.raises(RunFolderError, match="cannot be used"):
        resume(path, task=blocks())
    config.write_text(text)
    assert resume(path, task=blocks(), device="cpu").complete


def test_two_processes_cannot_write_one_folder(run):
    with only_one(run[0]), pytest.raises(RunFolderError, match="being written by another process"):
        resume(run[0], task=blocks())


def test_a_loss_that_is_not_finite_leaves_a_folder(tmp_path):
    with pytest.raises(NonFiniteLossError, match="at epoch"):
        fit(blocks(), CONFIG.replace(learning_rate=1e30), seeds=1, out=tmp_path / "run", device="cpu")
    assert RunFolder.open(tmp_path / "run").results() == ()


def test_unserialisable_config_is_refused_before_a_folder_is_created(tmp_path):
    from difformer.diffusion import Diffusivity

    own = Diffusivity("own", f=lambda u: 1 - u / 8, delta=lambda u: u - u**2 / 16)
    config = CONFIG.replace(model="difformer", options={"diffusivity": own, "hidden_channels": 4})
    with pytest.raises(ValueError, match=r"model\.options\.diffusivity is a Diffusivity.*train it with out=None"):
        fit(blocks(), config, seeds=1, out=tmp_path / "run", device="cpu")
    assert not list(tmp_path.iterdir())
    assert fit(blocks(), config.replace(epochs=1), seeds=1, device="cpu").complete


def test_seeds_are_checked():
    for seeds in (0, [], [1, 1], [-1]):
        with pytest.raises(ValueError, match="seeds must be a number of at least 1"):
            fit(blocks(), CONFIG, seeds=seeds)


@pytest.mark.parametrize("make", [many_labels, series, point_sets])
def test_every_kind_of_task_has_a_folder_and_a_table(make, tmp_path):
    task = make()
    fit(task, CONFIG.replace(epochs=2), seeds=1, out=tmp_path / "run", device="cpu")
    lines = (tmp_path / "run" / "seed-0" / "predictions.csv").read_text().splitlines()
    headings = {
        "many": "instance,part,target 0,probability 0,target 1,probability 1",
        "ring": "snapshot,node,part,target,prediction",
        "sets": "instance,part,target,probability",
    }
    assert lines[0].startswith(headings[task.name])
    assert len(lines) == 1 + task.y.flatten(0, 1 if task.kind == "series" else 0).shape[0]
    assert re.match(r"0,(0,)?(train|valid|test),", lines[1])


def test_a_run_on_own_files_needs_its_folder_and_the_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = blocks()
    rows = "\n".join(",".join(f"{v:.4f}" for v in row) for row in task.x.tolist())
    (tmp_path / "x.csv").write_text(f"a,b,c,d,e\n{rows}\n")
    (tmp_path / "y.csv").write_text("label\n" + "\n".join(["red", "green", "blue"][c] for c in task.y.tolist()) + "\n")
    source = TaskSource(files={"features": "x.csv", "labels": "y.csv"}, options={"seeds": [3]})
    summary = fit(source, CONFIG, seeds=1, out="run", device="cpu")
    monkeypatch.chdir("/")
    folder = RunFolder.open(tmp_path / "run")
    assert folder.source.options["self_loops"] == "add"  # a default of the reader
    assert folder.task().class_names == ("blue", "green", "red")
    assert evaluate(folder)[0].values["accuracy"]["test"] == summary.results[0]["test"]
    (tmp_path / "x.csv").write_text((tmp_path / "x.csv").read_text().replace("1", "2", 1))
    with pytest.raises(RunFolderError, match=r"the data of .* have changed.*restore the data, or fit again"):
        resume(tmp_path / "run")
    (tmp_path / "y.csv").unlink()
    with pytest.raises(DataError, match=r"y\.csv.*no longer there"):
        resume(tmp_path / "run")


def test_a_file_that_was_moved_is_found_again_where_the_run_folder_says(tmp_path):
    rows = "".join(f"{i},{i % 5},{'ab'[i % 2]}\n" for i in range(40))
    (tmp_path / "x.csv").write_text("u,v,label\n" + rows)
    fit(TaskSource(files={"features": str(tmp_path / "x.csv")}), CONFIG, seeds=1, out=tmp_path / "run", device="cpu")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "x.csv").rename(tmp_path / "elsewhere" / "x.csv")
    with pytest.raises(
        DataError, match=r"no longer there; put it back or, if it was moved, .* \[data\.source\.files\]"
    ):
        RunFolder.open(tmp_path / "run").task()
    config = tmp_path / "run" / "config.toml"
    place = '[data.source.files]\nfeatures = "'  # as the message says
    assert place in config.read_text()
    moved = config.read_text().replace(str(tmp_path / "x.csv"), str(tmp_path / "elsewhere" / "x.csv"))
    config.write_text(moved)
    assert RunFolder.open(tmp_path / "run").task().num_nodes == 40


def test_own_files_are_kept_as_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = TaskSource(files={"features": "x.csv"})
    assert source.files["features"] == str(tmp_path / "x.csv")
    again = TaskSource.from_dict(source.to_dict())
    assert (again.name, again.files) == (None, source.files)
    assert again == TaskSource.from_dict(again.to_dict())  # with every option at its default
    with pytest.raises(ValueError, match=r"file with the features is no longer there.*|.*x\.csv.*no longer there"):
        source.load()
    with pytest.raises(ValueError, match="give one of name and files"):
        TaskSource()


def test_seeds_trained_as_one_have_the_same_folder(run, tmp_path):
    path = tmp_path / "run"
    told = []

    class Watch:
        on_epoch = staticmethod(told.append)

    summary = fit(blocks(), CONFIG, seeds=3, out=path, device="cpu", stacked=True, callbacks=[Watch()])
    assert RunFolder.open(path).stacked
    assert {(event.seed, event.epoch) for event in told} == {(s, e) for s in range(3) for e in range(1, 7)}
    files = {str(file.relative_to(path)) for file in path.rglob("*")}
    assert files == {str(file.relative_to(run[0])) for file in run[0].rglob("*")}
    for mine, alone in zip(summary.results, run[1].results, strict=True):
        assert mine["best_epoch"] == alone["best_epoch"]
        assert mine["test"] == pytest.approx(alone["test"], abs=1e-4)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["epoch"]) for line in lines] == [(s, e) for s in range(3) for e in range(1, 7)]

    # A process that was killed while it wrote its results left those of seed 0 alone.
    before = {file: file.read_bytes() for file in path.rglob("model.safetensors")}
    for seed in (1, 2):
        for file in (path / f"seed-{seed}").iterdir():
            file.unlink()
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:9]))
    again = resume(path, task=blocks(), device="cpu")
    assert [r["test"] for r in again.results] == [r["test"] for r in summary.results]
    assert {file: file.read_bytes() for file in path.rglob("model.safetensors")} == before
    again_lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert again_lines == lines


def test_runs_that_cannot_be_stacked_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="cannot be trained as one: batches of graphs differ from seed to seed"):
        fit(point_sets(), CONFIG, seeds=2, device="cpu", stacked=True)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"metric": "mse"}, "cannot measure"),
        ({"loss": "broadcast-mse"}, "is for regression on series"),
        ({"options": {"num_layers": "many"}}, "num_layers must be"),
    ],
)
def test_a_request_that_cannot_be_met_leaves_no_folder(settings, complaint, tmp_path):
    with pytest.raises(ValueError, match=complaint):
        fit(blocks(), CONFIG.replace(**settings), seeds=1, out=tmp_path / "run", device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_model_that_does_not_fit_in_memory_leaves_no_folder(tmp_path, monkeypatch):
    from difformer.zoo import encoder as inputs

    monkeypatch.setattr(inputs, "WORTH_A_LOOK", 0)
    monkeypatch.setattr(inputs, "free_bytes", lambda device: 1000)
    with pytest.raises(MemoryError, match=r"lds, which .* GiB are free on cpu; use another model"):
        fit(blocks(), TrainConfig(model="lds", epochs=2), seeds=1, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_other_files_is_not_removed(run):
    folder = RunFolder.open(run[0])
    folder.discard()
    assert len(folder.results()) == 3


def test_the_preset_is_written_down_and_older_folders_have_none(tmp_path):
    config = TrainConfig(model="mlp", epochs=2)
    fit(blocks(), config, seeds=1, out=tmp_path / "run", device="cpu", preset="tune/best.toml")
    assert RunFolder.open(tmp_path / "run").preset == "tune/best.toml"
    written = tmp_path / "run/config.toml"
    lines = written.read_text().splitlines(keepends=True)
    written.write_text("".join(line for line in lines if not line.startswith("preset = ")))
    old = RunFolder.open(tmp_path / "run")
    assert old.preset is None
    assert "preset" not in old.about["run"]
    assert resume(tmp_path / "run", task=blocks()).complete


def test_a_run_records_its_kernels_and_warns_if_they_change(tmp_path, monkeypatch):
    config = CONFIG.replace(options={"hidden_channels": 32}, epochs=2)
    monkeypatch.setattr("difformer.training.run_folder.library", lambda: object())
    fit(blocks(n=600), config, seeds=1, out=tmp_path / "long", device="cpu")
    fit(blocks(), config, seeds=1, out=tmp_path / "short", device="cpu")
    assert RunFolder.open(tmp_path / "long").about["run"]["kernels"] == "C"
    assert "kernels" not in RunFolder.open(tmp_path / "short").about["run"]  # nothing is compiled for it
    monkeypatch.setattr("difformer.training.run_folder.library", lambda: None)
    with pytest.warns(UserWarning, match="was begun with kernels in C, now torch: results may differ"):
        resume(tmp_path / "long", task=blocks(n=600), device="cpu")


def test_labels_that_were_classes_remain_classes(tmp_path):
    """Earlier versions read many rare whole numbers as classes; their folders leave the problem to be guessed."""
    rows = "\n".join(f"{i}.5,{18 + i % 40}" for i in range(120))
    (tmp_path / "x.csv").write_text(f"a,grade\n{rows}\n")
    source = TaskSource(files={"features": str(tmp_path / "x.csv")}, options={"label_columns": "grade"})
    assert source.load().problem == "regression"
    asked = TaskSource(files=source.files, options={**source.options, "problem": "multiclass"})
    fit(asked, CONFIG, seeds=1, out=tmp_path / "run", device="cpu")
    path = tmp_path / "run" / "config.toml"
    text = path.read_text()
    start = text.index("[data.source.options]")
    path.write_text(text[:start] + text[start:].replace('problem = "multiclass"\n', "", 1))
    assert RunFolder.open(tmp_path / "run").source.options.get("problem") is None
    assert RunFolder.open(tmp_path / "run").task().num_outputs == 40
