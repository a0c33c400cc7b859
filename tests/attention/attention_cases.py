"""Inputs of all-pair propagation, and its answer and gradients."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from difformer.attention import propagate


def make_inputs(
    n: int, heads: int = 1, d: int = 8, c: int = 6, *, shared: bool = False, dtype: torch.dtype = torch.float64, seed=0
) -> tuple[Tensor, Tensor, Tensor]:
    """Unit q and k ``[n, heads, d]``, v ``[n, heads or 1, c]``, all asking for gradients."""
    generator = torch.Generator().manual_seed(seed)
    q, k = (functional.normalize(torch.randn(n, heads, d, generator=generator).double(), dim=-1) for _ in range(2))
    v = torch.randn(n, 1 if shared else heads, c, generator=generator).double()
    return tuple(x.to(dtype).requires_grad_() for x in (q, k, v))


def answer_and_gradients(operator: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The output and the gradient of every input, in float64, for one fixed gradient of the output."""
    out = operator(*inputs)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    grads = torch.autograd.grad(out, inputs, weight, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)]
    return [x.detach().double().cpu() for x in (out, *grads)]


def expected(diffusivity, *inputs: Tensor, batch: Tensor | None = None) -> list[Tensor]:
    """What the formulas say, in float64, of the very numbers given."""
    wide = [x.detach().double().cpu().requires_grad_() for x in inputs]
    batch = None if batch is None else batch.cpu()
    return answer_and_gradients(lambda *x: propagate(*x, diffusivity, batch=batch, backend="reference"), *wide)


def assert_near(actual: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    """Every tensor within `tolerance` of the largest entry of the one wanted."""
    for name, a, w in zip(("out", "q", "k", "v"), actual, wanted, strict=True):
        assert a.shape == w.shape
        scale = max(w.abs().max().item(), 0.05) if w.numel() else 1.0
        gap = (a - w).abs().max().item() if w.numel() else 0.0
        assert gap <= tolerance * scale, f"{name}: {gap:.2g} off, at a scale of {scale:.2g}"


def resident(what: str) -> int:
    """Bytes of memory this process holds (``VmRSS``) or held at most (``VmHWM``)."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(what))
    return 1024 * int(line.split()[1])


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that `work` took above what was held before."""
    if not sys.platform.startswith("linux"):
        pytest.skip("peak memory is read from /proc")
    work()  # libraries take memory of their own at the first call
    with open("/proc/self/clear_refs", "w") as control:
        control.write("5")  # forgets the peak
    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before
