"""CIFAR-10 and STL-10 as instances without a graph: features of images, few labels per class.

CIFAR-10: the first 1500 images of each class of the training set, in its order; STL-10: all 13,000 labelled images,
training set first. Protocol ``"paper"``: 10, 50 or 100 labels per class, 1000 images for validation, the rest for test.

Features: ``"simclr"`` (512 columns, learned without labels; a file that ``benchmarks/simclr`` makes), or without
any training ``"pca"`` and ``"pixels"``, for which STL-10's images are shrunk to 32 × 32 first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from difformer.data.archives import read_npz, tar_members
from difformer.data.catalogue import ENTRIES, members
from difformer.data.datasets.common import choice, few_label_splits, table_task
from difformer.data.errors import DataError
from difformer.data.lookup import Found, cache_folder, check_folders, find_file, locate, reading
from difformer.data.processed import Arrays, processed, stored_arrays
from difformer.data.task import Task
from difformer.errors import UserError

Array = np.ndarray[Any, Any]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
PER_CLASS_KEPT = 1500
SIDE = 32
STL10_SIDE = 96
FEATURES = ("simclr", "pca", "pixels")
CLASSES = {"cifar10": CIFAR10_CLASSES, "stl10": STL10_CLASSES}


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
        per_class: Training labels per class; 10, 50 and 100 in the paper.
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
    splits, said = few_label_splits(y, per_class, num_splits=num_splits, seed=seed)
    return table_task(
        name,
        x=torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)),
        y=y,
        splits=splits,
        knn=knn,
        steps=steps,
        protocol=said,
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
    file = ENTRIES[name].learned or ""
    path = find_file(file, root)
    if path is None:
        raise DataError(
            f"data set {name!r}: features=simclr needs {file}, which is in no data folder. Train it "
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
        options={"dim": pca_dim},
    )
    return arrays["features"], f"{pca_dim} principal components of pixels{shrunk}"


def read_labels(found: Found) -> Array:
    """Labels ``[N]`` int64, without the images where the files allow it."""
    if found.form == "subset":  # an NPZ gives one array without reading the others
        return read_npz(found.path, ("labels",))["labels"].astype(np.int64)
    if found.form == "folder":
        return np.concatenate([_stl_labels(found[f"{part}_y.bin"].read_bytes()) for part in ("train", "test")])
    return read_images(found)["labels"].astype(np.int64)


def read_images(found: Found) -> Arrays:
    """``images [N, H, W, 3]`` uint8 and ``labels [N]``."""
    if found.form == "subset":
        return read_npz(found.path, ("images", "labels"))
    if found.form == "folder":
        return read_stl10({path.name: path.read_bytes() for path in found.paths})
    read = _cifar_archive if found.name == "cifar10" else _stl_archive
    return stored_arrays(found, read)


def _cifar_archive(found: Found) -> Arrays:
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    members = _unpack(found, names)
    return read_cifar10(b"".join(members[name] for name in names), keep=PER_CLASS_KEPT)


def read_cifar10(records: bytes, *, keep: int) -> Arrays:
    """The binary version of CIFAR-10, the first `keep` images of each class.

    An image has 3073 bytes: its label, then red, green and blue, row by row.
    """
    size = 1 + 3 * SIDE * SIDE
    if not records or len(records) % size:
        raise DataError(f"{len(records)} bytes are not a whole number of images of {size} bytes")
    table = np.frombuffer(records, dtype=np.uint8).reshape(-1, size)
    labels = table[:, 0].astype(np.int64)
    if labels.max() >= len(CIFAR10_CLASSES):
        raise DataError(f"label {labels.max()} where 0 to {len(CIFAR10_CLASSES) - 1} are expected")
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == label)[:keep] for label in np.unique(labels)]))
    images = table[chosen, 1:].reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return {"images": np.ascontiguousarray(images), "labels": labels[chosen]}


def _stl_archive(found: Found) -> Arrays:
    return read_stl10(_unpack(found, members("stl10", "folder")))


def read_stl10(members: dict[str, bytes]) -> Arrays:
    """The binary version of STL-10: images of 96 × 96 with each colour stored column by column; labels 1 to 10."""
    size = 3 * STL10_SIDE * STL10_SIDE
    images, labels = [], []
    for part in ("train", "test"):
        pixels, classes = members[f"{part}_X.bin"], _stl_labels(members[f"{part}_y.bin"])
        if len(pixels) != size * len(classes):
            raise DataError(f"{part}_X.bin has {len(pixels)} bytes where {len(classes)} labels ask for {size} each")
        images.append(
            np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 3, STL10_SIDE, STL10_SIDE).transpose(0, 3, 2, 1)
        )
        labels.append(classes)
    return {"images": np.concatenate(images), "labels": np.concatenate(labels)}


def _stl_labels(content: bytes) -> Array:
    labels = np.frombuffer(content, dtype=np.uint8).astype(np.int64) - 1
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= len(STL10_CLASSES):
        raise DataError(f"STL-10's labels must lie between 1 and {len(STL10_CLASSES)}")
    return labels


def _unpack(found: Found, names: Iterable[str]) -> dict[str, bytes]:
    """Members of a tar archive by their last name, in one pass that ends as soon as all are there."""
    wanted, members = set(names), {}
    for path, content in tar_members(found.path, wanted.copy()):
        name = path.rsplit("/", 1)[-1]
        members[name] = content
        wanted.discard(name)
        if not wanted:
            break
    if wanted:
        raise DataError(f"the archive holds no {', '.join(sorted(wanted))}", path=found.path)
    return members


IMAGES_AT_A_TIME = 1000


def check_images(images: Array) -> None:
    """Refuses what is not ``[N, H, W, 3]`` uint8.

    Raises:
        ValueError: With the shape and type that came, and how to get to the right one.
    """
    if not isinstance(images, np.ndarray):
        raise UserError(f"images must be a numpy array of shape [N, H, W, 3], got {type(images).__name__}")
    if images.ndim != 4 or images.shape[3] != 3:
        hint = "; channels come last: transpose with images.transpose(0, 2, 3, 1)" if images.shape[1:2] == (3,) else ""
        raise UserError(f"images must have shape [N, H, W, 3], got {images.shape}{hint}")
    if images.dtype != np.uint8:
        raise UserError(
            f"images must be uint8 with values 0 to 255, got {images.dtype}; "
            f"floats in [0, 1] become so by (255 * images).round().astype('uint8')"
        )
    if len(images) == 0:
        raise UserError("images is empty: there is nothing to make features from")


def shrink_images(images: Array, side: int) -> Array:
    """Square images of a smaller side, every new pixel the mean of the area it covers.

    Args:
        images: ``[N, H, W, 3]`` uint8, for example STL-10's 96×96.
        side: New height and width, at most the old.

    Returns:
        ``[N, side, side, 3]`` uint8.
    """
    check_images(images)
    if not 1 <= side <= min(images.shape[1:3]):
        raise UserError(f"side must lie between 1 and {min(images.shape[1:3])}, the images' own, got {side}")
    small = np.empty((len(images), side, side, 3), dtype=np.uint8)
    for start in range(0, len(images), IMAGES_AT_A_TIME):
        chosen = slice(start, start + IMAGES_AT_A_TIME)
        part = torch.from_numpy(np.ascontiguousarray(images[chosen])).permute(0, 3, 1, 2).float()
        small[chosen] = F.adaptive_avg_pool2d(part, side).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return small


def pca_features(images: Array, dim: int = 64) -> Array:
    """Projections of the pixels on their leading principal directions.

    Args:
        images: ``[N, H, W, 3]`` uint8.
        dim: How many directions.

    Returns:
        ``[N, dim]`` float32, columns in order of falling variance; of a direction's two signs the one is taken that
        makes its largest coefficient positive, so that the answer is unique.

    Raises:
        ValueError: If there are not ``dim`` directions.
    """
    check_images(images)
    flat = images.reshape(len(images), -1)
    n, pixels = flat.shape
    if not 1 <= dim <= min(n - 1, pixels):
        raise UserError(f"dim must lie between 1 and {min(n - 1, pixels)} for {n} images of {pixels} values, got {dim}")
    from sklearn.decomposition import PCA

    # Of few images the covariance would be larger than the data, and mostly empty.
    solver = "full" if n <= pixels else "covariance_eigh"
    features: Array = PCA(dim, svd_solver=solver).fit_transform(flat / 255).astype(np.float32)
    return features
