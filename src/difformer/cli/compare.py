"""``difformer compare``: runs side by side, with a paired test."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from difformer import report
from difformer.cli.command import argument, command
from difformer.cli.output import PARTS, Output, clock_time, mean_and_deviation, shown


@command("difformer compare runs/first runs/second")
def compare(
    output: Output, runs: list[Path] = argument("Two or more run folders of the same task.", ..., metavar="RUN")
) -> None:
    """Compare runs, with a paired test.

    Shows metrics, the settings that differ, and a test of each run against the first. Pairs are runs of the same seed
    on the same split. Where there are several splits the test is corrected for their overlap (Nadeau and Bengio), and
    for the number of comparisons (Holm). --json adds the uncorrected test.
    """
    found = report.compare_runs(runs)
    sides = [{**asdict(side), "values": [[*key, value] for key, value in side.values.items()]} for side in found.sides]
    output.json({**asdict(found), "sides": sides})
    spread = "; mean ± standard deviation" if any(len(side.values) > 1 for side in found.sides) else ""
    output.say(f"{found.metric}, {'higher' if found.higher_is_better else 'lower'} is better{spread}")
    rows: list[list[object]] = []
    for side in found.sides:
        means = [mean_and_deviation(*side.means[part], len(side.values)) for part in PARTS]
        rows.append([side.name, side.model, len(side.values), *means, clock_time(side.seconds)])
    output.table(["run", "model", "seeds", *PARTS, "time per seed"], rows)
    rows = []
    for one in found.against_first:
        difference = mean_and_deviation(one.difference, one.deviation, one.pairs, "+")
        interval = "–" if one.interval is None else "{:+.4f} … {:+.4f}".format(*one.interval)
        p = "–" if one.adjusted is None else f"{one.adjusted:.3g}"
        rows.append([one.name, one.pairs, difference, interval, f"{one.wins}/{one.pairs}", p, one.verdict])
    headings = ["against the first", "pairs", "difference", "95 % interval", "better in", "p", "verdict"]
    output.table(headings, rows)
    if found.settings:
        output.say("settings that differ:")
        differing = [[key, *map(shown, values)] for key, values in found.settings.items()]
        output.table(["setting", *(side.name for side in found.sides)], differing)
    for note in found.notes:
        output.say(f"note: {note}")
