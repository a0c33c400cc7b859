"""Exact full-graph training over `torch.distributed`: rows on ranks, parameters on all of them.

`torchrun --nproc-per-node P -m difformer fit FOLDER` trains on a folder that `difformer partition` made. From Python,
in a program that torchrun starts:

    from difformer.distributed import Partition, fit_sharded, join

    with join() as ranks:
        summary, sent = fit_sharded(Partition.open("parts"), config, ranks=ranks, seeds=[0], out="run")

Nothing is imported before it is asked for: the command line looks at `environment` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Partition": "partition_folder",
    "RankLostError": "watch",
    "Ranks": "process_group",
    "fit_seeds": "rank_runs",
    "fit_sharded": "rank_runs",
    "join": "process_group",
    "partition": "graph_partition",
    "quality": "graph_partition",
    "resume_sharded": "rank_runs",
    "tune_over_ranks": "rank_runs",
    "write_partition": "partition_folder",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
