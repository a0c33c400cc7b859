"""The training loop of `difformer.training.loop` over ranks.

Every rank runs the same loop on its own rows. Gradients are summed before each step, so that parameters and optimiser
stay the same everywhere; losses and metrics are over all rows, so that every rank finds the same best epoch and
stops at the same one; a request to stop counts as soon as any rank has it. A snapshot is that of a single process.

`ShardedTrainer` spreads the nodes of one graph. `GraphsTrainer` shares batches of graphs: every rank holds the whole
task and takes an equal number of graphs of each batch. The loss is a sum over labels divided by the number of
labels in the *whole* batch, and dropout masks follow from the position of a row in the whole batch, so the steps are
the same as in one process. In an evaluation batches are distributed, and every rank then knows all outputs, ``[G, C]``.

A loss is a ratio of sums over labelled entries (`difformer.training.losses`). Its mass depends on targets only and is
summed over ranks once; a rank's share of the loss is its own part of the sum over that, zero if it has no label.
Metrics are counts, which are added over ranks, except ROC-AUC, which needs the order of all scores: rank 0 gathers
those of the measured rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from difformer.data import Split, Task
from difformer.data.batches import GraphBatches, epoch_generator
from difformer.distributed.partition_folder import Partition
from difformer.distributed.process_group import Ranks, sum_gradients
from difformer.distributed.senders import Rows
from difformer.distributed.shard import Shard
from difformer.errors import UserError
from difformer.nn import DIFFormer, GraphLevel
from difformer.nn.dropout import dropout_key
from difformer.training.config import TrainConfig, knn_of
from difformer.training.feeds import DEFAULT_BATCH_SIZE, GraphsFeed, Inputs, OnePassFeed, Step, features, structured
from difformer.training.journal import Journal, Measured, NonFiniteLossError
from difformer.training.loop import Trainer
from difformer.training.losses import Ratio, make_loss
from difformer.training.metrics import Metric
from difformer.training.model import build_model, prepared_model
from difformer.training.randomness import isolated_rng
from difformer.training.record import Row


def check_config(partition: Partition, config: TrainConfig) -> None:
    """Refuses settings that cannot be trained over ranks, before anything is read."""
    if config.batch_size is not None and config.batch_size < partition.num_nodes:
        raise UserError(
            f"batch_size={config.batch_size}: a partitioned graph is trained whole, in every pass; leave batch_size out"
        )
    if knn_of(config.graph) is not None:
        raise UserError(
            f"graph={config.graph!r}: neighbours must be found before a task is partitioned: use `difformer "
            f"partition … --data knn=K` if the data set has that option"
        )
    if config.loss != "auto":
        raise UserError(f"loss={config.loss!r} is for series; nodes over ranks take loss='auto'")
    if partition.about["problem"] == "regression" and (config.label_smoothing or config.class_weights):
        raise UserError("label_smoothing and class_weights are for classes; this task is a regression")
    with isolated_rng(torch.device("cpu")):
        model = build_model(partition.stand_in(), config)
    if not isinstance(model, DIFFormer):
        raise UserError(
            f"model {config.model!r} cannot be trained on a partitioned graph; difformer, difformer-s and difformer-a "
            f"can. Seeds of any model are spread over ranks if the data set is given by name"
        )


@dataclass(frozen=True)
class ShardInputs(Inputs):
    """Features of own rows, and the way to all others."""

    rows: Rows | None = None

    def outputs(self, model: nn.Module) -> Tensor:
        return model(self.x, context=self.rows)

    def states(self, model: Any) -> Tensor:
        return model.embed(self.x, context=self.rows)


def measure(metric: Metric, outputs: Tensor, targets: Tensor, ranks: Ranks) -> float:
    """The metric of the rows of all ranks, the same number on every rank; NaN if nothing is labelled."""
    broken = torch.tensor([float(outputs.isnan().any()), targets.shape[0]], dtype=torch.float64, device=outputs.device)
    broken = ranks.sum_(broken, "metrics")
    if broken[0] > 0 or broken[1] == 0:
        return math.nan
    if not metric.adds:
        whole: Any = [ranks.gather_rows(part.contiguous(), "metrics") for part in (outputs, targets)]
        return ranks.first_does(lambda: float(metric(*whole)))
    if metric.name == "broadcast-mse":
        raise UserError(
            "metric broadcast-mse is not for nodes over ranks; take accuracy, rocauc, f1, f1-micro, mse or mae",
            argument="metric",
        )
    return float(metric.finish(ranks.sum_(metric.counts(outputs, targets), "metrics")))


class SharedJournal(Journal):
    """The journal of a run in which each rank has a share of the loss, and all outputs."""

    def __init__(self, trainer: RanksTrainer, metric: Metric) -> None:
        self.ranks = trainer.ranks
        super().__init__(trainer, metric)

    def write(self, epoch: int, seconds: float, measured: Measured | None = None) -> list[Row]:
        if self.pending:
            self.pending[:] = self.ranks.sum_(torch.stack(self.pending).double(), "metrics").unbind()
        return super().write(epoch, seconds, measured)


class ShardedJournal(SharedJournal):
    """The journal of a run whose rows are spread over ranks; its task and split hold the rank's own rows."""

    def _check(self, num_outputs: int) -> bool:
        targets = self.parts["valid"][1]
        if not self.ranks.any(bool(targets.numel())):
            return False
        shape = targets.shape if targets.is_floating_point() else (*targets.shape, num_outputs)
        zeros = torch.zeros(shape, device=targets.device)
        if (value := measure(self.metric, zeros, targets, self.ranks)) != value:
            raise UserError(
                f"metric {self.metric.name!r} is not defined on the validation part; choose another metric "
                f"(--set metric=…) or another split"
            )
        return True

    def measure(self, epoch: int, outputs: Tensor) -> Measured:
        outputs = outputs.float()
        if self.ranks.any(not all(bool(outputs[index].isfinite().all()) for index, _ in self.parts.values())):
            raise NonFiniteLossError(epoch, None, self.config)
        return {
            name: measure(self.metric, outputs[index], targets, self.ranks)
            for name, (index, targets) in self.parts.items()
        }


