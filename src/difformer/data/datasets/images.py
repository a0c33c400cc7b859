"""CIFAR-10 and STL-10 as instances without a graph: features of images, few labels a class.

CIFAR-10: the first 1500 images of each class of the training set, in its order; STL-10: all 13,000 labelled images,
training set first. Protocol ``"paper"``: 10, 50 or 100 labels a class, 1000 images for validation, the rest for test.

Features: ``"simclr"`` (512 columns, learned without labels; a file that ``benchmarks/simclr`` makes), or without
any training ``"pca"`` and ``"pixels"``, for which STL-10's images are shrunk to 32 × 32 first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from difformer.data.archives import read_npz
from difformer.data.datasets.common import choice, seeded, seeds_of, table_task
from difformer.data.datasets.image_files import CIFAR10_CLASSES, SIDE, STL10_CLASSES, read_images, read_labels
from difformer.data.datasets.pixels import pca_features, shrink_images
from difformer.data.errors import DataError
from difformer.data.lookup import Found, cache_folder, check_folders, find_file, locate, reading
from difformer.data.processed import processed
from difformer.data.sources import features_path
from difformer.data.splitting import labels_per_class_split
from difformer.data.task import Task

Array = np.ndarray[Any, Any]

FEATURES = ("simclr", "pca", "pixels")
CLASSES = {"cifar10": CIFAR10_CLASSES, "stl10": STL10_CLASSES}
_FORMAT = 1


def images(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    protocol: str = "paper",
    features: str = "simclr",
    per_class: int = 100,
    num_splits: int = 5,
    seed: int = 0,
    pca_dim: int = 64,
    knn: int | None = None,
) -> Task:
    """CIFAR-10, 15,000 images of it, or STL-10, 13,000.

    Args:
        name: ``"cifar10"`` or ``"stl10"``.
        root: Folder to search first.
        protocol: ``"paper"``.
        features: ``"simclr"`` (learned, 512 columns, from a file), ``"pca"`` or ``"pixels"``.
        per_class: Training labels a class; 10, 50 and 100 in the paper.
        num_splits: How many splits.
        seed: Of the first; the others follow.
        pca_dim: Columns of ``"pca"``.
        knn: Join every image to its nearest ones, itself counted; None for no graph.
    """
    choice("protocol", protocol, ("paper",))
    choice("features", features, FEATURES)
    learned = _simclr_file(name, root) if features == "simclr" else None  # before gigabytes of images are fetched
    found = locate(name, root)
    with reading(found):
        labels = read_labels(found)
    if learned is not None:
        x, steps = _simclr(name, learned, labels), "SimCLR features, learned without labels"
    else:
        x, steps = _plain(found, features, pca_dim)
    y = torch.from_numpy(labels)
    splits = seeded(
        lambda s: labels_per_class_split(y, per_class=per_class, num_valid=1000, seed=s),
        num_splits=num_splits,
        seed=seed,
    )
    return table_task(
        name,
        x=torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)),
        y=y,
        splits=splits,
        knn=knn,
        steps=steps,
        protocol=f"paper: {per_class} labels a class, 1000 for validation, the rest test, {seeds_of(num_splits, seed)}",
        class_names=CLASSES[name],
    )


def load_images(name: str, root: str | os.PathLike[str] | None = None) -> tuple[Array, Array]:
    """Images ``[N, H, W, 3]`` uint8 and labels ``[N]`` int64, in the order of the task: what SimCLR is trained on.

    Args:
        name: ``"cifar10"`` or ``"stl10"``.
        root: Folder to search first.
    """
    choice("name", name, tuple(CLASSES))
    found = locate(name, root)
    with reading(found):
        arrays = read_images(found)
        return arrays["images"], arrays["labels"].astype(np.int64)


def _simclr_file(name: str, root: str | os.PathLike[str] | None) -> Path:
    check_folders(root)
    path = find_file(features_path(name), root)
    if path is None:
        raise DataError(
            f"data set {name!r}: features=simclr needs {features_path(name)}, which is in no data folder. Train it "
            f"with `python -m benchmarks.simclr.cifar10` (in the source repository) and put the file into "
            f"{cache_folder() / name}; or use features=pca or features=pixels, which need no training"
        )
    return path


def _simclr(name: str, path: Path, labels: Array) -> Array:
    with reading(path, data_set=name):
        file = read_npz(path)
        x: Array = file["features"]
        method = json.loads(str(file["metadata"])).get("method") if "metadata" in file else "simclr"
        beside = file.get("labels", labels)
    if method != "simclr":
        raise DataError(f"the features in this file were made by {method!r}, not by SimCLR", path=path)
    if len(x) != len(labels):
        raise DataError(
            f"{len(x)} rows of features for {len(labels)} images; they were made from other images", path=path
        )
    if x.ndim != 2 or x.dtype.kind != "f" or not np.isfinite(x).all():
        raise DataError(f"features must be a table of finite floats, got {x.dtype} of shape {list(x.shape)}", path=path)
    if not np.array_equal(beside, labels):
        raise DataError("the labels beside these features are others; they were made from other images", path=path)
    return x


def _plain(found: Found, features: str, pca_dim: int) -> tuple[Array, str]:
    def small_images() -> Array:
        with reading(found):
            full: Array = read_images(found)["images"]
        return shrink_images(full, SIDE) if full.shape[1] > SIDE else full

    shrunk = f" of images shrunk to {SIDE} × {SIDE}" if found.name == "stl10" else ""
    if features == "pixels":
        small = small_images()
        return small.reshape(len(small), -1) / np.float32(255), f"pixels{shrunk}, 0 to 1"
    arrays = processed(
        f"{found.name}-pca",
        lambda: {"features": pca_features(small_images(), pca_dim)},
        sources=found.paths,
        version=_FORMAT,
        options={"dim": pca_dim},
    )
    return arrays["features"], f"{pca_dim} principal components of pixels{shrunk}"
