"""Few labels, no tuning: `DIFFormerClassifier` as it comes out of the box against the usual suspects as they do.

    python -m benchmarks.semi_supervised                 # DIFFORMER_DATA holds 20news, else it is left out
    python -m benchmarks.semi_supervised --splits 3 --sets iris wine --rates 0.1 --out /tmp/some.json

Six data sets (handwritten digits, wine, breast cancer, iris, ten of the 20 newsgroups, two moons), 1 %, 5 % and 10 % of
the rows labelled, at least one a class, the rest drawn at random; accuracy on all other rows, mean over splits. Every
rival has scikit-learn's default options (but for enough iterations to converge) and sees the rows as they are and, a
second time, standardised; GCN has two layers of 64 channels, dropout ½, weight decay 5e-4 and 200 epochs, over the
symmetric graph of 5 or 10 nearest rows. Transductive methods see the features of all rows, the others those of the
labelled ones.

The defaults of the classifier were chosen on splits 1000 to 1005; reported are splits from 0 on. What is measured is
written to ``semi_supervised.json`` split by split, and a split that is there already is not measured again; from that
file comes the table in ``docs/estimators.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from scipy import sparse
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from benchmarks.semi_supervised_table import OURS, markdown, summary, write_into
from difformer.data import Split, Task, knn_graph
from difformer.estimators import DIFFormerClassifier
from difformer.files import atomic_write
from difformer.training import TrainConfig, train_one

Array = np.ndarray[Any, Any]
RATES = (0.01, 0.05, 0.1)
RESULTS = Path(__file__).with_suffix(".json")
GUIDE = Path(__file__).parents[1] / "docs" / "estimators.md"
LARGE = ("20news",)  # sets of which fewer splits are measured


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


def spreading(make: Callable[[], Any], *, dense: bool = False) -> Callable[..., Array]:
    """Fits all rows, -1 where unlabelled."""

    def run(x: Any, partly: Array, seed: int) -> Array:
        x = x.toarray() if dense and sparse.issparse(x) else x
        model = make().fit(x, partly)
        return model.transduction_

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
    "LabelSpreading kNN": spreading(lambda: LabelSpreading(kernel="knn")),
    "LabelSpreading RBF": spreading(lambda: LabelSpreading(), dense=True),
    "SelfTraining LR": self_training,
    "MLPClassifier": inductive(lambda count: MLPClassifier(max_iter=500, random_state=0)),
    "kNN": inductive(lambda count: KNeighborsClassifier(min(5, count))),
    "HistGradientBoosting": inductive(lambda count: HistGradientBoostingClassifier(random_state=0), dense=True),
    "GCN, 5 nearest": gcn(5),
    "GCN, 10 nearest": gcn(10),
}


def ours(x: Any, partly: Array, seed: int) -> Array:
    return DIFFormerClassifier(random_state=seed).fit(x, partly).transduction_


METHODS = {OURS: ours, **RIVALS}


def measure(
    names: list[str], rates: list[float], splits: dict[str, range], methods: dict[str, Any], found: dict[str, Any]
) -> Iterator[None]:
    """Adds accuracies ``{method: {"set rate": {split: accuracy}}}`` to `found`; hands over after every cell."""
    for name in names:
        x, y = SETS[name]()
        # A sparse table has one form; it counts for both.
        scaled = x if sparse.issparse(x) else StandardScaler().fit_transform(x)
        for rate in rates:
            for method, run in methods.items():
                for form, rows in {"": x}.items() if method == OURS else {"": x, ", standardised": scaled}.items():
                    cell = found.setdefault(method + form, {}).setdefault(f"{name} {rate:.0%}", {})
                    if form and rows is x:
                        cell.update(found[method][f"{name} {rate:.0%}"])
                    started = time.perf_counter()
                    for seed in splits[name]:
                        if str(seed) not in cell:
                            cell[str(seed)] = accuracy(run, rows, y, rate, seed)
                    each = list(cell.values())
                    print(
                        f"{name:14s} {rate:4.0%} {method + form:36s} {100 * np.mean(each):5.1f} ± "
                        f"{100 * np.std(each):4.1f}  {time.perf_counter() - started:6.1f} s",
                        flush=True,
                    )
                    yield


def accuracy(run: Callable[..., Array], x: Any, y: Array, rate: float, seed: int) -> float:
    """On the rows whose label was not shown."""
    partly = some_labels(y, rate, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rivals that do not converge, or see a class once
        predicted = run(x, partly, seed)
    return float((predicted == y)[partly < 0].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=None)
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--large-splits", type=int, default=3, help=f"splits of {', '.join(LARGE)}")
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    names = given.sets or [name for name in SETS if name not in LARGE or os.environ.get("DIFFORMER_DATA")]
    counts = {name: given.large_splits if name in LARGE else given.splits for name in names}
    splits = {name: range(given.first, given.first + count) for name, count in counts.items()}
    found = json.loads(given.out.read_text())["accuracy"] if given.out.is_file() else {}
    print(__doc__)
    for _ in measure(names, given.rates, splits, {name: METHODS[name] for name in given.methods}, found):
        with atomic_write(given.out) as stream:
            stream.write((json.dumps({"protocol": __doc__.split("\n\n")[2], "accuracy": found}, indent=1)).encode())
    if OURS in found and len(found) > 1:
        print(markdown(found), *summary(found), sep="\n")
        if given.out == RESULTS:
            write_into(GUIDE, found)


if __name__ == "__main__":
    main()
