"""Energy-constrained diffusion: diffusivities, couplings, dynamics, energies and certificates.

    >>> import torch
    >>> from difformer.diffusion import AllPairAttention, diffuse
    >>> z = torch.nn.functional.normalize(torch.randn(100, 8), dim=1)
    >>> diffuse(z, AllPairAttention("simple"), steps=4, step_size=0.5).shape
    torch.Size([100, 8])

Names are imported on first use, so a model does not load the solvers of scipy.
"""

from __future__ import annotations

from difformer._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
