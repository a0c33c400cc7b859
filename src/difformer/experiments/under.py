"""Which rows a table shows, and what stands under them: marks, devices, runs of other tables, and what was not run.

A system has its rows as soon as one of its runs was made or refused; the others are one sentence, with what is
published of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from difformer.experiments.choosing import UNTUNED
from difformer.experiments.devices import explained, low_precision
from difformer.experiments.goals import judged
from difformer.experiments.published import Figure
from difformer.experiments.sharing import TAKEN_FROM
from difformer.experiments.shortfalls import behind
from difformer.experiments.summary import NOT_YET, Section
from difformer.experiments.verdicts import verdict

DAGGER = (
    "† untuned: it ran with one set of customary values, the same for all such rows, and nothing was chosen for it; "
    "tuned, it may do better."
)


def shown(section: Section) -> Section:
    """The section with the rows of systems that were run, or that could not be."""
    if not section.lines and section.reason:
        return replace(section, rows=())
    there = {row.system.key for row in section.rows if row.lines or row.reason not in ("", NOT_YET)}
    return replace(section, rows=tuple(row for row in section.rows if row.system.key in there))


def not_run(section: Section) -> str:
    """The systems without a row, each with its settings and what is published of it; empty where all have one."""
    there = {row.system.key for row in shown(section).rows}
    left = [row for row in section.rows if row.system.key not in there]
    said = []
    for key in dict.fromkeys(row.system.key for row in left):
        own = [row for row in left if row.system.key == key]
        figure = published(own[0].paper) if own[0].paper is not None else ""
        about = [", ".join(row.settings for row in own), *([f"published {figure}"] if figure else [])]
        said.append(f"{own[0].system.label} ({'; '.join(about)})")
    return f"Not run yet: {', '.join(said)}." if said else ""


def taken_over(experiment: str, section: Section) -> str:
    """How many runs were trained for which other table or row; empty where all were trained for this one."""
    origins = [line[TAKEN_FROM] for line in section.lines if TAKEN_FROM in line]
    named = ["another row" if origin == experiment else origin for origin in dict.fromkeys(origins)]
    return f"Trained for {', '.join(named)} and shown here too: {len(origins)} of these runs." if origins else ""


def mixed(section: Section) -> str:
    """Which runs were made in mixed precision; empty where none was."""
    rows = [(row, [line for line in row.lines if low_precision(line)]) for row in shown(section).rows]
    said = [f"{row.system.label} ({row.settings}), {len(low)} of {len(row.lines)}" for row, low in rows if low]
    return f"Made in mixed precision (bf16), all others in float32: {'; '.join(said)} runs." if said else ""


def unplanned(section: Section) -> str:
    """Which rows would not be run today; empty where all would."""
    rows = [row.label for row in section.rows if row.lines and not row.planned]
    return f"Run before the system was tuned, and no longer asked for: {', '.join(rows)}." if rows else ""


def versions(section: Section) -> str:
    """That runs were made of data of which not every bit is the same; empty where it is."""
    marks = Counter(str(line["fingerprint"]) for line in section.lines if "fingerprint" in line)
    if len(marks) < 2:
        return ""
    told = ", ".join(f"{mark[:8]} ({count} run{'' if count == 1 else 's'})" for mark, count in marks.most_common())
    return (
        f"Not all runs are of the same data to the bit; their fingerprints begin with {told}. The same seed and split "
        "may then give another result, as on another device."
    )


def published(found: Figure | None) -> str:
    """A published figure as its source prints it."""
    if found is None:
        return "–"
    if found.mean is None:
        return found.text
    given = [value for value in (found.mean, found.deviation) if value is not None]
    return " ± ".join(f"{value:.{found.digits}f}" for value in given)


def under(experiment: str, section: Section) -> list[str]:
    """Every sentence under a table, in order."""
    rows = shown(section).rows
    marks = [DAGGER] if any(row.preset == UNTUNED and row.values() for row in rows) else []
    remarks = [unplanned(section), mixed(section), versions(section), taken_over(experiment, section), not_run(section)]
    said = [*marks, *explained(section), *filter(None, remarks)]
    return [*said, *verdict(section), *behind(experiment, section), *map(str, judged(experiment, section))]
