"""Kernels for a GPU against what torch does; need one."""

import pytest
import torch
from torch import nn

from difformer import DIFFormer, Graph
from difformer.kernels.fused import linear
from difformer.kernels.rows import LayerNorm, by_rows, unit_rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def close_in_scale(found, wanted, part, terms=None):
    """Equal to a part of the largest entry: a gradient that is zero, stale or of another scale is far off.

    Rows of one channel have a gradient of zero, the difference of two equal `terms`: there their size is the scale.
    """
    scale = (wanted if terms is None else terms).double().abs().max().item()
    assert scale > 0
    torch.testing.assert_close(found.double().cpu(), wanted.double().cpu(), atol=part * scale, rtol=0)


@pytest.mark.parametrize("width", [1, 4, 17, 64, 300, 512])
@pytest.mark.parametrize("rows", [1024, 5001])
def test_layer_norm_and_every_gradient(width, rows):
    torch.manual_seed(0)
    ours = LayerNorm(width).cuda()
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    theirs = nn.LayerNorm(width).cuda().double()
    theirs.load_state_dict(ours.state_dict())
    x = (3 * torch.randn(rows, width, device="cuda") + 1).requires_grad_()
    assert by_rows(x)
    wide = x.detach().double().requires_grad_()
    weight = torch.randn(rows, width, device="cuda")
    found, wanted = ours(x), theirs(wide)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
    mine = torch.autograd.grad((found * weight).sum(), [x, ours.weight, ours.bias])
    right = torch.autograd.grad((wanted * weight.double()).sum(), [wide, theirs.weight, theirs.bias])
    # Rounding of a sum of terms of either sign follows their size, not that of the sum.
    terms = [weight * ours.weight / ours.eps**0.5, weight.sum(0), weight.norm(dim=0)] if width == 1 else [None] * 3
    for a, b, scale in zip(mine, right, terms, strict=True):
        close_in_scale(a, b, 1e-5, scale)


@pytest.mark.parametrize("channels", [64, 65, 3])
def test_odd_features_are_padded_and_nothing_else_changes(channels):
    layer = nn.Linear(channels, 16).cuda()
    x = torch.randn(5000, channels, device="cuda", requires_grad=True)
    results = [
        (out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()]))
        for out in (linear(layer, x), layer(x))
    ]
    for mine, theirs in zip(*results, strict=True):
        close_in_scale(mine, theirs, 1e-5)


@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
@pytest.mark.parametrize("qk_norm", ["row", "global"])
def test_a_model_on_a_gpu_is_the_model_on_a_cpu(diffusivity, qk_norm):
    torch.manual_seed(0)
    model = DIFFormer(65, 32, 4, diffusivity=diffusivity, qk_norm=qk_norm, transform=False, num_layers=3).double()
    x, edges = torch.randn(5000, 65, dtype=torch.float64), torch.randint(0, 5000, (2, 20000))
    wanted = model(x, edges)
    wanted_grads = torch.autograd.grad(wanted.square().mean(), list(model.parameters()))
    model = model.float().cuda()
    found = model(x.float().cuda(), Graph(edges, 5000).to("cuda"))
    grads = torch.autograd.grad(found.square().mean(), list(model.parameters()))
    close_in_scale(found, wanted, 1e-4)
    for a, b in zip(grads, wanted_grads, strict=True):
        close_in_scale(a, b, 1e-3)


@pytest.mark.parametrize("width", [1, 17, 64, 512])
def test_unit_rows_and_their_gradient(width):
    x = torch.randn(3000, 2, width, device="cuda")
    x[7] = 0
    x.requires_grad_()
    assert by_rows(x.flatten(0, 1))
    wide = x.detach().double().requires_grad_()
    weight = torch.randn_like(x)
    found, wanted = unit_rows(x), nn.functional.normalize(wide, dim=-1)
    torch.testing.assert_close(found.double(), wanted, atol=1e-6, rtol=1e-5)
    (mine,) = torch.autograd.grad((found * weight).sum(), x)
    (right,) = torch.autograd.grad((wanted * weight.double()).sum(), wide)
    others = torch.arange(3000) != 7
    terms = (weight / x.norm(dim=-1, keepdim=True))[others] if width == 1 else None
    close_in_scale(mine[others], right[others], 1e-5, terms)
    assert mine[7].isfinite().all()
