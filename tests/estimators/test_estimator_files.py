"""Estimators on disk: as files that carry no code, and as programs that need no package."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save
from scipy import sparse
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
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("as_sparse", [False, True])
def test_what_is_loaded_predicts_what_was_saved(
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


def test_names_of_columns_and_other_estimators(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
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


def test_dates_as_classes(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
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
def test_a_program_is_called_what_it_is(wine: Any, quick: dict[str, Any], tmp_path: Path, name: str) -> None:
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


def rewrite(folder: Path, **changes: Any) -> None:
    """Both files with some entries and tensors changed (None removes one), under a hash that is right."""
    description = json.loads((folder / "estimator.json").read_text())
    tensors = load_file(folder / "context.safetensors")
    for name, value in changes.items():
        target = tensors if isinstance(value, torch.Tensor) or name in tensors else description
        if value is None:
            del target[name]
        else:
            target[name] = value
    content = save(tensors, metadata={"format": "difformer-estimator"})
    description["sha256"] = estimator_files._digest(description, content)
    (folder / "context.safetensors").write_bytes(content)
    (folder / "estimator.json").write_text(json.dumps(description))


def test_a_save_interrupted_over_an_older_one_is_refused(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, y, partly = wine
    DIFFormerClassifier(**quick).fit(x, partly).save_pretrained(tmp_path / "old")
    DIFFormerClassifier(**quick).fit(x, np.where(y == 0, 2, np.where(y == 2, 0, 1))).save_pretrained(tmp_path / "new")
    # The first of the two files is new, the second still the old one.
    new = (tmp_path / "new" / "context.safetensors").read_bytes()
    (tmp_path / "old" / "context.safetensors").write_bytes(new)
    with pytest.raises(PretrainedError, match="saving was interrupted"):
        DIFFormerClassifier.from_pretrained(tmp_path / "old")


def test_any_changed_byte_is_noticed(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
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
        for part, value in (("indices", 2**30), ("indices", -1), ("indptr", 10**6)):
            model.save_pretrained(tmp_path)
            tensor = load_file(tmp_path / "context.safetensors")[f"{name}.{part}"].clone()
            tensor[7 if part == "indices" else -1] = value
            rewrite(tmp_path, **{f"{name}.{part}": tensor})
            with pytest.raises(PretrainedError, match="damaged"):
                DIFFormerClassifier.from_pretrained(tmp_path)


HOSTILE: dict[str, dict[str, Any]] = {
    "an unknown fact": {"facts": {"n_features_in_": 13, "predict": "no"}},
    "a fact of another type": {"facts": {"n_features_in_": True}},
    "texts of 200 million characters": {"classes_": {"dtype": "<U200000000", "values": ["a", "b"]}},
    "labels of another number": {"classes_": {"dtype": "<i8", "values": [0, 1]}},
    "labels of a record dtype": {"classes_": {"dtype": "V8", "values": [0, 1, 2]}},
    "a class that is no estimator": {"estimator": "annotations"},
    "a thousand million members": {"members": 10**9},
    "no neighbours": {"neighbours": 0},
    "more neighbours than rows": {"neighbours": 10**6},
    "a tensor too many": {"other": torch.zeros(3)},
    "a tensor too few": {"scale": None},
    "values that are not finite": {"scale": torch.full((13,), torch.nan, dtype=torch.float64)},
    "another number of columns": {"scale": torch.ones(12, dtype=torch.float64)},
    "values of other rows": {"members.0.memories.0.sent": torch.zeros(5, 8)},
    "a state of another shape": {"members.0.memories.0.sums": torch.zeros(3, dtype=torch.float64)},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_files_that_were_changed_on_purpose_are_refused(
    case: str, wine: Any, quick: dict[str, Any], tmp_path: Path
) -> None:
    x, _, partly = wine
    DIFFormerClassifier(**quick, graph="knn").fit(x, partly).save_pretrained(tmp_path)
    rewrite(tmp_path)
    DIFFormerClassifier.from_pretrained(tmp_path)  # the hash is right
    rewrite(tmp_path, **HOSTILE[case])
    with pytest.raises(PretrainedError, match="damaged"):
        DIFFormerClassifier.from_pretrained(tmp_path)


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
