"""Weights trained with the authors' public code, taken over.

Their module names map one to one:

=============================== ==========================================
public code                     here
=============================== ==========================================
``fcs.0``, ``fcs.1``            ``input``, ``output``
``bns.0``, ``bns.{i+1}``        ``input_norm``, ``norms.{i}`` (LayerNorms)
``convs.{i}.Wq``, ``.Wk``       ``layers.{i}.query``, ``.key``
``convs.{i}.Wv``                ``layers.{i}.value``, where it exists
=============================== ==========================================

What their code computes differs from the paper in ways that are options here: `simple` divides queries and keys by one
norm of the whole tensor (``qk_norm="global"``), `sigmoid` does not normalise them (``"none"``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from difformer.errors import UserError

if TYPE_CHECKING:
    from difformer.nn.difformer import DIFFormer

# The paper's form, where the options say nothing else.
EXACT: dict[str, Any] = {"graph_weight": None, "source_weight": 0.0, "initialisation": "torch"}
QK_NORM_OF_KERNEL = {"simple": "global", "sigmoid": "none"}


def from_public_code(state_dict: dict[str, Tensor], *, diffusivity: str = "simple", **options: Any) -> DIFFormer:
    """A `DIFFormer` with the weights of a model that the authors' code trained.

    Args:
        state_dict: Parameters by the authors' names, for example ``torch.load(path, weights_only=True)``.
        diffusivity: Their ``kernel``: ``"simple"`` or ``"sigmoid"``.
        options: What weights do not show: ``step_size`` (their ``alpha``), ``graph_weight`` (None where theirs is
            not used), ``norm=False`` and ``residual=False`` (their ``use_bn`` and ``use_residual`` left out),
            ``source_weight``, ``dropout``, ``activation``. Sizes, layers, heads and ``transform`` are read off
            the weights.

    Raises:
        ValueError: If parameters are missing, left over, or do not fit together.
    """
    from difformer.nn.difformer import DIFFormer

    _require(state_dict, "fcs.0", "fcs.1")
    hidden, in_channels = state_dict["fcs.0.weight"].shape
    out_channels = state_dict["fcs.1.weight"].shape[0]
    layers = sorted({int(name.split(".")[1]) for name in state_dict if name.startswith("convs.")})
    if layers != list(range(len(layers))):
        raise UserError(f"layers must be numbered from 0 without a gap, got convs of {layers}")
    _require(state_dict, *[f"convs.{i}.{part}" for i in layers for part in ("Wq", "Wk")])
    heads = state_dict["convs.0.Wq.weight"].shape[0] // hidden if layers else 1
    transform = "convs.0.Wv.weight" in state_dict
    norm = options.pop("norm", "bns.0.weight" in state_dict)
    model = DIFFormer(
        in_channels, hidden, out_channels,
        num_layers=len(layers), num_heads=heads, transform=transform, norm=norm, diffusivity=diffusivity,
        qk_norm=options.pop("qk_norm", QK_NORM_OF_KERNEL.get(diffusivity, "row")), **(EXACT | options),
    )  # fmt: skip
    names = {"fcs.0": "input", "fcs.1": "output"}
    if norm:
        names |= {"bns.0": "input_norm"} | {f"bns.{i + 1}": f"norms.{i}" for i in layers}
    for i in layers:
        parts = {"Wq": "query", "Wk": "key"} | ({"Wv": "value"} if transform else {})
        names |= {f"convs.{i}.{theirs}": f"layers.{i}.{ours}" for theirs, ours in parts.items()}
    _require(state_dict, *names)
    expected = {f"{name}.{part}" for name in names for part in ("weight", "bias")}
    # Their LayerNorms are made, and saved, also where they are not used.
    strange = [name for name in state_dict if name not in expected and not name.startswith("bns.")]
    if strange:
        raise UserError(f"parameters that no DIFFormer of the public code has: {', '.join(sorted(strange)[:5])}")
    taken = {
        f"{ours}.{part}": state_dict[f"{theirs}.{part}"]
        for theirs, ours in names.items()
        for part in ("weight", "bias")
    }
    try:
        model.load_state_dict(taken)
    except RuntimeError as error:
        raise UserError(f"the parameters do not fit together: {error}") from error
    return model


def _require(state_dict: dict[str, Tensor], *modules: str) -> None:
    missing = [f"{m}.{part}" for m in modules for part in ("weight", "bias") if f"{m}.{part}" not in state_dict]
    if missing:
        raise UserError(
            f"parameters missing from the state_dict: {', '.join(missing[:5])}; expected the authors' names "
            f"(fcs.0, fcs.1, bns.i, convs.i.Wq, convs.i.Wk, convs.i.Wv), got {', '.join(list(state_dict)[:5])} …"
        )
