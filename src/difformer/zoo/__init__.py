"""The other models, one file per rival, behind one protocol; `model_catalogue` lists them without loading torch."""

from __future__ import annotations

from difformer._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
