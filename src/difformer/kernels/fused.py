"""When a fused kernel replaces the formula of `difformer.nn.conv`, and which.

`why_not_fused` decides. A kernel reads weights and states and calls no module. So it replaces only the layer as it is
written in this package, made of plain `nn.Linear` maps, on plain tensors. A layer or map that was replaced, subclassed,
hooked, pruned, parametrised, quantised or wrapped takes the plain formula, and so does everything while a program is
traced, compiled or transformed.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from difformer._compat import has_global_hooks, is_forward_mode, is_traced
from difformer.kernels import MOST_PAIRS, Plan, Some, Tail, Weights
from difformer.kernels.cpu.layer import fused_layer as layer_in_c
from difformer.kernels.cpu.passes import FEWEST_ELEMENTS, serves
from difformer.kernels.gpu_layer import GPULayer
from difformer.kernels.rows import LayerNorm, RowTail, in_kernels, plain
from difformer.shortcut import is_eager
from difformer.sparse import CSR, SparseMatrix

# A DIFFormerConv, and a Structure or another context; their module imports this one.
Layer = Any
Context = Any

TRACED = "the program is compiled, exported or traced"
# Rows that are not aligned to 16 bytes are read by a GPU four bytes at a time, which is tens of times slower.
ALIGNED_CHANNELS, FEWEST_ROWS = 8, 4096
_METHODS = {"forward", "latent", "mixed", "values", "queries_and_keys", "_queries_and_keys"}


def is_touched(module: nn.Module) -> bool:
    """Whether a call of the module may do more than its class defines: hooks, pruning, a method set on the instance."""
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return True
    # Older versions of torch cannot compile `vars` of an instance.
    return not torch.compiler.is_compiling() and not _METHODS.isdisjoint(vars(module))


def is_plain_map(layer: nn.Module | None) -> bool:
    """Whether this is `nn.Linear` with a bias and nothing else."""
    if type(layer) is not nn.Linear or is_touched(layer):
        return False
    return all(isinstance(layer._parameters.get(name), nn.Parameter) for name in ("weight", "bias"))


def is_plain_norm(norm: nn.Module) -> bool:
    """Whether this is no norm, or a LayerNorm with weight and bias."""
    kind, own = type(norm), norm._parameters
    known = kind is nn.Identity or (kind is LayerNorm and own.get("weight") is not None and own.get("bias") is not None)
    return known and not is_touched(norm)


def why_not_plain(conv: nn.Module) -> str | None:
    """Why no kernel may replace the layer; None if one may."""
    if torch.compiler.is_compiling() or is_traced():
        return TRACED
    if "written_here" not in vars(type(conv)):
        return f"the layer is of class {type(conv).__name__}, not DIFFormerConv itself"
    if is_touched(conv):
        return "the layer has hooks or a method of its own"
    parts = conv._modules
    for name in ("query", "key", "value"):
        part = parts.get(name)
        if part is not None and not is_plain_map(part):
            return f"{name} is not a plain nn.Linear with a bias: subclassed, hooked, pruned, parametrised or wrapped"
    if has_global_hooks():
        return "a global module hook is registered"
    return None


def _is_default(context: Context) -> bool:
    """Whether a context is a `Structure` whose rows count once each."""
    return "written_here" in vars(type(context)) and context.weight is None


def why_not_fused(conv: Layer, z: Tensor, structure: Context) -> str | None:
    """Why the formula of `difformer.nn.conv` computes a step; None where a fused kernel does."""
    reason = why_not_plain(conv)
    if reason is not None:
        return reason
    if conv.edge_mask() is not None:
        return "an explainer masks the edges"
    if not _is_default(structure):
        return "a context sums over the senders, or they have weights"
    if conv.form not in ("simple", "sigmoid"):
        return f"diffusivity {None if conv.diffusivity is None else conv.diffusivity.name!r} has no kernel"
    if conv.num_heads != 1:
        return f"there are {conv.num_heads} heads"
    if conv.backend != "auto" and (conv.form, conv.backend) != ("simple", "linear"):
        return f"backend {conv.backend!r} was requested"
    if conv.form == "sigmoid" and (conv.qk_norm != "row" or z.shape[0] ** 2 > MOST_PAIRS):
        return "diffusivity 'sigmoid' is fused only for few rows and queries and keys of unit length"
    if structure.segments is not None:
        return "the rows are a batch of graphs"
    if conv.qk_norm != "row" and conv.value is not None:
        return f"qk_norm {conv.qk_norm!r} with transform goes by the Gram matrix of the states"
    if any(isinstance(given, Tensor) for given in (conv.step_size, conv.source_weight, conv.graph_weight)):
        return "a stack of runs has step sizes that are tensors"
    if conv.graph_weight == 1:
        return "the latent term has weight 0"
    if structure.graph is not None and not structure.graph.is_kept:
        return "edge weights are trained"
    if z.dtype != torch.float32:
        return f"precision is {z.dtype}"
    if not torch.is_autocast_enabled(z.device.type):
        return _why_no_kernel(conv, z, structure)
    # A few products in float32 take less time than the many passes of the formula in mixed precision.
    with torch.autocast(z.device.type, enabled=False):
        return _why_no_kernel(conv, z, structure)


def _why_no_kernel(conv: Layer, z: Tensor, structure: Context) -> str | None:
    """Why no kernel takes these tensors, on this device."""
    if not is_eager(z, *_parameters(conv)) or is_forward_mode(z):
        return "the program is inside torch.func, or uses subclasses of Tensor"
    if conv.qk_norm == "row" and _on_gpu(conv, z):
        return None
    if conv.form == "sigmoid":
        return "diffusivity 'sigmoid' is fused on a GPU only"
    if _in_c(conv, z, _terms(conv, z, structure)[1]):
        return None
    size = _size_in_c(z.shape[0], max(conv.in_channels, conv.out_channels))
    return f"kernels take float32: on a GPU with Triton, or on a CPU with a compiler and diffusivity 'simple', {size}"


def why_not_gram(conv: Layer, z: Tensor, structure: Context) -> str | None:
    """Why all pairs are not summed from the Gram matrix of the states, see `kernels.gram`; None where they are."""
    if conv.form != "simple" or conv.qk_norm == "row" or conv.backend not in ("auto", "linear"):
        return "queries and keys are not linear in the states"
    if not _is_default(structure) or structure.segments is not None:
        return "the rows are not one graph, each counted once"
    mixed = torch.is_autocast_enabled(z.device.type) and torch.get_autocast_dtype(z.device.type) == torch.float16
    if mixed or z.dtype == torch.float16:
        return "sums of squares over many rows exceed the range of float16"
    return why_not_plain(conv)


def why_not_fused_input(layer: nn.Module, norm: nn.Module, x: Tensor | SparseMatrix) -> str | None:
    """Why the input layer is computed operation by operation; None where a kernel in C does it."""
    if torch.compiler.is_compiling() or is_traced():
        return TRACED
    if not isinstance(layer, nn.Linear) or not is_plain_map(layer) or not is_plain_norm(norm):
        return "the map or the norm is not plain: subclassed, hooked, pruned, parametrised or wrapped"
    values = x.rows.value if isinstance(x, SparseMatrix) else x
    if isinstance(x, SparseMatrix) and values.requires_grad:
        return "gradients of sparse features are asked for"
    given = (values, layer.weight, layer.bias, *norm.parameters())
    if serves(x.shape[0], layer.out_features, *given):
        return None
    return f"the kernels in C take float32 on a CPU with a compiler, {_size_in_c(x.shape[0], layer.out_features)}"


def _size_in_c(rows: int, channels: int) -> str:
    return f"at least {FEWEST_ELEMENTS:,} numbers (rows × channels), here {rows * channels:,}"


def fused_layer(
    conv: Layer, z: Tensor, structure: Context, source: Some, norm: nn.Module | None = None,
    *, relu: bool = False, dropout: Any = None, low: bool = False,
) -> Some:  # fmt: skip
    """Z⁺ of a layer for which `why_not_fused` found no reason, with what follows it where `norm` is given.

    It is computed in the precision of `z`, also under autocast; in bfloat16, large graphs gather rows of that type.

    Args:
        conv: The layer.
        z, structure, source: As in `DIFFormerConv.forward`.
        norm: What follows first: a LayerNorm, or `nn.Identity`; None for the step alone.
        relu: Whether to apply ReLU; otherwise no activation.
        dropout: How dropout is made: `difformer.nn.dropout.LayerDropout`.
        low: Whether this is under autocast in bfloat16.

    Returns:
        None where norm, activation and dropout have to follow one after the other.
    """
    if torch.is_autocast_enabled(z.device.type):
        low = torch.get_autocast_dtype(z.device.type) == torch.bfloat16
        with torch.autocast(z.device.type, enabled=False):
            return fused_layer(conv, z, structure, source, norm, relu=relu, dropout=dropout, low=low)
    if norm is not None and not is_plain_norm(norm):
        return None
    weights, matrix = _terms(conv, z, structure)
    found = norm if isinstance(norm, LayerNorm) else None
    scales: tuple[Any, ...] = () if found is None else (found._parameters["weight"], found._parameters["bias"])
    parts, parameters = conv._modules, _parameters(conv)
    options = (conv.form == "sigmoid", parts.get("key") is None, parts.get("value") is not None, conv.qk_norm)
    tail = Tail(None if found is None else found.eps, relu)
    source = source if conv.source_weight else None
    others = scales if source is None else (*scales, source)
    if _in_c(conv, z, matrix, *others):
        key = None if dropout is None else dropout.key()
        edges = _identity(z.shape[0]) if matrix is None and weights.observed else matrix
        plan = Plan(weights, edges, tail._replace(mask=key), *options)
        out = layer_in_c(z, source, found, plan, parameters)
        return out if dropout is None or key is not None else dropout.apply(out)
    if conv.qk_norm != "row" or not is_eager(*others) or not _on_gpu(conv, z, *scales):
        return None
    if source is not None and (source.dtype is not z.dtype or source.device != z.device):
        return None
    mask, rate = (None, 0.0) if dropout is None else dropout.mask(z)
    plan = Plan(weights, matrix, tail._replace(rate=rate), *options, low)
    return GPULayer.apply(plan, plain(z), source if source is None else plain(source), mask, *scales, *parameters)


def fused_tail(norm: nn.Module, x: Tensor, *, relu: bool, dropout: Any) -> Some:
    """Norm, ReLU and dropout of ``x [N, d]`` in one pass, as `fused_layer` has them; None where no kernel does it."""
    if not is_eager(x) or is_traced() or type(norm) is not LayerNorm or not is_plain_norm(norm):
        return None
    scales = (norm.weight, norm.bias)
    known = x.dim() == 2 and x.shape[0] > 0 and x.dtype in (torch.float32, torch.bfloat16)
    if not known or not in_kernels(x.shape[1], *scales) or x.device != norm.weight.device or not is_eager(*scales):
        return None
    if has_global_hooks() or is_forward_mode(x):
        return None
    like = x if x.dtype == torch.float32 else x.float()  # what is dropped is the norm's result
    return RowTail.apply(x, *scales, norm.eps, relu, *dropout.mask(like))


def _on_gpu(conv: Layer, z: Tensor, *others: Tensor) -> bool:
    """Whether the row kernels of a GPU take these tensors."""
    return z.shape[0] > 0 and in_kernels(conv.out_channels, z, *others, *_parameters(conv))


def _terms(conv: Layer, z: Tensor, structure: Context) -> tuple[Weights, SparseMatrix | None]:
    """Weights of the four terms of a step, and the graph's matrix where there is one."""
    matrix = None if structure.graph is None else structure.graph.matrix(conv.graph_norm, z.dtype)
    tau, kept = (conv.step_size, 1 - conv.step_size) if conv.residual else (1.0, 0.0)
    latent, observed = 1.0, 0.0 if matrix is None else 1.0
    if conv.graph_weight is not None:  # without edges the values themselves are mixed in
        latent, observed = 1 - conv.graph_weight, conv.graph_weight
    found = (kept, tau * latent, tau * observed, conv.step_size * conv.source_weight)
    return Weights(*map(float, found)), matrix


