"""Few labels, no tuning: `DIFFormerClassifier` with its defaults against the usual methods with theirs.

    python -m benchmarks.semi_supervised --jobs 2        # DIFFORMER_DATA holds 20news; otherwise it is left out
    python -m benchmarks.semi_supervised --splits 3 --sets iris wine --rates 0.1 --out /tmp/some.json

Six data sets (handwritten digits, wine, breast cancer, iris, ten of the 20 newsgroups, two moons), 1 %, 5 % and 10 % of
the rows labelled, at least one per class, the rest drawn at random; accuracy and log loss on all other rows, mean over
splits. Every rival has scikit-learn's default options (but for enough iterations to converge) and sees the rows as they
are and, a second time, standardised; GCN has two layers of 64 channels, dropout ½, weight decay 5e-4 and 200 epochs,
over the symmetric graph of 5 or 10 nearest rows. Transductive methods see the features of all rows, the others those of
the labelled ones. Probabilities below 1e-15 count as 1e-15 in the log loss.

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
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy import sparse
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from benchmarks.semi_supervised_table import OURS, STANDARDISED, markdown, summary, write_into
from difformer.data import Split, Task, knn_graph
from difformer.estimators import DIFFormerClassifier
from difformer.files import write_whole
from difformer.training import TrainConfig, train_one

Array = np.ndarray[Any, Any]
RATES = (0.01, 0.05, 0.1)
RESULTS = Path(__file__).with_suffix(".json")
GUIDE = Path(__file__).parents[1] / "docs" / "estimators.md"
LARGE = ("20news",)  # sparse, and of which fewer splits are measured


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


Answer = tuple[Array, Array | None]  # labels of all rows, and their probabilities where a method has some


def inductive(make: Callable[[int], Any], *, dense: bool = False) -> Callable[..., Answer]:
    """Fits the labelled rows, predicts all."""

    def run(x: Any, partly: Array, seed: int) -> Answer:
        if dense and sparse.issparse(x):
            x = x.toarray()
        known = partly >= 0
        model = make(int(known.sum())).fit(x[known], partly[known])
        return model.predict(x), model.predict_proba(x)

    return run


def spreading(make: Callable[[], Any], *, dense: bool = False) -> Callable[..., Answer]:
    """Fits all rows, -1 where unlabelled."""

    def run(x: Any, partly: Array, seed: int) -> Answer:
        x = x.toarray() if dense and sparse.issparse(x) else x
        model = make().fit(x, partly)
        return model.transduction_, model.label_distributions_

    return run


def gcn(neighbours: int) -> Callable[..., Answer]:
    """A graph convolutional network over the symmetric graph of nearest rows, trained by the package's own loop."""

    def run(x: Any, partly: Array, seed: int) -> Answer:
        metric = "cosine" if sparse.issparse(x) else "euclidean"
        features = torch.tensor(x.toarray() if sparse.issparse(x) else np.asarray(x), dtype=torch.float32)
        nothing = torch.empty(0, dtype=torch.long)
        split = Split("labelled", torch.from_numpy(np.flatnonzero(partly >= 0)), nothing, nothing)
        task = Task(
            name="rows", kind="nodes", problem="multiclass", metric="accuracy", protocol="", x=features,
            y=torch.from_numpy(partly.astype(np.int64)), splits=(split,), num_outputs=int(partly.max()) + 1,
            edge_index=knn_graph(features, neighbours, metric=metric, symmetric=True),
        )  # fmt: skip
        config = TrainConfig(
            model="gcn", options={"dropout": 0.5}, epochs=200, learning_rate=0.01, weight_decay=5e-4, eval_every=200
        )
        outputs = train_one(task, 0, config, seed, "cpu").outputs
        return outputs.argmax(1).numpy(), outputs.softmax(1).numpy()

    return run


def self_training(x: Any, partly: Array, seed: int) -> Answer:
    model = SelfTrainingClassifier(LogisticRegression(max_iter=1000)).fit(x, partly)
    return model.predict(x), model.predict_proba(x)


