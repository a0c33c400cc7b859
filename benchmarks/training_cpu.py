"""One epoch of training, evaluation included, beside a literal implementation of the formulas, in the same run.

The literal implementation does what one writes down first: dense features, queries, keys and values as the equations
have them, the graph normalised in every layer of every pass, Adam parameter by parameter, and a second forward pass for
evaluation. Both train the same model (8 layers, hidden 64, settings of the authors' public code for Cora) on a random
graph of Cora's size with a bag of words of its density, in turns of a few epochs, so that other work on the machine
slows both alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.measure import Cost, Row
from difformer.data import Split, Task
from difformer.training import EpochEvent, TrainConfig, train_one

GROUP = "training epoch with evaluation, size of Cora, CPU"
EPOCHS = 8  # of each in a turn
NODES, FEATURES, WORDS, EDGES, CLASSES = 2_708, 1_433, 18, 5_278, 7
TARGETS = {"difformer-s": 4.0, "difformer-a": 2.0}
SETTINGS = {
    "difformer-s": TrainConfig(
        model="difformer-s",
        options={"num_layers": 8, "dropout": 0.2, "transform": False, "qk_norm": "global"},
        weight_decay=0.01,
    ),
    "difformer-a": TrainConfig(
        model="difformer-a",
        options={"num_layers": 8, "dropout": 0.0, "transform": False, "qk_norm": "none"},
        weight_decay=0.1,
    ),
}


class LiteralLayer(nn.Module):
    """Z⁺ = ½ Z + ½ (attention + graph), each formula as it stands."""

    def __init__(self, hidden: int, kernel: str) -> None:
        super().__init__()
        self.kernel = kernel
        self.query, self.key = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ones = torch.ones(v.shape[0])
        if self.kernel == "difformer-s":
            q, k = q / q.norm(), k / k.norm()
            answer = torch.einsum("nhd,hdc->nhc", q, torch.einsum("nhd,nhc->hdc", k, v))
            answer = answer + torch.einsum("n,nhc->hc", ones, v)
            total = torch.einsum("nhd,hd->nh", q, torch.einsum("nhd,n->hd", k, ones)) + v.shape[0]
            return answer / total.unsqueeze(-1)
        scores = torch.sigmoid(torch.einsum("nhd,mhd->nmh", q, k))
        total = torch.einsum("nmh,m->nh", scores, ones)
        return torch.einsum("nmh,mhc->nhc", scores / total.unsqueeze(1), v)

    def graph(self, v: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        degree = torch.zeros(v.shape[0]).index_add(0, target, torch.ones(target.numel()))
        weight = (1 / degree[target]).sqrt() * (1 / degree[source]).sqrt()
        weight = torch.nan_to_num(weight, nan=0.0, posinf=0.0, neginf=0.0)
        matrix = torch.sparse_coo_tensor(torch.stack([target, source]), weight, (v.shape[0], v.shape[0]))
        return torch.stack([torch.sparse.mm(matrix, v[:, head]) for head in range(v.shape[1])], 1)

    def forward(self, z: Tensor, edge_index: Tensor) -> Tensor:
        q, k, v = self.query(z).unsqueeze(1), self.key(z).unsqueeze(1), z.unsqueeze(1)
        return 0.5 * z + 0.5 * (self.attention(q, k, v) + self.graph(v, edge_index)).mean(1)


class Literal(nn.Module):
    """Input layer, eight diffusion layers, output layer."""

    def __init__(self, features: int, classes: int, kernel: str, dropout: float, hidden: int = 64) -> None:
        super().__init__()
        self.input, self.output = nn.Linear(features, hidden), nn.Linear(hidden, classes)
        self.layers = nn.ModuleList(LiteralLayer(hidden, kernel) for _ in range(8))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(9))
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = functional.dropout(functional.relu(self.norms[0](self.input(x))), self.dropout, self.training)
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            z = functional.dropout(norm(layer(z, edge_index)), self.dropout, self.training)
        return self.output(z)


def cora_size() -> Task:
    """A random task with the counts of Cora: words a document, links, labels, parts."""
    generator = torch.Generator().manual_seed(0)
    words = torch.stack([torch.randperm(FEATURES, generator=generator)[:WORDS] for _ in range(NODES)])
    x = torch.zeros(NODES, FEATURES).scatter_(1, words, 1 / WORDS)
    half = torch.randint(0, NODES, (2, EDGES), generator=generator)
    loops = torch.arange(NODES).expand(2, -1)
    order = torch.randperm(NODES, generator=generator)
    return Task(
        name="size of cora", kind="nodes", problem="multiclass", metric="accuracy", protocol="random",
        x=x.to_sparse_csr(), y=torch.randint(0, CLASSES, (NODES,), generator=generator), num_outputs=CLASSES,
        splits=(Split("random", order[:140], order[140:640], order[640:1640]),),
        edge_index=torch.cat([half, half.flip(0), loops], 1),
    )  # fmt: skip


def literal_epochs(task: Task, config: TrainConfig) -> Iterator[None]:
    """Trains for ever, one epoch a turn."""
    split, x = task.splits[0], task.x.to_dense()
    model = Literal(task.num_features, task.num_outputs, config.model, config.options["dropout"])
    optimizer = torch.optim.Adam(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, foreach=False
    )
    while True:
        model.train()
        optimizer.zero_grad()
        outputs = functional.log_softmax(model(x, task.edge_index), 1)
        functional.nll_loss(outputs[split.train], task.y[split.train]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            right = model(x, task.edge_index).argmax(1) == task.y
            for index in split.parts().values():
                right[index].float().mean().item()
        yield


class Clock:
    """Takes the time at every evaluated epoch."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_epoch(self, event: EpochEvent) -> None:
        self.times.append(time.perf_counter())


def compare(task: Task, config: TrainConfig, turns: int) -> tuple[list[float], list[float]]:
    """Seconds of single epochs, of ours and of the literal one."""
    ours: list[float] = []
    literal: list[float] = []
    plain = literal_epochs(task, config)
    next(plain)
    for _ in range(turns):
        clock = Clock()
        train_one(task, 0, config.replace(epochs=EPOCHS + 1), device="cpu", callbacks=[clock])
        ours += [b - a for a, b in pairwise(clock.times)]
        times = [time.perf_counter()]
        for _ in range(EPOCHS):
            next(plain)
            times.append(time.perf_counter())
        literal += [b - a for a, b in pairwise(times)]
    return ours, literal


def rows(repeats: int) -> Iterator[Row]:
    task = cora_size()
    for name, config in SETTINGS.items():
        taken = compare(task, config, max(1, min(repeats, 5)))
        mine, theirs = (Cost(statistics.median(seconds), min(seconds), None) for seconds in taken)
        target = f"≥ {TARGETS[name]:g} × faster"
        reached = theirs.seconds / mine.seconds >= TARGETS[name]
        yield Row(GROUP, f"{name}, 8 layers, hidden 64", mine, "literal training", theirs, target, reached)
