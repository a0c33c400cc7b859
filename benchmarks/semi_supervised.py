"""Few labels, no tuning: `DIFFormerClassifier` as it comes out of the box against the usual suspects as they do.

    python benchmarks/semi_supervised.py                 # DIFFORMER_DATA holds 20news, else it is left out
    python benchmarks/semi_supervised.py --splits 3 --sets iris wine --rates 0.1

Six data sets (handwritten digits, wine, breast cancer, iris, ten of the 20 newsgroups, two moons), 1 %, 5 % and 10 % of
the rows labelled, at least one a class, the rest drawn at random; accuracy on all other rows, mean over splits. Every
rival has scikit-learn's default options and sees the rows as they are and, a second time, standardised; GCN has two
layers of 64 channels, dropout ½, weight decay 5e-4 and 200 epochs, over the symmetric graph of 5 or 10 nearest rows.
Transductive methods see the features of all rows, the others those of the labelled ones.

The defaults of the classifier were chosen on splits 1000 to 1005; reported are splits from 0 on.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import sparse
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from difformer.data import Split, Task, knn_graph
from difformer.estimators import DIFFormerClassifier
from difformer.training import TrainConfig, train_one

Array = np.ndarray[Any, Any]
RATES = (0.01, 0.05, 0.1)
RESULTS = Path(__file__).parent / "semi_supervised.json"


def newsgroups() -> tuple[Any, Array]:
    """Ten of the 20 newsgroups: 9,607 texts by 236 words, TF-IDF."""
    folder = os.environ.get("DIFFORMER_DATA")
    path = Path(folder or ".") / "20news" / "20news10_features.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: set DIFFORMER_DATA to the folder that holds 20news/20news10_features.npz")
    with np.load(path) as stored:
        x = sparse.csr_array(
            (stored["tfidf_data"], stored["indices"], stored["indptr"]), shape=tuple(int(n) for n in stored["shape"])
        )
        return x, stored["y"]


SETS: dict[str, Callable[[], tuple[Any, Array]]] = {
    "digits": lambda: datasets.load_digits(return_X_y=True),
    "wine": lambda: datasets.load_wine(return_X_y=True),
    "breast-cancer": lambda: datasets.load_breast_cancer(return_X_y=True),
    "iris": lambda: datasets.load_iris(return_X_y=True),
    "two-moons": lambda: datasets.make_moons(1000, noise=0.1, random_state=0),
    "20news": newsgroups,
}


def some_labels(y: Array, rate: float, seed: int) -> Array:
    """Labels of a share of the rows, one of each class at least; -1 elsewhere."""
    rng = np.random.RandomState(seed)
    classes = np.unique(y)
    first = [rng.choice(np.flatnonzero(y == label)) for label in classes]
    more = max(len(classes), round(rate * len(y))) - len(classes)
    others = rng.permutation(np.setdiff1d(np.arange(len(y)), first))[:more]
    chosen = np.concatenate([first, others]).astype(int)
    partly = np.full(len(y), -1)
    partly[chosen] = y[chosen]
    return partly


def inductive(make: Callable[[int], Any], *, dense: bool = False) -> Callable[..., Array]:
    """Fits the labelled rows, predicts all."""

    def run(x: Any, partly: Array, seed: int) -> Array:
        if dense and sparse.issparse(x):
            x = x.toarray()
        known = partly >= 0
        return make(int(known.sum())).fit(x[known], partly[known]).predict(x)

    return run


def transductive(make: Callable[[], Any], *, dense: bool = False) -> Callable[..., Array]:
    """Fits all rows, -1 where unlabelled."""

    def run(x: Any, partly: Array, seed: int) -> Array:
        x = x.toarray() if dense and sparse.issparse(x) else x
        model = make().fit(x, partly)
        return (
            model.transduction_
            if hasattr(model, "transduction_") and len(model.transduction_) == len(partly)
            else (model.predict(x))
        )

    return run


def gcn(neighbours: int) -> Callable[..., Array]:
    """A graph convolutional network over the symmetric graph of nearest rows, trained by the package's own loop."""

    def run(x: Any, partly: Array, seed: int) -> Array:
        metric = "cosine" if sparse.issparse(x) else "euclidean"
        features = torch.tensor(x.toarray() if sparse.issparse(x) else np.asarray(x), dtype=torch.float32)
        nobody = torch.empty(0, dtype=torch.long)
        split = Split("labelled", torch.from_numpy(np.flatnonzero(partly >= 0)), nobody, nobody)
        task = Task(
            name="rows", kind="nodes", problem="multiclass", metric="accuracy", protocol="", x=features,
            y=torch.from_numpy(partly.astype(np.int64)), splits=(split,), num_outputs=int(partly.max()) + 1,
            edge_index=knn_graph(features, neighbours, metric=metric, symmetric=True),
        )  # fmt: skip
        config = TrainConfig(
            model="gcn", options={"dropout": 0.5}, epochs=200, learning_rate=0.01, weight_decay=5e-4, eval_every=200
        )
        return train_one(task, 0, config, seed, "cpu").outputs.argmax(1).numpy()

    return run


