"""Instances without a graph: 20 Newsgroups, and scikit-learn's small tables, which need no file.

20 Newsgroups are 9607 posts of ten groups as TF-IDF. Words are counted, English stop words left out, and kept where
they occur in at least 5 % of the posts: 236 remain. Count c_ij of word j in post i becomes c_ij · (ln(n / d_j) + 1),
d_j being the number of posts with the word, and every row is divided by its length. Protocol ``"paper"``: 100, 200 or
400 labels per class, 1000 posts for validation, the rest for test.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from difformer.data.archives import read_npz, tar_members
from difformer.data.catalogue import ENTRIES
from difformer.data.datasets.common import Arrays, InstanceReader, csr_arrays, csr_of, processed, shuffled
from difformer.data.errors import DataError
from difformer.data.lookup import Found
from difformer.data.own.csv_files import lines_of
from difformer.data.scaling import Scaling
from difformer.data.sparse_features import feature_tensor
from difformer.data.split import labels_per_class_split
from difformer.data.task import Task

GROUPS = ENTRIES["20news"].class_names


@dataclass(frozen=True, kw_only=True)
class TwentyNews(InstanceReader):
    """Newsgroup posts.

    Args:
        per_class: Training labels per class; 100, 200 and 400 in the paper.
        sparse: Features as sparse CSR; one entry in nine is not zero, so that dense is the default.
    """

    protocol: str = "paper"
    sparse: bool = False

    def content(self, found: Found) -> Any:
        if found.form == "features":
            file = read_npz(found.path)
            parts = {"x_data": "tfidf_data", "x_indices": "indices", "x_indptr": "indptr", "x_shape": "shape"}
            arrays = {key: file[name] for key, name in parts.items()} | {k: file[k] for k in ("y", "vocabulary")}
        else:
            read = _posts_of_lines if found.form == "text" else _posts_of_archive
            arrays = processed(self.name, lambda: tfidf(read(found)), sources=found.paths)
        return csr_of(arrays), torch.from_numpy(arrays["y"].astype(np.int64)), map(str, arrays["vocabulary"])

    def task(self, content: Any) -> Task:
        x, y, words = content
        steps = f"TF-IDF of the {x.shape[1]} words in at least 5 % of the posts, rows of unit length"
        features = feature_tensor(x, as_sparse=self.sparse)
        return self.instance_task(features, y, self.few_labels(y), steps, feature_names=tuple(words))


def tfidf(posts: Iterable[tuple[str, int]]) -> Arrays:
    """Features of posts (text and number of the group), as the module's text says."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

    listed = list(posts)
    if not listed:
        raise DataError("holds no posts")
    texts, labels = zip(*listed, strict=True)
    counter = CountVectorizer(stop_words="english", min_df=0.05)
    weighted = TfidfTransformer(smooth_idf=False).fit_transform(counter.fit_transform(texts))
    weighted.sort_indices()
    return {
        **csr_arrays(weighted.tocsr()),
        "y": np.asarray(labels, dtype=np.int64),
        "vocabulary": counter.get_feature_names_out().astype(str),
    }


def _posts_of_lines(found: Found) -> Iterator[tuple[str, int]]:
    """One JSON object per line, with ``text`` and ``label``."""
    for number, line in enumerate(lines_of(str(found.path), "utf-8"), start=1):
        post = json.loads(line)
        text, label = (post.get("text"), post.get("label", -1)) if isinstance(post, dict) else (None, -1)
        if not isinstance(text, str) or label not in range(len(GROUPS)):
            problem = f"expected an object with 'text' and 'label' 0 to {len(GROUPS) - 1}"
            raise DataError(problem, path=found.path, line=number)
        yield text, label


def _posts_of_archive(found: Found) -> Iterator[tuple[str, int]]:
    """``20news-bydate.tar.gz``: a file per post, in ``20news-bydate-{train,test}/<group>/<number>``."""
    posts: dict[str, dict[str, bytes]] = {"train": {}, "test": {}}
    for path, content in tar_members(found.path):
        top, _, rest = path.removeprefix("./").partition("/")
        part = top.removeprefix("20news-bydate-")
        if part in posts and rest.count("/") == 1:
            posts[part][rest] = content
    chosen = published_order({part: list(names) for part, names in posts.items()})
    if not chosen:
        raise DataError("no posts of 20news-bydate-train and 20news-bydate-test inside", path=found.path)
    for part, name in chosen:
        yield posts[part][name].decode("latin1"), GROUPS.index(name.partition("/")[0])


def published_order(names: dict[str, list[str]]) -> list[tuple[str, str]]:
    """The order in which scikit-learn's `fetch_20newsgroups` gives the posts of the ten groups, ``subset="all"``.

    It shuffles the posts of all twenty groups of each part, sorted by group and number, with seed 0; chains the parts;
    leaves out the other groups; and shuffles what remains with seed 42. Splits index this order, so it must be exact.
    `names` holds ``<group>/<number>`` of every post of ``"train"`` and ``"test"``.
    """
    chained: list[tuple[str, str]] = []
    for part in ("train", "test"):
        ordered = sorted(names[part], key=lambda name: tuple(name.split("/")))
        chained += [(part, ordered[i]) for i in shuffled(len(ordered), 0)]
    kept = [post for post in chained if post[1].partition("/")[0] in GROUPS]
    return [kept[i] for i in shuffled(len(kept), 42)]


@dataclass(frozen=True, kw_only=True)
class Table(InstanceReader):
    """One of scikit-learn's tables: few labels per class, half of the rest for validation, half for test.

    Args:
        standardize: Columns of mean zero and variance one over all instances; no label is used. `Task.scaled` brings
            new rows to the same scale.
    """

    protocol: str = "random"
    per_class: int = 5
    num_splits: int = 10
    standardize: bool = True

    def task(self, content: None) -> Task:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{self.name.replace('-', '_')}")()
        x, y = torch.tensor(bunch.data, dtype=torch.double), torch.tensor(bunch.target, dtype=torch.long)
        scaling = Scaling.of(x) if self.standardize else None
        per_class = self.per_class
        valid = max((len(y) - per_class * (int(y.max()) + 1)) // 2, 0)
        splits = self.draw(
            lambda s: labels_per_class_split(y, per_class=per_class, num_valid=valid, seed=s),
            f"random: {per_class} labels per class, half of the rest for validation",
        )
        return self.instance_task(
            (x if scaling is None else scaling(x)).float(),
            y,
            splits,
            "columns standardised over all instances" if self.standardize else "features as they are",
            class_names=tuple(map(str, bunch.target_names)),
            feature_names=tuple(map(str, bunch.feature_names)),
            scaling=scaling,
        )
