"""What drives a diffusion: the coupling S(z), whose entry s_ij says how strongly state i takes from state j.

A coupling need not be a matrix that anyone stores. It says what the iteration, the energies and the theory ask of it:

    propagate   S(z) v          what every state receives
    degree      d̃ = S(z) 1      how much of itself a state gives up
    matrix      S(z)            dense, for small N
    balance     m               with m_i s_ij = m_j s_ji: what makes S symmetric, where anything does
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

EDGE_ENTRIES = 2**23  # numbers gathered at once when a sum runs over edges: 64 MiB in double precision


class Coupling(ABC):
    """The pairwise influence S(z) between N states ``z [N, d]``."""

    static: bool = False  # whether S is the same for every z

    @property
    def num_nodes(self) -> int | None:
        """N, where the coupling belongs to a given set of nodes; None where it takes any."""
        return None

    @abstractmethod
    def propagate(self, z: Tensor, values: Tensor | None = None) -> Tensor:
        """``S(z) values`` for ``[N, c]`` values, without building S; left out, the values are the states themselves."""

    @abstractmethod
    def degree(self, z: Tensor) -> Tensor:
        """Row sums d̃ of S(z), ``[N]``."""

    @abstractmethod
    def matrix(self, z: Tensor) -> Tensor:
        """S(z) as a dense ``[N, N]`` tensor."""

    @abstractmethod
    def balance(self, z: Tensor) -> Tensor | None:
        """Positive m ``[N]`` with m_i s_ij = m_j s_ji (ones for a symmetric S), or None if no such m exists."""

    def entries(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """``(row, column, value)`` of S(z) where it is sparse; repeated places add up. None where it is dense."""
        return None

    def rest(self, z: Tensor) -> Tensor:
        """States ``[N]`` that S leaves as they are, each component on its own: ones, where rows sum to one."""
        return torch.ones_like(self.degree(z))

    def symmetric(self, z: Tensor) -> bool:
        """Whether S(z) equals its transpose."""
        balance = self.balance(z)
        return balance is not None and bool(((balance - 1).abs() <= 1e-12).all())

    def variation(self, z: Tensor, states: Tensor | None = None) -> Tensor:
        """Σ_ij s_ij(z) ||y_i - y_j||² of the states y, which are z itself where they are left out.

        With row sums d̃ and column sums c = m ⊙ S(1/m), it is Σ_i (d̃_i + c_i) ||y_i||² - 2 ⟨y, S y⟩.
        """
        states = z if states is None else states
        entries = self.entries(z)
        if entries is not None:
            return _edge_variation(states, *entries)
        balance = self.balance(z)
        if balance is None:
            columns = self.matrix(z).sum(0)
        else:
            columns = balance * self.propagate(z, 1 / balance.unsqueeze(1)).squeeze(1)
        states = states - states.mean(0)
        norms = (states * states).sum(1)
        return ((self.degree(z) + columns) * norms).sum() - 2 * (states * self.propagate(z, states)).sum()


class SparseCoupling(Coupling):
    """A coupling that is known by its entries."""

    @abstractmethod
    def entries(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``(row, column, value)`` of S(z); repeated places add up."""

    def propagate(self, z: Tensor, values: Tensor | None = None) -> Tensor:
        values = z if values is None else values
        out = torch.zeros_like(values)
        row, column, value = self.entries(z)
        for part in _edge_chunks(row.numel(), values.shape[1]):
            out = out.index_add(0, row[part], value[part].unsqueeze(1) * values[column[part]])
        return out

    def degree(self, z: Tensor) -> Tensor:
        row, _, value = self.entries(z)
        return value.new_zeros(z.shape[0]).index_add(0, row, value)

    def matrix(self, z: Tensor) -> Tensor:
        row, column, value = self.entries(z)
        return value.new_zeros(z.shape[0], z.shape[0]).index_put((row, column), value, accumulate=True)


def _edge_chunks(edges: int, channels: int) -> list[slice]:
    # At least one, be it empty: a sum over no edges is zero, and still a function of the states.
    size = max(1, EDGE_ENTRIES // max(1, channels))
    return [slice(start, start + size) for start in range(0, max(1, edges), size)]


def edge_distances(z: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """||z_i - z_j||² for given pairs, ``[E]``, by differences: exact for states that lie close together."""
    return torch.cat([((z[row[part]] - z[column[part]]) ** 2).sum(1) for part in _edge_chunks(row.numel(), z.shape[1])])


def edge_products(z: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """z_iᵀz_j for given pairs, ``[E]``."""
    return torch.cat([(z[row[part]] * z[column[part]]).sum(1) for part in _edge_chunks(row.numel(), z.shape[1])])


def _edge_variation(z: Tensor, row: Tensor, column: Tensor, value: Tensor) -> Tensor:
    return (value * edge_distances(z, row, column)).sum()
