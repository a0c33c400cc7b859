"""Modules whose work kernels may do in their place: those of which nobody would notice that they were not called."""

from __future__ import annotations

from torch import nn

from difformer.nn.layer_norm import LayerNorm


def is_heard(module: nn.Module) -> bool:
    """Whether somebody listens to a call of the module, or changes its weights before one, as pruning does."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def is_plain_map(layer: nn.Module) -> bool:
    """A linear map with a bias; a subclass may do anything."""
    return type(layer) is nn.Linear and layer.bias is not None and not is_heard(layer)


def is_plain_norm(norm: nn.Module) -> bool:
    """No norm, or a LayerNorm with weight and bias."""
    known = type(norm) is nn.Identity or (type(norm) is LayerNorm and norm.weight is not None and norm.bias is not None)
    return known and not is_heard(norm)
