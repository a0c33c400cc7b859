r"""Diffusion by explicit Euler steps, and as a continuous flow.

One step with step size τ, coupling S, transformation h, source H of weight β and activation σ:

.. math::
    Z^{(k+1)} = \sigma\left[ C\, h(Z^{(k)}) + \tau\, S^{(k)} h(Z^{(k)}) + \tau\beta H \right],

where C is the share of itself that a state keeps:

============  =========  ===========================================================================================
conservation  C          meaning
============  =========  ===========================================================================================
``degree``    1 - τd̃_i   the diffusion equation (`eqn-diffuse-iter`): a state gives up as much as it receives
``unit``      1 - τ      graph convolution with a residual; the same as ``degree`` if rows of S sum to one
``none``      1          isomorphism networks: a state keeps everything, and grows
============  =========  ===========================================================================================

A coupling that depends on the states is computed at h(Z), for which the energy descends. The paper computes it at Z
(``coupling_at="input"``), where descent can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from difformer.diffusion.coupling import AnyCoupling, Coupling, as_coupling
from difformer.errors import UserError, check_choice, require

Transform = Callable[[Tensor], Tensor]


def flow(
    z: Tensor,
    coupling: Coupling,
    *,
    conservation: str = "degree",
    source: Tensor | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """dZ/dt = S Z - C' Z + H, with C' = d̃ (``degree``), 1 (``unit``) or 0 (``none``).

    S is computed at the states `at`, by default Z; `source` includes its weight.
    """
    at = z if at is None else at
    change = coupling.propagate(at, z)
    if conservation == "degree":
        change = change - coupling.degree(at).unsqueeze(1) * z
    elif conservation == "unit":
        change = change - z
    return change if source is None else change + source


def diffuse(
    z: Tensor,
    coupling: AnyCoupling,
    *,
    steps: int = 1,
    step_size: float = 1.0,
    conservation: str = "degree",
    source: Tensor | None = None,
    source_weight: float | None = None,
    transform: Transform | Sequence[Transform] | None = None,
    activation: Transform | None = None,
    coupling_at: str = "transformed",
    save: str = "last",
) -> Tensor:
    """Diffuses states by explicit Euler steps, see the equation of `difformer.diffusion.dynamics`.

    Args:
        z: States Z^(0), ``[N, d]``.
        coupling: A `Coupling`, or a square matrix (dense or sparse) as a constant one.
        steps: Number of steps.
        step_size: τ; see `stable_step_size` for the largest stable one.
        conservation: ``"degree"``, ``"unit"`` or ``"none"``.
        source: H, ``[N, d]``; by default Z^(0) if there is a `source_weight`.
        source_weight: β; by default 1 if there is a `source`, otherwise 0.
        transform: h, one function for all steps or a sequence with one per step (also an ``nn.ModuleList``).
        activation: σ.
        coupling_at: The states at which the coupling is computed: ``"transformed"`` (h(Z)) or ``"input"`` (Z).
        save: ``"last"`` for Z^(steps), or ``"all"`` for the trajectory ``[steps + 1, N, d]``, along which
            `Energy.along` measures the energy of every step.
    """
    coupling = _checked(z, coupling, step_size, conservation, source)
    if steps < 0:
        raise UserError(f"steps must be a number of steps, 0 or more, got {steps!r}")
    check_choice("coupling_at", coupling_at, ("transformed", "input"))
    check_choice("save", save, ("last", "all"))
    inflow = _inflow(z, source, source_weight)
    saved = [z]
    for h in _transforms(transform, steps):
        before = saved[-1]
        moved = before if h is None else h(before)
        if inflow is not None and inflow.shape != moved.shape:
            whose = "source" if source is not None else "source, which is Z^(0) by default,"
            raise UserError(
                f"{whose} has shape {tuple(inflow.shape)}, but is added to states of shape {tuple(moved.shape)}; "
                f"pass one of that shape" + ("" if h is None else ", transformed like the states: source=h(z)")
            )
        at = before if coupling_at == "input" else moved
        rate = flow(moved, coupling, conservation=conservation, source=inflow, at=at)
        after = moved + step_size * rate
        if activation is not None:
            after = activation(after)
        if save == "last":
            saved.clear()
        saved.append(after)
    return torch.stack(saved) if save == "all" else saved[-1]


def solve(
    z: Tensor,
    coupling: AnyCoupling,
    times: Tensor,
    *,
    conservation: str = "degree",
    source: Tensor | None = None,
    source_weight: float | None = None,
    **solver: Any,
) -> Tensor:
    """The continuous flow dz_i/dt = Σ_j s_ij (z_j - z_i) + β h_i, by an adaptive solver of torchdiffeq.

    Args:
        z: States at ``times[0]``, ``[N, d]``.
        coupling: As for `diffuse`; if it depends on the states, it is recomputed at every evaluation.
        times: ``[T]`` increasing (or decreasing) times.
        conservation: As for `diffuse`.
        source: H, ``[N, d]``; by default the states at ``times[0]`` if there is a `source_weight`.
        source_weight: β.
        solver: `method`, `rtol` (1e-7 by default), `atol` (1e-9) and `options` of ``torchdiffeq.odeint``.

    Returns:
        States at all times, ``[T, N, d]``.
    """
    odeint = require("torchdiffeq", extra="ode", purpose="solve").odeint
    coupling = _checked(z, coupling, 1.0, conservation, source)
    inflow = _inflow(z, source, source_weight)
    if inflow is not None and inflow.shape != z.shape:
        raise UserError(f"source must have the shape of the states, {tuple(z.shape)}, got {tuple(inflow.shape)}")

    def rate(time: Tensor, states: Tensor) -> Tensor:
        return flow(states, coupling, conservation=conservation, source=inflow)

    times = torch.as_tensor(times, dtype=z.dtype, device=z.device)
    found: Tensor = odeint(rate, z, times, **{"method": "dopri5", "rtol": 1e-7, "atol": 1e-9} | solver)
    return found


def _inflow(z: Tensor, source: Tensor | None, weight: float | None) -> Tensor | None:
    if weight is None:
        return source
    return None if weight == 0 else weight * (z if source is None else source)


def _transforms(transform: Transform | Sequence[Transform] | None, steps: int) -> Sequence[Transform | None]:
    if isinstance(transform, (Sequence, nn.ModuleList)):  # calling a ModuleList only raises
        if len(transform) != steps:
            raise UserError(f"transform must be one function or one per step, got {len(transform)} for {steps} steps")
        return list(transform)
    if transform is not None and not callable(transform):
        raise TypeError(f"transform must be a function of the states, or one per step, got {type(transform).__name__}")
    return [transform] * steps


def _checked(z: Tensor, coupling: Any, step_size: float, conservation: str, source: Tensor | None) -> Coupling:
    if z.dim() != 2 or not z.is_floating_point():
        raise UserError(f"z must be floating-point states [N, d], got {z.dtype} {tuple(z.shape)}")
    check_choice("conservation", conservation, ("degree", "unit", "none"))
    if not 0 < step_size < float("inf"):
        raise UserError(f"step_size must be positive and finite, got {step_size!r}")
    if source is not None and (not isinstance(source, Tensor) or source.dim() != 2 or source.shape[0] != z.shape[0]):
        got = f"shape {tuple(source.shape)}" if isinstance(source, Tensor) else type(source).__name__
        raise UserError(f"source must be a tensor [{z.shape[0]}, {z.shape[1]}], one row per state, got {got}")
    return as_coupling(coupling, num_nodes=z.shape[0])
