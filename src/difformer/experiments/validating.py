"""What a search needs of a set of graphs: those that are trained on, those that judge, and few of the rest.

An evaluation asks a model about every graph there is. Where four of five graphs are test graphs, of which a search must
learn nothing, most of its time would go into answers that nobody reads. One graph never sees another, so that those
which are left out change nothing for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from difformer.data import Split, Task

FEWEST = 2  # test graphs that stay, for a part must not be empty


def for_search(task: Task, runs: int) -> Task:
    """The task with the splits of `runs` runs, without most of the graphs that only test; others are as they were."""
    if task.kind != "graphs":
        return task
    splits = [_shortened(split) for split in task.splits[:runs]]
    return take_graphs(
        task, torch.unique(torch.cat([part for split in splits for part in split.parts().values()])), splits
    )


def _shortened(split: Split) -> Split:
    return Split(split.name, split.train, split.valid, split.test[:FEWEST])


def take_graphs(task: Task, kept: Tensor, splits: Sequence[Split]) -> Task:
    """The graphs `kept`, in ascending order, with splits that speak of no other graphs."""
    assert task.node_ptr is not None
    sizes = task.node_ptr.diff()
    graph = torch.repeat_interleave(torch.arange(sizes.numel()), sizes)
    place = torch.full((sizes.numel(),), -1)
    place[kept] = torch.arange(kept.numel())
    nodes = place[graph] >= 0
    number = nodes.cumsum(0) - 1
    edge_index, edge_weight = task.edge_index, task.edge_weight
    if isinstance(edge_index, Tensor):
        edges = nodes[edge_index[0]]
        edge_index = number[edge_index[:, edges]]
        edge_weight = edge_weight[edges] if isinstance(edge_weight, Tensor) else None
    names = task.instance_names
    return replace(
        task,
        x=task.x[nodes],
        y=task.y[kept],
        node_ptr=torch.cat([torch.zeros(1, dtype=torch.long), sizes[kept].cumsum(0)]),
        edge_index=edge_index,
        edge_weight=edge_weight,
        instance_names=tuple(names[one] for one in kept.tolist()) if names else (),
        splits=tuple(Split(one.name, *(place[part] for part in one.parts().values())) for one in splits),
    )
