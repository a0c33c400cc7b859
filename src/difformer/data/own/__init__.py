"""A user's own data as a task: from files, from arrays and frames in memory, from PyG's objects."""
