# ruff: noqa: I001 (one import per module)
from . import (
    attention as attention,
    experiments as experiments,
    report as report,
    sparse as sparse,
    training as training,
)
from difformer._version import __version__ as __version__
from difformer.data import register_dataset as register_dataset
from difformer.diffusion import Diffusivity as Diffusivity, register_diffusivity as register_diffusivity
from difformer.estimators import DIFFormerClassifier as DIFFormerClassifier, DIFFormerRegressor as DIFFormerRegressor
from difformer.estimators import DIFFormerTransformer as DIFFormerTransformer
from difformer.graph import Graph as Graph
from difformer.nn import DIFFormer as DIFFormer, DIFFormerConv as DIFFormerConv, GraphLevel as GraphLevel
from difformer.zoo import register_model as register_model
