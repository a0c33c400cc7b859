"""The last step of every reader of own data: what it found becomes a task, with splits given or drawn."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from difformer.data.edges import Duplicates, SelfLoops, check_choices, tidy_edges
from difformer.data.errors import DataError, in_file, listed
from difformer.data.own.feature_tables import PART_WORDS, Features
from difformer.data.own.graphs import Found
from difformer.data.own.targets import METRICS, Labels, Targets, constant_columns, encode_targets, suspicions
from difformer.data.scaling import Scaling, uneven
from difformer.data.split import Split, labelled, load_splits, random_split, split_of_parts, time_split
from difformer.data.task import Problem, Task
from difformer.errors import UserError, did_you_mean

Path_ = str | os.PathLike[str]
Splits = Split | Mapping[str, Any] | Iterable[Split | Mapping[str, Any]] | Path_ | None

HALVES = (0.5, 0.25, 0.25)
SERIES = (0.2, 0.2, 0.6)


class Choices(TypedDict, total=False):
    """What the caller of any reader may choose; `from_arrays` explains each."""

    name: str
    problem: Problem | None
    metric: str | None
    splits: Splits
    fractions: Sequence[float] | None
    seeds: Sequence[int]
    directed: bool
    self_loops: SelfLoops
    duplicates: Duplicates
    missing: Sequence[str] | None
    class_names: Sequence[str]
    standardize: bool


def check_names(function: str, choices: Mapping[str, object]) -> None:
    """A TypeError for a choice that is not one of `Choices`."""
    known = Choices.__annotations__
    if unknown := next((option for option in choices if option not in known), None):
        raise TypeError(f"{function}() has no option {unknown!r}; {did_you_mean(unknown, known)}see from_arrays")


def assemble(
    found: Features,
    labels: Labels,
    graph: Found | None = None,
    *,
    edge_path: Path_ | None = None,
    node_ptr: Tensor | None = None,
    stored: Sequence[Split] = (),
    notes: Sequence[str] = (),
    name: str = "own data",
    problem: Problem | None = None,
    metric: str | None = None,
    splits: Splits = None,
    fractions: Sequence[float] | None = None,
    seeds: Sequence[int] = (0,),
    directed: bool = False,
    self_loops: SelfLoops = "add",
    duplicates: Duplicates = "error",
    missing: Sequence[str] | None = None,
    class_names: Sequence[str] = (),
    standardize: bool = False,
) -> Task:
    """A task of nodes, or of graphs if there is a `node_ptr`; for the choices see `from_arrays`.

    `graph` holds edges as given, from the file `edge_path`. `stored` are splits that came with the data; those that
    were asked for come first.
    """
    check_choices(self_loops, duplicates)
    x, scaling, encoded = found.x, None, "; columns encoded"
    with labels.locate():
        targets = encode_targets(
            labels.columns, names=labels.names, problem=problem, class_names=class_names, missing=missing
        )
    remarks = [*targets.notes, *found.notes, *notes, *suspicions(found.raw, targets)]
    said, index, weight = "no graph", None, None
    if graph is not None:
        done = {"add": "added", "remove": "removed", "keep": "as given"}[self_loops]
        said = f"given graph, {'directed' if directed else 'both directions listed'}, self-loops {done}"
        rules: dict[str, Any] = {"directed": directed, "self_loops": self_loops, "duplicates": duplicates}
        with in_file(edge_path):
            names = found.ids if node_ptr is None else ()
            index, weight = tidy_edges(*graph[:2], num_nodes=x.shape[0], names=names, **rules)
        remarks += [*graph[2], *_unheard(index)]
    if found.preprocessing is None:
        remarks += constant_columns(found.raw)
        encoded = ""
        if standardize:
            scaling = Scaling.of(x)
            x = scaling(x)
            remarks.append(scaling.describe(found.names))
            encoded = "; columns scaled" if scaling.shift is None else "; columns standardised"
        else:
            remarks += uneven(x, found.names)
    chosen = given_splits(splits) or tuple(_usable(split, targets, remarks) for split in stored)
    chosen = chosen or drawn_splits(targets, targets.y.shape[0], fractions, seeds)
    remarks += _never_seen(chosen, targets)
    try:
        return Task(
            name=name,
            kind="nodes" if node_ptr is None else "graphs",
            problem=targets.problem,
            metric=metric or METRICS[targets.problem],
            protocol=f"own data, {said}{encoded}; {_named(chosen)}",
            x=x,
            y=targets.y,
            splits=chosen,
            num_outputs=targets.num_outputs,
            edge_index=index,
            edge_weight=weight,
            node_ptr=node_ptr,
            class_names=targets.class_names,
            instance_names=found.ids,
            feature_names=found.names,
            notes=tuple(remarks),
            scaling=scaling,
            preprocessing=found.preprocessing,
        )
    except UserError as error:
        raise error if isinstance(error, DataError) else DataError(str(error)) from error


def _named(splits: Sequence[Split]) -> str:
    """Splits in words: ``stratified 50/25/25, 3 splits, seeds 0, 1, 2``."""
    names = [split.name for split in splits]
    if len(names) == 1:
        return names[0]
    ways, seeds = {name.partition("/seed=")[0] for name in names}, [name.partition("/seed=")[2] for name in names]
    if len(ways) > 1 or not all(re.fullmatch(r"-?\d{1,20}", seed) for seed in seeds):
        return f"{len(names)} splits, {names[0]} to {names[-1]}"
    run = [str(seed) for seed in range(int(seeds[0]), int(seeds[0]) + len(seeds))]
    shown = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 2 and seeds == run else ", ".join(seeds)
    return f"{ways.pop()}, {len(names)} splits, seeds {shown}"


def given_splits(splits: Splits) -> tuple[Split, ...]:
    """Splits as handed over: one, several, or a file of them; a split may be a mapping of its three parts."""
    if splits is None:
        return ()
    if isinstance(splits, (str, os.PathLike)):
        return load_splits(splits)
    several = [splits] if isinstance(splits, (Split, Mapping)) or not isinstance(splits, Iterable) else splits
    chosen = []
    for given in several:
        try:
            if not isinstance(given, (Split, Mapping)):
                raise UserError(f"got {type(given).__name__}")
            chosen.append(given if isinstance(given, Split) else split_of_parts(given, "given"))
        except UserError as error:
            raise DataError(
                f"splits: {error}; expected a Split, a mapping of train, valid and test to the positions of their "
                f"rows, several of either, or a file of splits; parts as masks become a Split by "
                f"difformer.data.masks_split",
                argument="splits",
            ) from error
    return tuple(chosen)


def drawn_splits(
    targets: Targets | None, size: int, fractions: Sequence[float] | None, seeds: Sequence[int]
) -> tuple[Split, ...]:
    """Random splits of what is labelled, classes in proportion; without targets, those of a series in time order."""
    if not isinstance(seeds, Iterable) or not (seeds := list(seeds)):
        raise UserError(f"seeds: expected whole numbers, one per split, got {seeds!r}")
    shares = fractions if fractions is not None else SERIES if targets is None else HALVES
    if targets is None:
        splits = [time_split(size, ratio=shares)]
    else:
        stratify = targets.problem == "multiclass"
        splits = [random_split(targets.y, fractions=shares, seed=seed, stratify=stratify) for seed in seeds]
    for part, share, held in zip(("train", "valid", "test"), shares, splits[0].sizes(), strict=True):
        if share > 0 and held == 0:
            known = size if targets is None else labelled(targets.y).numel()
            raise DataError(
                f"fractions: {known} labelled instances are too few to give {share:.0%} of them to {part}; "
                f"bring more labels, or your own splits: splits="
            )
    return tuple(splits)


def _usable(split: Split, targets: Targets, notes: list[str]) -> Split:
    """A stored split without unlabelled instances, its validation part taken from training if it has none."""
    known = labelled(targets.y)
    parts = {part: index[torch.isin(index, known)] for part, index in split.parts().items()}
    gone = sum(split.sizes()) - sum(index.numel() for index in parts.values())
    if gone:
        notes.append(f"split {split.name}: {gone} instance{'s' if gone > 1 else ''} without a label left out")
    train = parts["train"]
    if not parts["valid"].numel() and train.numel() > 1:
        drawn = random_split(targets.y[train], fractions=(0.8, 0.2, 0), stratify=targets.problem == "multiclass")
        held = torch.cat([drawn.valid, drawn.test])
        parts["train"], parts["valid"] = (train[part].sort().values for part in (drawn.train, held))
        notes.append(
            f"split {split.name} has no validation part: {held.numel()} of its {train.numel()} training "
            f"instances, drawn with seed 0, choose the model instead of being trained on"
        )
    return Split(split.name, **parts)


def _unheard(edge_index: Tensor) -> list[str]:
    """A note on edges to which in-degree normalisation gives weight zero: those whose sender receives nothing."""
    source, target = edge_index
    lost = int((~torch.isin(source, target)).sum())
    how = "pass self_loops=add, or train with graph_norm=random_walk"
    why = f"directed edges leave nodes that receive nothing, and the normalisation gcn gives such edges weight 0: {how}"
    return [f"{lost} of {source.numel()} {why}"] if lost else []


def _never_seen(splits: Sequence[Split], targets: Targets) -> list[str]:
    """A note on classes that a training part does not show, so that no model can predict them."""
    for split in splits if targets.problem == "multiclass" else ():
        if not split.train.numel() or int(split.train.max()) >= targets.y.numel():
            continue  # refused by the task, with better words
        seen = set(targets.y[split.train].tolist())
        absent = [name for code, name in enumerate(targets.class_names) if code not in seen]
        if absent:
            classes = f"class{'es' * (len(absent) > 1)} {listed(absent, 6)} {'has' if len(absent) == 1 else 'have'}"
            which = f" of split {split.name}" if len(splits) > 1 else ""
            return [f"{classes} no instance in the training part{which}: no model can learn to predict that"]
    return []


def split_in_column(found: Features) -> tuple[Split, ...]:
    """The split that a column of train, valid and test describes; an empty cell leaves its row out of every part."""
    if found.table is None or found.roles.split is None:
        return ()
    parts: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for row, word in enumerate(found.table.texts(found.roles.split)):
        part = PART_WORDS.get(word.strip().lower())
        if word and part is None:
            problem = f"expected train, valid, test or nothing, got {word!r}"
            raise found.table.error(problem, row, found.roles.split)
        if part is not None:
            parts[part].append(row)
    return (Split("given", **{part: torch.tensor(rows, dtype=torch.long) for part, rows in parts.items()}),)
