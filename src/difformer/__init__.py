"""Representation learning by energy-constrained diffusion over observed and latent structure.

Names are resolved on first use, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer._lazy import lazy_names
from difformer._version import __version__ as __version__

if TYPE_CHECKING:
    from difformer.data import register_dataset as register_dataset
    from difformer.diffusion import Diffusivity as Diffusivity
    from difformer.diffusion import register_diffusivity as register_diffusivity
    from difformer.estimators import DIFFormerClassifier as DIFFormerClassifier
    from difformer.estimators import DIFFormerRegressor as DIFFormerRegressor
    from difformer.estimators import DIFFormerTransformer as DIFFormerTransformer
    from difformer.graph import Graph as Graph
    from difformer.nn import DIFFormer as DIFFormer
    from difformer.nn import DIFFormerConv as DIFFormerConv
    from difformer.nn import GraphLevel as GraphLevel
    from difformer.zoo import register_model as register_model

_names, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "data": "register_dataset",
        "diffusion": "Diffusivity register_diffusivity",
        "estimators": "DIFFormerClassifier DIFFormerRegressor DIFFormerTransformer",
        "graph": "Graph",
        "nn": "DIFFormer DIFFormerConv GraphLevel",
        "zoo": "register_model",
    },
    modules="attention experiments report sparse training",
)
__all__ = [*_names, "__version__"]
