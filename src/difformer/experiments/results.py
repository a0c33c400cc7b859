"""``docs/RESULTS.md``, written from the files of a folder of results and from nothing else.

python -m difformer.experiments.results results > docs/RESULTS.md
difformer reproduce --out results --results docs/RESULTS.md
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from difformer.experiments.catalogue import experiments
from difformer.experiments.goals import REACHED, UNJUDGED, judged
from difformer.experiments.sharing import TAKEN_FROM
from difformer.experiments.summary import NOT_YET, Summary
from difformer.experiments.tables import markdown
from difformer.experiments.writing import read_summary
from difformer.files import write_whole

_OPENING = """# Results

Written by `difformer reproduce --results` from files of runs: no number was typed, remarks on goals that were not
reached were. Every run is a line of `NAME/runs.jsonl` with its settings, split, seed, scores, cost and device, and
every table can be made again with `difformer reproduce NAME`. The epoch of every run and the settings of every tuned
row were chosen on validation data; test data only judge.

"Ours" are the encoders DIFFormer-s and DIFFormer-a; a variant is one of them with a part exchanged. Seconds and
megabytes beside scores are those of a machine that may have done other work at the same time, and a dash stands where
they were not measured for themselves: what things cost is compared under cost and in the last sections of large. Two
rows are compared by two tests. The plain paired t-test takes splits for independent, and is what goals ask for; the one
corrected for splits that overlap decides whether a difference is called significant. With 20 labels a class and a
thousand test nodes hardly any difference passes it."""


def page(folder: Path, figures: str = "../results") -> str:
    """The whole page, from whatever was run.

    Args:
        folder: Of results.
        figures: The same folder as seen from where the page will stand.
    """
    found = [read_summary(one, folder / one.name) for one in experiments()]
    parts = [_OPENING, "## What was run", _overview(found), *_goals(found)]
    for summary in found:
        if summary.made and not summary.quick:
            parts.append(markdown(summary, level=2, brief=True).rstrip())
            name = summary.experiment.name
            if (folder / name / "figure.png").is_file():
                parts.append(f"![{summary.experiment.title}]({figures}/{name}/figure.png)")
    return "\n\n".join(parts) + "\n"


def _overview(found: list[Summary]) -> str:
    lines = ["| name | what | runs | state | training, hours | devices |", "|---|---|---|---|---|---|"]
    for summary in found:
        runs = [] if summary.quick else list(summary.lines)
        devices = " / ".join(dict.fromkeys(str(line["device"]) for line in runs))
        # What was made for another table is counted there.
        own = [float(line["seconds"]) for line in runs if TAKEN_FROM not in line]
        hours = f"{sum(own) / 3600:.2f}" if runs else "–"
        lines.append(
            f"| {summary.experiment.name} | {summary.experiment.about} | {'–' if summary.quick else _runs(summary)} | "
            f"{_state(summary)} | {hours} | {devices or '–'} |"
        )
    return "\n".join(lines)


def _goals(found: list[Summary]) -> list[str]:
    """Every goal in one table, the longer story under its section; nothing where none was run."""
    every = [
        (summary.experiment.name, section.data.label, goal)
        for summary in found
        if not summary.quick
        for section in summary.sections
        for goal in judged(summary.experiment.name, section)
        if goal.state != UNJUDGED
    ]
    if not every:
        return []
    reached = sum(goal.state == REACHED for _, _, goal in every)
    rows = [f"| {name} | {label} | {goal.what} | {goal.state}{goal.by} |" for name, label, goal in every]
    head = ["| table | data | goal | |", "|---|---|---|---|"]
    return [
        "## Goals",
        f"{reached} of {len(every)} are reached; what was tried for the others stands under their tables.",
        "\n".join([*head, *rows]),
    ]


def _runs(summary: Summary) -> str:
    return summary.counted.replace(" runs", "", 1)


def _state(summary: Summary) -> str:
    """Whether a table was run, in part or not at all, and what is missing."""
    if summary.quick:
        return "**not run** (only the quick form, which measures nothing)"
    if not summary.made:
        return "**not run**"
    # More seeds of one row do not stand for those of another.
    planned = [row for section in summary.sections for row in section.rows if row.planned]
    if all(len(row.lines) >= row.data.seeds for row in planned):
        return "complete"
    absent = [section.data.label for section in summary.sections if section.reason]
    untouched = [s.data.label for s in summary.sections if not s.lines and not s.reason]
    said = ["**partial**"]
    rows = [row for s in summary.sections if s.lines for row in s.rows if row.planned]
    rows = [row for row in rows if len(row.lines) < row.data.seeds]
    refused = [row for row in rows if row.reason not in ("", NOT_YET)]
    if refused:
        said.append(f"{len(refused)} rows could not be run: the cells say why")
    if left := sum(row.data.seeds - len(row.lines) for row in rows if row not in refused):
        said.append(f"{left} runs of other rows not made yet")
    if absent:
        said.append(f"could not be run: {'; '.join(absent)}")
    if untouched:
        said.append(f"not begun: {'; '.join(untouched)}")
    return ", ".join(said)


def write_results(folder: Path, path: Path) -> None:
    """Writes the page, whole or not at all.

    Raises:
        FileNotFoundError: If there is no folder of results.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"--out: there is no folder {folder}; run `difformer reproduce NAME` first")
    figures = Path(os.path.relpath(folder.resolve(), path.resolve().parent)).as_posix()
    write_whole(path, page(folder, figures).encode())


def main(arguments: list[str] | None = None) -> None:
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1 or not Path(given[0]).is_dir():
        raise SystemExit("usage: python -m difformer.experiments.results FOLDER > docs/RESULTS.md")
    sys.stdout.write(page(Path(given[0])))


if __name__ == "__main__":
    main()
