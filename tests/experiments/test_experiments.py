"""Every experiment is well formed; its quick form runs, resumes, and writes tables and figures."""

from __future__ import annotations

import json
from statistics import fmean, stdev

import pytest

from difformer.data.catalogue import ENTRIES
from difformer.data.registry import loader_of
from difformer.experiments import spec
from difformer.experiments.analysis import read_summary
from difformer.experiments.cells import Request, cells
from difformer.experiments.figures import DRAWINGS, QUICK
from difformer.experiments.ledger import Ledger
from difformer.experiments.presets import load_presets
from difformer.experiments.render import write_files
from difformer.experiments.runner import run
from difformer.experiments.spec import experiments, find
from difformer.training.config import make_config
from difformer.zoo import MODELS

NAMES = (
    "citation", "heterophily", "large", "temporal", "unobserved", "particles", "attention-ablation", "depth",
    "batch-size", "cost", "energy", "visualise", "robustness",
)  # fmt: skip


def test_all_experiments_are_listed():
    assert spec.NAMES[: len(NAMES)] == NAMES
    assert [one.name for one in experiments()] == list(spec.NAMES)
    with pytest.raises(ValueError, match="did you mean heterophily"):
        find("heterophilly")


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_names_existing_data_and_models(name):
    experiment = find(name)
    for quick in (False, True):
        sections = experiment.sections(quick)
        assert sections
        assert len({one.key for one in sections}) == len(sections)
        for data in sections:
            assert data.dataset in ENTRIES or callable(loader_of(data.dataset))
            rows = experiment.rows(data, quick)
            assert any(system.role == "off" for system in rows), f"{data.key} has no row without attention"
            assert any(system.role == "ours" for system in rows)
    assert len({one.key for one in experiment.systems}) == len(experiment.systems)
    assert all(one.baseline or one.model in MODELS for one in experiment.systems)
    assert experiment.figure in DRAWINGS


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_has_valid_settings(name):
    found = cells(find(name), load_presets())
    for cell in found:
        if not cell.system.baseline:
            make_config(cell.system.model, cell.preset.settings)
    assert len({cell.key for cell in found}) == len(found)


def test_cost_without_a_graph_uses_nearest_neighbours_for_gcn_and_gat():
    chosen = {cell.key[:2]: cell.preset.settings for cell in cells(find("cost"), load_presets())}
    for data in ("stl10", "cifar10"):
        assert chosen[data, "gcn"]["graph"] == chosen[data, "gat"]["graph"] == "knn:5"
        assert chosen[data, "difformer-s"].get("graph", "none") == "none"
    assert "graph" not in chosen["cora", "gcn"]


@pytest.mark.parametrize("name", NAMES)
def test_the_quick_form_runs_and_resumes(name, tmp_path, monkeypatch):
    monkeypatch.delenv("DIFFORMER_DATA", raising=False)
    monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
    experiment, said = find(name), []
    outcome = run(experiment, tmp_path, Request(quick=True, device="cpu"), said.append)
    assert (outcome.failed, outcome.errors, outcome.left, outcome.stopped) == ({}, 0, 0, "")
    assert outcome.made == len(Ledger(tmp_path).read()) > 0
    write_files(read_summary(experiment, tmp_path), tmp_path)
    assert (tmp_path / "figure.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "</svg>" in (tmp_path / "figure.svg").read_text()[-20:]
    assert QUICK in (tmp_path / "figure.svg").read_text()
    table = (tmp_path / "table.md").read_text()
    assert "attention off" in table
    assert "not run yet" not in table
    _check_numbers(experiment, tmp_path, table)
    again = run(experiment, tmp_path, Request(quick=True, device="cpu"), said.append)
    assert (again.made, again.there) == (0, outcome.made)


def _check_numbers(experiment, folder, table):
    """Every mean and deviation of a score, worked out again from the raw lines."""
    lines = [json.loads(text) for text in (folder / "runs.jsonl").read_text().splitlines()]
    checked = 0
    for system in experiment.systems:
        for data in experiment.quick_data:
            values = [one["test"] for one in lines if (one["system"], one["data"]) == (system.key, data.key)]
            if not values or values[0] is None:
                continue
            scale, digits = (1, 3) if lines[0]["metric"] == "mse" or data.key == "waves-quick" else (100, 2)
            spread = f" ± {scale * stdev(values):.{digits}f}" if len(values) > 1 else ""
            expected = f"{scale * fmean(values):.{digits}f}{spread} ({len(values)})"
            row = [text for text in table.splitlines() if text.startswith(f"| {system.label} |")]
            assert any(expected in text for text in row), f"{system.label}: {expected} is not in {row}"
            checked += 1
    assert checked or experiment.name == "cost"
