"""The sentence under a section: our best system against the best rival, by a paired test over shared seeds and splits.

Both are chosen by their mean validation score; where they were not tuned alike, a second sentence has the best that
were. The test is that of `difformer compare`: Student's t over pairs, and, where there are several splits, with Nadeau
and Bengio's correction for their overlap, which decides. It was made for training parts larger than test parts: with 20
labels a class hardly any difference passes it, so both are printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from difformer.experiments.budgets import budget, budgets
from difformer.experiments.summary import Row, Section, is_percent
from difformer.report.comparison import ALPHA, judge, paired


def best(rows: Sequence[Row], role: str) -> Row | None:
    """The row of a role with the best mean validation score; None where none was run."""
    scored = [row for row in rows if row.system.role == role and row.mean("valid") is not None]
    if not scored:
        return None
    return max(scored, key=lambda row: (1 if row.higher_is_better else -1) * (row.mean("valid") or 0.0))


def verdict(section: Section) -> list[str]:
    """Who wins on this section, and whether that is more than chance; empty where nothing was run."""
    ours, rival = best(section.rows, "ours"), best(section.rows, "rival")
    variant, off = best(section.rows, "variant"), best(section.rows, "off")
    said = []
    if ours is not None and rival is not None:
        said.append(_compared(ours, rival, "the best rival"))
        if budget(ours) is None or budget(ours) != budget(rival):
            said += _with_the_same_budget(section)
    if ours is not None and variant is not None:
        said.append(_compared(ours, variant, "the best variant"))
    if ours is not None and off is not None:
        said.append(_compared(ours, off, "attention off"))
    for row in section.rows:
        code = _row_of(section, row, "public-code")
        if row.system.role == "ours" and row.preset == "best" and row.lines and code is not None:
            said.append(_compared(row, code, "the authors' settings"))
    return said


def _with_the_same_budget(section: Section) -> list[str]:
    """Our best row that some rival was tuned as long as, against the best of those; nothing where there is none."""
    if section.data.mode != "score":
        return []
    given = {row.label: found for row in section.rows if row.lines and (found := budget(row)) is not None}
    rivals = {given[row.label] for row in section.rows if row.system.role == "rival" and row.label in given}
    ours = best([row for row in section.rows if row.label in given and given[row.label] in rivals], "ours")
    if ours is None:
        return []
    rival = best([row for row in section.rows if given.get(row.label) == given[ours.label]], "rival")
    return [] if rival is None else [_compared(ours, rival, "the best rival with the same budget")]


def _row_of(section: Section, like: Row, preset: str) -> Row | None:
    """The same system with another preset, where that was run."""
    found = (row for row in section.rows if row.system == like.system and row.preset == preset and row.lines)
    return next(found, None)


def _compared(ours: Row, other: Row, what: str) -> str:
    same = ours.system == other.system
    opening = f"Ours{'' if same else ', best on validation'}: {ours.label}; {what}: {other.label}. "
    shared = ours.by_pair().keys() & other.by_pair().keys()
    if not shared:
        return opening + "They share no seed on the same split, so nothing can be tested."
    higher = ours.higher_is_better
    raw = paired(other.by_pair(), ours.by_pair(), name=ours.label, test_to_train=ours.test_to_train(), higher=higher)
    (one,) = judge([raw], higher, against=other.label)
    scale, unit = (100, " points") if is_percent(ours.metric) else (1, "")
    ahead = (one.difference > 0) == higher
    if one.difference == 0:
        who = "They are equal"
    elif ahead:
        who = f"Ours is ahead by {abs(one.difference) * scale:.3g}{unit}"
    else:
        winner = other.label if same else other.system.label
        who = f"**{winner} wins** by {abs(one.difference) * scale:.3g}{unit}"
    count = "one pair" if one.pairs == 1 else f"{one.pairs} pairs"
    equal = sum(ours.by_pair()[pair] == other.by_pair()[pair] for pair in shared)
    names = (ours.label, other.label) if same else ("ours", other.system.label)
    wins = f"{names[0]} better in {one.wins}, {names[1]} in {one.pairs - one.wins - equal}"
    wins += f", equal in {equal}" if equal else ""
    tests = [f"paired t-test p = {one.t_test:.2g}"] if one.t_test is not None else ["no test is possible"]
    if one.corrected is not None:
        tests.append(f"corrected for overlapping splits p = {one.corrected:.2g}")
    if one.adjusted is not None:
        only = "" if len({split for _, split in shared}) > 1 else " for this one split"
        tests.append(f"{'' if one.adjusted < ALPHA else 'not '}significant at 5 %{only}")
    return f"{opening}{who} over {count} ({wins}): {', '.join(tests)}. {budgets(ours, other)}".strip()
