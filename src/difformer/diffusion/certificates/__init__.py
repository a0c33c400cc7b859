"""Certificates: each theorem, proposition and corollary of the paper, in the form that holds, measured on given data.

One function a claim; each returns a `Certificate` with the claim, its condition, whether the data meet it, and the
largest violation measured. `certify` runs them all. What the paper claims and what is not so stands in
`difformer.diffusion.counterexamples`.
"""

from difformer.diffusion.certificates.attention import coro_main, prop_energy, thm_main, thm_main_definite
from difformer.diffusion.certificates.certificate import Certificate
from difformer.diffusion.certificates.extensions import (
    activation_contracts,
    eqn_energy_graph,
    prop_feattrans,
    prop_trans_oversmooth,
)
from difformer.diffusion.certificates.registry import CERTIFICATES, certificate_summary, certificate_table, certify
from difformer.diffusion.certificates.source import prop_convergence, prop_convergence_step, source_drift, source_limit
from difformer.diffusion.certificates.static import (
    component_means,
    cora_conv,
    corollary_gcn_cont,
    example_gcn,
    prop_bound,
    thm_gcn,
    thm_gcn_step,
)

__all__ = [
    "CERTIFICATES",
    "Certificate",
    "activation_contracts",
    "certificate_summary",
    "certificate_table",
    "certify",
    "component_means",
    "cora_conv",
    "coro_main",
    "corollary_gcn_cont",
    "eqn_energy_graph",
    "example_gcn",
    "prop_bound",
    "prop_convergence",
    "prop_convergence_step",
    "prop_energy",
    "prop_feattrans",
    "prop_trans_oversmooth",
    "source_drift",
    "source_limit",
    "thm_gcn",
    "thm_gcn_step",
    "thm_main",
    "thm_main_definite",
]
