"""Diffusion networks: one for each coupling of `difformer.diffusion`."""

from __future__ import annotations

from difformer.zoo.catalogue.info import ModelInfo

SYSTEMS: tuple[ModelInfo, ...] = ()
