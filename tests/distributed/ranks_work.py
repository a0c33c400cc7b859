"""What processes of a group are told to do in tests; everything travels as plain tensors and numbers."""

from __future__ import annotations

import torch

from difformer.distributed.graph_partition import cut
from difformer.distributed.shard import assemble
from difformer.nn import DIFFormer
from difformer.nn.dropout import dropout_key
from difformer.training.feeds import features
from difformer.training.losses import problem_loss


def shard_of(ranks, task, assignment, parts):
    """The shard of a rank, from a task that tests hold whole."""
    found = list(cut(task, assignment, parts))
    sizes = [part.nodes.numel() for part in found]
    names = [split.name for split in task.splits]
    return assemble(ranks, found.__getitem__, sizes, names, num_edges=task.num_edges or 0)


def one_step(ranks, task, assignment, parts, options, dtype=torch.float32):
    """Loss, outputs of own rows, and the gradient of every parameter after one pass with dropout."""
    shard = shard_of(ranks, task, assignment, parts)
    torch.manual_seed(0)
    model = DIFFormer(task.num_features, 8, task.num_outputs, **options).to(dtype).train()
    x = features(shard.x.to(dtype), ranks.device)
    rows = shard.splits[0].train
    loss = problem_loss(task.problem)
    total, mass = loss.total, loss.mass
    count = ranks.sum_(mass(shard.y[rows]).double().reshape(1), "plan")
    with ranks.traffic.during() as sent, dropout_key(7, 3, rows=shard.rows.numbers):
        out = model(x, context=shard.rows)
        loss = total(out[rows], shard.y[rows]) / count.item()
        loss.backward()
        ranks.sum_gradients(model.parameters())
    grads = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    whole = ranks.sum_(loss.detach().double().reshape(1), "metrics")
    return {
        "loss": whole.item(),
        "rows": shard.rows.numbers.numpy(),
        "outputs": out.detach().numpy(),
        "grads": grads,
        "sent": sent,
    }


def train(ranks, path, out, config, seeds, stop_at=None, resume=False):
    """A run on a partitioned task; `stop_at` presses Ctrl-C on the last rank at that epoch."""
    import os
    import signal

    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.rank_runs import fit_sharded, resume_sharded
    from difformer.training import TrainingInterrupted

    class Stop:
        def on_epoch(self, event):
            if event.epoch == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

    partition = Partition.open(path)
    callbacks = [Stop()] if stop_at is not None else []
    try:
        if resume:
            summary, sent = resume_sharded(out, partition, ranks=ranks)
        else:
            summary, sent = fit_sharded(partition, config, ranks=ranks, seeds=seeds, out=out, callbacks=callbacks)
    except (ValueError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    except TrainingInterrupted as stopped:
        return "interrupted", None if stopped.summary is None else stopped.summary.results
    return [record.history for record in summary.records], summary.results, vars(sent)


def parts_read(ranks, path):
    """Numbers of the parts that a rank reads, and the rows it then has."""
    from difformer.distributed.partition_folder import Partition

    read: list[int] = []

    class Counting(Partition):
        def read(self, number):
            read.append(number)
            return super().read(number)

    partition = Partition.open(path)
    shard = Counting(partition.path, partition.about).shard(ranks)
    return read, shard.rows.numbers.tolist()


def measured(ranks, metric, outputs, targets, assignment):
    """A metric of rows that are spread over ranks."""
    from difformer.training.metrics import find_metric

    own = assignment == ranks.rank
    return float(ranks.score(find_metric(metric), outputs[own], targets[own]))


def train_seeds(ranks, task, config, seeds, out, stop_at=None, resume=False):
    """Runs spread over ranks, on a task that all hold; `stop_at` presses Ctrl-C on every rank at that epoch."""
    import os
    import signal

    from difformer.distributed.rank_runs import fit_seeds
    from difformer.training import TrainingInterrupted

    class Stop:
        def on_epoch(self, event):
            if event.epoch == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

    callbacks = [Stop()] if stop_at is not None else []
    try:
        with ranks.traffic.during() as sent:
            summary = fit_seeds(task, config, ranks=ranks, seeds=seeds, out=out, resume=resume, callbacks=callbacks)
    except TrainingInterrupted:
        return "interrupted"
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return summary.results, sent


def tune_together(ranks, task, question, trials, out):
    """A study whose trials are spread over ranks."""
    from difformer.training.study import tune

    found = tune(task, question, ranks=ranks, trials=trials, out=out)[question.model]
    return found.best.number, found.settings, found.score, [trial.state for trial in found.trials]


def train_unlike(ranks, how, task, parts, out, config):
    """A run that every rank asks for in its own way: `how` gives what differs on the last rank."""
    from dataclasses import replace

    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.rank_runs import fit_seeds, fit_sharded

    last = ranks.rank == ranks.size - 1
    if last and how == "settings":
        config = replace(config, learning_rate=0.5, options={**config.options, "num_layers": 3})
    if last and how == "data":
        task, parts = replace(task, x=task.x + 1), parts.with_name("other")
    seeds = [1] if last and how == "seeds" else [0]
    if last and how == "cut":
        parts = parts.with_name("cut")
    said = []
    for work in (
        lambda: fit_seeds(task, config, ranks=ranks, seeds=seeds, out=out),
        lambda: fit_sharded(Partition.open(parts), config, ranks=ranks, seeds=seeds, out=out),
    ):
        try:
            work()
            said.append("trained")
        except ValueError as error:
            said.append(str(error))
    return said


def compare_versions(ranks):
    """What a rank hears where the last one has another version."""
    try:
        ranks.agree(version={"of difformer": "9.9" if ranks.rank == ranks.size - 1 else "0.1", "of torch": "2.13"})
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    return ""
