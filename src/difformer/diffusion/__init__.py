"""Energy-constrained diffusion: diffusivities, couplings, dynamics, energies and certificates.

    >>> import torch
    >>> from difformer.diffusion import AllPairAttention, diffuse
    >>> z = torch.nn.functional.normalize(torch.randn(100, 8), dim=1)
    >>> diffuse(z, AllPairAttention("simple"), steps=4, step_size=0.5).shape
    torch.Size([100, 8])

Names are imported on first use, so a model does not load the solvers of scipy.
"""

# ruff: noqa: I001 (one import per module)
from __future__ import annotations

from typing import TYPE_CHECKING

from difformer._lazy import lazy_names
from difformer.diffusivity import DIFFUSIVITIES as DIFFUSIVITIES, Diffusivity as Diffusivity
from difformer.diffusivity import as_diffusivity as as_diffusivity, gaussian as gaussian
from difformer.diffusivity import register_diffusivity as register_diffusivity, softmax as softmax

if TYPE_CHECKING:
    from difformer.diffusion.certificates import Certificate as Certificate, certify as certify
    from difformer.diffusion.counterexamples import COUNTEREXAMPLES as COUNTEREXAMPLES
    from difformer.diffusion.coupling import AllPairAttention as AllPairAttention, Coupling as Coupling
    from difformer.diffusion.coupling import EdgeAttention as EdgeAttention, GraphCoupling as GraphCoupling
    from difformer.diffusion.coupling import Identity as Identity, MatrixCoupling as MatrixCoupling, Mix as Mix
    from difformer.diffusion.coupling import as_coupling as as_coupling
    from difformer.diffusion.dynamics import diffuse as diffuse, solve as solve
    from difformer.diffusion.energy import Energy as Energy, concave_conjugate as concave_conjugate
    from difformer.diffusion.energy import dirichlet_energy as dirichlet_energy, effective_rank as effective_rank
    from difformer.diffusion.energy import mixture as mixture, nonnegative as nonnegative
    from difformer.diffusion.energy import normalised_dirichlet_energy as normalised_dirichlet_energy
    from difformer.diffusion.energy import penalty as penalty, smoothness as smoothness
    from difformer.diffusion.energy import surrogate_energy as surrogate_energy
    from difformer.diffusion.models import propagate_labels as propagate_labels
    from difformer.diffusion.spectrum import Spectrum as Spectrum, convergence_rate as convergence_rate
    from difformer.diffusion.spectrum import laplacian_spectrum as laplacian_spectrum
    from difformer.diffusion.spectrum import stable_step_size as stable_step_size

_names, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "certificates": "Certificate certify",
        "counterexamples": "COUNTEREXAMPLES",
        "coupling": "AllPairAttention Coupling EdgeAttention GraphCoupling Identity MatrixCoupling Mix as_coupling",
        "dynamics": "diffuse solve",
        "energy": "Energy concave_conjugate dirichlet_energy effective_rank mixture nonnegative "
        "normalised_dirichlet_energy penalty smoothness surrogate_energy",
        "models": "propagate_labels",
        "spectrum": "Spectrum convergence_rate laplacian_spectrum stable_step_size",
    },
    modules="pairs",
)

__all__ = sorted(
    [*_names, "DIFFUSIVITIES", "Diffusivity", "as_diffusivity", "gaussian", "register_diffusivity", "softmax"]
)
