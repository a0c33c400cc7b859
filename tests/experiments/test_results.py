"""The page of results is made from files, and says what was not run."""

from __future__ import annotations

import re

import pytest
from small_experiment import line

from difformer.experiments.ledger import FAILED, Ledger
from difformer.experiments.results import main, page, write_results


def filled(folder):
    ledger = Ledger(folder / "citation")
    for seed in range(5):
        ledger.append(line("difformer-s", seed, 0.85, data="cora-authors", quick=False, preset="public-code"))
    ledger.append({"status": FAILED, "data": "pubmed-authors", "reason": "data not here: no pubmed", "quick": False})
    Ledger(folder / "depth").append(line("K2-t0.5", 0, 0.5, quick=True))
    return folder


def test_the_page_says_what_was_run_and_what_was_not(tmp_path):
    text = page(filled(tmp_path))
    row = {
        name: next(r for r in text.splitlines() if r.startswith(f"| {name} |"))
        for name in ("citation", "depth", "cost")
    }
    assert "**partial**" in row["citation"]
    assert "5 of " in row["citation"]
    assert "a machine" in row["citation"]
    assert "could not be run: Pubmed, the authors' one split" in row["citation"]
    assert "quick form" in row["depth"]
    assert "**not run**" in row["cost"]
    assert "| DIFFormer-s | public-code | 85.00 ± 0.00 (5) |" in text
    assert "data not here: no pubmed" in text
    assert "K = 2" not in text  # of a quick form no number is shown
    assert "## Goals" in text
    assert "| public-code difformer-s within 1 of 85.4 | reached with 85.00 (DIFFormer-s (public-code)) |" in text
    assert re.search(r"\n1 of \d are reached; what was tried", text)


@pytest.mark.parametrize(
    ("preset", "counted"),
    [("best", r"\| 40 of [123]\d \|"), ("public-code", r"\| 0 of [123]\d, and 40 that are no longer")],
)
def test_many_seeds_of_one_row_do_not_make_a_table_complete(tmp_path, preset, counted):
    ledger = Ledger(tmp_path / "energy")
    for seed in range(40):  # more than the whole table has runs
        ledger.append(line("difformer-s", seed, 0.85, data="cora", quick=False, preset=preset))
    (row,) = [text for text in page(tmp_path).splitlines() if text.startswith("| energy |")]
    assert re.search(counted, row)
    assert "**partial**" in row
    assert "runs of other rows not made yet" in row


def test_it_is_written_by_the_module_and_by_the_function(tmp_path, capsys):
    filled(tmp_path / "results")
    write_results(tmp_path / "results", tmp_path / "docs" / "RESULTS.md")
    main([str(tmp_path / "results")])
    assert capsys.readouterr().out == (tmp_path / "docs" / "RESULTS.md").read_text()
    with pytest.raises(FileNotFoundError, match="no folder"):
        write_results(tmp_path / "absent", tmp_path / "x.md")
    with pytest.raises(SystemExit):
        main([])
