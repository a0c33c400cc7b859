"""Saving and loading a model: ``config.json`` says what it is, ``model.safetensors`` holds its weights.

Neither file can carry code, so an untrusted file is safe to open. Weights are read on the CPU; move the model
afterwards.

`Pretrained.from_public_code` loads models that were trained with the authors' code. That code differs from the paper in
ways that are options here: `simple` divides queries and keys by one norm of the whole tensor (``qk_norm="global"``),
`sigmoid` does not normalise them (``"none"``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from difformer import schema
from difformer.diffusivity import Diffusivity, is_place
from difformer.errors import UserError
from difformer.files import write_whole
from difformer.nn.conv import DIFFormerConv

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = "difformer"
FORMAT_VERSION = 1
CONFIG, WEIGHTS = "config.json", "model.safetensors"
FLAGS = ("transform", "norm", "residual", "tied_qk")  # a text would count as true


class PretrainedError(UserError):
    """A saved model that cannot be read: damaged, foreign, or written by a newer version."""


@contextmanager
def _explained(problem: str, *kinds: type[Exception], to: type[UserError] = PretrainedError) -> Iterator[None]:
    """Errors of these kinds become one that names the problem first."""
    try:
        yield
    except PretrainedError:
        raise
    except kinds as error:
        raise to(f"{problem}: {error}") from error


class Pretrained(nn.Module):
    """A model that ``cls(**config)`` builds again, so that it can be saved and loaded."""

    config: dict[str, Any]

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes ``config.json`` and ``model.safetensors`` into `folder`, which is created if needed.

        Raises:
            UserError: If a layer was replaced, wrapped or changed after the model was made, so that `from_pretrained`
                would rebuild another model, or if the model has no input size yet.
        """
        _check_as_configured(self)
        config, own = dict(self.config), self.config["diffusivity"]
        if isinstance(own, Diffusivity):
            config["diffusivity"] = own.name if own.is_named() else {"own": own.name}
        description = {"format": FORMAT, "format_version": FORMAT_VERSION, "model": "DIFFormer", "config": config}
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        text = (json.dumps(description, indent=2, default=lambda number: number.item()) + "\n").encode()  # numpy's
        # Two files cannot be replaced at once: the weights name their config, so that a mixed pair is noticed.
        metadata = {"format": FORMAT, "config": hashlib.sha256(text).hexdigest()}
        write_whole(Path(folder) / WEIGHTS, save_tensors(state, metadata=metadata))
        write_whole(Path(folder) / CONFIG, text)

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, diffusivity: Diffusivity | None = None) -> Self:
        """Reads what `save_pretrained` wrote.

        Args:
            folder: Where it was saved, or ``"ORG/NAME"``: a model of the Hugging Face Hub (extra ``hub``).
            diffusivity: The model's own diffusivity, which a file cannot hold.

        Raises:
            FileNotFoundError: If a file is missing.
            PretrainedError: If a file is damaged, of another program, or of a newer version of this one.
        """
        folder = _local(folder)
        about, path = folder / CONFIG, folder / WEIGHTS
        for file in (about, path):
            if not file.is_file():
                raise FileNotFoundError(f"{file} is missing; a saved model is {CONFIG} and {WEIGHTS} in one folder")
        config = _read_config(about)
        named = config.get("diffusivity")
        if diffusivity is not None:
            config["diffusivity"] = diffusivity
        elif isinstance(named, dict) or (isinstance(named, str) and is_place(named)):  # a file imports nothing
            own = named.get("own") if isinstance(named, dict) else named
            problem = f"the model was trained with a custom diffusivity, {own!r}, which a file cannot hold"
            raise PretrainedError(f"{about}: {problem}; pass it again: from_pretrained(folder, diffusivity=…)")
        damaged = _explained(f"{path}: damaged, or not the weights of a model", SafetensorError)
        with damaged, safe_open(path, framework="pt", device="cpu") as weights:
            written_with = (weights.metadata() or {}).get("config")
            state = {name: weights.get_tensor(name) for name in weights.keys()}  # noqa: SIM118
        unknown = f"{about}: not a configuration of this version of difformer"
        with _explained(unknown, TypeError, ValueError, RuntimeError), no_larger_than(state):
            schema.check(config, {name: bool for name in FLAGS if name in config})
            model = cls(**config)
        if written_with not in (None, hashlib.sha256(about.read_bytes()).hexdigest()):
            causes = "saving was interrupted, or a file was changed or replaced"
            raise PretrainedError(f"{path} belongs to another {CONFIG}: {causes}; save the model again")
        other = f"{path}: damaged, or not the weights of the model in {CONFIG}"
        with _explained(other, KeyError, TypeError, RuntimeError):
            if not all(value.is_floating_point() for value in state.values()):
                raise TypeError(f"it holds {', '.join(sorted({str(value.dtype) for value in state.values()}))}")
            model.to(state["output.weight"].dtype).load_state_dict(state)
        return model

    @classmethod
    def from_public_code(cls, state_dict: dict[str, Tensor], *, diffusivity: str = "simple", **options: Any) -> Self:
        """A model with the weights of one that the authors' code trained.

        Args:
            state_dict: Parameters by the authors' names, for example ``torch.load(path, weights_only=True)``.
            diffusivity: Their ``kernel``: ``"simple"`` or ``"sigmoid"``.
            options: Settings that weights do not determine: ``step_size`` (their ``alpha``), ``graph_weight`` (None if
                not used), ``norm=False`` and ``residual=False`` (without their ``use_bn`` and ``use_residual``),
                ``source_weight``, ``dropout``, ``activation``.

        Raises:
            ValueError: If parameters are missing, left over, or do not fit together.
        """
        layers = range(len({name.split(".")[1] for name in state_dict if name.startswith("convs.")}))
        transform = "convs.0.Wv.weight" in state_dict
        norm = options.pop("norm", "bns.0.weight" in state_dict)
        names = {"fcs.0": "input", "fcs.1": "output"}
        for i in layers:
            names |= {f"convs.{i}.W{part[0]}": f"layers.{i}.{part}" for part in ("query", "key", "value")}
        if norm:
            names |= {"bns.0": "input_norm"} | {f"bns.{i + 1}": f"norms.{i}" for i in layers}
        weights = {}
        for name, value in state_dict.items():
            module, _, part = name.rpartition(".")
            if norm or not module.startswith("bns."):  # their LayerNorms are made, and saved, even if they are not used
                weights[f"{names.get(module, module)}.{part}"] = value
        theirs = "whose names are fcs.0, fcs.1, bns.i, convs.i.Wq, convs.i.Wk and convs.i.Wv"
        problem = f"not the parameters of a model of the authors' code, {theirs}; got {', '.join([*state_dict][:5])} …"
        with _explained(problem, RuntimeError, KeyError, to=UserError):
            hidden, in_channels = state_dict["fcs.0.weight"].shape
            heads = state_dict["convs.0.Wq.weight"].shape[0] // hidden if layers else 1
            shape = {"num_layers": len(layers), "num_heads": heads, "transform": transform, "norm": norm}
            qk_norm = {"simple": "global", "sigmoid": "none"}.get(diffusivity, "row")
            paper = {"qk_norm": qk_norm, "graph_weight": None, "source_weight": 0.0, "initialisation": "torch"}
            given: dict[str, Any] = {**shape, **paper, "diffusivity": diffusivity, **options}
            model = cls(in_channels, hidden, state_dict["fcs.1.weight"].shape[0], **given)
            model.load_state_dict(weights)
        return model


