"""Estimators on disk: as files that carry no code, and as programs that need no package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save
from scipy import sparse
from sklearn.base import clone
from sklearn.neighbors import kneighbors_graph

from difformer.diffusion import Diffusivity
from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor, DIFFormerTransformer, estimator_files
from difformer.nn import PretrainedError

CASES: dict[str, dict[str, Any]] = {
    "sums": {"graph": None},
    "neighbours": {"graph": "knn", "transform_values": True},
    "keys": {"graph": None, "diffusivity": "sigmoid", "num_heads": 2},
    "exponential": {"graph": "knn", "diffusivity": "gaussian:0.3"},
    "mean": {"graph": None, "diffusivity": "constant"},
    "moments": {"graph": None, "diffusivity": "sigmoid", "backend": "polynomial"},
    "identity": {"graph": "knn", "diffusivity": "identity"},
    "attention off": {"graph": "knn", "diffusivity": None, "num_heads": 2},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("as_sparse", [False, True])
def test_loaded_estimator_predicts_the_same_bits(
    case: str, as_sparse: bool, wine: Any, quick: dict[str, Any], tmp_path: Path
) -> None:
    x, _y, partly = wine
    names = np.array(["ash", "beech", "cedar"], dtype=object)
    labels = np.where(partly < 0, -1, names[partly])
    rows = sparse.csr_array(x) if as_sparse else x
    model = DIFFormerClassifier(**{**quick, "n_models": 2}, **CASES[case]).fit(rows, labels)
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["context.safetensors", "estimator.json"]
    loaded = DIFFormerClassifier.from_pretrained(tmp_path)
    assert loaded.get_params() == model.get_params()
    assert (loaded.predict_proba(rows) == model.predict_proba(rows)).all()
    assert (loaded.transduction_ == model.transduction_).all()
    assert loaded.graph_ == model.graph_
    with pytest.raises(ValueError, match="X has 12 features"):
        loaded.predict(x[:, 1:])


def test_a_given_graph_is_remembered(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    graph = kneighbors_graph(x, 4)
    model = DIFFormerClassifier(**quick).fit(x, partly, graph=graph)
    model.save_pretrained(tmp_path)
    loaded = DIFFormerClassifier.from_pretrained(tmp_path)
    np.testing.assert_allclose(loaded.predict_proba(x), model.label_distributions_, atol=1e-9)
    rows = kneighbors_graph(x, 3)[:5]
    assert (loaded.predict_proba(x[:5], graph=rows) == model.predict_proba(x[:5], graph=rows)).all()


def test_regressor_and_transformer_are_restored_with_column_names(
    wine: Any, quick: dict[str, Any], tmp_path: Path
) -> None:
    import pandas as pd

    x, _, partly = wine
    table = pd.DataFrame(x, columns=[f"c{i}" for i in range(13)])
    values = np.where(partly < 0, np.nan, x[:, 0])
    regressor = DIFFormerRegressor(**quick).fit(table, values)
    regressor.save_pretrained(tmp_path / "regressor")
    loaded = DIFFormerRegressor.from_pretrained(tmp_path / "regressor")
    assert (loaded.predict(table) == regressor.predict(table)).all()
    assert (loaded.transduction_ == regressor.transduction_).all()
    assert list(loaded.feature_names_in_) == list(table.columns)
    transformer = DIFFormerTransformer(**quick).fit(table, partly)
    transformer.save_pretrained(tmp_path / "transformer")
    again = DIFFormerTransformer.from_pretrained(tmp_path / "transformer")
    assert (again.transform(table) == transformer.transform(table)).all()
    with pytest.raises(PretrainedError, match="holds a DIFFormerRegressor"):
        DIFFormerClassifier.from_pretrained(tmp_path / "regressor")


def test_no_row_of_the_table_is_in_the_files(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    DIFFormerClassifier(**{**quick, "graph": None}).fit(x, partly).save_pretrained(tmp_path)
    for name, value in load_file(tmp_path / "context.safetensors").items():
        assert len(x) not in value.shape or name == "of.label_distributions_", name


def test_class_weights_are_restored(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, y, _ = wine
    for weight in ({0: 1.0, 1: 2.0, np.int64(2): 3.0}, "balanced"):
        DIFFormerClassifier(**quick, class_weight=weight).fit(x, y).save_pretrained(tmp_path)
        loaded = DIFFormerClassifier.from_pretrained(tmp_path)
        assert loaded.class_weight == weight
        assert loaded.temperature_ > 0


def test_classes_that_are_floats_are_restored(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, y, partly = wine
    model = DIFFormerClassifier(**quick).fit(x, np.where(partly < 0, np.nan, y + 0.0))
    model.save_pretrained(tmp_path)
    loaded = DIFFormerClassifier.from_pretrained(tmp_path)
    assert (loaded.predict(x) == model.predict(x)).all()
    assert (loaded.transduction_ == model.transduction_).all()
    # Files written before this was fixed hold the labels of the rows as well.
    rewrite(tmp_path, **{"of.transduction_": torch.from_numpy(model.transduction_)})
    assert (DIFFormerClassifier.from_pretrained(tmp_path).transduction_ == model.transduction_).all()


def test_options_set_after_fit_do_not_change_a_saved_model(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    model = DIFFormerClassifier(**quick, diffusivity="sigmoid", graph=None).fit(x, partly)
    model.set_params(backend="polynomial", hidden_channels=5, diffusivity="simple").save_pretrained(tmp_path)
    loaded = DIFFormerClassifier.from_pretrained(tmp_path)
    assert (loaded.predict_proba(x) == model.predict_proba(x)).all()
    assert loaded.get_params() == model.get_params()


def test_classes_that_are_dates_are_restored(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, y, _ = wine
    days = np.array(["2020-01-01", "2021-06-01", "2022-01-01"], dtype="M8[D]")
    model = DIFFormerClassifier(**quick).fit(x, days[y])
    model.save_pretrained(tmp_path)
    assert (DIFFormerClassifier.from_pretrained(tmp_path).predict(x) == model.predict(x)).all()


def test_damaged_foreign_and_newer_files(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    DIFFormerClassifier(**quick).fit(x, partly).save_pretrained(tmp_path)
    description, tensors = tmp_path / "estimator.json", tmp_path / "context.safetensors"
    text, content = description.read_text(), tensors.read_bytes()

    def refused(match: str, kind: type[Exception] = PretrainedError) -> None:
        with pytest.raises(kind, match=match):
            DIFFormerClassifier.from_pretrained(tmp_path)
        description.write_text(text)
        tensors.write_bytes(content)

    description.write_text(text[:100])
    refused("damaged")
    description.write_text('{"format": "other"}')
    refused("not a saved estimator")
    description.write_text(json.dumps({**json.loads(text), "format_version": 99}))
    refused("upgrade difformer")
    description.write_text(json.dumps({**json.loads(text), "members": 7}))
    refused("damaged")
    tensors.write_bytes(content[:-50])
    refused("damaged")
    tensors.unlink()
    refused("is missing", FileNotFoundError)


def test_a_custom_diffusivity_has_to_be_given_again(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    cauchy = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
    model = DIFFormerClassifier(**quick, diffusivity=cauchy).fit(x, partly)
    model.save_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match="pass it again"):
        DIFFormerClassifier.from_pretrained(tmp_path)
    loaded = DIFFormerClassifier.from_pretrained(tmp_path, diffusivity=cauchy)
    assert (loaded.predict_proba(x) == model.predict_proba(x)).all()


RUN = """
import sys
import time
sys.modules["difformer"] = None  # as if it were not installed
import json, numpy, torch
try:
    import difformer
    raise SystemExit("the package is visible")
