"""Certificates: each theorem, proposition and corollary of the paper, in the form that holds, measured on given data.

There is one function per claim. Each returns a `Certificate` with the claim, its condition, whether the data meet it,
and the largest violation measured. `certify` runs them all. `difformer.diffusion.counterexamples` has the claims of the
paper that do not hold.
"""

from difformer.diffusion.certificates.certificate import Certificate
from difformer.diffusion.certificates.checklist import CERTIFICATES, certificate_summary, certificate_table, certify
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
    component_means,
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
