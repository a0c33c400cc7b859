"""Energy-constrained diffusion: diffusivities, couplings, dynamics, energies and certificates.

Names are resolved on first use: `difformer.attention` needs the diffusivities alone, and the couplings need
`difformer.attention`.
"""

from difformer.diffusion.diffusivity import DIFFUSIVITIES, Diffusivity, as_diffusivity, gaussian, softmax

__all__ = ["DIFFUSIVITIES", "Diffusivity", "as_diffusivity", "gaussian", "softmax"]