except ImportError:
    pass
folder = sys.argv[1]
extra = {"difformer.json": ""}
inputs = [torch.from_numpy(part) for part in numpy.load(folder + "/inputs.npz").values()]
program = torch.export.load(folder + "/model.pt2", extra_files=extra).module()
numpy.savez(folder + "/outputs.npz", together=program(*inputs).numpy(), facts=extra["difformer.json"])
assert not any(name.startswith("difformer.") for name in sys.modules)
"""


def run_elsewhere(model: Any, folder: Path, *inputs: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    model.export(folder / "model.pt2")
    np.savez(folder / "inputs.npz", *inputs)
    done = subprocess.run([sys.executable, "-c", RUN, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outputs = np.load(folder / "outputs.npz")
    return outputs["together"], json.loads(str(outputs["facts"]))


def test_a_program_runs_without_the_package(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    model = DIFFormerClassifier(**{**quick, "graph": "knn", "n_models": 2}).fit(x, partly)
    found, facts = run_elsewhere(model, tmp_path, x.astype(np.float32))
    np.testing.assert_allclose(found, model.label_distributions_, atol=1e-5)
    assert facts == {"classes_": [0, 1, 2]}


@pytest.mark.parametrize(
    ("case", "as_sparse"), [*((case, False) for case in CASES), ("sums", True), ("neighbours", True)]
)
def test_programs_give_the_same_answers(
    case: str, as_sparse: bool, wine: Any, quick: dict[str, Any], tmp_path: Path
) -> None:
    x, _, partly = wine
    options = {**quick, "hidden_channels": 4, **CASES[case]}
    model = DIFFormerClassifier(**options).fit(sparse.csr_array(x) if as_sparse else x, partly)
    model.export(tmp_path / "model.pt2")
    exported = torch.export.load(tmp_path / "model.pt2")
    # Operators of this package would be missing where it is not installed.
    assert not any("difformer" in str(node.target) for node in exported.graph.nodes if node.op == "call_function")
    program = exported.module()
    features = torch.from_numpy(x).float()
    np.testing.assert_allclose(program(features).numpy(), model.label_distributions_, atol=1e-5)
    np.testing.assert_allclose(program(features[:1]).numpy(), model.label_distributions_[:1], atol=1e-5)


@pytest.mark.parametrize("name", ["est.onnx", "est", "est.pt"])
def test_program_must_be_a_pt2_file(wine: Any, quick: dict[str, Any], tmp_path: Path, name: str) -> None:
    x, _, partly = wine
    model = DIFFormerClassifier(**quick).fit(x, partly)
    with pytest.raises(ValueError, match=rf"ends in \.pt2; got '.*{name}'.*write for example est\.pt2"):
        model.export(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_programs_of_given_graphs_take_edges(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    graph = kneighbors_graph(x, 4, mode="distance")
    graph = sparse.csr_array(graph.maximum(graph.T))
    model = DIFFormerClassifier(**quick).fit(x, partly, graph=graph)
    model.export(tmp_path / "model.pt2")
    coo = graph.tocoo()
    edges = torch.from_numpy(np.stack([coo.col, coo.row]).astype(np.int64))
    program = torch.export.load(tmp_path / "model.pt2").module()
    found = program(torch.from_numpy(x).float(), edges, torch.from_numpy(coo.data).float())
    np.testing.assert_allclose(found.numpy(), model.label_distributions_, atol=1e-5)


def test_programs_of_graphs_hold_no_edges_and_no_fingerprints(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    features, nobody = torch.from_numpy(x).float(), torch.zeros(2, 0, dtype=torch.long)
    for graph in (kneighbors_graph(x, 4), sparse.csr_array((178, 178))):
        model = DIFFormerClassifier(**quick).fit(x, partly, graph=graph)
        model.export(tmp_path / "model.pt2")
        exported = torch.export.load(tmp_path / "model.pt2")
        assert not [name for name in exported.state_dict if "digests" in name or "given" in name]
        alone = exported.module()(features[:3], nobody, torch.zeros(0)).numpy()
        np.testing.assert_allclose(alone, model.predict_proba(x[:3] * (1 + 1e-12)), atol=1e-5)


def test_programs_of_regressors_and_transformers(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    features = torch.from_numpy(x).float()
    regressor = DIFFormerRegressor(**quick).fit(x, np.where(partly < 0, np.nan, x[:, 1]))
    regressor.export(tmp_path / "regressor.pt2")
    found = torch.export.load(tmp_path / "regressor.pt2").module()(features).numpy()[:, 0]
    np.testing.assert_allclose(found, regressor.transduction_, atol=1e-4)
    transformer = DIFFormerTransformer(**quick).fit(x, partly)
    transformer.export(tmp_path / "transformer.pt2")
    found = torch.export.load(tmp_path / "transformer.pt2").module()(features).numpy()
    np.testing.assert_allclose(found, transformer.transform(x), atol=1e-4)


def write_files(folder: Path, description: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Both files, under a hash that is right."""
    content = save(tensors, metadata={"format": "difformer-estimator"})
    description = {**description, "sha256": estimator_files._digest(description, content)}
    (folder / "context.safetensors").write_bytes(content)
    (folder / "estimator.json").write_text(json.dumps(description))


