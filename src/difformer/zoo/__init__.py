"""The other models, one file per rival, behind one protocol; `model_catalogue` lists them without loading torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from difformer.zoo.model_catalogue import MODELS, ModelInfo

if TYPE_CHECKING:
    from difformer.zoo.model_registry import build, check_options, find, options_of, register_model

__all__ = ["MODELS", "ModelInfo", "build", "check_options", "find", "options_of", "register_model"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("difformer.zoo.model_registry"), name)
    raise AttributeError(f"module 'difformer.zoo' has no attribute {name!r}")
