"""Data sets, splits, neighbour graphs, mini-batches, and readers for a user's own files.

    task = difformer.data.load("cora")
    task = difformer.data.from_files(features="people.csv", labels="groups.csv", edges="friends.csv")

Names are imported when they are first used: the list of data sets, which the command line prints, must not wait for
torch. Generators have no names here: ``load("sbm", …)``, or `difformer.data.generators`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difformer.data.batches import GraphBatch as GraphBatch
    from difformer.data.batches import GraphBatches as GraphBatches
    from difformer.data.batches import NodeBatch as NodeBatch
    from difformer.data.batches import NodePartitions as NodePartitions
    from difformer.data.batches import SnapshotBatch as SnapshotBatch
    from difformer.data.batches import SnapshotBatches as SnapshotBatches
    from difformer.data.batches import induced_subgraph as induced_subgraph
    from difformer.data.batches import partition_nodes as partition_nodes
    from difformer.data.catalogue import Listing as Listing
    from difformer.data.catalogue import list_datasets as list_datasets
    from difformer.data.datasets.images import load_images as load_images
    from difformer.data.datasets.temporal import period_scale as period_scale
    from difformer.data.download import DownloadError as DownloadError
    from difformer.data.entries import ENTRIES as ENTRIES
    from difformer.data.entries import Entry as Entry
    from difformer.data.errors import DataError as DataError
    from difformer.data.knn import knn_edges as knn_edges
    from difformer.data.knn import knn_graph as knn_graph
    from difformer.data.lookup import cache_folder as cache_folder
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
    from difformer.data.split import Split as Split
    from difformer.data.split import load_splits as load_splits
    from difformer.data.split import save_splits as save_splits
    from difformer.data.splitting import authors_split as authors_split
    from difformer.data.splitting import fraction_split as fraction_split
    from difformer.data.splitting import index_split as index_split
    from difformer.data.splitting import labels_per_class_split as labels_per_class_split
    from difformer.data.splitting import masks_split as masks_split
    from difformer.data.splitting import per_class_split as per_class_split
    from difformer.data.splitting import random_split as random_split
    from difformer.data.splitting import time_split as time_split
    from difformer.data.task import Task as Task

_HOME = {
    "DataError": "errors",
    "DownloadError": "download",
    "ENTRIES": "entries",
    "Entry": "entries",
    "GraphBatch": "batches",
    "GraphBatches": "batches",
    "Listing": "catalogue",
    "NodeBatch": "batches",
    "NodePartitions": "batches",
    "Preprocessing": "own",
    "SnapshotBatch": "batches",
    "SnapshotBatches": "batches",
    "Split": "split",
    "Task": "task",
    "authors_split": "splitting",
    "cache_folder": "lookup",
    "dataset_options": "registry",
    "edge_ends": "own.graphs",
    "fraction_split": "splitting",
    "from_arrays": "own",
    "from_files": "own",
    "from_frame": "own",
    "from_pyg": "own",
    "index_split": "splitting",
    "induced_subgraph": "batches",
    "is_missing": "own.table",
    "knn_edges": "knn",
    "knn_graph": "knn",
    "labels_per_class_split": "splitting",
    "list_datasets": "catalogue",
    "load": "registry",
    "load_images": "datasets.images",
    "load_splits": "split",
    "masks_split": "splitting",
    "partition_nodes": "batches",
    "per_class_split": "splitting",
    "period_scale": "datasets.temporal",
    "random_split": "splitting",
    "read_features": "own",
    "save_splits": "split",
    "time_split": "splitting",
}

__all__ = [
    "ENTRIES",
    "DataError",
    "DownloadError",
    "Entry",
    "GraphBatch",
    "GraphBatches",
    "Listing",
    "NodeBatch",
    "NodePartitions",
    "Preprocessing",
    "SnapshotBatch",
    "SnapshotBatches",
    "Split",
    "Task",
    "authors_split",
    "cache_folder",
    "dataset_options",
    "edge_ends",
    "fraction_split",
    "from_arrays",
    "from_files",
    "from_frame",
    "from_pyg",
    "index_split",
    "induced_subgraph",
    "is_missing",
    "knn_edges",
    "knn_graph",
    "labels_per_class_split",
    "list_datasets",
    "load",
    "load_images",
    "load_splits",
    "masks_split",
    "partition_nodes",
    "per_class_split",
    "period_scale",
    "random_split",
    "read_features",
    "save_splits",
    "time_split",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value  # the next look-up finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
