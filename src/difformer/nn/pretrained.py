"""Saving and loading a model: ``config.json`` says what it is, ``model.safetensors`` holds its weights.

Neither file can carry code, so a file from a stranger is safe to open. Weights are read on the CPU wherever they were
written; move the model afterwards. Every file is written beside its place and renamed into it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from difformer.atomic import write_whole
from difformer.diffusion.diffusivity import LARGEST_SQUARED_DISTANCE, Diffusivity, as_diffusivity

if TYPE_CHECKING:
    from difformer.nn.difformer import DIFFormer

FORMAT = "difformer"
FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"


class PretrainedError(ValueError):
    """A saved model that cannot be read: damaged, foreign, or written by a newer version."""


def save_pretrained(model: DIFFormer, folder: str | Path) -> None:
    """Writes `model` into `folder`, which is made where it does not exist."""
    folder = Path(folder)
    config = dict(model.config)
    own = config["diffusivity"]
    if isinstance(own, Diffusivity):
        config["diffusivity"] = own.name if _is_named(own) else {"own": own.name}
    description = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": "DIFFormer", "config": config}
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    # Weights first: a config is only ever found beside weights that belong to it.
    write_whole(folder / WEIGHTS, save_tensors(state, metadata={"format": FORMAT}))
    write_whole(folder / CONFIG, (json.dumps(description, indent=2) + "\n").encode())


def load_pretrained(folder: str | Path, *, diffusivity: Diffusivity | None = None) -> DIFFormer:
    """Reads a model that `save_pretrained` wrote.

    Raises:
        FileNotFoundError: If a file is missing.
        PretrainedError: If a file is damaged, of another program, or of a newer version of this one.
    """
    from difformer.nn.difformer import DIFFormer

    folder = Path(folder)
    config = _read_config(folder / CONFIG)
    named = config.get("diffusivity")
    if diffusivity is not None:
        config["diffusivity"] = diffusivity
    elif isinstance(named, dict):
        raise PretrainedError(
            f"{folder / CONFIG}: the model was trained with a diffusivity of its own, {named.get('own')!r}, which a "
            f"file cannot hold; pass it again: from_pretrained(folder, diffusivity=…)"
        )
    try:
        model = DIFFormer(**config)
    except (TypeError, ValueError) as error:
        raise PretrainedError(
            f"{folder / CONFIG}: not a configuration of this version of difformer: {error}"
        ) from error
    path = folder / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; a saved model is {CONFIG} and {WEIGHTS} in one folder")
    try:
        state = load_tensors(path.read_bytes())
        model.load_state_dict(state)
    except (SafetensorError, RuntimeError) as error:
        raise PretrainedError(f"{path}: damaged, or not the weights of the model in {CONFIG}: {error}") from error
    return model


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; a saved model is {CONFIG} and {WEIGHTS} in one folder")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PretrainedError(f"{path}: damaged: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise PretrainedError(f'{path}: not written by difformer (no "format": "{FORMAT}" in it)')
    version = description.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise PretrainedError(
            f"{path}: written in format version {version}; this difformer reads up to {FORMAT_VERSION}: "
            f"upgrade difformer"
        )
    config = description.get("config")
    if not isinstance(config, dict):
        raise PretrainedError(f'{path}: damaged: "config" must be a table, got {type(config).__name__}')
    return config


def _is_named(diffusivity: Diffusivity) -> bool:
    """Whether the name alone gives the diffusivity back, as ``"gaussian:0.5"`` does."""
    try:
        again = as_diffusivity(diffusivity.name)
    except ValueError:
        return False
    u = torch.linspace(0, LARGEST_SQUARED_DISTANCE, 65, dtype=torch.float64)
    return torch.equal(again.f(u), diffusivity.f(u))
