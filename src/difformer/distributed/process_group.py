r"""Processes that train one model: how they find each other, and what they send.

`torchrun` starts P processes and tells each its rank by environment variables; `join` makes a group of them (gloo on a
CPU, NCCL on GPUs) and gives each a `Ranks`, through which everything is sent. It compares what the ranks were started
with (`Ranks.agree`), counts bytes (`Traffic`) and, if another rank dies, names it (`difformer.distributed.watch`).

Traffic is what one rank puts on the wire under the cheapest algorithm:

.. math::
    \text{all-reduce of } n \text{ bytes: } 2 n \frac{P - 1}{P}, \qquad
    \text{all-to-all, ring: what goes to other ranks,}

so that P = 1 sends nothing. Kinds:

* ``sums``: summaries of all nodes for latent propagation, forward and backward;
* ``boundary``: states, and backward their gradients, of nodes with a neighbour on another rank;
* ``ring``: keys, values and their gradients, for diffusivities without a summary of fixed size: O(N d) in all;
* ``gradients``: of the parameters, once per step;
* ``metrics``: counts, losses and, for ROC-AUC, scores;
* ``plan``: what is exchanged once, before the first step;
* ``results``: predictions, at the end.

A sum over ranks is differentiable. Each rank r holds a share of the loss, L = Σ_r L_r, and of a sum, S = Σ_r s_r. Every
rank uses S, so

.. math::
    \frac{∂L}{∂s_r} = \sum_{r'} \frac{∂L_{r'}}{∂S}:

the gradient of an all-reduce is the all-reduce of the gradient, the same on every rank. Gradients of parameters, which
every rank holds a copy of, are sums over ranks for the same reason.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Imported after a group was made, this module would keep it in the defaults of its functions: its threads would then
# run until the interpreter ends, and may abort the process there.
import torch.distributed.nn.functional
from torch import Tensor, nn

import difformer
from difformer import distributed
from difformer.distributed.watch import Watch, name_lost_rank
from difformer.errors import UserError
from difformer.training.metrics import Metric

# A rank may compute for a long time; whether it is still alive is the job of the watch.
PATIENCE = timedelta(days=30)
Result = TypeVar("Result")
KINDS = ("sums", "boundary", "ring", "gradients", "metrics", "plan", "results")


@dataclass
class Traffic:
    """Bytes sent by this rank since it was made."""

    sent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))

    def add(self, kind: str, count: float) -> None:
        self.sent[kind] += round(count)

    @contextmanager
    def during(self) -> Iterator[dict[str, int]]:
        """A mapping that holds, once the block has ended, what was sent within it."""
        before, found = dict(self.sent), dict.fromkeys(KINDS, 0)
        try:
            yield found
        finally:
            for kind, count in self.sent.items():
                found[kind] = count - before[kind]


@dataclass
class Exchange:
    """Rows in transit; what is sent must stay alive until `wait`."""

    ranks: Ranks
    kept: Tensor
    came: Tensor
    works: list[Any] = field(default_factory=list)

    def wait(self) -> Tensor:
        """The rows that arrived."""
        with name_lost_rank(self.ranks.watch):
            while self.works:  # a finished one would keep the group's threads alive until the interpreter ends
                self.works.pop().wait()
        return self.came


@dataclass
class Ranks:
    """One process, and its connection to the others of its group.

    Args:
        rank: Its number, from 0.
        size: How many there are, P.
        device: Where it computes.
        watch: Monitors the others; None without monitoring.
    """

    rank: int
    size: int
    device: torch.device
    watch: Watch | None = None
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    def sum_(self, x: Tensor, kind: str, how: Any = dist.ReduceOp.SUM) -> Tensor:
        """`x`, which must be contiguous, becomes the sum over all ranks; no gradients."""
        if self.size > 1 and x.numel():
            self.traffic.add(kind, 2 * x.nbytes * (self.size - 1) / self.size)
            with name_lost_rank(self.watch):
                dist.all_reduce(x, how)
        return x

    def max_(self, x: Tensor, kind: str = "metrics") -> Tensor:
        """`x` becomes the largest over all ranks."""
        return self.sum_(x, kind, dist.ReduceOp.MAX)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return bool(self.max_(torch.tensor([int(flag)], device=self.device)).item())

    def exchange(self, x: Tensor, sends: Sequence[int], takes: Sequence[int], kind: str) -> Exchange:
        """Starts to send ``sends[r]`` rows of ``x [Σ sends, …]`` to each rank r; `Exchange.wait` returns what came."""
        came = x.new_empty((sum(takes), *x.shape[1:]))
        self.traffic.add(kind, x[:1].nbytes * (sum(sends) - sends[self.rank]))
        if self.size == 1:
            return Exchange(self, x, came.copy_(x))
        kept = x.contiguous()
        with name_lost_rank(self.watch):
            work = dist.all_to_all_single(came, kept, list(takes), list(sends), async_op=True)
        return Exchange(self, kept, came, [work])

    def gather_rows(self, x: Tensor, kind: str = "results") -> Tensor | None:
        """``[Σ n_r, …]``: the rows of all ranks in rank order, on rank 0; None on the others."""
        counts = self.gather_objects(x.shape[0])
        sends = [x.shape[0] if rank == 0 else 0 for rank in range(self.size)]
        came = self.exchange(x, sends, counts if self.first else [0] * self.size, kind).wait()
        return came if self.first else None

    def shared(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        box = [value]
        if self.size > 1:
            with name_lost_rank(self.watch):
                dist.broadcast_object_list(box, 0, device=self.device)
        return box[0]

    def first_does(self, work: Callable[[], Result]) -> Result:
        """The result of rank 0, on every rank; an error there is raised on every rank."""
        found, failed = None, None
        if self.first:
            try:
                found = work()
            except Exception as error:
                failed = error
        found, failed = self.shared((found, failed))
        if failed is not None:
            raise common(failed)
        return found

    def gather_objects(self, value: Any) -> list[Any]:
        """The value of every rank, by rank, on every rank."""
        found = [value] * self.size
        if self.size > 1:
            with name_lost_rank(self.watch):
                dist.all_gather_object(found, value)
        return found

    def agree(self, **facts: Any) -> None:
        """Checks that all ranks were started with the same data and settings; all ranks call it together.

        Args:
            **facts: What must be equal, by name; a mapping is compared entry by entry.

        Raises:
            UserError: On every rank, with the values of rank 0 and of the first rank that differs.
        """
        theirs = self.gather_objects(_flat(facts))
        differences = []
        for name in dict.fromkeys(name for one in theirs for name in one):
            values = [one.get(name, "absent") for one in theirs]
            rank = next((rank for rank, value in enumerate(values) if value != values[0]), 0)
            if rank:
                differences.append(f"{name} is {values[0]} on rank 0 and {values[rank]} on rank {rank}")
        if differences:
            advice = "Start every rank with the same command, data files and versions"
            raise common(UserError(f"the ranks were started differently: {'; '.join(differences)}. {advice}"))

    def wait_for_all(self) -> None:
        """Waits until every rank has reached this point."""
        self.any(False)

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Gradients of replicated parameters become those of the whole loss, in one message."""
        grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not grads or self.size == 1:
            return
        flat = self.sum_(torch.cat([grad.reshape(-1) for grad in grads]), "gradients")
        for grad, summed in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(summed.view_as(grad))

    def score(self, metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric of the rows of all ranks, the same number on every rank; NaN if nothing is labelled."""
        broken = outputs.new_tensor([float(outputs.isnan().any()), targets.shape[0]], dtype=torch.float64)
        if self.sum_(broken, "metrics")[0] > 0 or broken[1] == 0:
            return outputs.new_tensor(math.nan)
        if metric.adds:
            return metric.finish(self.sum_(metric.counts(outputs, targets), "metrics"))
        whole: Any = [self.gather_rows(part.contiguous(), "metrics") for part in (outputs, targets)]
        return outputs.new_tensor(self.first_does(lambda: float(metric(*whole))), dtype=torch.float64)


def common(error: Any) -> Any:
    """Marks an error that all ranks raise, so that only rank 0 reports it."""
    error.of_rank_0 = True
    return error


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``{"settings": {"epochs": 3}}`` as ``{"settings epochs": "3"}``."""
    found: dict[str, str] = {}
    for name, value in facts.items():
        nested = isinstance(value, Mapping)
        found |= _flat(value, f"{prefix}{name} ") if nested else {prefix + name: str(value)}
    return found


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, kind: str) -> Tensor:
        ctx.ranks, ctx.kind = ranks, kind
        return ranks.sum_(x.clone(memory_format=torch.contiguous_format), kind)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.ranks.sum_(grad.clone(memory_format=torch.contiguous_format), ctx.kind), None, None


