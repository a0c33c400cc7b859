"""A graph in a batch gets exactly the answer it gets alone."""

import pytest
import torch

from difformer import DIFFormer, Graph, GraphLevel
from difformer.attention import Segments
from difformer.diffusion import DIFFUSIVITIES
from difformer.nn import readout

SIZES = (1, 2, 3, 500, 1, 17, 64, 65)


def graphs(seed=0):
    """Graphs of 1 to 500 nodes, one of them without an edge."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for number, nodes in enumerate(SIZES):
        x = torch.randn(nodes, 5, dtype=torch.float64, generator=generator)
        count = 0 if number == 5 else 3 * nodes
        parts.append((x, torch.randint(0, nodes, (2, count), generator=generator)))
    return parts


def together(parts, order):
    """One batch of all graphs with its rows in a given order, and where each row stands."""
    offsets = torch.tensor([0, *SIZES]).cumsum(0)
    x = torch.cat([x for x, _ in parts])
    edge_index = torch.cat([e + offset for (_, e), offset in zip(parts, offsets, strict=False)], 1)
    batch = torch.arange(len(SIZES)).repeat_interleave(torch.tensor(SIZES))
    place = order.argsort()
    return x[order], place[edge_index], batch[order]


CONFIGURATIONS = [{"diffusivity": name} for name in (*DIFFUSIVITIES, None)] + [
    {"graph_weight": 0.3},
    {"diffusivity": "sigmoid", "graph_weight": 0.7, "num_heads": 2},
    {"diffusivity": None, "graph_weight": 0.5},
    {"qk_norm": "global", "num_heads": 2},
    {"diffusivity": "sigmoid", "qk_norm": "none"},
    {"transform": False, "num_heads": 2, "source_weight": 0.4, "tied_qk": True},
]


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("shuffled", [False, True], ids=["sorted", "unsorted"])
def test_batch_equals_alone(options, shuffled):
    torch.manual_seed(0)
    model = DIFFormer(5, 8, 3, **options).double().eval()
    parts = graphs()
    total = sum(SIZES)
    order = torch.randperm(total) if shuffled else torch.arange(total)
    x, edge_index, batch = together(parts, order)
    out = model(x, edge_index, batch=batch)
    cached = model(x, Graph(edge_index, total), batch=Segments(batch))
    torch.testing.assert_close(cached, out)
    for number, (alone_x, alone_edges) in enumerate(parts):
        rows = (batch == number).nonzero().squeeze(1)
        rows = rows[order[rows].argsort()]  # back to the order the graph has alone
        torch.testing.assert_close(out[rows], model(alone_x, alone_edges), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_gradients_do_not_leak_between_graphs(diffusivity):
    model = DIFFormer(5, 8, 3, diffusivity=diffusivity).double()
    x, edge_index, batch = together(graphs(), torch.randperm(sum(SIZES)))
    x.requires_grad_()
    model(x, edge_index, batch=batch)[batch == 3].sum().backward()
    assert (x.grad[batch != 3] == 0).all()
    assert (x.grad[batch == 3] != 0).any()


@pytest.mark.parametrize("how", ["mean", "sum", "max"])
def test_readout_pools_each_graph(how):
    states = torch.randn(6, 4)
    batch = torch.tensor([2, 0, 2, 0, 0, 2])  # graph 1 has no node
    out = readout(states, batch, how)
    assert out.shape == (3, 4)
    reduce = {"mean": lambda s: s.mean(0), "sum": lambda s: s.sum(0), "max": lambda s: s.amax(0)}[how]
    for number in (0, 2):
        torch.testing.assert_close(out[number], reduce(states[batch == number]))
    assert (out[1] == 0).all()
    torch.testing.assert_close(readout(states, None, how)[0], reduce(states))


def test_graph_level_model_pools_between_encoder_and_output():
    encoder = DIFFormer(5, 8, 3).double().eval()
    model = GraphLevel(encoder, "sum")
    x, edge_index, batch = together(graphs(), torch.arange(sum(SIZES)))
    expected = encoder.decode(readout(encoder.embed(x, edge_index, batch=batch), batch, "sum"))
    torch.testing.assert_close(model(x, edge_index, batch=batch), expected)
    with pytest.raises(ValueError, match="readout must be one of mean, sum, max, got 'median'"):
        GraphLevel(encoder, "median")
