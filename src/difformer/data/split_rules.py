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
    train, valid, test = _checked_fractions(fractions)
    generator = torch.Generator().manual_seed(seed)
    candidates = _candidates(target, exclude)
    order = torch.randperm(candidates.numel(), generator=generator)
    if stratify:
        order = _interleave_classes(order, _classes(target)[candidates])
    n = candidates.numel()
    first, second = _floor(train * n), _floor(valid * n)
    third = n - first - second if abs(train + valid + test - 1) < 1e-9 else _floor(test * n)
    shuffled = candidates[order]
    share = "/".join(f"{100 * f:g}" for f in (train, valid, test))
    return Split(
        name or f"{'stratified' if stratify else 'random'} {share}/seed={seed}",
        shuffled[:first],
        shuffled[first : first + second],
        shuffled[first + second : first + second + third],
    )


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
    train, others = _draw_by_class(y, per_class, seed, exclude)
    wanted = num_valid + (num_test or 0)
    if others.numel() < wanted:
        raise UserError(
            f"num_valid, num_test: {num_valid} + {num_test or 0} asked for, but only {others.numel()} labelled "
            f"instances are left after {per_class} a class went to training"
        )
    last = wanted if num_test is not None else others.numel()
    rest = "rest" if num_test is None else num_test
    return Split(
        name or f"{per_class} a class/{num_valid}/{rest}/seed={seed}",
        train,
        others[:num_valid],
        others[num_valid:last],
    )


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
    gone = torch.as_tensor(exclude, dtype=torch.long)
    kept = {part: index[~torch.isin(index, gone)] for part, index in split.parts().items()}
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
    given = [torch.atleast_2d(torch.as_tensor(mask)) for mask in (train_masks, valid_masks, test_masks)]
    for mask in given:
        if mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()):
            raise UserError("masks: expected True and False, or 1 and 0; for lists of indices there is index_split")
    masks = [mask.bool() for mask in given]
    if len({mask.shape for mask in masks}) != 1:
        raise UserError(f"masks: expected three of one shape, got {[tuple(mask.shape) for mask in masks]}")
    if exclude is not None:
        gone = torch.as_tensor(exclude, dtype=torch.long)
        masks = [mask.index_fill(1, gone, False) for mask in masks]
    return tuple(
        Split(f"{name}/{i}", *(mask.nonzero().squeeze(1) for mask in row))
        for i, row in enumerate(zip(*masks, strict=True))
    )


def index_split(name: str, train: Any, valid: Any, test: Any) -> Split:
    """A split from three sequences of indices (lists, arrays, tensors), as published files hold them."""
    parts = {"train": train, "valid": valid, "test": test}
    return Split(name, **{part: index_tensor(index, f"split {name!r}: {part}") for part, index in parts.items()})


def _draw_by_class(y: Any, per_class: int, seed: int, exclude: Any) -> tuple[Tensor, Tensor]:
    """The first `per_class` of a random order of every class, and all other candidates in random order."""
    classes = _classes(y)
    candidates = _candidates(y, exclude)
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
    return torch.cat(train), rest[torch.randperm(rest.numel(), generator=generator)]


def _candidates(target: Any, exclude: Any) -> Tensor:
    if isinstance(target, (int, np.integer)):
        candidates = torch.arange(int(target))
    else:
        candidates = labelled(target)
    if exclude is not None:
        candidates = candidates[~torch.isin(candidates, torch.as_tensor(exclude, dtype=torch.long))]
    return candidates


def _classes(y: Any) -> Tensor:
    classes = torch.as_tensor(y) if not isinstance(y, (int, np.integer)) else None
    if classes is None or classes.dim() != 1 or classes.is_floating_point():
        raise UserError("y: a split by class needs a one-dimensional vector of whole-numbered classes")
    return classes


def _interleave_classes(order: Tensor, classes: Tensor) -> Tensor:
    """Reorder so that every prefix holds each class in proportion: sort by (rank in its class + ½) / size of it."""
    place = torch.empty(order.numel(), dtype=torch.double)
    for label in classes.unique():
        members = order[classes[order] == label]
        place[members] = (torch.arange(members.numel(), dtype=torch.double) + 0.5) / members.numel()
    return order[place[order].argsort(stable=True)]


def _checked_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    if len(fractions) != 3 or min(fractions) < 0 or not 0 < sum(fractions) <= 1 + 1e-9:
        raise UserError(
            f"fractions: expected three shares ≥ 0 (train, valid, test) that sum to at most 1, got {tuple(fractions)}"
        )
    return fractions[0], fractions[1], fractions[2]


def _floor(value: float) -> int:
    return int(value + 1e-6)  # 0.1 · 30 is 3.0000000000000004 and 0.7 · 10 is 6.999…: neither may cost an instance
