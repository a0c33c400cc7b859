"""What is sent: by the size of the sums and by the cut, whatever N; a ring sends keys and values of all nodes."""

import dataclasses

import pytest
import torch
from ranks_work import one_step
from test_exact import MODELS

from difformer.attention.polynomial import coefficients, degree_for, degrees_of, total_count
from difformer.attention.scores import diffusivity_of
from difformer.data import Split, Task
from difformer.distributed.process_group import Traffic
from difformer.nn import DIFFormer

C, LAYERS, FLOAT = 8, 2, 4


def paths(n, joints=3):
    """Two paths of n / 2 nodes, one a rank, and `joints` edges from each to the other: the cut does not grow with N."""
    half = n // 2
    left, right = torch.arange(half - 1), torch.arange(half, n - 1)
    one = torch.stack([torch.cat([left, right]), torch.cat([left, right]) + 1])
    across = torch.stack([torch.arange(joints), half + torch.arange(joints)])
    edges = torch.cat([one, one.flip(0), across, across.flip(0)], 1)
    x, y = torch.randn(n, 5, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 3
    split = Split("s", torch.arange(0, n, 2), torch.tensor([1]), torch.tensor([3]))
    task = Task("paths", "nodes", "multiclass", "accuracy", "made", x, y, (split,), 3, edge_index=edges)
    return task, (torch.arange(n) >= half).long()


def sent(groups, options, n, joints=3):
    task, assignment = paths(n, joints)
    return groups(2)(one_step, task, assignment, 2, {**options, "num_layers": LAYERS})[0]["sent"]


def reduced(numbers):
    """Bytes of an all-reduce among two ranks, forward and backward in every layer."""
    return 2 * LAYERS * FLOAT * numbers  # 2 n (P - 1) / P = n


# Numbers that latent propagation sums up: [1, k]ᵀ[1, v] for each of two heads of eight channels, and two norms.
SUMS = {
    "simple": 2 * (C + 1) ** 2,
    "simple, global norm": 2 * (C + 1) ** 2 + 2,
    "constant": C + 1,
    "polynomial": None,
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_and_boundary_do_not_grow_with_the_graph(groups, name):
    few, many = sent(groups, MODELS[name], 40), sent(groups, MODELS[name], 400)
    assert few == many
    numbers = SUMS[name]
    if numbers is None:
        sigmoid = diffusivity_of("sigmoid")
        degrees = degrees_of(coefficients(sigmoid, degree_for(sigmoid, 1e-3)))
        numbers = 2 * total_count(C, degrees) * (C + 1)
    assert few["sums"] == reduced(numbers)
    # Three rows of eight channels to the other rank, forward, and as many gradients back, in every layer.
    assert few["boundary"] == 2 * LAYERS * 3 * C * FLOAT
    assert few["ring"] == 0
    model = DIFFormer(5, C, 3, **{**MODELS[name], "num_layers": LAYERS})
    assert few["gradients"] == FLOAT * sum(p.numel() for p in model.parameters())


def test_the_boundary_grows_with_the_cut(groups):
    assert sent(groups, MODELS["simple"], 60, joints=12)["boundary"] == 2 * LAYERS * 12 * C * FLOAT
    assert sent(groups, MODELS["simple"], 60, joints=0)["boundary"] == 0


def test_a_ring_sends_keys_and_values_of_all_nodes(groups):
    few, many = sent(groups, MODELS["sigmoid"], 40), sent(groups, MODELS["sigmoid"], 400)
    assert (few["sums"], many["sums"]) == (0, 0)
    assert many["ring"] == 10 * few["ring"]
    # Of half of the rows: two heads of keys and values once forward, once backward, and their gradients twice around.
    assert few["ring"] == LAYERS * 20 * 2 * (C + C) * FLOAT * (1 + 1 + 2)
    assert few["boundary"] == many["boundary"]


def test_traffic_is_counted_within_a_block():
    traffic = Traffic()
    traffic.add("sums", 100)
    with traffic.during() as found:
        traffic.add("sums", 10.4)
        traffic.add("ring", 5)
    assert (found["sums"], found["ring"], found["boundary"]) == (10, 5, 0)
    assert dataclasses.asdict(traffic)["sent"]["sums"] == 110
