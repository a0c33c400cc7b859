r"""Runs side by side, with paired tests: is one system better than another over the same seeds and splits?

Two runs that share data, splits and seeds are compared seed by seed: with differences :math:`d_s` over n pairs, mean
:math:`\bar d` and sample variance :math:`s^2`,

.. math::
    t = \bar d \Big/ \sqrt{s^2 / n}, \qquad
    t' = \bar d \Big/ \sqrt{s^2 \left(\tfrac1n + \tfrac{n_{test}}{n_{train}}\right)},

both with n - 1 degrees of freedom. t assumes independent pairs. Random splits of one data set overlap, so t' is used
where there are several splits (Nadeau and Bengio, 2003); it is cautious where few instances are trained on. If all
differences are equal there is no estimate of their noise, and p is that of the sign test, :math:`2^{1-n}`. With more
than two runs the p-values are corrected by Holm's method: the k-th smallest of m is multiplied by m - k + 1, and none
is smaller than the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data import load_splits
from difformer.errors import UserError
from difformer.files import RunFolderError
from difformer.report import ATTENTION_OFF
from difformer.report.gather import read_arrays
from difformer.training.record import Summary, spread
from difformer.training.run_folder import PREDICTIONS, SPLIT, RunFolder

ALPHA = 0.05

PARTS = ("train", "valid", "test")
Scores = Mapping[tuple[int, str], float]


@dataclass(frozen=True)
class Paired:
    """A run against the first one."""

    name: str  #: of the run
    pairs: int  #: number of seeds for which both have a score
    difference: float  #: mean of its metric minus that of the first run
    deviation: float  #: sample deviation of the differences
    interval: tuple[float, float] | None  #: 95 % interval of the mean difference, corrected if there are several splits
    t_test: float | None  #: p of the paired t-test; None with fewer than two pairs
    corrected: float | None  #: p with Nadeau and Bengio's correction; None if all pairs share one split
    adjusted: float | None  #: p that decides, `corrected` or else `t_test`, after Holm's correction
    wins: int  #: number of pairs in which it is better than the first run
    verdict: str  #: in words


def paired(
    first: Scores, other: Scores, *, name: str, test_to_train: float | None = None, higher: bool = True
) -> Paired:
    """Compares scores by (seed, split) with those of the `first`; no verdict yet, see `judge`.

    `test_to_train` is n_test / n_train, for the correction; None leaves it out.

    Raises:
        UserError: If they share no pair.
    """
    from scipy import stats

    shared = [key for key in first if key in other]
    if not shared:
        raise UserError(f"{name} shares no seed on the same split with the first, so nothing can be paired")
    # A missing score, as of an empty part, makes no pair.
    shared = [key for key in shared if math.isfinite(first[key]) and math.isfinite(other[key])]
    if not shared:
        return Paired(name, 0, math.nan, math.nan, None, None, None, None, 0, "")
    d = np.array([other[key] - first[key] for key in shared])
    n, mean, s = len(d), float(d.mean()), spread(d.tolist())
    ratio = test_to_train if len({split for _, split in shared}) > 1 else None
    deviations = [s * math.sqrt(1 / n), s * math.sqrt(1 / n + (ratio or 0.0))]  # plain, corrected

    def p_value(deviation: float) -> float:
        """Two-sided, under Student's t with n - 1 degrees of freedom."""
        if deviation:
            return float(2 * stats.t.sf(abs(mean) / deviation, n - 1))
        return 1.0 if mean == 0 else 2 * 0.5**n

    plain = corrected = interval = None
    if n > 1:
        plain, corrected = p_value(deviations[0]), None if ratio is None else p_value(deviations[1])
        reach = float(stats.t.ppf(0.975, n - 1)) * deviations[1]
        interval = (mean - reach, mean + reach)
    wins = int(((d > 0) if higher else (d < 0)).sum())
    return Paired(name, n, mean, s, interval, plain, corrected, None, wins, "")


def judge(found: Sequence[Paired], higher: bool, *, against: str) -> tuple[Paired, ...]:
    """Comparisons with the same first side, called `against`, with Holm's p-values and a verdict each."""
    judged = []
    adjusted = holm([one.t_test if one.corrected is None else one.corrected for one in found])
    for one, p in zip(found, adjusted, strict=True):
        if not one.pairs:
            said = "no pair has a score on both sides, so nothing is compared"
        elif p is None:
            said = "one pair: no test is possible, train more seeds"
        elif p < ALPHA:
            said = f"{'better' if (one.difference > 0) == higher else 'worse'} than {against} (p = {p:.2g})"
        else:
            said = f"not shown to differ from {against} (p = {p:.2g})"
        judged.append(replace(one, adjusted=p, verdict=said))
    return tuple(judged)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values after Holm's step-down correction; None stays None and does not count."""
    known = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        adjusted[place] = largest = max(largest, min(1.0, (len(known) - rank) * p))
    return adjusted


@dataclass(frozen=True)
class Side:
    """One run of a comparison."""

    path: Path  # its folder
    name: str  # what tables call it
    model: str  # its model
    values: dict[tuple[int, str], float]  # test metric by (seed, split)
    means: dict[str, tuple[float, float]]  # mean and sample deviation on every part
    seconds: float  # mean training time per seed


