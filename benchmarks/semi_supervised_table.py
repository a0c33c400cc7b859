"""The tables of `benchmarks.semi_supervised`: accuracy and log loss by data set and method, and where ours loses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from difformer.files import write_whole

OURS = "DIFFormerClassifier"
STANDARDISED = ", standardised"
REGRESSION = "LogisticRegression"
BEGIN, END = "<!-- few labels: written by benchmarks.semi_supervised -->", "<!-- few labels: end -->"

Values = dict[str, dict[str, dict[str, Any]]]  # method → cell → split → value


def common(found: Values) -> dict[str, list[str]]:
    """The cells that every method has, and the splits of each that every method has measured."""
    cells: dict[str, list[str]] = {}
    for cell in found[OURS]:
        if all(cell in of for of in found.values()):
            splits = set.intersection(*(set(of[cell]) for of in found.values()))
            if splits:
                cells[cell] = sorted(splits, key=int)
    return cells


def means(found: Values, factor: float = 1.0) -> dict[str, dict[str, float]]:
    """Mean over splits of every method in every common cell."""
    cells = common(found)
    return {
        method: {cell: factor * float(np.mean([of[cell][s] for s in splits])) for cell, splits in cells.items()}
        for method, of in found.items()
    }


def overall(mean: dict[str, float]) -> float:
    return float(np.mean(list(mean.values())))


def standardised(every: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Ours, and every rival in the form a practitioner would use: with standardised rows."""
    return {name: of for name, of in every.items() if name == OURS or name.endswith(STANDARDISED)}


def table(every: dict[str, dict[str, float]], splits: dict[str, list[str]], digits: int, *, higher: bool) -> str:
    """Cells down, methods across, the best of a row in bold; the last column compares with all forms of all rivals."""
    sign = 1 if higher else -1
    kept = dict(sorted(standardised(every).items(), key=lambda item: -sign * overall(item[1])))
    kept = {OURS: kept.pop(OURS), **kept}
    short = [method.replace(STANDARDISED, "") for method in kept]
    lines = ["| labels | splits | " + " | ".join(short) + " | lost by |", "|---|" + "---:|" * (len(kept) + 1) + "---|"]
    for cell, numbers in splits.items():
        best = max(kept, key=lambda method: sign * kept[method][cell])
        text = [f"{of[cell]:.{digits}f}" for of in kept.values()]
        values = [f"**{t}**" if method == best else t for method, t in zip(kept, text, strict=True)]
        first = max((m for m in every if m != OURS), key=lambda method: sign * every[method][cell])
        loss = sign * (every[first][cell] - every[OURS][cell])
        lost = f"{loss:.{digits}f} ({first})" if loss > 0 else ""
        lines.append(f"| {cell} | {len(numbers)} | " + " | ".join(values) + f" | {lost} |")
    lines.append("| mean | | " + " | ".join(f"{overall(of):.{digits + 1}f}" for of in kept.values()) + " | |")
    return "\n".join(lines)


def parts(found: dict[str, Values]) -> tuple[Values, Values]:
    """Accuracy of all methods; log loss of those that have it for every cell that ours has."""
    losses = {
        method: of
        for method, of in found["log loss"].items()
        if set(found["log loss"][OURS]) <= set(of) and all(v is not None for cell in of.values() for v in cell.values())
    }
    return found["accuracy"], losses


def markdown(found: dict[str, Values]) -> str:
    accuracy, losses = parts(found)
    first = table(means(accuracy, 100.0), common(accuracy), 1, higher=True)
    second = table(means(losses), common(losses), 3, higher=False)
    return f"Accuracy in %:\n\n{first}\n\nLog loss (lower is better):\n\n{second}"


def summary(found: dict[str, Values]) -> list[str]:
    """In words: accuracy against the best single rival, log loss against logistic regression."""
    accuracy, losses = parts(found)
    every = standardised(means(accuracy, 100.0))
    own = every.pop(OURS)
    first = max(every, key=lambda method: overall(every[method]))
    verdict = "at least as accurate as" if overall(own) >= overall(every[first]) else "less accurate than"
    lost = [cell for cell in own if own[cell] < every[first][cell]]
    loss = means(losses)
    linear = loss[REGRESSION + STANDARDISED]
    ours = overall(loss[OURS])
    below = "below" if ours < overall(linear) else "not below"
    return [
        f"Mean accuracy over {len(own)} cells: {overall(own):.2f}, {verdict} the best single rival, "
        f"{first.replace(STANDARDISED, '')}, with {overall(every[first]):.2f}. Lost to it: "
        f"{', '.join(lost) or 'nowhere'}.",
        f"Mean log loss over {len(linear)} cells: {ours:.3f}, {below} that of logistic regression, "
        f"{overall(linear):.3f}. Lost to it: "
        f"{', '.join(cell for cell in linear if loss[OURS][cell] > linear[cell]) or 'nowhere'}.",
    ]


def write_into(guide: Path, found: dict[str, Values]) -> None:
    """Puts the tables between their two marks in a page."""
    text = guide.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    inside = "\n".join(["", markdown(found), "", *(f"- {line}" for line in summary(found)), ""])
    write_whole(guide, (text[:start] + inside + text[stop:]).encode())
