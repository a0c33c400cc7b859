"""What is particular to the blockwise operator: tiles of any size, keys in parts, and little memory."""

import pytest
import torch
from attention_cases import answer_and_gradients, assert_near, expected, make_inputs, peak_bytes

from difformer.attention import propagate, reference, tiles
from difformer.attention.scores import find_score, score_key
from difformer.diffusion import Diffusivity, as_diffusivity, gaussian

CAUCHY = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
ALL = ["simple", "constant", "sigmoid", "softmax", gaussian(0.3), CAUCHY]
diffusivities = pytest.mark.parametrize("diffusivity", ALL, ids=lambda x: getattr(x, "name", x))


@diffusivities
@pytest.mark.parametrize(("pairs", "columns"), [(30, 5), (600, 16), (2500, 1000)])
@pytest.mark.parametrize("batched", [False, True], ids=["one graph", "batch"])
def test_tiles_of_any_size(monkeypatch, diffusivity, pairs, columns, batched):
    monkeypatch.setattr(tiles, "tile_budget", lambda device: pairs)
    monkeypatch.setattr(tiles, "COLUMNS", columns)
    sizes = torch.tensor([6, 6, 5, 9, 19])  # three share a block, the others go alone
    batch = torch.arange(5).repeat_interleave(sizes) if batched else None
    inputs = make_inputs(45, 2, 5, 4, shared=True)
    found = answer_and_gradients(lambda *x: propagate(*x, diffusivity, batch=batch, backend="blockwise"), *inputs)
    assert_near(found, expected(diffusivity, *inputs, batch=batch), 1e-11)


@pytest.mark.parametrize(("problems", "n", "m", "budget"), [(3, 10, 10, 250), (2, 100, 70, 300), (1, 7, 9000, 4000)])
def test_tiles_cover_every_pair_once(problems, n, m, budget):
    seen = torch.zeros(problems, n, m, dtype=torch.long)
    for p, i, j in tiles._tiles(problems, n, m, budget):
        seen[p, i, j] += 1
    assert (seen == 1).all()


@diffusivities
def test_keys_may_come_in_parts(diffusivity):
    # As the shards of a ring do: more queries than keys in each part, parts in another order.
    q, k, v = (x.detach().transpose(0, 1) for x in make_inputs(30, 2))
    score = find_score(score_key(diffusivity, 8))
    queries = q * score.slope if score.exponential else q
    sums = tiles.Sums.start(score, torch.empty(2, 30, 6, dtype=torch.float64))
    for part in (slice(20, 30), slice(0, 7), slice(7, 20)):
        tiles.add_keys(score, queries, k[:, part], v[:, part], sums)
    out, _ = sums.finish(30)
    wanted = reference.propagate(*(x.transpose(0, 1) for x in (q, k, v)), as_diffusivity(diffusivity, channels=8))
    torch.testing.assert_close(out, wanted.transpose(0, 1))


def test_memory_is_linear_in_n():
    def run(n):
        inputs = make_inputs(n, 1, 32, 32, dtype=torch.float32)
        return lambda: torch.autograd.grad(propagate(*inputs, "sigmoid").sum(), inputs)

    n = 5000
    dense = 4 * n * n  # bytes of one matrix of all pairs
    rows = 4 * n * 32
    assert peak_bytes(run(n)) < 12 * rows + 16 * 2**20 < dense / 2


def test_memory_of_many_small_graphs():
    batch = torch.arange(40_000) // 20
    inputs = make_inputs(len(batch), 1, 32, 32, dtype=torch.float32)
    rows = 4 * len(batch) * 32
    used = peak_bytes(lambda: torch.autograd.grad(propagate(*inputs, "sigmoid", batch=batch).sum(), inputs))
    assert used < 12 * rows + 16 * 2**20


def test_a_name_means_the_diffusivity_of_the_channels():
    q, k, v = make_inputs(12, 2, 9, 4)
    found = propagate(q, k, v, "softmax", backend="blockwise")
    torch.testing.assert_close(found, reference.propagate(q, k, v, as_diffusivity("softmax", channels=9)))
