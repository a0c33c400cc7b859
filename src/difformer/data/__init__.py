"""Data sets, splits, neighbour graphs, and readers for a user's own files.

    task = difformer.data.load("cora")
    task = difformer.data.from_files(features="people.csv", labels="groups.csv", edges="friends.csv")

Names are imported when they are first used: the list of data sets, which the command line prints, must not wait for
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difformer.data.catalogue import Listing as Listing
    from difformer.data.catalogue import list_datasets as list_datasets
    from difformer.data.datasets.images import load_images as load_images
    from difformer.data.download import DownloadError as DownloadError
    from difformer.data.entries import ENTRIES as ENTRIES
    from difformer.data.entries import Entry as Entry
    from difformer.data.errors import DataError as DataError
    from difformer.data.knn import knn_graph as knn_graph
    from difformer.data.lookup import cache_folder as cache_folder
    from difformer.data.registry import dataset_options as dataset_options
    from difformer.data.registry import load as load
    from difformer.data.split import Split as Split
    from difformer.data.task import Task as Task

_HOME = {
    "DataError": "errors",
    "DownloadError": "download",
    "ENTRIES": "entries",
    "Entry": "entries",
    "Listing": "catalogue",
    "Split": "split",
    "Task": "task",
    "cache_folder": "lookup",
    "dataset_options": "registry",
    "knn_graph": "knn",
    "list_datasets": "catalogue",
    "load": "registry",
    "load_images": "datasets.images",
}

__all__ = [
    "ENTRIES",
    "DataError",
    "DownloadError",
    "Entry",
    "Listing",
    "Split",
    "Task",
    "cache_folder",
    "dataset_options",
    "knn_graph",
    "list_datasets",
    "load",
    "load_images",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value  # the next look-up finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
