"""Graphs whose nodes are classified: the smaller ones, except for citations.

Edges lose direction, duplicates and self-loops, then every node gets a self-loop.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import sparse as sp

from difformer.data.archives import read_mat, read_members, read_npz
from difformer.data.datasets import common
from difformer.data.datasets.common import Arrays, GraphReader, SeededReader, csr_arrays
from difformer.data.download import Found
from difformer.data.split import Split, index_split, masks_split, per_class_split, random_split
from difformer.data.task import Task
from difformer.errors import DataError

GENDER = 1  # column of the profile


@dataclass(frozen=True, kw_only=True)
class Heterophilous(GraphReader):
    """A graph of Platonov et al., "A critical look at the evaluation of GNNs under heterophily", with ten splits."""

    protocol: str = "published"

    def content(self, found: Found) -> Any:
        file = read_npz(found.path)
        graph = {"x": file["node_features"], "y": file["node_labels"], "edge_index": file["edges"].T}
        splits = masks_split(file["train_masks"], file["val_masks"], file["test_masks"])
        return common.node_graph({**graph, "splits": splits})

    def task(self, content: Any) -> Task:
        splits, bare = content["splits"], int((content["x"].sum(axis=1) == 0).sum())
        notes = (f"{bare} nodes have no features; the published splits hold them nevertheless.",) if bare else ()
        return self.node_task(content, (splits, f"published: {len(splits)} splits"), notes=notes)


@dataclass(frozen=True, kw_only=True)
class Wikipedia(Heterophilous):
    """Chameleon, Squirrel (pages of Wikipedia, by traffic) or Actor, with its ten splits.

    The filtered graphs lack the duplicated nodes that let test labels leak into training.

    Args:
        features: ``"row"`` divides every row by its sum, ``"raw"`` leaves features as published.
    """

    features: str = "row"
    choices = (("features", ("row", "raw")),)


@dataclass(frozen=True, kw_only=True)
class GnnBenchmark(SeededReader, GraphReader):
    """Goods that are bought together on Amazon, or co-authors; counts of words become 0 and 1.

    Args:
        protocol: ``"20/30"`` (labels per class for training and validation) or ``"60/20/20"``.
    """

    protocol: str = "20/30"
    num_splits: int = 10

    def content(self, found: Found) -> Any:
        file = read_npz(found.path)
        if found.form != "arrays":
            edges = np.stack(common.csr_of(file, "adj").nonzero())
            file = {"x": common.csr_of(file, "attr"), "y": file["labels"], "edge_index": edges}
        return common.node_graph(file)

    def task(self, content: Any) -> Task:
        words, y = content["x"], content["y"]
        words.data = (words.data > 0).astype(np.float32)

        def twenty_thirty(s: int) -> Split:
            first = per_class_split(y, per_class=20, num_valid=0, num_test=None, seed=s)
            second = per_class_split(y, per_class=30, num_valid=0, num_test=None, seed=s, exclude=first.train)
            return Split(f"20/30/seed={s}", first.train, second.train, second.test)

        if self.protocol == "20/30":
            said = "20/30: 20 labels per class, 30 per class for validation, the rest test"
            splits = self.draw(twenty_thirty, said)
        else:
            splits = self.shares(y, self.protocol, "60/20/20: random shares of all nodes")
        graph = {**content, "x": common.row_normalised(words)}
        return self.node_task(graph, splits, steps="features 0 or 1, then rows sum to one")


@dataclass(frozen=True, kw_only=True)
class Facebook100(SeededReader, GraphReader):
    """Friends at an American college in 2005: gender from friends and profile; a missing value is a category.

    Args:
        protocol: ``"50/25/25"``, or ``"10/10/80"`` as the paper splits Pokec.
    """

    protocol: str = "50/25/25"

    def content(self, found: Found) -> Any:
        """From the profile ``[N, 7]`` and the edges."""
        from sklearn.preprocessing import OneHotEncoder

        if found.form == "arrays":
            file = read_npz(found.path)
            profile, edges = file["metadata"], file["edge_index"]
        else:
            matlab = read_mat(found.path)
            profile, edges = matlab["local_info"], np.stack(matlab["A"].nonzero())
        if profile.ndim != 2 or profile.shape[1] != 7 or not len(profile):
            raise DataError(f"profiles must have 7 columns, got {profile.dtype} of shape {list(profile.shape)}")
        x = OneHotEncoder(dtype=np.float32).fit_transform(np.delete(profile, GENDER, axis=1))
        return common.node_graph({"x": x, "y": profile[:, GENDER].astype(np.int64) - 1, "edge_index": edges})

    def task(self, content: Any) -> Task:
        splits = self.shares(content["y"], self.protocol, f"{self.protocol} of the nodes with known gender")
        notes = unknown_gender(content["y"], "nodes")
        return self.node_task(content, splits, steps="profile one-hot without gender", notes=notes)


def unknown_gender(y: Any, who: str) -> tuple[str, ...]:
    unknown = int((y < 0).sum())
    return (f"The gender of {unknown} {who} is unknown; they are in no split.",) if unknown else ()


@dataclass(frozen=True, kw_only=True)
class DeezerEurope(SeededReader, GraphReader):
    """Friends on Deezer in Europe: gender from the artists they like."""

    protocol: str = "50/25/25"

    def read(self, found: Found) -> Arrays:
        """``deezer_europe.zip``: edges and targets as CSV with a header, artists as JSON, a list per user."""
        names = [f"deezer_europe_{part}" for part in ("edges.csv", "target.csv", "features.json")]
        *tables, features = read_members(found.path, names).values()
        edges, target = (np.loadtxt(io.BytesIO(t), np.int64, delimiter=",", skiprows=1, ndmin=2) for t in tables)
        liked = json.loads(features)
        if not isinstance(liked, dict) or not all(isinstance(artists, list) for artists in liked.values()):
            raise DataError("features.json must hold a list of artists per user")
        if not all(type(artist) in (int, str) for artists in liked.values() for artist in artists):
            raise DataError("features.json must name artists by number")
        y = np.empty(len(target), dtype=np.int64)
        y[target[:, 0]] = target[:, 1]
        rows = np.repeat(np.array([int(user) for user in liked]), [len(artists) for artists in liked.values()])
        columns = np.array([int(artist) for artists in liked.values() for artist in artists])
        shape = (len(y), int(columns.max()) + 1)
        x = sp.csr_matrix((np.ones(len(rows), dtype=np.float32), (rows, columns)), shape=shape)
        x.sum_duplicates()
        x.data[:] = 1
        return {**csr_arrays(x), "y": y, "edge_index": edges.T.astype(np.int32)}

    def task(self, content: Any) -> Task:
        splits = self.shares(content["y"], self.protocol, "50/25/25: random shares")
        return self.node_task(content, splits, steps="features 0 or 1")


INSTRUCTOR, PRESIDENT = 0, 33
# Who met whom outside the club, members counted from 0: for every member those with a higher number (Zachary 1977).
_KARATE = """
0: 1 2 3 4 5 6 7 8 10 11 12 13 17 19 21 31; 1: 2 3 7 13 17 19 21 30; 2: 3 7 8 9 13 27 28 32; 3: 7 12 13; 4: 6 10;
5: 6 10 16; 6: 16; 8: 30 32 33; 9: 33; 13: 33; 14: 32 33; 15: 32 33; 18: 32 33; 19: 33; 20: 32 33; 22: 32 33;
23: 25 27 29 32 33; 24: 25 27 31; 25: 31; 26: 29 33; 27: 33; 28: 31 33; 29: 32 33; 30: 32 33; 31: 32 33; 32: 33
"""
# Those who stayed with the president ("Officers") when the club split; the others followed the instructor ("Mr. Hi").
_OFFICERS = (9, 14, 15, 18, 20, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33)


@dataclass(frozen=True, kw_only=True)
class Karate(SeededReader, GraphReader):
    """Zachary's karate club: 34 members, 78 friendships, and whom each followed when the club broke apart.

    Args:
        protocol: ``"one-a-side"`` trains only on the two leaders, validates on two others drawn at random, and tests
            on the rest; ``"random"`` draws 20 %, 20 % and 60 %.
    """

    protocol: str = "one-a-side"
    num_splits: int = 10
    sparse: bool | None = False

    def task(self, content: Any) -> Task:
        friends = (entry.split(":") for entry in _KARATE.split(";"))
        edges = np.array([(int(member), int(other)) for member, others in friends for other in others.split()]).T
        y = torch.zeros(34, dtype=torch.long)
        y[list(_OFFICERS)] = 1
        leaders = [INSTRUCTOR, PRESIDENT]

        def one_a_side(s: int) -> Split:
            rest = per_class_split(y, per_class=1, num_valid=0, num_test=None, seed=s, exclude=leaders)
            return index_split(f"one-a-side/seed={s}", leaders, rest.train, rest.test)

        if self.protocol == "one-a-side":
            splits = self.draw(one_a_side, "one-a-side: the two leaders train, two others validate, the rest tests")
        else:
            stratified = partial(random_split, y, fractions=(0.2, 0.2, 0.6), stratify=True)
            splits = self.draw(lambda s: stratified(seed=s), "random: 20/20/60, stratified")
        graph = {"x": np.eye(34, dtype=np.float32), "y": y.numpy(), "edge_index": edges}
        return self.node_task(graph, splits, steps="features are the identity")