RIVALS: dict[str, Callable[..., Answer]] = {
    "LogisticRegression": inductive(lambda count: LogisticRegression(max_iter=1000)),
    "LabelSpreading kNN": spreading(lambda: LabelSpreading(kernel="knn")),
    "LabelSpreading RBF": spreading(lambda: LabelSpreading(), dense=True),
    "SelfTraining LR": self_training,
    "MLPClassifier": inductive(lambda count: MLPClassifier(max_iter=500, random_state=0)),
    "kNN": inductive(lambda count: KNeighborsClassifier(min(5, count))),
    "HistGradientBoosting": inductive(lambda count: HistGradientBoostingClassifier(random_state=0), dense=True),
    "GCN, 5 nearest": gcn(5),
    "GCN, 10 nearest": gcn(10),
}


def ours(x: Any, partly: Array, seed: int) -> Answer:
    model = DIFFormerClassifier(random_state=seed).fit(x, partly)
    return model.transduction_, model.label_distributions_


METHODS = {OURS: ours, **RIVALS}
FORMS = ("", STANDARDISED)


def measure_one(method: str, form: str, name: str, rate: float, seed: int) -> tuple[float, float | None, float]:
    """Accuracy and log loss on the rows whose label was not shown, and seconds."""
    torch.set_num_threads(1)
    x, y = SETS[name]()
    if form:
        x = StandardScaler().fit_transform(x)
    partly = some_labels(y, rate, seed)
    hidden = partly < 0
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rivals that do not converge, or see a class once
        predicted, chances = METHODS[method](x, partly, seed)
    seconds = time.perf_counter() - started
    accuracy = float((predicted == y)[hidden].mean())
    if chances is None:
        return accuracy, None, seconds
    right = np.nan_to_num(chances[np.arange(len(y)), y])[hidden]  # label spreading gives NaN to rows nothing reaches
    return accuracy, float(-np.log(np.clip(right, 1e-15, 1)).mean()), seconds


def measure(
    names: list[str], rates: list[float], splits: dict[str, range], methods: list[str], found: dict[str, Any], jobs: int
) -> Iterator[None]:
    """Adds ``{kind: {method: {"set rate": {split: value}}}}`` to `found`; yields after every split measured."""
    missing = [
        (method, form, name, rate, seed)
        for name, rate, method in product(names, rates, methods)
        for form, seed in product(FORMS[: 1 if method == OURS or name in LARGE else 2], splits[name])
        if str(seed) not in found["log loss"].get(method + form, {}).get(f"{name} {rate:.0%}", {})
    ]
    # One after the other from all cells, so that an interrupted measurement has something of each.
    missing.sort(key=lambda case: case[-1])
    runs = Parallel(jobs, return_as="generator")(delayed(measure_one)(*case) for case in missing)
    for (method, form, name, rate, seed), (accuracy, loss, seconds) in zip(missing, runs, strict=True):
        for kind, value in (("accuracy", accuracy), ("log loss", loss), ("seconds", seconds)):
            for same in FORMS if name in LARGE and method != OURS else (form,):  # a sparse table has one form
                cells = found[kind].setdefault(method + same, {})
                cells.setdefault(f"{name} {rate:.0%}", {})[str(seed)] = value
        spread = "" if loss is None else f"log loss {loss:.3f}"
        print(f"{name:14s} {rate:4.0%} {method + form:36s} split {seed} {100 * accuracy:5.1f} {spread} {seconds:.1f} s")
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=None)
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--large-splits", type=int, default=3, help=f"splits of {', '.join(LARGE)}")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    names = given.sets or [name for name in SETS if name not in LARGE or os.environ.get("DIFFORMER_DATA")]
    counts = {name: given.large_splits if name in LARGE else given.splits for name in names}
    splits = {name: range(given.first, given.first + count) for name, count in counts.items()}
    found: dict[str, Any] = {kind: {} for kind in ("accuracy", "log loss", "seconds")}
    if given.out.is_file():
        found |= {kind: value for kind, value in json.loads(given.out.read_text()).items() if kind in found}
    print(__doc__)
    protocol = __doc__.split("\n\n")[2]
    for _ in measure(names, given.rates, splits, given.methods, found, given.jobs):
        write_whole(given.out, json.dumps({"protocol": protocol, **found}, indent=1).encode())
    if OURS in found["accuracy"] and len(found["accuracy"]) > 1:
        print(markdown(found), *summary(found), sep="\n")
        if given.out == RESULTS:
            write_into(GUIDE, found)


if __name__ == "__main__":
    main()
