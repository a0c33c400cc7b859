"""Systems made for graphs whose neighbours differ."""

from __future__ import annotations

from difformer.zoo.catalogue.info import ModelInfo

SYSTEMS: tuple[ModelInfo, ...] = ()