class RanksTrainer(Trainer):
    """What trainers over ranks share; to be made and used by all ranks together, inside `isolated_rng`."""

    journal_class = SharedJournal

    def __init__(self, task: Any, split: Split, config: TrainConfig, seed: int, ranks: Ranks, **given: Any) -> None:
        self.ranks = ranks
        super().__init__(task, split, config, seed, ranks.device, **given)

    def _anywhere(self, asked: bool) -> bool:
        return self.ranks.any(asked)  # only rank 0 saves, so that its clock decides for all

    def _update(self) -> None:
        sum_gradients(self.model.parameters(), self.ranks)
        super()._update()

    def _warnings(self, outputs: Tensor) -> list[str]:
        return []  # a rank sees only its own rows


class ShardedTrainer(RanksTrainer):
    """A model on every rank, rows on one; `number` is that of the split."""

    journal_class = ShardedJournal

    def __init__(self, partition: Partition, shard: Shard, number: int, config: TrainConfig, seed: int) -> None:
        ranks, split, own = shard.ranks, shard.splits[number], partition.stand_in(shard.y)
        device = ranks.device
        check_config(partition, config)

        def summed(x: Tensor) -> Tensor:
            return ranks.sum_(x.to(device), "plan").to(x.device)

        targets = shard.y[split.train].to(device)
        model = prepared_model(own, split, config, seed, device, summed)
        for value in model.state_dict().values():  # the same on every rank, also on unlike machines
            if ranks.rank:
                value.zero_()
            ranks.sum_(value, "plan")
        loss = make_loss(own, split, config, device, summed)
        mass = summed(loss.mass(targets).double().reshape(1)).item()
        rows = shard.rows if config.graph == "given" else Rows(ranks, shard.rows.numbers, shard.rows.sizes, None)
        inputs = ShardInputs(features(shard.x, device), rows=rows)
        # The loss is a sum here; its mean is over the labels of all ranks.
        feed = OnePassFeed(Step(inputs, targets, split.train.to(device), share=1 / mass, part=1 / mass))
        super().__init__(own, split, config, seed, ranks, model=model, feed=feed, loss=loss.total)
        self.numbers = rows.numbers

    def _masks(self, epoch: int) -> AbstractContextManager[Any]:
        return dropout_key(self.seed, epoch, rows=self.numbers)


