"""Instances without a graph, few of them labelled: images, posts, and scikit-learn's small tables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.data.archives import read_members, read_npz, tar_members
from difformer.data.catalogue import ENTRIES, RemoteFile
from difformer.data.datasets.common import Array, Arrays, SeededReader, Splits, csr_arrays, csr_of, processed, shuffled
from difformer.data.download import Found, cache_folder, check_folders, find_file, locate, reading
from difformer.data.knn import knn_graph
from difformer.data.own.csv_files import lines_of
from difformer.data.scaling import Scaling
from difformer.data.sparse_features import feature_tensor
from difformer.data.split import per_class_split
from difformer.data.task import Task
from difformer.errors import DataError, UserError

PER_CLASS_KEPT = 1500
SIDE, STL10_SIDE = 32, 96
IMAGES_AT_A_TIME = 1000
GROUPS = ENTRIES["20news"].class_names


@dataclass(frozen=True, kw_only=True)
class InstanceReader(SeededReader):
    """Few labels per class.

    Args:
        per_class: Training labels per class.
        knn: Join every instance to its nearest ones, itself counted; None for no graph.
    """

    protocol: str = "paper"
    per_class: int = 100
    knn: int | None = None

    def few_labels(self, y: Tensor, num_valid: int = 1000, rest: str = "1000 for validation, the rest test") -> Splits:
        """By default the paper's splits of images and texts."""
        options: Any = {"per_class": self.per_class, "num_valid": num_valid, "num_test": None}
        said = f"{self.protocol}: {self.per_class} labels per class, {rest}"
        return self.draw(lambda s: per_class_split(y, **options, seed=s), said)

    def instance_task(self, x: Tensor, y: Tensor, splits: Splits, steps: str, **parts: Any) -> Task:
        edge_index, graph = None, "no graph"
        if self.knn is not None:
            edge_index = knn_graph(x, self.knn, metric="euclidean", include_self=True, symmetric=True)
            graph = f"graph of {self.knn} nearest neighbours (self counted), undirected"
        parts["edge_index"] = edge_index
        return self.make_task(x, y, splits, steps, graph, "accuracy", problem="multiclass", **parts)


@dataclass(frozen=True, kw_only=True)
class Images(InstanceReader):
    """CIFAR-10, the first 1500 training images of each class, or STL-10, all 13,000 labelled images.

    Args:
        features: ``"simclr"`` (learned without labels, 512 columns, from a file that ``benchmarks/simclr`` makes),
            ``"pca"`` or ``"pixels"`` (of STL-10's images shrunk to 32 × 32).
        per_class: Training labels per class; 10, 50 and 100 in the paper.
        pca_dim: Columns of ``"pca"``.
    """

    features: str = "simclr"
    pca_dim: int = 64
    choices = (("features", ("simclr", "pca", "pixels")),)

    def locate(self) -> Found:
        if self.features == "simclr":
            self._learned()  # before gigabytes of images are fetched
        return super().locate()

    def content(self, found: Found) -> tuple[Found, Arrays]:
        return found, read_images(found)

    def task(self, content: tuple[Found, Arrays]) -> Task:
        found, arrays = content
        images, labels = arrays["images"], arrays["labels"].astype(np.int64)
        shrunk = f" of images shrunk to {SIDE} × {SIDE}" if self.name == "stl10" else ""
        if self.features == "simclr":
            x, steps = self._simclr(labels), "SimCLR features, learned without labels"
        elif self.features == "pixels":
            x = shrink_images(images, SIDE).reshape(len(labels), -1) / np.float32(255)
            steps = f"pixels{shrunk}, 0 to 1"
        else:
            build = lambda: {"features": pca_features(shrink_images(images, SIDE), self.pca_dim)}
            x = processed(f"{self.name}-pca-{self.pca_dim}", build, sources=found.paths)["features"]
            steps = f"{self.pca_dim} principal components of pixels{shrunk}"
        y, features = torch.from_numpy(labels), torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
        return self.instance_task(features, y, self.few_labels(y), steps)

    def _learned(self) -> Found:
        check_folders(self.root)
        file = ENTRIES[self.name].learned or ""
        path = find_file(file, self.root)
        if path is None:
            problem = f"data set {self.name!r}: features=simclr needs {file}, which is in no data folder. Train it "
            problem += "with `python -m benchmarks.simclr.cifar10` (in the source repository) and put the file into "
            problem += f"{cache_folder() / self.name}; or use features=pca or features=pixels, which need no training"
            raise DataError(problem)
        return Found(self.name, "learned", (path,), (RemoteFile(file),))

    def _simclr(self, labels: Array) -> Array:
        found = self._learned()
        with reading(found):
            file = read_npz(found.path)
            x: Array = file["features"]
            method = json.loads(str(file["metadata"])).get("method") if "metadata" in file else "simclr"
        if method != "simclr":
            problem = f"the features in this file were made by {method!r}, not by SimCLR"
        elif len(x) != len(labels):
            problem = f"{len(x)} rows of features for {len(labels)} images; they were made from other images"
        elif x.ndim != 2 or x.dtype.kind != "f" or not np.isfinite(x).all():
            problem = f"features must be a table of finite floats, got {x.dtype} of shape {list(x.shape)}"
        elif not np.array_equal(file.get("labels", labels), labels):
            problem = "the labels beside these features are others; they were made from other images"
        else:
            return x
        raise DataError(problem, path=found.path)


