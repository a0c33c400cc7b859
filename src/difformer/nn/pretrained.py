"""Saving and loading a model: ``config.json`` says what it is, ``model.safetensors`` holds its weights.

Neither file can carry code, so a file from a stranger is safe to open. Weights are read on the CPU wherever they were
written; move the model afterwards. Every file is written beside its place and renamed into it.

`from_public_code` takes over models that the authors' code trained. Their module names map one to one:

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

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor
from torch.nn.modules import module as module_hooks

from difformer.diffusivity import Diffusivity, is_place
from difformer.errors import UserError
from difformer.files import write_whole
from difformer.nn.conv import DIFFormerConv

if TYPE_CHECKING:
    from difformer.nn.difformer import DIFFormer

FORMAT = "difformer"
FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


class PretrainedError(UserError):
    """A saved model that cannot be read: damaged, foreign, or written by a newer version."""


def save_pretrained(model: DIFFormer, folder: str | Path) -> None:
    """Writes `model` into `folder`, which is made where it does not exist.

    Raises:
        UserError: If a layer was replaced, wrapped or changed after the model was made, so that `load_pretrained` would
            rebuild another model, or if the model has no input size yet.
    """
    folder = Path(folder)
    _check_as_configured(model)
    config = dict(model.config)
    own = config["diffusivity"]
    if isinstance(own, Diffusivity):
        config["diffusivity"] = own.name if own.is_named() else {"own": own.name}
    description = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": "DIFFormer", "config": config}
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    text = (json.dumps(description, indent=2, default=_plain) + "\n").encode()
    # Two files cannot be replaced at once: the weights name their config, so that a mixed pair is found out.
    weights = save_tensors(state, metadata={"format": FORMAT, "config": hashlib.sha256(text).hexdigest()})
    write_whole(folder / WEIGHTS, weights)
    write_whole(folder / CONFIG, text)


def _check_as_configured(model: DIFFormer) -> None:
    """Refuses a model that its configuration does not describe; a class that extends `DIFFormer` may add modules."""
    from difformer.nn.difformer import DIFFormer

    if model.config["in_channels"] == -1:
        raise UserError("the model has no input size yet (in_channels=-1): call it once with features, then save it")
    with torch.device("meta"):
        expected = DIFFormer(**model.config)
    advice = "a saved model is rebuilt from its configuration; save model.state_dict() with torch.save instead"
    found = dict(model.named_modules())
    for name, module in expected.named_modules():
        if not name:
            continue
        if type(found.get(name)) is not type(module):
            raise UserError(
                f"{name} was replaced by {type(found.get(name)).__name__} where the configuration says "
                f"{type(module).__name__}: {advice}"
            )
        if type(module) is DIFFormerConv:
            settings = ((key, value) for key, value in vars(module).items() if isinstance(value, _SETTINGS))
            changed = [key for key, value in settings if key != "training" and vars(found[name]).get(key) != value]
            if changed:
                raise UserError(f"{name}.{changed[0]} was changed after the model was made: {advice}")
    if type(model) is DIFFormer and model.state_dict().keys() != expected.state_dict().keys():
        added = sorted(model.state_dict().keys() ^ expected.state_dict().keys())
        raise UserError(f"{', '.join(added[:3])} is not of the configuration: {advice}")


_SETTINGS = (str, bool, int, float, type(None))


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's own."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written to {CONFIG}")


def load_pretrained(
    folder: str | Path, kind: type[DIFFormer] | None = None, *, diffusivity: Diffusivity | None = None
) -> DIFFormer:
    """Reads a model that `save_pretrained` wrote; `kind` is `DIFFormer` or a class that extends it.

    Args:
        folder: Where it was saved, or ``"ORG/NAME"``: a model of the Hugging Face Hub (extra ``hub``).

    Raises:
        FileNotFoundError: If a file is missing.
        PretrainedError: If a file is damaged, of another program, or of a newer version of this one.
    """
    from difformer.nn.difformer import DIFFormer

    folder = _local(folder)
    config = _read_config(folder / CONFIG)
    named = config.get("diffusivity")
    if diffusivity is not None:
        config["diffusivity"] = diffusivity
    elif isinstance(named, dict) or (isinstance(named, str) and is_place(named)):  # a file has nothing imported
        own = named.get("own") if isinstance(named, dict) else named
        raise PretrainedError(
            f"{folder / CONFIG}: the model was trained with a diffusivity of its own, {own!r}, which a "
            f"file cannot hold; pass it again: from_pretrained(folder, diffusivity=…)"
        )
    path = folder / WEIGHTS
    content = _content(path)
    try:
        state = load_tensors(content)
    except SafetensorError as error:
        raise PretrainedError(f"{path}: damaged, or not the weights of a model: {error}") from error
    try:
        for name in ("transform", "norm", "residual", "tied_qk"):  # a text would count as true
            if not isinstance(config.get(name, True), bool):
                raise UserError(f"{name} must be true or false, got {config[name]!r}")
        with no_larger_than(state):
            model = (kind or DIFFormer)(**config)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PretrainedError(
            f"{folder / CONFIG}: not a configuration of this version of difformer: {error}"
        ) from error
    try:
        named = read_metadata(content).get("config")
        if named is not None and named != hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest():
            raise PretrainedError(
                f"{path} belongs to another {CONFIG}: saving was interrupted, or a file was changed or replaced; "
                f"save the model again"
            )
        kinds = {str(value.dtype) for value in state.values() if not value.is_floating_point()}
        if not state or kinds:
            raise PretrainedError(f"{path}: not weights: {'it is empty' if not state else f'it holds {min(kinds)}'}")
        model.to(next(iter(state.values())).dtype).load_state_dict(state)
    except RuntimeError as error:
        raise PretrainedError(f"{path}: damaged, or not the weights of the model in {CONFIG}: {error}") from error
    return model


def _local(folder: str | Path) -> Path:
    """The folder itself, or the downloaded files of ``"ORG/NAME"`` where there is no such folder."""
    if Path(folder).exists() or not isinstance(folder, str) or not re.fullmatch(r"[\w.-]+/[\w.-]+", folder):
        return Path(folder)
    if os.environ.get("DIFFORMER_OFFLINE", "") not in ("", "0"):
        raise FileNotFoundError(f"{folder} is not a folder, and $DIFFORMER_OFFLINE forbids to download it")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as missing:
        raise FileNotFoundError(
            f"{folder} is not a folder; to read it as a model of the Hugging Face Hub: pip install 'difformer[hub]'"
        ) from missing
    try:
        hf_hub_download(folder, WEIGHTS)
        return Path(hf_hub_download(folder, CONFIG)).parent
    except (OSError, ValueError) as error:  # no network, no such model, no such file in it
        raise FileNotFoundError(f"{folder} is neither a folder nor a model of the Hugging Face Hub: {error}") from error


def read_metadata(content: bytes) -> dict[str, str]:
    """The ``__metadata__`` of a safetensors file: a JSON header behind its length in eight bytes."""
    length = int.from_bytes(content[:8], "little")
    return dict(json.loads(content[8 : 8 + length]).get("__metadata__", {}))


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; a saved model is {CONFIG} and {WEIGHTS} in one folder")
    return path.read_bytes()


def _read_config(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(_content(path).decode())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PretrainedError(f"{path}: damaged: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise PretrainedError(f'{path}: not written by difformer (no "format": "{FORMAT}" in it)')
    version = description.get("format_version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise PretrainedError(f'{path}: damaged: "format_version" must be an integer, got {version!r}')
    if version > FORMAT_VERSION:
        raise PretrainedError(
            f"{path}: written in format version {version}; this difformer reads up to {FORMAT_VERSION}: "
            f"upgrade difformer"
        )
    config = description.get("config")
    if not isinstance(config, dict):
        raise PretrainedError(f'{path}: damaged: "config" must be a table, got {type(config).__name__}')
    return config


@contextmanager
def no_larger_than(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Within it, building a model that is much larger than its saved weights fails at once.

    A configuration from elsewhere may ask for 10⁹ layers; that its weights are of another model would be noticed only
    after all layers were built.

    Raises:
        UserError: If this thread registers far more parameters or modules than `weights` can be those of.
    """
    total = sum(value.numel() for value in weights.values())
    numbers = 10_000 + 2 * total
    modules = 1_000 + 20 * len(weights)
    me, counted = threading.get_ident(), {"numbers": 0, "modules": 0}

    def count(kind: str, amount: int, most: int) -> None:
        if threading.get_ident() != me:
            return
        counted[kind] += amount
        if counted[kind] > most:
            raise UserError(f"the model of the configuration is larger than its weights, of {total:,} numbers")

    with ExitStack() as stack:
        for handle in (
            module_hooks.register_module_parameter_registration_hook(
                lambda module, name, value: count("numbers", 0 if value is None else value.numel(), numbers)
            ),
            module_hooks.register_module_module_registration_hook(
                lambda module, name, value: count("modules", 1, modules)
            ),
        ):
            stack.callback(handle.remove)
        yield


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
    taken = {f"{theirs}.{part}": f"{ours}.{part}" for theirs, ours in names.items() for part in ("weight", "bias")}
    # Their LayerNorms are made, and saved, also where they are not used.
    strange = [name for name in state_dict if name not in taken and not name.startswith("bns.")]
    if strange:
        raise UserError(f"parameters that no DIFFormer of the public code has: {', '.join(sorted(strange)[:5])}")
    try:
        model.load_state_dict({ours: state_dict[theirs] for theirs, ours in taken.items()})
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
