"""What a call of `difformer reproduce` asks for, which cells that means, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.experiments.choosing import NO_TRAINING, UNTUNED, Cell, cells, check_names, read_presets
from difformer.experiments.plan import Experiment, selected_data, selected_systems
from difformer.training.config import PRECISIONS

if TYPE_CHECKING:
    from difformer.experiments.summary import Summary


@dataclass(frozen=True)
class Request:
    """What a call asks for.

    Args:
        quick: The small form, to see that everything works.
        seeds: How many a cell gets; what the protocol says where left out.
        device: As everywhere.
        models: Systems or models; all where empty.
        datasets: Sections or data sets; all where empty.
        presets: Names of presets; all where empty.
        preset_folder: Folder with preset files that go before the package's.
        seconds: Begin nothing new after that.
        limit: Seconds after which a run is broken off.
        retry: Whether runs that failed are tried again.
        precision: In which runs are made, where not as their settings say.
    """

    quick: bool = False
    seeds: int | None = None
    device: str = "auto"
    models: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    preset_folder: Path | None = None
    seconds: float = math.inf
    limit: float = math.inf
    retry: bool = False
    precision: str | None = None


@dataclass
class Outcome:
    """What a call did.

    Args:
        made: Runs that were made.
        there: Runs that were there before.
        taken: Runs that were there for another table or row, and are taken over.
        failed: Cells that could not be run, with the reason.
        errors: How many of these are errors of the program, not of data, memory or divergence.
        left: Runs that remain.
        stopped: ``"interrupted"``, ``"out of time"``, or empty.
    """

    made: int = 0
    there: int = 0
    taken: int = 0
    failed: dict[tuple[str, str, str], str] = field(default_factory=dict)
    errors: int = 0
    left: int = 0
    stopped: str = ""


def wanted_cells(experiment: Experiment, request: Request) -> list[Cell]:
    """Every cell that is asked for, in the order of the tables.

    Raises:
        ValueError: If the request names what there is not, or nothing at all.
    """
    if request.seeds is not None and request.seeds < 1:
        raise ValueError(f"--seeds: expected at least 1, got {request.seeds}")
    if not request.seconds >= 0:
        raise ValueError(f"--seconds: expected how long new runs may be begun, 0 or more, got {request.seconds:g}")
    if not request.limit > 0:
        raise ValueError(f"--limit: expected how many seconds a run may take, more than 0, got {request.limit:g}")
    check_names(request.presets)
    sections = selected_data(experiment, request.datasets, request.quick)
    systems = selected_systems(experiment, request.models, request.quick)
    found = cells(experiment, read_presets(request.preset_folder), quick=request.quick, only=sections)
    chosen = [cell for cell in found if cell.system.key in systems]
    wanted = [c for c in chosen if not request.presets or c.choice.name in (*request.presets, NO_TRAINING)]
    _check_some(experiment, request, chosen, wanted)
    _check_precision(request, wanted)
    return wanted


def seen(summary: Summary, request: Request) -> Outcome:
    """What there is where nothing is run: runs that the tables show, and what a call without --table-only would make.

    Raises:
        ValueError: As `wanted_cells` does.
    """
    from difformer.experiments.performing import settings_id
    from difformer.experiments.summary import NOT_YET

    outcome = Outcome(there=summary.made)
    rows = {(row.data.key, row.system.key, row.preset): row for section in summary.sections for row in section.rows}
    absent = {section.data.key: section.reason for section in summary.sections if section.reason}
    for cell in wanted_cells(summary.experiment, replace(request, quick=summary.quick)):
        row, count = rows[cell.key], request.seeds or cell.data.seeds
        # Runs of a preset that has changed since are shown until those of the new one are made.
        done = {line["seed"] for line in row.lines if line["settings_id"] == settings_id(cell) and line["seed"] < count}
        missing = count - len(done)
        if cell.data.key in absent:
            outcome.failed[(cell.data.key, "", "")] = absent[cell.data.key]
        elif missing and row.reason not in ("", NOT_YET):
            outcome.failed[cell.key] = row.reason
            continue
        outcome.left += missing
    return outcome


def _check_some(experiment: Experiment, request: Request, chosen: Sequence[Cell], wanted: Sequence[Cell]) -> None:
    """Refuses a call that asks for no row: it would look as if all were done."""
    if not chosen:
        raise ValueError(
            f"--models {','.join(request.models)}: {experiment.name} does not run them on {','.join(request.datasets)}"
        )
    if all(cell.system.baseline for cell in wanted) and not all(cell.system.baseline for cell in chosen):
        there = ", ".join(dict.fromkeys(cell.choice.name for cell in chosen))
        if experiment.only_presets and not set(request.presets) & {*experiment.only_presets, UNTUNED}:
            raise ValueError(
                f"--preset {','.join(request.presets)}: {experiment.name} uses presets of no other name than "
                f"{', '.join(experiment.only_presets)}; there are rows of {there}"
            )
        raise ValueError(
            f"--preset {','.join(request.presets)}: nothing that was chosen has such a preset; there are rows "
            f"of {there}. `difformer tune` and `python -m difformer.experiments.search` find presets, "
            f"--presets FOLDER reads them"
        )


def _check_precision(request: Request, wanted: Sequence[Cell]) -> None:
    """Seconds and megabytes of two precisions would stand in one table as if they could be compared."""
    if request.precision is None:
        return
    if request.precision not in PRECISIONS:
        raise ValueError(f"--precision: expected {' or '.join(PRECISIONS)}, got {request.precision!r}")
    measured = next((cell.data.key for cell in wanted if cell.data.mode == "cost" or cell.data.alone), None)
    if measured is not None and request.precision != "float32":
        raise ValueError(
            f"--precision {request.precision}: {measured} measures time or memory, in float32 for all systems alike; "
            f"leave --precision out"
        )


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """For ``--json``."""
    failed = [{"data": d, "system": s, "preset": p, "reason": reason} for (d, s, p), reason in outcome.failed.items()]
    return {
        "made": outcome.made,
        "there": outcome.there,
        "taken": outcome.taken,
        "left": outcome.left,
        "failed": failed,
        "errors": outcome.errors,
        "stopped": outcome.stopped,
    }