def _check_as_configured(model: Pretrained) -> None:
    """Refuses a model that its configuration does not describe; a class that extends `DIFFormer` may add modules."""
    if model.config["in_channels"] == -1:
        raise UserError("the model has no input size yet (in_channels=-1): call it once with features, then save it")
    kind = next(base for base in type(model).__mro__ if Pretrained in base.__bases__)
    with torch.device("meta"):
        expected = kind(**model.config)
    advice = "a saved model is rebuilt from its configuration; save model.state_dict() with torch.save instead"
    parts = dict(model.named_modules())
    for name, module in expected.named_modules():
        found, wanted = type(parts.get(name)), type(module)
        if name and found is not wanted:
            problem = f"{name} was replaced by {found.__name__} where the configuration says {wanted.__name__}"
            raise UserError(f"{problem}: {advice}")
        if wanted is not DIFFormerConv:
            continue
        for key, value in vars(module).items():
            setting = isinstance(value, str | bool | int | float | None) and key not in ("training", "_score")
            if setting and vars(parts[name]).get(key) != value:
                raise UserError(f"{name}.{key} was changed after the model was made: {advice}")
    if type(model) is kind and (added := sorted(model.state_dict().keys() ^ expected.state_dict().keys())):
        raise UserError(f"{', '.join(added[:3])} is not of the configuration: {advice}")


def _local(folder: str | Path) -> Path:
    """The folder itself, or the downloaded files of ``"ORG/NAME"`` if there is no such folder."""
    if Path(folder).exists() or not isinstance(folder, str) or not re.fullmatch(r"[\w.-]+/[\w.-]+", folder):
        return Path(folder)
    if os.environ.get("DIFFORMER_OFFLINE", "") not in ("", "0"):
        raise FileNotFoundError(f"{folder} is not a folder, and $DIFFORMER_OFFLINE forbids downloading it")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as missing:
        install = "to read it as a model of the Hugging Face Hub: pip install 'difformer[hub]'"
        raise FileNotFoundError(f"{folder} is not a folder; {install}") from missing
    try:
        hf_hub_download(folder, WEIGHTS)
        return Path(hf_hub_download(folder, CONFIG)).parent
    except (OSError, ValueError) as error:  # no network, no such model, no such file in it
        raise FileNotFoundError(f"{folder} is neither a folder nor a model of the Hugging Face Hub: {error}") from error


def _read_config(path: Path) -> dict[str, Any]:
    with _explained(f"{path}: damaged", ValueError, RecursionError):  # JSON, UTF-8 or schema
        description = json.loads(path.read_bytes().decode())
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise PretrainedError(f'{path}: not written by difformer (no "format": "{FORMAT}" in it)')
        schema.check(description, {"format_version": int, "config": dict})
        if (version := description["format_version"]) > FORMAT_VERSION:
            newer = f"written in format version {version}; this difformer reads up to {FORMAT_VERSION}"
            raise PretrainedError(f"{path}: {newer}: upgrade difformer")
    return dict(description["config"])


@contextmanager
def no_larger_than(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """A context in which building a model far larger than its saved weights raises a UserError immediately."""
    total, thread = sum(value.numel() for value in weights.values()), threading.get_ident()
    left = 10_000 + 2 * total + 20 * len(weights)

    def count(module: nn.Module, name: str, made: Any) -> None:
        nonlocal left
        if threading.get_ident() == thread:  # hooks are global
            left -= made.numel() if isinstance(made, Tensor) else 1
            if left < 0:
                raise UserError(f"the model of the configuration is larger than its weights, of {total:,} numbers")

    parameters = module_hooks.register_module_parameter_registration_hook(count)
    with parameters, module_hooks.register_module_module_registration_hook(count):
        yield
