"""Splits: which instances are trained on, which choose the model, and which are only reported.

Instances in none of the three parts (unlabelled nodes, nodes without features) take part in propagation but in no loss
and no metric. Random splits draw from the *candidates*, the instances with a target (not -1, not NaN), by
``torch.randperm`` on a seeded CPU generator, the same on every machine; their name gives protocol and seed.
"""

from __future__ import annotations

import json
import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.archives import read_npz
from difformer.errors import DAMAGE, DataError, UserError
from difformer.files import atomic_write

AUTHORS_SEED = 123
# What other people's files call the three parts.
ALIASES = {
    "train": ("train", "train_idx", "train_index"),
    "valid": ("valid", "val", "valid_idx", "val_idx", "valid_index", "val_index"),
    "test": ("test", "test_idx", "test_index"),
}


@dataclass(frozen=True, eq=False)  # tensors have no single answer to ==; `same_as` can
class Split:
    """Three disjoint sets of instance indices.

    Args:
        name: Name in reports, for example ``"random/seed=3"``.
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
                problem = f"must be a one-dimensional tensor of int64 indices, got {index.dtype} {tuple(index.shape)}"
            elif index.numel() and int(index.min()) < 0:
                problem = f"holds the negative index {int(index.min())}"
            elif index.unique().numel() != index.numel():
                problem = "holds an index twice"
            if problem:
                raise UserError(f"split {self.name!r}: {part} {problem}")
        for first, second in combinations(parts, 2):
            both = parts[first][torch.isin(parts[first], parts[second])]
            if both.numel():
                found = f"{both.numel()} indices are in both {first} and {second}, for example {int(both[0])}"
                raise UserError(f"split {self.name!r}: {found}; the parts must be disjoint")

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
        """Raises a ValueError if some index is not below `num_instances`."""
        for part, index in self.parts().items():
            if index.numel() and int(index.max()) >= num_instances:
                there = f"there are {num_instances} instances (0 to {num_instances - 1})"
                problem = f"{part} holds index {int(index.max())}, but {there}; the split was made for other data"
                raise UserError(f"split {self.name!r}: {problem}")

    def same_as(self, other: Split) -> bool:
        """Whether both hold the same instances in the same parts; names and order do not count."""
        pairs = zip(self.parts().values(), other.parts().values(), strict=True)
        return all(torch.equal(mine.sort().values, theirs.sort().values) for mine, theirs in pairs)


def save_splits(splits: Sequence[Split], path: str | os.PathLike[str]) -> None:
    """Write splits to one ``.npz`` or ``.json`` file, completely or not at all.

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

    Besides what `save_splits` writes, files with one unnamed split are read, with parts called ``train``, ``train_idx``
    or ``train_index`` (likewise ``valid``/``val`` and ``test``); the split is named after the file.

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
            numbered = enumerate(names.tolist())
            found = [{"name": name, **{part: found[f"{part}_{i}"] for part in ALIASES}} for i, name in numbered]
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
        raise UserError(f"splits are kept in .npz or .json files, got {os.fspath(path)!r}")
    return suffix


def split_of_parts(found: Mapping[str, Any], default_name: str) -> Split:
    """A split from parts whose names are in `ALIASES`."""
    parts = {}
    for part, aliases in ALIASES.items():
        present = [alias for alias in aliases if alias in found]
        if len(present) != 1:
            raise UserError(f"expected one of {', '.join(aliases)}, found {', '.join(present) or 'none'}")
        parts[part] = _indices(found[present[0]], present[0])
    return Split(str(found.get("name", default_name)), **parts)


def index_split(name: str, train: Any, valid: Any, test: Any) -> Split:
    """A split from three sequences of indices (lists, arrays, tensors), as published files hold them."""
    parts = {"train": train, "valid": valid, "test": test}
    return Split(name, **{part: _indices(index, f"split {name!r}: {part}") for part, index in parts.items()})


