"""Data sets, splits, neighbour graphs, mini-batches, and readers for a user's own files.

    task = difformer.data.load("cora")
    task = difformer.data.from_files(features="people.csv", labels="groups.csv", edges="friends.csv")

Names are imported when they are first used: the list of data sets, which the command line prints, must not wait for
torch. Generated tasks come by name, too: ``load("sbm", num_nodes=500)``.
"""

# ruff: noqa: I001 (short lines)
from __future__ import annotations

from typing import TYPE_CHECKING

from difformer._lazy import lazy_names
from difformer.errors import DataError as DataError

if TYPE_CHECKING:
    from difformer.data.batches import GraphBatch as GraphBatch, GraphBatches as GraphBatches, NodeBatch as NodeBatch
    from difformer.data.batches import NodePartitions as NodePartitions, SnapshotBatch as SnapshotBatch
    from difformer.data.batches import SnapshotBatches as SnapshotBatches, induced_subgraph as induced_subgraph
    from difformer.data.batches import partition_nodes as partition_nodes
    from difformer.data.catalogue import ENTRIES as ENTRIES, Entry as Entry
    from difformer.data.datasets.instances import load_images as load_images
    from difformer.data.datasets.temporal import period_scale as period_scale
    from difformer.data.knn import knn_edges as knn_edges, knn_graph as knn_graph
    from difformer.data.download import DownloadError as DownloadError, Listing as Listing, cache_folder as cache_folder
    from difformer.data.download import list_datasets as list_datasets
    from difformer.data.own.features import read_features as read_features
    from difformer.data.own.graphs import edge_ends as edge_ends
    from difformer.data.own.preprocessing import Preprocessing as Preprocessing
    from difformer.data.own.cell_values import is_missing as is_missing
    from difformer.data.own.tasks import from_arrays as from_arrays, from_files as from_files, from_frame as from_frame
    from difformer.data.own.tasks import from_pyg as from_pyg
    from difformer.data.registry import dataset_options as dataset_options, load as load
    from difformer.data.registry import register_dataset as register_dataset
    from difformer.data.split import Split as Split, authors_split as authors_split, fraction_split as fraction_split
    from difformer.data.split import index_split as index_split, load_splits as load_splits, masks_split as masks_split
    from difformer.data.split import per_class_split as per_class_split, random_split as random_split
    from difformer.data.split import save_splits as save_splits, time_split as time_split
    from difformer.data.task import Task as Task

_names, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": "GraphBatch GraphBatches NodeBatch NodePartitions SnapshotBatch SnapshotBatches induced_subgraph "
        "partition_nodes",
        "catalogue": "ENTRIES Entry",
        "datasets.instances": "load_images",
        "datasets.temporal": "period_scale",
        "knn": "knn_edges knn_graph",
        "download": "DownloadError Listing cache_folder list_datasets",
        "own.features": "read_features",
        "own.graphs": "edge_ends",
        "own.preprocessing": "Preprocessing",
        "own.cell_values": "is_missing",
        "own.tasks": "from_arrays from_files from_frame from_pyg",
        "registry": "dataset_options load register_dataset",
        "split": "Split authors_split fraction_split index_split load_splits masks_split per_class_split random_split "
        "save_splits time_split",
        "task": "Task",
    },
)
__all__ = sorted([*_names, "DataError"])
