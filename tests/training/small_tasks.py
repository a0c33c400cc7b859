"""Small tasks of every kind, learnable within seconds, made from a seed."""

from itertools import pairwise

import torch

from difformer.data import Split, Task
from difformer.training import stack
from difformer.training.journal import Run


class StackedSetting:
    """What sets a run apart from the others of its stack."""

    def __init__(self, seed=0, split=0, **changes):
        self.seed, self.split, self.changes = seed, split, changes

    def config(self, base):
        rates = {name: value for name, value in self.changes.items() if name in stack.RATES}
        options = {name: value for name, value in self.changes.items() if name in stack.HYPER}
        return base.replace(options={**base.options, **options}, **rates)


def runs_of(settings, config):
    return [Run(setting.seed, setting.split, setting.config(config)) for setting in settings]


def train_stacked(task, settings, config, device, **given):
    return stack.train_stacked(task, runs_of(settings, config), device, **given)


def split_of(n, name="s", seed=0, fractions=(0.4, 0.3)):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    first, second = int(fractions[0] * n), int((fractions[0] + fractions[1]) * n)
    return Split(f"{name}{seed}", order[:first], order[first:second], order[second:])


def blocks(n=60, classes=3, features=5, splits=2, seed=0, sparse=False):
    """Nodes of a block model whose features hint at their class."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randn(n, features, generator=g) + 2 * torch.nn.functional.one_hot(y, features).float()
    if sparse:
        x = (x * (x > 1)).to_sparse_csr()
    joined = torch.rand(n, n, generator=g) < torch.where(y[:, None] == y, 0.2, 0.02)
    joined = joined | joined.T | torch.eye(n, dtype=torch.bool)
    return Task(
        "blocks", "nodes", "multiclass", "accuracy", "a block model", x, y,
        tuple(split_of(n, seed=i) for i in range(splits)), classes, edge_index=joined.nonzero().T.contiguous(),
    )  # fmt: skip


def many_labels(n=80, columns=4, features=6, seed=0):
    """Nodes with several labels each, a fifth of them unknown."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=g)
    y = ((x @ torch.randn(features, columns, generator=g)) > 0).float()
    y[torch.rand(n, columns, generator=g) < 0.2] = torch.nan
    y[:, 0] = y[:, 0].nan_to_num(0)  # every row knows something
    return Task("many", "nodes", "multilabel", "rocauc", "columns", x, y, (split_of(n),), columns)


def series(steps=20, nodes=12, lags=3, seed=0, graphs="one"):
    """Each node's next value is the mean of its neighbours' last ones."""
    g = torch.Generator().manual_seed(seed)
    ring = torch.arange(nodes)
    edges = torch.cat([torch.stack([ring, (ring + s) % nodes]) for s in (-1, 0, 1)], 1)
    x = torch.randn(steps, nodes, lags, generator=g)
    y = (x[..., -1].roll(1, 1) + x[..., -1] + x[..., -1].roll(-1, 1)) / 3
    times = torch.arange(steps)
    split = Split("time", times[: steps // 2], times[steps // 2 : 3 * steps // 4], times[3 * steps // 4 :])
    index, weight = edges, None
    if graphs == "many":
        index = tuple(edges[:, torch.randperm(edges.shape[1], generator=g)] for _ in range(steps))
        weight = tuple(1 + 0.1 * torch.rand(e.shape[1], generator=g) for e in index)
    elif graphs == "none":
        index = None
    return Task(
        "ring", "series", "regression", "mse", "a ring", x, y, (split,), 1, edge_index=index, edge_weight=weight
    )


def point_sets(count=50, features=4, seed=0, edges=True):
    """Point sets of 3 to 9 points; the label says whether their mean lies right of zero."""
    g = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, 10, (count,), generator=g)
    ptr = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    x = torch.randn(int(ptr[-1]), features, generator=g)
    x += torch.randn(count, 1, generator=g).repeat_interleave(sizes, 0)
    which = torch.arange(count).repeat_interleave(sizes)
    mean = torch.zeros(count).index_add(0, which, x[:, 0]) / sizes
    index = None
    if edges:
        index = torch.cat([torch.combinations(torch.arange(a, b)).T for a, b in pairwise(ptr)], 1)
        index = torch.cat([index, index.flip(0)], 1)
    return Task(
        "sets", "graphs", "multilabel", "rocauc", "point sets", x, (mean > 0).float().unsqueeze(1),
        (split_of(count),), 1, edge_index=index, node_ptr=ptr,
    )  # fmt: skip
