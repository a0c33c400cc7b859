"""Data that need no file: scikit-learn's small tables and Zachary's karate club."""

from __future__ import annotations

import numpy as np
import torch

from difformer.data.datasets.common import choice, class_task, seeded, seeds_of, table_task
from difformer.data.scaling import Scaling
from difformer.data.split import index_split, per_class_split, random_split
from difformer.data.task import Task

KARATE_PROTOCOLS = ("one-a-side", "random")
KARATE_NODES = 34
INSTRUCTOR, PRESIDENT = 0, 33
# Who met whom outside the club, members counted from 0: for every member those with a higher number (Zachary 1977).
_KARATE = """
0: 1 2 3 4 5 6 7 8 10 11 12 13 17 19 21 31; 1: 2 3 7 13 17 19 21 30; 2: 3 7 8 9 13 27 28 32; 3: 7 12 13; 4: 6 10;
5: 6 10 16; 6: 16; 8: 30 32 33; 9: 33; 13: 33; 14: 32 33; 15: 32 33; 18: 32 33; 19: 33; 20: 32 33; 22: 32 33;
23: 25 27 29 32 33; 24: 25 27 31; 25: 31; 26: 29 33; 27: 33; 28: 31 33; 29: 32 33; 30: 32 33; 31: 32 33; 32: 33
"""
# Those who stayed with the president ("Officers") when the club split; the others followed the instructor ("Mr. Hi").
_OFFICERS = (9, 14, 15, 18, 20, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33)


def table(
    name: str,
    root: object = None,
    *,
    protocol: str = "random",
    per_class: int = 5,
    num_splits: int = 10,
    seed: int = 0,
    standardize: bool = True,
    knn: int | None = None,
) -> Task:
    """One of scikit-learn's tables: few labels per class, half of the rest for validation, half for test.

    Args:
        name: ``"digits"``, ``"wine"``, ``"breast-cancer"`` or ``"iris"``.
        root: Not needed.
        protocol: ``"random"``.
        per_class: Training labels per class.
        num_splits: How many splits.
        seed: Of the first; the others follow.
        standardize: Columns of mean zero and variance one over all instances; features only, no label is used. New rows
            for a trained model come unscaled and are brought to the same scale: `Task.scaled`.
        knn: Join every node to its nearest ones, itself counted; None for no graph.
    """
    choice("protocol", protocol, ("random",))
    from sklearn import datasets

    loader = {
        "digits": datasets.load_digits,
        "wine": datasets.load_wine,
        "breast-cancer": datasets.load_breast_cancer,
        "iris": datasets.load_iris,
    }[name]
    bunch = loader()
    x, y = np.asarray(bunch.data, dtype=np.float64), torch.from_numpy(np.asarray(bunch.target, dtype=np.int64))
    scaling = None
    if standardize:
        mean, spread = x.mean(axis=0), x.std(axis=0)
        scale = np.where(spread > 0, spread, 1.0)
        x, scaling = (x - mean) / scale, Scaling(torch.from_numpy(mean), torch.from_numpy(scale), len(x))
    num_valid = (len(y) - per_class * (int(y.max()) + 1)) // 2
    splits = seeded(
        lambda s: per_class_split(y, per_class=per_class, num_valid=max(num_valid, 0), num_test=None, seed=s),
        num_splits=num_splits,
        seed=seed,
    )
    return table_task(
        name,
        x=torch.from_numpy(x.astype(np.float32)),
        y=y,
        splits=splits,
        knn=knn,
        steps="columns standardised over all instances" if standardize else "features as they are",
        protocol=f"random: {per_class} labels a class, half of the rest for validation, {seeds_of(num_splits, seed)}",
        class_names=[str(label) for label in bunch.target_names],
        feature_names=[str(label) for label in bunch.feature_names],
        scaling=scaling,
    )


def karate(
    name: str,
    root: object = None,
    *,
    protocol: str = "one-a-side",
    num_splits: int = 10,
    seed: int = 0,
    self_loops: bool = True,
) -> Task:
    """Zachary's karate club: 34 members, 78 friendships, and whom each followed when the club broke apart.

    Args:
        name: ``"karate"``.
        root: Not needed.
        protocol: ``"one-a-side"`` trains on the two leaders alone and tests on everybody else but two drawn for
            validation; ``"random"`` draws 20 %, 20 % and 60 %.
        num_splits: How many splits.
        seed: Of the first; the others follow.
        self_loops: Whether every node gets an edge to itself.
    """
    choice("protocol", protocol, KARATE_PROTOCOLS)
    friends = (entry.split(":") for entry in _KARATE.split(";"))
    edges = np.array([(int(member), int(other)) for member, others in friends for other in others.split()]).T
    y = torch.zeros(KARATE_NODES, dtype=torch.long)
    y[list(_OFFICERS)] = 1
    leaders = [INSTRUCTOR, PRESIDENT]

    def one_a_side(s: int) -> object:
        rest = per_class_split(y, per_class=1, num_valid=0, num_test=None, seed=s, exclude=leaders)
        return index_split(f"one-a-side/seed={s}", leaders, rest.train, rest.test)

    if protocol == "one-a-side":
        splits = seeded(one_a_side, num_splits=num_splits, seed=seed)  # type: ignore[arg-type]
        said = "one-a-side: the two leaders train, two others validate, the rest tests"
    else:
        splits = seeded(
            lambda s: random_split(y, fractions=(0.2, 0.2, 0.6), seed=s, stratify=True),
            num_splits=num_splits,
            seed=seed,
        )
        said = "random: 20/20/60, stratified"
    return class_task(
        name,
        x=np.eye(KARATE_NODES, dtype=np.float32),
        y=y,
        edges=edges,
        splits=splits,
        num_classes=2,
        self_loops=self_loops,
        sparse=False,
        steps="features are the identity",
        protocol=f"{said}, {seeds_of(num_splits, seed)}",
        class_names=("Mr. Hi", "Officer"),
    )
