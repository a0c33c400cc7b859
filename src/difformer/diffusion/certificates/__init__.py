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
from difformer.errors import UserError
from difformer.graph import Graph


@dataclass(frozen=True)
class Case:
    """Data and settings for certificates; those of constant couplings use the largest step their theorem allows."""

    z: Tensor
    static: Coupling | None
    graph: Graph | None
    diffusivity: str | Diffusivity
    step_size: float
    steps: int
    source_weight: float

    @property
    def attention(self) -> AllPairAttention:
        return AllPairAttention(self.diffusivity)

    @property
    def with_room(self) -> Tensor:
        """States scaled so that a source keeps them in the unit ball."""
        return self.z / (1 + self.steps * self.step_size * self.source_weight)

    def transform(self, z: Tensor) -> Tensor:
        """A linear map of norm one, as the feature transformation."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(z.shape[1], z.shape[1], generator=generator, dtype=z.dtype).to(z.device)
        return z @ (weight / torch.linalg.matrix_norm(weight, 2))


@dataclass(frozen=True)
class Entry:
    """A certificate, with the fields of a case that it takes by position and by name."""

    function: Callable[..., Certificate]
    fields: tuple[str, ...]
    options: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """``"static"`` (a constant coupling), ``"graph"`` (an observed graph) or ``"states"`` (states only)."""
        return next((name for name in ("static", "graph") if name in self.fields), "states")

    def run(self, case: Case) -> Certificate:
        options = {name: getattr(case, name) for name in self.options}
        return self.function(*(getattr(case, name) for name in self.fields), **options)


_STATIC, _ATTENTION = ("z", "static"), ("z", "attention")
_STEPS, _TAU = ("steps",), ("step_size", "steps")
_SOURCE = ("steps", "source_weight")

CERTIFICATES: dict[str, Entry] = {
    "thm-gcn": Entry(thm_gcn, _STATIC, _STEPS),
    "thm-gcn (one step)": Entry(thm_gcn_step, _STATIC, _STEPS),
    "prop-bound": Entry(prop_bound, _STATIC, _STEPS),
    "cora-conv": Entry(cora_conv, _STATIC, _STEPS),
    "corollary-gcn-cont": Entry(corollary_gcn_cont, _STATIC),
    "exa-gcn": Entry(example_gcn, ("z", "graph"), _STEPS),
    "prop-convergence": Entry(prop_convergence, _STATIC, _SOURCE),
    "prop-convergence (one step)": Entry(prop_convergence_step, _STATIC, _SOURCE),
    "prop-convergence (drift)": Entry(source_drift, _STATIC, _SOURCE),
    "prop-convergence (limit)": Entry(source_limit, _STATIC, _SOURCE),
    "prop-energy": Entry(prop_energy, ("z", "diffusivity")),
    "thm-main": Entry(thm_main, _ATTENTION, _TAU),
    "thm-main (definite)": Entry(thm_main_definite, _ATTENTION, _TAU),
    "coro-main": Entry(coro_main, _ATTENTION),
    "prop-feattrans": Entry(prop_feattrans, (*_ATTENTION, "transform"), _TAU),
    "prop-feattrans (activation)": Entry(activation_contracts, ("z", "diffusivity")),
    "prop-trans-oversmooth": Entry(prop_trans_oversmooth, ("with_room", "attention"), (*_TAU, "source_weight")),
    "eqn-energy-graph": Entry(eqn_energy_graph, ("z", "graph", "diffusivity"), _TAU),
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
    only: Iterable[str] | None = None,
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
        only: Names from `CERTIFICATES`; by default all.
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
    names = list(CERTIFICATES if only is None else only)
    unknown = [name for name in names if name not in CERTIFICATES]
    if unknown:
        raise UserError(f"unknown certificates {unknown}; known: {', '.join(CERTIFICATES)}")
    available = {"states"} | {name for name in ("static", "graph") if getattr(case, name) is not None}
    return [CERTIFICATES[name].run(case) for name in names if CERTIFICATES[name].needs in available]


def certificate_summary(certificates: Iterable[Certificate]) -> str:
    """One sentence with the counts of proven statements, statements without a proof, and those not covered."""
    found = list(certificates)
    covered = [one for one in found if one.condition_met]
    proven, open_ = ([one for one in covered if one.proved is kind] for kind in (True, False))
    parts = [
        f"{sum(one.holds for one in proven)} of {len(proven)} proven statements hold"
        if proven
        else "No proven statement was checked"
    ]
    measured = sum(one.holds for one in open_)
    if measured:
        parts.append(f"{measured} {'is' if measured == 1 else 'are'} measured only, without a proof")
    if failed := len(open_) - measured:
        parts.append(
            f"{failed} of {len(open_)} statements without a proof {'does' if failed == 1 else 'do'} not hold here"
        )
    if missed := len(found) - len(covered):
        parts.append(f"for {missed} the condition is not met")
    return "; ".join(parts) + "."
