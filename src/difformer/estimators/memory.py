r"""What a layer remembers of the population, so that new rows can be diffused into it without touching it again.

A new row with query q receives from the fitted rows j, each with its mass m_j,

.. math::
    P = \frac{\sum_j m_j \, g(q^\top k_j) \, v_j}{\sum_l m_l \, g(q^\top k_l)}.

* `Sums`: for g(x) = 1 + x the state Σ_j m_j [1, k_j]ᵀ[1, v_j] answers any query in O(d c), whatever n was;
* `Mean`: for g = 1 it is the mean value;
* `Moments`: for a polynomial g the sums of all its monomials;
* `Keys`: for any other g the keys and values themselves, of the whole population or of landmarks among it.

New rows do not exchange with each other: the answer to a row does not depend on what else is asked.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from difformer.attention import polynomial
from difformer.attention.reference import safe_total
from difformer.attention.scores import form_of, slope_of
from difformer.diffusivity import Diffusivity

PAIRS_AT_ONCE = 1 << 22


class Mean(nn.Module):
    """Every query gets the mean value ``[H, c]``."""

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.mean: Tensor

    @staticmethod
    def of(keys: Tensor, values: Tensor, mass: Tensor) -> Mean:
        return Mean(torch.einsum("n,nhc->hc", mass, values) / mass.sum())

    def forward(self, q: Tensor) -> Tensor:
        return self.mean.expand(q.shape[0], -1, -1)


class Sums(nn.Module):
    """Score 1 + x: the state ``[H, 1 + d, 1 + c]``."""

    def __init__(self, state: Tensor) -> None:
        super().__init__()
        self.register_buffer("state", state)
        self.state: Tensor

    @staticmethod
    def of(keys: Tensor, values: Tensor, mass: Tensor) -> Sums:
        """From keys ``[n, H, d]``, values ``[n, H, c]`` and mass ``[n]``."""
        ones = keys.new_ones(*keys.shape[:2], 1)
        left = torch.cat([ones, keys], -1) * mass.view(-1, 1, 1)
        return Sums(torch.einsum("nha,nhb->hab", left, torch.cat([ones, values], -1)))

    def forward(self, q: Tensor) -> Tensor:
        count, values, keys, outer = (
            self.state[:, :1, :1], self.state[:, :1, 1:], self.state[:, 1:, :1], self.state[:, 1:, 1:],
        )  # fmt: skip
        queries = q.transpose(0, 1)
        total = safe_total(torch.baddbmm(count, queries, keys), count)
        return (torch.baddbmm(values, queries, outer) / total).transpose(0, 1)


class Moments(nn.Module):
    """A polynomial for g: the sums of its monomials, see `difformer.attention.polynomial`."""

    def __init__(self, state: Tensor, diffusivity: Diffusivity) -> None:
        super().__init__()
        self.register_buffer("state", state)
        self.state: Tensor
        self.diffusivity = diffusivity

    @staticmethod
    def of(keys: Tensor, values: Tensor, mass: Tensor, diffusivity: Diffusivity) -> Moments:
        weight = mass.view(-1, 1, 1).expand(-1, values.shape[1], 1)
        # The last column counts rows by themselves; ours counts them by mass.
        sums = polynomial.summarise(keys, torch.cat([weight * values, weight], -1), diffusivity)[..., :-1]
        return Moments(sums.contiguous(), diffusivity)

    def forward(self, q: Tensor) -> Tensor:
        return polynomial.answer(q, self.state, self.diffusivity)


class Keys(nn.Module):
    """Any g: keys ``[n, H, d]``, values ``[n, H, c]`` and mass ``[n]``, kept in single precision."""

    def __init__(self, keys: Tensor, values: Tensor, mass: Tensor, diffusivity: Diffusivity) -> None:
        super().__init__()
        self.register_buffer("keys", keys.float())
        self.register_buffer("values", values.float())
        self.register_buffer("mass", mass.float())
        self.keys: Tensor
        self.values: Tensor
        self.mass: Tensor
        self.diffusivity = diffusivity

    def forward(self, q: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return self._answer(q)
        at_once = max(1, PAIRS_AT_ONCE // (self.keys.shape[0] * self.keys.shape[1]))
        return torch.cat([self._answer(part) for part in q.split(at_once)]) if q.shape[0] else q

    def _answer(self, q: Tensor) -> Tensor:
        scores = torch.einsum("nhd,mhd->hnm", q, self.keys.to(q.dtype))
        mass = self.mass.to(q.dtype)
        if form_of(self.diffusivity) == "exponential":
            # Row-normalised, e^(ax + b) is a softmax of ax, which is finite for any a.
            weights = torch.softmax(slope_of(self.diffusivity) * scores + mass.log(), -1)
        else:
            weights = self.diffusivity.g(scores) * mass
            weights = weights / safe_total(weights.sum(-1, keepdim=True), mass.sum())
        return torch.einsum("hnm,mhc->nhc", weights, self.values.to(q.dtype))


Memory = Mean | Sums | Moments | Keys
