"""Numbers of tables against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import math

from scipy import stats
from small_experiment import BLOCKS, SMALL, line

from difformer.experiments.catalogue import find
from difformer.experiments.latex import latex, tex
from difformer.experiments.ledger import FAILED
from difformer.experiments.presets import Preset
from difformer.experiments.summary import summarise
from difformer.experiments.tables import markdown
from difformer.experiments.verdicts import best, verdict

# Published figures of Cora stand beside the made-up runs.
CORA = dataclasses.replace(SMALL, data=(dataclasses.replace(BLOCKS, key="cora-authors", published="cora"),))
TEST = {"gcn": (0.80, 0.84, 0.82), "difformer-s": (0.86, 0.88, 0.84), "off": (0.70, 0.72, 0.71)}


def runs(scores=TEST, **rest):
    valid = {"gcn": 0.8, "mlp": 0.3, "difformer-s": 0.9, "off": 0.7}
    return [
        line(system, seed, score, valid=valid[system], data="cora-authors", **rest)
        for system, found in scores.items()
        for seed, score in enumerate(found)
    ]


def cells_of(text, start):
    row = next(row for row in text.splitlines() if row.startswith(f"| {start} "))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_mean_deviation_count_and_differences_by_hand():
    text = markdown(summarise(CORA, runs(), (), quick=False))
    heading = cells_of(text, "system")
    row = dict(zip(heading, cells_of(text, "DIFFormer-s"), strict=True))
    mean = (0.86 + 0.88 + 0.84) / 3
    deviation = math.sqrt(sum((v - mean) ** 2 for v in (0.86, 0.88, 0.84)) / 2)
    assert row["test accuracy in %, mean ± std (n)"] == f"{100 * mean:.2f} ± {100 * deviation:.2f} (3) †"
    assert row["paper"] == "85.9 ± 0.4"
    assert row["Δ paper"] == f"{100 * mean - 85.9:+.2f}" == "+0.10"
    assert row["authors' code"] == "85.38 ± 0.70"
    assert row["Δ code"] == "+0.62"
    assert row["peak MB (median)"] == "5"
    gcn = dict(zip(heading, cells_of(text, "GCN"), strict=True))
    assert (gcn["paper"], gcn["Δ paper"]) == ("81.5 ± 1.3", "+0.50")


def test_one_run_has_no_deviation():
    text = markdown(summarise(CORA, runs({"gcn": (0.8,)}), (), quick=False))
    cells = cells_of(text, "GCN")
    assert cells[2] == "80.00 (1 of 3; the others are not run yet) †"
    assert cells[3] == "80.00 (1 of 3)"  # on validation
    assert "Seeds: 0; one run a row, hence no ±" in text


def test_what_was_not_run_is_a_cell_with_a_reason():
    failed = {"status": FAILED, "data": "cora-authors", "system": "mlp", "preset": "untuned", "reason": "out of memory"}
    text = markdown(summarise(CORA, [*runs({"gcn": (0.8, 0.9)}), failed], (), quick=False))
    assert cells_of(text, "MLP")[2] == "out of memory"
    assert not [row for row in text.splitlines() if row.startswith(("| DIFFormer-s", "| attention off"))]
    assert "Not run yet: DIFFormer-s (untuned; published 85.9 ± 0.4), attention off (untuned)." in text
    assert "(2 of 3; the others are not run yet)" in cells_of(text, "GCN")[2]
    assert "2 of 12 runs" in text
    assert "† untuned" in text


def test_a_row_of_which_some_runs_failed_says_why():
    failed = {"status": FAILED, "data": "cora-authors", "system": "gcn", "preset": "untuned", "reason": "diverged: NaN"}
    text = markdown(summarise(CORA, [*runs({"gcn": (0.8, 0.9)}), failed], (), quick=False))
    assert cells_of(text, "GCN")[2] == "85.00 ± 7.07 (2 of 3; diverged: NaN) †"
    assert cells_of(text, "GCN")[3].endswith("(2 of 3)")  # said once, not in every column
    cost = dataclasses.replace(CORA, data=(dataclasses.replace(CORA.data[0], mode="cost"),))
    lines = [{**one, "measures": {"epoch_seconds": 0.5}} for one in runs({"gcn": (None, None)})]
    text = markdown(summarise(cost, [*lines, failed], (), quick=False))
    assert cells_of(text, "GCN")[2] == "0.5 ± 0 (2 of 3; diverged: NaN)"


def test_significance_on_one_split_is_said_to_be_of_that_split():
    same = [{**one, "split": "only"} for one in runs()]
    (section,) = summarise(CORA, same, (), quick=False).sections
    assert all("significant at 5 % for this one split." in said for said in verdict(section))
    (section,) = summarise(CORA, runs(), (), quick=False).sections
    assert not any("this one split" in said for said in verdict(section))


def test_memory_that_the_paper_gives_stands_beside_ours():
    experiment = find("batch-size")
    lines = [{**line("batch-5000", 0, 0.65, data="pokec"), "peak_memory": 1_300_000_000}]
    text = markdown(summarise(experiment, lines, (), quick=False))
    row = dict(zip(cells_of(text, "system"), cells_of(text, "batches of 5,000"), strict=True))
    assert (row["peak MB (median)"], row["paper, MB"], row["paper"]) == ("1,300", "1244", "65.24 ± 0.34")
    cora = [{**line(one, 0, None, data="cora"), "measures": {"epoch_seconds": 0.1}} for one in ("gcn", "gat")]
    text = markdown(summarise(find("cost"), cora, (), quick=False))
    row = dict(zip(cells_of(text, "system"), cells_of(text, "GAT"), strict=True))
    assert (row["paper, MB"], row["paper, × GCN"], row["× GCN"]) == ("1380", f"{0.0807 / 0.0584:.2f}", "1.00")


def test_the_verdict_is_scipys_test_over_pairs():
    (section,) = summarise(CORA, runs(), (), quick=False).sections
    rival, off = verdict(section)
    p = stats.ttest_rel(TEST["difformer-s"], TEST["gcn"]).pvalue
    d = [a - b for a, b in zip(TEST["difformer-s"], TEST["gcn"], strict=True)]
    mean = sum(d) / 3
    s = math.sqrt(sum((v - mean) ** 2 for v in d) / 2)
    corrected = 2 * stats.t.sf(mean / (s * math.sqrt(1 / 3 + 30 / 18)), 2)
    assert f"paired t-test p = {p:.2g}" in rival
    assert f"corrected for overlapping splits p = {corrected:.2g}" in rival
    assert "Ours is ahead by 4 points over 3 pairs (ours better in 3, GCN in 0)" in rival
    assert "not significant" in rival
    assert rival.endswith("Neither was tuned.")
    assert "; attention off: attention off (untuned)." in off
    assert "significant at 5 %" in off


def test_a_rival_that_wins_is_named():
    (section,) = summarise(
        CORA, runs({"gcn": (0.95, 0.96, 0.97), "difformer-s": (0.5, 0.6, 0.7)}), (), quick=False
    ).sections
    assert "**GCN wins** by 36 points over 3 pairs (ours better in 0, GCN in 3)" in verdict(section)[0]
    (section,) = summarise(
        CORA, runs({"gcn": (0.95, 0.7, 0.4), "difformer-s": (0.5, 0.7, 0.5)}), (), quick=False
    ).sections
    assert "(ours better in 1, GCN in 1, equal in 1)" in verdict(section)[0]


def test_the_best_row_is_chosen_on_validation_alone():
    lines = [*runs({"gcn": (0.1, 0.1, 0.1), "mlp": (0.99, 0.99, 0.99)})]
    (section,) = summarise(CORA, lines, (), quick=False).sections
    assert best(section.rows, "rival").system.key == "gcn"
    lower = [{**one, "higher_is_better": False, "metric": "mse"} for one in lines]
    (section,) = summarise(CORA, lower, (), quick=False).sections
    assert best(section.rows, "rival").system.key == "mlp"


def test_pairs_are_runs_of_the_same_seed_and_split():
    others = [{**one, "split": "another"} for one in runs({"gcn": (0.8, 0.8, 0.8)})]
    (section,) = summarise(CORA, [*runs({"difformer-s": (0.9, 0.9, 0.9)}), *others], (), quick=False).sections
    assert "share no seed on the same split" in verdict(section)[0]


def test_attention_off_with_the_settings_of_another_was_not_tuned():
    def rows(model):
        origin = Preset("best", model, "sbm", source="a search", validation=0.9, trials=16).describe()
        rest = {"preset": "best", "trials": 16, "origin": origin}
        return [{**one, **rest} for one in runs({"difformer-s": (0.9, 0.9, 0.8), "off": (0.8, 0.7, 0.8)})]

    (section,) = summarise(CORA, rows("difformer-s"), (), quick=False).sections
    assert "attention off (best) has the settings that were chosen for difformer-s." in verdict(section)[0]
    (section,) = summarise(CORA, rows("difformer"), (), quick=False).sections
    assert "Both tuned with 16 settings." in verdict(section)[0]


def test_our_best_settings_are_compared_with_the_authors():
    best_rows = [{**one, "preset": "best"} for one in runs({"difformer-s": (0.9, 0.92, 0.91)})]
    code = [{**one, "preset": "public-code"} for one in runs({"difformer-s": (0.8, 0.83, 0.81)})]
    (section,) = summarise(CORA, [*best_rows, *code], (), quick=False).sections
    (said,) = verdict(section)
    assert "Ours: DIFFormer-s (best); the authors' settings: DIFFormer-s (public-code)." in said
    assert "Ours is ahead by 9.67 points over 3 pairs" in said


def test_memory_of_runs_that_were_trained_as_one_is_shared_out():
    text = markdown(summarise(CORA, runs(stacked=5), (), quick=False))
    assert dict(zip(cells_of(text, "system"), cells_of(text, "GCN"), strict=True))["peak MB (median)"] == "~1"


def test_columns_in_which_nothing_stands_are_left_out():
    visualise = dataclasses.replace(CORA, data=(dataclasses.replace(CORA.data[0], mode="visualise"),))
    lines = [{**one, "measures": {"within": [0.2, 0.4]}} for one in runs()]
    heading = cells_of(markdown(summarise(visualise, lines, (), quick=False)), "system")
    assert "attention within classes by layer" in heading
    assert "uniform attention" not in heading


def test_one_slow_run_does_not_decide_what_runs_take():
    lines = [{**one, "seconds": s, "peak_memory": b} for one, s, b in zip(
        runs({"gcn": (0.8, 0.8, 0.8)}), (2.8, 80.0, 3.5), (94e6, 13e6, 14e6), strict=True
    )]  # fmt: skip
    text = markdown(summarise(CORA, lines, (), quick=False))
    row = dict(zip(cells_of(text, "system"), cells_of(text, "GCN"), strict=True))
    assert (row["seconds a run (median)"], row["peak MB (median)"]) == ("3.5", "14")


def test_latex_has_the_same_numbers_and_is_escaped():
    text = latex(summarise(CORA, runs(), (), quick=False))
    assert r"DIFFormer-s & untuned & 86.00 $\pm$ 2.00 (3) $\dagger$" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    columns = text.split(r"\toprule")[1].split(r"\midrule")[0].count("&")
    assert {row.count("&") for row in body.strip().splitlines()} == {columns}
    # The caption is short; what is said of the rows stands under them, within the table.
    caption = next(row for row in text.splitlines() if row.startswith(r"\caption{"))
    assert caption == r"\caption{A small experiment: blocks. Protocol: made up.}"
    note = text.split(r"\end{tabular}}")[1].split(r"\end{minipage}")[0]
    assert r"$\dagger$ untuned:" in note
    assert "Ours is ahead by 4 points" in note
    assert "Goal, " in note
    assert tex("a | b < c") == r"a \textbar{} b \textless{} c"
    # As wide as the page, whatever the columns hold; every brace that is opened is closed.
    assert r"\resizebox{\textwidth}{!}{%" in text
    assert text.replace(r"\{", "").count("{") == text.replace(r"\}", "").count("}")
    assert tex("a_b & 50 % ± 1 {x} `y`") == r"a\_b \& 50 \% $\pm$ 1 \{x\} 'y'"