def load_images(name: str, root: str | os.PathLike[str] | None = None) -> tuple[Array, Array]:
    """Images ``[N, H, W, 3]`` uint8 and labels ``[N]`` int64 of ``"cifar10"`` or ``"stl10"``, in the order of the task.

    SimCLR is trained on them. `root` is the folder to search first.
    """
    if name not in ("cifar10", "stl10"):
        raise UserError(f"name must be one of 'cifar10', 'stl10'; got {name!r}")
    found = locate(name, root)
    with reading(found):
        arrays = read_images(found)
        return arrays["images"], arrays["labels"].astype(np.int64)


def read_images(found: Found) -> Arrays:
    """``images [N, H, W, 3]`` uint8 and ``labels [N]``."""
    if found.form == "subset":
        arrays = read_npz(found.path, ("images", "labels"))
        images = arrays["images"]
        if images.shape[1:] != (SIDE, SIDE, 3) or images.dtype != np.uint8:
            raise DataError(f"images must have shape [N, {SIDE}, {SIDE}, 3], uint8, got {images.dtype} {images.shape}")
        return arrays
    if found.form == "folder":
        return read_stl10({path.name: path.read_bytes() for path in found.paths})
    if found.name == "stl10":
        read, names = read_stl10, [f"{part}_{what}.bin" for part in ("train", "test") for what in "Xy"]
    else:
        read, names = read_cifar10, [f"data_batch_{i}.bin" for i in range(1, 6)]
    return processed(found.name, lambda: read(read_members(found.path, names)), sources=found.paths)


