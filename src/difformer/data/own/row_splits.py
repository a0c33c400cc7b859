"""Splits of a user's own data: given, stored with the data, in a column, or drawn."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from difformer.data.own.features import PART_WORDS, SPLIT_FORMS, Features
from difformer.data.own.table import Path_
from difformer.data.own.targets import Targets
from difformer.data.split import Split, index_split, load_splits, masks_split, random_split, split_of_parts, time_split
from difformer.errors import DataError, UserError, in_file, listed

Splits = Split | Mapping[str, Any] | Iterable[Split | Mapping[str, Any]] | Path_ | None

SHARES = (0.5, 0.25, 0.25)  # of train, valid and test where splits are drawn
SERIES = (0.2, 0.2, 0.6)  # likewise for a series
SET_ASIDE = "pass splits= to set them aside"


def splits_of(found: Features, targets: Targets, chosen: Mapping[str, Any], notes: list[str]) -> tuple[Split, ...]:
    """The chosen splits, otherwise those in the data (in a column or as arrays), otherwise drawn ones."""
    splits, size = given_splits(chosen["splits"]), targets.y.shape[0]
    if chosen["splits"] is None:
        with in_file(found.path or None):
            stored = _split_in_column(found) or _stored_splits(found.arrays, found.x.shape[0])
        splits = tuple(_usable(split, targets, notes) for split in stored)
    splits = splits or drawn_splits(targets, size, chosen["fractions"], chosen["seeds"])
    notes += _never_seen(splits, targets)
    return splits


def given_splits(splits: Splits) -> tuple[Split, ...]:
    """The splits given by the caller: one, several, or a file; a split may be a mapping of its three parts."""
    if splits is None:
        return ()
    if isinstance(splits, (str, os.PathLike)):
        return load_splits(splits)
    several = [splits] if isinstance(splits, (Split, Mapping)) or not isinstance(splits, Iterable) else [*splits]
    try:
        if strange := [type(given).__name__ for given in several if not isinstance(given, (Split, Mapping))]:
            raise UserError(f"got {strange[0]}")
        return tuple(split if isinstance(split, Split) else split_of_parts(split, "given") for split in several)
    except UserError as error:
        expected = "expected a Split, a mapping of train, valid and test to the positions of their rows, several "
        expected += "of either, or a file of splits; parts as masks become a Split by difformer.data.masks_split"
        raise DataError(f"splits: {error}; {expected}", argument="splits") from error


def _stored_splits(arrays: Mapping[str, Any], rows: int) -> tuple[Split, ...]:
    """Splits stored as masks, ``[N]`` or ``[S, N]``, or as indices; without a validation part that part is empty."""
    found: dict[str, tuple[Split, ...]] = {}
    for form in SPLIT_FORMS:
        named = {part: arrays.get(f"{part}_{form}") for part in ("train", "val", "valid", "test")}
        given = {part: np.atleast_1d(array) for part, array in named.items() if array is not None}
        if not given:
            continue
        masks = form.startswith("mask")
        called = "masks" if masks else "indices"
        if lacking := [part for part in ("train", "test") if part not in given]:
            problem = f"the {called} do not say what to train on and what to test: there is no {lacking[0]}_{form}"
            raise DataError(f"{problem}; {SET_ASIDE}")
        empty = np.zeros_like(given["train"] if masks else given["train"][:0])
        parts = given["train"], given.get("val", given.get("valid", empty)), given["test"]
        try:
            if wrong := [mask.shape[-1] for mask in parts if masks and mask.shape[-1] != rows]:
                raise UserError(f"expected {rows} entries per split, got {wrong[0]}")
            found[form] = masks_split(*parts, name=called) if masks else (index_split(called, *parts),)
            found[form][0].check(rows)
        except (ValueError, TypeError) as error:
            raise DataError(f"the {called} are not splits: {error}; {SET_ASIDE}") from error
        first = next(iter(found))
        if len(found[form]) != len(found[first]) or not all(map(Split.same_as, found[form], found[first])):
            raise DataError(f"the splits of train_{first} and train_{form} differ; {SET_ASIDE}")
    return next(iter(found.values()), ())


def _split_in_column(found: Features) -> tuple[Split, ...]:
    """The split that a column of train, valid and test describes; an empty cell leaves its row out of every part."""
    if (table := found.table) is None or table.split is None:
        return ()
    parts: dict[str, list[int]] = {"train": [], "valid": [], "test": [], "": []}
    for row, word in enumerate(table.cells[table.split]):
        if (part := PART_WORDS.get(word.lower(), word)) not in parts:
            problem = f"expected train, valid, test or nothing, got {word!r}"
            raise table.error(problem, row, table.split)
        parts[part].append(row)
    return (split_of_parts(parts, "given"),)


def _usable(split: Split, targets: Targets, notes: list[str]) -> Split:
    """A stored split without unlabelled instances; a missing validation part is taken from the training part."""
    parts = {part: index[torch.isin(index, targets.known)] for part, index in split.parts().items()}
    gone = sum(split.sizes()) - sum(index.numel() for index in parts.values())
    if gone:
        notes.append(f"split {split.name}: {gone} instance{'s' * (gone > 1)} without a label left out")
    train = parts["train"]
    if not parts["valid"].numel() and train.numel() > 1:
        drawn = random_split(targets.y[train], fractions=(0.8, 0.2, 0), stratify=targets.problem == "multiclass")
        held = torch.cat([drawn.valid, drawn.test])
        parts["train"], parts["valid"] = (train[part].sort().values for part in (drawn.train, held))
        count = f"{held.numel()} of its {train.numel()} training instances, drawn with seed 0,"
        notes.append(f"split {split.name} has no validation part: {count} are used for validation instead of training")
    return Split(split.name, **parts)


def drawn_splits(
    targets: Targets | None, size: int, fractions: Sequence[float] | None, seeds: Sequence[int]
) -> tuple[Split, ...]:
    """Random splits of what is labelled, classes in proportion; without targets, those of a series in time order."""
    if not isinstance(seeds, Iterable) or not (seeds := list(seeds)):
        raise UserError(f"seeds: expected whole numbers, one per split, got {seeds!r}")
    shares = fractions if fractions is not None else SERIES if targets is None else SHARES
    if targets is None:
        splits = [time_split(size, ratio=shares)]
    else:
        stratify = targets.problem == "multiclass"
        splits = [random_split(targets.y, fractions=shares, seed=seed, stratify=stratify) for seed in seeds]
    for part, share, held in zip(("train", "valid", "test"), shares, splits[0].sizes(), strict=True):
        if share > 0 and held == 0:
            known = size if targets is None else targets.known.numel()
            problem = f"fractions: {known} labelled instances are too few to give {share:.0%} of them to {part}"
            raise DataError(f"{problem}; provide more labels, or pass your own splits: splits=")
    return tuple(splits)


def named_splits(splits: Sequence[Split]) -> str:
    """Splits in words: ``stratified 50/25/25, 3 splits, seeds 0, 1, 2``."""
    names = [split.name for split in splits]
    parts = [re.fullmatch(r"(.*)/seed=(-?\d{1,20})", name, re.DOTALL) for name in names]
    ways, seeds = {found and found[1] for found in parts}, [int(found[2]) for found in parts if found]
    if len(names) == 1:
        return names[0]
    if len(ways) > 1 or not seeds:
        return f"{len(names)} splits, {names[0]} to {names[-1]}"
    run = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"{ways.pop()}, {len(names)} splits, seeds {f'{seeds[0]} to {seeds[-1]}' if run else str(seeds)[1:-1]}"


def _never_seen(splits: Sequence[Split], targets: Targets) -> list[str]:
    """A note on classes without an instance in a training part, which no model can predict."""
    for split in splits if targets.problem == "multiclass" else ():
        # Other rows are refused by the task.
        seen = set(targets.y[split.train[split.train < targets.y.numel()]].tolist())
        if seen and (absent := [name for code, name in enumerate(targets.class_names) if code not in seen]):
            classes = f"class{'es' * (len(absent) > 1)} {listed(absent, 6)} {'has' if len(absent) == 1 else 'have'}"
            which = f" of split {split.name}" if len(splits) > 1 else ""
            return [f"{classes} no instance in the training part{which}: no model can learn to predict that"]
    return []
