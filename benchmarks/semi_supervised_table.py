"""The table of `benchmarks.semi_supervised`: who is best where, and where ours is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from difformer.files import atomic_write

OURS = "DIFFormerClassifier"
STANDARDISED = ", standardised"
BEGIN, END = "<!-- few labels: written by benchmarks.semi_supervised -->", "<!-- few labels: end -->"

Accuracies = dict[str, dict[str, dict[str, float]]]


def common(found: Accuracies) -> dict[str, list[str]]:
    """The cells that every method has, and the splits of each that every method has measured."""
    cells: dict[str, list[str]] = {}
    for cell in found[OURS]:
        if all(cell in of for of in found.values()):
            splits = set.intersection(*(set(of[cell]) for of in found.values()))
            if splits:
                cells[cell] = sorted(splits, key=int)
    return cells


def means(found: Accuracies) -> dict[str, dict[str, float]]:
    """Accuracy in %, mean over splits, of every method in every common cell."""
    cells = common(found)
    return {
        method: {cell: 100 * float(np.mean([of[cell][s] for s in splits])) for cell, splits in cells.items()}
        for method, of in found.items()
    }


def overall(mean: dict[str, float]) -> float:
    return float(np.mean(list(mean.values())))


def better_forms(found: Accuracies) -> dict[str, dict[str, float]]:
    """Of every rival the better of its two forms, rows as they are or standardised, by the mean over all cells."""
    every = means(found)
    kept = {OURS: every[OURS]}
    for method in every:
        if method != OURS and not method.endswith(STANDARDISED):
            first = max(method, method + STANDARDISED, key=lambda form: overall(every[form]))
            kept[first] = every[first]
    return dict(sorted(kept.items(), key=lambda item: -overall(item[1])))


def markdown(found: Accuracies) -> str:
    """Cells down, methods across; the best of a row is bold, and where that is not ours the loss is written out."""
    kept, splits = better_forms(found), common(found)
    short = [method.replace(STANDARDISED, " (std)") for method in kept]
    lines = ["| labels | splits | " + " | ".join(short) + " | lost by |", "|---|" + "---:|" * (len(kept) + 1) + "---|"]
    for cell, numbers in splits.items():
        best = max(kept, key=lambda method: kept[method][cell])
        values = [f"**{of[cell]:.1f}**" if method == best else f"{of[cell]:.1f}" for method, of in kept.items()]
        loss = kept[best][cell] - kept[OURS][cell]
        lines.append(f"| {cell} | {len(numbers)} | " + " | ".join(values) + f" | {f'{loss:.1f}' if loss else ''} |")
    lines.append("| mean | | " + " | ".join(f"{overall(of):.2f}" for of in kept.values()) + " | |")
    return "\n".join(lines)


def summary(found: Accuracies) -> list[str]:
    """In words: ours against the best single rival, and the cells where any rival is better."""
    every = means(found)
    own = every.pop(OURS)
    first = max(every, key=lambda method: overall(every[method]))
    verdict = "at least as good as" if overall(own) >= overall(every[first]) else "worse than"
    lost = [cell for cell in own if own[cell] < every[first][cell]]
    beaten = []
    for cell, value in own.items():
        best = max(every, key=lambda method: every[method][cell])
        if every[best][cell] > value:
            beaten.append(f"{cell} ({best} {every[best][cell]:.1f}, here {value:.1f})")
    return [
        f"Mean over {len(own)} cells: {overall(own):.2f}, {verdict} the best single rival, {first}, with "
        f"{overall(every[first]):.2f}.",
        f"Lost to that rival: {', '.join(lost) or 'nowhere'}.",
        f"Some rival, in either of its forms, is better on {len(beaten)} of {len(own)}: {'; '.join(beaten) or '-'}.",
    ]


def write_into(guide: Path, found: Accuracies) -> None:
    """Puts the table between its two marks in a page."""
    text = guide.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    inside = "\n".join(["", markdown(found), "", *(f"- {line}" for line in summary(found)), ""])
    with atomic_write(guide) as stream:
        stream.write((text[:start] + inside + text[stop:]).encode())
