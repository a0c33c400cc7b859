"""Processes that train one model: who they are, and what they say to each other.

`torchrun` starts P processes and tells each its rank by environment variables; `join` makes a group of them (gloo on a
CPU, NCCL on GPUs) and gives each a `Ranks`, through which everything goes that is sent: it counts bytes
(`difformer.distributed.traffic`) and, should another rank die, says which (`difformer.distributed.watch`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

import difformer
from difformer.distributed import environment
from difformer.distributed.traffic import Traffic
from difformer.distributed.watch import Watch, naming_the_dead
from difformer.errors import UserError

# Whoever is waited for may be at work for long; that nobody is waited for in vain is what the watch is for.
PATIENCE = timedelta(days=30)
Result = TypeVar("Result")


@dataclass
class Ranks:
    """One process of a group.

    Args:
        rank: Its number, from 0.
        size: How many there are, P.
        device: Where it computes.
        watch: Looks after the others; None where somebody else does.
    """

    rank: int
    size: int
    device: torch.device
    watch: Watch | None = None
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and speaks to people."""
        return self.rank == 0

    def sum_(self, x: Tensor, kind: str) -> Tensor:
        """`x`, which must be contiguous, becomes the sum over all ranks; no gradients."""
        return self._reduce(x, dist.ReduceOp.SUM, kind)

    def max_(self, x: Tensor, kind: str = "metrics") -> Tensor:
        """`x` becomes the largest over all ranks."""
        return self._reduce(x, dist.ReduceOp.MAX, kind)

    def _reduce(self, x: Tensor, how: Any, kind: str) -> Tensor:
        if self.size > 1 and x.numel():
            self.traffic.add(kind, 2 * _bytes(x) * (self.size - 1) / self.size)
            with naming_the_dead(self.watch):
                dist.all_reduce(x, how)
        return x

    def any(self, flag: bool) -> bool:
        """Whether it holds on some rank."""
        return bool(self.max_(torch.tensor([int(flag)], device=self.device)).item())

    def all(self, flag: bool) -> bool:
        """Whether it holds on every rank."""
        return not self.any(not flag)

    def exchange(self, x: Tensor, sends: Sequence[int], takes: Sequence[int], kind: str) -> Exchange:
        """Begins to send ``sends[r]`` rows of ``x [Σ sends, …]`` to each rank r; `Exchange.wait` gives what came."""
        came = x.new_empty((sum(takes), *x.shape[1:]))
        self.traffic.add(kind, _bytes(x[:1]) * (sum(sends) - sends[self.rank]) if x.shape[0] else 0)
        work: Any = None
        if self.size == 1:
            came.copy_(x)
        else:
            with naming_the_dead(self.watch):
                work = dist.all_to_all_single(came, x.contiguous(), list(takes), list(sends), async_op=True)
        return Exchange(work, came, x, self.watch)

    def gather(self, x: Tensor, kind: str = "metrics") -> Tensor:
        """``[P, …]``: the `x` of every rank, all of one shape, on every rank."""
        if self.size == 1:
            return x.unsqueeze(0)
        self.traffic.add(kind, _bytes(x) * (self.size - 1))
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        with naming_the_dead(self.watch):
            dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    def gather_rows(self, x: Tensor, kind: str = "results") -> Tensor | None:
        """``[Σ n_r, …]``: the rows of all ranks, rank behind rank, on rank 0; None on the others."""
        counts = self.gather(torch.tensor([x.shape[0]], device=self.device), "plan").flatten().tolist()
        sends = [x.shape[0] if rank == 0 else 0 for rank in range(self.size)]
        takes = counts if self.first else [0] * self.size
        came = self.exchange(x, sends, takes, kind).wait()
        return came if self.first else None

    def shared(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        box = [value]
        if self.size > 1:
            with naming_the_dead(self.watch):
                dist.broadcast_object_list(box, 0, device=self.device)
        return box[0]

    def first_does(self, work: Callable[[], Result]) -> Result:
        """What rank 0 finds, on every rank; what goes wrong there goes wrong everywhere, with the same error."""
        found: Any = None
        failed: Any = None
        if self.first:
            try:
                found = work()
            except Exception as error:
                failed = error
        found, failed = self.shared((found, failed))
        if failed is not None:
            failed.of_rank_0 = True
            raise failed
        return found

    def gather_objects(self, value: Any) -> list[Any]:
        """The value of every rank, by rank, on every rank."""
        found = [value] * self.size
        if self.size > 1:
            with naming_the_dead(self.watch):
                dist.all_gather_object(found, value)
        return found

    def agree(self, **facts: Any) -> None:
        """Checks that all ranks were started with the same data and settings; all ranks call it together.

        Args:
            **facts: What must be equal, by name; a mapping is compared entry by entry.

        Raises:
            UserError: On every rank, with the values of rank 0 and those of the ranks that differ.
        """
        theirs = self.gather_objects(_flat(facts))
        differences = []
        for name in dict.fromkeys(name for one in theirs for name in one):
            values = [one.get(name, "absent") for one in theirs]
            others: dict[str, list[int]] = {}
            for rank, value in enumerate(values):
                if value != values[0]:
                    others.setdefault(value, []).append(rank)
            if others:
                said = ", ".join(f"{value} on {_listed(who)}" for value, who in others.items())
                differences.append(f"{name} is {values[0]} on rank 0 and {said}")
        if differences:
            error = UserError(
                f"the ranks were not started alike: {'; '.join(differences)}. Start every rank with the same command, "
                f"data files and versions"
            )
            error.of_rank_0 = True  # type: ignore[attr-defined]
            raise error

    def wait_for_all(self) -> None:
        """Until every rank has come here."""
        self.any(False)


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``{"settings": {"epochs": 3}}`` as ``{"settings epochs": "3"}``."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name} ")
        else:
            found[prefix + name] = str(value)
    return found