def rewrite(folder: Path, **changes: Any) -> None:
    """Some entries and tensors changed: replaced, removed (None), or mapped (a function). A dot leads into an entry."""
    description = json.loads((folder / "estimator.json").read_text())
    tensors = load_file(folder / "context.safetensors")
    for name, value in changes.items():
        table, last = description, name
        if isinstance(value, torch.Tensor) or name in tensors:
            table = tensors
        elif "." in name:
            entry, _, last = name.partition(".")
            table = description[entry]
        if value is None:
            del table[last]
        else:
            table[last] = value(table[last]).contiguous() if callable(value) else value
    write_files(folder, description, tensors)


def test_a_save_interrupted_over_an_older_one_is_refused(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, y, partly = wine
    DIFFormerClassifier(**quick).fit(x, partly).save_pretrained(tmp_path / "old")
    DIFFormerClassifier(**quick).fit(x, np.where(y == 0, 2, np.where(y == 2, 0, 1))).save_pretrained(tmp_path / "new")
    # The first of the two files is new, the second still the old one.
    new = (tmp_path / "new" / "context.safetensors").read_bytes()
    (tmp_path / "old" / "context.safetensors").write_bytes(new)
    with pytest.raises(PretrainedError, match="saving was interrupted"):
        DIFFormerClassifier.from_pretrained(tmp_path / "old")


def test_changed_byte_is_refused(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    DIFFormerClassifier(**quick).fit(x, partly).save_pretrained(tmp_path)
    path = tmp_path / "context.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(PretrainedError, match="do not belong together"):
        DIFFormerClassifier.from_pretrained(tmp_path)


def test_estimators_of_the_first_format_have_to_be_saved_again(
    wine: Any, quick: dict[str, Any], tmp_path: Path
) -> None:
    x, _, partly = wine
    DIFFormerClassifier(**quick).fit(x, partly).save_pretrained(tmp_path)
    rewrite(tmp_path, format_version=1)
    with pytest.raises(PretrainedError, match="fit and save the estimator again"):
        DIFFormerClassifier.from_pretrained(tmp_path)


def test_indices_out_of_range_are_refused(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    given = DIFFormerClassifier(**quick).fit(x, partly, graph=kneighbors_graph(x, 4))
    sparse_rows = DIFFormerClassifier(**quick, graph="knn").fit(sparse.csr_array(x), partly)
    for model, name in ((given, "given"), (sparse_rows, "search")):
        for part, value in (("indices", 2**30), ("indices", -1), ("indptr", 10**6), ("indptr", 0)):
            model.save_pretrained(tmp_path)
            tensor = load_file(tmp_path / "context.safetensors")[f"{name}.{part}"].clone()
            tensor[7 if part == "indices" else -1] = value
            rewrite(tmp_path, **{f"{name}.{part}": tensor})
            with pytest.raises(PretrainedError, match="damaged"):
                DIFFormerClassifier.from_pretrained(tmp_path)


NAN, DOUBLE = float("nan"), torch.float64

# Kind of estimator, what is changed (a tensor, a function of the tensor or entry that is there, a value, None for
# nothing left of it), and what the error says. The hash is made to fit.
HOSTILE: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown entry": ("neighbours", {"predict": "no"}, "predict is unknown"),
    "missing entry": ("neighbours", {"softmax": None}, "softmax is missing"),
    "unknown fact": ("neighbours", {"facts.predict": "no"}, "facts.predict is unknown"),
    "fact of another type": ("neighbours", {"facts.n_features_in_": True}, "n_features_in_ must be a whole number"),
    "loss that is not a number": ("neighbours", {"facts.loss_": NAN}, "loss_ must be a finite number"),
    "unknown graph": ("neighbours", {"facts.graph_": "own"}, "graph_ must be one of"),
    "graph that is not there": ("neighbours", {"facts.graph_": "given"}, "graph_"),
    "texts of 200 million characters": (
        "neighbours",
        {"classes_": {"dtype": "<U200000000", "values": ["a", "b", "c"]}, "estimator": "annotations"},
        "estimator must be one of",
    ),
    "fewer labels": ("neighbours", {"classes_": {"dtype": "<i8", "values": [0, 1]}}, "2 classes"),
    "labels of a record dtype": ("neighbours", {"classes_": {"dtype": "V8", "values": [0, 1, 2]}}, "dtype"),
    "repeated labels": ("neighbours", {"classes_": {"dtype": "<i8", "values": [0, 1, 1]}}, "different labels in order"),
    "unordered labels": (
        "neighbours",
        {"classes_": {"dtype": "<i8", "values": [0, 2, 1]}},
        "different labels in order",
    ),
    "nested labels": ("neighbours", {"classes_": {"dtype": "|O", "values": [[0], [1], [2]]}}, "classes_"),
    "nested labels of numbers": ("neighbours", {"classes_": {"dtype": "<i8", "values": [[0], [1], [2]]}}, "classes_"),
    "labels that numpy would round": ("neighbours", {"classes_": {"dtype": "<i8", "values": [0, 1.5, 2]}}, "classes_"),
    "labels that are no numbers": ("neighbours", {"classes_": {"dtype": "<f8", "values": [0.0, 1.0, NAN]}}, "classes_"),
    "labels without a dtype": ("neighbours", {"classes_": [0, 1, 2]}, "classes_"),
    "names of columns that are numbers": (
        "neighbours",
        {"feature_names_in_": {"dtype": "|O", "values": list(range(13))}},
        "feature_names_in_",
    ),
    "a thousand million members": ("neighbours", {"members": 10**9}, "1000000000 members"),
    "one member as true": ("neighbours", {"members": True}, "members must be a whole number"),
    "no neighbours": ("neighbours", {"neighbours": 0}, "neighbours must be a whole number"),
    "half a neighbour": ("neighbours", {"neighbours": 1.5}, "neighbours must be a whole number"),
    "true neighbours": ("neighbours", {"neighbours": True}, "neighbours must be a whole number"),
    "more neighbours than rows": ("neighbours", {"neighbours": 10**6}, "1000000 neighbours"),
    "softmax as a number": ("neighbours", {"softmax": 1}, "softmax must be True"),
    "classifier without softmax": ("neighbours", {"softmax": False}, "softmax must be True"),
    "direction as a text": ("given", {"directed": "no"}, "directed must be True or False"),
    "steps as a text": ("neighbours", {"params.steps": "many"}, "params.steps must be a whole number"),
    "negative learning rate": ("neighbours", {"params.learning_rate": -1.0}, "params.learning_rate must be"),
    "unknown option": ("neighbours", {"params.colour": "red"}, "params.colour is unknown"),
    "missing option": ("neighbours", {"params.steps": None}, "params.steps is missing"),
    "class weights of other lengths": (
        "neighbours",
        {"params.class_weight": {"labels": [0, 1], "weights": [1.0]}},
        "params.class_weight must be",
    ),
    "another norm in the model": ("neighbours", {"model.qk_norm": "global"}, "model.qk_norm must be"),
    "step size that is not a number": ("neighbours", {"model.step_size": NAN}, "model.step_size must be"),
    "heads as true": ("neighbours", {"model.num_heads": True}, "model.num_heads must be a whole number"),
    "tensor too many": ("neighbours", {"other": torch.zeros(3)}, "other is unknown"),
    "tensor too few": ("neighbours", {"scale": None}, "scale is missing"),
    "scale that is not finite": ("neighbours", {"scale": lambda t: t * NAN}, "scale .* finite"),
    "scale of zero": ("neighbours", {"scale": lambda t: t * 0}, "scale must be .* above 0"),
    "scale in half precision": ("neighbours", {"scale": lambda t: t.half()}, "scale .* float64"),
    "scale of other columns": ("neighbours", {"scale": lambda t: t[1:]}, r"scale must have shape \(13\)"),
    "shift in brain floats": ("neighbours", {"shift": lambda t: t.bfloat16()}, "shift .* float64"),
    "temperature of zero": ("neighbours", {"temperature": lambda t: t * 0}, "temperature must be .* above 0"),
    "temperature that is not a number": ("neighbours", {"temperature": lambda t: t * NAN}, "temperature .* finite"),
    "two temperatures": ("neighbours", {"temperature": lambda t: t.repeat(2)}, "temperature must have shape"),
    "points in double precision": ("neighbours", {"search.points": lambda t: t.double()}, "search.points .* float32"),
    "points of other columns": ("neighbours", {"search.points": lambda t: t[:, 1:]}, "search.points must have shape"),
    "points in a row": ("neighbours", {"search.points": lambda t: t.flatten()}, "search.points must have shape"),
    "fewer points": ("neighbours", {"search.points": lambda t: t[1:]}, "must have shape"),
    "weights in brain floats": ("neighbours", {"members.0.model.input.weight": lambda t: t.bfloat16()}, "float64"),
    "weights that are whole": ("neighbours", {"members.0.model.input.weight": lambda t: t.long()}, "float64"),
    "weights of another shape": ("neighbours", {"members.0.model.input.weight": lambda t: t[1:]}, "input.weight"),
    "weights that are not finite": ("neighbours", {"members.0.model.output.bias": lambda t: t / 0}, "finite"),
    "weights beyond all sums": ("sums", {"members.0.model.output.weight": lambda t: t * 0 + 1e308}, "not finite"),
    "weights of no layer": (
        "neighbours",
        {"members.0.model.layers.7.value.weight": torch.zeros(8, 8).double()},
        "layer",
    ),
    "member without number": ("neighbours", {"members.x.model.input.bias": torch.zeros(8).double()}, "members"),
    "values of other rows": ("neighbours", {"members.0.memories.0.sent": torch.zeros(5, 8)}, "sent must have shape"),
    "sums of another shape": ("neighbours", {"members.0.memories.0.sums": torch.zeros(3).double()}, "sums must have"),
    "sums of nobody": ("sums", {"members.0.memories.0.sums": lambda t: -t}, "sums .* positive"),
    "sums where keys belong": (
        "neighbours",
        {"model.diffusivity": "sigmoid", "params.diffusivity": "sigmoid"},
        "keys, values",
    ),
    "probabilities that are not numbers": ("sums", {"of.label_distributions_": lambda t: t * NAN}, "finite"),
    "probabilities beyond one": ("sums", {"of.label_distributions_": lambda t: t * 2}, "label_distributions_"),
    "probabilities that do not add up": ("sums", {"of.label_distributions_": lambda t: t / 2}, "add up to 1"),
    "probabilities of fewer rows": ("sums", {"of.label_distributions_": lambda t: t[:5]}, "label_distributions_"),
    "probabilities of no row": ("sums", {"of.label_distributions_": lambda t: t[:0], "rows": 0}, "rows must be"),
    "no probabilities": ("sums", {"of.label_distributions_": None}, "label_distributions_ is missing"),
    "edges of negative weight": ("given", {"given.data": lambda t: -t}, "given.data must be .* at least 0"),
    "edges that are not numbers": ("given", {"given.data": lambda t: t * NAN}, "given.data .* finite"),
    "edges in single precision": ("given", {"given.data": lambda t: t.float()}, "given.data .* float64"),
    "degrees of other edges": ("given", {"given.degree": lambda t: t + 1}, "given.degree"),
    "edges of one direction": ("given", {"given.data": lambda t: t * torch.rand(t.shape).double()}, "given"),
    "fingerprints of fewer rows": ("given", {"given.digests": lambda t: t[1:]}, "given.digests must have shape"),
    "indices that are fractions": ("given", {"given.indices": lambda t: t.double()}, "given.indices .* int"),
    "values that are not numbers": ("regressor", {"of.transduction_": lambda t: t * NAN}, "finite"),
    "values of other targets": (
        "regressor",
        {"of.transduction_": lambda t: t.repeat(2, 1)},
        "transduction_",
    ),
    "column that is no flag": ("regressor", {"facts.one_column_": 1}, "one_column_ must be True or False"),
    "two columns that are one": ("regressor", {"facts.one_column_": False}, "transduction_"),
    "deviation of zero": ("regressor", {"output_scale": lambda t: t * 0}, "output_scale"),
    "share beyond one": ("regressor", {"share": lambda t: t * 0 + 2}, "share"),
    "coefficients of another shape": ("regressor", {"coefficients": lambda t: t[1:]}, "coefficients must have shape"),
    "no coefficients": ("regressor", {"coefficients": None}, "coefficients is missing"),
    "shape of other rows": ("sparse", {"sparse_shape": [3, 13]}, "must have shape"),
    "shape of fractions": ("sparse", {"sparse_shape": [178.0, 13]}, "sparse_shape must be"),
    "shape of one number": ("sparse", {"sparse_shape": 178}, "sparse_shape must be"),
}


@pytest.fixture(scope="module")
def saved(wine: Any, tmp_path_factory: Any) -> dict[str, Path]:
    """One folder per kind of saved estimator."""
    x, _, partly = wine
    quick = {"steps": 5, "hidden_channels": 8, "n_models": 1, "random_state": 0}
    values = np.where(partly < 0, np.nan, x[:, 0])
    models = {
        "neighbours": DIFFormerClassifier(**quick, graph="knn").fit(x, partly),
        "sums": DIFFormerClassifier(**quick, graph=None).fit(x, partly),
        "keys": DIFFormerClassifier(**quick, graph=None, diffusivity="sigmoid").fit(x, partly),
        "given": DIFFormerClassifier(**quick).fit(x, partly, graph=kneighbors_graph(x, 4)),
        "sparse": DIFFormerClassifier(**quick, graph="knn").fit(sparse.csr_array(x), partly),
        "regressor": DIFFormerRegressor(**quick, graph=None).fit(x, values),
        "transformer": DIFFormerTransformer(**quick, graph=None).fit(x, partly),
    }
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in models}
    for kind, model in models.items():
        model.save_pretrained(folders[kind])
        rewrite(folders[kind])
        load_any(folders[kind])  # the hash is right after a rewrite
    return folders


def load_any(folder: Path) -> Any:
    kind = json.loads((folder / "estimator.json").read_text()).get("estimator")
    known = {kind.__name__: kind for kind in (DIFFormerClassifier, DIFFormerRegressor, DIFFormerTransformer)}
    return known.get(kind if isinstance(kind, str) else "", DIFFormerClassifier).from_pretrained(folder)


@pytest.mark.parametrize("case", HOSTILE)
def test_files_that_were_changed_on_purpose_are_refused(case: str, saved: dict[str, Path], tmp_path: Path) -> None:
    kind, changes, words = HOSTILE[case]
    shutil.copytree(saved[kind], tmp_path, dirs_exist_ok=True)
    rewrite(tmp_path, **changes)
    with pytest.raises(PretrainedError, match=f"(?s)damaged.*{words}.*save the estimator again"):
        load_any(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"format_version": ' + "9" * 5000, "damaged"),
        ('"format_version": ' + "9" * 4000, "upgrade difformer"),
        ('"format_version": true', "fit and save the estimator again"),
        ('"format_version": null', "fit and save the estimator again"),
        ('"format_version": ' + "[" * 100_000, "damaged"),
    ],
)
def test_invalid_format_version_is_refused(text: str, words: str, saved: Any, tmp_path: Path) -> None:
    shutil.copytree(saved["sums"], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "estimator.json"
    path.write_text(path.read_text().replace('"format_version": 2', text))
    with pytest.raises(PretrainedError, match=words) as refused:
        DIFFormerClassifier.from_pretrained(tmp_path)
    assert len(str(refused.value)) < 1000


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, -1, 2, 3, 8, 13, 178, 10**9, 10**30, 10**400]),
    st.floats(),
    st.sampled_from(["", "simple", "sigmoid", "gaussian:0.5", "gaussian:0", "softmax", "knn", "<i8", "|O", "<U3"]),
    st.text(max_size=5),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
