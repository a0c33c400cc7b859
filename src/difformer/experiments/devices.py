"""Seconds and megabytes by device: medians of what can be compared, a letter where a section has several devices.

Of runs that were trained as one stack, time and memory are an equal share each; ``~`` marks both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from string import ascii_uppercase

from difformer.experiments.ledger import Line
from difformer.experiments.summary import Row, Section

SHARE = "~"


def low_precision(line: Line) -> str:
    """The precision of a run where that is not float32, else nothing."""
    precision = str(line.get("settings", {}).get("precision", "float32"))
    return "" if precision == "float32" else precision


def place(line: Line) -> str:
    """The device of a run, and its precision: what its time and memory depend on."""
    precision = low_precision(line)
    return f"{line['device']} in {precision}" if precision else str(line["device"])


def letters(section: Section) -> dict[str, str]:
    """A letter for each device of the section's runs; empty where all come from one."""
    found = dict.fromkeys(place(line) for line in section.lines)
    return dict(zip(found, ascii_uppercase, strict=False)) if len(found) > 1 else {}


def of_row(row: Row, known: Mapping[str, str]) -> str:
    """The letters of a row's devices."""
    return "/".join(known[device] for device in dict.fromkeys(place(line) for line in row.lines) if known)


def seconds(row: Row, known: Mapping[str, str]) -> str:
    """Seconds of a run, and on which device where there are several."""
    return _medians(row, known, lambda line: float(line["seconds"]), ".1f", always=True)


def megabytes(row: Row, known: Mapping[str, str]) -> str:
    """Peak of a run's memory; by device where the row itself has several."""
    return _medians(row, known, _megabytes, ",.0f", always=False)


def _megabytes(line: Line) -> float | None:
    return None if line["peak_memory"] is None else line["peak_memory"] / line.get("stacked", 1) / 1e6


def _medians(
    row: Row, known: Mapping[str, str], value: Callable[[Line], float | None], form: str, *, always: bool
) -> str:
    """The median of each device's runs: one during which the machine had other things to do must not decide."""
    said = []
    devices = dict.fromkeys(place(line) for line in row.lines)
    for device in devices:
        own = [line for line in row.lines if place(line) == device]
        values = [found for line in own if (found := value(line)) is not None]
        if not values:
            continue
        share = SHARE if any(line.get("stacked", 1) > 1 for line in own) else ""
        letter = f" {known[device]}" if known and (always or len(devices) > 1) else ""
        said.append(f"{share}{median(values):{form}}{letter}")
    return ", ".join(said) or "–"


def explained(section: Section) -> list[str]:
    """What the letters and the mark mean, where they stand."""
    known, said = letters(section), []
    if known:
        named = "; ".join(f"{letter} {device}" for device, letter in known.items())
        said.append(f"Seconds and megabytes of different devices cannot be compared with each other: {named}.")
    if any(line.get("stacked", 1) > 1 for line in section.lines):
        said.append(
            f"{SHARE} runs that were trained as one stack: an equal share of its time and memory each, not what one "
            f"run takes alone."
        )
    return said
