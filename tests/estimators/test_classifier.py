from __future__ import annotations

import pickle
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn.compose
import sklearn.impute
import sklearn.pipeline
import sklearn.preprocessing
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor, selection
from difformer.estimators.selection import CAUTIOUS, Judged, TableProblem, fit_temperature, hold_out, log_loss


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Three clouds far apart, which two labels each suffice to tell."""
    return make_blobs(90, centers=[[0, 0], [9, 0], [0, 9]], random_state=0)


def two_per_class(y: np.ndarray) -> np.ndarray:
    partly = np.full(len(y), -1)
    for label in np.unique(y):
        partly[np.flatnonzero(y == label)[:2]] = label
    return partly


def test_two_labels_per_class_suffice_for_separate_clouds(blobs: Any) -> None:
    x, y = blobs
    model = DIFFormerClassifier(random_state=0, steps=40, n_models=1).fit(x, two_per_class(y))
    assert (model.transduction_ == y).all()
    assert model.label_distributions_.shape == (90, 3)
    np.testing.assert_allclose(model.label_distributions_.sum(1), 1)
    assert model.score(x + 0.1, y) == 1.0
    assert model.n_iter_ == 40


def test_every_mark_of_unlabelled_rows_gives_the_same_model(blobs: Any, quick: dict[str, Any]) -> None:
    x, y = blobs
    partly = two_per_class(y)
    names = np.array(["ash", "beech", "cedar"])
    forms = {
        "whole numbers": partly,
        "floats": np.where(partly < 0, np.nan, partly.astype(float)),
        "texts and None": np.array([None if p < 0 else names[p] for p in partly], dtype=object),
        "texts and NaN": np.array([np.nan if p < 0 else names[p] for p in partly], dtype=object),
        "texts and -1": np.array([-1 if p < 0 else names[p] for p in partly], dtype=object),
        "pandas": pd.Series([pd.NA if p < 0 else names[p] for p in partly], dtype="string"),
        "polars": pl.Series([None if p < 0 else str(names[p]) for p in partly]),
    }
    found = {}
    for form, labels in forms.items():
        model = DIFFormerClassifier(graph=None, **quick).fit(x, labels)
        found[form] = model.label_distributions_
        assert len(model.classes_) == 3, form
        if "numbers" not in form and form != "floats":
            assert set(model.predict(x)) <= set(names), form
    for distributions in found.values():
        assert (distributions == found["whole numbers"]).all()


def test_text_minus_one_is_refused(blobs: Any) -> None:
    x, y = blobs
    with pytest.raises(ValueError, match="dtype object"):
        DIFFormerClassifier().fit(x, np.where(y == 0, "-1", "a"))


def test_labels_minus_one_and_one_are_two_classes(blobs: Any, quick: dict[str, Any]) -> None:
    x, y = blobs
    with pytest.warns(UserWarning, match="read as two classes"):
        model = DIFFormerClassifier(**quick).fit(x, np.where(y == 0, -1, 1))
    assert list(model.classes_) == [-1, 1]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_column_names_of_frames_are_checked(frame: Any, wine: Any, quick: dict[str, Any]) -> None:
    x, _y, partly = wine
    names = [f"column {i}" for i in range(x.shape[1])]
    table = frame(dict(zip(names, x.T, strict=True)))
    model = DIFFormerClassifier(**quick).fit(table, partly)
    assert list(model.feature_names_in_) == names
    assert model.n_features_in_ == 13
    np.testing.assert_array_equal(model.predict(table), model.predict(pd.DataFrame(x, columns=names)))
    shortened = table.drop(columns="column 3") if frame is pd.DataFrame else table.drop("column 3")
    with pytest.raises(ValueError, match=r"now missing:\n- column 3"):
        model.predict(shortened)
    if frame is pd.DataFrame:  # the missing column is named even if another one holds texts
        with pytest.raises(ValueError, match=r"now missing:\n- column 3"):
            model.predict(shortened.assign(city="Oslo"))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.predict(x)


@pytest.mark.parametrize("kind", [DIFFormerClassifier, DIFFormerRegressor])
def test_unknown_option_is_a_type_error_with_the_nearest_name(kind: Any) -> None:
    with pytest.raises(TypeError, match=f"{kind.__name__} has no option 'stepz'; did you mean 'steps'?"):
        kind(stepz=5)


def test_errors_are_those_of_scikit_learn(wine: Any, quick: dict[str, Any]) -> None:
    x, y, partly = wine
    model = DIFFormerClassifier(**quick)
    with pytest.raises(NotFittedError):
        model.predict(x)
    with pytest.raises(NotFittedError):
        model.save_pretrained("nowhere")
    with pytest.raises(ValueError, match="all 178 rows of y are unlabelled"):
        model.fit(x, np.full(178, -1))
    with pytest.raises(ValueError, match="only one class: "):
        model.fit(x, np.where(y == 2, 2, -1))
    with pytest.raises(ValueError, match=r"only one class: 0\.0 "):
        model.fit(x, np.zeros(178))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.fit(np.where(x > 1000, np.nan, x), y)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        model.fit(x, x[:, 0])
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(x, y[:-1])
    with pytest.raises(ValueError, match="weight zero"):
        model.fit(x, partly, sample_weight=(partly < 0).astype(float))
    with pytest.raises(ValueError, match="Negative values"):
        model.fit(x, y, sample_weight=-np.ones(178))
    model.fit(x, partly)
    with pytest.raises(ValueError, match="X has 12 features, but DIFFormerClassifier is expecting 13"):
        model.predict(x[:, 1:])
    with pytest.raises(ValueError, match="Input X contains infinity"):
        model.predict(np.where(x > 1000, np.inf, x))


def test_graph_of_wrong_size_is_refused(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    model = DIFFormerClassifier(**quick)
    with pytest.raises(ValueError, match=r"graph has the wrong size: got a matrix of shape \(5, 5\)"):
        model.fit(x, partly, graph=sparse.eye(5))
    with pytest.raises(ValueError, match="receivers in 0 … 177"):
        model.fit(x, partly, graph=np.array([[0], [178]]))
    names = [["C0001", "C0002"], ["C0002", "C0003"]]
    for named in (names, pd.DataFrame(names, columns=["from", "to"])):
        with pytest.raises(ValueError, match=r"graph holds names, such as 'C0001', .*positions of rows; .*get_indexer"):
            model.fit(x, partly, graph=named)
    with pytest.raises(ValueError, match="non-negative weights"):
        model.fit(x, partly, graph=-sparse.eye(178))
    with pytest.raises(ValueError, match="may be a matrix or an edge_index of 178 edges"):
        model.fit(x, partly, graph=sparse.eye(178)).predict(x[:2], graph=np.eye(2, 178, dtype=int))
    with pytest.raises(ValueError, match="'knn', 'auto'"):
        model.fit(x, partly, graph="neighbours")
    model.fit(x, partly, graph=sparse.eye(178))
    with pytest.raises(ValueError, match=r"expected a matrix of shape \(2, 178\)"):
        model.predict(x[:2], graph=sparse.eye(2))
    with pytest.raises(ValueError, match="fit was given none"):
        DIFFormerClassifier(**quick).fit(x, partly).predict(x[:2], graph=sparse.eye(2, 178))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("steps", 0),
        ("neighbours", 1.5),
        ("n_models", True),
        ("landmarks", 0),
        ("validation_fraction", 1.0),
        ("validation_fraction", "a tenth"),
        ("standardize", "no"),
        ("transform_values", None),
        ("directed", "both"),
    ],
)
def test_fit_names_options_out_of_range(option: str, value: Any, wine: Any) -> None:
    x, y, _ = wine
    model = DIFFormerClassifier(**{option: value})  # to be stored, not judged
    with pytest.raises(ValueError, match=option):
        model.fit(x, y)


def test_a_class_with_one_label_is_trained_on_and_never_held_out(blobs: Any, quick: dict[str, Any]) -> None:
    x, y = blobs
    labels = y.copy()
    labels[np.flatnonzero(y == 2)[1:]] = -1
    # graph="auto": a cross-validation is made.
    model = DIFFormerClassifier(**{**quick, "steps": 30}).fit(x, labels)
    assert (model.transduction_ == y).mean() > 0.9


def test_pipelines_searches_clones_and_pickles(wine: Any, quick: dict[str, Any]) -> None:
    x, y, partly = wine
    model = DIFFormerClassifier(**{**quick, "graph": None, "steps": 15})
    scores = cross_val_score(make_pipeline(StandardScaler(), model), x, y, cv=3)
    assert scores.mean() > 0.85
    search = GridSearchCV(model, {"hidden_channels": [4, 8], "diffusivity": ["simple", "sigmoid"]}, cv=2).fit(x, y)
    assert search.best_params_["diffusivity"] in ("simple", "sigmoid")
    again = clone(model)
    assert again.get_params() == model.get_params()
    assert not hasattr(again, "fitted_")
    model.fit(x, partly)
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict_proba(x) == model.predict_proba(x)).all()


def test_a_pipeline_passes_weights_and_edges_on(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    edges, weight = sparse.eye_array(len(x), format="csr"), np.arange(1.0, len(x) + 1)
    line = make_pipeline(StandardScaler(), DIFFormerClassifier(**quick))
    line.fit(x, partly, difformerclassifier__sample_weight=weight, difformerclassifier__graph=edges)
    alone = DIFFormerClassifier(**quick).fit(StandardScaler().fit_transform(x), partly, weight, graph=edges)
    assert line[-1].graph_ == "given"
    np.testing.assert_array_equal(line[-1].label_distributions_, alone.label_distributions_)


def test_package_exports_the_estimators() -> None:
    import difformer

    assert difformer.DIFFormerClassifier is DIFFormerClassifier
    assert {"DIFFormerClassifier", "DIFFormerRegressor", "DIFFormerTransformer"} <= set(difformer.__all__)


def test_the_same_seed_gives_the_same_model(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    first, second, third = (
        DIFFormerClassifier(**{**quick, "random_state": seed}).fit(x, partly).label_distributions_
        for seed in (0, 0, np.random.RandomState(5))
    )
    assert (first == second).all()
    assert (first != third).any()


@pytest.mark.parametrize(("with_graph", "without", "chosen"), [(0.8, 0.7, None), (0.8, 0.8, "knn"), (0.7, 0.8, "knn")])
@pytest.mark.parametrize("many", [False, True])
def test_neighbour_graph_is_kept_unless_held_out_loss_is_higher(
    with_graph: float,
    without: float,
    chosen: str | None,
    many: bool,
    wine: Any,
    quick: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y, _ = wine
    monkeypatch.setattr(selection, "ENOUGH", 100 if many else 1000)
    losses = iter([with_graph, without, 0.0])  # the last is that of the final models, if labels are held out once
    judged = []

    def measured(problem: Any, tried: Any) -> Judged:
        held_out = np.concatenate([split.valid.numpy() for split, _ in tried])
        assert len(np.unique(held_out)) == len(held_out)
        judged.append(len(held_out))
        return Judged(next(losses), 1.0, "", None)

    monkeypatch.setattr(selection, "judge", measured)
    assert DIFFormerClassifier(**quick).fit(x, y).graph_ == chosen
    assert judged == ([18, 18, 18] if many else [178, 178])


def test_nothing_is_held_out_once_if_the_fraction_is_zero(
    wine: Any, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, _ = wine
    monkeypatch.setattr(selection, "ENOUGH", 100)
    train, seen = selection.train, []

    def watched(problem: Any, recipe: Any, edges: Any, split: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(split.valid.numel())
        return train(problem, recipe, edges, split, *arguments, **options)

    monkeypatch.setattr(selection, "train", watched)
    DIFFormerClassifier(**quick, validation_fraction=0).fit(x, y)
    assert seen == [60, 59, 59, 60, 59, 59, 0]


def test_a_given_fraction_is_held_out_of_few_labels_too(
    wine: Any, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, _ = wine
    train, seen = selection.train, []

    def watched(problem: Any, recipe: Any, edges: Any, split: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(split.valid.numel())
        return train(problem, recipe, edges, split, *arguments, **options)

    monkeypatch.setattr(selection, "train", watched)
    DIFFormerClassifier(**quick, validation_fraction=0.25).fit(x, y)
    assert set(seen) == {round(0.25 * len(y))}
    x, y = x[:3], [0, 1, 2]  # nothing can be spared
    assert DIFFormerClassifier(**quick, validation_fraction=0.25).fit(x, y).validation_loss_ is None


def test_few_labels_or_rows_are_not_cross_validated(wine: Any, blobs: Any, quick: dict[str, Any]) -> None:
    x, y = blobs
    model = DIFFormerClassifier(**quick).fit(x, two_per_class(y))
    assert model.graph_ == "knn"
    assert model.validation_loss_ is None
    assert model.temperature_ == CAUTIOUS
    assert DIFFormerClassifier(**quick).fit(x[:20], y[:20]).graph_ is None


def test_many_labels_allow_three_times_as_many_steps(
    monkeypatch: pytest.MonkeyPatch, wine: Any, quick: dict[str, Any]
) -> None:
    x, y, _ = wine
    monkeypatch.setattr(selection, "ENOUGH", 100)
    model = DIFFormerClassifier(**{**quick, "graph": None, "steps": 30}).fit(x, y)
    assert 1 <= model.n_iter_ <= 90  # up to three times as many steps, or until patience ends
    assert model.score(x, y) > 0.9


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.4, 0.6, 0.9])
def test_held_out_share_equals_the_fraction(fraction: float) -> None:
    y = torch.arange(1000) % 4
    problem = TableProblem(torch.zeros(1000, 1), y, np.arange(1000))
    split = hold_out(problem, fraction, seed=0)
    assert abs(split.valid.numel() - 1000 * fraction) <= 4
    assert split.train.numel() + split.valid.numel() == 1000
    assert (torch.bincount(y[split.valid]) - 250 * fraction).abs().max() <= 1
    values = TableProblem(torch.zeros(1000, 1), torch.rand(1000, 2), np.arange(1000))
    assert abs(hold_out(values, fraction, seed=0).valid.numel() - 1000 * fraction) <= 1


def test_one_row_of_every_class_is_always_trained_on() -> None:
    y = torch.tensor([0] * 50 + [1] * 2 + [2])
    split = hold_out(TableProblem(torch.zeros(53, 1), y, np.arange(53)), 0.9, seed=0)
    assert set(y[split.train].tolist()) == {0, 1, 2}
    assert 2 not in y[split.valid].tolist()


def test_log_loss_does_not_penalise_overconfidence() -> None:
    classes = torch.tensor([0, 1, 1, 0])
    right = torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0], [2.0, 0.0]])
    wrong = right.clone()
    wrong[0] = wrong[0].flip(0)
    assert log_loss(right, classes) < log_loss(wrong, classes)
    assert log_loss(5 * wrong, classes) < torch.nn.functional.cross_entropy(5 * wrong, classes) / 2


def test_the_temperature_undoes_overconfidence() -> None:
    """Labels drawn from softmax(o): the temperature of 4 o is about 4, of o / 4 about a quarter."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(5000, 3, generator=generator, dtype=torch.float64)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    ones = torch.ones(5000, dtype=torch.float64)
    for factor in (4.0, 1.0, 0.5):
        temperature, loss = fit_temperature(factor * logits.unsqueeze(0), target, ones)
        assert temperature == pytest.approx(factor, rel=0.1)
        assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, target)), rel=0.01)
    # Of a handful of rows, all of them right, nothing is concluded.
    sure = 10 * torch.eye(3, dtype=torch.float64).unsqueeze(0)
    assert 1 < fit_temperature(sure, torch.arange(3), ones[:3])[0] < 3


