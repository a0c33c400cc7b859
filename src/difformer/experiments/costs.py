r"""What an epoch of training costs: seconds, and the peak of memory.

With t_e the clock when epoch e is over and the device has nothing left to do, an epoch costs

    (t_{w + n} - t_w) / n,

the first w epochs, in which kernels are loaded, left out. Scores are not worked out: in mini-batches an epoch holds a
batch at a time while an evaluation sees the whole graph, and would hide what training takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from difformer.experiments.ledger import Line
from difformer.experiments.measuring import peak_memory
from difformer.experiments.summary import Row, Section, Summary
from difformer.training.loop import Trainer
from difformer.training.randomness import isolated_rng

if TYPE_CHECKING:
    from difformer.experiments.performing import Ready

WARM_UP, EPOCHS, QUICK_EPOCHS = 2, 10, 2
LONG = 10.0  # seconds of an epoch from which on one is counted


def cost_lines(
    what: Ready, seeds: Sequence[int], device: torch.device, stop: Callable[[], bool], shared: Line
) -> Iterator[Line]:
    """One line a repeat."""
    from difformer.experiments.performing import begun, described

    for seed in seeds:
        begun(stop)
        with peak_memory(device, added=False) as peak:
            cost = _measured(what, seed, device, stop, QUICK_EPOCHS if shared["quick"] else EPOCHS)
        yield {
            **shared,
            **described(what, seed),
            "metric": "seconds an epoch",
            "higher_is_better": False,
            "train": None,
            "valid": None,
            "test": None,
            "measures": {"epoch_seconds": cost.each},
            "best_epoch": None,
            "epochs": cost.epochs,
            "seconds": round(cost.seconds, 4),
            "stacked": 1,
            "peak_memory": peak.bytes,
        }


class _Cost(NamedTuple):
    """Seconds of an epoch, and of how many epochs and seconds it was measured, those that do not count among them."""

    each: float
    epochs: int
    seconds: float


def _measured(what: Ready, seed: int, device: torch.device, stop: Callable[[], bool], epochs: int) -> _Cost:
    """Epochs of one run, timed."""
    from difformer.experiments.performing import Interrupted

    def timed(number: int) -> float:
        # The device is waited for at the end alone: an epoch is begun while the one before still runs, as in training.
        began = time.perf_counter()
        for _ in range(number):
            if stop():
                raise Interrupted(trainer.epoch)
            trainer.train_epoch()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    assert what.config is not None
    task = what.task
    with isolated_rng(device):
        torch.manual_seed(seed)
        trainer = Trainer(task, task.splits[seed % len(task.splits)], what.config, seed, device)
        before = [timed(1) for _ in range(WARM_UP)]
        number = epochs if before[-1] < LONG else 1  # the first loads kernels, and says little
        counted = timed(number)
    return _Cost(counted / number, WARM_UP + number, sum(before) + counted)


def cost_columns(section: Section) -> list[tuple[str, Callable[[Row], str]]]:
    """Columns of a section on cost."""
    from difformer.experiments.devices import letters, megabytes, of_row
    from difformer.experiments.tables import NONE
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
        # No difference: theirs was measured on a CPU.
        found.append(("authors' code on a CPU, seconds", lambda row: published(row.authors)))
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
