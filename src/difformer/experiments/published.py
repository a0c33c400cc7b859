"""What others measured: the paper's figures and those of the authors' public code, from ``published.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from difformer.experiments.plan import Data
from difformer.training import toml

FIGURES = Path(__file__).with_name("published.toml")
PAPER, AUTHORS, MEMORY = "paper", "authors-code", "paper-memory"


@dataclass(frozen=True)
class Figure:
    """A published figure in the units of its source and with its digits; `text` where it prints no number."""

    mean: float | None = None
    deviation: float | None = None
    text: str = ""
    digits: int = 1


@cache
def load_figures() -> dict[str, Any]:
    """Everything in the file."""
    return toml.loads(FIGURES.read_text(encoding="utf-8"))


def figure(experiment: str, source: str, data: Data, system: str) -> Figure | None:
    """A published figure; None where there is none.

    Args:
        experiment: Its name.
        source: ``"paper"``, ``"authors-code"`` or ``"paper-memory"``.
        data: The section: by its key, or for the paper by what it names as published.
        system: Key of the system.
    """
    tables = load_figures().get(experiment, {}).get(source, {})
    keys = (data.key,) if source == AUTHORS else (data.key, data.published)
    table = next((tables[key] for key in keys if system in tables.get(key, {})), None)
    if table is None:
        return None
    found = table[system]
    if isinstance(found, str):
        return Figure(text=found)
    # 83.0 is read as 83: a source prints all figures of one table with as many digits.
    printed = [value for entry in table.values() if not isinstance(entry, str) for value in entry]
    digits = max(len(repr(value).partition(".")[2]) if isinstance(value, float) else 0 for value in printed)
    return Figure(float(found[0]), float(found[1]) if len(found) > 1 else None, digits=digits)


def source_of(experiment: str, source: str) -> str:
    """Where the figures come from, in a sentence; empty where there are none."""
    return str(load_figures().get(experiment, {}).get(f"{source}-source", ""))