@functools.lru_cache(maxsize=8)
def _identity(n: int) -> SparseMatrix:
    """The graph in which each node receives from itself, for the kernels in C."""
    with torch.inference_mode(False):
        index = torch.arange(n + 1, dtype=torch.int32)
        rows = CSR(index, index[:-1].clone(), torch.ones(n))
        return SparseMatrix((n, n), rows, rows)


def _in_c(conv: Layer, z: Tensor, matrix: SparseMatrix | None, *others: Tensor) -> bool:
    """Whether the kernels in C take these tensors: float32 on a CPU, enough rows, a compiler at hand."""
    known = matrix is None or matrix.rows.crow.dtype == torch.int32
    return (
        conv.form == "simple"
        and z.device.type == "cpu"
        and known
        and serves(z.shape[0], max(conv.in_channels, conv.out_channels), z, *others, *_parameters(conv))
    )


def _parameters(conv: Layer) -> tuple[Tensor, ...]:
    """Weight and bias of queries, keys and values, all of them plain maps."""
    maps = (conv._modules.get(name) for name in ("query", "key", "value"))
    return tuple(found._parameters[name] for found in maps if found is not None for name in ("weight", "bias"))


def linear(layer: nn.Linear, x: Tensor | SparseMatrix) -> Tensor:
    """``x Wᵀ + b`` for features ``[N, d]``, dense, a torch sparse tensor or a `SparseMatrix`."""
    if isinstance(x, Tensor) and x.layout != torch.strided:
        x = SparseMatrix.of(x)
    plain = type(layer) is nn.Linear and not is_touched(layer)
    if isinstance(x, SparseMatrix):
        if not plain:  # a replaced, hooked or wrapped module is called, with the dense input that it expects
            return layer(x.to_dense())
        product = x @ layer.weight.T
        return product if layer.bias is None else product + layer.bias
    missing = -x.shape[-1] % ALIGNED_CHANNELS
    pays = missing and x.is_cuda and x.shape[0] >= FEWEST_ROWS and plain
    # Plain matrices of one type; mixed precision and compilers choose for themselves.
    same = pays and x.dim() == 2 and x.dtype == layer.weight.dtype and is_eager(x, layer.weight)
    if same and not torch.is_autocast_enabled("cuda"):
        return _Padded.apply(x, layer.weight, layer.bias, missing)
    return layer(x)


class _Padded(torch.autograd.Function):
    """The map with `missing` channels of zeros appended; features are padded again backward, not kept twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, missing: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.missing, ctx.bias = missing, bias is not None
        return functional.linear(functional.pad(x, (0, missing)), functional.pad(weight, (0, missing)), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_grad = grad @ weight if ctx.needs_input_grad[0] else None
        weight_grad = (grad.T @ functional.pad(x, (0, ctx.missing)))[:, : x.shape[1]]
        return x_grad, weight_grad, grad.sum(0) if ctx.bias else None, None
