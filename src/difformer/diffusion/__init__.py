"""Energy-constrained diffusion: diffusivities, couplings, dynamics, energies and certificates.

    >>> import torch
    >>> from difformer.diffusion import AllPairAttention, diffuse
    >>> z = torch.nn.functional.normalize(torch.randn(100, 8), dim=1)
    >>> diffuse(z, AllPairAttention("simple"), steps=4, step_size=0.5).shape
    torch.Size([100, 8])

Names are resolved on first use: `difformer.attention` needs the diffusivities alone, and the couplings need
`difformer.attention`.
"""

# ruff: noqa: F401
from __future__ import annotations

from typing import TYPE_CHECKING

from difformer._lazy import lazy_names
from difformer.diffusivity import (
    DIFFUSIVITIES,
    Diffusivity,
    as_diffusivity,
    gaussian,
    register_diffusivity,
    softmax,
)

if TYPE_CHECKING:
    from difformer.diffusion.certificates import CERTIFICATES, Certificate, certify
    from difformer.diffusion.counterexamples import COUNTEREXAMPLES
    from difformer.diffusion.coupling import (
        COUPLINGS,
        AllPairAttention,
        Coupling,
        EdgeAttention,
        GraphCoupling,
        Identity,
        MatrixCoupling,
        Mix,
        as_coupling,
        make_coupling,
    )
    from difformer.diffusion.dynamics import Diffused, diffuse, solve
    from difformer.diffusion.energy import (
        Energy,
        dirichlet_energy,
        effective_rank,
        mixture,
        nonnegative,
        normalised_dirichlet_energy,
        penalty,
        smoothness,
    )
    from difformer.diffusion.label_propagation import propagate_labels
    from difformer.diffusion.models import MODELS
    from difformer.diffusion.spectrum import Spectrum, convergence_rate, laplacian_spectrum, stable_step_size
    from difformer.diffusion.surrogate import concave_conjugate, surrogate_energy

_names, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "certificates": "CERTIFICATES Certificate certify",
        "counterexamples": "COUNTEREXAMPLES",
        "coupling": "COUPLINGS AllPairAttention Coupling EdgeAttention GraphCoupling Identity MatrixCoupling Mix "
        "as_coupling make_coupling",
        "dynamics": "Diffused diffuse solve",
        "energy": "Energy dirichlet_energy effective_rank mixture nonnegative normalised_dirichlet_energy "
        "penalty smoothness",
        "label_propagation": "propagate_labels",
        "models": "MODELS",
        "spectrum": "Spectrum convergence_rate laplacian_spectrum stable_step_size",
        "surrogate": "concave_conjugate surrogate_energy",
    },
    modules=("laplacian", "pairs"),
)

__all__ = sorted(
    [*_names, "DIFFUSIVITIES", "Diffusivity", "as_diffusivity", "gaussian", "register_diffusivity", "softmax"]
)
