"""Runs side by side, with the paired tests of `difformer.report.paired`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data import load_splits
from difformer.files import RunFolderError
from difformer.report.paired import Paired, judge, paired
from difformer.training.run_folder import RunFolder

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Side:
    """One run of a comparison.

    Args:
        path: Its folder.
        name: What tables call it.
        model: Its model.
        values: Test metric by (seed, split).
        means: Mean and sample deviation on every part.
        seconds: Training time of a seed.
    """

    path: Path
    name: str
    model: str
    values: dict[tuple[int, str], float]
    means: dict[str, tuple[float, float]]
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Args:
        metric: What is compared.
        higher_is_better: Whether a larger one is better.
        sides: The runs, in the order given.
        against_first: One entry for every run but the first.
        settings: Settings that differ, by name, one value a run.
        notes: What a reader should know, one sentence each.
    """

    metric: str
    higher_is_better: bool
    sides: tuple[Side, ...]
    against_first: tuple[Paired, ...]
    settings: dict[str, tuple[Any, ...]]
    notes: tuple[str, ...]


def compare_runs(runs: Sequence[RunFolder | str | Path]) -> Comparison:
    """Compares runs on the same task, each with the first.

    Raises:
        ValueError: If there are fewer than two, or they are of different tasks or metrics, or share no seed and split.
    """
    if len(runs) < 2:
        raise ValueError(f"a comparison needs at least two runs, got {len(runs)}")
    folders = [run if isinstance(run, RunFolder) else RunFolder.open(run) for run in runs]
    first = folders[0]
    summaries = [folder.summary() for folder in folders]
    for folder, summary in zip(folders[1:], summaries[1:], strict=True):
        for what, mine, theirs in (
            ("task", first.about["data"]["task"], folder.about["data"]["task"]),
            ("metric", summaries[0].metric, summary.metric),
        ):
            if mine != theirs:
                raise ValueError(
                    f"{folder.path} is of {what} {theirs!r}, {first.path} of {mine!r}: such runs cannot be paired"
                )
    names = _names(folders)
    sides = [_side(folder, name) for folder, name in zip(folders, names, strict=True)]
    ratio = _test_to_train(first)
    better = summaries[0].higher_is_better
    raw = [_pair(sides[0], side, ratio, better) for side in sides[1:]]
    against = judge(raw, better, against="the first run")
    return Comparison(summaries[0].metric, better, tuple(sides), against, _differing(folders), _notes(folders, against))


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """Names of folders where they differ, paths where they do not."""
    short = [folder.path.name for folder in folders]
    return short if len(set(short)) == len(short) else [str(folder.path) for folder in folders]


def _side(folder: RunFolder, name: str) -> Side:
    results = folder.results()
    values = {(int(r["seed"]), str(r["split"])): math.nan if r["test"] is None else float(r["test"]) for r in results}
    summary = folder.summary()
    means = {part: (summary.mean(part), summary.std(part)) for part in PARTS}
    return Side(folder.path, name, folder.config.model, values, means, float(np.mean([r["seconds"] for r in results])))


def _test_to_train(folder: RunFolder) -> float | None:
    """n_test / n_train of the first split on disk."""
    for result in folder.results():
        path = folder.of_seed(result["seed"]) / "split.npz"
        if path.is_file():
            train, _, test = load_splits(path)[0].sizes()
            return test / train if train else None
    raise RunFolderError(f"{folder.path} holds no split.npz; fit the run anew")


def _pair(first: Side, other: Side, ratio: float | None, higher: bool) -> Paired:
    if not first.values.keys() & other.values.keys():
        raise ValueError(f"{other.path} and {first.path} share no seed on the same split, so nothing can be paired")
    return paired(first.values, other.values, name=other.name, test_to_train=ratio, higher=higher)


def _differing(folders: Sequence[RunFolder]) -> dict[str, tuple[Any, ...]]:
    """Settings of model and training that are not the same in all runs; None where a model lacks one."""
    tables = [{"model": f.config.model, **f.about["model"].get("options", {}), **f.about["training"]} for f in folders]
    keys = dict.fromkeys(key for one in tables for key in one)
    values = {key: tuple(one.get(key) for one in tables) for key in keys}
    return {key: held for key, held in values.items() if any(v != held[0] for v in held[1:])}


def _notes(folders: Sequence[RunFolder], against: Sequence[Paired]) -> tuple[str, ...]:
    prints = {folder.about["data"]["fingerprint"] for folder in folders}
    notes = []
    if len(prints) > 1:
        notes.append(
            "the data of these runs are not the same (other preprocessing, graph or splits); pairs are those with the "
            "same seed and the same name of split"
        )
    if len({folder.about["data"]["protocol"] for folder in folders}) > 1:
        notes.append("the protocols differ: " + " | ".join(f.about["data"]["protocol"] for f in folders))
    splits = {str(r["split"]) for folder in folders for r in folder.results()}
    if len(splits) == 1 and any(len(folder.results()) > 1 for folder in folders):
        notes.append("all seeds share one split, so differences are over initialisations alone")
    if any(one.pairs < len(folders[0].results()) for one in against):
        notes.append("some seeds are in one run only and were left out of the tests")
    if len(against) > 1:
        notes.append("p-values are corrected for several comparisons (Holm)")
    return tuple(notes)
