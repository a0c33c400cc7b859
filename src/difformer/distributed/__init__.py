"""Exact full-graph training over `torch.distributed`: rows on ranks, parameters on all of them.

`torchrun --nproc-per-node P -m difformer fit FOLDER` trains on a folder that `difformer partition` made. From Python,
in a program that torchrun starts:

    from difformer.distributed import Partition, fit_sharded, join

    with join() as ranks:
        summary, sent = fit_sharded(Partition.open("parts"), config, ranks=ranks, seeds=[0], out="run")

Nothing is imported before it is asked for: whether this process is one of several is known without torch.
"""

# ruff: noqa: I001 (one import per module)
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from difformer._lazy import lazy_names

if TYPE_CHECKING:
    from difformer.distributed.graph_partition import partition as partition, quality as quality
    from difformer.distributed.partition_folder import Partition as Partition, write_partition as write_partition
    from difformer.distributed.process_group import Ranks as Ranks, join as join
    from difformer.distributed.rank_runs import fit_seeds as fit_seeds, fit_sharded as fit_sharded
    from difformer.distributed.rank_runs import resume_sharded as resume_sharded
    from difformer.distributed.watch import RankLostError as RankLostError

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graph_partition": "partition quality",
        "partition_folder": "Partition write_partition",
        "process_group": "Ranks join",
        "rank_runs": "fit_seeds fit_sharded resume_sharded",
        "watch": "RankLostError",
    },
)


def under_torchrun() -> bool:
    """Whether `torchrun`, or a launcher that sets the same variables, started this process as one of a group."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def rank() -> int:
    """This process's number in its group; 0 without a group."""
    return int(os.environ["RANK"]) if under_torchrun() else 0
