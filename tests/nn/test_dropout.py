import threading

import numpy as np
import pytest
import torch
from torch.nn import functional

from difformer.nn import dropout as dropout_module
from difformer.nn.dropout import LayerDropout, dropout, dropout_key, dropout_keys, keyed_uniform


def mask(shape=(300, 64), p=0.2, seed=0, step=0, site=0, rows=None):
    """True where an entry is kept."""
    with dropout_key(seed, step, site=site, rows=rows):
        return dropout(torch.ones(shape), p, True) > 0


@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 0.9])
def test_dropout_keeps_the_rate_and_scales_kept_entries(p):
    with dropout_key(1):
        y = dropout(torch.ones(2000, 100), p, True)
    kept = y > 0
    assert y[kept].unique().numel() == 1
    assert float(y.max()) == pytest.approx(1 / (1 - p), rel=1e-4)
    # Five standard deviations of a fair draw.
    assert float(kept.float().mean()) == pytest.approx(1 - p, abs=5 * (p * (1 - p) / kept.numel()) ** 0.5)


def test_a_mask_follows_from_its_key_alone():
    torch.manual_seed(0)
    first = mask(seed=7, step=3)
    state = torch.get_rng_state()
    assert torch.equal(mask(seed=7, step=3), first)
    assert torch.equal(torch.get_rng_state(), state), "torch's generator was used"
    for other in ({"seed": 8}, {"step": 4}, {"site": 1}):
        assert not torch.equal(mask(**{"seed": 7, "step": 3, **other}), first)


def test_dropout_sites_are_counted_and_can_be_resumed():
    x = torch.ones(50, 10)
    with dropout_key(2, 5) as place:
        masks = [dropout(x, 0.5, True) for _ in range(3)]
    assert place.site == 3
    assert not torch.equal(masks[0], masks[1])
    with dropout_key(2, 5, site=2):
        assert torch.equal(dropout(x, 0.5, True), masks[2])


def test_parts_of_the_rows_have_the_masks_of_the_whole():
    whole, order = mask((30, 7)), torch.randperm(30, generator=torch.Generator().manual_seed(0))
    parts = [mask((10, 7), rows=rows) for rows in order.split(10)]
    assert torch.equal(torch.cat(parts), whole[order])


def test_masks_look_independent():
    """Correlations with neighbours, other sites, steps and seeds are those of fair draws: about 1 / √n."""
    here = mask(seed=3, p=0.3).float()
    n = here.numel()
    others = {
        "channel": (here[:, 1:], here[:, :-1]),
        "pair of channels": (here[:, 2:], here[:, :-2]),
        "row": (here[1:], here[:-1]),
        "site": (here, mask(seed=3, p=0.3, site=1).float()),
        "step": (here, mask(seed=3, p=0.3, step=1).float()),
        "seed": (here, mask(seed=4, p=0.3).float()),
    }
    for name, (a, b) in others.items():
        correlation = torch.corrcoef(torch.stack([a.reshape(-1), b.reshape(-1)]))[0, 1]
        assert abs(float(correlation)) < 5 / n**0.5, name
    # How often a row or a channel is dropped spreads as a binomial does.
    for axis, length in ((1, 64), (0, 300)):
        counts = torch.stack([(~mask(seed=9, step=s, p=0.3)).sum(axis) for s in range(40)]).double()
        assert float(counts.var()) == pytest.approx(length * 0.3 * 0.7, rel=0.15)
    # Eight channels together: all 256 patterns are equally frequent (χ² with 255 degrees, 5 deviations).
    half = torch.stack([mask(p=0.5, step=s) for s in range(40)]).reshape(-1, 8).long()
    seen = torch.bincount((half * 2 ** torch.arange(8)).sum(1), minlength=256).double()
    chi = float((seen - seen.mean()).square().sum() / seen.mean())
    assert abs(chi - 255) < 5 * (2 * 255) ** 0.5


@pytest.mark.parametrize("views", [True, False], ids=["views", "older torch"])
@pytest.mark.parametrize("rates", [[0.2, 0.2, 0.2], [0.0, 0.2, 0.7]])
def test_runs_trained_as_one_have_their_own_masks(rates, views, monkeypatch):
    if not views:
        view = torch.Tensor.view

        def refuse(x, *shape):
            if shape == (torch.int16,):
                raise RuntimeError("no batching rule")
            return view(x, *shape)

        monkeypatch.setattr(torch.Tensor, "view", refuse)
    x = torch.randn(3, 20, 9, generator=torch.Generator().manual_seed(0))
    keys = dropout_keys([4, 5, 6], [2])[0]

    def one(x, p, key):
        with dropout_key(key):
            return dropout(dropout(x, p, True), p, True)

    together = torch.vmap(one)(x, torch.tensor(rates), keys)
    for run, (seed, p) in enumerate(zip((4, 5, 6), rates, strict=True)):
        with dropout_key(seed, 2) as place:
            alone = x[run]
            for _ in range(2):
                alone = dropout(alone, p, True)
        assert place.site == 2
        torch.testing.assert_close(together[run], alone)