def self_training(x: Any, partly: Array, seed: int) -> Array:
    return SelfTrainingClassifier(LogisticRegression(max_iter=1000)).fit(x, partly).predict(x)


RIVALS: dict[str, Callable[..., Array]] = {
    "LabelSpreading kNN": transductive(lambda: LabelSpreading(kernel="knn")),
    "LabelSpreading RBF": transductive(lambda: LabelSpreading(), dense=True),
    "SelfTraining LR": self_training,
    "MLPClassifier": inductive(lambda count: MLPClassifier(max_iter=500, random_state=0)),
    "kNN": inductive(lambda count: KNeighborsClassifier(min(5, count))),
    "HistGradientBoosting": inductive(lambda count: HistGradientBoostingClassifier(random_state=0), dense=True),
    "GCN, 5 nearest": gcn(5),
    "GCN, 10 nearest": gcn(10),
}


def ours(**options: Any) -> Callable[..., Array]:
    def run(x: Any, partly: Array, seed: int) -> Array:
        return DIFFormerClassifier(random_state=seed, **options).fit(x, partly).transduction_

    return run


OURS: dict[str, Callable[..., Array]] = {
    "DIFFormerClassifier": ours(),
    "DIFFormerClassifier, no graph": ours(graph=None),
}


def measure(names: list[str], rates: list[float], splits: range, methods: dict[str, Any]) -> dict[str, Any]:
    """Accuracies ``{method: {"set rate": [one a split]}}``, printed as they come."""
    found: dict[str, Any] = {}
    for name in names:
        x, y = SETS[name]()
        variants = {"": x} if sparse.issparse(x) else {"": x, ", standardised": StandardScaler().fit_transform(x)}
        for rate in rates:
            for method, run in methods.items():
                own = method in OURS
                for variant, rows in ({"": x} if own else variants).items():
                    started = time.perf_counter()
                    each = []
                    for seed in splits:
                        partly = some_labels(y, rate, seed)
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore")  # of rivals that do not converge, or see a class once
                            predicted = run(rows, partly, seed)
                        each.append(float((predicted == y)[partly < 0].mean()))
                    # A sparse table has one variant; it counts for both.
                    for label in [variant] if own or len(variants) > 1 else ["", ", standardised"]:
                        found.setdefault(method + label, {})[f"{name} {rate:.0%}"] = each
                    print(
                        f"{name:14s} {rate:4.0%} {method + variant:36s} {100 * np.mean(each):5.1f} ± "
                        f"{100 * np.std(each):4.1f}  {time.perf_counter() - started:6.1f} s",
                        flush=True,
                    )
    return found


def show(found: dict[str, Any]) -> None:
    """One table, best of every column marked, and who wins where."""
    columns = list(next(iter(found.values())))
    table = Table(title="Accuracy in %, mean over splits; * best of its column")
    table.add_column("method")
    for column in [*columns, "mean"]:
        table.add_column(column, justify="right")
    means = {method: [100 * np.mean(cells[column]) for column in columns] for method, cells in found.items()}
    best = [max(values[i] for values in means.values()) for i in range(len(columns))]
    for method, values in sorted(means.items(), key=lambda item: -np.mean(item[1])):
        cells = [f"{v:.1f}{'*' if v >= top - 0.05 else ''}" for v, top in zip(values, best, strict=True)]
        table.add_row(method, *cells, f"{np.mean(values):.2f}")
    Console(width=40 + 12 * (len(columns) + 1)).print(table)
    own = means["DIFFormerClassifier"]
    rivals = {method: values for method, values in means.items() if method not in OURS}
    first = max(rivals, key=lambda method: float(np.mean(rivals[method])))
    lost = [c for c, mine, theirs in zip(columns, own, rivals[first], strict=True) if mine < theirs]
    print(f"mean {np.mean(own):.2f} against {np.mean(rivals[first]):.2f} of the best single rival, {first}")
    print(f"lost to it on: {', '.join(lost) or 'nothing'}")
    beaten = [
        f"{c} ({max(rivals, key=lambda m: rivals[m][i])} {max(v[i] for v in rivals.values()):.1f}, here {own[i]:.1f})"
        for i, c in enumerate(columns)
        if own[i] < max(values[i] for values in rivals.values())
    ]
    print(f"some rival is better on: {'; '.join(beaten) or 'nothing'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=None)
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--ours-only", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    names = given.sets or [name for name in SETS if name != "20news" or os.environ.get("DIFFORMER_DATA")]
    splits = range(given.first, given.first + given.splits)
    found = measure(names, given.rates, splits, OURS if given.ours_only else {**OURS, **RIVALS})
    show(found)
    given.out.write_text(json.dumps({"splits": list(splits), "accuracy": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
