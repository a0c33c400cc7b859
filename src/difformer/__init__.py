"""Representation learning by energy-constrained diffusion over observed and latent structure."""

__version__ = "0.1.0"
