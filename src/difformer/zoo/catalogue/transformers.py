"""Systems that mix all-pair attention with an observed graph."""

from __future__ import annotations

from difformer.zoo.catalogue.info import ModelInfo

SYSTEMS: tuple[ModelInfo, ...] = ()
