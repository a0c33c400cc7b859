"""Batches of graphs shared among ranks: plain data parallelism, with the result of one process.

Every rank holds the whole task and takes an equal run of the graphs of each batch. The loss is a sum over labels
divided by the number of those of the *whole* batch, gradients are summed over ranks before each step, and dropout masks
follow from the place of a row in the whole batch: so the steps are those of one process. Evaluation deals out batches,
and every rank then knows all outputs, ``[G, C]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from difformer.data import Split, Task
from difformer.data.batches import GraphBatch, GraphBatches, epoch_generator
from difformer.distributed.losses import check_loss, make_sums
from difformer.distributed.process_group import Ranks
from difformer.distributed.trainer import RanksTrainer
from difformer.nn import DIFFormer, GraphLevel
from difformer.nn.dropout import dropout_key
from difformer.training.config import TrainConfig
from difformer.training.feeding import Inputs, Step, structured
from difformer.training.feeding_graphs import DEFAULT_BATCH_SIZE, GraphsFeed
from difformer.training.journal import Journal, Measured
from difformer.training.losses import class_weights
from difformer.training.model import build_model
from difformer.training.optimizer import make_optimizer
from difformer.training.randomness import isolated_rng
from difformer.training.record import Row


def shares_batches(task: Task, config: TrainConfig) -> bool:
    """Whether ranks can train one model of this configuration together: graphs, and a DIFFormer."""
    if task.kind != "graphs" or config.loss != "auto":
        return False
    with isolated_rng(torch.device("cpu")):
        model = build_model(task, config)
    return isinstance(model, GraphLevel) and isinstance(model.encoder, DIFFormer)


@dataclass(frozen=True)
class _Share(Inputs):
    """Some graphs of a batch."""

    numbers: Tensor | None = None  # of their rows in the whole batch


class _ShareFeed(GraphsFeed):
    """Of every batch, the graphs of one rank."""

    def __init__(
        self, task: Task, split: Split, config: TrainConfig, seed: int, ranks: Ranks, weights: Tensor | None
    ) -> None:
        super().__init__(task, split, config, seed, ranks.device)
        self.task, self.split, self.seed, self.ranks = task, split, seed, ranks
        self.size = config.batch_size or DEFAULT_BATCH_SIZE
        self.batches = GraphBatches(task, batch_size=self.size)
        _, self.mass = make_sums(task.problem, config, None if weights is None else weights.cpu())

    def steps(self, epoch: int) -> Iterator[Step]:
        index = self.split.train
        index = index[torch.randperm(index.numel(), generator=epoch_generator(self.seed, epoch))]
        for graphs in index.split(self.size):
            if graphs.numel():
                yield self._step(graphs, graphs.numel() / index.numel())

    def _step(self, graphs: Tensor, part: float) -> Step:
        own = graphs.tensor_split(self.ranks.size)[self.ranks.rank]
        # Who has no graph takes the first one, without its label: a step that adds nothing.
        idle = not own.numel()
        batch = self.batches.batch(graphs[:1] if idle else own)
        nodes = self.batches.node_ptr.diff()[graphs]
        before = 0 if idle else int(nodes[: _before(graphs.numel(), self.ranks)].sum())
        numbers = before + torch.arange(batch.x.shape[0], device=self.device)
        targets = batch.y
        if idle:
            targets = torch.full_like(targets, torch.nan if targets.is_floating_point() else -1)
        mass = float(self.mass(self.task.y[graphs]))
        inputs = self._inputs(batch)
        share = _Share(inputs.x, inputs.graph, inputs.batch, numbers)
        return Step(share, targets.to(self.device), share=1 / mass, part=part / mass)

    def outputs(self, model: nn.Module) -> Tensor:
        """``[G, C]`` of all graphs, on every rank."""
        return self._dealt(lambda inputs: inputs.outputs(model))

    def states(self, model: nn.Module) -> Tensor:
        return self._dealt(lambda inputs: inputs.states(model))

    def _own(self) -> list[tuple[Tensor, GraphBatch]]:
        every = torch.arange(self.task.num_instances).split(self.size)
        return [(graphs, self.batches.batch(graphs)) for graphs in every[self.ranks.rank :: self.ranks.size]]

    def _dealt(self, work: Any) -> Tensor:
        if self._kept is None:
            own = self._own()
            self._places = [graphs.to(self.device) for graphs, _ in own]
            self._kept = [self._inputs(batch) for _, batch in own]
        found = [work(inputs).float() for inputs in self._kept]
        width = int(self.ranks.max_(torch.tensor([found[0].shape[1] if found else 0], device=self.device)).item())
        every = torch.zeros(self.task.num_instances, width, device=self.device)
        for places, part in zip(self._places, found, strict=True):
            every[places] = part
        return self.ranks.sum_(every, "metrics")


def _before(count: int, ranks: Ranks) -> int:
    """Graphs of a batch of `count` that stand before those of this rank, as `Tensor.tensor_split` deals them."""
    each, more = divmod(count, ranks.size)
    return ranks.rank * each + min(ranks.rank, more)


class _Journal(Journal):
    """Each rank has its share of the loss, and all outputs."""

    ranks: Ranks

    def write(self, epoch: int, seconds: float, measured: Measured | None = None) -> list[Row]:
        if self.pending:
            whole = self.ranks.sum_(torch.stack(self.pending).double(), "metrics")
            self.pending[:] = list(whole.unbind())
        return super().write(epoch, seconds, measured)


class GraphsTrainer(RanksTrainer):
    """One model of graphs, trained by all ranks; to be made and used by them together, inside `isolated_rng`."""

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, ranks: Ranks) -> None:
        check_loss(task.problem, config)
        self.task, self.split, self.config, self.seed = task, split, config, seed
        self.device, self.ranks = ranks.device, ranks
        torch.manual_seed(seed)
        self.model = build_model(task, config, seed).to(ranks.device)
        self.penalty, self.notes = None, []
        weights = class_weights(task.y[split.train], task.num_outputs) if config.class_weights else None
        weights = None if weights is None else weights.to(ranks.device)
        self.loss, _ = make_sums(task.problem, config, weights)
        given = structured(task, split, config, self.model)
        self.feed = _ShareFeed(given, split, config, seed, ranks, weights)
        self.optimizer = make_optimizer(self.model, config)
        self.epochs = config.epochs
        self.journal = _Journal(task, split, config, seed, self.epochs, ranks.device)
        self.journal.ranks = ranks
        self.epoch, self.seconds = 0, 0.0
        self.best_state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    @contextmanager
    def _masks(self, epoch: int) -> Iterator[Any]:
        with dropout_key(self.seed, epoch) as place:
            self._place = place
            yield place

    def _forward(self, step: Step) -> Tensor:
        assert isinstance(step.inputs, _Share)
        self._place.rows = step.inputs.numbers
        return super()._forward(step)