TENSOR_CHANGES: dict[str, Any] = {
    "half": lambda t: t.half(),
    "brain": lambda t: t.bfloat16(),
    "single": lambda t: t.float(),
    "double": lambda t: t.double(),
    "whole": lambda t: t.nan_to_num().long(),
    "shorter": lambda t: t[1:] if t.ndim else t.reshape(1),
    "flat": lambda t: t.flatten(),
    "deeper": lambda t: t.unsqueeze(0),
    "empty": lambda t: t.flatten()[:0],
    "zero": lambda t: t * 0,
    "negative": lambda t: -t.abs() - 1 if t.dtype != torch.uint8 else t,
    "not a number": lambda t: t.double() * NAN,
    "infinite": lambda t: t.double() / 0,
    "huge": lambda t: t * 0 + (1e300 if t.dtype == DOUBLE else 10**9),
    "missing": lambda t: None,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document below its root."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in entries for place in [(*path, key), *places(inner, (*path, key))]]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_changed_file_loads_with_valid_values_or_is_refused(data: Any, saved: Any, wine: Any) -> None:
    x = wine[0]
    kind = data.draw(st.sampled_from(sorted(saved)))
    description = json.loads((saved[kind] / "estimator.json").read_text())
    tensors = load_file(saved[kind] / "context.safetensors")
    for _ in range(data.draw(st.integers(1, 2))):
        if data.draw(st.booleans()):
            *path, last = data.draw(st.sampled_from([place for place in places(description) if place[0] != "sha256"]))
            parent = description
            for key in path:
                parent = parent[key]
            change = data.draw(st.sampled_from(["replace", "remove", "add"]))
            if change == "add" and isinstance(parent, dict):
                last = data.draw(st.text(max_size=8))
            if change == "remove":
                del parent[last]
            elif isinstance(parent, dict) or change == "replace":
                parent[last] = data.draw(VALUES)
            else:
                parent.append(data.draw(VALUES))
        else:
            name = data.draw(st.sampled_from(sorted(tensors)))
            changed = TENSOR_CHANGES[data.draw(st.sampled_from(sorted(TENSOR_CHANGES)))](tensors[name])
            tensors = {key: value for key, value in tensors.items() if key != name}
            if changed is not None:
                tensors[name] = changed.contiguous()
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), description, tensors)
        refused = None
        try:
            model = load_any(Path(folder))
        except PretrainedError as error:
            refused = str(error)
        event("loaded" if refused is None else "refused")
        if refused is not None:
            assert "again" in refused or "upgrade" in refused or "not a saved estimator" in refused
            assert len(refused) < 1000
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # new rows have no edges
            found = model.transform(x) if hasattr(model, "transform") else model.predict(x)
            assert len(found) == len(x)
            if hasattr(model, "classes_"):
                chances = model.predict_proba(x)
                np.testing.assert_allclose(chances.sum(1), 1)
                assert len(model.classes_) == chances.shape[1] == model.label_distributions_.shape[1]
                assert len(set(model.classes_.tolist())) == len(model.classes_)
                assert np.isin(found, model.classes_).all()
            else:
                assert np.isfinite(found).all()
        model.save_pretrained(folder)
        assert clone(load_any(Path(folder))).get_params().keys() == model.get_params().keys()


