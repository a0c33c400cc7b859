"""Runs resume, stop in time, and record why they failed."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from small_experiment import ABSENT, BLOCKS, SMALL

from difformer.data import DataError, load
from difformer.experiments import measure, runner
from difformer.experiments.analysis import read_summary, summarise
from difformer.experiments.cells import UNTUNED, Cell, Request
from difformer.experiments.ledger import FAILED, Ledger
from difformer.experiments.presets import Preset, write_preset
from difformer.experiments.runner import run
from difformer.experiments.samples import load_data
from difformer.experiments.spec import Data, System, shared_systems
from difformer.training import NonFiniteLossError
from difformer.training.config import TrainConfig

ONLY_BLOCKS = Request(device="cpu", datasets=("blocks",))


@pytest.fixture
def said():
    return []


@pytest.fixture
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
    monkeypatch.setenv("DIFFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DIFFORMER_DATA", raising=False)


def one_after_the_other(monkeypatch):
    monkeypatch.setattr(runner, "faster", lambda *_: False)


def test_a_second_call_repeats_nothing(tmp_path, said):
    first = run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    assert (first.made, first.there, first.left, first.failed) == (12, 0, 0, {})
    before = (tmp_path / "runs.jsonl").read_bytes()
    second = run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    assert (second.made, second.there) == (0, 12)
    assert (tmp_path / "runs.jsonl").read_bytes() == before


def test_two_names_of_the_same_settings_are_two_rows(tmp_path, said):
    same = {"epochs": 2, "hidden_channels": 4}
    for name in ("paper", "best"):
        write_preset(Preset(name, "difformer-s", "sbm", settings=same), tmp_path / f"{name}.toml")
    request = dataclasses.replace(ONLY_BLOCKS, models=("difformer-s",), preset_folder=tmp_path)
    outcome = run(SMALL, tmp_path / "out", request, said.append)
    assert outcome.made == 6
    assert {(one["preset"], one["seed"]) for one in Ledger(tmp_path / "out").read()} == {
        (name, seed) for name in ("paper", "best") for seed in range(3)
    }
    some = dataclasses.replace(request, presets=("best",))
    assert run(SMALL, tmp_path / "some", some, said.append).made == 3


def test_a_changed_preset_is_run_again(tmp_path, said):
    request = dataclasses.replace(ONLY_BLOCKS, models=("gcn",), preset_folder=tmp_path)
    for epochs in (1, 3):
        write_preset(Preset("best", "gcn", "sbm", settings={"epochs": epochs}), tmp_path / "gcn.toml")
        assert run(SMALL, tmp_path / "out", request, said.append).made == 3
    row = summarise(SMALL, Ledger(tmp_path / "out").read(), (), quick=False).sections[0].rows
    (gcn,) = [one for one in row if one.n]
    assert [one["settings"]["epochs"] for one in gcn.runs.to_dict("records")] == [3, 3, 3]


def test_a_restored_preset_is_shown_without_new_runs(tmp_path, said):
    request = dataclasses.replace(ONLY_BLOCKS, models=("gcn",), preset_folder=tmp_path)
    for epochs, made in ((1, 3), (3, 3), (1, 0)):
        write_preset(Preset("best", "gcn", "sbm", settings={"epochs": epochs}), tmp_path / "gcn.toml")
        assert run(SMALL, tmp_path / "out", request, said.append).made == made
    (gcn,) = [row for row in read_summary(SMALL, tmp_path / "out", tmp_path).sections[0].rows if row.n]
    assert [one["settings"]["epochs"] for one in gcn.runs.to_dict("records")] == [1, 1, 1]


def test_presets_of_tune_run_as_best(tmp_path, said):
    write_preset(Preset("tuned", "gcn", "sbm", settings={"epochs": 1}, trials=7), tmp_path / "best.toml")
    request = dataclasses.replace(ONLY_BLOCKS, models=("gcn",), preset_folder=tmp_path)
    run(SMALL, tmp_path / "out", request, said.append)
    assert {(one["preset"], one["trials"], one["settings"]["epochs"]) for one in Ledger(tmp_path / "out").read()} == {
        ("best", 7, 1)
    }


def test_options_of_a_preset_change_the_data(tmp_path, said):
    for number in (120, 121):
        options = {"num_nodes": number}
        write_preset(Preset("best", "gcn", "sbm", settings={"epochs": 1}, data=options), tmp_path / "best.toml")
        request = dataclasses.replace(ONLY_BLOCKS, models=("gcn",), preset_folder=tmp_path)
        run(SMALL, tmp_path / "out", request, said.append)
    assert len({one["fingerprint"] for one in Ledger(tmp_path / "out").read()}) == 2


def test_a_line_records_everything_its_result_depends_on(tmp_path, said):
    run(SMALL, tmp_path, dataclasses.replace(ONLY_BLOCKS, models=("off",), seeds=2), said.append)
    lines = Ledger(tmp_path).read()
    assert [(one["seed"], one["split"]) for one in lines] == [(s, f"random 30/20/50/seed={s}") for s in range(2)]
    one = lines[0]
    assert one["settings"]["diffusivity"] is None
    assert one["settings"]["hidden_channels"] == 4
    assert one["settings"]["step_size"] == 0.5  # a default of the model
    assert one["protocol"].startswith("stochastic block model")
    assert one["versions"]["torch"] == torch.__version__
    assert len(one["fingerprint"]) == 64
    assert one["sizes"] == [18, 12, 30]
    assert one["preset"] == UNTUNED
    assert {"device", "peak_memory", "seconds", "epochs", "valid", "test", "time"} <= one.keys()


def test_scores_of_a_line_are_those_of_train_one(tmp_path, said, monkeypatch):
    one_after_the_other(monkeypatch)
    run(SMALL, tmp_path, dataclasses.replace(ONLY_BLOCKS, models=("gcn",)), said.append)
    task = load_data(BLOCKS, BLOCKS.options)
    config = TrainConfig("gcn", {"hidden_channels": 4}, epochs=2)
    expected = [runner.train_one(task, seed, config, seed, "cpu") for seed in range(3)]
    assert [(one["valid"], one["test"]) for one in Ledger(tmp_path).read()] == [(e.valid, e.test) for e in expected]


def test_a_killed_call_is_resumed(tmp_path, said):
    run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    path = tmp_path / "runs.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:100])
    again = run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    assert (again.made, again.there) == (7, 5)
    assert len(Ledger(tmp_path).read()) == 12


def test_no_run_starts_after_the_time_is_up(tmp_path, said, monkeypatch):
    one_after_the_other(monkeypatch)
    hurried = run(SMALL, tmp_path, dataclasses.replace(ONLY_BLOCKS, seconds=0.0), said.append)
    assert (hurried.made, hurried.stopped) == (0, "out of time")
    assert hurried.left == 12
    clock = SimpleNamespace(monotonic=lambda: 100.0 if len(Ledger(tmp_path).read()) >= 2 else 1.0)
    monkeypatch.setattr(runner, "time", clock)
    some = run(SMALL, tmp_path, dataclasses.replace(ONLY_BLOCKS, seconds=10.0), said.append)
    assert (some.made, some.left, some.stopped) == (2, 10, "out of time")
    monkeypatch.undo()
    rest = run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    assert (rest.made, rest.there) == (10, 2)


def test_an_interrupted_run_leaves_no_line(tmp_path, said, monkeypatch):
    one_after_the_other(monkeypatch)
    train, calls = runner.train_one, []

    def pressed(*args, **options):
        calls.append(1)
        record = train(*args, **options)
        return dataclasses.replace(record, status="interrupted") if len(calls) == 3 else record

    monkeypatch.setattr(runner, "train_one", pressed)
    outcome = run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    assert (outcome.made, outcome.left, outcome.stopped) == (2, 10, "interrupted")
    assert len(Ledger(tmp_path).read()) == 2


def test_a_missing_data_folder_is_an_error(tmp_path, said, monkeypatch):
    monkeypatch.setenv("DIFFORMER_DATA", str(tmp_path / "typo"))
    with pytest.raises(DataError, match=r"DIFFORMER_DATA must be a folder.*typo"):
        run(SMALL, tmp_path / "out", ONLY_BLOCKS, said.append)
    assert not (tmp_path / "out").exists()


def test_missing_data_are_recorded_once_as_a_reason(tmp_path, said, offline):
    request = Request(device="cpu", datasets=("pokec",))
    outcome = run(SMALL, tmp_path, request, said.append)
    assert outcome.made == 0
    assert "pokec" in outcome.failed[("absent", "", "")]
    run(SMALL, tmp_path, request, said.append)
    lines = Ledger(tmp_path).read()
    assert [one["status"] for one in lines] == [FAILED]  # the same reason is not written twice
    section = summarise(SMALL, lines, (), quick=False).sections[1]
    assert len(section.rows) == 4
    assert all("data not here" in row.reason for row in section.rows)


def test_data_that_need_too_much_memory_are_not_loaded(tmp_path, said, monkeypatch):
    monkeypatch.setattr(runner, "load_data", lambda *_: pytest.fail("loaded"))
    greedy = dataclasses.replace(SMALL, data=(dataclasses.replace(ABSENT, needs=1e9),))
    outcome = run(greedy, tmp_path, Request(device="cpu"), said.append)
    assert "not enough memory" in outcome.failed[("absent", "", "")]


def test_a_failing_system_does_not_stop_the_others(tmp_path, said, monkeypatch):
    one_after_the_other(monkeypatch)
    train = runner.train_one
    errors = {
        "mlp": MemoryError("too much"),
        "gcn": NonFiniteLossError(3, float("nan"), TrainConfig("gcn")),
        "difformer-s": KeyError("a mistake"),
    }

    def failing(task, split, config, *rest, **options):
        if config.model in errors:
            raise errors[config.model]
        return train(task, split, config, *rest, **options)

    monkeypatch.setattr(runner, "train_one", failing)
    outcome = run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    assert outcome.made == 3
    assert outcome.errors == 1  # memory and divergence are results, a KeyError is not
    why = {system: reason for (_, system, _), reason in outcome.failed.items()}
    assert "out of memory" in why["mlp"]
    assert "diverged" in why["gcn"]
    assert "KeyError" in why["difformer-s"]
    monkeypatch.undo()
    again = run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    assert again.made == 0
    assert len(again.failed) == 3
    assert again.errors == 1  # a mistake is one whenever it is looked at
    retried = run(SMALL, tmp_path, dataclasses.replace(ONLY_BLOCKS, retry=True), said.append)
    assert (retried.made, retried.failed) == (9, {})


@pytest.mark.parametrize("together", [False, True], ids=["one after the other", "as one"])
def test_a_diverging_seed_does_not_stop_the_others(tmp_path, said, monkeypatch, together):
    error = NonFiniteLossError(3, float("nan"), TrainConfig("gcn"))
    train, stack = runner.train_one, runner.train_stacked
    monkeypatch.setattr(runner, "faster", lambda *_: together)

    def failing(task, split, config, seed, *rest, **options):
        if seed == 0:
            raise error
        return train(task, split, config, seed, *rest, **options)

    def failing_stack(*args, **options):
        return [error if record.seed == 0 else record for record in stack(*args, **options)]

    monkeypatch.setattr(runner, "train_one", failing)
    monkeypatch.setattr(runner, "train_stacked", failing_stack)
    outcome = run(SMALL, tmp_path, dataclasses.replace(ONLY_BLOCKS, models=("gcn",)), said.append)
    assert (outcome.made, outcome.left, outcome.errors) == (2, 1, 0)
    assert [one.get("seed") for one in Ledger(tmp_path).read()] == [1, 2, None]
    (gcn,) = [row for row in read_summary(SMALL, tmp_path).sections[0].rows if row.n]
    assert gcn.reason == "diverged: the training loss is nan at epoch 3"


def test_training_memory_is_measured_in_the_second_epoch(monkeypatch):
    order, train, measured_peak = [], measure.Trainer.train_epoch, measure.peak_memory

    def epoch(trainer, *rest):
        order.append("epoch")
        return train(trainer, *rest)

    @contextmanager
    def measured(device, **options):
        order.append("from here")
        with measured_peak(device, **options) as peak:
            yield peak
        order.append("to here")

    monkeypatch.setattr(measure.Trainer, "train_epoch", epoch)
    monkeypatch.setattr(measure, "peak_memory", measured)
    config = TrainConfig(model="difformer-s", batch_size=20, epochs=5, options={"hidden_channels": 8})
    measure.training_peak(load("sbm", num_nodes=60), config, 1, torch.device("cpu"))
    assert order == ["epoch", "from here", "epoch", "to here"]


def test_finished_runs_of_an_interrupted_stack_are_kept(tmp_path, said, monkeypatch):
    stack = runner.train_stacked
    monkeypatch.setattr(runner, "faster", lambda *_: True)
    monkeypatch.setattr(runner, "train_stacked", lambda *args, **options: stack(*args, **options)[:2])
    outcome = run(SMALL, tmp_path, dataclasses.replace(ONLY_BLOCKS, models=("gcn",)), said.append)
    assert (outcome.made, outcome.left, outcome.stopped) == (2, 1, "interrupted")
    assert [one["seed"] for one in Ledger(tmp_path).read()] == [0, 1]


def test_quick_and_full_runs_are_never_mixed(tmp_path, said):
    run(SMALL, tmp_path, Request(quick=True, device="cpu"), said.append)
    assert {one["quick"] for one in Ledger(tmp_path).read()} == {True}
    with pytest.raises(ValueError, match="holds quick runs, but full ones were requested"):
        run(SMALL, tmp_path, ONLY_BLOCKS, said.append)


def test_too_many_pairs_are_refused_in_advance(tmp_path, said, monkeypatch):
    from difformer.zoo import encoder

    monkeypatch.setattr(encoder, "WORTH_A_LOOK", 0)
    monkeypatch.setattr(encoder, "free_bytes", lambda device: 1000)
    lds = shared_systems()["lds"]
    outcome = run(dataclasses.replace(SMALL, systems=(lds,)), tmp_path, ONLY_BLOCKS, said.append)
    (reason,) = set(outcome.failed.values())
    assert reason.startswith("not enough memory: ")
    assert "are free on cpu" in reason
    assert outcome.errors == outcome.made == 0


def test_a_model_that_needs_a_graph_is_refused_without_one():
    task = load("sbm", num_nodes=100)
    gcn = shared_systems()["gcn"]
    assert "needs a graph" in runner.why_not(Cell(BLOCKS, gcn, Preset("best", "gcn", "sbm", {"graph": "none"})), task)
    assert runner.why_not(Cell(BLOCKS, gcn, Preset("best", "gcn", "sbm")), task) == ""


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (Request(datasets=("cora",)), "--datasets: citation has no 'cora'"),
        (Request(models=("gatt",)), "--models: citation has no 'gatt'"),
        (Request(presets=("bestt",)), "--preset: expected one of"),
        (Request(presets=("best",)), "--preset best: no selected row .* has such a preset; there are rows of untuned"),
        (Request(quick=True, models=("gcn",)), "--models: the quick form of citation has no 'gcn'; it has .*mlp"),
        (Request(quick=True, datasets=("absent",)), "--datasets: the quick form of citation has no 'absent'"),
    ],
    ids=[
        "data",
        "model",
        "preset",
        "preset without a row",
        "model without a quick row",
        "data not quick",
    ],
)
def test_unknown_names_are_refused(tmp_path, said, request_, complaint):
    with pytest.raises(ValueError, match=complaint):
        run(SMALL, tmp_path, dataclasses.replace(request_, device="cpu"), said.append)


def test_an_error_of_a_loader_is_not_missing_data(tmp_path, said, monkeypatch):
    def mistaken(*_):
        raise TypeError("no such option")

    monkeypatch.setattr(runner, "load_data", mistaken)
    outcome = run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    assert outcome.failed == {("blocks", "", ""): "TypeError: no such option"}
    assert (outcome.errors, outcome.left) == (1, 12)


def test_broken_data_are_a_reason(tmp_path, said, monkeypatch):
    def broken(*_):
        raise DataError("file is cut short")

    monkeypatch.setattr(runner, "load_data", broken)
    outcome = run(SMALL, tmp_path, ONLY_BLOCKS, said.append)
    assert "file is cut short" in outcome.failed[("blocks", "", "")]


def test_training_memory_excludes_evaluation(monkeypatch):
    task = load("sbm", num_nodes=60)
    config = TrainConfig(model="difformer-s", batch_size=20, epochs=5, options={"hidden_channels": 8})
    monkeypatch.setattr(measure.Trainer, "evaluate", None)
    measure.training_peak(task, config, 1, torch.device("cpu"))  # would fail at the first evaluation
    alone = dataclasses.replace(SMALL, data=(dataclasses.replace(BLOCKS, alone=True),))
    monkeypatch.undo()
    seen = []
    monkeypatch.setattr(measure, "training_peak", lambda *args: seen.append(args) or runner.Peak(1234))
    cell = Cell(alone.data[0], shared_systems()["gcn"], Preset(UNTUNED, "gcn", "sbm", {"epochs": 2}))
    watch = runner.Watch(lambda: False)
    lines = list(runner.perform(cell, task, [0, 1], torch.device("cpu"), watch, {"quick": False}))
    assert [line["peak_memory"] for line in lines] == [1234, 1234]
    assert len(seen) == 2


def test_baselines_are_measured_by_the_metric_of_their_section(tmp_path, said):
    """A baseline is known by its name alone, whatever it is judged by."""
    sections = tuple(
        Data(name, "difformer.experiments.samples:waves", name, settings={"metric": name}, seeds=1)
        for name in ("mse", "broadcast-mse")
    )
    series = dataclasses.replace(SMALL, data=sections, systems=(System("zeros", "zeros", baseline="zeros"),))
    assert run(series, tmp_path, Request(device="cpu"), said.append).made == 2
    assert [line["metric"] for line in Ledger(tmp_path).read()] == ["mse", "broadcast-mse"]
