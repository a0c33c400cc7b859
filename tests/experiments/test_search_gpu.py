"""The common search resumes, never looks at test data, and always tries published settings."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import filelock
import pytest
import torch

from benchmarks import search_gpu
from benchmarks.search_gpu import Pair, Search, blocks_of, conclude, first_settings, pairs_of, read_protocol
from difformer.experiments.cells import choices, read_presets
from difformer.experiments.ledger import complete, read_lines
from difformer.experiments.presets import load_presets, read_preset
from difformer.experiments.spec import find, shared_systems
from difformer.training.config import make_config

CHANGED = {"trials": 8, "runs": 2, "epochs": 3, "first_epochs": 1, "eval_every": 1, "settings_per_shape": 2}
PROTOCOL = {**read_protocol(), **CHANGED, "features": {}}
AXES = {"hidden_channels": (4, 8), "dropout": (0.0, 0.5), "learning_rate": (0.01, 0.1), "num_layers": (1, 2)}
SMALL = Pair("gcn", "gcn", "karate", axes=AXES)


def search(folder, seconds=1e9, pairs=(SMALL,)):
    deadline = search_gpu.time.monotonic() + seconds
    known = read_lines(folder / "trials.jsonl")
    return Search(folder, PROTOCOL, pairs, known, torch.device("cpu"), deadline)


def test_the_best_of_a_round_are_trained_at_full_length_and_a_second_call_adds_nothing(tmp_path):
    first = search(tmp_path)
    first.run()
    lines = read_lines(tmp_path / "trials.jsonl")
    by_rung = {rung: [line for line in lines if line["rung"] == rung] for rung in (1, 2)}
    assert first.made == len(by_rung[1]) == 8
    assert {line["epochs"] for line in by_rung[1]} == {1}
    assert {line["epochs"] for line in by_rung[2]} == {3}
    full = [one for one in first.trials[SMALL.name].values() if one.full]
    best = sorted((line["valid"] for line in by_rung[1]), reverse=True)[:2]
    assert best == sorted((one.first[""] for one in full), reverse=True)[:2]
    again = search(tmp_path)
    again.run()
    assert len(read_lines(tmp_path / "trials.jsonl")) == len(lines)


def test_a_killed_search_resumes_after_its_last_whole_line(tmp_path):
    search(tmp_path).run()
    path = tmp_path / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]) + lines[3][:50])
    again = search(tmp_path)
    again.run()
    assert len([line for line in read_lines(path) if line["rung"] == 1]) == 8


def test_no_line_knows_a_test_score(tmp_path):
    search(tmp_path).run()
    for line in read_lines(tmp_path / "trials.jsonl"):
        assert "test" not in json.dumps(list(line))
        assert line["valid"] == pytest.approx(sum(line["valids"]) / 2)
    task, runs = search(tmp_path)._task(SMALL, None)
    assert all(not split.test.numel() for split in task.splits)
    assert len(runs) == 2


def test_nothing_starts_after_the_deadline(tmp_path):
    late = search(tmp_path, seconds=-1)
    late.run()
    assert late.made == 0


def test_protocols_of_a_data_set_share_their_stacks(tmp_path):
    pair = Pair("gcn", "gcn", "karate", ("one-a-side", "random"), axes=AXES)
    found = search(tmp_path, pairs=(pair,))
    task, runs = found._task(pair, None)
    assert [name for name, _ in runs] == ["one-a-side", "one-a-side", "random", "random"]
    names = [task.splits[place].name for _, place in runs]
    assert len(set(names)) == 4
    found.run()
    lines = read_lines(tmp_path / "trials.jsonl")
    assert {line["data_options"]["protocol"] for line in lines} == {"one-a-side", "random"}


def test_published_settings_are_always_among_the_trials():
    for pair in pairs_of(read_protocol(), ["difformer-s", "off", "gcn+"], ["cora"]):
        found = first_settings(pair)
        assert {one["features"] for one in found} == {"raw", "row"}
        wanted = {"gcn+": (3, 512, 0.7), "difformer-s": (8, 64, 0.2), "off": (8, 64, 0.2)}[pair.key]
        assert wanted in {(one["num_layers"], one["hidden_channels"], one["dropout"]) for one in found}
        assert not any("diffusivity" in one for one in found)


def test_blocks_share_their_shape_and_hold_valid_settings():
    protocol = read_protocol()
    for pair in pairs_of(protocol, data=["cora"]):
        for block in itertools.islice(blocks_of(pair, protocol, []), 9):
            shapes = [{key: one.get(key) for key in pair.shape} for one in block]
            assert all(shape == shapes[0] for shape in shapes)
            for one in block:
                make_config(pair.model, {key: value for key, value in one.items() if key != "features"})


def test_unknown_names_are_refused():
    with pytest.raises(SystemExit, match="--systems: there is no 'gcm'"):
        pairs_of(read_protocol(), ["gcm"])
    with pytest.raises(SystemExit, match="--data: there is no 'coar'"):
        pairs_of(read_protocol(), [], ["coar"])


def test_first_settings_are_tried_even_if_the_goal_is_reached_without_them(tmp_path):
    settings = {"hidden_channels": 8, "num_layers": 1, "learning_rate": 0.1, "dropout": 0.25}
    search(tmp_path).run()
    later = search(tmp_path, pairs=(replace(SMALL, candidates=(settings,)),))
    later.run()
    tried = [line for line in read_lines(tmp_path / "trials.jsonl") if line["settings"]["dropout"] == 0.25]
    assert [line["rung"] for line in tried] == [1]
    assert len(later.trials[SMALL.name]) == 9


def test_processes_that_share_a_search_do_not_work_on_the_same_pair(tmp_path):
    (tmp_path / "locks").mkdir()
    deadline = search_gpu.time.monotonic() + 1e9
    other = Pair("mlp", "mlp", "karate", axes=AXES)
    one = Search(tmp_path, PROTOCOL, (SMALL, other), [], torch.device("cpu"), deadline, "a")
    with filelock.FileLock(tmp_path / "locks" / SMALL.name):
        assert not one._advanced(4, SMALL)
        assert one._advanced(4, other)
    assert one._advanced(4, SMALL)
    two = Search(tmp_path, PROTOCOL, (SMALL, other), [], torch.device("cpu"), deadline, "b")
    two.run()
    assert {path.name for path in tmp_path.glob("*.jsonl")} == {"trials-a.jsonl", "trials-b.jsonl"}
    lines = [line for path in tmp_path.glob("*.jsonl") for line in read_lines(path) if line["rung"] == 1]
    assert len(lines) == 16
    assert len({(line["pair"], json.dumps(line["settings"])) for line in lines}) == 16


def test_settings_of_a_data_set_override_the_protocol_and_do_not_compete(tmp_path):
    pair = replace(SMALL, settings={"epochs": 2, "learning_rate": 0.05}, variant="short")
    found = search(tmp_path, pairs=(pair,))
    found.run()
    assert {line["epochs"] for line in read_lines(tmp_path / "trials.jsonl")} == {1, 2}
    for path in conclude(found, tmp_path):
        preset = read_preset(path)
        assert (preset.variant, preset.settings["epochs"], preset.settings["learning_rate"]) == ("short", 2, 0.05)


def test_final_runs_choose_among_finalists(tmp_path):
    pair = Pair("gcn", "gcn", "cora", ("authors",), axes={**AXES, "features": ("raw",)})
    shared = {"pair": pair.question("authors"), "higher_is_better": True, "data_options": {"features": "raw"}}
    lines = [
        {**shared, "rung": 2, "valid": valid, "settings": {"dropout": dropout}}
        for valid, dropout in ((0.9, 0.1), (0.8, 0.2), (0.7, 0.3))
    ]
    found = Search(tmp_path, PROTOCOL, (pair,), lines, torch.device("cpu"), 0.0)
    ledger = [
        {
            "status": "done",
            "preset": "common",
            "system": "gcn",
            "dataset": "cora",
            "data_options": {"protocol": "authors", "features": "raw"},
            "settings": {
                **complete(found._config(pair, {"dropout": dropout, "features": "raw"})),
                "patience": patience,
            },
            "seed": seed,
            "valid": valid,
        }
        for dropout, patience, valid, seeds in (
            (0.1, 100, 0.81, 10),
            (0.2, 200, 0.82, 10),
            (0.2, 100, 0.7, 10),
            (0.3, 200, 0.99, 9),
        )
        for seed in range(seeds)
    ]
    chosen = [read_preset(path) for path in conclude(found, tmp_path, ledger)]
    assert [(one.settings["dropout"], one.settings["patience"], one.validation, one.runs) for one in chosen] == [
        (0.2, 200, 0.82, 10),
        (0.1, 100, 0.81, 10),
    ]


def test_the_best_setting_at_full_length_becomes_a_preset_that_tables_run_with(tmp_path):
    pair = Pair("gcn", "gcn", "cora", ("authors",), axes={**AXES, "features": ("raw",)})
    shared = {"pair": pair.question("authors"), "higher_is_better": True, "data_options": {"features": "raw"}}
    lines = [
        {**shared, "rung": rung, "valid": valid, "settings": {"dropout": dropout}}
        for rung, valid, dropout in ((1, 0.95, 0.3), (2, 0.5, 0.2), (2, 0.9, 0.1), (2, None, 0.4))
    ]
    found = Search(tmp_path, PROTOCOL, (pair,), lines, torch.device("cpu"), 0.0)
    assert [path.name for path in conclude(found, tmp_path)] == ["cora-authors-gcn.toml"] * 2
    citation, gcn = find("citation"), shared_systems()["gcn"]
    presets = read_presets(tmp_path / "presets" / "1")
    data = {one.key: one for one in citation.data}
    (choice,) = choices(citation, data["cora-authors"], gcn, presets)
    assert (choice.name, choice.trials, choice.runs, choice.data) == ("common", 4, 2, {"features": "raw"})
    assert dict(choice.settings) == {"dropout": 0.1, **PROTOCOL["final"]}
    (other,) = choices(citation, data["cora-random"], gcn, presets)
    assert other == choices(citation, data["cora-random"], gcn, load_presets())[0]
