"""A fitted estimator on disk: as two files that carry no code, or as a program that runs without this package.

**Files.** ``estimator.json`` describes it, ``context.safetensors`` holds what predictions need, see
`difformer.estimators.predictor`. Two files cannot be replaced at once, so the description holds one SHA-256 over both:
an interrupted save and a changed file are refused. The hash does not protect against someone who writes both files on
purpose. So every entry has a rule (`SCHEMA`), every tensor a dtype, a shape and a range (`TENSOR_RULES`), tensors that
follow from others are compared with what follows, and one row is predicted as a check.

**Program.** One ``.pt2`` file for ``torch.export.load(path).module()``, without this package. It takes features ``[M,
F]`` in single precision, as the table had them (scaling is inside), and gives probabilities, values or embeddings in
double precision. A model fitted with a neighbour graph searches for neighbours itself; one fitted with a given graph
takes two more arguments, ``edge_index [2, E]`` with fitted rows above, and ``edge_weight [E]``. The file also holds
``difformer.json``: classes, and names of columns.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from scipy import sparse
from torch import Tensor, nn

from difformer.diffusivity import Diffusivity, as_diffusivity, is_place
from difformer.errors import UserError
from difformer.estimators.predictor import Member, Memory, Predictor
from difformer.estimators.recipe import COUNT, FINITE, FLAG, FRACTION, MODEL_OPTIONS, NOT_NEGATIVE, OPTIONS
from difformer.estimators.row_graph import CSR, GivenGraph, RowEdges, RowSearch
from difformer.files import RunFolderError, atomic_write, read_json, write_whole
from difformer.nn import DIFFormer, PretrainedError
from difformer.nn.pretrained import no_larger_than
from difformer.schema import Rule, check, one_of
from difformer.sparse import check_scipy

Tensors = Mapping[str, Tensor]

FORMAT, FORMAT_VERSION = "difformer-estimator", 2
DESCRIPTION, TENSORS, HASH = "estimator.json", "context.safetensors", "sha256"
TEXTS = ("classes_", "feature_names_in_")
LABEL_DTYPE = re.compile(r"[<>|=]?([biuf]\d{1,2}|[UO]\d{0,9}|M8\[\w{1,5}\])")
EXTRA, SUFFIX = "difformer.json", ".pt2"
LARGEST_DENSE = 1 << 28  # entries of fitted sparse rows that a program may hold densely
# What a layer keeps of its population, by the form of its diffusivity; keys and values, or moments, for other forms.
SUMMARIES: dict[Any, set[str]] = {None: set(), "identity": set(), "simple": {"sums"}, "constant": {"sums"}}


def _is_named(value: Any) -> bool:
    if isinstance(value, dict) or (isinstance(value, str) and is_place(value)):  # a file has nothing imported
        own = value.get("own") if isinstance(value, dict) else value
        problem = f"the estimator was fitted with a custom diffusivity, {own!r:.200}, which a file cannot hold"
        raise PretrainedError(f"{problem}; pass it again: from_pretrained(folder, diffusivity=…)")
    return isinstance(value, str | Diffusivity)


NAMED = Rule(_is_named, "a name or a Diffusivity").or_none()
LIST = Rule(lambda v: isinstance(v, list) and all(isinstance(one, str | int | float) for one in v), "a list of labels")
LABELS = {"dtype": Rule(lambda v: LABEL_DTYPE.fullmatch(str(v)), "a dtype of labels"), "values": LIST}
PARAMS: dict[str, Any] = {
    **OPTIONS,
    "diffusivity": NAMED,
    "graph": one_of(None, "knn", "auto"),
    "device": str,
    "random_state": Rule(lambda v: type(v) is int and 0 <= v < 2**32, "a seed").or_none(),
    "verbose": Rule(lambda v: isinstance(v, int), "True, False or a whole number"),
}
FACTS: dict[str, Any] = {"n_features_in_": COUNT, "graph_": one_of("knn", "given", None), "n_iter_": COUNT}
FACTS |= {"loss_": FINITE, "validation_loss_": FINITE.or_none()}
MODEL: dict[str, Any] = {  # the rest keep their defaults
    **{name: one_of(option.default) for name, option in inspect.signature(DIFFormer).parameters.items()},
    **{name: OPTIONS[name] for name in MODEL_OPTIONS},
    **dict.fromkeys(("in_channels", "out_channels"), COUNT),
    "diffusivity": NAMED,
    "dropout": FRACTION,
    "transform": FLAG,
    "graph_norm": one_of("gcn", "random_walk"),
}
del MODEL["checkpoint"]  # says how a model is computed, not what it is
SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("format", "estimator", HASH), str),
    **dict.fromkeys(("format_version", "members"), COUNT),
    **{"params": PARAMS, "facts": FACTS, "model": MODEL},
    **dict.fromkeys(("softmax", "directed"), FLAG),
    "neighbours": COUNT.or_none(),
    "sparse_shape": ([COUNT], None),
}
# Entries of some kinds of estimators only.
OF_KIND: dict[str, dict[str, Any]] = {
    "DIFFormerClassifier": {
        "params": {**PARAMS, "class_weight": ({"balanced"}, None, dict)},
        "classes_": LABELS,
        "softmax": one_of(True),
    },
    "DIFFormerRegressor": {"facts": {**FACTS, "one_column_": FLAG}, "softmax": one_of(False)},
    "DIFFormerTransformer": {},
}
OPTIONAL: dict[str, Any] = {"feature_names_in_": LABELS, "rows": COUNT}

# Tensors by dtype and range: names, numbers in them left out, with their axes. A letter stands for a size: F columns,
# T outputs, n fitted rows with a graph, N rows of the table, H heads, C channels, V and K one more than channels of
# values and keys.
OF_TYPE = {
    ("float64", ""): "shift F, output_scale 2T, coefficients FT, intercepts T, search.data s, of.transduction_ NT, "
    "members.memories.sums HKV, members.memories.moments HmV",
    ("float64", "above 0"): "temperature, scale F",
    ("float64", "of at least 0"): "given.data e, given.degree n",
    ("float64", "from 0 to 1"): "share T, of.label_distributions_ NT",
    ("float32", ""): "search.points nF, members.memories.sent nC, members.memories.keys pHC, "
    "members.memories.values pHC",
    ("float32", "of at least 0"): "members.memories.weight p",
    ("int", "of at least 0"): "search.indices s, search.indptr r, given.indices e, given.indptr q",
    ("int64", ""): "given.digests n2",
}
TENSOR_RULES: dict[str, tuple[str, str, str]] = {}  # dtype, axes and range by name
for (_dtype, _range), _listed in OF_TYPE.items():
    TENSOR_RULES |= {(pair := one.partition(" "))[0]: (_dtype, pair[2], _range) for one in _listed.split(", ")}
RANGES = {"": -math.inf, "above 0": math.nextafter(0, 1), "of at least 0": 0, "from 0 to 1": 0}
MORE_RULES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "output_scale": (lambda t: t[1] > 0, "must hold deviations above 0"),
    "of.label_distributions_": (lambda t: (t.sum(1) - 1).abs() < 1e-6, "of a row must add up to 1"),
    "members.memories.sums": (lambda t: t[:, 0, 0] > 0, "must count a positive number of rows"),
}


def save_estimator(estimator: Any, folder: str | Path) -> None:
    """Write a fitted estimator into `folder`, which is created if needed."""
    fitted, model = estimator.fitted_, estimator.fitted_.members[0].model
    description: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "estimator": type(estimator).__name__,
        "params": {name: _plain(value) for name, value in estimator.get_params(deep=False).items()},
        "facts": {name: getattr(estimator, name) for name in (*FACTS, "one_column_") if hasattr(estimator, name)},
        "model": {name: _plain(value) for name, value in model.config.items()},
        "members": len(fitted.members),
        "softmax": fitted.softmax,
        "directed": fitted.given is not None and fitted.given.directed,
        "neighbours": None if fitted.search is None else fitted.search.k,
        "sparse_shape": list(fitted.search.shape) if fitted.search is not None and fitted.search.is_sparse else None,
    }
    for name, values in _texts(estimator).items():
        description[name] = {"dtype": getattr(estimator, name).dtype.str, "values": values}
    tensors = {name: value.contiguous() for name, value in fitted.state_dict().items()}
    name = "label_distributions_" if hasattr(estimator, "classes_") else "transduction_"
    if (answers := getattr(estimator, name, None)) is not None:
        tensors[f"of.{name}"], description["rows"] = torch.from_numpy(answers.copy()), len(answers)
    content = save_tensors(tensors, metadata={"format": FORMAT})
    # Both files are complete in memory before the first is written.
    text = (json.dumps({**description, HASH: _digest(description, content)}, indent=2) + "\n").encode()
    write_whole(Path(folder) / TENSORS, content)
    write_whole(Path(folder) / DESCRIPTION, text)


def _texts(estimator: Any) -> dict[str, list[Any]]:
    """Classes and names of columns, as far as the estimator has them."""
    return {name: plain_list(getattr(estimator, name)) for name in TEXTS if hasattr(estimator, name)}


def _digest(description: dict[str, Any], content: bytes) -> str:
    """SHA-256 of both files: the description without its hash, in a canonical form, followed by the tensors."""
    told = {name: value for name, value in description.items() if name != HASH}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode() + b"\0" + content).hexdigest()


def plain_list(array: Any) -> Any:
    """Labels or names as JSON can hold them; dates become texts."""
    return (array.astype(str) if array.dtype.kind == "M" else array).tolist()


def _plain(value: Any) -> Any:
    """An option as JSON can hold it; None if it cannot."""
    if isinstance(value, Diffusivity):
        return value.name if value.is_named() else {"own": value.name}
    if isinstance(value, Mapping):  # class_weight; JSON would turn its labels into texts
        return {"labels": [_plain(label) for label in value], "weights": [float(weight) for weight in value.values()]}
    value = value.item() if isinstance(value, np.generic) else str(value) if isinstance(value, torch.device) else value
    return value if isinstance(value, str | int | float | bool) else None


def load_estimator(folder: str | Path, cls: Any, diffusivity: Diffusivity | None = None) -> Any:
    """Load an estimator of class `cls` that `save_estimator` wrote."""
    description, tensors = _read(Path(folder))
    try:
        return _estimator(description, tensors, cls, diffusivity)
    except PretrainedError as error:
        raise PretrainedError(f"{folder}: {error}") from error
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        found = f"tensor {error.args[0]} is missing" if isinstance(error, KeyError) else str(error).replace("\n", " ")
        problem = f"damaged, or not written by this version of difformer: {found[:500]}"
        raise PretrainedError(f"{folder}: {problem}; fit and save the estimator again") from error


def _read(folder: Path) -> tuple[dict[str, Any], Tensors]:
    path = folder / DESCRIPTION
    for file in (path, folder / TENSORS):
        if not file.is_file():
            both = f"{DESCRIPTION} and {TENSORS} in one folder"
            raise FileNotFoundError(f"{file} is missing; a saved estimator is {both}")
    content = (folder / TENSORS).read_bytes()
    try:
        description = read_json(path)
    except RunFolderError as error:
        raise PretrainedError(f"{path}: damaged: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise PretrainedError(f'{path}: not a saved estimator (no "format": "{FORMAT}" in it)')
    if (version := description.get("format_version")) != FORMAT_VERSION:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        advice = "upgrade difformer" if newer else "fit and save the estimator again"
        written = f"written in format version {reprlib.repr(version)}; this difformer reads version {FORMAT_VERSION}"
        raise PretrainedError(f"{path}: {written}: {advice}")
    if description.get(HASH) != _digest(description, content):
        problem = f"{DESCRIPTION} and {TENSORS} do not belong together: saving was interrupted, or a file was changed"
        raise PretrainedError(f"{folder}: damaged: {problem}; save the estimator again")
    try:
        return description, load_tensors(content)
    except SafetensorError as error:
        raise PretrainedError(f"{folder / TENSORS}: damaged: {error}; save the estimator again") from error


def _estimator(description: Any, tensors: Tensors, cls: Any, own: Diffusivity | None) -> Any:
    """Build an estimator from files whose hash is right, but whose content may still be invalid."""
    kind: Any = description.get("estimator")
    check(kind, one_of(*OF_KIND), "estimator")
    if kind != cls.__name__:
        raise PretrainedError(f"it holds a {kind}, not a {cls.__name__}")
    for entry in ("params", "model") if own is not None else ():
        description.get(entry, {})["diffusivity"] = own
    optional = {entry: rule for entry, rule in OPTIONAL.items() if entry in description}
    check(description, {**SCHEMA, **optional, **OF_KIND[kind]}, closed=True)
    params = description["params"]
    if params["diffusivity"] is not None:
        as_diffusivity(params["diffusivity"])
    _check_tensors(description, tensors)
    if isinstance(weights := params.get("class_weight"), dict):
        check(weights, {"labels": LIST, "weights": [NOT_NEGATIVE]}, "params.class_weight", closed=True)
        if len(weights["labels"]) != len(weights["weights"]):
            raise UserError("params.class_weight must be as many labels as weights")
        params["class_weight"] = dict(zip(weights["labels"], weights["weights"], strict=True))
    estimator: Any = cls(**params)
    texts = {name: _labels(name, **description[name]) for name in TEXTS if name in description}
    vars(estimator).update(description["facts"] | texts)
    fitted = estimator.fitted_ = _predictor(kind, description, tensors)
    if kind == "DIFFormerClassifier":
        if len(estimator.classes_) != (outputs := description["model"]["out_channels"]):
            raise UserError(f"there are {len(estimator.classes_)} classes_ and {outputs} outputs")
        estimator._keep(tensors["of.label_distributions_"].numpy())
    elif kind == "DIFFormerRegressor":
        estimator.transduction_ = tensors["of.transduction_"].numpy()
    rows = np.zeros((2, estimator.n_features_in_))
    rows[1] = 0.0 if fitted.shift is None else fitted.shift.numpy()
    trial = fitted.predict(rows, None if fitted.given is None else sparse.csr_array((2, fitted.given.shape[0])))
    if not np.isfinite(trial).all():
        raise UserError("the weights give predictions that are not finite")
    return estimator


def _check_tensors(description: dict[str, Any], tensors: Tensors) -> None:
    """Refuse tensors that are unknown, or have another dtype, shape or range than they must."""
    config, facts, wide = description["model"], description["facts"], description["sparse_shape"]
    graph, channels = facts["graph_"], config["hidden_channels"]
    if (graph == "knn") != (description["neighbours"] is not None) or (wide is not None and graph != "knn"):
        raise UserError(f"graph_ is {graph!r}, but there are {description['neighbours']} neighbours")
    sizes = {"2": 2, "F": facts["n_features_in_"], "T": config["out_channels"], "H": config["num_heads"], "C": channels}
    sizes |= {"V": 1 + channels, "K": 1 if config["diffusivity"] == "constant" else 1 + channels}
    if "rows" in description:  # which are the nodes of a given graph
        sizes |= dict.fromkeys("Nn" if graph == "given" else "N", description["rows"])
    sizes |= {"n": wide[0], "r": wide[0] + 1} if wide is not None else {}
    for name, value in sorted(tensors.items()):
        short = re.sub(r"\.\d+(?=\.)", "", name)
        weights = short.startswith("members.model.")  # whose shapes are those of the model
        if not weights and short not in TENSOR_RULES:
            raise UserError(f"tensor {reprlib.repr(name)[1:-1]} is unknown")
        dtype, axes, words = ("float64", "", "") if weights else TENSOR_RULES[short]
        axes = "N" if name == "of.transduction_" and facts.get("one_column_", True) else axes
        if not str(value.dtype).removeprefix("torch.").startswith(dtype):
            raise UserError(f"{name} must hold {dtype}, got {value.dtype}")
        expected = [sizes.setdefault(axis, size) for axis, size in zip(axes, value.shape, strict=False)]
        if not weights and (value.ndim != len(axes) or list(value.shape) != expected):
            shape = ", ".join(str(sizes.get(axis, "any")) for axis in axes)
            raise UserError(f"{name} must have shape ({shape}), got {tuple(value.shape)}")
        low, high = RANGES[words], 1 if words == "from 0 to 1" else math.inf
        if value.numel() and not (value.isfinite().all() and value.min() >= low and value.max() <= high):
            found = f"{float(value.min()):g} to {float(value.max()):g}"
            raise UserError(f"{name} must be finite numbers {words}, got {found}")
        if short in MORE_RULES:
            holds, problem = MORE_RULES[short]
            if not holds(value).all():
                raise UserError(f"{name} {problem}")
    if sizes.get("N", math.inf) < sizes.get("n", 0):
        raise UserError(f"there are {sizes['n']} rows with a graph and {sizes['N']} fitted rows")


def _labels(name: str, dtype: str, values: list[Any]) -> np.ndarray[Any, Any]:
    """Labels or names; the length of texts is that of the longest, whatever the file claims."""
    kind = dtype.lstrip("<>|=")[0]
    array = np.array(values, dtype=object if kind == "O" else kind if kind == "U" else dtype)
    if json.dumps(plain_list(array)) != json.dumps(values):
        raise UserError(f"{name} must be values of dtype {dtype}, got {reprlib.repr(values)}")
    if name == "feature_names_in_" and not all(isinstance(value, str) for value in values):
        raise UserError(f"{name} must be texts, got {reprlib.repr(values)}")
    if name == "classes_" and not np.array_equal(np.unique(array), array):
        raise UserError(f"{name} must be different labels in order, got {reprlib.repr(values)}")
    return array


def _predictor(kind: str, description: dict[str, Any], tensors: Tensors) -> Predictor:
    """Build the predictor from the tensors, which must equal its state exactly."""
    k, shape, graph = description["neighbours"], description["sparse_shape"], description["facts"]["graph_"]
    search = given = None
    if k is not None:
        search = RowSearch(tensors["search.points"] if shape is None else _csr(tensors, "search", shape), k)
        if k > search.shape[0]:
            raise UserError(f"{k} neighbours cannot be found among {search.shape[0]} rows")
    elif graph == "given":
        matrix = _csr(tensors, "given", (tensors["given.degree"].numel(),) * 2)
        if not description["directed"] and (matrix != matrix.T).nnz:
            raise UserError("given.data must weigh both directions of an edge equally, unless directed is true")
        given = GivenGraph(matrix, tensors["given.digests"].numpy(), directed=description["directed"])
    names = ["scale", "temperature", *([] if description["softmax"] else ["output_scale"])]
    names += ["coefficients", "intercepts", "share"] if kind == "DIFFormerRegressor" else []
    numbers = {"shift": tensors.get("shift"), **{name: tensors[name] for name in names}}
    fitted = Predictor(numbers, search, given, embed=kind == "DIFFormerTransformer")
    members = {name.split(".")[1] for name in tensors if name.startswith("members.")}
    if description["members"] != len(members):
        raise UserError(f"{description['members']} members are described, {len(members)} are there")
    for number in range(len(members)):
        own = _below(tensors, f"members.{number}.")
        fitted.members.append(_member(description["model"], own, with_edges=graph is not None))
    state = fitted.state_dict()
    for name in {**tensors, **state}:
        if name not in state and not name.startswith("of."):
            raise UserError(f"tensor {name} is unknown")
        if name in state and not torch.equal(state[name], tensors[name]):
            raise UserError(f"tensor {name} does not fit the others")
    return fitted


def _below(tensors: Tensors, start: str) -> dict[str, Tensor]:
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _csr(tensors: Tensors, name: str, shape: Any) -> Any:
    """A sparse matrix whose row pointers and column indices are checked, since scipy follows them blindly."""
    matrix = sparse.csr_array(tuple(tensors[f"{name}.{part}"].numpy() for part in CSR), shape=tuple(shape))
    check_scipy(matrix)
    return matrix


def _member(config: dict[str, Any], tensors: Tensors, *, with_edges: bool) -> Member:
    weights = _below(tensors, "model.")
    with no_larger_than(weights), torch.device("meta"):
        model = DIFFormer(**config).double().eval()
    model.load_state_dict(weights, assign=True)
    model.requires_grad_(False)
    layers: Any = model.layers
    memories = []
    for k, layer in enumerate(layers):
        kept = _below(tensors, f"memories.{k}.")
        needed = SUMMARIES.get(layer.form, {"moments"} if layer.backend == "polynomial" else {"keys", "values"})
        optional = ({"sent"} if with_edges else set()) | ({"weight"} if "keys" in needed else set())
        if not needed <= kept.keys() <= needed | optional:
            expected = ", ".join(sorted(needed)) or "nothing"
            raise UserError(f"layer {k} must keep {expected} of its population, got {', '.join(sorted(kept))}")
        memories.append(Memory(kept, layer))
    return Member(model, memories)


class Program(nn.Module):
    """What is exported: plain tensor operations on whole batches.

    It holds neither a given graph's edges nor the fingerprints of its rows.
    """

    def __init__(self, fitted: Predictor) -> None:
        super().__init__()
        self.fitted = copy.deepcopy(fitted)
        self.fitted.given = self.fitted.search = None
        points: Tensor | None = None
        if (search := fitted.search) is not None:
            self.k, self.by_cosine = search.k, search.is_sparse
            if not self.by_cosine:
                points = search.points
            elif math.prod(search.shape) > LARGEST_DENSE:
                raise UserError(
                    f"the {search.shape[0]} × {search.shape[1]} sparse rows that neighbours are searched among are too "
                    f"many for an exported program; fit with graph=None, or reduce the columns first (TruncatedSVD)"
                )
            else:
                points = nn.functional.normalize(torch.from_numpy(search.matrix.toarray()), dim=1)
        self.points = None if points is None else nn.Buffer(points)
        self.degree = None if fitted.given is None or fitted.given.directed else nn.Buffer(fitted.given.degree)

    def forward(self, x: Tensor, edge_index: Tensor | None = None, edge_weight: Tensor | None = None) -> Tensor:
        fitted: Any = self.fitted
        x, edges = x.double(), None
        x = (x if fitted.shift is None else x - fitted.shift) / fitted.scale
        if edge_index is not None and edge_weight is not None:
            edges = RowEdges.normalised(edge_index[1], edge_index[0], edge_weight.double(), x.shape[0], self.degree)
        elif self.points is not None:
            edges = RowEdges.nearest(self._nearest(x))
        return fitted(x, edges)

    def _nearest(self, x: Tensor) -> Tensor:
        """``[M, k]`` nearest fitted rows; of rows at the same distance the first, as a stable sort has them."""
        assert self.points is not None
        if self.by_cosine:
            distance = -nn.functional.normalize(x, dim=1) @ self.points.T
        else:  # not by a matrix product, which would round
            how = "donot_use_mm_for_euclid_dist"
            distance = torch.cdist(x.float().double(), self.points.double(), compute_mode=how)
        k = min(self.k, distance.shape[1])
        furthest = distance.topk(k, largest=False).values[:, -1:]
        nearer, level = distance < furthest, distance == furthest
        chosen = nearer | (level & (level.cumsum(1) <= k - nearer.sum(1, keepdim=True)))
        rows = chosen.float().topk(k).indices.sort(1).values
        return rows.gather(1, distance.gather(1, rows).sort(dim=1, stable=True).indices)


def export_program(estimator: Any, path: str | Path) -> None:
    """Write the program of a fitted estimator to a ``.pt2`` file, completely or not at all."""
    if Path(path).suffix != SUFFIX:
        problem = f"path: a program is a torch.export archive, whose name ends in {SUFFIX}; got {str(path)!r}"
        raise UserError(f"{problem}; write for example {Path(path).stem or 'model'}{SUFFIX} (ONNX is not supported)")
    fitted = estimator.fitted_
    args: tuple[Tensor, ...] = (torch.zeros(3, fitted.scale.numel()),)
    shapes: tuple[Any, ...] = ({0: torch.export.Dim("rows", min=1)},)
    if fitted.given is not None:
        args += (torch.zeros(2, 4, dtype=torch.long), torch.ones(4))
        count = torch.export.Dim("edges", min=1)
        shapes += ({1: count}, {0: count})
    with torch.no_grad():
        program = torch.export.export(Program(fitted), args, dynamic_shapes=shapes)
    with atomic_write(path) as stream:
        torch.export.save(program, stream, extra_files={EXTRA: json.dumps(_texts(estimator))})
