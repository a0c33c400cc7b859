"""A run that takes too long is broken off: its cell says so, and the others go on."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace

import pytest
from small_experiment import SMALL

from difformer.experiments import limits, performing
from difformer.experiments.asking import Request, wanted_cells
from difformer.experiments.ledger import DONE, FAILED, Ledger
from difformer.experiments.limits import Watch
from difformer.experiments.running import run

LIMITED = Request(device="cpu", datasets=("blocks",), limit=60.0)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is set."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def test_runs_that_are_trained_as_one_have_the_time_of_all(clock):
    one, three = Watch(lambda: False, 10.0), Watch(lambda: False, 10.0, runs=3)
    clock.now = 25.0
    assert (one(), three()) == (True, False)
    clock.now = 31.0
    assert three()
    assert three.too_long
    three.begin()
    assert not three()
    assert not Watch(lambda: False, math.inf)()


def test_somebody_who_asks_is_not_a_limit(clock):
    watch = Watch(lambda: True, 10.0)
    clock.now = 25.0
    assert watch()
    assert not watch.too_long


@pytest.mark.parametrize("stacked", [False, True], ids=["one after the other", "as one"])
def test_what_takes_too_long_is_a_cell_with_a_reason(tmp_path, monkeypatch, clock, stacked):
    monkeypatch.setattr(performing, "faster", lambda *_: stacked)
    asked = []

    def late():
        asked.append(1)
        return 100.0 * min(len(asked), 4)  # the first cell takes its time, the others none

    monkeypatch.setattr(limits.time, "monotonic", late)
    outcome = run(SMALL, tmp_path, LIMITED, lambda text: None)
    lines = Ledger(tmp_path).read()
    (failed,) = [line for line in lines if line["status"] == FAILED]
    assert failed["reason"].startswith("too long: ")
    assert failed["reason"].endswith("epochs on cpu")
    assert (outcome.stopped, outcome.errors, len(outcome.failed)) == ("", 0, 1)
    cells = len(wanted_cells(SMALL, LIMITED))
    assert len({line["system"] for line in lines if line["status"] == DONE}) == cells - 1
    again = run(SMALL, tmp_path, LIMITED, lambda text: None)  # not tried again
    assert (again.made, len(again.failed)) == (0, 1)
    whole = run(SMALL, tmp_path, dataclasses.replace(LIMITED, retry=True), lambda text: None)
    assert whole.made > 0
    assert not whole.failed


def test_a_limit_is_more_than_nothing():
    with pytest.raises(ValueError, match=r"--limit: expected how many seconds a run may take.* got 0"):
        wanted_cells(SMALL, dataclasses.replace(LIMITED, limit=0.0))
