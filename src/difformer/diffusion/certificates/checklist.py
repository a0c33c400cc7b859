"""All certificates by name, and a run of all of them on given data.

>>> for certificate in certify(z, graph, diffusivity="simple"):
...     print(certificate.name, certificate.verdict)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from difformer.diffusion.certificates import exchange_theorems as exchange
from difformer.diffusion.certificates import matrix_theorems as matrix
from difformer.diffusion.certificates.certificate import Certificate, double
from difformer.diffusion.coupling import AllPairAttention, Coupling, GraphCoupling
from difformer.diffusivity import Diffusivity
from difformer.errors import UserError
from difformer.graph import Graph


@dataclass(frozen=True)
class Case:
    """Data and settings that a certificate is run on; constant couplings take the largest step their theorem allows."""

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
        """States scaled so that a source cannot carry them out of the unit ball."""
        return self.z / (1 + self.steps * self.step_size * self.source_weight)

    def transform(self, z: Tensor) -> Tensor:
        """A linear map that makes no vector longer: what a feature transformation is tried with."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(z.shape[1], z.shape[1], generator=generator, dtype=z.dtype).to(z.device)
        return z @ (weight / torch.linalg.matrix_norm(weight, 2))


@dataclass(frozen=True)
class Entry:
    """A certificate, the fields of a case that it takes in order, and those that it takes by name."""

    function: Callable[..., Certificate]
    fields: tuple[str, ...]
    options: tuple[str, ...] = ()

    @property
    def needs(self) -> str:
        """``"static"`` (a constant coupling), ``"graph"`` (an observed graph) or ``"states"`` (nothing more)."""
        return next((name for name in ("static", "graph") if name in self.fields), "states")

    def fits(self, case: Case) -> bool:
        return self.needs == "states" or getattr(case, self.needs) is not None

    def run(self, case: Case) -> Certificate:
        options = {name: getattr(case, name) for name in self.options}
        return self.function(*(getattr(case, name) for name in self.fields), **options)


_STATIC, _ATTENTION = ("z", "static"), ("z", "attention")
_STEPS, _TAU = ("steps",), ("step_size", "steps")
_SOURCE = ("steps", "source_weight")

CERTIFICATES: dict[str, Entry] = {
    "thm-gcn": Entry(matrix.thm_gcn, _STATIC, _STEPS),
    "thm-gcn (one step)": Entry(matrix.thm_gcn_step, _STATIC, _STEPS),
    "prop-bound": Entry(matrix.prop_bound, _STATIC, _STEPS),
    "cora-conv": Entry(matrix.cora_conv, _STATIC, _STEPS),
    "corollary-gcn-cont": Entry(matrix.corollary_gcn_cont, _STATIC),
    "exa-gcn": Entry(matrix.example_gcn, ("z", "graph"), _STEPS),
    "prop-convergence": Entry(matrix.prop_convergence, _STATIC, _SOURCE),
    "prop-convergence (one step)": Entry(matrix.prop_convergence_step, _STATIC, _SOURCE),
    "prop-convergence (drift)": Entry(matrix.source_drift, _STATIC, _SOURCE),
    "prop-convergence (limit)": Entry(matrix.source_limit, _STATIC, _SOURCE),
    "prop-energy": Entry(exchange.prop_energy, ("z", "diffusivity")),
    "thm-main": Entry(exchange.thm_main, _ATTENTION, _TAU),
    "thm-main (definite)": Entry(exchange.thm_main_definite, _ATTENTION, _TAU),
    "coro-main": Entry(exchange.coro_main, _ATTENTION),
    "prop-feattrans": Entry(exchange.prop_feattrans, (*_ATTENTION, "transform"), _TAU),
    "prop-feattrans (activation)": Entry(exchange.activation_contracts, ("z", "diffusivity")),
    "prop-trans-oversmooth": Entry(
        exchange.prop_trans_oversmooth, ("with_room", "attention"), (*_TAU, "source_weight")
    ),
    "eqn-energy-graph": Entry(exchange.eqn_energy_graph, ("z", "graph", "diffusivity"), _TAU),
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
    """Runs the certificates that the data allow.

    Args:
        z: States ``[N, d]``.
        graph: A graph, or a constant coupling; without one, the certificates for constant couplings are left out.
        diffusivity: Of the attention: a name or a `Diffusivity`.
        step_size: τ of the attention.
        steps: How many steps are taken.
        source_weight: β.
        normalise: Whether states are first put on the unit sphere, as a network does; otherwise they are taken as they
            are, and a certificate whose distances leave [0, 4] says that it is not covered.
        only: Names from `CERTIFICATES`; all where it is left out.
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
    return [CERTIFICATES[name].run(case) for name in names if CERTIFICATES[name].fits(case)]


def certificate_table(certificates: Iterable[Certificate]) -> str:
    """Certificates as lines of text: name, verdict, violation, claim."""
    rows = [("certificate", "verdict", "violation", "claim")]
    rows += [(c.name, c.verdict, f"{c.violation:.1e}", c.claim) for c in certificates]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        "  ".join([*(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=False)), row[3]]) for row in rows
    )


def certificate_summary(certificates: Iterable[Certificate]) -> str:
    """One sentence with proven statements, statements without a proof and those not covered, each counted apart."""
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
