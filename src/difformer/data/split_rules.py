"""Makers of splits: each is a pure function of the targets, the protocol's numbers and a seed.

What is drawn from are the *candidates*: instances that carry a target (not -1, not NaN) and are not excluded. Every
draw is a ``torch.randperm`` on a CPU generator seeded with ``seed``, so a split comes out alike on every machine, and
its name says protocol and seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.split import Split, index_tensor
from difformer.errors import UserError

AUTHORS_SEED = 123


def labelled(y: Any) -> Tensor:
    """Indices of the instances that carry a target: class ≥ 0, or at least one entry that is not NaN."""
    target = torch.as_tensor(y)
    if target.is_floating_point():
        known = ~target.isnan()
        return (known.flatten(1).any(1) if known.dim() > 1 else known).nonzero().squeeze(1)
    return (target >= 0).nonzero().squeeze(1) if target.dim() == 1 else torch.arange(len(target))


def random_split(
    target: Any,
    *,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    seed: int = 0,
    stratify: bool = False,
    exclude: Any = None,
    name: str | None = None,
) -> Split:
    """Candidates in random order, cut into three parts.

    Train and valid hold ⌊fraction · n⌋ of the n candidates. Test holds all that is left where the fractions sum to
    one, ⌊fraction · n⌋ otherwise.

    Args:
        target: Targets, or the number of instances where all of them may be drawn.
        fractions: Train, valid and test; each ≥ 0, together at most 1.
        seed: Of the draw.
        stratify: Keep the proportions of the classes in every part, to within one instance a class and cut.
        exclude: Indices never drawn.
        name: Instead of the name made from the fractions and the seed.
    """
    if len(fractions) != 3 or min(fractions) < 0 or not 0 < sum(fractions) <= 1 + 1e-9:
        raise UserError(
            f"fractions: expected three shares ≥ 0 (train, valid, test) that sum to at most 1, got {tuple(fractions)}"
        )
    generator = torch.Generator().manual_seed(seed)
    candidates = _candidates(target, exclude)
    n = candidates.numel()
    order = torch.randperm(n, generator=generator)
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
    called = name or f"{'stratified' if stratify else 'random'} {shares}/seed={seed}"
    return Split(called, *candidates[order][: train + valid + test].split([train, valid, test]))


def fraction_split(target: Any, *, protocol: str, seed: int = 0, exclude: Any = None) -> Split:
    """`random_split` with the fractions written as people write them: ``"10/10/80"``, ``"50/25/25"``."""
    try:
        percent = [float(part) for part in protocol.split("/")]
    except ValueError:
        percent = []
    if len(percent) != 3:
        raise UserError(f"protocol: expected three percentages such as '10/10/80', got {protocol!r}")
    return random_split(target, fractions=[part / 100 for part in percent], seed=seed, exclude=exclude)


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
    """`per_class` labels of every class to train; of all the others, in random order, `num_valid` and `num_test`.

    With ``num_test=None`` all the rest is test. This is the protocol of the citation graphs (20, 500, 1000).

    Raises:
        ValueError: If a class has fewer than `per_class` candidates, or too few others are left.
    """
    for option, count in (("per_class", per_class), ("num_valid", num_valid), ("num_test", num_test or 0)):
        if count < 0:
            raise UserError(f"{option}: expected at least 0, got {count}")
    classes, candidates = _classes(y), _candidates(y, exclude)
    generator = torch.Generator().manual_seed(seed)
    train, others = [], []
    for label in classes[candidates].unique().tolist():
        members = candidates[classes[candidates] == label]
        if members.numel() < per_class:
            raise UserError(
                f"per_class: {per_class} asked for, but class {label} has only {members.numel()} labelled instances"
            )
        order = members[torch.randperm(members.numel(), generator=generator)]
        train.append(order[:per_class])
        others.append(order[per_class:])
    if not train:
        raise UserError("y: no labelled instance to draw from")
    rest = torch.cat(others)
    rest = rest[torch.randperm(rest.numel(), generator=generator)]
    last = num_valid + num_test if num_test is not None else rest.numel()
    if rest.numel() < max(last, num_valid):
        raise UserError(
            f"num_valid, num_test: {num_valid} + {num_test or 0} asked for, but only {rest.numel()} labelled "
            f"instances are left after {per_class} a class went to training"
        )
    called = name or f"{per_class} a class/{num_valid}/{'rest' if num_test is None else num_test}/seed={seed}"
    return Split(called, torch.cat(train), rest[:num_valid], rest[num_valid:last])


def labels_per_class_split(
    y: Any, *, per_class: int, num_valid: int = 1000, seed: int = 0, exclude: Any = None
) -> Split:
    """`per_class` labels of every class to train, `num_valid` others to valid, all the rest to test: images, texts."""
    return per_class_split(y, per_class=per_class, num_valid=num_valid, num_test=None, seed=seed, exclude=exclude)


def authors_split(
    y: Any, *, per_class: int = 20, num_valid: int = 500, num_test: int = 1000, exclude: Any = None
) -> Split:
    """The one split on which the authors' code reports the citation graphs: seed 123.

    Class by class one ``randperm`` of its nodes, the first 20 to training; the others of all classes, kept class after
    class in the order just drawn, take one more ``randperm``, and the first 500 and the next 1000 are valid and test.

    Args:
        y: Classes.
        per_class: Training labels per class.
        num_valid: Size of the valid part.
        num_test: Size of the test part.
        exclude: Indices taken out *after* the draw, so that all others are where the authors' split has them.
    """
    split = per_class_split(
        y, per_class=per_class, num_valid=num_valid, num_test=num_test, seed=AUTHORS_SEED, name="authors/seed=123"
    )
    if exclude is None:
        return split
    kept = {part: index[~_excluded(index, exclude)] for part, index in split.parts().items()}
    taken = sum(split.sizes()) - sum(index.numel() for index in kept.values())
    return Split(f"authors/seed=123 less {taken} excluded" if taken else split.name, **kept)


def time_split(num_snapshots: int, *, ratio: Sequence[float] = (2, 2, 6)) -> Split:
    """Snapshots in time order: the first to train, the next to valid, the last to test; nothing is drawn."""
    if len(ratio) != 3 or min(ratio) < 0 or sum(ratio) <= 0:
        raise UserError(f"ratio: expected three numbers ≥ 0 with a positive sum, got {tuple(ratio)}")
    train, valid = (_floor(num_snapshots * part / sum(ratio)) for part in ratio[:2])
    if ratio[2] == 0:
        valid = num_snapshots - train
    index = torch.arange(num_snapshots)
    name = "time " + ":".join(f"{part:g}" for part in ratio)
    return Split(name, index[:train], index[train : train + valid], index[train + valid :])


def masks_split(
    train_masks: Any, valid_masks: Any, test_masks: Any, *, name: str = "published", exclude: Any = None
) -> tuple[Split, ...]:
    """Published masks, ``[N]`` or ``[S, N]`` booleans, as S splits called ``"published/0"``, ``"published/1"``, …

    Args:
        train_masks: True where an instance is trained on.
        valid_masks: True where it chooses the model.
        test_masks: True where it is reported.
        name: Of the protocol.
        exclude: Indices taken out of every part.
    """
    masks = [torch.atleast_2d(torch.as_tensor(mask)) for mask in (train_masks, valid_masks, test_masks)]
    if any(mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()) for mask in masks):
        raise UserError("masks: expected True and False, or 1 and 0; for lists of indices there is index_split")
    if len({mask.shape for mask in masks}) != 1:
        raise UserError(f"masks: expected three of one shape, got {[tuple(mask.shape) for mask in masks]}")
    splits = []
    for i, row in enumerate(zip(*masks, strict=True)):
        parts = [mask.nonzero().squeeze(1) for mask in row]
        parts = [index if exclude is None else index[~_excluded(index, exclude)] for index in parts]
        splits.append(Split(f"{name}/{i}", *parts))
    return tuple(splits)


def index_split(name: str, train: Any, valid: Any, test: Any) -> Split:
    """A split from three sequences of indices (lists, arrays, tensors), as published files hold them."""
    parts = {"train": train, "valid": valid, "test": test}
    return Split(name, **{part: index_tensor(index, f"split {name!r}: {part}") for part, index in parts.items()})


def _candidates(target: Any, exclude: Any) -> Tensor:
    candidates = torch.arange(int(target)) if isinstance(target, (int, np.integer)) else labelled(target)
    return candidates if exclude is None else candidates[~_excluded(candidates, exclude)]


def _excluded(index: Tensor, exclude: Any) -> Tensor:
    return torch.isin(index, torch.as_tensor(exclude, dtype=torch.long))


def _classes(y: Any) -> Tensor:
    classes = torch.as_tensor(y) if not isinstance(y, (int, np.integer)) else None
    if classes is None or classes.dim() != 1 or classes.is_floating_point():
        raise UserError("y: a split by class needs a one-dimensional vector of whole-numbered classes")
    return classes


def _floor(value: float) -> int:
    return int(value + 1e-6)  # 0.1 · 30 is 3.0000000000000004 and 0.7 · 10 is 6.999…: neither may cost an instance
