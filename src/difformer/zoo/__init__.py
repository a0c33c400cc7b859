"""The other models, one file per rival, behind one protocol; `model_catalogue` lists them without loading torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer._lazy import lazy_names
from difformer.zoo.model_catalogue import MODELS, ModelInfo

if TYPE_CHECKING:
    from difformer.zoo.model_registry import build, check_options, find, options_of, register_model

_, __getattr__, __dir__ = lazy_names(__name__, {"model_registry": "build check_options find options_of register_model"})
__all__ = ["MODELS", "ModelInfo", "build", "check_options", "find", "options_of", "register_model"]
