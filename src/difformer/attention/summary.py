r"""All-pair propagation in two steps: summarise the senders, then answer the receivers.

With keys k, values v and weights w of the senders, and the query q of a receiver,

.. math::
    P(q) = \frac{\sum_j w_j \, g(q^\top k_j) \, v_j}{\sum_l w_l \, g(q^\top k_l)} .

The senders enter through a summary alone, and summaries add:

=========================== =============================================== ==========
diffusivity                 summary                                         size
=========================== =============================================== ==========
simple, constant            `Sums`: Σ w [1, k]ᵀ[1, v]                       O(d c)
any, with a tolerance       `Moments`: the same over the monomials of k     O(F c)
any other                   `Pairs`: the keys and values, visited in tiles  O(N d)
                            with a running maximum and normaliser
=========================== =============================================== ==========

One graph, a graph in chunks of rows, weighted rows, rows on several ranks (add = all-reduce) and unseen rows (keep the
summary) are the same computation. All summaries are differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from difformer._compat import is_exporting
from difformer.attention import polynomial, tiles
from difformer.attention.scores import diffusivity_of, find_score, form_of, score_key, working_dtype
from difformer.diffusivity import Diffusivity, safe_total
from difformer.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Self

LINEAR = frozenset({"simple", "constant"})  # forms that are sums
DIFFERENT = "only summaries of the same diffusivity, tolerance and sizes can be added"


class Summary(Protocol):
    """What receivers need to know of senders."""

    def answer(self, q: Tensor) -> Tensor:
        """What queries ``[M, H, d]`` receive: ``[M, H, c]``."""

    def __add__(self, other: Self) -> Self:
        """The summary of both sets of senders."""

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""

    def state(self) -> dict[str, Tensor]:
        """Plain tensors to be saved; `restore` reads them."""


@dataclass(frozen=True)
class FixedSize:
    """Sums of each head; to sum over ranks, all-reduce them and put them back with ``dataclasses.replace``."""

    sums: Tensor

    def __add__(self, other: Self) -> Self:
        same = isinstance(other, type(self)) and self.sums.shape == other.sums.shape
        if not same or other != replace(self, sums=other.sums):
            raise UserError(DIFFERENT)
        return replace(self, sums=self.sums + other.sums)

    def to(self, device: torch.device | str) -> Self:
        return replace(self, sums=self.sums.to(device))


@dataclass(frozen=True)
class Sums(FixedSize):
    """g(x) = 1 + x, or 1: ``[H, 1 + d, 1 + c]`` sums Σ_j w_j [1, k_j]ᵀ[1, v_j]; d is 0 for the constant diffusivity."""

    def answer(self, q: Tensor) -> Tensor:
        state = self.sums.to(working_dtype(q.dtype))
        count = state[:, 0, :1]
        if state.shape[1] == 1:
            mean = state[:, 0, 1:] / count.clamp_min(torch.finfo(state.dtype).tiny)
            return mean.expand(q.shape[0], -1, -1).to(q.dtype)
        sums = torch.einsum("nha,hab->nhb", with_one(q.to(state.dtype)), state)
        return (sums[..., 1:] / safe_total(sums[..., :1], count.detach())).to(q.dtype)

    def state(self) -> dict[str, Tensor]:
        return {"sums": self.sums}


@dataclass(frozen=True)
class Moments(FixedSize):
    """Any g as a polynomial on [-1, 1]: ``[H, monomials, c + 1]`` sums over monomials of keys of norm at most one."""

    powers: tuple[float, ...]  # coefficients of the polynomial, see `difformer.attention.polynomial`

    def answer(self, q: Tensor) -> Tensor:
        polynomial.check_norms(q=q)
        state = self.sums.to(working_dtype(q.dtype))
        sums = polynomial.evaluate(q.to(state.dtype), state, self.powers)
        # The first monomial is 1, if there is a constant: its last column counts the rows.
        count = state[:, 0, -1:].detach() if self.powers[0] != 0 else torch.ones_like(state[:, 0, -1:])
        return (sums[..., :-1] / safe_total(sums[..., -1:], count)).to(q.dtype)

    def state(self) -> dict[str, Tensor]:
        return {"moments": self.sums}


@dataclass(frozen=True)
class Pairs:
    """Any g, exactly: keys and values are kept, and each answer visits them block by block and tile by tile.

    Blocks may be on another device than the queries; they are copied one at a time.
    """

    blocks: tuple[tuple[Tensor, Tensor, Tensor | None], ...]  # keys [m, H, d], values [m, H, c] and weights [m]
    diffusivity: Diffusivity

    def answer(self, q: Tensor) -> Tensor:
        inputs = (q, *(x for block in self.blocks for x in block if x is not None))
        tracked = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        answer = self._whole if tracked or is_exporting() else self._streamed
        return answer(q.to(working_dtype(q.dtype))).to(q.dtype)

    def _moved(self, block: tuple[Tensor, Tensor, Tensor | None], q: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values in the queries' place and precision; with weights, values are [w v, w]."""
        k, v, weight = block
        k, v = k.to(q.device, q.dtype), v.to(q.device, q.dtype)
        return k, v if weight is None else with_mass(v, weight.to(q.device))

    @property
    def weighted(self) -> bool:
        return self.blocks[0][2] is not None

    def _whole(self, q: Tensor) -> Tensor:
        k, v = (torch.cat(parts) for parts in zip(*(self._moved(block, q) for block in self.blocks), strict=True))
        out = tiles.propagate(q, k, v, score_key(self.diffusivity))
        return _divided(out) if self.weighted else out

    def _streamed(self, q: Tensor) -> Tensor:
        score, count = find_score(score_key(self.diffusivity)), 0
        queries = (q * score.slope if score.exponential else q).detach().transpose(0, 1).contiguous()
        width = self.blocks[0][1].shape[-1] + self.weighted
        sums = tiles.Sums.start(score, q.new_empty(q.shape[1], q.shape[0], width))
        for block in self.blocks:
            k, v = (x.transpose(0, 1).contiguous() for x in self._moved(block, q))
            tiles.add_keys(score, queries, k, v, sums)
            count += k.shape[1]
        # The weights' own column is the total, relative to the largest score as the others are.
        out = _divided(sums.weighted) if self.weighted else sums.finish(count, score.least)[0]
        return out.transpose(0, 1)

    def __add__(self, other: Pairs) -> Pairs:
        if not isinstance(other, Pairs) or self.diffusivity != other.diffusivity:
            raise UserError(DIFFERENT)
        if self.weighted != other.weighted:
            raise UserError("senders with and without weights cannot be added: give every block a weight, or none")
        return replace(self, blocks=self.blocks + other.blocks)

    def to(self, device: torch.device | str) -> Pairs:
        moved = tuple((k.to(device), v.to(device), None if w is None else w.to(device)) for k, v, w in self.blocks)
        return replace(self, blocks=moved)

    def state(self) -> dict[str, Tensor]:
        keys, values, weights = zip(*self.blocks, strict=True)
        found = {"keys": torch.cat(keys), "values": torch.cat(values)}
        return found | ({"weight": torch.cat(weights)} if self.weighted else {})