@pytest.mark.filterwarnings("error")  # of torch, that it has no batching rule and goes run by run
def test_runs_of_one_rate_have_their_own_masks():
    x, keys = torch.ones(3, 20, 9), dropout_keys([4, 5, 6], [2])[0]

    def one(x, key):
        with dropout_key(key):
            return dropout(x, 0.4, True)

    together = torch.vmap(one)(x, keys)
    for run, seed in enumerate((4, 5, 6)):
        with dropout_key(seed, 2):
            assert torch.equal(together[run], dropout(x[run], 0.4, True))


def test_a_rate_of_zero_leaves_the_next_mask_as_it_is_beside_other_rates():
    x = torch.ones(20, 9)
    key = dropout_keys([4], [2])[0, 0]

    def both(p):
        with dropout_key(key):
            return dropout(dropout(x, p, True), 0.5, True)

    together = torch.vmap(both)(torch.tensor([0.0, 0.3]))
    assert torch.equal(together[0], both(0.0))
    with dropout_key(key) as place:
        assert dropout(x, 0.0, False) is x
        assert place.site == 0  # in evaluation there is none


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_pass_where_entries_do(dtype):
    x = torch.randn(11, 5, dtype=dtype, requires_grad=True)
    with dropout_key(0):
        y = dropout(x, 0.4, True)
    assert y.dtype == dtype
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * grad)
    assert set((grad > 0).unique().tolist()) == {False, True}


def test_dropout_accepts_tensors_of_any_rank():
    for shape in ((7,), (6, 3), (4, 3, 5), (0, 8)):
        with dropout_key(0):
            assert dropout(torch.ones(shape), 0.5, True).shape == torch.Size(shape)


def test_nothing_is_dropped_in_evaluation_or_at_rate_zero():
    x = torch.ones(4, 3)
    with dropout_key(0):
        assert dropout(x, 0.5, False) is x
        assert dropout(x, 0.0, True) is x


def test_without_a_key_torchs_generator_is_used():
    x = torch.ones(40, 30)
    torch.manual_seed(3)
    expected = functional.dropout(x, 0.3)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.3, True), expected)
    torch.manual_seed(3)
    assert float((dropout(x, torch.tensor(0.3), True) == 0).float().mean()) == pytest.approx(0.3, abs=0.07)


def test_a_key_belongs_to_its_thread():
    found = {}

    def other():
        torch.manual_seed(0)
        found["other"] = dropout(torch.ones(50, 10), 0.5, True)

    with dropout_key(0):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        mine = dropout(torch.ones(50, 10), 0.5, True)
    assert torch.equal(mine > 0, mask((50, 10), 0.5))
    assert not torch.equal(found["other"], mine)


def test_a_compiled_model_follows_the_key():
    x = torch.ones(20, 6)
    compiled = torch.compile(lambda x: dropout(x, 0.4, True).sin(), backend="eager")
    compiled(x)  # compiled without a key first
    for step in range(3):
        with dropout_key(1, step):
            answer = compiled(x)
        assert torch.equal(answer > 0, mask((20, 6), 0.4, seed=1, step=step))


CPU = torch.device("cpu")


