"""The live table and the plain lines: what they say of loss, metrics, speed and time left."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from difformer.cli.output import Output, Progress, clock_time
from difformer.training.callbacks import EpochEvent


def event(seed, epoch, epochs=10, **changes):
    known = {"loss": 0.5, "train_metric": 0.9, "valid_metric": 0.8, "test_metric": 0.7, "seconds": 1.0}
    known |= {"best_epoch": epoch, "best_valid": 0.8, "best_test": 0.7}
    return EpochEvent(seed=seed, split=f"split {seed}", epoch=epoch, epochs=epochs, **{**known, **changes})


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def progress(clock, *, terminal, runs=2, epochs=10):
    output = Output()
    text = io.StringIO()
    output.err = Console(file=text, force_terminal=terminal, width=120, highlight=False)
    return Progress(output, metric="accuracy", runs=runs, epochs=epochs, clock=clock), text


def test_a_log_gets_about_ten_lines_per_run(clock):
    shown, text = progress(clock, terminal=False, epochs=100)
    with shown:
        for epoch in range(1, 101):
            clock.now += 0.1
            shown.on_epoch(event(0, epoch, 100))
    lines = text.getvalue().splitlines()
    assert len(lines) == 11  # the first, and every tenth
    assert lines[0] == "seed 0 epoch 1/100 loss 0.5000 valid 0.8000 test 0.7000"  # no speed to tell yet
    assert lines[-1] == "seed 0 epoch 100/100 loss 0.5000 valid 0.8000 test 0.7000 | 10.0 epochs/s, 10s left"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_long_wait_for_the_first_evaluation_is_announced(clock, monkeypatch, terminal):
    monkeypatch.setattr("difformer.cli.output.WAITS", (0.01, 0.05))
    shown, text = progress(clock, terminal=terminal)
    with shown:
        for _ in range(500):
            if text.getvalue().count("no evaluation yet") == 2:
                break
            time.sleep(0.01)
        else:
            pytest.fail(f"nothing was said: {text.getvalue()!r}")
    monkeypatch.setattr("difformer.cli.output.WAITS", (0.2,))
    quick, text = progress(clock, terminal=terminal)
    with quick:
        quick.on_epoch(event(0, 1))
        time.sleep(0.3)
    assert "no evaluation yet" not in text.getvalue()


def test_a_terminal_shows_a_live_table(clock):
    shown, text = progress(clock, terminal=True)
    with shown:
        for epoch in range(1, 6):
            clock.now += 1
            shown.on_epoch(event(3, epoch, valid_metric=float("nan")))
    said = text.getvalue()
    assert "seed 3" in said
    assert "5/10" in said
    assert "best epoch" in said
    assert "5s elapsed, 1.0 epochs/s, 15s left" in said


def test_the_live_table_fits_80_columns_with_whole_numbers(clock):
    shown, _ = progress(clock, terminal=True)
    shown.on_epoch(event(0, 300, 300))
    narrow = Console(file=io.StringIO(), width=80)
    narrow.print(shown.table())
    row = next(line for line in narrow.file.getvalue().splitlines() if "seed 0" in line)
    assert " ".join(row.split()) == "seed 0 300/300 0.5000 0.9000 0.8000 0.7000 300 0.8000 0.7000"


def test_a_run_that_stopped_early_counts_as_done(clock):
    shown, _ = progress(clock, terminal=False)
    shown.on_epoch(event(0, 1))
    clock.now += 3
    shown.on_epoch(event(0, 4))
    assert shown.done() == pytest.approx(0.2)
    shown.on_epoch(event(1, 1))
    assert shown.done() == pytest.approx(0.55)
    assert shown.time_left() == pytest.approx(9.0)


def test_start_up_time_does_not_count_for_the_speed(clock):
    shown, _ = progress(clock, terminal=False)
    clock.now += 30
    shown.on_epoch(event(0, 1))
    clock.now += 0.01
    shown.on_epoch(event(1, 1))  # trained along with the first
    assert (shown.speed(), shown.time_left()) == (None, None)
    clock.now += 1.99
    shown.on_epoch(event(0, 2))
    shown.on_epoch(event(1, 2))
    assert shown.speed() == pytest.approx(1.0)


def test_runs_of_one_epoch_have_a_speed_from_the_second_on(clock):
    shown, _ = progress(clock, terminal=False, runs=4, epochs=1)
    clock.now += 30
    shown.on_epoch(event(0, 1, 1))
    assert shown.time_left() is None
    clock.now += 2
    shown.on_epoch(event(1, 1, 1))
    assert shown.time_left() == pytest.approx(4.0)


def test_a_resumed_run_does_not_look_faster_than_it_is(clock):
    shown, _ = progress(clock, terminal=False, runs=1, epochs=1000)
    clock.now += 1
    shown.on_epoch(event(0, 901, 1000))
    clock.now += 1
    shown.on_epoch(event(0, 902, 1000))
    assert shown.speed() == pytest.approx(1.0)
    assert shown.time_left() == pytest.approx(98.0)


@pytest.mark.parametrize(("seconds", "text"), [(None, "?"), (4.4, "4s"), (184, "3m04s"), (7500, "2h05m")])
def test_clock_time_formats_seconds(seconds, text):
    assert clock_time(seconds) == text


def test_json_has_no_nan(capsys):
    Output(as_json=True).json({"a": float("nan"), "b": (1, float("inf")), "c": None, "d": True, "e": Path("run")})
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found == {"a": None, "b": [1, None], "c": None, "d": True, "e": "run"}


def test_a_slow_terminal_does_not_hold_up_the_training(clock):
    shown, text = progress(clock, terminal=True, runs=1, epochs=1000)
    drawing, trained = threading.Event(), threading.Event()
    table = shown.table

    def slow_table():
        if threading.current_thread() is not threading.main_thread():
            drawing.set()
            assert trained.wait(60)
        return table()

    shown.table = slow_table
    with shown:
        assert drawing.wait(60)
        for epoch in range(1, 1001):  # while the table is being drawn
            clock.now += 0.1
            shown.on_epoch(event(0, epoch, 1000))
        trained.set()
    assert "1000/1000" in text.getvalue()