def with_one(x: Tensor) -> Tensor:
    """``[1, x]`` for each row and head."""
    return torch.cat([torch.ones_like(x[..., :1]), x], -1)


def with_mass(v: Tensor, weight: Tensor) -> Tensor:
    """Values [w v, w]."""
    mass = weight.to(v.dtype).view(-1, 1, 1).expand(-1, v.shape[1], 1)
    return torch.cat([mass * v, mass], -1)


def _divided(both: Tensor) -> Tensor:
    """Σ w g v / Σ w g from their sums, or normalised sums, in one tensor."""
    return both[..., :-1] / both[..., -1:].clamp_min(torch.finfo(both.dtype).tiny)


def adds_up(diffusivity: str | Diffusivity, tol: float | None = None) -> bool:
    """Whether the summary has a fixed size and can be all-reduced; otherwise it is the senders themselves."""
    return tol is not None or form_of(diffusivity) in LINEAR


def summarise(
    k: Tensor, v: Tensor, diffusivity: str | Diffusivity, weight: Tensor | None = None, *, tol: float | None = None
) -> Summary:
    """The summary of senders.

    Args:
        k: Keys ``[N, H, d]``, normalised as the layer has them.
        v: Values ``[N, H or 1, c]``; one for all heads is shared by them.
        diffusivity: A name, a `Diffusivity` or the key of a score.
        weight: ``[N]`` non-negative: how often each sender counts; None for once.
        tol: Relative error allowed in g: sums of monomials instead of the pairs. Ignored if sums are exact anyway.

    Raises:
        ValueError: For the identity diffusivity, which has no senders; for a tolerance with rows longer than one.

    Example:
        >>> q, k, v = torch.rand(3, 1, 4), torch.rand(9, 1, 4), torch.rand(9, 1, 2)
        >>> whole = summarise(k, v, "sigmoid").answer(q)
        >>> parts = summarise(k[:5], v[:5], "sigmoid") + summarise(k[5:], v[5:], "sigmoid")
        >>> bool((parts.answer(q) - whole).abs().max() < 1e-6)
        True
    """
    key = score_key(diffusivity, k.shape[-1])
    form, wide = form_of(key), working_dtype(k.dtype)
    if form == "identity":
        raise UserError("the identity diffusivity propagates each row to itself, so there is nothing to summarise")
    heads = max(k.shape[1], v.shape[1])
    if tol is not None and form not in LINEAR:
        polynomial.check_norms(k=k)  # before it is widened: rounding depends on the type
    k, v = k.to(wide), v.to(wide).expand(-1, heads, -1)
    if form in LINEAR:
        left = v.new_ones(*v.shape[:2], 1) if form == "constant" else with_one(k)
        if weight is not None:
            left = left * weight.to(wide).view(-1, 1, 1)
        return Sums(torch.einsum("nha,nhb->hab", left, with_one(v)))
    if tol is not None:
        both = with_mass(v, v.new_ones(v.shape[0]) if weight is None else weight)
        powers = polynomial.expand(key, tol)
        return Moments(polynomial.moments(k, both, powers), powers)
    if weight is not None and not weight.requires_grad and bool((weight == 0).any()):
        there = weight > 0  # a sender without weight must not be the largest score of a row
        k, v, weight = k[there], v[there], weight[there]
    return Pairs(((k, v, weight),), diffusivity_of(key))


def restore(state: dict[str, Tensor], diffusivity: str | Diffusivity, *, tol: float | None = None) -> Summary:
    """A summary from what `Summary.state` gave; a ValueError if the tensors are not those of a summary."""
    names = sorted(state)
    if names == ["sums"]:
        return Sums(state["sums"])
    if names == ["moments"]:
        if diffusivity == "softmax":
            why = "moments do not determine the number of channels d, which gives softmax its temperature √d"
            raise UserError(f"diffusivity: {why}; pass 'softmax:TEMPERATURE', as in 'softmax:8' for d = 64")
        return Moments(state["moments"], polynomial.expand(diffusivity, polynomial.DEFAULT_TOL if tol is None else tol))
    if names in (["keys", "values"], ["keys", "values", "weight"]):
        key = score_key(diffusivity, state["keys"].shape[-1])
        return Pairs(((state["keys"], state["values"], state.get("weight")),), diffusivity_of(key))
    raise UserError(f"a summary is 'sums', 'moments', or 'keys' and 'values', got {', '.join(names) or 'nothing'}")
