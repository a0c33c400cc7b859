r"""Contexts: how a layer sums over the rows that send to it.

A DIFFormer layer is row by row but for three things, and a context provides them:

* ``norms(q, k)``: the norms over all rows that queries and keys are divided by with ``qk_norm="global"``;
* ``latent(q, k, v, diffusivity, backend)``: the all-pair term,
  :math:`\sum_j w_j g(q_i^\top k_j) v_j / \sum_l w_l g(q_i^\top k_l)`;
* ``observed(v, norm)``: the messages along observed edges, :math:`\sum_j s_{ij} v_j`.

The layer itself (`difformer.nn.conv`) is written once. What differs is who sends:

======================================= =====================================================================
use                                     context
======================================= =====================================================================
one graph, or a batch of graphs         `Structure` (the default, made from ``edge_index`` and ``batch``)
senders with weights                    ``as_structure(…, weight=w)``
rows in chunks, or rows never seen      `Stored`, made by `store` from the states of the senders
several ranks                           a class with these three methods that sums over ranks
stacked runs                            the default inside `torch.vmap`
======================================= =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from difformer.attention.summary import Summary, Sums, summarise
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.nn.structure import SMALLEST_NORM

if TYPE_CHECKING:
    from difformer.nn.conv import DIFFormerConv


class Context(Protocol):
    """What a layer asks of its context; `Structure` and `Stored` are the two of this package."""

    @property
    def has_edges(self) -> Tensor | None:
        """``[N, 1]`` bool, whether the observed term counts for a row; None where it counts for all or for none."""

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """‖Q‖ and ‖K‖ of all senders, shaped to divide ``q`` and ``k [N, H, d]``; asked with ``qk_norm="global"``."""

    def latent(self, q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, backend: str) -> Tensor:
        """What rows with queries ``q [N, H, d]`` receive from all senders, ``[N, H, c]``.

        Args:
            q, k, v: Queries and keys, normalised, and values ``[N, H or 1, c]`` of the rows of this call.
            diffusivity: g, as the layer's score key or as an object.
            backend: As in `difformer.attention.propagate`.
        """

    def observed(self, v: Tensor, norm: str) -> Tensor | None:
        """What rows receive along observed edges, ``[N, c]``, from values ``[N, c]``; None where no edges exist."""


@dataclass(frozen=True)
class Stored:
    """Senders that are not, or not only, the rows asked: a population that was summarised before.

    The rows asked receive from the population and do not send. Serves exact inference in chunks of rows and predictions
    for rows that were never seen.

    Args:
        summary: Of the population; None where a layer has no senders (identity, or no diffusivity).
        query_norm, key_norm: ‖Q‖ and ‖K‖ of the population, for ``qk_norm="global"``.
        sent: ``[n, c]`` values of the population, mean over heads, for observed edges; None where there are none.
        edges: From `sent` to what the rows asked receive, ``[M, c]``; None for rows without edges.
    """

    summary: Summary | None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    sent: Tensor | None = None
    edges: Callable[[Tensor], Tensor] | None = None

    @property
    def has_edges(self) -> None:
        return None

    def norms(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.query_norm is None or self.key_norm is None:
            raise UserError("this context holds no norms of its senders; make it with store()")
        return self.query_norm.to(q), self.key_norm.to(k)

    def latent(self, q: Tensor, k: Tensor, v: Tensor, diffusivity: str | Diffusivity, backend: str) -> Tensor:
        return v if self.summary is None else self.summary.answer(q)

    def observed(self, v: Tensor, norm: str) -> Tensor | None:
        if self.sent is None:
            return None
        return torch.zeros_like(v) if self.edges is None else self.edges(self.sent).to(v)

    def receiving(self, edges: Callable[[Tensor], Tensor] | None) -> Stored:
        """The same senders for rows with these edges."""
        return replace(self, edges=edges)


def store(
    conv: DIFFormerConv,
    states: Tensor,
    *,
    weight: Tensor | None = None,
    observed: bool = False,
    size: int | None = None,
    device: torch.device | str | None = None,
    tol: float | None = None,
) -> Stored:
    """A context whose senders are rows with given states; nothing of size N is held on the device but one chunk.

    Args:
        conv: The layer.
        states: ``[n, in_channels]`` of the senders before the layer.
        weight: ``[n]`` how often each sender counts; None for once.
        observed: Whether rows will receive along observed edges, so that the senders' values must be kept.
        size: Rows worked on at a time; None for all at once.
        device: Where they are worked on; None for where they are. What has N rows stays where `states` are.
        tol: Relative error allowed in g, see `difformer.attention.summarise`; None for exact sums.
    """
    place = states.device if device is None else torch.device(device)

    def chunks() -> Iterator[tuple[slice, Tensor]]:
        step = max(states.shape[0] if size is None else size, 1)
        for i in range(0, max(states.shape[0], 1), step):
            rows = slice(i, min(i + step, states.shape[0]))
            yield rows, states[rows].to(place)

    known = Stored(None)
    if conv.query is not None and conv.qk_norm == "global":
        squares = torch.stack([torch.stack(conv.squares(z)) for _, z in chunks()]).sum(0)
        known = Stored(None, *squares.sqrt().clamp_min(SMALLEST_NORM))
    sent = states.new_empty(states.shape[0], conv.out_channels) if observed else None
    summary: Summary | None = None
    for rows, z in chunks():
        v = conv.values(z)
        if sent is not None:
            sent[rows] = v.mean(1).to(sent)
        if conv.diffusivity is None or conv.form == "identity":
            continue
        k = v if conv.query is None else conv.queries_and_keys(z, known)[1]
        own = None if weight is None else weight[rows].to(place)
        part = summarise(k, v.to(k.dtype), conv.diffusivity, own, tol=tol)
        if isinstance(part, Sums):  # many small chunks would round many times
            part = Sums(part.sums.double())
        part = part.to(states.device) if place != states.device and tol is None else part
        summary = part if summary is None else summary + part
    return replace(known, summary=summary, sent=sent)
