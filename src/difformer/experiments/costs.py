r"""What an epoch costs: seconds and the peak of memory, from two runs of the training loop of different lengths.

With T(e) the seconds that e epochs take, evaluated once at the end, an epoch costs

    (T(w + n) - T(w)) / n,

in which starting up, warming up and the evaluation cancel. What a process does but once, as loading kernels, would not:
a run that is not counted goes before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from difformer.experiments.ledger import Line
from difformer.experiments.measuring import peak_memory
from difformer.experiments.summary import Row, Section, Summary
from difformer.training.loop import train_one

if TYPE_CHECKING:
    from difformer.experiments.performing import Ready

WARM_UP, EPOCHS, QUICK_EPOCHS = 2, 10, 2


def cost_lines(
    what: Ready, seeds: Sequence[int], device: torch.device, stop: Callable[[], bool], shared: Line
) -> Iterator[Line]:
    """One line a repeat."""
    from difformer.experiments.performing import Interrupted, described

    epochs = QUICK_EPOCHS if shared["quick"] else EPOCHS

    def seconds(length: int, seed: int) -> float:
        assert what.config is not None
        config = what.config.replace(epochs=length, eval_every=length, patience=None)
        record = train_one(what.task, seed % len(what.task.splits), config, seed, device, stop=stop)
        if record.status == "interrupted":
            raise Interrupted
        return record.seconds

    seconds(WARM_UP, seeds[0])
    for seed in seeds:
        with peak_memory(device) as peak:
            taken = {length: seconds(length, seed) for length in (WARM_UP, WARM_UP + epochs)}
        gained = taken[WARM_UP + epochs] - taken[WARM_UP]
        # Where an epoch takes less than the clock's noise, the longer run says it well enough.
        each = gained / epochs if gained > 0 else taken[WARM_UP + epochs] / (WARM_UP + epochs)
        yield {
            **shared,
            **described(what, seed),
            "metric": "seconds an epoch",
            "higher_is_better": False,
            "train": None,
            "valid": None,
            "test": None,
            "measures": {"epoch_seconds": each},
            "best_epoch": None,
            "epochs": WARM_UP + epochs,
            "seconds": round(sum(taken.values()), 4),
            "stacked": 1,
            "peak_memory": peak.bytes,
        }


def cost_columns(section: Section) -> list[tuple[str, Callable[[Row], str]]]:
    """Columns of a section on cost."""
    from difformer.experiments.devices import letters, megabytes, of_row
    from difformer.experiments.tables import NONE, difference
    from difformer.experiments.under import published

    devices = letters(section)
    base = next((row for row in section.rows if row.system.key == "gcn" and row.lines), None)

    def relative(row: Row) -> str:
        mine, theirs = row.mean("epoch_seconds"), None if base is None else base.mean("epoch_seconds")
        if base is None or mine is None or not theirs or of_row(row, devices) != of_row(base, devices):
            return NONE
        return f"{mine / theirs:.2f}"

    def relative_paper(row: Row) -> str:
        theirs = next((one.paper for one in section.rows if one.system.key == "gcn"), None)
        if row.paper is None or row.paper.mean is None or theirs is None or not theirs.mean:
            return NONE
        return f"{row.paper.mean / theirs.mean:.2f}"

    found: list[tuple[str, Callable[[Row], str]]] = [
        ("system", lambda row: row.system.label),
        ("settings", lambda row: row.settings),
        ("seconds an epoch, mean ± std (n)", lambda row: f"{_seconds(row)} {of_row(row, devices)}".rstrip()),
        ("× GCN", relative),
        ("peak MB (median)", lambda row: megabytes(row, devices)),
    ]
    if any(row.paper is not None for row in section.rows):
        found.append(("paper, seconds", lambda row: published(row.paper)))
        found.append(("paper, × GCN", relative_paper))
        found.append(("paper, MB", lambda row: published(row.memory)))
    if any(row.authors is not None for row in section.rows):
        found.append(("authors' code, seconds", lambda row: published(row.authors)))
        found.append(("Δ code", lambda row: difference(row, row.authors)))
    return found


def _seconds(row: Row) -> str:
    mean = row.mean("epoch_seconds")
    if mean is None:
        return row.reason
    count = len(row.lines) if len(row.lines) >= row.data.seeds else f"{len(row.lines)} of {row.data.seeds}"
    spread = f" ± {row.deviation('epoch_seconds'):.2g}" if len(row.lines) > 1 else ""
    return f"{mean:.3g}{spread} ({count}{row.missing})"


def draw(summary: Summary, folder: Path) -> Any:
    """Bars of seconds and of megabytes, a panel each a data set."""
    from difformer.experiments.drawing import empty, head, panels

    shown = measured(summary)
    if not shown:
        return empty(f"{summary.experiment.title}: nothing was run yet")
    fig, axes = panels(2 * len(shown), width=3.8, height=2.2, across=2)
    cost_panels(axes, shown)
    head(fig, summary)
    return fig


def measured(summary: Summary) -> list[Section]:
    """Sections with a cost to draw."""
    return [section for section in summary.sections if section.lines and section.data.mode == "cost"]


def cost_panels(axes: Sequence[Any], sections: Sequence[Section]) -> None:
    """Two panels a section, time and memory; devices have letters where there are several."""
    from difformer.experiments.devices import letters, of_row
    from difformer.experiments.drawing import ROLES, few

    for place, section in enumerate(sections):
        rows, known = [row for row in section.rows if row.lines][::-1], letters(section)
        names = [f"{row.system.label}{few(row, 'epoch_seconds')} {of_row(row, known)}".rstrip() for row in rows]
        colours = [ROLES[row.system.role][0] for row in rows]
        where = "; ".join(f"{letter} {device}" for device, letter in known.items()) or section.lines[0]["device"]
        time, memory = axes[2 * place : 2 * place + 2]
        time.barh(names, [1000 * (row.mean("epoch_seconds") or 0) for row in rows], color=colours)
        time.set_xlabel("milliseconds an epoch")
        time.set_title(f"{section.data.label}\n{where}; {section.counted}", loc="left", fontsize=8)
        memory.barh(names, [(row.median("peak_memory") or 0) / 1e6 for row in rows], color=colours)
        memory.set_xlabel("peak of memory in MB")
