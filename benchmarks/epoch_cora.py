r"""One epoch on Cora, training and evaluation: this package against the authors' formulas written down literally.

    python benchmarks/epoch_cora.py planetoid/cora.npz

The literal version does what the formulas say, layer by layer: dense features, a layer that is given edges and
normalises them whenever it propagates, queries and keys divided by the Frobenius norm of the whole tensor (``simple``)
or not at all (``sigmoid``, all N × N scores kept for the backward pass), attention and graph term added, a second
forward pass for evaluation. Both train the published setting (8 layers, hidden 64, one split, seed 123) in turns, and
medians over the turns are compared, so that a busy machine slows both. The targets: at most ¼ of the time for
difformer-s, at most ½ for difformer-a.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer.data import Task
from difformer.data.datasets.planetoid import planetoid
from difformer.training import TrainConfig, train_one
from difformer.training.devices import describe, resolve

PUBLISHED = {
    "difformer-s": {"weight_decay": 0.01, "dropout": 0.2},
    "difformer-a": {"weight_decay": 0.1, "dropout": 0.0},
}
TARGET = {"difformer-s": 0.25, "difformer-a": 0.5}


class Literal(nn.Module):
    """The formulas of the public code: heads 1, step size ½, no value transform, LayerNorm, residual."""

    def __init__(self, channels: int, hidden: int, classes: int, *, layers: int, dropout: float, kernel: str) -> None:
        super().__init__()
        self.dropout, self.kernel = dropout, kernel
        self.input, self.output = nn.Linear(channels, hidden), nn.Linear(hidden, classes)
        self.queries = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.keys = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers + 1))

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """``[N, heads, d]`` each."""
        if self.kernel == "sigmoid":
            scores = torch.sigmoid(torch.einsum("nhd,mhd->nmh", q, k))
            return torch.einsum("nmh,mhc->nhc", scores / scores.sum(1, keepdim=True), v)
        q, k = q / torch.norm(q), k / torch.norm(k)
        weighted = torch.einsum("nhd,hdc->nhc", q, torch.einsum("mhd,mhc->hdc", k, v)) + v.sum(0, keepdim=True)
        return weighted / (torch.einsum("nhd,hd->nh", q, k.sum(0)) + v.shape[0]).unsqueeze(-1)

    def propagate(self, edge_index: Tensor, v: Tensor) -> Tensor:
        """Neighbours by D^(-1/2) A D^(-1/2) with in-degrees, for every head."""
        source, target = edge_index
        ones = torch.ones_like(target, dtype=v.dtype)
        degree = torch.zeros(v.shape[0], device=v.device).index_add(0, target, ones)
        value = (degree[target].rsqrt() * degree[source].rsqrt()).nan_to_num(0.0, 0.0, 0.0)
        shape = (v.shape[0], v.shape[0])
        graph = torch.sparse_coo_tensor(torch.stack([target, source]), value, shape).coalesce()
        return torch.stack([torch.sparse.mm(graph, v[:, head]) for head in range(v.shape[1])], 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = functional.dropout(functional.relu(self.norms[0](self.input(x))), self.dropout, self.training)
        for query, key, norm in zip(self.queries, self.keys, self.norms[1:], strict=True):
            q, k, v = (y.reshape(y.shape[0], 1, -1) for y in (query(z), key(z), z))
            propagated = (self.attention(q, k, v) + self.propagate(edge_index, v)).mean(1)
            z = functional.dropout(norm(0.5 * propagated + 0.5 * z), self.dropout, self.training)
        return self.output(z)


def literal(task: Task, model_name: str, device: torch.device, layers: int, hidden: int) -> Callable[[int], float]:
    """A function that trains for some epochs and returns the seconds of one."""
    torch.manual_seed(0)
    settings, split = PUBLISHED[model_name], task.splits[0]
    kernel = "simple" if model_name == "difformer-s" else "sigmoid"
    x, y = task.x.to_dense().to(device), task.y.to(device)
    edges: Tensor = task.edge_index.to(device)  # type: ignore[union-attr]
    parts = [part.to(device) for part in (split.train, split.valid, split.test)]
    model = Literal(x.shape[1], hidden, task.num_outputs, layers=layers, dropout=settings["dropout"], kernel=kernel)
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, weight_decay=settings["weight_decay"])

    def train(epochs: int) -> float:
        started = time.perf_counter()
        for _ in range(epochs):
            model.train()
            optimizer.zero_grad()
            loss = functional.nll_loss(functional.log_softmax(model(x, edges)[parts[0]], 1), y[parts[0]])
            loss.backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                predicted = model(x, edges).argmax(1)
                _ = [float((predicted[part] == y[part]).float().mean()) for part in parts]
        return (time.perf_counter() - started) / epochs

    return train


def ours(task: Task, model_name: str, device: torch.device, layers: int, hidden: int) -> Callable[[int], float]:
    """The same with this package: `train_one`, evaluation every epoch."""
    settings = PUBLISHED[model_name]
    options = {"num_layers": layers, "hidden_channels": hidden, "transform": False, "dropout": settings["dropout"]}

    def train(epochs: int) -> float:
        config = TrainConfig(model=model_name, epochs=epochs, weight_decay=settings["weight_decay"], options=options)
        return train_one(task, 0, config, 0, device).seconds / epochs

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npz", type=Path, help="…/planetoid/cora.npz")
    parser.add_argument("--models", nargs="+", choices=tuple(PUBLISHED), default=tuple(PUBLISHED))
    parser.add_argument("--epochs", type=int, default=10, help="of one turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device = resolve(given.device)
    task = planetoid(given.npz.stem, given.npz.resolve().parents[1], protocol="authors")
    print(
        f"{task.name}: {task.protocol}\n{describe(device)}, torch {torch.__version__}; medians of {given.turns} turns"
    )
    for name in given.models:
        sides = {"literal": literal, "ours": ours}
        functions = {side: make(task, name, device, given.layers, given.hidden) for side, make in sides.items()}
        seconds: dict[str, list[float]] = {side: [] for side in functions}
        for function in functions.values():
            function(1)
        for _ in range(given.turns):
            for side, function in functions.items():
                seconds[side].append(function(given.epochs))
        median = {side: statistics.median(values) for side, values in seconds.items()}
        best = {side: min(values) for side, values in seconds.items()}
        print(
            f"{name}: literal {1000 * median['literal']:.1f} ms an epoch, ours {1000 * median['ours']:.1f} ms, ratio "
            f"{median['ours'] / median['literal']:.3f} (of the fastest of {given.turns} turns "
            f"{best['ours'] / best['literal']:.3f}; target at most {TARGET[name]})"
        )


if __name__ == "__main__":
    main()
