"""Whether this process is one of several, read from its environment; nothing here loads torch."""

from __future__ import annotations

import os


def under_torchrun() -> bool:
    """Whether `torchrun`, or a launcher that sets the same variables, started this process as one of a group."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def rank() -> int:
    """This process's number in its group; 0 without a group."""
    return int(os.environ["RANK"]) if under_torchrun() else 0


def size() -> int:
    """Number of processes of the group; 1 without a group."""
    return int(os.environ["WORLD_SIZE"]) if under_torchrun() else 1