def uniform(shape=(400, 50), seed=0, step=0, site=0, rows=None, **options):
    with dropout_key(seed, step, site=site, rows=rows):
        return keyed_uniform(shape, CPU, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_numbers_are_uniform(dtype):
    u = uniform((2000, 100), dtype=dtype)
    assert u.dtype == dtype
    assert 0 < float(u.min()) < float(u.max()) < 1
    # Kolmogorov's distance of fair draws exceeds 2.3 / √n once in 20,000 times.
    ordered, n = u.double().flatten().sort().values, u.numel()
    assert float((ordered - torch.arange(1, n + 1) / n).abs().max()) < 2.3 / n**0.5
    torch.testing.assert_close(u.float(), uniform((2000, 100)))


def test_uniform_numbers_look_independent():
    u = uniform((2000, 100), seed=3)
    n = u.numel()
    others = {
        "column": (u[:, 1:], u[:, :-1]),
        "row": (u[1:], u[:-1]),
        "row and column": (u[1:, 1:], u[:-1, :-1]),
        "step": (u, uniform((2000, 100), seed=3, step=1)),
        "seed": (u, uniform((2000, 100), seed=4)),
    }
    for name, (a, b) in others.items():
        correlation = torch.corrcoef(torch.stack([a.reshape(-1), b.reshape(-1)]))[0, 1]
        assert abs(float(correlation)) < 5 / n**0.5, name
    # Three neighbours together: all 512 boxes are equally frequent (χ² with 511 degrees, 5 deviations).
    boxes = ((u[:, :99].reshape(-1, 3) * 8).long() * torch.tensor([1, 8, 64])).sum(1)
    seen = torch.bincount(boxes, minlength=512).double()
    assert abs(float((seen - seen.mean()).square().sum() / seen.mean()) - 511) < 5 * (2 * 511) ** 0.5


def test_draws_and_dropouts_do_not_count_each_other():
    x = torch.ones(50, 10)
    with dropout_key(2, 5):
        expected = [keyed_uniform((50, 10), CPU) for _ in range(2)]
    with dropout_key(2, 5) as place:
        found = [keyed_uniform((50, 10), CPU)]
        masks = [dropout(x, 0.5, True), dropout(x, 0.5, True)]
    with dropout_key(2, 5, site=place.site) as place:  # taken up again, as the passes of an epoch do
        found.append(keyed_uniform((50, 10), CPU))
        masks.append(dropout(x, 0.5, True))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not torch.equal(*found)
    with dropout_key(2, 5):
        assert all(torch.equal(dropout(x, 0.5, True), mask) for mask in masks)


def test_parts_of_the_rows_have_the_draws_of_the_whole():
    whole, order = uniform((30, 7, 2)), torch.randperm(30, generator=torch.Generator().manual_seed(0))
    parts = [uniform((10, 7, 2), rows=rows) for rows in order.split(10)]
    assert torch.equal(torch.cat(parts), whole[order])
    # What does not belong to nodes is the same wherever some of them are held.
    assert torch.equal(uniform((4, 6), rows=order[:10], nodes=False), uniform((4, 6)))


def test_runs_trained_as_one_have_their_own_draws():
    def one(key):
        with dropout_key(key):
            return keyed_uniform((20, 9), CPU)

    together = torch.vmap(one)(dropout_keys([4, 5, 6], [2])[0])
    assert all(torch.equal(together[run], uniform((20, 9), seed=4 + run, step=2)) for run in range(3))


def test_without_a_key_nothing_is_drawn():
    state = torch.get_rng_state()
    assert keyed_uniform((3, 4), CPU) is None
    assert uniform((0, 4)).shape == (0, 4)
    found = []
    with dropout_key(0):
        thread = threading.Thread(target=lambda: found.append(keyed_uniform((3, 4), CPU)))
        thread.start()
        thread.join()
        assert keyed_uniform((3, 4), CPU) is not None
    assert found == [None], "another thread's key was used"
    assert torch.equal(torch.get_rng_state(), state)


def test_a_compiled_model_draws_by_the_key():
    def noisy(x):
        u = keyed_uniform(x.shape, CPU)
        return x if u is None else x + u

    x, compiled = torch.ones(20, 6), torch.compile(noisy, backend="eager")
    assert torch.equal(compiled(x), x)
    for step in range(3):
        with dropout_key(1, step):
            assert torch.equal(compiled(x), x + uniform((20, 6), seed=1, step=step))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("word", [-1, 0])
def test_uniform_numbers_never_reach_their_ends(dtype, word, monkeypatch):
    words = torch.full((3, 2), word, dtype=torch.int32)
    monkeypatch.setattr(dropout_key, "_words", lambda *given: words)
    u = uniform((3, 2), dtype=dtype)
    assert bool(((u > 0) & (u < 1)).all())


def test_keys_are_those_of_splitmix64():
    """Runs that are resumed or repeated years later need the masks of today."""
    mix = dropout_module._mix64
    states = np.array([0, 1234567], dtype=np.uint64)
    assert [hex(int(value)) for value in mix(states)] == ["0xe220a8397b1dcdaf", hex(6457827717110365317)]
    keys = dropout_keys([0, 3], [0, 7]).numpy().view(np.uint64)[..., 0]
    assert keys[1, 1] == mix(mix(np.array([3], dtype=np.uint64)) ^ mix(~np.array([7], dtype=np.uint64)))[0]
    assert mask((2, 8), p=0.5, seed=3, step=7).int().tolist() == [[0, 1, 0, 0, 1, 0, 1, 0], [1, 0, 1, 0, 0, 0, 0, 1]]


@pytest.mark.parametrize("p", [2**-18, 2**-17, 2**-16, 0.5])
def test_a_rate_that_rounds_to_none_drops_nothing(p):
    x = torch.ones(200, 300)
    with dropout_key(1):
        assert (LayerDropout(p, True).key() is None) == (p <= 2**-17)
        found = dropout(x, p, True)
    if p <= 2**-17:
        assert torch.equal(found, x)
    else:
        assert float(found.max()) == pytest.approx(1 / (1 - p))
