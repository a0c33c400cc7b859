"""What models there are, said without loading torch: the command line lists and checks names from here.

Every model is a class ``(in_channels, hidden_channels, out_channels, *, options…)`` that follows
`difformer.nn.Model`. The catalogue says where it lives and how it reads as energy-constrained diffusion; one file a
group of systems.
"""

from __future__ import annotations

from difformer.zoo.catalogue import basic, encoders, framework, heterophily, latent, observed, transformers
from difformer.zoo.catalogue.info import ALL_KINDS, LATENT, QUADRATIC, ModelInfo

__all__ = ["ALL_KINDS", "LATENT", "MODELS", "QUADRATIC", "ModelInfo"]

_GROUPS = (encoders, basic, observed, latent, transformers, heterophily, framework)

MODELS: dict[str, ModelInfo] = {info.name: info for group in _GROUPS for info in group.SYSTEMS}