def test_a_number_of_layers_without_weights_is_refused_at_once(
    wine: Any, quick: dict[str, Any], tmp_path: Path
) -> None:
    x, _, partly = wine
    DIFFormerClassifier(**quick).fit(x, partly).save_pretrained(tmp_path)
    model = json.loads((tmp_path / "estimator.json").read_text())["model"]
    for changed in ({"num_layers": 10**9}, {"hidden_channels": 10**9}, {"num_heads": 10**9}):
        rewrite(tmp_path, model={**model, **changed})
        started = time.perf_counter()
        with pytest.raises(PretrainedError, match="damaged"):
            DIFFormerClassifier.from_pretrained(tmp_path)
        assert time.perf_counter() - started < 5


def test_own_diffusivity_with_a_known_name_is_not_replaced_by_that_one(tmp_path):
    own = Diffusivity("simple", f=lambda u: torch.exp(-5 * u))
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    model = DIFFormerClassifier(steps=3, n_models=1, graph=None, random_state=0, diffusivity=own).fit(X, y)
    model.save_pretrained(tmp_path / "kept")
    with pytest.raises(PretrainedError, match="pass it again"):
        DIFFormerClassifier.from_pretrained(tmp_path / "kept")


def test_exported_search_breaks_ties_as_the_estimator_does(tmp_path):
    """Binary features tie; of rows at the same distance the first are neighbours."""
    rng = np.random.default_rng(0)
    features = rng.integers(0, 2, (150, 6)).astype(float)
    options = {"graph": "knn", "standardize": False, "n_models": 1, "steps": 5, "hidden_channels": 4, "random_state": 0}
    model = DIFFormerClassifier(**options).fit(features, rng.integers(0, 2, 150))
    new = rng.integers(0, 2, (40, 6)).astype(np.float32)
    estimator_files.export_program(model, tmp_path / "model.pt2")
    found = torch.export.load(tmp_path / "model.pt2").module()(torch.from_numpy(new))
    np.testing.assert_allclose(found.detach().numpy().reshape(40, -1), model.predict_proba(new), atol=1e-6)
