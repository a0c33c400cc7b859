"""The common search resumes, never looks at test data, and always tries published settings."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import search_gpu
from benchmarks.search_gpu import Pair, Search, block_of, first_settings, main, pairs_of, read_protocol
from difformer.experiments.cells import choices, read_presets
from difformer.experiments.ledger import read_lines
from difformer.experiments.presets import load_presets
from difformer.experiments.spec import find, shared_systems
from difformer.training.config import make_config

PROTOCOL = {**read_protocol(), "trials": 4, "runs": 2, "epochs": 2, "settings_per_architecture": 2, "features": {}}
AXES = {"hidden_channels": (4, 8), "dropout": (0.0, 0.5), "learning_rate": (0.01, 0.1), "num_layers": (1, 2)}
SMALL = Pair("gcn", "gcn", "sbm", {"num_nodes": 60, "num_splits": 2}, axes=AXES)


def search(folder, known=(), seconds=1e9):
    return Search(folder, PROTOCOL, known, torch.device("cpu"), search_gpu.time.monotonic() + seconds)


def test_a_pair_gets_its_trials_and_a_second_call_adds_nothing(tmp_path):
    first = search(tmp_path)
    first.run([SMALL])
    lines = read_lines(tmp_path / "trials.jsonl")
    assert (first.made, len(lines), len({line["id"] for line in lines})) == (4, 4, 4)
    again = search(tmp_path, lines)
    again.run([SMALL])
    assert again.made == 0


def test_a_killed_search_resumes_after_its_last_whole_line(tmp_path):
    search(tmp_path).run([SMALL])
    path = tmp_path / "trials.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:50])
    again = search(tmp_path, read_lines(path))
    again.run([SMALL])
    assert again.made == 2
    assert len(read_lines(path)) == 4


def test_no_line_knows_a_test_score(tmp_path):
    search(tmp_path).run([SMALL])
    for line in read_lines(tmp_path / "trials.jsonl"):
        assert "test" not in json.dumps(list(line))
        assert line["valid"] == pytest.approx(sum(line["valids"]) / 2)


def test_nothing_starts_after_the_deadline(tmp_path):
    late = search(tmp_path, seconds=-1)
    late.run([SMALL])
    assert late.made == 0


def test_published_settings_are_always_among_the_trials():
    for pair in pairs_of(read_protocol(), ["difformer-s", "off", "gcn+"], ["cora"]):
        found = first_settings(pair)
        assert {one["features"] for one in found} == {"raw", "row"}
        wanted = {"gcn+": (3, 512, 0.7), "difformer-s": (8, 64, 0.2), "off": (8, 64, 0.2)}[pair.key]
        assert wanted in {(one["num_layers"], one["hidden_channels"], one["dropout"]) for one in found}
        if pair.key == "off":
            assert all(one["diffusivity"] is None for one in found)


def test_every_point_of_every_space_is_a_valid_setting():
    protocol = read_protocol()
    for pair in pairs_of(protocol, data=["cora-authors"]):
        for settings in [*first_settings(pair), *block_of(pair, 0, 8, 8, 0, [])]:
            make_config(pair.model, {key: value for key, value in settings.items() if key != "features"})


def test_settings_of_a_block_share_their_architecture():
    (pair,) = pairs_of(read_protocol(), ["gcn+"], ["cora-authors"])
    done = [{"valid": 0.5, "higher_is_better": True, "settings": one, "data_options": {}} for one in
            block_of(pair, 0, 8, 8, 0, [])]  # fmt: skip
    for number in (0, 3, 6, 7):
        block = block_of(pair, number, 8, 8, 0, done)
        shapes = [{key: value for key, value in one.items() if key not in search_gpu.STACKED} for one in block]
        assert all(shape == shapes[0] for shape in shapes)


def test_unknown_names_are_refused():
    with pytest.raises(SystemExit, match="--systems: there is no 'gcm'"):
        pairs_of(read_protocol(), ["gcm"])
    with pytest.raises(SystemExit, match="--data: there is no 'coar'"):
        pairs_of(read_protocol(), [], ["coar"])


def test_the_best_setting_becomes_a_preset_that_tables_run_with(tmp_path, monkeypatch):
    pair = Pair("gcn", "gcn", "cora", {"protocol": "authors"}, ("raw",), axes=AXES, variant="authors")
    shared = {"pair": pair.id, "metric": "accuracy", "higher_is_better": True, "epochs": 9, "patience": 3}
    lines = [
        {**shared, "id": str(n), "valid": valid, "settings": {"dropout": n / 10}, "data_options": {"features": "raw"}}
        for n, valid in enumerate((0.5, 0.9, None))
    ]
    monkeypatch.setattr(search_gpu, "pairs_of", lambda *_: [pair])
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["--out", str(tmp_path), "--conclude"]) == 0
    citation, gcn = find("citation"), shared_systems()["gcn"]
    presets = read_presets(tmp_path / "presets")
    data = {one.key: one for one in citation.data}
    (choice,) = choices(citation, data["cora-authors"], gcn, presets)
    assert (choice.name, choice.trials, choice.runs, choice.data) == ("best", 3, 2, {"features": "raw"})
    assert dict(choice.settings) == {"dropout": 0.1, "epochs": 9, "patience": 3}
    (other,) = choices(citation, data["cora-random"], gcn, presets)
    assert other == choices(citation, data["cora-random"], gcn, load_presets())[0]
