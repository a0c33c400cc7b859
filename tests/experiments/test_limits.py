"""A run over its time limit is stopped and recorded, and the others continue."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
from small_experiment import SMALL

from difformer.experiments import measure, runner
from difformer.experiments.cells import Request, wanted_cells
from difformer.experiments.ledger import DONE, FAILED, Ledger
from difformer.experiments.runner import Watch, run
from difformer.training import NonFiniteLossError

LIMITED = Request(device="cpu", datasets=("blocks",), models=("gcn", "mlp"), limit=60.0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is set."""
    found = SimpleNamespace(now=0.0)
    real = runner.time.perf_counter
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: found.now, perf_counter=real))
    return found


def quiet(text):
    pass


def outcome_and_reasons(folder, request=LIMITED):
    """What a call did, and the reasons that are written down."""
    outcome = run(SMALL, folder, request, quiet)
    return outcome, [line["reason"] for line in Ledger(folder).read() if line["status"] == FAILED]


def test_a_stack_has_the_time_limit_of_all_its_runs(clock):
    watch = Watch(lambda: False, 10.0)
    watch.begin(3)
    clock.now = 25.0
    assert not watch()
    clock.now = 31.0
    assert watch()
    clock.now = 500.0  # what comes after is not part of it
    assert watch()
    assert watch.too_long
    assert not Watch(lambda: False, math.inf)()


def test_a_user_interrupt_is_not_a_time_limit(clock):
    watch = Watch(lambda: True, 10.0)
    clock.now = 25.0
    assert watch()
    assert not watch.too_long


@pytest.mark.parametrize("stacked", [False, True], ids=["one after the other", "as one"])
def test_a_run_over_its_limit_is_a_cell_with_a_reason(tmp_path, monkeypatch, clock, stacked):
    """In the first cell 200 seconds pass whenever it is asked, in the others none."""
    monkeypatch.setattr(runner, "faster", lambda *_: stacked)
    ask = Watch.__call__

    def slow(watch):
        stopped = ask(watch)
        clock.now += 200.0 if not Ledger(tmp_path).read() else 0.0
        return stopped

    monkeypatch.setattr(Watch, "__call__", slow)
    outcome, (reason,) = outcome_and_reasons(tmp_path)
    assert reason.startswith("too long: over 60 s per run on ")
    assert reason.endswith(" threads")  # the device's name
    assert (outcome.stopped, outcome.errors, len(outcome.failed)) == ("", 0, 1)
    systems = {cell.system.key for cell in wanted_cells(SMALL, LIMITED)}
    assert len({line["system"] for line in Ledger(tmp_path).read() if line["status"] == DONE}) == len(systems) - 1
    again, _ = outcome_and_reasons(tmp_path)  # with the same limit it is not tried again
    assert (again.made, len(again.failed)) == (0, 1)
    whole, _ = outcome_and_reasons(tmp_path, dataclasses.replace(LIMITED, limit=math.inf))
    assert whole.made > 0
    assert not whole.failed


def test_finished_runs_of_a_stack_over_its_limit_are_kept(tmp_path, monkeypatch, clock):
    """Of a stack some were finished: the reason speaks of those that were not."""
    monkeypatch.setattr(runner, "faster", lambda *_: True)
    train = runner.train_stacked

    def half(task, runs, device, stop):
        records = train(task, runs, device)
        clock.now += 1000.0
        assert stop()
        return [records[0], dataclasses.replace(records[1], status="interrupted", history=[])]

    monkeypatch.setattr(runner, "train_stacked", half)
    request = dataclasses.replace(LIMITED, models=("gcn",))
    outcome, (reason,) = outcome_and_reasons(tmp_path, request)
    assert reason.startswith("too long: over 60 s per run on ")
    assert outcome.made == 1


def test_a_diverged_run_does_not_use_up_the_next_ones_time(tmp_path, monkeypatch, clock):
    monkeypatch.setattr(runner, "faster", lambda *_: False)
    train, calls = runner.train_one, []

    def first_diverges(*args, stop, **options):
        calls.append(1)
        clock.now += 55.0
        if len(calls) == 1:
            raise NonFiniteLossError(1, math.nan, args[2])
        assert not stop()
        return train(*args, stop=stop, **options)

    monkeypatch.setattr(runner, "train_one", first_diverges)
    outcome, (reason,) = outcome_and_reasons(tmp_path, dataclasses.replace(LIMITED, models=("gcn",)))
    assert reason.startswith("diverged")
    assert outcome.made == 2


def test_memory_of_a_stopped_run_is_not_measured(tmp_path, monkeypatch, clock):
    data = dataclasses.replace(SMALL.data[0], alone=True)
    small = dataclasses.replace(SMALL, data=(data,))
    train = runner.train_one

    def late(*args, stop, **options):
        clock.now += 100.0
        return train(*args, stop=stop, **options)

    monkeypatch.setattr(runner, "train_one", late)
    monkeypatch.setattr(measure, "training_peak", lambda *_: pytest.fail("it was broken off"))
    outcome = run(small, tmp_path, dataclasses.replace(LIMITED, models=("gcn",)), quiet)
    assert (outcome.made, len(outcome.failed)) == (0, 1)


def test_a_successful_run_clears_an_earlier_refusal(tmp_path, monkeypatch, clock):
    """After a run of the same settings more seeds are run, whatever stood in the way before."""
    monkeypatch.setattr(runner, "faster", lambda *_: False)
    request = dataclasses.replace(LIMITED, models=("gcn",), seeds=1)
    ask = Watch.__call__
    monkeypatch.setattr(Watch, "__call__", lambda watch: bool(setattr(clock, "now", clock.now + 100.0)) or ask(watch))
    assert outcome_and_reasons(tmp_path, request)[0].made == 0
    monkeypatch.setattr(Watch, "__call__", ask)
    assert outcome_and_reasons(tmp_path, dataclasses.replace(request, retry=True))[0].made == 1
    assert outcome_and_reasons(tmp_path, dataclasses.replace(request, seeds=2))[0].made == 1
