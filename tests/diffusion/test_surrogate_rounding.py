"""Opposite unit states: a rounding error beyond distance 4, where an exchange falls below zero."""

import pytest
import torch

from difformer.diffusion import Energy, penalty, surrogate_energy


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_opposite_states_is_accepted(dtype):
    drawn = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)
    direction = torch.nn.functional.normalize(drawn, dim=1)
    z = torch.cat([direction, -direction])
    bound = surrogate_energy(z, z, None, "simple")
    assert bound == pytest.approx(float(Energy(penalty("simple"))(z, z)), rel=1e-3 if dtype == torch.float32 else 1e-9)


def test_negative_exchange_is_refused():
    with pytest.raises(ValueError, match=r"omega must be ≥ 0, got -0.1"):
        surrogate_energy(torch.zeros(2, 1), torch.zeros(2, 1), torch.full((2, 2), -0.1), "simple")
