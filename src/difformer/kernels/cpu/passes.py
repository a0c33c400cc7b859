"""Calls the kernels: a pass over the rows of tensors with its sums, all pairs of a sigmoid, a product with a graph.

Everything is float32 on the CPU and contiguous; `serves` says whether it is, and `run` checks the memory that it hands
over, since the kernels cannot. Rows of small matrices are padded with zeros to a multiple of `LANES` (`packed`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from difformer import sparse
from difformer._compat import has_global_hooks, is_forward_mode, is_traced, is_watched
from difformer.errors import UserError
from difformer.kernels.cpu.build import find, library
from difformer.shortcut import is_eager
from difformer.sparse import CSR

Pair = tuple[Tensor, Tensor]  # weight and bias of a map

LANES = 16  # as in product.h
BLOCK = 64  # as in product.h
LONGEST = 512  # channels, as in tail.h
FEWEST_ELEMENTS = 1 << 14  # of all rows; below it nothing takes long enough to compile for
FEWEST_ROWS, MOST_CHUNKS = 256, 128  # of a chunk; of all rows
ELEMENTS_A_THREAD = 1 << 16  # waking a thread takes microseconds
FEWEST_CHANNELS = 64  # of a sparse product; with fewer torch is faster
MOST_PARTS = 8  # of the gradient of queries in all pairs; threads beyond find no work

_INTEGERS = ("crow", "col", "numbers")


def _structure(counts: str, arrays: str, numbers: str = "") -> Any:
    """A structure of C by the names of its integers, addresses and numbers, which stand in this order."""
    kinds = ((counts, ctypes.c_int64), (arrays, ctypes.c_void_p), (numbers, ctypes.c_double))
    fields = [(name, kind) for names, kind in kinds for name in names.split()]
    return type("structure", (ctypes.Structure,), {"_fields_": fields})


_Pass = _structure(  # of pass.h
    "rows before after chunk part threads relu drop first key twin",
    "z source grad out kept inverse total x_grad z_grad parts norm norm_bias shift query query_bias query_back "
    "key_map key_bias key_back value value_bias value_back outer outer_back keys values crow col numbers entry",
    "state latent observed from_source count floor eps scale",
)
_Gram = _structure(  # of gram.h
    "channels scaled",
    "outer states query query_bias key key_bias kept to_outer to_keys to_values to_count outer_grad keys_grad "
    "values_grad count_grad square level query_grad query_bias_grad key_grad key_bias_grad",
    "count",
)
_Pairs = _structure(  # of pairs.h
    "rows keys channels values chunks threads", "q k v a inner out total q_grad k_grad v_grad"
)


def serves(rows: int, channels: int, *tensors: Tensor) -> bool:
    """Whether the kernels compute a pass over `rows` with at most `channels` channels; `tensors` are all its inputs.

    This depends on sizes and the machine only, so that equal inputs give equal results. Kernels are not used while a
    model is compiled, exported, traced or transformed (they record no operations), nor with global module hooks (they
    call no modules).
    """
    return (
        is_eager(*tensors)  # first: a compiler would take the sizes for its own
        and channels <= LONGEST
        and rows * channels >= FEWEST_ELEMENTS
        and all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
        and not torch.is_autocast_enabled("cpu")
        and not is_traced()
        and not is_watched()
        and not is_forward_mode(*tensors)
        and not has_global_hooks()
        and library() is not None
    )


def run(name: str, rows: int, before: int, after: int, *, sums: Sequence[int] = (), **given: Any) -> list[Tensor]:
    """One pass by name, see steps.c; returns its sums over all rows, flat, of the sizes `sums`.

    `before` and `after` are the channels before and after the maps; `given` are fields of the structure: tensors, None
    for absent ones, and numbers.
    """
    channels, part = max(before, after), sum(sums)
    chunk = chunk_of(rows, channels)
    chunks = -(-rows // chunk)
    parts = space(max(chunks, 1), part)
    if rows == 0:
        parts.zero_()
    threads = min(torch.get_num_threads(), chunks, 1 + rows * channels // ELEMENTS_A_THREAD) if find().threads else 1
    fields = _Pass(rows=rows, before=before, after=after, chunk=chunk, part=part, threads=max(threads, 1))
    # Sizes of tensors that a caller passes in; tests cover those that this package allocates.
    sizes = dict.fromkeys(("source", "grad", "out"), rows * after) | {"numbers": rows, "crow": rows + 1}
    sizes |= dict.fromkeys(("norm", "norm_bias", "shift"), after)
    if name != "multiply_rows":
        sizes["z"] = rows * before
    for field, value in given.items():
        given[field] = _memory(field, value, sizes.get(field)) if isinstance(value, Tensor) else value
    room = f"{threads} times {10 * BLOCK} rows of {channels} channels"
    call(name, fields, room, parts=parts if part else None, **given)
    return list(parts[0].clone().split(list(sums))) if part else []  # parts of chunks need not be kept


def chunk_of(rows: int, channels: int) -> int:
    """Rows of a chunk, by sizes alone; the sums of all chunks, 2c² numbers each, take no more room than the rows."""
    least = max(FEWEST_ROWS, 2 * channels, -(-rows // MOST_CHUNKS))
    return BLOCK * -(-least // BLOCK)


def space(*shape: int) -> Tensor:
    """An empty tensor for a kernel to write to, independent of torch's default type and device."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _memory(field: str, value: Tensor, size: int | None) -> Tensor:
    """`value` as a kernel may read it; what is written to is contiguous from the beginning."""
    dtype = torch.int32 if field in _INTEGERS else torch.float32
    if value.dtype != dtype or value.device.type != "cpu" or (size is not None and value.numel() != size):
        raise UserError(
            f"{field} has {value.numel()} elements of {value.dtype} on {value.device}, but a kernel expects "
            f"{'' if size is None else f'{size} of '}{dtype} on the CPU; give states, source, graph and the rows of "
            f"dropout_key for as many nodes, on one device"
        )
    return value.resolve_neg().contiguous()