def _indices(given: Any, called: str) -> Tensor:
    """Indices from a list, an array or a tensor, as one row of int64; `called` names them in errors."""
    try:
        array = given.numpy(force=True) if isinstance(given, Tensor) else np.asarray(given)
    except ValueError as error:
        raise UserError(f"{called} must hold whole numbers, got lists of different lengths") from error
    if array.dtype.kind not in "iuf" or bool((array != np.floor(array)).any()):
        hint = "; for masks there is masks_split" if array.dtype.kind == "b" else ""
        raise UserError(f"{called} must hold whole numbers, got {array.dtype}{hint}")
    return torch.from_numpy(array.astype(np.int64).reshape(-1))


def masks_split(train_masks: Any, valid_masks: Any, test_masks: Any, *, name: str = "published") -> tuple[Split, ...]:
    """Published masks, ``[N]`` or ``[S, N]`` booleans, as S splits called ``"published/0"``, ``"published/1"``, …"""
    masks = [torch.atleast_2d(torch.as_tensor(mask)) for mask in (train_masks, valid_masks, test_masks)]
    if any(bool(((mask != 0) & (mask != 1)).any()) for mask in masks):
        raise UserError("masks: expected True and False, or 1 and 0; for lists of indices there is index_split")
    if len({mask.shape for mask in masks}) != 1:
        raise UserError(f"masks: expected three of one shape, got {[tuple(mask.shape) for mask in masks]}")
    rows = enumerate(zip(*masks, strict=True))
    return tuple(Split(f"{name}/{i}", *((mask != 0).nonzero().squeeze(1) for mask in row)) for i, row in rows)


def labelled(y: Any) -> Tensor:
    """Indices of the instances that carry a target: at least one class ≥ 0, or one entry that is not NaN."""
    target = torch.as_tensor(y)
    known = ~target.isnan() if target.is_floating_point() else target >= 0
    return (known.flatten(1).any(1) if known.dim() > 1 else known).nonzero().squeeze(1)


def random_split(
    target: Any, *, fractions: Sequence[float] = (0.5, 0.25, 0.25), seed: int = 0, stratify: bool = False
) -> Split:
    """Candidates in random order, cut into three parts.

    Train and valid hold ⌊fraction · n⌋ of the n candidates. Test holds the rest if the fractions sum to one, otherwise
    ⌊fraction · n⌋.

    Args:
        target: Targets, or the number of instances if all of them may be drawn.
        fractions: Train, valid and test; each ≥ 0, together at most 1.
        seed: Seed of the draw.
        stratify: Keep the proportions of the classes in every part, to within one instance per class and cut.
    """
    try:
        fits = len(fractions) == 3 and min(fractions) >= 0 and 0 < sum(fractions) <= 1 + 1e-9
    except TypeError:
        fits = False
    if not fits:
        expected = "three shares ≥ 0 (train, valid, test) that sum to at most 1"
        raise UserError(f"fractions: expected {expected}, got {fractions!r}")
    candidates = torch.arange(int(target)) if isinstance(target, (int, np.integer)) else labelled(target)
    n = candidates.numel()
    order = torch.randperm(n, generator=_generator(seed))
    if stratify:
        # Every prefix holds each class in proportion: sort by (rank in its class + ½) / size of it.
        classes, place = _classes(target)[candidates], torch.empty(n, dtype=torch.double)
        for label in classes.unique():
            members = order[classes[order] == label]
            place[members] = (torch.arange(members.numel(), dtype=torch.double) + 0.5) / members.numel()
        order = order[place[order].argsort(stable=True)]
    train, valid, test = (_floor(share * n) for share in fractions)
    if abs(sum(fractions) - 1) < 1e-9:
        test = n - train - valid
    shares = "/".join(f"{100 * share:g}" for share in fractions)
    called = f"{'stratified' if stratify else 'random'} {shares}/seed={seed}"
    return Split(called, *candidates[order][: train + valid + test].split([train, valid, test]))


def _generator(seed: int) -> torch.Generator:
    try:
        return torch.Generator().manual_seed(operator.index(seed))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"seed: expected a whole number below 2⁶⁴, got {str(seed)[:40]!r}") from error


