"""Which rows go to which rank: worked out once, used by every layer of every step.

A rank computes the rows that it owns. Rows of others that its edges come from are its *halo*. Forward, owners send the
states of halo rows; backward, the gradients come the same way back and are added.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.distributed.ranks import Exchange, Ranks


@dataclass(frozen=True)
class Plan:
    """Rows to send and to take.

    Args:
        ranks: The group.
        send_rows: Own rows that others need, those of rank 0 first; a row that several need stands several times.
        sends: How many of them go to each rank.
        takes: How many halo rows come from each rank; the halo is ordered by owner.
    """

    ranks: Ranks
    send_rows: Tensor
    sends: tuple[int, ...]
    takes: tuple[int, ...]

    @staticmethod
    def make(ranks: Ranks, owner: Tensor, row: Tensor) -> Plan:
        """From the owner of each halo row, ascending, and its number among the owner's rows."""
        takes = torch.bincount(owner, minlength=ranks.size)
        ones = [1] * ranks.size
        sends = ranks.exchange(takes.to(ranks.device), ones, ones, "plan").wait()
        counts = tuple(sends.tolist()), tuple(takes.tolist())
        wanted = ranks.exchange(row.to(ranks.device), counts[1], counts[0], "plan").wait()
        return Plan(ranks, wanted, *counts)

    @property
    def halo(self) -> int:
        """Rows of others that this rank needs."""
        return sum(self.takes)

    def fetch(self, z: Tensor, kind: str = "boundary") -> Exchange:
        """Begins to bring the halo rows of ``z [n, …]``."""
        return self.ranks.exchange(z.index_select(0, self.send_rows), self.sends, self.takes, kind)

    def give_back(self, halo: Tensor) -> Exchange:
        """Begins to bring what others have for the rows that this rank sent, in the order of `send_rows`."""
        return self.ranks.exchange(halo, self.takes, self.sends, "boundary")
