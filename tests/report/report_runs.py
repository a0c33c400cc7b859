"""Small runs of every kind of task, trained once, and the report of each."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import torch

from difformer.data import Split, Task
from difformer.report import write_report
from difformer.training import TrainConfig, fit

EVIL = "<script>alert(1)</script>"


def drawn_split(n: int, seed: int) -> Split:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return Split(f"s{seed}", order[: n // 3], order[n // 3 : n // 2], order[n // 2 :])


def nodes_task(n: int = 60, *, edges: bool = True, splits: int = 3) -> Task:
    """A block model; a class, an instance and a column with names that want to be HTML."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    x = torch.randn(n, 5, generator=g) + 2 * torch.nn.functional.one_hot(y, 5).float()
    joined = torch.rand(n, n, generator=g) < torch.where(y[:, None] == y, 0.2, 0.02)
    index = (joined | joined.T | torch.eye(n, dtype=torch.bool)).nonzero().T.contiguous()
    hidden = y.clone()
    hidden[::20] = -1
    keep = [drawn_split(n, i) for i in range(splits)]
    known = [Split(s.name, *(part[hidden[part] >= 0] for part in (s.train, s.valid, s.test))) for s in keep]
    names = [f"p{i}" for i in range(n - 1)] + [f"{EVIL} & co"]
    return Task(
        "blocks", "nodes", "multiclass", "accuracy", "a block model", x, hidden, tuple(known), 3,
        edge_index=index if edges else None, class_names=(EVIL, "b & c", "d"), instance_names=tuple(names),
        feature_names=("<b>u</b>", "v", "w", "x", "y"),
    )  # fmt: skip


def values_task(n: int = 40) -> Task:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 4, generator=g)
    y = torch.stack([x.sum(1), x[:, 0]], 1)
    y[:3, 1] = torch.nan
    return Task("values", "nodes", "regression", "mse", "sums", x, y, (drawn_split(n, 0),), 2)


def columns_task(n: int = 50) -> Task:
    g = torch.Generator().manual_seed(2)
    x = torch.randn(n, 4, generator=g)
    y = (x[:, :3] > 0).float()
    return Task("columns", "nodes", "multilabel", "rocauc", "signs", x, y, (drawn_split(n, 0),), 3)


def series_task(steps: int = 16, nodes: int = 8) -> Task:
    g = torch.Generator().manual_seed(3)
    ring = torch.arange(nodes)
    edges = torch.cat([torch.stack([ring, (ring + s) % nodes]) for s in (-1, 0, 1)], 1)
    x = torch.randn(steps, nodes, 3, generator=g)
    y, times = x[..., -1].roll(1, 1), torch.arange(steps)
    split = Split("time", times[:8], times[8:12], times[12:])
    return Task("ring", "series", "regression", "mse", "a ring", x, y, (split,), 1, edge_index=edges)


def graphs_task(count: int = 30) -> Task:
    g = torch.Generator().manual_seed(4)
    sizes = torch.randint(3, 8, (count,), generator=g)
    ptr = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    x = torch.randn(int(ptr[-1]), 4, generator=g)
    index = torch.cat([torch.combinations(torch.arange(a, b)).T for a, b in pairwise(ptr.tolist())], 1)
    which = torch.arange(count).repeat_interleave(sizes)
    mean = torch.zeros(count).index_add(0, which, x[:, 0]) / sizes
    return Task(
        "sets", "graphs", "multiclass", "accuracy", "sets", x, (mean > 0).long(), (drawn_split(count, 0),), 2,
        edge_index=torch.cat([index, index.flip(0)], 1), node_ptr=ptr,
    )  # fmt: skip


def config(model: str = "difformer-s", epochs: int = 6, **options: object) -> TrainConfig:
    return TrainConfig(model=model, options={"hidden_channels": 8, **options}, epochs=epochs, learning_rate=0.01)


# name: task, configuration, seeds
RUNS = {
    "nodes": (nodes_task, config("difformer-a", num_layers=3, num_heads=2), 3),
    "no edges": (lambda: nodes_task(edges=False), config(graph_weight=0.5, source_weight=0.3), 1),
    "regression": (values_task, config(), 2),
    "multilabel": (columns_task, config(), 1),
    "series": (series_task, config("difformer-a"), 2),
    "graphs": (graphs_task, config("difformer-a"), 2),
    "gcn": (nodes_task, config("gcn"), 3),
    "gcn on graphs": (graphs_task, config("gcn"), 1),
    "mlp on series": (series_task, config("mlp"), 1),
    "lp": (nodes_task, TrainConfig(model="lp", epochs=1), 1),
    "constant": (nodes_task, config("diffusion-constant"), 1),
    "no latent": (nodes_task, config("diffusion-identity"), 1),
}


class Workshop:
    """Runs and reports by name, each made once in a process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tasks: dict[str, Task] = {}
        self.reports: dict[str, Page] = {}

    def run(self, name: str) -> tuple[Path, Task]:
        path = self.root / name.replace(" ", "-")
        if name not in self.tasks:
            make, chosen, seeds = RUNS[name]
            self.tasks[name] = make()
            fit(self.tasks[name], chosen, seeds=seeds, out=path)
        return path, self.tasks[name]

    def page(self, name: str) -> Page:
        if name not in self.reports:
            path, task = self.run(name)
            self.reports[name] = Page(write_report(path, task=task))
        return self.reports[name]


class Page:
    """A report, read back."""

    def __init__(self, report) -> None:
        self.report = report
        self.text = report.path.read_text(encoding="utf-8")
        found = re.search(r'<script type="application/json" id="data">(.*?)</script>', self.text, re.DOTALL)
        self.raw = found[1]
        self.data = json.loads(found[1])
        self.body = self.text[: found.start()]

    def section(self, name: str) -> str:
        return re.search(rf'<section id="{name}">.*?</section>', self.body, re.DOTALL)[0]
