"""Systems that find the graph they pass messages along."""

from __future__ import annotations

from difformer.zoo.catalogue.info import ModelInfo

SYSTEMS: tuple[ModelInfo, ...] = ()
