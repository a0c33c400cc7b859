"""The training loop of `difformer.training.loop` over ranks.

Every rank runs the same loop on its own rows. What must be one is made one: gradients are summed before each step, so
that parameters and optimiser stay the same everywhere; losses and metrics are those of all rows, so that every rank
finds the same best epoch and stops at the same one; a request to stop counts once any rank has it. A snapshot is that
of a single process, taken on any rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from difformer.distributed.journal import ShardedJournal
from difformer.distributed.losses import check_loss, class_weights, make_sums
from difformer.distributed.process_group import Ranks, sum_gradients
from difformer.distributed.senders import Rows
from difformer.distributed.shard import Shard
from difformer.nn import DIFFormer
from difformer.nn.dropout import dropout_key
from difformer.sparse import SparseMatrix
from difformer.training.callbacks import Callback
from difformer.training.checkpoint import Due
from difformer.training.config import TrainConfig, knn_of
from difformer.training.feeding import Inputs, Step, features
from difformer.training.loop import Log, Save, Trainer
from difformer.training.model import build_model
from difformer.training.optimizer import make_optimizer
from difformer.training.randomness import isolated_rng
from difformer.training.record import RunRecord


@dataclass(frozen=True)
class Facts:
    """What a model must know of a task that nobody holds whole."""

    name: str
    problem: str
    metric: str
    num_features: int
    num_outputs: int
    kind: str = "nodes"


def check_config(facts: Facts, config: TrainConfig, num_nodes: int) -> None:
    """Refuses what cannot be trained over ranks, before anything is read.

    Raises:
        ValueError: Naming the setting and what to do.
    """
    if config.batch_size is not None and config.batch_size < num_nodes:
        raise ValueError(
            f"batch_size={config.batch_size}: a partitioned graph is trained whole, in every pass; leave batch_size out"
        )
    if knn_of(config.graph) is not None:
        raise ValueError(
            f"graph={config.graph!r}: neighbours are to be found before a task is partitioned; where the data set has "
            f"such an option, `difformer partition … --data knn=K` does it"
        )
    check_loss(facts.problem, config)
    with isolated_rng(torch.device("cpu")):
        model = build_model(facts, config)  # type: ignore[arg-type]
    if not isinstance(model, DIFFormer):
        raise ValueError(
            f"model {config.model!r} cannot be trained on a partitioned graph; difformer, difformer-s and difformer-a "
            f"can. Seeds of any model are spread over ranks where the data set is given by name"
        )


@dataclass(frozen=True)
class ShardInputs(Inputs):
    """Features of own rows, and the way to all others."""

    rows: Rows | None = None

    def outputs(self, model: nn.Module) -> Tensor:
        assert isinstance(model, DIFFormer)
        assert self.rows is not None
        return model(self.x, context=self.rows)

    def states(self, model: Any) -> Tensor:
        assert self.rows is not None
        return model.embed(self.x, context=self.rows)


class ShardFeed:
    """All nodes in every pass, each on its rank."""

    whole = True

    def __init__(self, x: Tensor | SparseMatrix, shard_rows: Rows, rows: Tensor, targets: Tensor, mass: float) -> None:
        self.inputs = ShardInputs(x, rows=shard_rows)
        # The loss is a sum here; its mean is over the labels of all ranks.
        self._step = Step(self.inputs, targets, rows, share=1 / mass, part=1 / mass)

    def steps(self, epoch: int) -> Iterator[Step]:
        yield self._step

    def outputs(self, model: nn.Module) -> Tensor:
        return self.inputs.outputs(model)

    def states(self, model: nn.Module) -> Tensor:
        return self.inputs.states(model)

    def passes(self) -> list[Inputs]:
        return [self.inputs]


class _SharedDue(Due):
    """Rank 0's clock decides for all."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        super().__init__(config)
        self.ranks = ranks

    def __call__(self, epoch: int) -> bool:
        due = super().__call__(epoch)
        return self.ranks.any(due and self.ranks.first)


class RanksTrainer(Trainer):
    """What trainers over ranks share."""

    ranks: Ranks

    def run(
        self,
        callbacks: tuple[Callback, ...] = (),
        log: Log | None = None,
        save: Save | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> RunRecord:
        asked, kept = stop or (lambda: False), save or (lambda snapshot: None)
        return super().run(callbacks, log, kept, lambda: self.ranks.any(asked()))

    def _due(self) -> Due:
        return _SharedDue(self.config, self.ranks)

    def _update(self) -> None:
        sum_gradients(self.model.parameters(), self.ranks)
        super()._update()

    def _warnings(self, outputs: Tensor) -> list[str]:
        return []  # a rank sees its own rows alone


class ShardedTrainer(RanksTrainer):
    """A model on every rank, rows on one; to be made and used by all ranks together, inside `isolated_rng`.

    Args:
        facts: Of the task.
        shard: Own rows.
        number: Of the split.
        config: Model and training.
        seed: Of everything that is random; torch's global generator must have been seeded with it.
    """

    def __init__(self, facts: Facts, shard: Shard, number: int, config: TrainConfig, seed: int) -> None:
        ranks, split = shard.ranks, shard.splits[number]
        self.task, self.split, self.config, self.seed = facts, split, config, seed  # type: ignore[assignment]
        self.device, self.ranks = ranks.device, ranks
        check_config(facts, config, shard.rows.total)
        torch.manual_seed(seed)
        self.model = build_model(facts, config, seed).to(ranks.device)  # type: ignore[arg-type]
        for value in self.model.state_dict().values():  # the same on every rank, also on unlike machines
            if ranks.rank:
                value.zero_()
            ranks.sum_(value, "plan")
        self.penalty, self.notes = None, []
        rows = shard.rows if config.graph == "given" else Rows(ranks, shard.rows.numbers, shard.rows.sizes, None)
        targets = shard.y[split.train]
        weights = class_weights(targets, facts.num_outputs, ranks) if config.class_weights else None
        self.loss, mass = make_sums(facts.problem, config, weights)
        targets = targets.to(ranks.device)
        total = ranks.sum_(mass(targets).to(ranks.device, torch.float64).reshape(1), "plan").item()
        self.feed = ShardFeed(features(shard.x, ranks.device), rows, split.train.to(ranks.device), targets, total)
        self.optimizer = make_optimizer(self.model, config)
        self.epochs = config.epochs
        self.journal = ShardedJournal(
            facts.metric, facts.problem, shard.y, facts.num_outputs, split, config, seed, ranks
        )
        self.epoch, self.seconds = 0, 0.0
        self.best_state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.numbers = rows.numbers

    def _masks(self, epoch: int) -> AbstractContextManager[Any]:
        return dropout_key(self.seed, epoch, rows=self.numbers)
