# ruff: noqa: I001 (one import per module)
from difformer.zoo.model_catalogue import MODELS as MODELS, ModelInfo as ModelInfo
from difformer.zoo.model_registry import build as build, check_options as check_options, find as find
from difformer.zoo.model_registry import options_of as options_of, register_model as register_model
