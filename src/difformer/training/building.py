"""From a configuration to what is trained: the model, its optimiser, and the learning rate of every epoch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from difformer.data import Task
from difformer.nn import GraphLevel
from difformer.training.config import TrainConfig


def build_model(task: Task, config: TrainConfig) -> nn.Module:
    """The model of a configuration, with the sizes of the task, drawn from torch's global generator.

    Raises:
        ValueError: If the model is unknown, does not serve this kind of task, or lacks an option.
    """
    from difformer.zoo import MODELS, build, find

    info = find(config.model)
    if task.kind not in info.kinds:
        others = [one.name for one in MODELS.values() if one.group == info.group and task.kind in one.kinds]
        instead = f", which {', '.join(others)} of the same group ({info.group}) would serve" if others else ""
        raise ValueError(
            f"model {config.model!r} serves {', '.join(info.kinds)}; task {task.name!r} is {task.kind!r}{instead}"
        )
    model = build(config.model, task.num_features, task.num_outputs, **config.options)
    return GraphLevel(model, config.readout) if task.kind == "graphs" else model  # type: ignore[arg-type]


def hook(model: nn.Module, name: str) -> Any:
    """An optional method of a model, also of one that is wrapped for graph-level tasks; None where there is none.

    There are three: ``penalty() -> Tensor``, a term of the loss of the pass just made; ``observe(y, train_index)``,
    called once with the training labels; ``prepare(x, edge_index, edge_weight)``, called once for what the model would
    rather be given.
    """
    found = getattr(model, name, None)
    return getattr(getattr(model, "encoder", None), name, None) if found is None else found


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer | None:
    """Adam with the decay inside the gradient, or AdamW; None for a model without parameters."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return None
    kind = torch.optim.AdamW if config.decoupled else torch.optim.Adam
    # One kernel for all parameters: three times as fast as one after the other, on the CPU too.
    fused = parameters[0].device.type in ("cpu", "cuda")
    return kind(parameters, lr=config.learning_rate, weight_decay=config.weight_decay, fused=fused)


def learning_rate(config: TrainConfig, epoch: int) -> float:
    """Of an epoch, counted from 1; a function of the epoch alone, so that nothing of a schedule has to be saved.

    With u falling from 1 in the first epoch after the warm-up to 1/n in the last of n: η (constant), η u (linear) or
    η (1 - cos πu) / 2 (cosine).
    """
    if epoch <= config.warmup:
        return config.learning_rate * epoch / (config.warmup + 1)
    u = (config.epochs - epoch + 1) / max(1, config.epochs - config.warmup)
    factor = {"constant": 1.0, "linear": u, "cosine": 0.5 - 0.5 * math.cos(math.pi * u)}[config.schedule]
    return config.learning_rate * factor
