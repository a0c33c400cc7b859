"""``difformer compare``: runs side by side, with a paired test."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from difformer.cli.command import command
from difformer.cli.description import mean_and_deviation
from difformer.cli.options import Json, argument
from difformer.cli.output import Output, shown
from difformer.cli.progress import clock_time

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
    output.table(
        ["run", "model", "seeds", *PARTS, "time per seed"],
        [
            [
                side.name,
                side.model,
                len(side.values),
                *(mean_and_deviation(*side.means[part], len(side.values)) for part in PARTS),
                clock_time(side.seconds),
            ]
            for side in found.sides
        ],
        right=["seeds", *PARTS, "time per seed"],
    )
    headings = [
        "against the first",
        "pairs",
        "difference",
        "95 % interval",
        "better in",
        "p (t)",
        "p (overlap)",
        "p (ranks)",
    ]
    output.table(
        [*headings, "verdict"],
        [
            [
                one.name,
                one.pairs,
                f"{one.difference:+.4f}" + (f" ± {one.deviation:.4f}" if one.pairs > 1 else ""),
                "–" if one.interval is None else f"{one.interval[0]:+.4f} … {one.interval[1]:+.4f}",
                f"{one.wins}/{one.pairs}",
                *("–" if p is None else f"{p:.3g}" for p in (one.t_test, one.corrected, one.ranks)),
                one.verdict,
            ]
            for one in found.against_first
        ],
        right=headings[1:],
    )
    if found.settings:
        output.say("settings that differ:")
        output.table(
            ["setting", *(side.name for side in found.sides)],
            [[key, *(shown(value) for value in values)] for key, values in found.settings.items()],
        )
    for note in found.notes:
        output.say(f"note: {note}")
