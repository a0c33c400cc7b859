"""20 Newsgroups: 9607 posts of ten groups as TF-IDF, instances without a graph.

Words are counted, English stop words left out, and kept where they occur in at least 5 % of the posts: 236 remain.
Count c_ij of word j in post i becomes c_ij · (ln(n / d_j) + 1), d_j being the number of posts with the word, and
every row is divided by its length. Protocol ``"paper"``: 100, 200 or 400 labels per class, 1000 posts for validation,
the rest for test.
"""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import torch

from difformer.data.archives import read_npz, tar_members
from difformer.data.datasets.common import choice, csr_arrays, csr_of, few_label_splits, table_task
from difformer.data.errors import DataError
from difformer.data.lookup import Found, locate, reading
from difformer.data.own.csv_files import lines_of
from difformer.data.processed import Arrays, processed
from difformer.data.sparse import feature_tensor
from difformer.data.task import Task

GROUPS = (
    "alt.atheism",
    "comp.sys.ibm.pc.hardware",
    "misc.forsale",
    "rec.autos",
    "rec.sport.hockey",
    "sci.crypt",
    "sci.electronics",
    "sci.med",
    "sci.space",
    "talk.politics.guns",
)


def twenty_news(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "paper",
    per_class: int = 100,
    num_splits: int = 5,
    seed: int = 0,
    sparse: bool = False,
    knn: int | None = None,
) -> Task:
    """Newsgroup posts.

    Args:
        name: ``"20news"``.
        root: Folder to search first.
        protocol: ``"paper"``.
        per_class: Training labels per class; 100, 200 and 400 in the paper.
        num_splits: How many splits.
        seed: Of the first; the others follow.
        sparse: Features as sparse CSR; one entry in nine is not zero, so that dense is the default.
        knn: Join every post to its nearest ones, itself counted; None for no graph.
    """
    choice("protocol", protocol, ("paper",))
    found = locate(name, root)
    with reading(found):
        arrays = _features(found)
        x, y = csr_of(arrays), torch.from_numpy(arrays["y"].astype(np.int64))
        words = [str(word) for word in arrays["vocabulary"]]
    splits, said = few_label_splits(y, per_class, num_splits=num_splits, seed=seed)
    return table_task(
        name,
        x=feature_tensor(x, as_sparse=sparse),
        y=y,
        splits=splits,
        knn=knn,
        steps=f"TF-IDF of the {x.shape[1]} words in at least 5 % of the posts, rows of unit length",
        protocol=said,
        class_names=GROUPS,
        feature_names=words,
    )


def _features(found: Found) -> Arrays:
    if found.form == "features":
        file = read_npz(found.path)
        parts = {"x_data": "tfidf_data", "x_indices": "indices", "x_indptr": "indptr", "x_shape": "shape"}
        return {key: file[name] for key, name in parts.items()} | {key: file[key] for key in ("y", "vocabulary")}
    read = _read_lines if found.form == "text" else _read_archive
    return processed(found.name, lambda: tfidf(*read(found)), sources=found.paths)


def tfidf(texts: list[str], labels: Any) -> Arrays:
    """Features of posts, as the module's text says."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

    counter = CountVectorizer(stop_words="english", min_df=0.05)
    counts = counter.fit_transform(texts)
    weighted = TfidfTransformer(smooth_idf=False).fit_transform(counts)
    weighted.sort_indices()
    return {
        **csr_arrays(weighted.tocsr()),
        "y": np.asarray(labels, dtype=np.int64),
        "vocabulary": counter.get_feature_names_out().astype(str),
    }


def _read_lines(found: Found) -> tuple[list[str], list[int]]:
    """One JSON object a line, with ``text`` and ``label``."""
    texts, labels = [], []
    for number, line in enumerate(lines_of(str(found.path), "utf-8"), start=1):
        post = json.loads(line)
        if (
            not isinstance(post, dict)
            or not isinstance(post.get("text"), str)
            or post.get("label") not in range(len(GROUPS))
        ):
            raise DataError(
                f"expected an object with 'text' and 'label' 0 to {len(GROUPS) - 1}", path=found.path, line=number
            )
        texts.append(post["text"])
        labels.append(post["label"])
    return texts, labels


def _read_archive(found: Found) -> tuple[list[str], list[int]]:
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
    texts = [posts[part][name].decode("latin1") for part, name in chosen]
    return texts, [GROUPS.index(name.partition("/")[0]) for _, name in chosen]


def published_order(names: dict[str, list[str]]) -> list[tuple[str, str]]:
    """The order in which scikit-learn's `fetch_20newsgroups` gives the posts of the ten groups, ``subset="all"``.

    It shuffles the posts of all twenty groups of each part, sorted by group and number, with seed 0; chains the parts;
    leaves out the other groups; and shuffles what remains with seed 42. Splits index this order, hence its exactness
    here. `names` holds ``<group>/<number>`` of every post of ``"train"`` and ``"test"``.
    """
    chained: list[tuple[str, str]] = []
    for part in ("train", "test"):
        ordered = sorted(names[part], key=lambda name: tuple(name.split("/")))
        chained += [(part, ordered[i]) for i in _shuffled(len(ordered), seed=0)]
    kept = [post for post in chained if post[1].partition("/")[0] in GROUPS]
    return [kept[i] for i in _shuffled(len(kept), seed=42)]


def _shuffled(count: int, *, seed: int) -> Any:
    index = np.arange(count)
    np.random.RandomState(seed).shuffle(index)  # the order must be scikit-learn's, which this generator drew
    return index
