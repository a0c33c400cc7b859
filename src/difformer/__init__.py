"""Representation learning by energy-constrained diffusion over observed and latent structure.

Names are resolved on first use, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

from difformer._lazy import lazy_names
from difformer._version import __version__ as __version__

__all__, __getattr__, __dir__ = lazy_names(__name__)