def shares_batches(task: Task, config: TrainConfig) -> bool:
    """Whether ranks can share the batches of this configuration: a DIFFormer on graphs."""
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

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, ranks: Ranks, loss: Ratio) -> None:
        super().__init__(task, split, config, seed, ranks.device)
        self.task, self.split, self.seed, self.ranks, self.mass = task, split, seed, ranks, loss.mass
        self.size = config.batch_size or DEFAULT_BATCH_SIZE
        self.batches = GraphBatches(task, batch_size=self.size)

    def steps(self, epoch: int) -> Iterator[Step]:
        index = self.split.train
        index = index[torch.randperm(index.numel(), generator=epoch_generator(self.seed, epoch))]
        for graphs in index.split(self.size):
            if graphs.numel():
                yield self._step(graphs, graphs.numel() / index.numel())

    def _step(self, graphs: Tensor, part: float) -> Step:
        own = graphs.tensor_split(self.ranks.size)[self.ranks.rank]
        # A rank without a graph takes the first one without its label: a step that adds nothing.
        idle = not own.numel()
        batch = self.batches.batch(graphs[:1] if idle else own)
        first = sum(len(share) for share in graphs.tensor_split(self.ranks.size)[: self.ranks.rank])
        before = 0 if idle else int(self.batches.node_ptr.diff()[graphs][:first].sum())
        numbers = before + torch.arange(batch.x.shape[0], device=self.device)
        targets = batch.y
        if idle:
            targets = torch.full_like(targets, torch.nan if targets.is_floating_point() else -1)
        mass = float(self.mass(self.task.y[graphs]))
        inputs = self._inputs(batch)
        share = _Share(inputs.x, inputs.graph, inputs.batch, numbers)
        return Step(share, targets.to(self.device), share=1 / mass, part=part / mass)

    def _joined(self, ask: Callable[[Inputs], Tensor]) -> Tensor:
        """``[G, …]`` of all graphs, on every rank."""
        own = torch.arange(self.task.num_instances).split(self.size)[self.ranks.rank :: self.ranks.size]
        if self._kept is None:
            self._kept = [self._inputs(self.batches.batch(graphs)) for graphs in own]
        found = [ask(inputs).float() for inputs in self._kept]
        width = int(self.ranks.max_(torch.tensor([found[0].shape[1] if found else 0], device=self.device)).item())
        every = torch.zeros(self.task.num_instances, width, device=self.device)
        for graphs, part in zip(own, found, strict=True):
            every[graphs.to(self.device)] = part
        return self.ranks.sum_(every, "metrics")


class GraphsTrainer(RanksTrainer):
    """One model of graphs, trained by all ranks."""

    def __init__(self, task: Task, split: Split, config: TrainConfig, seed: int, ranks: Ranks) -> None:
        model = prepared_model(task, split, config, seed, ranks.device)
        loss = make_loss(task, split, config, ranks.device)
        feed = _ShareFeed(structured(task, split, config, model), split, config, seed, ranks, loss)
        super().__init__(task, split, config, seed, ranks, model=model, feed=feed, loss=loss.total)

    @contextmanager
    def _masks(self, epoch: int) -> Iterator[Any]:
        with dropout_key(self.seed, epoch) as place:
            self._place = place
            yield place

    def _forward(self, step: Step) -> Tensor:
        assert isinstance(step.inputs, _Share)
        self._place.rows = step.inputs.numbers
        return super()._forward(step)
