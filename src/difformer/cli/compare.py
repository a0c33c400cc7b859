"""``difformer compare``: runs side by side, with a paired test."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from difformer.cli.command import command
from difformer.cli.options import Json, argument
from difformer.cli.output import Output, clock_time, mean_and_deviation, shown

PARTS = ("train", "valid", "test")


@command
def compare(
    runs: Annotated[list[Path], argument("Run folders of the same task.", metavar="RUN RUN…")],
    as_json: Json = False,
) -> None:
    """Compare runs, with a paired test.

    Shows metrics, the settings that differ, and a test of each run against the first. Pairs are runs of the same seed
    on the same split. Where there are several splits the test is corrected for their overlap (Nadeau and Bengio), and
    for the number of comparisons (Holm).
    """
    from difformer.report import compare_runs

    output = Output(as_json)
    found = compare_runs(runs)
    sides = [{**asdict(side), "values": [[*key, value] for key, value in side.values.items()]} for side in found.sides]
    output.json({**asdict(found), "sides": sides})
    spread = "; mean ± standard deviation" if any(len(side.values) > 1 for side in found.sides) else ""
    output.say(f"{found.metric}, {'higher' if found.higher_is_better else 'lower'} is better{spread}")
    rows = []
    for side in found.sides:
        means = [mean_and_deviation(*side.means[part], len(side.values)) for part in PARTS]
        rows.append([side.name, side.model, len(side.values), *means, clock_time(side.seconds)])
    output.table(["run", "model", "seeds", *PARTS, "time per seed"], rows)
    output.records(
        {
            "against the first": lambda one: one.name,
            "pairs": lambda one: one.pairs,
            "difference": lambda one: mean_and_deviation(one.difference, one.deviation, one.pairs, "+"),
            "95 % interval": lambda one: "–" if one.interval is None else "{:+.4f} … {:+.4f}".format(*one.interval),
            "better in": lambda one: f"{one.wins}/{one.pairs}",
            "p (t)": lambda one: _p(one.t_test),
            "p (overlap)": lambda one: _p(one.corrected),
            "p (ranks)": lambda one: _p(one.ranks),
            "verdict": lambda one: one.verdict,
        },
        found.against_first,
    )
    if found.settings:
        output.say("settings that differ:")
        differing = [[key, *map(shown, values)] for key, values in found.settings.items()]
        output.table(["setting", *(side.name for side in found.sides)], differing)
    for note in found.notes:
        output.say(f"note: {note}")


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
