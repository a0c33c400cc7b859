"""Tables contain the numbers of the ledger, and say what is missing, shared or not comparable."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
from scipy import stats
from small_experiment import ABSENT, BLOCKS, SMALL, line

from difformer.experiments.analysis import summarise
from difformer.experiments.cells import Request, cells
from difformer.experiments.ledger import FAILED, Ledger
from difformer.experiments.presets import Preset
from difformer.experiments.render import markdown, write_results
from difformer.experiments.spec import find

DAGGER = "† untuned: customary values, the same for all such rows; tuning may improve it."
# Published figures of Cora stand beside the made-up runs.
SECTION = dataclasses.replace(BLOCKS, key="cora-authors", published="cora", paper_protocol=True)
CORA = dataclasses.replace(SMALL, data=(SECTION,))
TEST = {"gcn": (0.80, 0.84, 0.82), "difformer-s": (0.86, 0.88, 0.84), "off": (0.70, 0.72, 0.71)}
PRESETS = tuple(
    Preset(name, model, "sbm", source="a test", trials=16)
    for name, model in (("public-code", "difformer-s"), ("paper", "difformer-s"), ("paper", "gcn"))
)
REFUSED = {"status": FAILED, "data": "cora-authors", "preset": "untuned", "quick": False}


def runs(scores=TEST, **rest):
    valid = {"gcn": 0.8, "mlp": 0.3, "difformer-s": 0.9, "off": 0.7}
    return [
        line(system, seed, score, valid=valid[system], data="cora-authors", **rest)
        for system, found in scores.items()
        for seed, score in enumerate(found)
    ]


def of(system, count=3, test=0.8, **rest):
    return [line(system, seed, test, data="cora-authors", **rest) for seed in range(count)]


def summary(lines, presets=(), experiment=CORA):
    return summarise(experiment, lines, presets, quick=False)


def section(lines, presets=(), experiment=CORA):
    return summary(lines, presets, experiment).sections[0]


def sentences(lines):
    """What the table says about our best row against others."""
    return [text for text in markdown(summary(lines)).split("\n\n") if " against " in text]


def row_of(text, start):
    """Cells of a row by their heading."""
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines() if row[:1] == "|"]
    heading = next(row for row in rows if row[0] == "system")
    return dict(zip(heading, next(row for row in rows if row[0] == start), strict=True))


def score_of(text, start):
    return list(row_of(text, start).values())[2]


def test_mean_deviation_count_and_differences_by_hand():
    row = row_of(markdown(summary(runs())), "DIFFormer-s")
    mean = (0.86 + 0.88 + 0.84) / 3
    deviation = math.sqrt(sum((v - mean) ** 2 for v in (0.86, 0.88, 0.84)) / 2)
    assert row["test accuracy in %, mean ± std (n)"] == f"{100 * mean:.2f} ± {100 * deviation:.2f} (3) †"
    assert row["paper"] == "85.9 ± 0.4"
    assert row["Δ paper"] == f"{100 * mean - 85.9:+.2f}" == "+0.10"
    assert (row["authors' code"], row["Δ code"]) == ("85.38 ± 0.70", "+0.62")
    assert not {"peak MB (median)", "seconds per run (median)"} & row.keys()  # tables of cost have them
    gcn = row_of(markdown(summary(runs())), "GCN")
    assert (gcn["paper"], gcn["Δ paper"]) == ("81.5 ± 1.3", "+0.50")


def test_one_run_has_no_deviation():
    text = markdown(summary(runs({"gcn": (0.8,)})))
    assert score_of(text, "GCN") == "80.00 (1 of 3) †"
    assert row_of(text, "GCN")["validation"] == "80.00 (1 of 3)"
    assert "Seeds: 0; one run per row, hence no ±" in text


def test_a_cell_without_runs_has_a_reason():
    failed = {**REFUSED, "system": "mlp", "reason": "out of memory"}
    text = markdown(summary([*runs({"gcn": (0.8, 0.9)}), failed]))
    assert score_of(text, "MLP") == "out of memory"
    assert not [row for row in text.splitlines() if row.startswith(("| DIFFormer-s", "| attention off"))]
    assert "Not run yet: DIFFormer-s (published 85.9 ± 0.4), attention off." in text
    assert "(2 of 3)" in score_of(text, "GCN")
    assert "2 of 12 runs" in text
    assert DAGGER in text


def test_a_row_with_failed_runs_says_why():
    failed = {**REFUSED, "system": "gcn", "reason": "diverged: NaN"}
    text = markdown(summary([*runs({"gcn": (0.8, 0.9)}), failed]))
    assert score_of(text, "GCN") == "85.00 ± 7.07 (2 of 3; diverged: NaN) †"
    assert row_of(text, "GCN")["validation"].endswith("(2 of 3)")
    cost = dataclasses.replace(CORA, data=(dataclasses.replace(SECTION, mode="cost"),))
    lines = [{**one, "measures": {"epoch_seconds": 0.5}} for one in runs({"gcn": (None, None)})]
    assert score_of(markdown(summary([*lines, failed], experiment=cost)), "GCN") == "0.5 ± 0 (2 of 3; diverged: NaN)"


def test_memory_that_the_paper_gives_is_shown():
    lines = [{**line("batch-5000", 0, 0.65, data="pokec"), "peak_memory": 1_300_000_000}]
    row = row_of(markdown(summary(lines, experiment=find("batch-size"))), "batches of 5,000")
    assert (row["peak MB (median)"], row["paper, MB"], row["paper"]) == ("1,300", "1244", "65.24 ± 0.34")
    cora = [{**line(one, 0, None, data="cora"), "measures": {"epoch_seconds": 0.1}} for one in ("gcn", "gat")]
    row = row_of(markdown(summary(cora, experiment=find("cost"))), "GAT")
    assert (row["paper, MB"], row["paper, × GCN"], row["× GCN"]) == ("1380", f"{0.0807 / 0.0584:.2f}", "1.00")


def corrected(ours, other, ratio=30 / 18):
    d = [a - b for a, b in zip(ours, other, strict=True)]
    mean = sum(d) / 3
    s = math.sqrt(sum((v - mean) ** 2 for v in d) / 2)
    return 2 * stats.t.sf(abs(mean) / (s * math.sqrt(1 / 3 + ratio)), 2)


def test_comparisons_use_the_corrected_test_with_holm():
    rival, off = section(runs()).comparisons
    p = {what: corrected(TEST["difformer-s"], TEST[what]) for what in ("gcn", "off")}
    small, large = sorted(p.values())
    assert sorted([rival.p, off.p]) == pytest.approx([2 * small, max(2 * small, large)])
    assert (rival.gain, rival.test.pairs, rival.test.wins) == (pytest.approx(4), 3, 3)
    said, _ = sentences(runs())
    assert "4 points better (better in 3 of 3 pairs)" in said
    assert "not significant." in said
    assert "t-test p" not in said  # one rule, one p


def test_significance_on_one_split_is_restricted_to_it():
    same = [{**one, "split": "only"} for one in runs()]
    found = section(same).comparisons
    assert [said.endswith("significant on this split.") for said in sentences(same)] == [True, True]
    plain = stats.ttest_rel(TEST["difformer-s"], TEST["gcn"]).pvalue
    assert found[0].p == pytest.approx(max(plain, found[1].p))
    assert not any("on this split" in said for said in sentences(runs()))


def test_a_rival_that_wins_and_ties_are_counted():
    (said,) = sentences(runs({"gcn": (0.95, 0.96, 0.97), "difformer-s": (0.5, 0.6, 0.7)}))
    assert "36 points worse (better in 0 of 3 pairs)" in said
    (said,) = sentences(runs({"gcn": (0.95, 0.7, 0.4), "difformer-s": (0.5, 0.7, 0.5)}))
    assert "(better in 1 of 3 pairs, equal in 1)" in said


def test_the_best_row_is_chosen_on_validation_alone():
    lines = [*runs({"gcn": (0.1, 0.1, 0.1), "mlp": (0.99, 0.99, 0.99)})]
    assert section(lines).best("rival").system.key == "gcn"
    lower = [{**one, "higher_is_better": False, "metric": "mse"} for one in lines]
    assert section(lower).best("rival").system.key == "mlp"


def test_lower_errors_are_gains():
    lines = [{**one, "higher_is_better": False, "metric": "mse"} for one in runs()]
    best = [{**one, "valid": 0.1} for one in lines if one["system"] == "difformer-s"]
    rest = [one for one in lines if one["system"] != "difformer-s"]
    assert section([*best, *rest]).comparison("attention off").gain == pytest.approx(-0.15)


def test_pairs_are_runs_of_the_same_seed_and_split():
    others = [{**one, "split": "another"} for one in runs({"gcn": (0.8, 0.8, 0.8)})]
    lines = [*runs({"difformer-s": (0.9, 0.9, 0.9)}), *others]
    assert "no seed and split in common" in sentences(lines)[0]
    assert section(lines).comparison("the best rival") is None


def test_our_best_settings_are_compared_with_the_authors():
    best_rows = [{**one, "preset": "best"} for one in runs({"difformer-s": (0.9, 0.92, 0.91)})]
    code = [{**one, "preset": "public-code", "valid": 0.5} for one in runs({"difformer-s": (0.8, 0.83, 0.81)})]
    (said,) = sentences([*best_rows, *code])
    assert said.startswith("DIFFormer-s (best) against the authors' settings, DIFFormer-s (public-code): 9.67")


def test_the_tuning_column_tells_borrowed_settings():
    def rows(model):
        origin = Preset("best", model, "sbm", source="a search", validation=0.9, trials=16).describe()
        rest = {"preset": "best", "trials": 16, "tuning_runs": 2, "origin": origin}
        return [{**one, **rest} for one in runs({"difformer-s": (0.9, 0.9, 0.8), "off": (0.8, 0.7, 0.8)})]

    def budgets(model):
        return {row.system.key: row.budget for row in section(rows(model)).rows if row.n}

    assert budgets("difformer-s") == {"difformer-s": "16 × 2", "off": "borrowed"}
    assert budgets("difformer-off")["off"] == "16 × 2"
    assert "| tuning (settings × runs) |" in markdown(summary(rows("difformer-off")))


def test_empty_columns_are_left_out():
    visualise = dataclasses.replace(CORA, data=(dataclasses.replace(SECTION, mode="visualise"),))
    lines = [{**one, "measures": {"rank": [0.2, 0.4]}} for one in runs()]
    row = row_of(markdown(summary(lines, experiment=visualise)), "GCN")
    assert row["effective rank by layer"] == "0.2 → 0.4"
    assert "energy by layer" not in row


def test_one_large_run_does_not_decide_the_memory():
    alone = dataclasses.replace(CORA, data=(dataclasses.replace(SECTION, alone=True),))
    made = zip(runs({"gcn": (0.8, 0.8, 0.8)}), (94e6, 13e6, 14e6), strict=True)
    row = row_of(markdown(summary([{**one, "peak_memory": b} for one, b in made], experiment=alone)), "GCN")
    assert row["peak MB (median)"] == "14"


def test_a_system_has_all_its_rows_once_one_of_them_was_run():
    lines = of("difformer-s", preset="paper", trials=16)
    found = section(lines, PRESETS)
    assert [row.label for row in found.shown] == ["DIFFormer-s (public-code)", "DIFFormer-s (paper's grid)"]
    assert "Not run yet: MLP (published 56.1 ± 1.6), GCN (published 81.5 ± 1.3), attention off." in markdown(
        summary(lines, PRESETS)
    )
    everything = [one for key in ("mlp", "gcn", "off") for one in of(key)]
    assert "Not run yet" not in markdown(summary([*lines, *everything], PRESETS))


def test_the_preset_paper_is_never_shown_under_that_name():
    text = markdown(summary(of("gcn", preset="paper", trials=16), PRESETS))
    assert "| GCN | paper's grid | 80.00" in text
    assert "Settings called paper's grid were tuned here" in text
    assert "(paper)" not in text


def test_a_section_without_runs_is_text():
    small = dataclasses.replace(SMALL, data=(ABSENT,))
    refused = {"status": FAILED, "data": "absent", "reason": "data not here: no\nfile", "quick": False}
    for lines, said in (([], "Nothing was run yet."), ([refused], "data not here: no")):
        found = summary(lines, experiment=small)
        text = markdown(found)
        assert said in text
        assert "Not run yet: MLP, GCN, DIFFormer-s, attention off." in text
        assert "|" not in text


def test_rows_name_their_device_where_memory_is_measured():
    alone = dataclasses.replace(CORA, data=(dataclasses.replace(SECTION, alone=True),))
    here = [{**one, "device": "a CPU, 1 threads"} for one in of("gcn")]
    there = [{**one, "device": "a GPU"} for one in of("mlp")]
    both = [{**one, "device": device} for one, device in zip(of("off", 2), ("a GPU", "a CPU, 1 threads"), strict=True)]
    text = markdown(summary([*here, *there, *both], experiment=alone))
    cells = {name: row_of(text, name)["device"] for name in ("MLP", "GCN", "attention off")}
    assert cells == {"MLP": "a GPU", "GCN": "a CPU, 1 threads", "attention off": "a GPU and a CPU, 1 threads"}
    for measured in (CORA, alone):
        text = markdown(summary([*here, *there], experiment=measured))
        assert "Device: a GPU | a CPU, 1 threads." in text
    assert "device" not in row_of(markdown(summary(here)), "GCN")


def test_costs_of_different_devices_have_no_ratio():
    cost = dataclasses.replace(CORA, data=(dataclasses.replace(SECTION, mode="cost"),))
    measured = {"measures": {"epoch_seconds": 0.5}}
    lines = [*of("gcn", **measured), *of("mlp", **measured), *of("off", device="another", **measured)]
    text = markdown(summary(lines, experiment=cost))
    assert (score_of(text, "MLP"), row_of(text, "MLP")["× GCN"]) == ("0.5 ± 0 (3)", "1.00")
    assert (score_of(text, "attention off"), row_of(text, "attention off")["× GCN"]) == ("0.5 ± 0 (3)", "–")


def test_marks_are_explained_only_where_they_are_used():
    two = dataclasses.replace(CORA, data=(*CORA.data, BLOCKS))
    marked = [line("gcn", seed, 0.8) for seed in range(2)]
    plain = of("gcn", preset="paper", trials=16)
    text = markdown(summary([*marked, *plain], PRESETS, two))
    first, second = text.split("## blocks")[1:3]
    assert DAGGER not in first
    assert DAGGER in second


def test_rivals_below_the_paper_are_named_with_their_budget():
    tuned = {"preset": "paper", "trials": 16, "tuning_runs": 2}
    # The paper has 81.5 for GCN and 56.1 for MLP; our own rows are not judged.
    lines = [*of("gcn", test=0.7949, **tuned), *of("mlp", test=0.6, **tuned), *of("difformer-s", test=0.1)]
    assert "More than 2 points below the paper: GCN -2.01 (16 settings × 2 runs)." in markdown(summary(lines))
    assert "No rival is more than 2 points below the paper." in markdown(summary(of("gcn", test=0.7951)))
    # Of two rows of a rival the one that is best on validation counts.
    both = [*of("gcn", test=0.7, valid=0.9), *of("gcn", test=0.9, valid=0.5, **tuned)]
    assert "GCN -11.50 (untuned)" in markdown(summary(both))
    other = dataclasses.replace(CORA, data=(dataclasses.replace(SECTION, paper_protocol=False),))
    assert "points below the paper" not in markdown(summary(of("gcn", test=0.7), experiment=other))


def test_rows_of_earlier_presets_are_named():
    lines = [*of("gcn", preset="paper", trials=16), *of("gcn", preset="untuned"), *of("difformer-s", preset="paper")]
    found = summary(lines, PRESETS)
    assert "Run with earlier presets and no longer repeated: GCN (untuned)." in markdown(found)
    assert found.counted == "6 of 18 runs, and 3 from earlier presets"


def test_tuned_rows_have_the_trials_that_their_preset_knows_today():
    (cell,) = cells(CORA, PRESETS, Request(models=("gcn",)))
    lines = of("gcn", preset="paper", trials=4, settings_id=cell.settings_id())
    assert section(lines, PRESETS).rows[1].budget == "16"
    earlier = of("gcn", preset="paper", trials=4)
    assert section(earlier, PRESETS).rows[1].budget == "4"


def test_data_that_are_not_bit_identical_are_reported():
    one, other = (
        [{**run, "fingerprint": mark * 10} for run in of(key)] for mark, key in (("ab", "gcn"), ("cd", "mlp"))
    )
    assert "fingerprints" not in markdown(summary(one))
    text = markdown(summary([*one, *other[:1]]))
    assert "the fingerprints start with abababab (3 runs), cdcdcdcd (1 run)." in text
    # Raw and row-normalised features are different data on purpose.
    raw = [{**run, "data_options": {"features": "raw"}} for run in other]
    assert "fingerprints" not in markdown(summary([*one, *raw]))
    assert "Not all runs with raw features used" in markdown(summary([*one, *raw[:2], {**raw[2], "fingerprint": "ef"}]))


def test_a_section_that_could_not_be_run_does_not_say_nothing_was_run_yet():
    text = markdown(summary([{**REFUSED, "system": "gcn", "reason": "too long", "id": "x"}]))
    assert "Nothing could be run." in text
    assert "Nothing was run yet." not in text


def filled(folder):
    ledger = Ledger(folder / "citation")
    scores = {"gcn": 0.80, "difformer-s": 0.86, "off": 0.81}
    for system, mean in scores.items():
        for seed in range(5):
            run = line(system, seed, mean + 0.001 * seed * (system != "difformer-s"), data="cora-authors", quick=False)
            ledger.append({**run, "split": "one", "preset": "paper" if system == "gcn" else "public-code"})
    ledger.append({"status": FAILED, "data": "pubmed-authors", "reason": "data not here: no pubmed", "quick": False})
    Ledger(folder / "depth").append(line("K2-t0.5", 0, 0.5, quick=True))
    return folder


def test_the_page_has_one_row_per_data_set_and_answers_the_question(tmp_path):
    write_results(filled(tmp_path / "results"), tmp_path / "docs" / "RESULTS.md")
    text = (tmp_path / "docs" / "RESULTS.md").read_text()
    rows = [row for row in text.splitlines() if row.startswith("| [")]
    cells = [cell.strip() for cell in rows[0].strip("|").split("|")]
    assert len(rows) == 1
    assert cells[:3] == ["[Cora, the authors' split](../results/citation/table.md)", "85.9±0.4", "85.38±0.70"]
    assert cells[3] == "**86.00±0.00** (DIFFormer-s)"
    assert cells[4] == "80.20±0.16 (GCN)"
    assert cells[5:7] == ["81.20±0.16", "1"]
    assert "Of the 1 rows below, 1 compare our best model with the same encoder without attention." in text
    assert "Attention is significantly better on 1, significantly worse on 0" in text
    gain = "| Node classification on citation graphs | 1 of 1 | +4.8 (+4.8 to +4.8) points | Cora, the authors' split |"
    assert f"{gain} – |" in text
    assert "](../results/attention.png)" in text
    assert (tmp_path / "results" / "attention.png").is_file()
    assert re.search(r"\n- depth: .* Not run\.\n", text)
    assert "K = 2" not in text  # numbers of a quick form are never shown
    with pytest.raises(FileNotFoundError, match="no folder"):
        write_results(tmp_path / "absent", tmp_path / "x.md")


def test_the_page_names_rivals_that_are_best_on_test_but_not_on_validation(tmp_path):
    folder = filled(tmp_path / "results")
    ledger = Ledger(folder / "citation")
    for seed in range(5):
        run = line("gat", seed, 0.85, data="cora-authors", quick=False)
        ledger.append({**run, "valid": 0.1, "split": "one", "preset": "paper"})
    write_results(folder, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "80.20±0.16 (GCN)" in text  # chosen on validation
    said = (
        "another rival has the best test score, though a worse validation score: Cora, the authors' split: GAT, 85.00."
    )
    assert f"On 1 of the 1 rows {said}" in text


def test_the_page_says_what_attention_adds_with_fewer_labels_and_edges(tmp_path):
    folder = filled(tmp_path / "results")
    ledger = Ledger(folder / "robustness")
    for key, scores in {"labels-1": (0.50, 0.40), "edges-1": (0.60, 0.65), "edges-0": (0.7, None)}.items():
        for system, score in zip(("difformer-s", "off"), scores, strict=True):
            for seed in range(5 if score else 0):
                data, more = f"facebook100-reed98-{key}", 0.01 * seed * (system == "off")
                ledger.append(line(system, seed, (score or 0) + more, data=data, quick=False))
    write_results(folder, tmp_path / "page.md")
    rows = [row for row in (tmp_path / "page.md").read_text().splitlines() if row.startswith("| Facebook100, Reed")]
    assert rows == ["| Facebook100, Reed | **+8.0** | – | – | – | – | – | – | – | **-7.0** |"]


def test_a_page_without_full_runs_says_so(tmp_path):
    Ledger(tmp_path / "depth").append(line("K2-t0.5", 0, 0.5, quick=True))
    write_results(tmp_path, tmp_path / "page.md")
    assert "only the quick form was run" in (tmp_path / "page.md").read_text()


def test_a_page_without_comparisons_claims_no_win(tmp_path):
    Ledger(tmp_path / "depth").append(line("K2-t0.5", 0, 0.5, data="cora", quick=False))
    write_results(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "Nothing was compared with attention off yet." in text
    assert "Nothing was compared with a rival yet." in text
    assert "ahead" not in text


def test_the_page_in_the_documentation_is_short():
    text = (Path(__file__).parents[2] / "docs" / "RESULTS.md").read_text()
    assert len(text.split()) <= 1500
    assert text.startswith("# Results")
