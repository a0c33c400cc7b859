"""Data sets, splits, neighbour graphs, mini-batches, and readers for a user's own files.

    task = difformer.data.load("cora")
    task = difformer.data.from_files(features="people.csv", labels="groups.csv", edges="friends.csv")

Names are imported when they are first used: the list of data sets, which the command line prints, must not wait for
torch. Generated tasks come by name, too: ``load("sbm", num_nodes=500)``.
"""

from __future__ import annotations

from difformer._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
