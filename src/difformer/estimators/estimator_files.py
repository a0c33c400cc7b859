"""A fitted estimator on disk: ``estimator.json`` describes it, ``context.safetensors`` holds its numbers.

Neither file can carry code, and neither holds the training table: they contain what predictions need, see
`difformer.estimators.predictor`. Each file is written next to its destination and then renamed. Two files cannot be
replaced at once, so the description holds one SHA-256 over both: a save that was interrupted over an older one, or a
file that was changed, is refused. The hash does not protect against someone who writes both files on purpose; for that
case every shape, index and name is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from scipy import sparse
from torch import Tensor

from difformer.attention.polynomial import DEFAULT_TOL
from difformer.diffusivity import Diffusivity, as_diffusivity
from difformer.errors import UserError
from difformer.estimators.population import Scaling
from difformer.estimators.predictor import GivenGraph, Member, Memory, Predictor, Search
from difformer.estimators.ridge import LinearPart
from difformer.estimators.row_search import RowSearch, SparseRowSearch
from difformer.files import write_whole
from difformer.nn import DIFFormer, DIFFormerConv, PretrainedError

if TYPE_CHECKING:
    from difformer.estimators.base import DIFFormerEstimator

FORMAT, FORMAT_VERSION = "difformer-estimator", 2
DESCRIPTION, TENSORS, HASH = "estimator.json", "context.safetensors", "sha256"
ESTIMATORS = ("DIFFormerClassifier", "DIFFormerRegressor", "DIFFormerTransformer")
# Fitted attributes: plain values with their types, lists of labels or names, and arrays of floats.
FACTS: dict[str, tuple[type, ...]] = {
    "n_features_in_": (int,),
    "graph_": (str, type(None)),
    "n_iter_": (int,),
    "loss_": (float, int),
    "validation_loss_": (float, int, type(None)),
    "one_column_": (bool,),
}
TEXTS = ("classes_", "feature_names_in_")
ARRAYS = ("label_distributions_", "transduction_")
LABEL_KINDS = "biufUSM"


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
        "directed": fitted.given is not None and fitted.given.directed,
        "neighbours": None if fitted.search is None else fitted.search.k,
        "sparse_shape": list(fitted.search.shape) if isinstance(fitted.search, SparseRowSearch) else None,
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
    content = save_tensors(tensors, metadata={"format": FORMAT})
    # Both files are complete in memory before the first is written.
    text = (json.dumps({**description, HASH: _digest(description, content)}, indent=2) + "\n").encode()
    write_whole(folder / TENSORS, content)
    write_whole(folder / DESCRIPTION, text)


def _digest(description: dict[str, Any], content: bytes) -> str:
    """SHA-256 of both files: the description without its hash, in a canonical form, followed by the tensors."""
    told = {name: value for name, value in description.items() if name != HASH}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode() + b"\0" + content).hexdigest()


def load_estimator(folder: str | Path, *, diffusivity: Diffusivity | None = None) -> DIFFormerEstimator:
    """Reads what `save_estimator` wrote; a custom diffusivity has to be given again.

    Raises:
        FileNotFoundError: If a file is missing.
        PretrainedError: If a file is damaged, of another program, or of another version of the format.
    """
    from difformer import estimators

    folder = Path(folder)
    description, tensors = _read(folder)
    try:
        if description["estimator"] not in ESTIMATORS:
            raise UserError(f"unknown estimator {description['estimator']!r}; expected one of {', '.join(ESTIMATORS)}")
        kind = getattr(estimators, description["estimator"])
        params, config = description["params"], description["model"]
        named = config["diffusivity"]
        if diffusivity is None and isinstance(named, dict):
            raise PretrainedError(
                f"{folder}: the estimator was fitted with a custom diffusivity, {named['own']!r}, which a file cannot "
                f"hold; pass it again: from_pretrained(folder, diffusivity=…)"
            )
        if diffusivity is not None:
            params["diffusivity"] = config["diffusivity"] = diffusivity
        if isinstance(params.get("class_weight"), dict):
            weights = params["class_weight"]
            params["class_weight"] = dict(zip(weights["labels"], weights["weights"], strict=True))
        estimator: Any = kind(**params)
        for name, value in _facts(description).items():
            setattr(estimator, name, value)
        for name in ARRAYS:
            if f"of.{name}" in tensors:
                setattr(estimator, name, tensors.pop(f"of.{name}").numpy())
        estimator.fitted_ = _context(description, tensors, polynomial=params["backend"] == "polynomial")
        _check_sizes(estimator, config)
    except PretrainedError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        raise PretrainedError(
            f"{folder}: damaged, or not an estimator of this version of difformer: {error}"
        ) from error
    return estimator


def _facts(description: dict[str, Any]) -> dict[str, Any]:
    """Fitted attributes, each known by name and of its type."""
    facts = dict(description["facts"])
    for name, value in facts.items():
        if (
            name not in FACTS
            or not isinstance(value, FACTS[name])
            or isinstance(value, bool) != (FACTS[name] == (bool,))
        ):
            raise UserError(f"unexpected fact {name!r} = {value!r}; known are {', '.join(FACTS)}")
    for name in TEXTS:
        if name in description:
            facts[name] = _labels(name, **description[name])
    return facts


def _labels(name: str, dtype: str, values: list[Any]) -> np.ndarray[Any, Any]:
    """Labels or names; the length of texts is that of the longest, whatever the file claims."""
    if not isinstance(dtype, str) or len(dtype) > 16 or not isinstance(values, list):
        raise UserError(f"{name} must have a dtype and a list of values, got dtype {str(dtype)[:40]!r}")
    kind = dtype.lstrip("<>|=")[:1]
    if kind == "O":
        return np.array(values, dtype=object)
    if kind not in LABEL_KINDS:
        raise UserError(f"{name} cannot be of dtype {dtype!r}")
    return np.array(values, dtype=kind if kind in "US" else dtype)


def _check_sizes(estimator: Any, config: dict[str, Any]) -> None:
    """What the files say about numbers of columns, classes and rows must agree."""
    columns, outputs = estimator.n_features_in_, config["out_channels"]
    said = {"model": config["in_channels"], "scale": estimator.fitted_.scale.numel()}
    if hasattr(estimator, "feature_names_in_"):
        said["feature_names_in_"] = len(estimator.feature_names_in_)
    if any(count != columns for count in said.values()):
        raise UserError(f"{columns} columns were fitted, but there are {said}")
    if hasattr(estimator, "classes_"):
        if len(estimator.classes_) != outputs:
            raise UserError(f"there are {len(estimator.classes_)} classes and {outputs} outputs")
        if estimator.label_distributions_.ndim != 2 or estimator.label_distributions_.shape[1] != outputs:
            raise UserError(f"label_distributions_ has shape {estimator.label_distributions_.shape}")
        estimator.transduction_ = estimator.classes_[estimator.label_distributions_.argmax(1)]
        estimator.temperature_ = float(estimator.fitted_.temperature)


def plain_list(array: np.ndarray[Any, Any]) -> list[Any]:
    """Labels or names as JSON has them; a date is a text there."""
    values: list[Any] = (array.astype(str) if array.dtype.kind == "M" else array).tolist()
    return values


def _plain(value: Any) -> Any:
    """An option as JSON has it; what it has no word for is left out."""
    if isinstance(value, Diffusivity):
        return value.name if value.is_named() else {"own": value.name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):  # class_weight; JSON would turn its labels into texts
        return {"labels": [_plain(label) for label in value], "weights": [float(weight) for weight in value.values()]}
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
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PretrainedError(f"{path}: damaged: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise PretrainedError(f'{path}: not a saved estimator (no "format": "{FORMAT}" in it)')
    version = description.get("format_version")
    if not isinstance(version, int) or version != FORMAT_VERSION:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        raise PretrainedError(
            f"{path}: written in format version {version!r}; this difformer reads version {FORMAT_VERSION}: "
            f"{'upgrade difformer' if newer else 'fit and save the estimator again'}"
        )
    content = (folder / TENSORS).read_bytes()
    if description.get(HASH) != _digest(description, content):
        raise PretrainedError(
            f"{folder}: damaged: {DESCRIPTION} and {TENSORS} do not belong together; saving was interrupted, or a file "
            f"was changed. Save the estimator again"
        )
    try:
        return description, load_tensors(content)
    except SafetensorError as error:
        raise PretrainedError(f"{folder / TENSORS}: damaged: {error}") from error


def _context(description: dict[str, Any], tensors: dict[str, Tensor], *, polynomial: bool) -> Predictor:
    shift = tensors.get("shift")
    scaling = Scaling(None if shift is None else shift.numpy(), tensors["scale"].numpy())
    search: Search | None = None
    k, rows = description["neighbours"], None
    if description["sparse_shape"] is not None:
        shape = tuple(int(size) for size in description["sparse_shape"])
        search, rows = SparseRowSearch(_csr(tensors, "search", shape), k), shape[0]
    elif k is not None:
        search, rows = RowSearch(tensors["search.points"], k), tensors["search.points"].shape[0]
    if rows is not None and not 1 <= k <= rows:
        raise UserError(f"{k} neighbours are asked of {rows} rows")
    given = None
    if "given.degree" in tensors:
        rows = tensors["given.degree"].numel()
        digests = tensors["given.digests"].numpy().view(np.uint64)
        if digests.shape != (rows, 2):
            raise UserError(f"given.digests has shape {digests.shape}, expected ({rows}, 2)")
        given = GivenGraph(_csr(tensors, "given", (rows, rows)), digests, directed=bool(description["directed"]))
    fitted = Predictor(
        scaling,
        search=search,
        given=given,
        softmax=bool(description["softmax"]),
        temperature=float(tensors["temperature"]),
        output_scale=tensors.get("output_scale"),
        linear=_linear(tensors, description["model"]),
    )
    numbers = {name.split(".")[1] for name in tensors if name.startswith("members.")}
    if numbers != {str(number) for number in range(len(numbers))} or description["members"] != len(numbers):
        raise UserError(f"{description['members']} members are described, {len(numbers)} are there")
    for number in range(len(numbers)):
        start = f"members.{number}."
        own = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
        fitted.members.append(_member(description["model"], own, polynomial, rows))
    kept = fitted.state_dict()
    strangers = set(tensors) ^ set(kept)
    if strangers:
        raise UserError(f"missing or unknown tensors: {', '.join(sorted(strangers)[:5])}")
    for name, value in kept.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise UserError(f"{name} is not finite")
    return fitted


def _linear(tensors: dict[str, Tensor], config: dict[str, Any]) -> LinearPart | None:
    if "coefficients" not in tensors:
        return None
    columns, targets = config["in_channels"], config["out_channels"]
    shapes = {"coefficients": (columns, targets), "intercepts": (targets,), "share": (targets,)}
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise UserError(f"{name} has shape {tuple(tensors[name].shape)}, expected {shape}")
    return LinearPart(*(tensors[name] for name in shapes))


def _csr(tensors: dict[str, Tensor], name: str, shape: tuple[int, ...]) -> Any:
    """A sparse matrix, its row pointers and column indices checked: scipy reads out of bounds where they lie."""
    parts = tuple(tensors[f"{name}.{part}"].numpy() for part in ("data", "indices", "indptr"))
    matrix = sparse.csr_array(parts, shape=shape)
    matrix.check_format(full_check=True)
    return matrix


def _member(config: dict[str, Any], tensors: dict[str, Tensor], polynomial: bool, rows: int | None) -> Member:
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    # Sizes are checked against the tensors before anything is made of them.
    layers = {name.split(".")[1] for name in weights if name.startswith(("layers.", "norms."))}
    if config["num_layers"] != len(layers):
        raise UserError(f"num_layers is {config['num_layers']}, but there are weights of {len(layers)} layers")
    # The diffusivity is made outside, because it is probed with numbers when it is made; None is no diffusivity.
    diffusivity = None if config["diffusivity"] is None else as_diffusivity(config["diffusivity"])
    with torch.device("meta"):
        model = DIFFormer(**{**config, "diffusivity": diffusivity}).double().eval()
    model.load_state_dict(weights, assign=True)
    model.requires_grad_(False)
    memories = []
    for k, layer in enumerate(model.layers):
        assert isinstance(layer, DIFFormerConv)
        start = f"memories.{k}."
        kept = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
        _check_memory(kept, layer, rows)
        memories.append(Memory(kept, layer, DEFAULT_TOL if polynomial else None))
    return Member(model, memories)


def _check_memory(kept: dict[str, Tensor], layer: DIFFormerConv, rows: int | None) -> None:
    """Shapes of what a layer keeps of `rows` fitted rows; heads and channels are those of the layer."""
    heads, width = layer.num_heads, layer.out_channels
    keys = 1 + (width if layer.query is not None else 0)
    expected: dict[str, tuple[int | None, ...]] = {
        "sent": (rows, width),
        "sums": (heads, keys, 1 + width),
        "moments": (heads, None, 1 + width),
        "keys": (None, heads, width),
        "values": (None, heads, width),
        "weight": (None,),
    }
    for name, value in kept.items():
        shape = expected[name]
        if len(shape) != value.ndim or any(b is not None and a != b for a, b in zip(value.shape, shape, strict=True)):
            raise UserError(f"{name} of a layer has shape {tuple(value.shape)}, expected {shape}")
    if "sent" in kept and rows is None:
        raise UserError("a layer holds values of fitted rows, but there is no graph")
    if len({len(kept[name]) for name in ("keys", "values", "weight") if name in kept}) > 1:
        raise UserError("keys, values and weights of a layer are not of the same number of rows")
    summary = set(kept) - {"sent"}
    infers = layer.diffusivity is not None and layer.form != "identity"
    known = ({"sums"}, {"moments"}, {"keys", "values"}, {"keys", "values", "weight"}) if infers else (set(),)
    if summary not in known:
        raise UserError(f"a layer keeps {sorted(summary) or 'nothing'} of its population")
