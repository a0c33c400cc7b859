"""What one table has trained is not trained again for another."""

from __future__ import annotations

import dataclasses

import pytest
from small_experiment import BLOCKS, SMALL

from difformer.experiments import performing
from difformer.experiments.asking import Request
from difformer.experiments.ledger import Ledger
from difformer.experiments.running import run

OTHER = dataclasses.replace(SMALL, name="depth", data=(dataclasses.replace(BLOCKS, key="again", seeds=2),))
REQUEST = Request(device="cpu")
FIRST = Request(device="cpu", datasets=("blocks",))


@pytest.fixture
def made(tmp_path):
    """A first experiment that is done, and how many runs are trained after it."""
    run(SMALL, tmp_path / "citation", FIRST, lambda text: None)
    return tmp_path


def test_the_same_runs_are_taken_over(made, monkeypatch):
    monkeypatch.setattr(performing, "train_one", None)
    monkeypatch.setattr(performing, "train_stacked", None)
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
def test_other_runs_are_not(made, changes):
    other = dataclasses.replace(OTHER, data=(dataclasses.replace(OTHER.data[0], **changes),))
    outcome = run(other, made / "depth", REQUEST, lambda text: None)
    assert (outcome.made, outcome.taken) == (8, 0)
    assert not any("taken_from" in line for line in Ledger(made / "depth").read())


def test_data_that_changed_are_not_the_same_run(made):
    path = made / "citation" / "runs.jsonl"
    text = path.read_text()
    fingerprint = Ledger(made / "citation").read()[0]["fingerprint"]
    path.write_text(text.replace(fingerprint, "another"))
    assert run(OTHER, made / "depth", REQUEST, lambda text: None).taken == 0


def test_quick_runs_are_not_taken_for_full_ones(tmp_path):
    run(SMALL, tmp_path / "citation", dataclasses.replace(FIRST, quick=True), lambda text: None)
    other = dataclasses.replace(OTHER, systems=SMALL.systems[:1])
    assert run(other, tmp_path / "depth", REQUEST, lambda text: None).taken == 0


def test_a_file_that_cannot_be_read_is_passed_over(made):
    with (made / "citation" / "runs.jsonl").open("a") as file:
        file.write("not a line\n")
    outcome = run(OTHER, made / "depth", REQUEST, lambda text: None)
    assert (outcome.made, outcome.taken) == (8, 0)
