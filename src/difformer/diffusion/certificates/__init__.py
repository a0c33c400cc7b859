"""Certificates: the theorems, propositions and corollaries of the paper, as far as they hold, measured on given data.

There is one function per claim. It returns a `Certificate` with the claim, its condition, whether the data meet it, and
the largest measured violation. `certify` runs them all:

>>> for certificate in certify(z, graph, diffusivity="simple"):
...     print(certificate.name, certificate.verdict)

`difformer.diffusion.counterexamples` has the claims of the paper that do not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

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


@dataclass(frozen=True)
class Case:
    """Data and settings for certificates; those of constant couplings use the largest step their theorem allows."""

    z: Tensor
    static: Any  # a constant coupling, or None
    graph: Any  # an observed graph, or None
    diffusivity: str | Diffusivity
    steps: int
    step_size: float
    source_weight: float

    @property
    def attention(self) -> AllPairAttention:
        return AllPairAttention(self.diffusivity)

    @property
    def tau(self) -> dict[str, Any]:
        return {"step_size": self.step_size, "steps": self.steps}

    @property
    def source(self) -> dict[str, Any]:
        return {"source_weight": self.source_weight, "steps": self.steps}

    @property
    def with_room(self) -> Tensor:
        """States scaled so that a source keeps them in the unit ball."""
        return self.z / (1 + self.steps * self.step_size * self.source_weight)

    def transform(self, z: Tensor) -> Tensor:
        """A linear map of norm one, as the feature transformation."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(z.shape[1], z.shape[1], generator=generator, dtype=z.dtype).to(z.device)
        return z @ (weight / torch.linalg.matrix_norm(weight, 2))


class Entry(NamedTuple):
    """A certificate of a case, and what the case must have: ``"static"``, ``"graph"``, or ``"states"`` alone."""

    needs: str
    run: Callable[[Case], Certificate]


CERTIFICATES: dict[str, Entry] = {
    "thm-gcn": Entry("static", lambda c: thm_gcn(c.z, c.static, steps=c.steps)),
    "thm-gcn (one step)": Entry("static", lambda c: thm_gcn_step(c.z, c.static, steps=c.steps)),
    "prop-bound": Entry("static", lambda c: prop_bound(c.z, c.static, steps=c.steps)),
    "cora-conv": Entry("static", lambda c: cora_conv(c.z, c.static, steps=c.steps)),
    "corollary-gcn-cont": Entry("static", lambda c: corollary_gcn_cont(c.z, c.static)),
    "exa-gcn": Entry("graph", lambda c: example_gcn(c.z, c.graph, steps=c.steps)),
    "prop-convergence": Entry("static", lambda c: prop_convergence(c.z, c.static, **c.source)),
    "prop-convergence (one step)": Entry("static", lambda c: prop_convergence_step(c.z, c.static, **c.source)),
    "prop-convergence (drift)": Entry("static", lambda c: source_drift(c.z, c.static, **c.source)),
    "prop-convergence (limit)": Entry("static", lambda c: source_limit(c.z, c.static, **c.source)),
    "prop-energy": Entry("states", lambda c: prop_energy(c.z, c.diffusivity)),
    "thm-main": Entry("states", lambda c: thm_main(c.z, c.attention, **c.tau)),
    "thm-main (definite)": Entry("states", lambda c: thm_main_definite(c.z, c.attention, **c.tau)),
    "coro-main": Entry("states", lambda c: coro_main(c.z, c.attention)),
    "prop-feattrans": Entry("states", lambda c: prop_feattrans(c.z, c.attention, c.transform, **c.tau)),
    "prop-feattrans (activation)": Entry("states", lambda c: activation_contracts(c.z, c.diffusivity)),
    "prop-trans-oversmooth": Entry(
        "states", lambda c: prop_trans_oversmooth(c.with_room, c.attention, **c.tau | c.source)
    ),
    "eqn-energy-graph": Entry("graph", lambda c: eqn_energy_graph(c.z, c.graph, c.diffusivity, **c.tau)),
}


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
    states = double(z)
    case = Case(
        z=functional.normalize(states, dim=1) if normalise else states,
        static=GraphCoupling(graph, "raw") if isinstance(graph, Graph) else graph,
        graph=graph if isinstance(graph, Graph) else None,
        diffusivity=diffusivity,
        step_size=step_size,
        steps=steps,
        source_weight=source_weight,
    )
    available = {"states"} | {name for name in ("static", "graph") if getattr(case, name) is not None}
    return [entry.run(case) for entry in CERTIFICATES.values() if entry.needs in available]


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
