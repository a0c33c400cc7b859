"""Which operator answers: by form, rows, tolerance, device and memory; and that the choice is the one explained."""

import dataclasses
import re

import pytest
import torch
from attention_cases import make_inputs

from difformer import free_memory as memory
from difformer.attention import BACKENDS, bounds, dispatch, explain, propagate
from difformer.attention import pair_operator as fused
from difformer.attention.scores import score_key
from difformer.diffusion import Diffusivity, gaussian
from difformer.diffusivity import SIGMOID

CAUCHY = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))


@pytest.mark.parametrize(
    ("n", "d", "options", "backend", "reason"),
    [
        (10**7, 64, {"diffusivity": "simple"}, "linear", "simple is a sum"),
        (10**7, 64, {"diffusivity": "constant", "tol": 0.1}, "linear", "constant is a sum"),
        (10**6, 64, {}, "blockwise", "exact sums were asked for"),
        (10**6, 16, {"diffusivity": CAUCHY}, "blockwise", "exact sums were asked for"),
        (40_000, 64, {"tol": 1e-3}, "blockwise", "below 46,5.. rows pairs cost less"),
        (60_000, 64, {"tol": 1e-3}, "polynomial", "above 46,5.. rows monomials cost less"),
        (800, 16, {"tol": 1e-3}, "blockwise", "below 8.. rows"),
        (1_200, 16, {"tol": 1e-3}, "polynomial", "above 8.. rows"),
        (10**6, 16, {"tol": 1e-3, "diffusivity": gaussian(0.1)}, "blockwise", "no polynomial"),
        (10**6, 64, {"diffusivity": "identity"}, "identity", "its own values"),
    ],
    ids=str,
)
def test_explain_names_the_backend_and_the_reason(n, d, options, backend, reason):
    found = explain(n, d, **options)
    assert found.backend == backend
    assert re.search(reason, str(found)), str(found)
    assert (found.bounds is not None) == (backend == "polynomial")


def test_bounds_come_with_the_choice():
    assert explain(10**6, 16, tol=1e-3).bounds == bounds(SIGMOID, 3)


def test_monomials_that_do_not_fit_are_not_chosen(monkeypatch):
    assert explain(10**6, 64, tol=1e-3).backend == "polynomial"
    monkeypatch.setattr(dispatch, "free_bytes", lambda device: 2**26)
    found = explain(10**6, 64, tol=1e-3)
    assert found.backend == "blockwise"
    assert "0.1 GiB are free" in found.reason


def test_memory_limit_of_a_container_is_read(tmp_path):
    assert memory._of_the_container(tmp_path) is None
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._of_the_container(tmp_path) is None  # no limit
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory._of_the_container(tmp_path) == 300
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 200\n")  # files read before give way
    assert memory._of_the_container(tmp_path) == 500


def test_tile_size_follows_from_free_memory(monkeypatch):
    assert 2**20 < memory.free_bytes(torch.device("cpu")) <= 1 << 62
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    sizes = {}
    for free in (2**38, 2**30, 0):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        sizes[free] = memory.elements_at_a_time(torch.device("cuda"), 7, 1 << 26)
    assert sizes == {2**38: 1 << 26, 2**30: 1 << 25, 0: memory.LEAST}


@pytest.mark.parametrize(
    ("form", "dtype", "width", "transformed", "backend"),
    [
        ("sigmoid", torch.bfloat16, 64, False, "fused"),
        ("sigmoid", torch.float64, 64, False, "blockwise"),
        ("sigmoid", torch.float32, 64, False, "fused"),
        ("sigmoid", torch.float32, 200, False, "blockwise"),
        ("sigmoid", torch.bfloat16, 200, False, "blockwise"),
        ("softmax", torch.float32, 64, False, "softmax"),
        ("softmax", torch.float32, 64, True, "blockwise"),
        ("gaussian", torch.bfloat16, 300, False, "blockwise"),
    ],
)
def test_backend_on_a_gpu_depends_on_diffusivity_dtype_and_width(monkeypatch, form, dtype, width, transformed, backend):
    monkeypatch.setattr(fused, "kernels", object())
    situation = dispatch.Situation(10_000, width, width, 1, torch.device("cuda"), dtype, transformed=transformed)
    assert dispatch.choose(situation, score_key(form, width), None).backend == backend


def test_a_batch_of_float32_takes_the_fused_kernels_on_a_gpu(monkeypatch):
    monkeypatch.setattr(fused, "kernels", object())
    situation = dispatch.Situation(20, 64, 64, 1, torch.device("cuda"), torch.float32, batched=True)
    assert dispatch.choose(situation, score_key("sigmoid", 64), None).backend == "fused"
    wide = dataclasses.replace(situation, d=200, c=200)  # beyond what the kernels hold, and in float32 torch's too
    assert dispatch.choose(wide, score_key("sigmoid", 200), None).backend == "blockwise"


def test_auto_takes_what_is_explained(monkeypatch):
    taken = []
    run = dispatch._run
    monkeypatch.setattr(dispatch, "_run", lambda backend, *rest: taken.append(backend) or run(backend, *rest))
    q, k, v = (x.detach() for x in make_inputs(1500, 1, 4, 4, dtype=torch.float32))
    exact = propagate(q, k, v, "sigmoid")
    near = propagate(q, k, v, "sigmoid", tol=1e-3)
    assert taken == [explain(1500, 4).backend, explain(1500, 4, tol=1e-3).backend] == ["blockwise", "polynomial"]
    assert 0 < (near - exact).abs().max() < 2e-3 * v.abs().max()
    # Rows that are too long for the polynomial get exact sums instead of an error: nobody asked for it by name.
    propagate(2 * q, k, v, "sigmoid", tol=1e-3)
    assert taken[-1] == "blockwise"
    with pytest.raises(ValueError, match="norm at most 1, got 2"):
        propagate(2 * q, k, v, "sigmoid", tol=1e-3, backend="polynomial")


@pytest.mark.parametrize("tol", [0, 1.5, -1e-3])
def test_a_tolerance_is_a_fraction(tol):
    q, k, v = make_inputs(5)
    for backend in ("auto", "polynomial"):
        with pytest.raises(ValueError, match=f"tol must lie between 0 and 1, got {tol}"):
            propagate(q, k, v, "sigmoid", tol=tol, backend=backend)


def test_every_backend_has_an_operator():
    q, k, v = (x.detach() for x in make_inputs(12, dtype=torch.float32))
    wanted = propagate(q, k, v, "simple", backend="reference")
    for backend in set(BACKENDS) - {"softmax", "fused"}:  # which need a GPU
        torch.testing.assert_close(propagate(q, k, v, "simple", backend=backend), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_whole_numbers_are_refused(name):
    given = {key: torch.ones(3, 2) for key in ("q", "k", "v")}
    given[name] = given[name].long()
    with pytest.raises(ValueError, match=rf"{name} must hold real numbers.*torch.int64; convert it: {name}.float\(\)"):
        propagate(**given, diffusivity="sigmoid")
