"""CIFAR-10 and STL-10 as instances without a graph: features of images, few labels per class.

CIFAR-10: the first 1500 images of each class of the training set, in its order; STL-10: all 13,000 labelled images,
training set first. Protocol ``"paper"``: 10, 50 or 100 labels per class, 1000 images for validation, the rest for test.

Features: ``"simclr"`` (512 columns, learned without labels; a file that ``benchmarks/simclr`` makes), or ``"pca"`` and
``"pixels"``, which need no training; for these STL-10's images are shrunk to 32 × 32 first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from difformer.data.archives import read_npz, tar_members
from difformer.data.catalogue import ENTRIES
from difformer.data.datasets.common import Array, Arrays, InstanceReader, processed
from difformer.data.errors import DataError
from difformer.data.lookup import Found, cache_folder, check_folders, find_file, locate, reading
from difformer.data.task import Task
from difformer.errors import UserError

PER_CLASS_KEPT = 1500
SIDE, STL10_SIDE = 32, 96
IMAGES_AT_A_TIME = 1000


@dataclass(frozen=True, kw_only=True)
class Images(InstanceReader):
    """CIFAR-10, 15,000 images of it, or STL-10, 13,000.

    Args:
        features: ``"simclr"`` (learned, 512 columns, from a file), ``"pca"`` or ``"pixels"``.
        per_class: Training labels per class; 10, 50 and 100 in the paper.
        pca_dim: Columns of ``"pca"``.
    """

    protocol: str = "paper"
    features: str = "simclr"
    pca_dim: int = 64
    choices = (("features", ("simclr", "pca", "pixels")),)

    def locate(self) -> Found:
        if self.features == "simclr":
            self._learned()  # before gigabytes of images are fetched
        return super().locate()

    def content(self, found: Found) -> tuple[Found, Array]:
        return found, read_images(found, labels_only=True)["labels"].astype(np.int64)

    def task(self, content: tuple[Found, Array]) -> Task:
        found, labels = content

        def small() -> Array:
            with reading(found):
                full = read_images(found)["images"]
            return shrink_images(full, SIDE)

        def components() -> Arrays:
            return {"features": pca_features(small(), self.pca_dim)}

        shrunk = f" of images shrunk to {SIDE} × {SIDE}" if self.name == "stl10" else ""
        if self.features == "simclr":
            x, steps = self._simclr(labels), "SimCLR features, learned without labels"
        elif self.features == "pixels":
            x, steps = small().reshape(len(labels), -1) / np.float32(255), f"pixels{shrunk}, 0 to 1"
        else:
            options = {"dim": self.pca_dim}
            x = processed(f"{self.name}-pca", components, sources=found.paths, options=options)["features"]
            steps = f"{self.pca_dim} principal components of pixels{shrunk}"
        y, features = torch.from_numpy(labels), torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
        return self.instance_task(features, y, self.few_labels(y), steps)

    def _learned(self) -> Path:
        check_folders(self.root)
        file = ENTRIES[self.name].learned or ""
        path = find_file(file, self.root)
        if path is None:
            raise DataError(
                f"data set {self.name!r}: features=simclr needs {file}, which is in no data folder. Train it "
                f"with `python -m benchmarks.simclr.cifar10` (in the source repository) and put the file into "
                f"{cache_folder() / self.name}; or use features=pca or features=pixels, which need no training"
            )
        return path

    def _simclr(self, labels: Array) -> Array:
        path = self._learned()
        with reading(path, data_set=self.name):
            file = read_npz(path)
            x: Array = file["features"]
            method = json.loads(str(file["metadata"])).get("method") if "metadata" in file else "simclr"
        problem = ""
        if method != "simclr":
            problem = f"the features in this file were made by {method!r}, not by SimCLR"
        elif len(x) != len(labels):
            problem = f"{len(x)} rows of features for {len(labels)} images; they were made from other images"
        elif x.ndim != 2 or x.dtype.kind != "f" or not np.isfinite(x).all():
            problem = f"features must be a table of finite floats, got {x.dtype} of shape {list(x.shape)}"
        elif not np.array_equal(file.get("labels", labels), labels):
            problem = "the labels beside these features are others; they were made from other images"
        if problem:
            raise DataError(problem, path=path)
        return x


def load_images(name: str, root: str | os.PathLike[str] | None = None) -> tuple[Array, Array]:
    """Images ``[N, H, W, 3]`` uint8 and labels ``[N]`` int64 of ``"cifar10"`` or ``"stl10"``, in the order of the task.

    This is what SimCLR is trained on. `root` is the folder to search first.
    """
    if name not in ("cifar10", "stl10"):
        raise UserError(f"name must be one of 'cifar10', 'stl10'; got {name!r}")
    found = locate(name, root)
    with reading(found):
        arrays = read_images(found)
        return arrays["images"], arrays["labels"].astype(np.int64)


def read_images(found: Found, *, labels_only: bool = False) -> Arrays:
    """``images [N, H, W, 3]`` uint8 and ``labels [N]``; with `labels_only` without images where the files allow it."""
    if found.form == "subset":  # an NPZ gives one array without reading the others
        arrays = read_npz(found.path, ("labels",) if labels_only else ("images", "labels"))
        if "images" in arrays and (arrays["images"].shape[1:] != (SIDE, SIDE, 3) or arrays["images"].dtype != np.uint8):
            images = arrays["images"]
            raise DataError(f"images must have shape [N, {SIDE}, {SIDE}, 3], uint8, got {images.dtype} {images.shape}")
        return arrays
    if found.form == "folder":
        paths = [path for path in found.paths if not labels_only or path.name.endswith("_y.bin")]
        return read_stl10({path.name: path.read_bytes() for path in paths})
    stl = found.name == "stl10"
    stl_names = [f"{part}_{what}.bin" for part in ("train", "test") for what in "Xy"]
    names = stl_names if stl else [f"data_batch_{i}.bin" for i in range(1, 6)]
    read = read_stl10 if stl else read_cifar10
    return processed(found.name, lambda: read(_unpack(found, names)), sources=found.paths)


def read_cifar10(files: dict[str, bytes]) -> Arrays:
    """The binary version of CIFAR-10, the first images of each class.

    An image has 3073 bytes: its label, then red, green and blue, row by row.
    """
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
    """The binary version of STL-10: images of 96 × 96 with each colour stored column by column; labels 1 to 10."""
    size = 3 * STL10_SIDE * STL10_SIDE
    images, labels = [], []
    for part in ("train", "test"):
        classes = np.frombuffer(files[f"{part}_y.bin"], dtype=np.uint8).astype(np.int64) - 1
        if len(classes) == 0 or classes.min() < 0 or classes.max() > 9:
            raise DataError("STL-10's labels must lie between 1 and 10")
        labels.append(classes)
        pixels = files.get(f"{part}_X.bin")
        if pixels is not None:
            if len(pixels) != size * len(classes):
                raise DataError(f"{part}_X.bin has {len(pixels)} bytes where {len(classes)} labels ask for {size} each")
            planes = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 3, STL10_SIDE, STL10_SIDE)
            images.append(planes.transpose(0, 3, 2, 1))
    return {"labels": np.concatenate(labels), **({"images": np.concatenate(images)} if images else {})}


def _unpack(found: Found, names: Collection[str]) -> dict[str, bytes]:
    """Members of a tar archive by their last name, in one pass that ends as soon as all are there."""
    inside: dict[str, bytes] = {}
    for path, content in tar_members(found.path, names):
        inside[path.rsplit("/", 1)[-1]] = content
        if len(inside) == len(names):
            break
    if absent := [name for name in names if name not in inside]:
        raise DataError(f"the archive holds no {', '.join(absent)}", path=found.path)
    return {name: inside[name] for name in names}


def shrink_images(images: Array, side: int) -> Array:
    """Images ``[N, side, side, 3]`` uint8, no larger than before, each pixel the mean of the area it covers."""
    if not 1 <= side <= min(images.shape[1:3]):
        raise UserError(f"side must lie between 1 and {min(images.shape[1:3])}, the images' own, got {side}")
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
    features: Array = PCA(dim, svd_solver=solver).fit_transform(flat / 255).astype(np.float32)
    return features