def all_reduce(x: Tensor, ranks: Ranks, kind: str = "sums") -> Tensor:
    """Σ over ranks of `x`, on every rank; every rank must differentiate it, or none."""
    return _AllReduce.apply(x, ranks, kind)


@contextmanager
def join(device: str = "auto", *, watched: bool = True) -> Iterator[Ranks]:
    """This process as one of the group that `torchrun` started, or alone; ends the group when the block ends.

    Args:
        device: ``"auto"`` is one GPU per process if the machine has enough, otherwise the CPU.
        watched: Whether to monitor the other ranks.

    Raises:
        UserError: If there is no such device for this process, or the ranks run different versions.
        RankLostError: From any operation that waits for a rank that has died.
    """
    place = _device(device, int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    if not distributed.under_torchrun():
        yield Ranks(0, 1, place)
        return
    rank, size = distributed.rank(), int(os.environ["WORLD_SIZE"])
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
        ranks.wait_for_all()  # another rank may still need what only this process keeps
    except Exception as error:
        # Errors that all ranks raise need no report: rank 0's own, or an exit after Ctrl-C.
        if watch is not None and not getattr(error, "of_rank_0", False) and not hasattr(error, "exit_code"):
            watch.tell(error)
        raise
    finally:
        if watch is not None:
            watch.stop()
        dist.destroy_process_group()


def _device(device: str, local_rank: int, local_size: int) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and count < local_size):
        return torch.device("cpu")
    if device in ("auto", "cuda") and local_rank < count:
        return torch.device("cuda", local_rank)
    problem = f"device must be auto, cpu or cuda under torchrun (each process takes its own GPU), got {device!r} for "
    problem += f"local rank {local_rank} on a machine with {count} GPUs"
    raise UserError(problem)