def test_probabilities_are_calibrated_on_held_out_labels(wine: Any) -> None:
    x, _, _ = wine
    noise = (np.random.RandomState(0).rand(178) < 0.2).astype(int)  # labels that the features say nothing about
    with pytest.warns(UserWarning, match="no better than the most frequent class"):
        model = DIFFormerClassifier(random_state=0, n_models=1).fit(x, noise)
    assert np.median(model.label_distributions_.max(1)) < 0.95


def test_a_model_better_than_the_majority_gives_no_warning(wine: Any) -> None:
    x, y, _ = wine
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DIFFormerClassifier(random_state=0, n_models=1).fit(x, y)
    assert model.validation_loss_ < 0.2


def test_class_weights_are_those_of_scikit_learn(quick: dict[str, Any]) -> None:
    rng = np.random.RandomState(0)
    x = np.vstack([rng.randn(90, 2), rng.randn(10, 2) + 2])
    y = np.repeat(["many", "few"], [90, 10])
    options = {**quick, "graph": None, "steps": 60}
    shares = {}
    for weight in (None, "balanced", {"few": 1000.0, "many": 1.0}, {"few": 1.0, "many": 1.0}):
        model = DIFFormerClassifier(**options, class_weight=weight).fit(x, y)
        shares[str(weight)] = model.label_distributions_[:, 0].mean()
    plain, balanced, strong, equal = shares.values()
    assert plain < balanced - 0.05
    assert balanced < strong
    assert plain == pytest.approx(equal, abs=0.02)
    with pytest.raises(ValueError, match="class_weight"):
        DIFFormerClassifier(**options, class_weight="fair").fit(x, y)
    assert clone(DIFFormerClassifier(class_weight="balanced")).class_weight == "balanced"


