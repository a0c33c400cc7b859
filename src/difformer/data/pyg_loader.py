"""Neighbour sampling through PyG's loaders, for code that expects its ``Data`` objects and worker processes.

PyG's own sampler needs a compiled companion; its loaders, however, take any sampler, and here they get ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from difformer.data.batch import epoch_generator
from difformer.data.neighbours import NeighbourSampler, graph_of, seed_order
from difformer.data.task import Task


def neighbour_loader(
    task: Task,
    *,
    nodes: Tensor | None = None,
    batch_size: int = 1024,
    fanouts: Sequence[int] = (10, 10),
    shuffle: bool = True,
    seed: int = 0,
    epoch: int = 0,
    sampler: Literal["own", "pyg"] = "own",
    **loader_options: Any,
) -> NodeLoader:
    """One epoch of sampled neighbourhoods as a PyG loader of ``Data``, the seeds first in each.

    Args:
        task: As for `NeighbourBatches`.
        nodes: Likewise.
        batch_size: Likewise.
        fanouts: Likewise.
        shuffle: Likewise.
        seed: Likewise; with ``sampler="own"`` the draws are those of `NeighbourBatches`.
        epoch: Which epoch.
        sampler: ``"own"`` draws as above; ``"pyg"`` lets PyG draw, which needs its compiled companion pyg-lib and
            follows torch's global seed.
        loader_options: For ``torch.utils.data.DataLoader``: ``num_workers``, ``pin_memory``, …
    """
    edge_index = graph_of(task)
    if task.x.layout != torch.strided:
        raise ValueError(
            f"task {task.name!r}: PyG's loaders need dense features; use NeighbourBatches, or x.to_dense()"
        )
    data = Data(x=task.x, y=task.y, edge_index=edge_index)
    if isinstance(task.edge_weight, Tensor):
        data.edge_weight = task.edge_weight
    order = seed_order(torch.arange(task.num_nodes) if nodes is None else nodes, shuffle, seed, epoch)
    options = {"input_nodes": order, "batch_size": batch_size, "shuffle": False, **loader_options}
    if sampler == "pyg":
        try:
            return NeighborLoader(data, num_neighbors=list(fanouts), **options)
        except ImportError as error:
            raise ImportError("sampler='pyg' needs pyg-lib, which is not installed; use sampler='own'") from error
    own = NeighbourSampler(edge_index, num_nodes=task.num_nodes, fanouts=fanouts)
    return NodeLoader(data, _PygSampler(own, batch_size, seed, epoch), **options)


class _PygSampler(BaseSampler):
    """`NeighbourSampler` in the form that PyG's loaders ask for."""

    def __init__(self, sampler: NeighbourSampler, batch_size: int, seed: int, epoch: int) -> None:
        self.sampler, self.batch_size, self.seed, self.epoch = sampler, batch_size, seed, epoch

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        number = int(index.input_id[0]) // self.batch_size
        nodes, edges = self.sampler.sample(index.node, epoch_generator(self.seed, self.epoch, number))
        nodes = torch.cat([index.node, nodes[~torch.isin(nodes, index.node)]])  # PyG looks for the seeds in front
        place = torch.empty(self.sampler.num_nodes, dtype=torch.long)
        place[nodes] = torch.arange(nodes.numel())
        row, col = place[self.sampler.edge_index[:, edges]]
        return SamplerOutput(node=nodes, row=row, col=col, edge=edges, metadata=(index.input_id, index.time))

    def sample_from_edges(self, *_: Any, **__: Any) -> SamplerOutput:
        raise NotImplementedError("this sampler draws around nodes; edges as seeds are not a task of this package")
