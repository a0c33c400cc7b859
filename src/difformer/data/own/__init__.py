"""A user's own data as a task: from files, from arrays and frames in memory, from PyG's objects."""

from difformer.data.own.features import read_features
from difformer.data.own.preprocessing import Preprocessing
from difformer.data.own.tasks import from_arrays, from_files, from_frame, from_pyg

__all__ = ["Preprocessing", "from_arrays", "from_files", "from_frame", "from_pyg", "read_features"]
