"""Data sets, splits, neighbour graphs, mini-batches, and readers for a user's own files.

    task = difformer.data.load("cora")
    task = difformer.data.from_files(features="people.csv", labels="groups.csv", edges="friends.csv")

Names are imported when they are first used: the list of data sets, which the command line prints, must not wait for
torch. Generated tasks come by name, too: ``load("sbm", num_nodes=500)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer._lazy import lazy_names

if TYPE_CHECKING:
    from difformer.data.batches import GraphBatch as GraphBatch
    from difformer.data.batches import GraphBatches as GraphBatches
    from difformer.data.batches import NodeBatch as NodeBatch
    from difformer.data.batches import NodePartitions as NodePartitions
    from difformer.data.batches import SnapshotBatch as SnapshotBatch
    from difformer.data.batches import SnapshotBatches as SnapshotBatches
    from difformer.data.batches import induced_subgraph as induced_subgraph
    from difformer.data.batches import partition_nodes as partition_nodes
    from difformer.data.catalogue import ENTRIES as ENTRIES
    from difformer.data.catalogue import Entry as Entry
    from difformer.data.datasets.images import load_images as load_images
    from difformer.data.datasets.temporal import period_scale as period_scale
    from difformer.data.errors import DataError as DataError
    from difformer.data.knn import knn_edges as knn_edges
    from difformer.data.knn import knn_graph as knn_graph
    from difformer.data.lookup import DownloadError as DownloadError
    from difformer.data.lookup import Listing as Listing
    from difformer.data.lookup import cache_folder as cache_folder
    from difformer.data.lookup import list_datasets as list_datasets
    from difformer.data.own import Preprocessing as Preprocessing
    from difformer.data.own import from_arrays as from_arrays
    from difformer.data.own import from_files as from_files
    from difformer.data.own import from_frame as from_frame
    from difformer.data.own import from_pyg as from_pyg
    from difformer.data.own import read_features as read_features
    from difformer.data.own.graphs import edge_ends as edge_ends
    from difformer.data.own.table import is_missing as is_missing
    from difformer.data.registry import dataset_options as dataset_options
    from difformer.data.registry import load as load
    from difformer.data.registry import register_dataset as register_dataset
    from difformer.data.split import Split as Split
    from difformer.data.split import authors_split as authors_split
    from difformer.data.split import fraction_split as fraction_split
    from difformer.data.split import index_split as index_split
    from difformer.data.split import labels_per_class_split as labels_per_class_split
    from difformer.data.split import load_splits as load_splits
    from difformer.data.split import masks_split as masks_split
    from difformer.data.split import per_class_split as per_class_split
    from difformer.data.split import random_split as random_split
    from difformer.data.split import save_splits as save_splits
    from difformer.data.split import time_split as time_split
    from difformer.data.task import Task as Task

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": "GraphBatch GraphBatches NodeBatch NodePartitions SnapshotBatch SnapshotBatches induced_subgraph "
        "partition_nodes",
        "catalogue": "ENTRIES Entry",
        "datasets.images": "load_images",
        "datasets.temporal": "period_scale",
        "errors": "DataError",
        "knn": "knn_edges knn_graph",
        "lookup": "DownloadError Listing cache_folder list_datasets",
        "own": "Preprocessing from_arrays from_files from_frame from_pyg read_features",
        "own.graphs": "edge_ends",
        "own.table": "is_missing",
        "registry": "dataset_options load register_dataset",
        "split": "Split authors_split fraction_split index_split labels_per_class_split load_splits masks_split "
        "per_class_split random_split save_splits time_split",
        "task": "Task",
    },
)
