r"""From states to a map: the two directions of largest variance at every layer, turned to lie like the layer before.

With centred states :math:`Z = U Σ V^\top` the map is :math:`M = Z V_{:2}`. The signs and the order of singular vectors
are arbitrary, so each map is turned by the orthogonal R that minimises :math:`\|M R - M'\|` for the map M' before it
(Procrustes: :math:`R = A B^\top` for :math:`M^\top M' = A S B^\top`). A slider then moves points, not axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GRID = 9_999  # coordinates are whole numbers from 0 to this: four digits are more than a screen can show


@dataclass(frozen=True)
class Map:
    """Points of one layer.

    Args:
        x: ``[n]`` from 0 to `GRID`.
        y: Likewise.
        explained: Share of the variance of the states that the two directions hold.
    """

    x: list[int]
    y: list[int]
    explained: float


def project(layers: list[Tensor]) -> list[Map]:
    """One map a layer, from states ``[n, d]`` whose length may differ from layer to layer."""
    maps, before = [], None
    for z in layers:
        points, explained = _principal(z.double())
        if before is not None:
            a, _, b = torch.linalg.svd(points.T @ before)
            points = points @ (a @ b)
        before = points
        scaled = _to_grid(points)
        maps.append(Map(scaled[:, 0].tolist(), scaled[:, 1].tolist(), explained))
    return maps


def _principal(z: Tensor) -> tuple[Tensor, float]:
    centred = z - z.mean(0)
    # The d × d covariance is small where there are many rows.
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    top = vectors[:, -2:].flip(1)
    points = centred @ top
    if points.shape[1] < 2:
        points = torch.cat([points, points.new_zeros(points.shape[0], 2 - points.shape[1])], 1)
    total = float(values.clamp_min(0).sum())
    return points, float(values[-2:].clamp_min(0).sum()) / total if total > 0 else 1.0


def _to_grid(points: Tensor) -> Tensor:
    """One scale for both axes, the cloud in the middle."""
    low, high = points.min(0).values, points.max(0).values
    reach = float((high - low).max()) or 1.0
    return ((points - (low + high) / 2) / reach * GRID + GRID / 2).round().long().clamp(0, GRID)