@dataclass(frozen=True)
class Comparison:
    """Runs side by side."""

    metric: str  #: what is compared
    higher_is_better: bool  #: whether a larger value is better
    sides: tuple[Side, ...]  #: the runs, in the order given
    against_first: tuple[Paired, ...]  #: one entry for every run but the first
    settings: dict[str, tuple[Any, ...]]  #: settings that differ, one value per run; ``–`` if its model has none
    notes: tuple[str, ...]  #: what a reader should know, one sentence each


def compare_runs(runs: Sequence[RunFolder | str | Path]) -> Comparison:
    """Compares runs on the same task, each with the first.

    Raises:
        UserError: If there are fewer than two, or they are of different tasks or metrics, or share no seed and split.
    """
    if len(runs) < 2:
        raise UserError(f"a comparison needs at least two runs, got {len(runs)}")
    folders = [run if isinstance(run, RunFolder) else RunFolder.open(run) for run in runs]
    summaries = [folder.summary() for folder in folders]
    metric, higher = summaries[0].metric, summaries[0].higher_is_better
    for folder, summary in zip(folders, summaries, strict=True):
        tasks = [one.about["data"]["task"] for one in (folder, folders[0])]
        for what, own, first in (("task", *tasks), ("metric", summary.metric, metric)):
            if own != first:
                both = f"{folder.path} is of {what} {own!r}, {folders[0].path} of {first!r}"
                raise UserError(f"{both}: such runs cannot be paired")
    names = [folder.path.name for folder in folders]
    names = names if len(set(names)) == len(names) else [str(folder.path) for folder in folders]
    sides = [_side(*three) for three in zip(folders, summaries, names, strict=True)]
    ratio = _test_to_train(folders[0])
    raw = [paired(sides[0].values, one.values, name=one.name, test_to_train=ratio, higher=higher) for one in sides[1:]]
    against = judge(raw, higher, against="the first run")
    return Comparison(metric, higher, tuple(sides), against, _differing(folders), _notes(folders, against))


def attention_off(folder: RunFolder) -> str:
    """The run against the one with attention off that was trained beside it, in a sentence; empty without one."""
    beside = folder.path.with_name(f"{folder.path.name}-{ATTENTION_OFF}")
    try:
        found = compare_runs([beside, folder])
    except (UserError, OSError):
        return ""
    off, on = (side.means["test"][0] for side in found.sides)
    verdict = found.against_first[0].verdict.replace("the first run", "attention off")
    return f"With attention off, test {found.metric} is {off:.4f}, with attention {on:.4f}: {verdict}."


def _side(folder: RunFolder, summary: Summary, name: str) -> Side:
    places = [(int(result["seed"]), str(result["split"])) for result in summary.results]
    values = dict(zip(places, summary.values(), strict=True))
    means = {part: (summary.mean(part), summary.std(part)) for part in PARTS}
    seconds = float(np.mean([result["seconds"] for result in summary.results]))
    return Side(folder.path, name, folder.config.model, values, means, seconds)


def _test_to_train(folder: RunFolder) -> float | None:
    """n_test / n_train of the first seed, from its predictions, whose hash is checked, or from ``split.npz``."""
    for result in folder.results():
        splits = folder.file(result["seed"], SPLIT)
        if folder.file(result["seed"], PREDICTIONS).is_file():
            (part,) = read_arrays(folder, result["seed"], "part")
            train, test = int((part == "train").sum()), int((part == "test").sum())
        elif splits.is_file():
            train, _, test = load_splits(splits)[0].sizes()
        else:
            continue
        return test / train if train else None
    raise RunFolderError(f"{folder.path} holds neither {PREDICTIONS} nor {SPLIT}; train the run again")


def _differing(folders: Sequence[RunFolder]) -> dict[str, tuple[Any, ...]]:
    """Settings of model and training that are not the same in all runs; a dash where a model lacks one."""
    tables = [{"model": f.config.model, **f.about["model"].get("options", {}), **f.about["training"]} for f in folders]
    keys = dict.fromkeys(key for one in tables for key in one)
    values = {key: tuple(one.get(key, "–") for one in tables) for key in keys}
    return {key: held for key, held in values.items() if any(v != held[0] for v in held[1:])}


def _notes(folders: Sequence[RunFolder], against: Sequence[Paired]) -> tuple[str, ...]:
    data = [folder.about["data"] for folder in folders]
    splits = {str(r["split"]) for folder in folders for r in folder.results()}
    seeds = [len(folder.results()) for folder in folders]
    notes = {
        "the data of these runs are not the same (other preprocessing, graph or splits); pairs are those with the same "
        "seed and the same name of split": len({one["fingerprint"] for one in data}) > 1,
        "the protocols differ: " + " | ".join(one["protocol"] for one in data): len({d["protocol"] for d in data}) > 1,
        "all seeds share one split, so differences are over initialisations only": len(splits) == 1 < max(seeds),
        "some seeds are in one run only and were left out of the tests": any(one.pairs < seeds[0] for one in against),
        "p-values are corrected for several comparisons (Holm)": len(against) > 1,
    }
    return tuple(note for note, holds in notes.items() if holds)
