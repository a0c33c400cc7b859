"""Whether two rows were tuned with the same effort.

    budget  =  settings that competed × runs that each was averaged over × epochs of a run, less what patience spares

What is not known of a row is not compared, and is said where it decides.
"""

from __future__ import annotations

from difformer.experiments.choosing import UNTUNED
from difformer.experiments.summary import Row


def budgets(ours: Row, other: Row) -> str:
    """One sentence on how two rows were tuned; empty where it is not scores that are compared."""
    if ours.data.mode != "score":
        return ""
    untuned = [row.label for row in (ours, other) if row.preset == UNTUNED]
    if len(untuned) == 2:
        return "Neither was tuned."
    if untuned:
        return f"Not the same budget: {untuned[0]} was not tuned."
    if other.borrowed:
        return f"Not the same budget: {other.label} has the settings that were chosen for {other.system.base}."
    if other.system.baseline:
        return f"{other.system.label.capitalize()} has nothing to tune."
    unknown = [row.label for row in (ours, other) if row.trials is None]
    if len(unknown) == 2:
        return f"How many settings competed is known neither for {unknown[0]} nor for {unknown[1]}."
    if unknown:
        known = ours if other.trials is None else other
        return (
            f"{known.label} was tuned with {_whole(known)}; how many settings competed for {unknown[0]} is not known."
        )
    if ours.trials != other.trials:
        return f"Not the same budget: {_whole(ours)} against {_whole(other, short=True)}."
    # Runs are compared where they are known of both.
    told = ours.tuning_runs is not None and other.tuning_runs is not None
    mine, theirs = _each(ours, runs=told), _each(other, runs=told)
    both = f"Both tuned with {ours.trials} settings"
    if not mine or not theirs:
        return f"{both}."
    names = (ours.label, other.label) if ours.system == other.system else ("ours", other.system.label)
    if mine != theirs:
        return f"{both}, {names[0]} each {mine}, {names[1]} {theirs}: not quite the same budget."
    return f"{both}, each {mine}: the same budget." if told else f"{both}, each {mine}."


def budget(row: Row) -> tuple[int, int, int | None, int | None] | None:
    """What a row was tuned with: settings, runs, epochs and patience; None where that is not known, or not its own."""
    if row.trials is None or row.tuning_runs is None or row.preset == UNTUNED or row.borrowed:
        return None
    return row.trials, row.tuning_runs, *row.length


def _whole(row: Row, *, short: bool = False) -> str:
    """Settings, runs and epochs: "16 settings, each over 2 runs of up to 300 epochs"."""
    each = _each(row)
    return f"{row.trials}{'' if short else ' settings'}{', each ' + each if each else ''}"


def _each(row: Row, *, runs: bool = True) -> str:
    """What one setting was given; empty where nothing is known of it."""
    epochs, patience = row.length
    count = row.tuning_runs if runs else None
    over = "" if count is None else f"over {count} run{'' if count == 1 else 's'}"
    if epochs is None:
        return over
    waits = "" if patience is None else f" (patience {patience})"
    return f"{over} of up to {epochs} epochs{waits}" if over else f"with up to {epochs} epochs a run{waits}"
