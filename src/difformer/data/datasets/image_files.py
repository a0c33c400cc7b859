"""The files of CIFAR-10 and STL-10, in the binary versions that need no pickle, and the former's prepared subset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from difformer.data.archives import read_npz, tar_members
from difformer.data.errors import DataError
from difformer.data.lookup import Found
from difformer.data.processed import Arrays, processed
from difformer.data.sources import STL10_MEMBERS

Array = np.ndarray[Any, Any]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
STL10_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
PER_CLASS_KEPT = 1500
SIDE = 32
STL10_SIDE = 96
_FORMAT = 1


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
    return processed(found.name, lambda: read(found), sources=found.paths, version=_FORMAT)


def _cifar_archive(found: Found) -> Arrays:
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    members = _unpack(found, names)
    return read_cifar10(b"".join(members[name] for name in names), keep=PER_CLASS_KEPT)


def read_cifar10(records: bytes, *, keep: int) -> Arrays:
    """The binary version of CIFAR-10: 3073 bytes an image, its label, then red, green and blue, row by row.

    Args:
        records: The training batches, one after the other.
        keep: Images kept of each class, the first ones.
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
    return read_stl10(_unpack(found, STL10_MEMBERS))


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