def gram_forward(
    outer: Tensor, states: Tensor, count: int, query: Pair, key: Pair, *, scaled: bool
) -> tuple[list[Tensor], Tensor]:
    """U, u without its last entry, the last row of U, the last entry of u, padded; and what backward needs."""
    d = query[0].shape[0]
    kept = space(6 * (d + 1) * padded(d + 1) + LANES)
    found = space((d + 2) * padded(d) + LANES).split([d * padded(d), padded(d), padded(d), LANES])
    given = dict(zip(("to_outer", "to_keys", "to_values", "to_count"), found, strict=True))
    given |= zip(("query", "query_bias", "key", "key_bias"), (x.contiguous() for x in (*query, *key)), strict=True)
    fields = _Gram(channels=d, scaled=scaled, count=count)
    call("gram_forward", fields, f"{d} channels", outer=outer, states=states, kept=kept, **given)
    return list(found), kept


def gram_backward(
    grads: Sequence[Tensor], kept: Tensor, query: Pair, key: Pair, *, scaled: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Ḡ + Ḡᵀ but for its last row, that row, and gradients of both maps, from those of what `gram_forward` gives."""
    d = query[0].shape[0]
    square, level = space(d, padded(d)), space(padded(d))
    trained = [space(*shape) for shape in ((d, d), (d,), (d, d), (d,))]
    given = dict(zip(("outer_grad", "keys_grad", "values_grad", "count_grad"), grads, strict=True))
    given |= dict(zip(("query_grad", "query_bias_grad", "key_grad", "key_bias_grad"), trained, strict=True))
    fields = _Gram(channels=d, scaled=scaled)
    call("gram_backward", fields, f"{d} channels", kept=kept, square=square, level=level, **given)
    return square, level, trained


def call(name: str, fields: Any, room: str, **given: Any) -> None:
    """Fills in the fields `given`, tensors or numbers, and calls the kernel; `room` is what it needs memory for."""
    for field, value in given.items():
        if value is not None:
            setattr(fields, field, value.data_ptr() if isinstance(value, Tensor) else value)
    if getattr(find().library, f"difformer_{name}")(ctypes.byref(fields)):
        raise MemoryError(f"no memory for {room}")


def padded(channels: int) -> int:
    return -(-channels // LANES) * LANES


def packed(matrix: Tensor) -> Tensor:
    """``[k, n]`` or ``[n]`` as the kernels read it: contiguous, rows padded with zeros."""
    missing = -matrix.shape[-1] % LANES
    return torch.nn.functional.pad(matrix, (0, missing)) if missing else matrix.contiguous()


def takes_pairs(form: str, *rows: Tensor) -> bool:
    """Whether the kernels take all pairs of queries, keys and values ``[P, n, d]``: of the sigmoid diffusivity."""
    some = form == "sigmoid" and rows[1].shape[1] > 0
    return some and serves(rows[0].shape[1], max(x.shape[-1] for x in rows), *rows)


def sum_pairs(queries: Tensor, keys: Tensor, values: Tensor, weighted: Tensor, total: Tensor) -> None:
    """Writes r o to `weighted` ``[P, n, c]`` and r to `total` ``[P, n, 1]``, as in `difformer.attention.tiles`."""
    for q, k, v, o, r in zip(queries, keys, values, weighted, total, strict=True):
        q, k, v = packed(q), packed(k), packed(v)
        found, sums = space(q.shape[0], v.shape[1]), space(q.shape[0], 1)
        _run_pairs("pairs_forward", q, k, v, out=found, total=sums)
        o.copy_(found[:, : o.shape[1]])
        r.copy_(sums)


def pull_pairs(
    queries: Tensor, keys: Tensor, values: Tensor, left: Tensor, inner: Tensor, grads: Sequence[Tensor]
) -> None:
    """Adds to `grads`, those of q, k and v, in place; `left` is a ``[P, n, c]`` and `inner` D ``[P, n, 1]``."""
    for q, k, v, a, level, *to in zip(queries, keys, values, left, inner, *grads, strict=True):
        q, k, v = packed(q), packed(k), packed(v)
        found = space(min(MOST_PARTS, -(-k.shape[0] // BLOCK)), *q.shape), space(*k.shape), space(*v.shape)
        names = dict(zip(("q_grad", "k_grad", "v_grad"), found, strict=True))
        _run_pairs("pairs_backward", q, k, v, chunks=len(found[0]), a=packed(a), inner=level.contiguous(), **names)
        for grad, x in zip(to, (found[0][0], *found[1:]), strict=True):
            grad += x[:, : grad.shape[1]]


def _run_pairs(name: str, q: Tensor, k: Tensor, v: Tensor, *, chunks: int = 1, **others: Tensor) -> None:
    threads = torch.get_num_threads() if find().threads else 1
    fields = _Pairs(q.shape[0], k.shape[0], q.shape[1], v.shape[1], chunks, threads)
    call(name, fields, f"pairs of {q.shape[0]} rows", q=q, k=k, v=v, **others)


def multiply(matrix: CSR, x: Tensor, out: Tensor, beta: float, alpha: float) -> bool:
    """``out ← β out + α S X``, offered to `difformer.sparse`; False where it does not serve, and nothing was done."""
    rows, channels = matrix.crow.numel() - 1, x.shape[1]
    if channels < FEWEST_CHANNELS or matrix.crow.dtype != torch.int32 or not out.is_contiguous():
        return False
    if not serves(rows, channels, x, out, matrix.value):
        return False
    given: dict[str, Any] = {"z": x.contiguous(), "crow": matrix.crow, "col": matrix.col, "entry": matrix.value}
    run("multiply_rows", rows, channels, channels, out=out, state=beta, observed=alpha, **given)
    return True


sparse.fast_products["cpu"] = multiply