def test_no_warning_in_ordinary_use(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")  # hidden by the package, until "error"
        DIFFormerClassifier(**quick).fit(x, partly).predict(x)
        DIFFormerClassifier(**quick).fit(sparse.csr_array(x), partly).predict(sparse.csr_array(x))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["age", "city"], r"X: holds categories: city; columns with gaps: age\. difformer\.data\.from_frame\(table"),
        (["city", "when"], r"X: holds dates: when; categories: city\."),
        (["age", "plan"], r"X: holds categories: plan; columns with gaps: age\."),
        (
            ["age"],
            r"X: holds columns with gaps: age\..*`make_pipeline\(SimpleImputer\(\), DIFFormerClassifier\(\)\)`$",
        ),
        (
            ["size", "who", "when"],
            r"ids, free text or constants: who\..*\('drop', \['who', 'when'\]\).*which drops columns",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_raw_frames_are_refused_with_code_that_encodes_them(
    columns: list[str], words: str, kind: str, quick: dict[str, Any]
) -> None:
    table = pd.DataFrame(
        {
            "age": [31.0, None, 45.0, 22.0] * 10,
            "city": ["Ulm", "Bonn", None, "Kiel"] * 10,
            "plan": pd.Categorical(["free", "paid"] * 20),
            "when": pd.date_range("2020-01-01", periods=40),
            "who": [f"C{i:04d}" for i in range(40)],
            "size": [*map(float, range(40))],
        }
    )
    y = np.arange(40) % 2
    raw = pl.from_pandas(table[columns]) if kind == "polars" else table[columns]
    with pytest.raises(ValueError, match=words) as refused:
        DIFFormerClassifier(**quick).fit(raw, y)
    line = re.search(r"`(make_pipeline.*)`", str(refused.value))
    assert line is not None
    known = {**vars(sklearn.compose), **vars(sklearn.pipeline), **vars(sklearn.impute), **vars(sklearn.preprocessing)}
    pipeline = eval(line[1], {**known, "DIFFormerClassifier": lambda: DIFFormerClassifier(**quick)})
    assert pipeline.fit(raw, y).predict_proba(raw).shape == (40, 2)
    assert "difformer.data.from_frame" in str(refused.value)


def test_error_names_the_type_of_an_unknown_graph(wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine
    networkx = pytest.importorskip("networkx")
    with pytest.raises(ValueError, match=r"got a Graph.*scipy sparse matrix"):
        DIFFormerClassifier(**quick).fit(x, partly, graph=networkx.path_graph(178))
    with pytest.raises(ValueError, match=r"shape \(2, 5\) and float64.*whole numbers"):
        DIFFormerClassifier(**quick).fit(x, partly, graph=np.zeros((2, 5)))
