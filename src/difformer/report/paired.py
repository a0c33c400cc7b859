r"""Paired tests: is one system better than another over the same seeds and splits?

Two runs that share data, splits and seeds are compared seed by seed: with differences :math:`d_s` over n pairs, mean
:math:`\bar d` and sample variance :math:`s^2`,

.. math::
    t = \bar d \Big/ \sqrt{s^2 / n}, \qquad
    t' = \bar d \Big/ \sqrt{s^2 \left(\tfrac1n + \tfrac{n_{test}}{n_{train}}\right)},

both with n - 1 degrees of freedom. t takes the pairs for independent. Random splits of one data set overlap, so they
are not; t' is Nadeau and Bengio's correction for that (2003), used where there are several splits, and careful where
few instances are trained on. Wilcoxon's signed ranks assume no distribution. With more than two runs the p-values are
Holm's: the k-th smallest of m is multiplied by m - k + 1, and none is less than one before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from difformer.training.record import spread

ALPHA = 0.05
LEAST_FOR_RANKS = 6  # with fewer pairs no ranks can be significant

Scores = Mapping[tuple[int, str], float]


@dataclass(frozen=True)
class Paired:
    """A run against the first one.

    Args:
        name: Of the run.
        pairs: Seeds that both have a score of.
        difference: Mean of its metric less that of the first run.
        deviation: Sample deviation of the differences.
        interval: 95 % interval of the mean difference, from the corrected deviation where there are several splits.
        t_test: p of the paired t-test; None with fewer than two pairs.
        corrected: p with Nadeau and Bengio's correction; None where all pairs share one split.
        ranks: p of Wilcoxon's test; None with fewer than six pairs.
        adjusted: p that decides, after Holm: the corrected one where there is one, otherwise the t-test's.
        wins: Pairs in which it is better than the first run.
        verdict: In words.
    """

    name: str
    pairs: int
    difference: float
    deviation: float
    interval: tuple[float, float] | None
    t_test: float | None
    corrected: float | None
    ranks: float | None
    adjusted: float | None
    wins: int
    verdict: str


def paired(
    first: Scores, other: Scores, *, name: str, test_to_train: float | None = None, higher: bool = True
) -> Paired:
    """Compares scores by (seed, split) with those of the first; no verdict yet, see `judge`.

    Args:
        first: Scores of what is compared with.
        other: Scores of what is asked about.
        name: What `other` is called.
        test_to_train: n_test / n_train, for the correction; None leaves it out.
        higher: Whether a larger score is better.

    Raises:
        ValueError: If they share no pair.
    """
    from scipy import stats

    shared = [key for key in first if key in other]
    if not shared:
        raise ValueError(f"{name} shares no seed on the same split with the first, so nothing can be paired")
    # A score that is not there, as of an empty part, makes no pair.
    shared = [key for key in shared if math.isfinite(first[key]) and math.isfinite(other[key])]
    if not shared:
        return Paired(name, 0, math.nan, math.nan, None, None, None, None, None, 0, "")
    d = np.array([other[key] - first[key] for key in shared])
    n, mean, s = len(d), float(d.mean()), spread(d.tolist())
    wins = int(((d > 0) if higher else (d < 0)).sum())
    several = len({split for _, split in shared}) > 1
    plain = corrected = ranks = interval = None
    if n > 1:
        factor = 1 / n + (test_to_train if several and test_to_train is not None else 0.0)
        plain = _t(mean, s * math.sqrt(1 / n), n)
        corrected = _t(mean, s * math.sqrt(factor), n) if several and test_to_train is not None else None
        reach = float(stats.t.ppf(0.975, n - 1)) * s * math.sqrt(factor)
        interval = (mean - reach, mean + reach)
    if n >= LEAST_FOR_RANKS and bool(d.any()):
        ranks = float(stats.wilcoxon(d).pvalue)
    return Paired(name, n, mean, s, interval, plain, corrected, ranks, None, wins, "")


def judge(found: Sequence[Paired], higher: bool, *, against: str) -> tuple[Paired, ...]:
    """The same comparisons with p-values after Holm, and a verdict each.

    Args:
        found: Comparisons with one and the same first side.
        higher: Whether a larger score is better.
        against: What the first side is called in verdicts.
    """
    adjusted = holm([one.t_test if one.corrected is None else one.corrected for one in found])
    return tuple(_judged(one, p, higher, against) for one, p in zip(found, adjusted, strict=True))


def _t(mean: float, deviation: float, n: int) -> float:
    """Two-sided p of mean / deviation under Student's t with n - 1 degrees of freedom."""
    from scipy import stats

    if deviation == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean) / deviation, n - 1))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values after Holm's step-down correction; None stays None and does not count."""
    known = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = largest
    return adjusted


def _judged(one: Paired, p: float | None, higher: bool, against: str) -> Paired:
    better = (one.difference > 0) == higher
    if not one.pairs:
        said = "no pair has a score on both sides, so nothing is compared"
    elif p is None:
        said = "one pair: no test is possible, train more seeds"
    elif p < ALPHA:
        said = f"{'better' if better else 'worse'} than {against} (p = {p:.2g})"
    else:
        said = f"not shown to differ from {against} (p = {p:.2g})"
    return replace(one, adjusted=p, verdict=said)
