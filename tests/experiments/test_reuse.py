"""A run that one table has made is reused by another."""

from __future__ import annotations

import dataclasses

import pytest
from small_experiment import BLOCKS, SMALL

from difformer.experiments import runner
from difformer.experiments.analysis import summarise
from difformer.experiments.cells import Request
from difformer.experiments.ledger import Ledger
from difformer.experiments.render import markdown
from difformer.experiments.runner import run
from difformer.experiments.spec import Data, System

OTHER = dataclasses.replace(SMALL, name="depth", data=(dataclasses.replace(BLOCKS, key="again", seeds=2),))
REQUEST = Request(device="cpu")
FIRST = Request(device="cpu", datasets=("blocks",))


@pytest.fixture
def made(tmp_path):
    """A folder of results in which a first experiment is done."""
    run(SMALL, tmp_path / "citation", FIRST, lambda text: None)
    return tmp_path


def test_the_same_runs_are_reused(made, monkeypatch):
    monkeypatch.setattr(runner, "train_one", None)
    monkeypatch.setattr(runner, "train_stacked", None)
    said: list[str] = []
    outcome = run(OTHER, made / "depth", REQUEST, said.append)
    assert (outcome.made, outcome.taken, outcome.there, outcome.left) == (0, 8, 0, 0)
    assert "the same run as in citation" in said[0]
    first = {(one["system"], one["seed"]): one for one in Ledger(made / "citation").read()}
    for line in Ledger(made / "depth").read():
        assert (line["experiment"], line["data"], line["taken_from"]) == ("depth", "again", "citation")
        twin = first[line["system"], line["seed"]]
        same = ("id", "test", "valid", "settings", "seconds", "device", "time", "split", "peak_memory")
        assert {key: line[key] for key in same} == {key: twin[key] for key in same}
    again = run(OTHER, made / "depth", REQUEST, said.append)
    assert (again.made, again.taken, again.there) == (0, 0, 8)


@pytest.mark.parametrize(
    "changes",
    [{"settings": {"epochs": 3}}, {"options": {**BLOCKS.options, "num_nodes": 61}}, {"alone": True}, {"mode": "cost"}],
    ids=["settings", "data", "alone", "cost"],
)
def test_runs_with_other_settings_or_data_are_not_reused(made, changes):
    other = dataclasses.replace(OTHER, data=(dataclasses.replace(OTHER.data[0], **changes),))
    outcome = run(other, made / "depth", REQUEST, lambda text: None)
    assert (outcome.made, outcome.taken) == (8, 0)
    assert not any("taken_from" in line for line in Ledger(made / "depth").read())


def test_runs_on_changed_data_are_not_reused(made):
    path = made / "citation" / "runs.jsonl"
    text = path.read_text()
    fingerprint = Ledger(made / "citation").read()[0]["fingerprint"]
    path.write_text(text.replace(fingerprint, "another"))
    assert run(OTHER, made / "depth", REQUEST, lambda text: None).taken == 0


def test_quick_runs_are_not_reused_for_full_ones(tmp_path):
    run(SMALL, tmp_path / "citation", dataclasses.replace(FIRST, quick=True), lambda text: None)
    other = dataclasses.replace(OTHER, systems=SMALL.systems[:1])
    assert run(other, tmp_path / "depth", REQUEST, lambda text: None).taken == 0


def test_an_unreadable_ledger_is_skipped_and_reported(made):
    with (made / "citation" / "runs.jsonl").open("a") as file:
        file.write("not a line\n")
    said: list[str] = []
    outcome = run(OTHER, made / "depth", REQUEST, said.append)
    assert (outcome.made, outcome.taken) == (8, 0)
    (told,) = [text for text in said if "no run is reused" in text]
    assert f"{made / 'citation' / 'runs.jsonl'}, line 13" in told


def test_lines_without_a_key_are_not_reused(made):
    ledger = Ledger(made / "citation")
    for line in ledger.read():
        ledger.append({key: value for key, value in line.items() if key not in ("key", "experiment")})
    assert run(OTHER, made / "depth", REQUEST, lambda text: None).taken == 8


def test_the_run_on_the_same_data_is_reused(made):
    """Two machines have made the same runs, and the data of one of them differ."""
    for line in Ledger(made / "citation").read():
        Ledger(made / "heterophily").append({**line, "experiment": "heterophily", "fingerprint": "another"})
    assert run(OTHER, made / "depth", REQUEST, lambda text: None).taken == 8


def test_a_removed_run_is_not_restored_from_a_copy(made):
    run(OTHER, made / "depth", REQUEST, lambda text: None)
    (made / "citation" / "runs.jsonl").unlink()
    outcome = run(SMALL, made / "citation", FIRST, lambda text: None)
    assert (outcome.made, outcome.taken) == (12, 0)


def test_baselines_are_not_reused_across_metrics(tmp_path):
    """A baseline is known by its name alone, whatever it is judged by."""
    sections = tuple(
        Data(name, "waves", name, loader="waves", settings={"metric": name}, seeds=1)
        for name in ("mse", "broadcast-mse")
    )
    series = dataclasses.replace(SMALL, data=sections, systems=(System("zeros", "zeros", baseline="zeros"),))
    assert run(series, tmp_path / "citation", REQUEST, lambda text: None).made == 2
    assert [line["metric"] for line in Ledger(tmp_path / "citation").read()] == ["mse", "broadcast-mse"]


def test_tables_say_which_runs_are_shared(made):
    run(OTHER, made / "depth", REQUEST, lambda text: None)
    lines = Ledger(made / "depth").read()
    text = markdown(summarise(OTHER, lines, (), quick=False))
    assert "Shared with citation: 8 of these runs." in text
    assert "Shared with" not in markdown(summarise(SMALL, Ledger(made / "citation").read(), (), quick=False))