def read_cifar10(files: dict[str, bytes]) -> Arrays:
    """The first images of each class of CIFAR-10. An image has 3073 bytes: label, then red, green and blue by row."""
    records, size = b"".join(files.values()), 1 + 3 * SIDE * SIDE
    if not records or len(records) % size:
        raise DataError(f"{len(records)} bytes are not a whole number of images of {size} bytes")
    table = np.frombuffer(records, dtype=np.uint8).reshape(-1, size)
    labels = table[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise DataError(f"label {labels.max()} where 0 to 9 are expected")
    kept = np.sort(np.concatenate([np.flatnonzero(labels == label)[:PER_CLASS_KEPT] for label in np.unique(labels)]))
    images = table[kept, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return {"images": np.ascontiguousarray(images), "labels": labels[kept]}


def read_stl10(files: dict[str, bytes]) -> Arrays:
    """STL-10: images of 96 × 96 with each colour stored column by column; labels 1 to 10."""
    size = 3 * STL10_SIDE * STL10_SIDE
    labels, images = [], []
    for part in ("train", "test"):
        classes = np.frombuffer(files[f"{part}_y.bin"], dtype=np.uint8).astype(np.int64) - 1
        if len(classes) == 0 or classes.min() < 0 or classes.max() > 9:
            raise DataError("STL-10's labels must lie between 1 and 10")
        pixels = files[f"{part}_X.bin"]
        if len(pixels) != size * len(classes):
            raise DataError(f"{part}_X.bin has {len(pixels)} bytes where {len(classes)} labels ask for {size} each")
        planes = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 3, STL10_SIDE, STL10_SIDE)
        labels.append(classes)
        images.append(planes.transpose(0, 3, 2, 1))
    return {"images": np.concatenate(images), "labels": np.concatenate(labels)}


def shrink_images(images: Array, side: int) -> Array:
    """Images ``[N, side, side, 3]`` uint8, no larger than before, each pixel the mean of the area it covers."""
    if images.shape[1:3] == (side, side):
        return images
    small = np.empty((len(images), side, side, 3), dtype=np.uint8)
    for start in range(0, len(images), IMAGES_AT_A_TIME):
        chosen = slice(start, start + IMAGES_AT_A_TIME)
        part = torch.from_numpy(np.ascontiguousarray(images[chosen])).permute(0, 3, 1, 2).float()
        small[chosen] = F.adaptive_avg_pool2d(part, side).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return small


def pca_features(images: Array, dim: int = 64) -> Array:
    """Projections ``[N, dim]`` float32 of the pixels on their leading principal directions, largest variance first.

    Each direction's sign makes its largest coefficient positive, so that the answer is unique.
    """
    flat = images.reshape(len(images), -1)
    n, pixels = flat.shape
    if not 1 <= dim <= min(n - 1, pixels):
        raise UserError(f"dim must lie between 1 and {min(n - 1, pixels)} for {n} images of {pixels} values, got {dim}")
    from sklearn.decomposition import PCA

    # The covariance of few images would be larger than the images.
    solver = "full" if n <= pixels else "covariance_eigh"
    return np.asarray(PCA(dim, svd_solver=solver).fit_transform(flat / 255), dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class TwentyNews(InstanceReader):
    """9607 posts of ten newsgroups as TF-IDF of the 236 words that occur in at least 5 % of them, without stop words.

    Count c_ij of word j in post i becomes c_ij · (ln(n / d_j) + 1), d_j being the number of posts with the word, and
    every row is divided by its length.

    Args:
        per_class: Training labels per class; 100, 200 and 400 in the paper.
        sparse: Features as sparse CSR; one entry in nine is not zero, so that dense is the default.
    """

    sparse: bool = False

    def read(self, found: Found) -> Arrays:
        return tfidf(_posts_of_lines(found) if found.form == "text" else _posts_of_archive(found))

    def task(self, content: Any) -> Task:
        x, y = csr_of(content), torch.from_numpy(content["y"])
        steps = f"TF-IDF of the {x.shape[1]} words in at least 5 % of the posts, rows of unit length"
        features, words = feature_tensor(x, as_sparse=self.sparse), tuple(map(str, content["vocabulary"]))
        return self.instance_task(features, y, self.few_labels(y), steps, feature_names=words)


def tfidf(posts: Iterable[tuple[str, int]]) -> Arrays:
    """Features of posts (text and number of the group)."""
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
        valid = max((len(y) - self.per_class * (int(y.max()) + 1)) // 2, 0)
        splits = self.few_labels(y, valid, "half of the rest for validation")
        steps = "columns standardised over all instances" if self.standardize else "features as they are"
        classes, columns = (tuple(map(str, names)) for names in (bunch.target_names, bunch.feature_names))
        x = (x if scaling is None else scaling(x)).float()
        parts = {"class_names": classes, "feature_names": columns, "scaling": scaling}
        return self.instance_task(x, y, splits, steps, **parts)
