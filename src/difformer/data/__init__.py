"""Data sets, splits, neighbour graphs, and readers for a user's own files."""

from difformer.data.split import Split
from difformer.data.task import Task

__all__ = ["Split", "Task"]
