"""Default estimators on ordinary tables, beside scikit-learn's defaults on standardised columns: time and quality.

    taskset -c 0,1 python -m benchmarks.default_tables       # on two cores

* 3,000 rows × 30 columns, 150 labels: seconds of a default fit (wanted: under 10).
* 20,000 rows × 50 columns, all labelled: seconds (wanted: under 60), and accuracy on 5,000 further rows against
  `MLPClassifier` (wanted: at most one point below).
* two targets at once on three tables: R² of each on held-out rows against `Ridge` (wanted: no worse on both).

Seconds are those of the clock and, in brackets, those of the processor, which other programs disturb less. Compare the
figures of one run with each other.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from sklearn.datasets import load_diabetes, make_classification, make_friedman1, make_regression
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, r2_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor

Array = np.ndarray[Any, Any]


class Watch:
    """Seconds since it was made, of the clock and of the processor."""

    def __init__(self) -> None:
        self.clock, self.processor = time.perf_counter(), time.process_time()

    def __str__(self) -> str:
        return f"{time.perf_counter() - self.clock:.1f} s ({time.process_time() - self.processor:.1f} s)"


def few_labels() -> None:
    x, y = make_classification(3000, 30, n_informative=8, n_classes=3, random_state=0)
    known = np.random.RandomState(0).rand(3000) < 0.05
    watch = Watch()
    model = DIFFormerClassifier(random_state=0).fit(x, np.where(known, y, -1))
    seconds = str(watch)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x[known], y[known])
    for name, chances in (
        ("DIFFormerClassifier", model.label_distributions_),
        ("LogisticRegression", linear.predict_proba(x)),
    ):
        hidden = chances[~known]
        accuracy = 100 * (hidden.argmax(1) == y[~known]).mean()
        print(f"3,000 rows, {known.sum()} labels: {name} {accuracy:.1f} %, log loss {log_loss(y[~known], hidden):.3f}")
    print(f"3,000 rows, {known.sum()} labels: {seconds}, wanted < 10 s", flush=True)


def all_labels(seeds: int) -> None:
    for seed in range(seeds):
        x, y = make_classification(25_000, 50, n_informative=12, n_classes=4, random_state=seed)
        new, fitted = slice(20_000, None), slice(0, 20_000)
        watch = Watch()
        ours = DIFFormerClassifier(random_state=0).fit(x[fitted], y[fitted])
        seconds, watch = str(watch), Watch()
        theirs = make_pipeline(StandardScaler(), MLPClassifier(random_state=0)).fit(x[fitted], y[fitted])
        other = str(watch)
        scores = [100 * model.score(x[new], y[new]) for model in (ours, theirs)]
        print(
            f"20,000 × 50, table {seed}: DIFFormerClassifier {scores[0]:.1f} % in {seconds}, wanted < 60 s; "
            f"MLPClassifier {scores[1]:.1f} % in {other}",
            flush=True,
        )


def two_targets(seeds: int) -> None:
    x, y = load_diabetes(return_X_y=True)
    flat, flat_targets = make_regression(500, 10, n_targets=2, noise=20, random_state=0)
    bent, bent_target = make_friedman1(500, noise=1.0, random_state=0)
    second = 3 * bent[:, 0] + bent[:, 1] + 0.3 * np.random.RandomState(0).randn(500)
    tables = {
        "diabetes (progression, body mass)": (np.delete(x, 2, 1), np.c_[y, x[:, 2]]),
        "linear": (flat, flat_targets),
        "Friedman 1 and a line": (bent, np.c_[bent_target, second]),
    }
    for name, (features, targets) in tables.items():
        found: dict[str, list[Array]] = {"DIFFormerRegressor": [], "Ridge": []}
        for seed in range(seeds):
            order = np.random.RandomState(seed).permutation(len(features))
            fitted, new = order[: len(order) // 2], order[len(order) // 2 :]
            models = (DIFFormerRegressor(random_state=seed), make_pipeline(StandardScaler(), Ridge()))
            for of, model in zip(found.values(), models, strict=True):
                predicted = model.fit(features[fitted], targets[fitted]).predict(features[new])
                of.append(r2_score(targets[new], predicted, multioutput="raw_values"))
        words = ", ".join(f"{method} {np.round(np.mean(of, 0), 3).tolist()}" for method, of in found.items())
        print(f"{name}: R² of the two targets, mean over {seeds} splits: {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3, help="tables of 20,000 rows, and splits of the regressions")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")  # of the perceptron, which does not converge
    few_labels()
    all_labels(given.seeds)
    two_targets(given.seeds)


if __name__ == "__main__":
    main()
