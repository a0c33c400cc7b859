"""A fitted estimator on disk: ``estimator.json`` says what it is, ``context.safetensors`` holds its numbers.

Neither file can carry code, and neither holds the training table: what is there is what predictions need, see
`difformer.estimators.fitted`. Files are written beside their place and renamed into it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from scipy import sparse
from torch import Tensor

from difformer.diffusion.diffusivity import Diffusivity, as_diffusivity
from difformer.estimators.context import ContextConv, Member
from difformer.estimators.fitted import Fitted, GivenGraph, Search
from difformer.estimators.memory import Keys, Mean, Memory, Moments, Sums
from difformer.estimators.neighbours import Neighbours, SparseNeighbours
from difformer.estimators.scaling import Scaling
from difformer.files import atomic_write
from difformer.nn import DIFFormer, PretrainedError
from difformer.training.randomness import isolated_rng

if TYPE_CHECKING:
    from difformer.estimators.base import DIFFormerEstimator

FORMAT, FORMAT_VERSION = "difformer-estimator", 1
DESCRIPTION, TENSORS = "estimator.json", "context.safetensors"
# Fitted attributes that are plain numbers or texts, lists of such, and arrays of floats.
FACTS = ("n_features_in_", "graph_", "n_iter_", "loss_", "one_column_")
TEXTS = ("classes_", "feature_names_in_")
ARRAYS = ("label_distributions_", "transduction_")


def save_estimator(estimator: DIFFormerEstimator, folder: str | Path) -> None:
    """Writes a fitted estimator into `folder`, which is made where it does not exist."""
    folder = Path(folder)
    fitted = estimator.fitted_
    model: Any = fitted.members[0].model
    params = {name: _plain(value) for name, value in estimator.get_params(deep=False).items()}
    description: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "estimator": type(estimator).__name__,
        "params": params,
        "facts": {name: getattr(estimator, name) for name in FACTS if hasattr(estimator, name)},
        "model": {name: _plain(value) for name, value in model.config.items()},
        "members": len(fitted.members),
        "softmax": fitted.softmax,
        "neighbours": None if fitted.search is None else fitted.search.k,
        "sparse_shape": list(fitted.search.shape) if isinstance(fitted.search, SparseNeighbours) else None,
    }
    for name in TEXTS:
        if hasattr(estimator, name):
            array = getattr(estimator, name)
            description[name] = {"dtype": array.dtype.str, "values": plain_list(array)}
    tensors = {name: value.contiguous() for name, value in fitted.state_dict().items()}
    for name in ARRAYS:
        array = getattr(estimator, name, None)
        if array is not None and array.dtype == np.float64:
            tensors[f"of.{name}"] = torch.from_numpy(array.copy())
    text = (json.dumps(description, indent=2) + "\n").encode()  # before the first file, in case it cannot be made
    with atomic_write(folder / TENSORS) as stream:
        stream.write(save_tensors(tensors, metadata={"format": FORMAT}))
    with atomic_write(folder / DESCRIPTION) as stream:
        stream.write(text)


def load_estimator(folder: str | Path, *, diffusivity: Diffusivity | None = None) -> DIFFormerEstimator:
    """Reads what `save_estimator` wrote; a diffusivity of your own has to be given again.

    Raises:
        FileNotFoundError: If a file is missing.
        PretrainedError: If a file is damaged, of another program, or of a newer version of this one.
    """
    from difformer import estimators

    folder = Path(folder)
    description, tensors = _read(folder)
    try:
        kind = getattr(estimators, description["estimator"])
        params, config = description["params"], description["model"]
        named = config["diffusivity"]
        if diffusivity is None and isinstance(named, dict):
            raise PretrainedError(
                f"{folder}: the estimator was fitted with a diffusivity of its own, {named['own']!r}, which a file "
                f"cannot hold; pass it again: from_pretrained(folder, diffusivity=…)"
            )
        if diffusivity is not None:
            params["diffusivity"] = config["diffusivity"] = diffusivity
        estimator: Any = kind(**params)
        for name, value in description["facts"].items():
            setattr(estimator, name, value)
        for name in TEXTS:
            if name in description:
                setattr(estimator, name, np.array(description[name]["values"], dtype=description[name]["dtype"]))
        for name in [key for key in tensors if key.startswith("of.")]:
            setattr(estimator, name.removeprefix("of."), tensors.pop(name).numpy())
        if hasattr(estimator, "label_distributions_"):
            estimator.transduction_ = estimator.classes_[estimator.label_distributions_.argmax(1)]
        estimator.fitted_ = _context(description, tensors, polynomial=params["backend"] == "polynomial")
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise PretrainedError(
            f"{folder}: damaged, or not an estimator of this version of difformer: {error}"
        ) from error
    return estimator


def plain_list(array: np.ndarray[Any, Any]) -> list[Any]:
    """Labels or names as JSON has them; a date is a text there."""
    values: list[Any] = (array.astype(str) if array.dtype.kind == "M" else array).tolist()
    return values


def _plain(value: Any) -> Any:
    """An option as JSON has it; what it has no word for is left out."""
    if isinstance(value, Diffusivity):
        try:
            as_diffusivity(value.name)
        except ValueError:
            return {"own": value.name}
        return value.name
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, str | int | float | bool) else None


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    for name in (DESCRIPTION, TENSORS):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder / name} is missing; a saved estimator is {DESCRIPTION} and {TENSORS} in one folder"
            )
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PretrainedError(f"{path}: damaged: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise PretrainedError(f'{path}: not a saved estimator (no "format": "{FORMAT}" in it)')
    version = description.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise PretrainedError(
            f"{path}: written in format version {version}; this difformer reads up to {FORMAT_VERSION}: "
            f"upgrade difformer"
        )
    try:
        return description, load_tensors((folder / TENSORS).read_bytes())
    except SafetensorError as error:
        raise PretrainedError(f"{folder / TENSORS}: damaged: {error}") from error


def _context(description: dict[str, Any], tensors: dict[str, Tensor], *, polynomial: bool) -> Fitted:
    shift = tensors.get("shift")
    scaling = Scaling(None if shift is None else shift.numpy(), tensors["scale"].numpy())
    search: Search | None = None
    if description["sparse_shape"] is not None:
        parts = tuple(tensors[f"search.{name}"].numpy() for name in ("data", "indices", "indptr"))
        search = SparseNeighbours(
            sparse.csr_array(parts, shape=tuple(description["sparse_shape"])), description["neighbours"]
        )
    elif description["neighbours"] is not None:
        search = Neighbours(tensors["search.points"], description["neighbours"])
    given = None
    if "given.degree" in tensors:
        parts = tuple(tensors[f"given.{name}"].numpy() for name in ("data", "indices", "indptr"))
        nodes = tensors["given.degree"].numel()
        digests = tensors["given.digests"].numpy().view(np.uint64)
        given = GivenGraph(sparse.csr_array(parts, shape=(nodes, nodes)), digests)
    fitted = Fitted(
        scaling,
        search=search,
        given=given,
        softmax=description["softmax"],
        output_scale=tensors.get("output_scale"),
    )
    for number in range(description["members"]):
        start = f"members.{number}.model."
        own = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
        fitted.members.append(_member(description["model"], own, polynomial))
    return fitted


def _member(config: dict[str, Any], tensors: dict[str, Tensor], polynomial: bool) -> Member:
    with isolated_rng(torch.device("cpu")):  # initial weights are drawn, and thrown away
        model = DIFFormer(**config).double().eval().requires_grad_(False)
    remembered: list[dict[str, Tensor]] = [{} for _ in model.layers]
    weights = {}
    for name, value in tensors.items():
        head, _, rest = name.partition(".")
        number, _, what = rest.partition(".")
        if head != "layers":
            weights[name] = value
        elif what.startswith("layer."):
            weights[f"layers.{number}.{what.removeprefix('layer.')}"] = value
        else:
            remembered[int(number)][what] = value
    model.load_state_dict(weights)
    for k, (layer, kept) in enumerate(zip(list(model.layers), remembered, strict=True)):
        memory = _memory(kept, layer.diffusivity, polynomial)  # type: ignore[arg-type]
        model.layers[k] = ContextConv(layer, memory, kept.get("sent"))  # type: ignore[arg-type]
    return Member(model)


def _memory(kept: dict[str, Tensor], diffusivity: Diffusivity, polynomial: bool) -> Memory | None:
    if "memory.mean" in kept:
        return Mean(kept["memory.mean"])
    if "memory.state" in kept:
        state = kept["memory.state"]
        return Moments(state, diffusivity) if polynomial and diffusivity.name != "simple" else Sums(state)
    if "memory.keys" in kept:
        return Keys(kept["memory.keys"], kept["memory.values"], kept["memory.mass"], diffusivity)
    return None
