"""Paired tests against scipy's own, and what cannot be compared."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from scipy import stats

from difformer.data import Split, save_splits
from difformer.files import RunFolderError
from difformer.report import compare_runs
from difformer.report.comparison import holm, judge, paired


def with_values(path, target, values):
    """A copy of a run whose results are what a test wants them to be."""
    shutil.copytree(path, target)
    for seed, value in enumerate(values):
        file = target / f"seed-{seed}" / "result.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "test": value}))
    return target


def test_tests_are_scipys_and_the_correction_is_the_formula(workshop, tmp_path):
    path, task = workshop.run("gcn")
    first, second = [0.70, 0.72, 0.71], [0.80, 0.83, 0.80]
    a, b = with_values(path, tmp_path / "a", first), with_values(path, tmp_path / "b", second)
    found = compare_runs([a, b])
    one = found.against_first[0]
    assert found.metric == "accuracy"
    assert one.pairs == one.wins == 3
    assert one.t_test == pytest.approx(stats.ttest_rel(second, first).pvalue)
    d = [y - x for x, y in zip(first, second, strict=True)]
    mean = sum(d) / 3
    s = math.sqrt(sum((v - mean) ** 2 for v in d) / 2)
    train, _, test = task.splits[0].sizes()
    t = mean / (s * math.sqrt(1 / 3 + test / train))
    assert one.corrected == pytest.approx(2 * stats.t.sf(t, 2))
    assert one.adjusted == one.corrected
    assert one.interval[0] < one.difference < one.interval[1]
    assert "better" in one.verdict
    assert "worse" in compare_runs([b, a]).against_first[0].verdict
    same = compare_runs([a, a]).against_first[0]
    assert (same.difference, same.t_test) == (0, 1)
    assert "not shown to differ" in same.verdict


def test_files_of_another_split_do_not_change_a_comparison(workshop, tmp_path):
    path, task = workshop.run("gcn")
    a, b = with_values(path, tmp_path / "a", [0.5, 0.6, 0.7]), with_values(path, tmp_path / "b", [0.6, 0.65, 0.9])
    before = compare_runs([a, b]).against_first[0]
    every = torch.arange(task.num_instances)
    save_splits([Split("other", every[:2], every[2:4], every[4:])], a / "seed-0" / "split.npz")
    assert compare_runs([a, b]).against_first[0].corrected == before.corrected
    shutil.copy(a / "seed-1" / "predictions.npz", a / "seed-0" / "predictions.npz")
    with pytest.raises(RunFolderError, match="does not hold the predictions that seed 0"):
        compare_runs([a, b])


def test_several_runs_are_corrected_by_holm(workshop, tmp_path):
    path, _ = workshop.run("gcn")
    runs = [with_values(path, tmp_path / str(i), [0.5 + i / 10, 0.52 + i / 10, 0.5 + i / 9]) for i in range(3)]
    found = compare_runs(runs)
    assert "p-values are corrected for several comparisons (Holm)" in found.notes
    raw = [one.corrected for one in found.against_first]
    assert [one.adjusted for one in found.against_first] == pytest.approx(holm(raw))
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, None, 0.9]) == pytest.approx([1.0, None, 1.0])


def test_scores_that_are_not_there_make_no_pair(workshop, tmp_path):
    path, _ = workshop.run("gcn")
    a = with_values(path, tmp_path / "a", [0.5, 0.6, 0.7])
    b = with_values(path, tmp_path / "b", [0.6, None, 0.9])
    one = compare_runs([a, b]).against_first[0]
    assert (one.pairs, one.wins, one.difference) == (2, 2, pytest.approx(0.15))
    assert one.t_test == pytest.approx(stats.ttest_rel([0.6, 0.9], [0.5, 0.7]).pvalue)
    none = compare_runs([a, with_values(path, tmp_path / "c", [None] * 3)]).against_first[0]
    assert (none.pairs, none.adjusted) == (0, None)
    assert "nothing is compared" in none.verdict


def test_a_lower_error_is_better():
    first = {(i, f"s{i}"): v for i, v in enumerate([3.0, 2.5, 2.8, 3.1, 2.9, 2.7])}
    other = {key: v - 0.1 * (1 + key[0]) for key, v in first.items()}
    one = paired(first, other, name="other", test_to_train=0.1, higher=False)
    assert one.wins == 6
    assert "better than the first" in judge([one], False, against="the first")[0].verdict
    assert "worse than the first" in judge([one], True, against="the first")[0].verdict


@pytest.mark.parametrize(("pairs", "p"), [(2, 0.5), (5, 0.0625)])
def test_equal_differences_are_judged_by_the_sign_test(pairs, p):
    first = {(seed, f"split {seed}"): 0.5 + seed / 8 for seed in range(pairs)}
    other = {key: score + 0.25 for key, score in first.items()}
    one = paired(first, other, name="other", test_to_train=0.1, higher=True)
    assert (one.t_test, one.corrected) == (p, p)
    same = paired(first, first, name="same", test_to_train=None, higher=True)
    assert same.t_test == 1


def test_models_settings_and_one_split(workshop):
    (a, _), (b, _) = workshop.run("nodes"), workshop.run("gcn")
    found = compare_runs([a, b])
    assert found.settings["model"] == ("difformer-a", "gcn")
    assert [side.model for side in found.sides] == ["difformer-a", "gcn"]
    path, _ = workshop.run("series")
    single = compare_runs([path, path])
    assert single.against_first[0].corrected is None
    assert any("share one split" in note for note in single.notes)
    assert [side.name for side in single.sides] == [str(path)] * 2
    one = workshop.run("constant")[0]
    alone = compare_runs([one, workshop.run("lp")[0]])
    assert "one pair" in alone.against_first[0].verdict
    assert not any("seeds share" in note for note in alone.notes)  # there is one seed


def test_folders_whose_names_look_like_markup(workshop, tmp_path, capsys, monkeypatch):
    from difformer.cli import main

    monkeypatch.setenv("COLUMNS", "200")
    path, _ = workshop.run("gcn")
    runs = [with_values(path, tmp_path / name, [0.5, 0.6, 0.7]) for name in ("[b]a", "[red]x")]
    config = runs[1] / "config.toml"
    config.write_text(config.read_text().replace("epochs = 6", "epochs = 7"))  # so that settings differ
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, runs)])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert (out.count("[b]a"), out.count("[red]x")) == (2, 3)  # of the runs, of the tests, of the settings that differ


def test_what_cannot_be_compared(workshop):
    nodes, series = workshop.run("nodes")[0], workshop.run("series")[0]
    with pytest.raises(ValueError, match="at least two runs"):
        compare_runs([nodes])
    with pytest.raises(ValueError, match="of task 'ring'"):
        compare_runs([nodes, series])