def fraction_split(target: Any, *, protocol: str, seed: int = 0) -> Split:
    """`random_split` with the fractions as percentages: ``"10/10/80"``, ``"50/25/25"``."""
    try:
        train, valid, test = (float(part) / 100 for part in protocol.split("/"))
    except ValueError as error:
        raise UserError(f"protocol: expected three percentages such as '10/10/80', got {protocol!r}") from error
    return random_split(target, fractions=(train, valid, test), seed=seed)


def per_class_split(
    y: Any,
    *,
    per_class: int = 20,
    num_valid: int = 500,
    num_test: int | None = 1000,
    seed: int = 0,
    exclude: Any = None,
    name: str | None = None,
) -> Split:
    """`per_class` labels of every class to train; of the others, in random order, `num_valid` and `num_test`.

    With ``num_test=None`` all the rest is test. This is the protocol of the citation graphs (20, 500, 1000). Instances
    in `exclude` are never drawn.

    Raises:
        ValueError: If a class has fewer than `per_class` candidates, or too few others are left.
    """
    for option, count in (("per_class", per_class), ("num_valid", num_valid), ("num_test", num_test or 0)):
        if count < 0:
            raise UserError(f"{option}: expected at least 0, got {count}")
    classes, candidates = _classes(y), labelled(y)
    if exclude is not None:
        candidates = candidates[~torch.isin(candidates, torch.as_tensor(exclude, dtype=torch.long))]
    generator = _generator(seed)
    train, others = [], []
    for label in classes[candidates].unique().tolist():
        members = candidates[classes[candidates] == label]
        if members.numel() < per_class:
            found = f"class {label} has only {members.numel()} labelled instances"
            raise UserError(f"per_class: {per_class} asked for, but {found}")
        order = members[torch.randperm(members.numel(), generator=generator)]
        train.append(order[:per_class])
        others.append(order[per_class:])
    if not train:
        raise UserError("y: no labelled instance to draw from")
    rest = torch.cat(others)
    rest = rest[torch.randperm(rest.numel(), generator=generator)]
    last = num_valid + num_test if num_test is not None else max(rest.numel(), num_valid)
    if rest.numel() < last:
        left = f"only {rest.numel()} labelled instances are left after {per_class} per class went to training"
        raise UserError(f"num_valid, num_test: {num_valid} + {num_test or 0} asked for, but {left}")
    called = name or f"{per_class} per class/{num_valid}/{'rest' if num_test is None else num_test}/seed={seed}"
    return Split(called, torch.cat(train), rest[:num_valid], rest[num_valid:last])


def current_name(name: str) -> str:
    """A name of a split or a protocol in today's words: earlier versions wrote "20 a class"."""
    return re.sub(r"^(\d+(?: labels)?) a class\b", r"\1 per class", name)


def authors_split(y: Any) -> Split:
    """The one split on which the authors' code reports the citation graphs: `per_class_split` with seed 123."""
    return per_class_split(y, seed=AUTHORS_SEED, name="authors/seed=123")


def time_split(num_snapshots: int, *, ratio: Sequence[float] = (2, 2, 6)) -> Split:
    """Snapshots in time order: the first to train, the next to valid, the last to test."""
    if len(ratio) != 3 or min(ratio) < 0 or sum(ratio) <= 0:
        raise UserError(f"ratio: expected three numbers ≥ 0 with a positive sum, got {tuple(ratio)}")
    train, valid = (_floor(num_snapshots * part / sum(ratio)) for part in ratio[:2])
    valid = valid if ratio[2] else num_snapshots - train
    name = "time " + ":".join(f"{part:g}" for part in ratio)
    return Split(name, *torch.arange(num_snapshots).split([train, valid, num_snapshots - train - valid]))


def _classes(y: Any) -> Tensor:
    classes = torch.as_tensor(y)
    if classes.dim() != 1 or classes.is_floating_point():
        raise UserError("y: a split by class needs a one-dimensional vector of whole-numbered classes")
    return classes


def _floor(value: float) -> int:
    return int(value + 1e-6)  # 0.1 · 30 is 3.0000000000000004 and 0.7 · 10 is 6.999…: neither may cost an instance
