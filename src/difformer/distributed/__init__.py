"""Exact full-graph training over `torch.distributed`: rows on ranks, parameters on all of them.

`torchrun --nproc-per-node P -m difformer fit FOLDER` trains on a folder that `difformer partition` made. From Python,
in a program that torchrun starts:

    from difformer.distributed import Partition, fit_sharded, join

    with join() as ranks:
        summary, sent = fit_sharded(Partition.open("parts"), config, ranks=ranks, seeds=[0], out="run")

Nothing is imported before it is asked for: whether this process is one of several is known without torch.
"""

from __future__ import annotations

import os

from difformer._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)


def under_torchrun() -> bool:
    """Whether `torchrun`, or a launcher that sets the same variables, started this process as one of a group."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def rank() -> int:
    """This process's number in its group; 0 without a group."""
    return int(os.environ["RANK"]) if under_torchrun() else 0
