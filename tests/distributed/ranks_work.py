"""What processes of a group are told to do in tests; everything travels as plain tensors and numbers."""

from __future__ import annotations

import torch

from difformer.distributed.collectives import sum_gradients
from difformer.distributed.losses import make_sums
from difformer.distributed.model import outputs
from difformer.distributed.parts import cut
from difformer.distributed.shard import assemble
from difformer.nn import DIFFormer
from difformer.nn.dropout import dropout_key
from difformer.training.config import TrainConfig
from difformer.training.feeding import features


def shard_of(ranks, task, assignment, parts):
    """The shard of a rank, from a task that tests hold whole."""
    found = list(cut(task, assignment, parts))
    sizes = [part.nodes.numel() for part in found]
    nothing = torch.full((task.num_nodes,), 0)
    return assemble(
        ranks, found.__getitem__, sizes, [split.name for split in task.splits],
        num_edges=task.num_edges or 0, empty=lambda: list(cut(task, nothing, 2))[1],
    )  # fmt: skip


def one_step(ranks, task, assignment, parts, options, dtype=torch.float32):
    """Loss, outputs of own rows, and the gradient of every parameter after one pass with dropout."""
    shard = shard_of(ranks, task, assignment, parts)
    torch.manual_seed(0)
    model = DIFFormer(task.num_features, 8, task.num_outputs, **options).to(dtype).train()
    x = features(shard.x.to(dtype), ranks.device)
    rows = shard.splits[0].train
    total, mass = make_sums(task.problem, TrainConfig(), None)
    count = ranks.sum_(mass(shard.y[rows]).double().reshape(1), "plan")
    with ranks.traffic.during() as sent, dropout_key(7, 3, rows=shard.rows.numbers):
        out = outputs(model, x, shard.rows)
        loss = total(out[rows], shard.y[rows]) / count.item()
        loss.backward()
        sum_gradients(model.parameters(), ranks)
    grads = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    whole = ranks.sum_(loss.detach().double().reshape(1), "metrics")
    return {
        "loss": whole.item(),
        "rows": shard.rows.numbers.numpy(),
        "outputs": out.detach().numpy(),
        "grads": grads,
        "sent": sent,
    }
