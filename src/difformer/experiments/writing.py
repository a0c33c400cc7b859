"""From ``runs.jsonl`` to ``table.md``, ``table.tex``, ``figure.svg`` and ``figure.png``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from difformer.experiments.choosing import read_presets
from difformer.experiments.drawing import save
from difformer.experiments.latex import latex
from difformer.experiments.ledger import Ledger
from difformer.experiments.plan import Experiment
from difformer.experiments.summary import Summary, summarise
from difformer.experiments.tables import markdown
from difformer.files import write_whole


def read_summary(experiment: Experiment, folder: Path, preset_folder: Path | None = None) -> Summary:
    """What a folder holds; quick where its runs are."""
    lines = Ledger(folder).read()
    quick = any(line.get("quick") for line in lines)
    return summarise(experiment, lines, read_presets(preset_folder), quick=quick)


def write_files(summary: Summary, folder: Path) -> list[Path]:
    """Tables and figure of a summary, each file whole or not at all."""
    written = []
    for name, content in (("table.md", markdown(summary)), ("table.tex", latex(summary))):
        write_whole(folder / name, content.encode())
        written.append(folder / name)
    module, _, function = summary.experiment.figure.partition(":")
    figure = getattr(import_module(module), function)(summary, folder)
    return [*written, *save(figure, folder)]