def _listed(ranks: Sequence[int]) -> str:
    """``[1, 2]`` as "ranks 1 and 2", and a long list in short."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks] if len(ranks) <= 4 else [*map(str, ranks[:3]), f"{len(ranks) - 3} others"]
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


@dataclass
class Exchange:
    """Rows on their way."""

    work: Any
    came: Tensor
    kept: Tensor  # must not go away before it has been sent
    watch: Watch | None

    def wait(self) -> Tensor:
        if self.work is not None:
            with naming_the_dead(self.watch):
                self.work.wait()
        return self.came


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


@contextmanager
def join(device: str = "auto", *, watched: bool = True) -> Iterator[Ranks]:
    """This process as one of the group that `torchrun` started, or alone; ends the group when the block ends.

    Args:
        device: ``"auto"`` is a GPU for every process of a machine where there are enough, else the CPU.
        watched: Whether to look after the other ranks.

    Raises:
        UserError: If there is no such device for this process, or the ranks run different versions.
        RankLostError: Out of whatever waits for a rank that has died.
    """
    rank, size = environment.rank(), environment.size()
    place = _device(device, int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    if not environment.under_torchrun():
        yield Ranks(0, 1, place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
        dist.init_process_group("cuda:nccl", timeout=PATIENCE, device_id=place)
    else:
        dist.init_process_group("gloo", timeout=PATIENCE)
    watch = Watch.start(rank, size) if watched and size > 1 else None
    ranks = Ranks(rank, size, place, watch)
    try:
        ranks.agree(version={"of difformer": difformer.__version__, "of torch": torch.__version__})
        yield ranks
        ranks.wait_for_all()  # nobody leaves while another may still need what only this process keeps
    except Exception as error:
        # What all ranks have in common needs no telling: rank 0's error, or an exit after Ctrl-C.
        common = getattr(error, "of_rank_0", False) or hasattr(error, "exit_code")
        if watch is not None and not common:
            watch.tell(error)
        raise
    finally:
        if watch is not None:
            watch.stop()
        dist.destroy_process_group()


def _device(device: str, local_rank: int, local_size: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return torch.device("cuda", local_rank) if count >= local_size else torch.device("cpu")
    if device == "cpu":
        return torch.device("cpu")
    if device == "cuda" and local_rank < count:
        return torch.device("cuda", local_rank)
    raise UserError(
        f"device must be auto, cpu or cuda under torchrun (each process takes a GPU of its own), got {device!r} for "
        f"local rank {local_rank} on a machine with {count} GPUs"
    )
