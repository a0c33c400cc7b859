"""Every way to feed a task to a model piece by piece.

Each class is made from a task and a seed, has a length (batches an epoch), and gives ``epoch(e)``, an iterator that is
a pure function of (seed, e); ``epoch(e, start=b)`` takes up an epoch at batch b.
`difformer.data.pyg_loader.neighbour_loader` gives sampled neighbourhoods as PyG has them.
"""

from difformer.data.batch import GraphBatch, NodeBatch, SnapshotBatch, epoch_generator
from difformer.data.collate import GraphBatches, SnapshotBatches
from difformer.data.neighbours import NeighbourBatches, NeighbourSampler
from difformer.data.partition import NodePartitions, induced_subgraph, partition_nodes

__all__ = [
    "GraphBatch",
    "GraphBatches",
    "NeighbourBatches",
    "NeighbourSampler",
    "NodeBatch",
    "NodePartitions",
    "SnapshotBatch",
    "SnapshotBatches",
    "epoch_generator",
    "induced_subgraph",
    "partition_nodes",
]
