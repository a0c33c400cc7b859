r"""Rows that count more than once: mass in the all-pair exchange, weights in the loss, and the training of both.

With masses m_j every operator of the package serves as it is. For values :math:`\tilde v_j = [m_j v_j, m_j]` it gives

.. math::
    \tilde P_i = \frac{\sum_j g_{ij} [m_j v_j, m_j]}{\sum_l g_{il}}, \qquad
    \frac{\tilde P_i[{:}c]}{\tilde P_i[c]} = \frac{\sum_j m_j g_{ij} v_j}{\sum_l m_l g_{il}},

and the division drops out of sight what it was normalised by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention.segments import Segments
from difformer.data import Split, Task
from difformer.estimators.judging import ACCURATE_THEN_SURE
from difformer.estimators.parts import PartsFeed
from difformer.graph import Graph
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.nn.structure import as_structure
from difformer.training.callbacks import Callback
from difformer.training.config import TrainConfig
from difformer.training.devices import resolve
from difformer.training.feeding import Feed, make_feed
from difformer.training.loop import Trainer
from difformer.training.model import build_model
from difformer.training.randomness import isolated_rng
from difformer.training.record import RunRecord


class MassConv(DIFFormerConv):
    """A layer whose rows have mass ``[N]``; made by changing the class of a `DIFFormerConv`."""

    mass: Tensor

    def forward(  # type: ignore[override]
        self,
        z: Tensor,
        edge_index: Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Segments | None = None,
        *,
        source: Tensor | None = None,
    ) -> Tensor:
        senders = as_structure(z.shape[0], edge_index, edge_weight, batch, weight=self.mass)
        return super().forward(z, source=source, context=senders)


def give_mass(model: DIFFormer, mass: Tensor) -> None:
    """From now on the rows of whole passes count with their mass; parameters and their names stay."""
    for layer in model.layers:
        layer.__class__ = MassConv
        layer.mass = mass / mass.mean()


def train_weighted(
    task: Task,
    split: Split,
    config: TrainConfig,
    seed: int,
    device: str,
    weight: Tensor | None = None,
    mass: Tensor | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunRecord:
    """`difformer.training.train_one` with weights of rows in the loss, and with their mass in the exchange.

    Held-out rows choose the epoch as `difformer.estimators.judging` says; mini-batches are judged in parts as well, see
    `difformer.estimators.parts`.

    Args:
        task: What is to be learnt.
        split: Which rows are trained on.
        config: Model and training; in mini-batches rows count alike in the exchange, and by weight in the loss.
        seed: Of everything that is random.
        device: Where to train.
        weight: ``[N]`` of the loss; None where all count alike.
        mass: ``[N]`` of the exchange; None where all count alike.
        callbacks: Told of every evaluated epoch.
    """
    place = resolve(device)
    with isolated_rng(place):
        torch.manual_seed(seed)
        model = build_model(task, config, seed).to(place)
        assert isinstance(model, DIFFormer)
        fed = task if weight is None else _packed(task, weight)
        feed: Feed
        if config.batch_size is not None:
            feed = PartsFeed(fed, split, config, seed, place)
        else:
            feed = make_feed(fed, split, config, seed, place, model)
        loss = None
        if weight is not None:
            loss = _cross_entropy if task.problem == "multiclass" else _squared_error
        metric = ACCURATE_THEN_SURE if split.valid.numel() and task.problem == "multiclass" else None
        if mass is not None and feed.whole:
            give_mass(model, mass.to(place))
        trainer = Trainer(task, split, config, seed, place, model=model, feed=feed, loss=loss, metric=metric)
        return trainer.run(tuple(callbacks))


def _packed(task: Task, weight: Tensor) -> Task:
    """Weights travel with the targets, as one more column, to whichever rows a step takes."""
    targets = task.y.double().reshape(task.num_instances, -1)
    return dataclasses.replace(
        task,
        y=torch.cat([targets, weight.double().unsqueeze(1)], 1),
        problem="regression",
        metric="mse",
        num_outputs=targets.shape[1] + 1,
        class_names=(),
    )


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    each = functional.cross_entropy(outputs, targets[:, 0].long(), reduction="none")
    return _mean(each, targets[:, -1])


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    wanted = targets[:, :-1].to(outputs.dtype)
    known = ~wanted.isnan()
    each = torch.where(known, outputs - wanted, 0.0).square()
    return _mean(each, targets[:, -1:] * known)


def _mean(each: Tensor, weight: Tensor) -> Tensor:
    weight = weight.to(each.dtype)
    # A mini-batch may hold rows of weight zero alone: it then teaches nothing.
    return (each * weight).sum() / weight.sum().clamp_min(torch.finfo(each.dtype).tiny)
