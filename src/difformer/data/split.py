"""Splits: which instances are trained on, which choose the model, and which are only ever reported.

A split is an object with a name, so that two runs can be told to have used the same one. Instances in none of the three
parts (unlabelled nodes, nodes without features) take part in propagation but in no loss and no metric.

On disk a split is a small file: ``.npz`` (arrays) or ``.json`` (to be read by people), one split or several in each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.archives import read_npz
from difformer.data.errors import DAMAGE, DataError
from difformer.errors import UserError
from difformer.files import atomic_write

# What other people's files call the three parts.
ALIASES = {
    "train": ("train", "train_idx", "train_index"),
    "valid": ("valid", "val", "valid_idx", "val_idx", "valid_index", "val_index"),
    "test": ("test", "test_idx", "test_index"),
}


@dataclass(frozen=True, eq=False)  # tensors cannot say whether they are equal; `same_as` can
class Split:
    """Three disjoint sets of instance indices.

    Args:
        name: How the split is called in reports, for example ``"random/seed=3"``.
        train: Indices whose targets are trained on.
        valid: Indices whose targets choose epoch and hyper-parameters.
        test: Indices whose targets are only reported.

    Raises:
        ValueError: If an index is negative, occurs twice in a part, or is in two parts.
    """

    name: str
    train: Tensor
    valid: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        parts = self.parts()
        for part, index in parts.items():
            problem = ""
            if not isinstance(index, Tensor):
                problem = f"must be a tensor, got {type(index).__name__}; index_split takes lists and arrays"
            elif index.dtype != torch.long or index.dim() != 1:
                got = f"{index.dtype} of shape {tuple(index.shape)}"
                problem = f"must be a one-dimensional tensor of int64 indices, got {got}"
            elif index.numel() and int(index.min()) < 0:
                problem = f"holds the negative index {int(index.min())}"
            elif index.unique().numel() != index.numel():
                problem = "holds an index twice"
            if problem:
                raise UserError(f"split {self.name!r}: {part} {problem}")
        for first, second in (("train", "valid"), ("train", "test"), ("valid", "test")):
            both = parts[first][torch.isin(parts[first], parts[second])]
            if both.numel():
                raise UserError(
                    f"split {self.name!r}: {both.numel()} indices are in both {first} and {second}, "
                    f"for example {int(both[0])}; the parts must be disjoint"
                )

    def __repr__(self) -> str:
        train, valid, test = self.sizes()
        return f"Split({self.name!r}, {train:,} train, {valid:,} valid, {test:,} test)"

    def sizes(self) -> tuple[int, int, int]:
        """How many instances each part holds: train, valid, test."""
        return self.train.numel(), self.valid.numel(), self.test.numel()

    def parts(self) -> dict[str, Tensor]:
        """The three parts by name, in the order train, valid, test."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def check(self, num_instances: int) -> None:
        """Refuse a split that points outside a task of `num_instances` instances.

        Raises:
            ValueError: If some index is not below `num_instances`.
        """
        for part, index in self.parts().items():
            if index.numel() and int(index.max()) >= num_instances:
                raise UserError(
                    f"split {self.name!r}: {part} holds index {int(index.max())}, but there are {num_instances} "
                    f"instances (0 to {num_instances - 1}); the split was made for other data"
                )

    def same_as(self, other: Split) -> bool:
        """Whether both hold the same instances in the same parts; names and order do not count."""
        return all(
            torch.equal(mine.sort().values, theirs.sort().values)
            for mine, theirs in zip(self.parts().values(), other.parts().values(), strict=True)
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write this split to an ``.npz`` or ``.json`` file, whole or not at all."""
        save_splits([self], path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Split:
        """Read the one split that a file holds; see `load_splits` for files with several."""
        splits = load_splits(path)
        if len(splits) != 1:
            raise DataError(f"holds {len(splits)} splits, expected one; use load_splits to read them all", path=path)
        return splits[0]


def index_tensor(index: Any, called: str) -> Tensor:
    """Indices from a list, an array or a tensor, as one row of int64; errors call them `called`."""
    try:
        array = index.numpy(force=True) if isinstance(index, Tensor) else np.asarray(index)
    except ValueError as error:
        raise UserError(f"{called} must hold whole numbers, got lists of different lengths") from error
    if array.dtype.kind not in "iuf" or bool((array != np.floor(array)).any()):
        hint = "; for masks there is masks_split" if array.dtype.kind == "b" else ""
        raise UserError(f"{called} must hold whole numbers, got {array.dtype}{hint}")
    return torch.from_numpy(array.astype(np.int64).reshape(-1))


def save_splits(splits: Sequence[Split], path: str | os.PathLike[str]) -> None:
    """Write splits to one ``.npz`` or ``.json`` file, whole or not at all.

    The ``.npz`` holds ``names [S]`` and ``train_0, valid_0, test_0, train_1, …``; the ``.json`` a list of objects with
    ``name, train, valid, test``.
    """
    if not splits:
        raise UserError("splits: got none, expected at least one to write")
    suffix = _suffix(path)
    with atomic_write(path) as stream:
        if suffix == ".json":
            written = [{"name": s.name, **{k: v.tolist() for k, v in s.parts().items()}} for s in splits]
            stream.write((json.dumps(written) + "\n").encode())
        else:
            arrays: dict[str, Any] = {"names": np.array([split.name for split in splits])}
            for i, split in enumerate(splits):
                arrays.update({f"{part}_{i}": index.numpy(force=True) for part, index in split.parts().items()})
            np.savez_compressed(stream, **arrays)


def load_splits(path: str | os.PathLike[str]) -> tuple[Split, ...]:
    """Read every split of a file.

    Besides what `save_splits` writes, files with one unnamed split are read, its parts called ``train``, ``train_idx``
    or ``train_index`` (likewise ``valid``/``val`` and ``test``); its name is then that of the file.

    Raises:
        DataError: If the file is broken, a part is absent, or the parts overlap.
        FileNotFoundError: If there is no such file.
    """
    suffix = _suffix(path)
    if not Path(path).is_file():
        raise FileNotFoundError(f"no split file at {path}")
    try:
        found: Any = json.loads(Path(path).read_text(encoding="utf-8")) if suffix == ".json" else read_npz(path)
        if suffix == ".npz" and "names" in found:
            names = found["names"]
            if names.ndim != 1:
                raise DataError(f"names: expected a list, got an array of shape {names.shape}", path=path)
            found = [
                {"name": str(name), **{part: found[f"{part}_{i}"] for part in ALIASES}}
                for i, name in enumerate(names.tolist())
            ]
        found = found if isinstance(found, list) else [found]
        if not found or not all(isinstance(parts, dict) for parts in found):
            raise DataError("expected an object with train, valid and test, or a list of such objects", path=path)
        return tuple(split_of_parts(parts, Path(path).stem) for parts in found)
    except DataError:
        raise
    except DAMAGE as error:
        raise DataError(f"is not a file of splits ({type(error).__name__}: {error})", path=path) from error


def _suffix(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (".npz", ".json"):
        raise UserError(f"path: splits are kept in .npz or .json files, got {os.fspath(path)!r}")
    return suffix


def split_of_parts(found: Mapping[str, Any], default_name: str) -> Split:
    """The split whose parts have one of the names in `ALIASES`."""
    parts = {}
    for part, aliases in ALIASES.items():
        present = [alias for alias in aliases if alias in found]
        if len(present) != 1:
            raise UserError(f"expected one of {', '.join(aliases)}, found {', '.join(present) or 'none'}")
        parts[part] = index_tensor(found[present[0]], present[0])
    return Split(str(found.get("name", default_name)), **parts)
