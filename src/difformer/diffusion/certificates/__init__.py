"""Certificates: the theorems, propositions and corollaries of the paper, as far as they hold, measured on given data.

There is one function per claim. It returns a `Certificate` with the claim, its condition, whether the data meet it, and
the largest measured violation. `certify` runs them all:

>>> for certificate in certify(z, graph, diffusivity="simple"):
...     print(certificate.name, certificate.verdict)

`difformer.diffusion.counterexamples` has the claims of the paper that do not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from difformer.diffusion.certificates.certificate import Certificate as Certificate
from difformer.diffusion.certificates.certificate import double
from difformer.diffusion.certificates.exchange_theorems import (
    activation_contracts,
    coro_main,
    eqn_energy_graph,
    prop_energy,
    prop_feattrans,
    prop_trans_oversmooth,
    thm_main,
    thm_main_definite,
)
from difformer.diffusion.certificates.matrix_theorems import (
    cora_conv,
    corollary_gcn_cont,
    example_gcn,
    prop_bound,
    prop_convergence,
    prop_convergence_step,
    source_drift,
    source_limit,
    thm_gcn,
    thm_gcn_step,
)
from difformer.diffusion.coupling import AllPairAttention, Coupling, GraphCoupling
from difformer.diffusivity import Diffusivity
from difformer.graph import Graph


def certify(
    z: Tensor,
    graph: Graph | Coupling | None = None,
    *,
    diffusivity: str | Diffusivity = "simple",
    step_size: float = 0.5,
    steps: int = 6,
    source_weight: float = 0.1,
    normalise: bool = True,
) -> list[Certificate]:
    """Runs the certificates that apply to the data.

    Args:
        z: States ``[N, d]``.
        graph: A graph, or a constant coupling; without one, certificates for constant couplings are omitted.
        diffusivity: The diffusivity of the attention: a name or a `Diffusivity`.
        step_size: τ of the attention.
        steps: Number of steps.
        source_weight: β.
        normalise: Whether to project states to the unit sphere, as a network does; otherwise certificates report
            "not covered" if squared distances leave [0, 4].
    """
    z = functional.normalize(double(z), dim=1) if normalise else double(z)
    settings: dict[str, Any] = {"step_size": step_size, "steps": steps}
    source: dict[str, Any] = {"source_weight": source_weight, "steps": steps}
    found = []
    if graph is not None:  # certificates of constant couplings use the largest step that their theorem allows
        static = GraphCoupling(graph, "raw") if isinstance(graph, Graph) else graph
        found += [
            thm_gcn(z, static, steps=steps),
            thm_gcn_step(z, static, steps=steps),
            prop_bound(z, static, steps=steps),
            cora_conv(z, static, steps=steps),
            corollary_gcn_cont(z, static),
            prop_convergence(z, static, **source),
            prop_convergence_step(z, static, **source),
            source_drift(z, static, **source),
            source_limit(z, static, **source),
        ]
    attention, with_room = AllPairAttention(diffusivity), z / (1 + steps * step_size * source_weight)
    found += [
        prop_energy(z, diffusivity),
        thm_main(z, attention, **settings),
        thm_main_definite(z, attention, **settings),
        coro_main(z, attention),
        prop_feattrans(z, attention, _map_of_norm_one(z), **settings),
        activation_contracts(z, diffusivity),
        # Scaled so that the source keeps the states in the unit ball.
        prop_trans_oversmooth(with_room, attention, **settings | source),
    ]
    if isinstance(graph, Graph):
        found += [example_gcn(z, graph, steps=steps), eqn_energy_graph(z, graph, diffusivity, **settings)]
    return found


def _map_of_norm_one(z: Tensor) -> Callable[[Tensor], Tensor]:
    """A linear feature transformation."""
    weight = torch.randn(z.shape[1], z.shape[1], generator=torch.Generator().manual_seed(0), dtype=z.dtype).to(z.device)
    weight = weight / torch.linalg.matrix_norm(weight, 2)
    return lambda states: states @ weight


def certificate_summary(certificates: Iterable[Certificate]) -> str:
    """One sentence with the counts of proven statements, statements without a proof, and those not covered."""
    found = list(certificates)
    covered = [one for one in found if one.condition_met]
    proven, open_ = ([one for one in covered if one.proved is kind] for kind in (True, False))
    proofs = f"{sum(one.holds for one in proven)} of {len(proven)} proven statements hold"
    parts, measured = [proofs if proven else "No proven statement was checked"], sum(one.holds for one in open_)
    if measured:
        parts.append(f"{measured} {'is' if measured == 1 else 'are'} measured only, without a proof")
    if failed := len(open_) - measured:
        parts.append(
            f"{failed} of {len(open_)} statements without a proof {'does' if failed == 1 else 'do'} not hold here"
        )
    if missed := len(found) - len(covered):
        parts.append(f"for {missed} the condition is not met")
    return "; ".join(parts) + "."
