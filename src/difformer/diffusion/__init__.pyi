# ruff: noqa: I001 (one import per module)
from . import pairs as pairs
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
from difformer.diffusion.energy import normalised_dirichlet_energy as normalised_dirichlet_energy, penalty as penalty
from difformer.diffusion.energy import smoothness as smoothness, surrogate_energy as surrogate_energy
from difformer.diffusion.models import propagate_labels as propagate_labels
from difformer.diffusion.spectrum import Spectrum as Spectrum, convergence_rate as convergence_rate
from difformer.diffusion.spectrum import laplacian_spectrum as laplacian_spectrum
from difformer.diffusion.spectrum import stable_step_size as stable_step_size
from difformer.diffusivity import DIFFUSIVITIES as DIFFUSIVITIES, Diffusivity as Diffusivity
from difformer.diffusivity import as_diffusivity as as_diffusivity, gaussian as gaussian
from difformer.diffusivity import register_diffusivity as register_diffusivity, softmax as softmax
