"""Training steps on a GPU: graphs of the sizes of Cora, PubMed, ogbn-proteins and Pokec, and one of 50,000 nodes.

A step is one of the package's own training loop: forward, backward and optimiser, full batch, inputs resident. The
memory is the peak of all that is held on the device, inputs included. Targets are those of one H200; on another device
they are printed, and not judged.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import literal
from benchmarks.measure import Cost, Row, Work, measure
from benchmarks.others import OTHERS
from difformer.data import Split, Task
from difformer.training import TrainConfig
from difformer.training.loop import Trainer

GROUP = "training step, GPU"


@dataclass(frozen=True)
class Size:
    """A task of random features, labels and edges."""

    name: str
    nodes: int
    edges: int
    features: int
    outputs: int
    several: bool = False
    kernel: str = "simple"
    layers: int = 2
    precision: str = "float32"
    milliseconds: float = 0.0
    gigabytes: float | None = None


SIZES = (
    Size("Cora", 2_708, 13_264, 1_433, 7, layers=8, milliseconds=6),
    Size("PubMed", 19_717, 108_365, 500, 3, False, "sigmoid", 4, "bf16", 25, 1),
    Size("50,000 nodes", 50_000, 500_000, 128, 10, False, "sigmoid", 2, "bf16", 60, 1),
    Size("ogbn-proteins", 132_534, 79_122_504, 8, 112, True, layers=3, milliseconds=80),
    Size("Pokec", 1_632_803, 61_245_128, 65, 2, layers=3, milliseconds=90, gigabytes=12),
)


def _task(size: Size) -> Task:
    generator = torch.Generator().manual_seed(0)
    n = size.nodes
    half = torch.randint(0, n, (2, size.edges // 2), generator=generator)
    shape = (n, size.outputs) if size.several else (n,)
    y = torch.randint(0, 2 if size.several else size.outputs, shape, generator=generator)
    thirds = torch.randperm(n, generator=generator).tensor_split(3)
    return Task(
        name=size.name, kind="nodes", problem="multilabel" if size.several else "multiclass",
        metric="rocauc" if size.several else "accuracy", protocol="random features, labels and edges",
        x=torch.randn(n, size.features, generator=generator), y=y.float() if size.several else y,
        splits=(Split("thirds", *thirds),), num_outputs=size.outputs, edge_index=torch.cat([half, half.flip(0)], 1),
    )  # fmt: skip


def _ours(task: Task, size: Size) -> Work:
    model = {"simple": "difformer-s", "sigmoid": "difformer-a"}[size.kernel]
    options: dict[str, Any] = {"num_layers": size.layers}
    config = TrainConfig(model=model, options=options, epochs=10**6, precision=size.precision)
    trainer = Trainer(task, task.splits[0], config, 0, torch.device("cuda"))

    def work() -> None:
        trainer.train_epoch()
        trainer.journal.pending.clear()

    return work


def _theirs(model: nn.Module, task: Task) -> Work:
    model = model.cuda()
    x, y, edges = (value.cuda() for value in (task.x, task.y, task.edge_index))  # type: ignore[union-attr]
    train = task.splits[0].train.cuda()
    optimizer = torch.optim.Adam(model.parameters())

    def work() -> None:
        optimizer.zero_grad(set_to_none=True)
        out: Tensor = model(x, edges)
        functional.cross_entropy(out[train], y[train]).backward()
        optimizer.step()

    return work


def _alone(make: Any, repeats: int) -> Cost:
    """The cost of one side with the device to itself; its memory is all that is held at the peak."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work = make()
    work()
    # What is recorded as a graph shows its memory while it is recorded, not when it is replayed.
    peak = torch.cuda.max_memory_allocated()
    held = torch.cuda.memory_allocated()
    (cost,) = measure(work, repeats=repeats, gpu=True)
    return replace(cost, peak=max(peak, held + (cost.peak or 0)) - before)


def rows(repeats: int) -> Iterator[Row]:
    if not torch.cuda.is_available():
        return
    on_target = "H200" in torch.cuda.get_device_name()
    for size in SIZES:
        task = _task(size)
        mine = _alone(lambda task=task, size=size: _ours(task, size), repeats)
        work = f"{size.name}, {size.kernel}, {size.layers} layers, {size.precision}"
        target = f"≤ {size.milliseconds:g} ms" + ("" if size.gigabytes is None else f", ≤ {size.gigabytes:g} GB")
        within = size.gigabytes is None or (mine.peak or 0) <= size.gigabytes * 1e9
        reached = mine.seconds <= size.milliseconds / 1000 and within if on_target else None
        rivals: dict[str, Any] = {}
        if size.nodes < 20_000:
            rivals["literal model"] = lambda *sizes, size=size: literal.Model(
                *sizes[:3], layers=sizes[3], kernel=size.kernel
            )
            rivals |= OTHERS if size.kernel == "simple" else {}
        if not rivals:
            yield Row(GROUP, work, mine, "", None, target, reached)
        for name, build in rivals.items():
            sizes = (size.features, 64, size.outputs, size.layers)
            theirs = _alone(lambda build=build, sizes=sizes, task=task: _theirs(build(*sizes), task), repeats)
            yield Row(GROUP, work, mine, name, theirs, target, reached)
