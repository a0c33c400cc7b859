"""The ledger is append-only and atomic, and finds the runs that count."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from small_experiment import line

from difformer.experiments.analysis import read_summary
from difformer.experiments.cells import cells
from difformer.experiments.ledger import (
    DONE,
    FAILED,
    Ledger,
    code_version,
    complete,
    current,
    failures,
    identity,
    named,
)
from difformer.experiments.presets import load_presets
from difformer.experiments.spec import NAMES, find
from difformer.files import RunFolderError
from difformer.training.config import TrainConfig


def test_lines_read_back_with_nan_as_none(tmp_path):
    ledger = Ledger(tmp_path / "new")
    ledger.append(line("gcn", 0, 0.5))
    ledger.append(line("gcn", 1, float("nan")))
    assert [one["test"] for one in ledger.read()] == [0.5, None]


def test_an_incomplete_last_line_is_ignored_and_then_removed(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.append(line("gcn", 0, 0.5))
    with ledger.path.open("ab") as file:
        file.write(json.dumps(line("gcn", 1, 0.6)).encode()[:-20])
    assert [one["seed"] for one in ledger.read()] == [0]
    ledger.append(line("gcn", 2, 0.7))
    assert [one["seed"] for one in ledger.read()] == [0, 2]
    assert ledger.path.read_bytes().count(b"\n") == 2


def test_a_file_with_only_an_incomplete_line_is_rewritten(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.path.write_bytes(b'{"data": "x' + b"y" * 200_000)
    assert ledger.read() == []
    ledger.append(line("gcn", 0, 0.5))
    assert [one["seed"] for one in ledger.read()] == [0]


def test_a_full_disk_leaves_the_ledger_unchanged(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path)
    ledger.append(line("gcn", 0, 0.5))
    before = ledger.path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:30]))
    with pytest.raises(RunFolderError, match="disk is full"):
        ledger.append(line("gcn", 1, 0.6))
    assert ledger.path.read_bytes() == before


@pytest.mark.parametrize(("text", "said"), [("nonsense", "not JSON"), ('{"a": 1}', "not a run"), ("[1]", "not a run")])
def test_a_complete_line_that_is_not_a_run_is_an_error_with_its_number(tmp_path, text, said):
    ledger = Ledger(tmp_path)
    ledger.append(line("gcn", 0, 0.5))
    with ledger.path.open("a") as file:
        file.write(text + "\n")
    with pytest.raises(ValueError, match=f"line 2: {said}"):
        ledger.read()


def test_runs_with_earlier_settings_do_not_count():
    old = [line("gcn", seed, 0.1, settings_id="old") for seed in range(3)]
    new = [line("gcn", seed, 0.9, settings_id="new") for seed in range(2)]
    assert [one["test"] for one in current([*old, *new])] == [0.9, 0.9]
    again = line("gcn", 1, 0.8, settings_id="new")
    assert [one["test"] for one in current([*new, again])] == [0.9, 0.8]
    assert len(current([*old, line("mlp", 0, 0.5)])) == 4


def test_restored_settings_find_their_runs_again():
    old = [line("gcn", seed, 0.1, settings_id="old") for seed in range(3)]
    new = [line("gcn", seed, 0.9, settings_id="new") for seed in range(3)]
    cell = ("blocks", "gcn", "untuned")
    assert [one["test"] for one in current([*old, *new], {cell: "old"})] == [0.1, 0.1, 0.1]
    assert [one["test"] for one in current([*new, *old], {cell: "new"})] == [0.9, 0.9, 0.9]  # files joined in any order
    assert [one["test"] for one in current([*old, *new], {cell: "never run"})] == [0.9, 0.9, 0.9]


def test_a_later_run_clears_the_failure():
    failed = {"status": FAILED, "data": "blocks", "system": "gcn", "preset": "untuned", "reason": "out of memory"}
    absent = {"status": FAILED, "data": "blocks", "reason": "data not here"}
    assert failures([absent, failed]) == {("blocks", "", ""): absent, ("blocks", "gcn", "untuned"): failed}
    assert failures([absent, failed, line("gcn", 0, 0.5)]) == {}


def test_identity_depends_on_content_only():
    assert identity(a=1, b=[1, 2]) == identity(b=(1, 2), a=1)
    assert identity(a=1) != identity(a=2)


RESULTS = Path(__file__).parents[2] / "results"
STORED = [line for folder in sorted(RESULTS.glob("*/")) for line in Ledger(folder).read() if line["status"] == DONE]


def test_no_id_of_the_stored_results_has_two_scores():
    scores: dict[str, set[str]] = {}
    for one in STORED:
        scores.setdefault(one["id"], set()).add(json.dumps([one["test"], one["measures"].get("epoch_seconds")]))
    assert len(scores) > 4000
    assert {id_: found for id_, found in scores.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", NAMES)
def test_stored_lines_match_current_settings(name):
    """Options that are new since then have defaults, and do not make a run another one."""
    found = read_summary(find(name), RESULTS / name)
    rows = {(row.data.key, row.system.key, row.preset): row for one in found.sections for row in one.rows}
    run = [cell for cell in cells(find(name), load_presets()) if rows[cell.key].n]
    assert run or not (RESULTS / name).is_dir()
    assert [cell.key for cell in run if rows[cell.key].first("settings_id") != cell.settings_id()] == []


def test_ids_differ_by_version_data_and_device():
    settings = {"epochs": 2, "hidden_channels": 4}
    versions = {"difformer": "0.1.0", "torch": "2.11"}
    old = line("gcn", 0, 0.5, model="gcn", settings=settings, versions=versions, fingerprint="a")
    del old["key"]
    ids = {
        named({**old, **change})["id"]
        for change in (
            {},
            {"fingerprint": "b"},
            {"versions": {**versions, "torch": "2.13"}},
            {"versions": {**versions, "difformer": "0.2.0"}},
            {"device": "another machine"},
            {"settings": {**settings, "precision": "bf16"}},
        )
    }
    assert len(ids) == 6
    keys = {named({**old, **change})["key"] for change in ({}, {"fingerprint": "b"}, {"device": "another machine"})}
    assert len(keys) == 1


def test_an_option_at_its_default_does_not_change_the_key():
    settings = {"hidden_channels": 4}
    old = line("gcn", 0, 0.5, model="gcn", settings=settings, versions={}, fingerprint="a")
    del old["key"]
    full = {**complete(TrainConfig("gcn", {"hidden_channels": 4}))}
    assert named(old)["key"] == named({**old, "settings": full})["key"]
    assert named(old)["key"] != named({**old, "settings": {**full, "dropout": 0.9}})["key"]


def test_the_code_version_names_the_sources():
    assert re.fullmatch(r"\d+\.\d+\S*\+[0-9a-f]{8}", code_version())


def test_reworded_split_names_are_the_same_split():
    old = line("gcn", 0, 0.5, model="gcn", settings={}, versions={}, split="20 a class/seed=0", protocol="20 a class")
    del old["key"]
    new = named({**old, "split": "20 per class/seed=0"})
    assert named(old)["key"] == new["key"]
    assert (named(old)["split"], named(old)["protocol"]) == (new["split"], "20 per class")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"settings": 0.5}, "settings must be a table, got 0.5"),
        ({"model": 3}, "model must be a text, got 3"),
        ({"seed": "x"}, "seed must be a whole number of at least 0, got 'x'"),
        ({"test": []}, r"test must be a number or null, got \[\]"),
        ({"status": "lost"}, "status must be one of done, failed, got 'lost'"),
        ({"measures": None}, "measures must be a table, got None"),
    ],
)
def test_a_field_of_another_kind_is_an_error_with_its_line(tmp_path, change, said):
    ledger = Ledger(tmp_path)
    ledger.append(line("gcn", 0, 0.5))
    ledger.append({**line("gcn", 1, 0.5), **change})
    with pytest.raises(ValueError, match=rf"line 2: not a run of `difformer reproduce` \({said}\)"):
        ledger.read()


def test_a_line_nested_too_deeply_is_an_error_with_its_number(tmp_path):
    Ledger(tmp_path).path.write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match="line 1: not JSON"):
        Ledger(tmp_path).read()


def test_lone_surrogates_and_lines_without_preset_or_device_are_refused(tmp_path):
    Ledger(tmp_path).path.write_text(json.dumps({**line("gcn", 0, 0.5), "device": "\ud800"}) + "\n")
    with pytest.raises(ValueError, match=r"line 1: not JSON .*surrogates not allowed"):
        Ledger(tmp_path).read()
    for name in ("preset", "device"):
        kept = {k: v for k, v in line("gcn", 0, 0.5).items() if k != name}
        Ledger(tmp_path).path.write_text(json.dumps(kept) + "\n")
        with pytest.raises(ValueError, match=f"{name} must be a text, got None"):
            Ledger(tmp_path).read()


def test_a_run_without_its_memory_is_summarised():
    from difformer.experiments.analysis import frame

    kept = {k: v for k, v in line("gcn", 0, 0.5).items() if k != "peak_memory"}
    assert frame([{**kept, "stacked": 0}])["megabytes"].isna().all()
