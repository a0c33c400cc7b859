r"""Rows that count more than once: mass in the all-pair exchange, weights in the loss, and the training of both.

With masses m_j every operator of the package serves as it is. For values :math:`\tilde v_j = [m_j v_j, m_j]` it gives

.. math::
    \tilde P_i = \frac{\sum_j g_{ij} [m_j v_j, m_j]}{\sum_l g_{il}}, \qquad
    \frac{\tilde P_i[{:}c]}{\tilde P_i[c]} = \frac{\sum_j m_j g_{ij} v_j}{\sum_l m_l g_{il}},

and the division drops out of sight what it was normalised by.
"""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.attention import propagate
from difformer.attention.segments import Segments
from difformer.nn import DIFFormer, DIFFormerConv
from difformer.nn.structure import Structure


class MassConv(DIFFormerConv):
    """A layer whose rows have mass ``[N, 1, 1]``; made by changing the class of a `DIFFormerConv`."""

    mass: Tensor

    def step(self, z: Tensor, structure: Structure, source: Tensor | None = None) -> Tensor:
        # Term by term: the short ways of a layer work out the exchange by themselves, and know of no mass.
        p = self.propagated(z, structure)
        if self.residual:
            p = torch.lerp(z, p.to(z.dtype), self.step_size)
        if source is not None and self.source_weight:
            p = p + self.step_size * self.source_weight * source
        return p

    def latent(self, z: Tensor, v: Tensor, segments: Segments | None) -> Tensor:
        if self.diffusivity is None or self.diffusivity.name == "identity":
            return v.mean(1)
        if self.query is None:
            q = k = v.expand(-1, self.num_heads, -1)
        else:
            q, k = self.queries_and_keys(z, segments)
        mass = self.mass.to(q.dtype).expand(-1, v.shape[1], 1)
        both = propagate(q, k, torch.cat([mass * v.to(q.dtype), mass], -1), self.diffusivity, backend=self.backend)
        return (both[..., :-1] / both[..., -1:]).mean(1)


def give_mass(model: DIFFormer, mass: Tensor) -> None:
    """From now on the rows of whole passes count with their mass; parameters and their names stay."""
    for layer in model.layers:
        layer.__class__ = MassConv
        layer.mass = (mass / mass.mean()).view(-1, 1, 1)
