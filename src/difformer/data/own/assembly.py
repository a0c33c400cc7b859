"""The last step of every reader of own data: features, targets and edges become a task, with splits given or drawn."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from difformer.data.edges import SelfLoops
from difformer.data.errors import DataError
from difformer.data.own.preprocessing import Preprocessing
from difformer.data.own.roles import PART_WORDS
from difformer.data.own.targets import METRICS, Targets
from difformer.data.scaling import Scaling, uneven
from difformer.data.split import Split, load_splits
from difformer.data.split_rules import labelled, random_split, time_split
from difformer.data.task import Task
from difformer.errors import UserError

Splits = Split | Iterable[Split] | str | os.PathLike[str] | None

HALVES = (0.5, 0.25, 0.25)
SERIES = (0.2, 0.2, 0.6)


def assemble(
    x: Tensor,
    targets: Targets,
    edges: tuple[Tensor, Tensor | None] | None,
    *,
    name: str,
    metric: str | None,
    splits: Splits,
    fractions: Sequence[float] | None,
    seeds: Sequence[int],
    found_splits: Sequence[Split] = (),
    graph: str = "given graph",
    node_ptr: Tensor | None = None,
    instance_names: tuple[str, ...] = (),
    feature_names: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    standardize: bool = False,
    preprocessing: Preprocessing | None = None,
) -> Task:
    """A task of nodes, or of graphs where there is a `node_ptr`.

    Splits that were found with the data (`found_splits`: a column, masks) give way to `splits` that were asked for, and
    lose the instances that carry no label.

    Raises:
        DataError: If the parts contradict each other.
    """
    scaling = Scaling.of(x) if standardize else None
    if scaling is not None:
        x, notes = scaling(x), (*notes, scaling.describe(feature_names))
    elif preprocessing is None:
        notes = (*notes, *uneven(x, feature_names))
    done = (
        ("; columns encoded" if preprocessing is not None else "")
        if scaling is None
        else "; columns standardised"
        if scaling.shift is not None
        else "; columns scaled"
    )
    chosen = given_splits(splits)
    if not chosen and found_splits:
        chosen, left_out = _only_labelled(found_splits, targets.y)
        chosen, taken = _with_validation(chosen, targets)
        notes = (*notes, *left_out, *taken)
    notes = (*notes, *_unheard(edges))
    chosen = chosen or drawn_splits(targets, targets.y.shape[0], fractions, seeds)
    notes = (*notes, *_never_seen(chosen, targets))
    try:
        return Task(
            name=name,
            kind="nodes" if node_ptr is None else "graphs",
            problem=targets.problem,
            metric=metric or METRICS[targets.problem],
            protocol=f"own data, {graph if edges is not None else 'no graph'}{done}; {_named(chosen)}",
            x=x,
            y=targets.y,
            splits=chosen,
            num_outputs=targets.num_outputs,
            edge_index=None if edges is None else edges[0],
            edge_weight=None if edges is None else edges[1],
            node_ptr=node_ptr,
            class_names=targets.class_names,
            instance_names=instance_names,
            feature_names=feature_names,
            notes=(*targets.notes, *notes),
            scaling=scaling,
            preprocessing=preprocessing,
        )
    except DataError:
        raise
    except ValueError as error:
        raise DataError(str(error)) from error


def _named(splits: Sequence[Split]) -> str:
    """Splits in words: ``stratified 50/25/25, 3 splits, seeds 0, 1, 2``."""
    names = [split.name for split in splits]
    if len(names) == 1:
        return names[0]
    ways, seeds = {name.partition("/seed=")[0] for name in names}, [name.partition("/seed=")[2] for name in names]
    if len(ways) > 1 or not all(seeds):
        return f"{len(names)} splits, {names[0]} to {names[-1]}"
    run = [str(seed) for seed in range(int(seeds[0]), int(seeds[0]) + len(seeds))]
    shown = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 2 and seeds == run else ", ".join(seeds)
    return f"{ways.pop()}, {len(names)} splits, seeds {shown}"


def graph_protocol(directed: bool, self_loops: SelfLoops) -> str:
    """What was done to a graph, in words."""
    done = {"add": "added", "remove": "removed", "keep": "as given"}
    return f"given graph, {'directed' if directed else 'both directions listed'}, self-loops {done[self_loops]}"


def given_splits(splits: Splits) -> tuple[Split, ...]:
    """Splits as handed over: one, several, or a file of them."""
    if splits is None:
        return ()
    if isinstance(splits, Split):
        return (splits,)
    if isinstance(splits, (str, os.PathLike)):
        return load_splits(splits)
    return tuple(splits)


def drawn_splits(
    targets: Targets | None,
    size: int,
    fractions: Sequence[float] | None,
    seeds: Sequence[int],
    *,
    series: bool = False,
) -> tuple[Split, ...]:
    """Random splits of what is labelled, classes in proportion; a series is cut in time order.

    Raises:
        DataError: If a part that should hold something would be empty.
    """
    if not seeds:
        raise UserError("seeds: got none, expected one per split")
    shares = tuple(fractions) if fractions is not None else SERIES if series else HALVES
    if series or targets is None:
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


def _only_labelled(splits: Sequence[Split], y: Tensor) -> tuple[tuple[Split, ...], tuple[str, ...]]:
    known = labelled(y)
    kept, notes = [], []
    for split in splits:
        parts = {part: index[torch.isin(index, known)] for part, index in split.parts().items()}
        gone = sum(split.sizes()) - sum(index.numel() for index in parts.values())
        kept.append(Split(split.name, **parts))
        if gone:
            notes.append(f"split {split.name}: {gone} instance{'s' if gone > 1 else ''} without a label left out")
    return tuple(kept), tuple(notes)


def _unheard(edges: tuple[Tensor, Tensor | None] | None) -> tuple[str, ...]:
    """A note on edges to which in-degree normalisation gives weight zero: those whose sender receives nothing."""
    if edges is None or not edges[0].numel():
        return ()
    source, target = edges[0]
    lost = int((~torch.isin(source, target)).sum())
    if not lost:
        return ()
    return (
        f"{lost} of {source.numel()} directed edges leave nodes that receive nothing, and the normalisation gcn gives "
        f"such edges weight 0: pass self_loops=add, or train with graph_norm=random_walk",
    )


def _with_validation(splits: Sequence[Split], targets: Targets) -> tuple[tuple[Split, ...], tuple[str, ...]]:
    """A fifth of the training part for validation where a split has none; the test part is never touched."""
    done, notes = [], []
    for split in splits:
        if split.valid.numel() or split.train.numel() < 2:
            done.append(split)
            continue
        y = targets.y[split.train]
        drawn = random_split(y, fractions=(0.8, 0.2, 0), stratify=targets.problem == "multiclass")
        train, valid = (split.train[part].sort().values for part in (drawn.train, torch.cat([drawn.valid, drawn.test])))
        done.append(Split(split.name, train, valid, split.test))
        notes.append(
            f"split {split.name} has no validation part: {valid.numel()} of its {split.train.numel()} training "
            f"instances, drawn with seed 0, choose the model instead of being trained on"
        )
    return tuple(done), tuple(notes)


def _never_seen(splits: Sequence[Split], targets: Targets) -> tuple[str, ...]:
    """A note on classes that a training part does not show, so that no model can predict them."""
    if targets.problem != "multiclass":
        return ()
    for split in splits:
        if not split.train.numel() or int(split.train.max()) >= targets.y.numel() or int(split.train.min()) < 0:
            continue  # refused by the task, with better words
        seen = set(targets.y[split.train].tolist())
        absent = [name for code, name in enumerate(targets.class_names) if code not in seen]
        if absent:
            shown = f"{', '.join(map(repr, absent[:6]))}{', …' if len(absent) > 6 else ''}"
            classes = f"class {shown} has" if len(absent) == 1 else f"classes {shown} have"
            which = f" of split {split.name}" if len(splits) > 1 else ""
            return (f"{classes} no instance in the training part{which}: no model can learn to predict that",)
    return ()


def split_from_words(words: Sequence[str], name: str) -> tuple[Split | None, int | None]:
    """The split that a column of train, valid and test describes; or the first row that holds another word.

    An empty cell leaves its row out of every part.
    """
    parts: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for row, word in enumerate(words):
        if word:
            part = PART_WORDS.get(word.strip().lower())
            if part is None:
                return None, row
            parts[part].append(row)
    return Split(name, **{part: torch.tensor(rows, dtype=torch.long) for part, rows in parts.items()}), None
