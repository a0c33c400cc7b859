"""Representation learning by energy-constrained diffusion over observed and latent structure.

Names are resolved on first use, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from difformer._version import __version__

if TYPE_CHECKING:
    from difformer.data import register_dataset as register_dataset
    from difformer.diffusion import Diffusivity as Diffusivity
    from difformer.estimators import DIFFormerClassifier as DIFFormerClassifier
    from difformer.estimators import DIFFormerRegressor as DIFFormerRegressor
    from difformer.estimators import DIFFormerTransformer as DIFFormerTransformer
    from difformer.graph import Graph as Graph
    from difformer.nn import DIFFormer as DIFFormer
    from difformer.nn import DIFFormerConv as DIFFormerConv
    from difformer.nn import GraphLevel as GraphLevel
    from difformer.zoo import register_model as register_model

_HOME = {
    "DIFFormer": "difformer.nn",
    "DIFFormerConv": "difformer.nn",
    "GraphLevel": "difformer.nn",
    "Graph": "difformer.graph",
    "register_model": "difformer.zoo",
    "register_dataset": "difformer.data",
    "Diffusivity": "difformer.diffusion",
    "DIFFormerClassifier": "difformer.estimators",
    "DIFFormerRegressor": "difformer.estimators",
    "DIFFormerTransformer": "difformer.estimators",
}
_ROOMS = (
    "attention",
    "data",
    "diffusion",
    "estimators",
    "experiments",
    "graph",
    "nn",
    "report",
    "sparse",
    "training",
    "zoo",
)

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"difformer.{name}")
    raise AttributeError(f"module 'difformer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, *_ROOMS])
