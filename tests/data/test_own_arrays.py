from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_people import BOTH_WAYS, EDGES, PEOPLE, X, Y, pairs

from difformer.data import from_arrays, from_frame
from difformer.data.own.features import read_arrays
from difformer.data.own.targets import encode_targets
from difformer.data.split import index_split, save_splits
from difformer.errors import DataError, UserError


@pytest.mark.parametrize(
    "form", ["numpy", "lists", "torch", "double", "scipy", "csr", "coo", "pandas", "polars", "texts"]
)
def test_features_in_every_form(form):
    x = {
        "numpy": lambda: X,
        "lists": lambda: X.tolist(),
        "torch": lambda: torch.from_numpy(X).float(),
        "double": lambda: torch.from_numpy(X),
        "scipy": lambda: scipy.sparse.coo_matrix(X),
        "csr": lambda: torch.from_numpy(X).to_sparse_csr(),
        "coo": lambda: torch.from_numpy(X).to_sparse(),
        "pandas": lambda: pytest.importorskip("pandas").DataFrame(X, columns=["a", "b", "c"]),
        "polars": lambda: pytest.importorskip("polars").DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}),
        "texts": lambda: [[str(v) for v in row] for row in X],
    }[form]()
    task = from_arrays(x, Y)
    assert task.x.layout == (torch.sparse_csr if form in ("scipy", "csr", "coo") else torch.strided)
    assert task.x.dtype == torch.float32
    assert task.x.to_dense().tolist() == X.tolist()
    assert task.feature_names == (("a", "b", "c") if form in ("pandas", "polars") else ())
    assert task.y.tolist() == [0, 1, 0, 1, 0, 1, -1, 1]
    assert (task.problem, task.metric, task.class_names) == ("multiclass", "accuracy", ("0", "1"))
    assert sum(task.splits[0].sizes()) == 7
    assert "label -1 was read as unlabelled (1 instances)" in task.notes


@pytest.mark.parametrize(
    "edges",
    [
        EDGES,
        EDGES.T,
        torch.from_numpy(EDGES),
        EDGES.tolist(),
        [(0, 1), (1, 2), (2, 3), (3, 4)],
        scipy.sparse.coo_matrix((np.ones(4), EDGES), shape=(8, 8)),
        scipy.sparse.csr_array((np.ones(4), tuple(EDGES)), shape=(8, 8)),
        torch.sparse_coo_tensor(torch.from_numpy(EDGES), torch.ones(4), (8, 8)),
        torch.sparse_coo_tensor(torch.from_numpy(EDGES), torch.ones(4), (8, 8)).to_dense().numpy(),
        np.concatenate([EDGES, EDGES[::-1]], axis=1),  # both directions given already
    ],
    ids=["2xE", "Ex2", "torch", "lists", "pairs", "coo", "csr array", "torch coo", "dense", "both"],
)
def test_graphs_in_every_form(edges):
    task = from_arrays(X, Y, edges)
    assert pairs(task) == BOTH_WAYS
    assert task.edge_weight is None


def test_frames_of_edges_and_pairs_of_ids():
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame(X, index=PEOPLE)
    frame = pd.DataFrame(
        {"from": ["ann", "bob", "cat", "dan"], "to": ["bob", "cat", "dan", "eve"], "w": [1.0, 2, 3, 4]}
    )
    task = from_arrays(x, Y, frame)
    assert pairs(task) == BOTH_WAYS
    assert task.instance_names == tuple(PEOPLE)
    weight = dict(zip(map(tuple, task.edge_index.T.tolist()), task.edge_weight.tolist(), strict=True))
    assert weight[(3, 4)] == weight[(4, 3)] == 4
    assert weight[(7, 7)] == 1
    assert pairs(from_arrays(x, Y, [("ann", "bob"), ("bob", "cat"), ("cat", "dan"), ("dan", "eve")])) == BOTH_WAYS
    assert pairs(from_arrays(X, Y, EDGES, instance_names=PEOPLE)) == BOTH_WAYS  # whole numbers are positions
    with pytest.raises(DataError, match=r"edge 1: no node is called 'zoe'"):
        from_arrays(x, Y, [("ann", "bob"), ("bob", "zoe")])
    polars = pytest.importorskip("polars").DataFrame({"u": EDGES[0], "v": EDGES[1]})
    assert pairs(from_arrays(X, Y, polars)) == BOTH_WAYS


def test_edge_weights_directions_and_self_loops_are_kept():
    weights = [1.0, 2.0, 3.0, 4.0]
    task = from_arrays(X, Y, EDGES, weights, directed=True, self_loops="keep")
    assert task.edge_index.tolist() == EDGES.tolist()
    assert task.edge_weight.tolist() == weights
    matrix = scipy.sparse.csr_matrix((weights, tuple(EDGES)), shape=(8, 8))
    assert from_arrays(X, Y, matrix, directed=True, self_loops="keep").edge_weight.tolist() == weights
    for bad, complaint in (
        ([1.0, 2, 3], "expected 4 numbers, one per edge"),
        ([1.0, 2, 3, -4], "edge 3: a weight must be a finite number ≥ 0, got -4"),
        ([1.0, 2, float("nan"), 4], "edge 2"),
        ([1.0, 2, 3, 1e39], "edge 3: a weight must be a finite number ≥ 0, got 1e.39"),
    ):
        with pytest.raises(DataError, match=complaint):
            from_arrays(X, Y, EDGES, bad)


def test_labels_from_frames_are_matched_by_index():
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame(X, index=PEOPLE, columns=["a", "b", "c"])
    y = pd.Series({"hal": "yes", "ann": "no", "bob": "yes", "cat": "no", "dan": "no"})
    task = from_arrays(x, y)
    assert task.y.tolist() == [0, 1, 0, 0, -1, -1, -1, 1]
    assert task.class_names == ("no", "yes")
    with pytest.raises(DataError, match="'zoe', which that of x does not"):
        from_arrays(x, pd.Series({"zoe": "yes"}))
    frame = pd.DataFrame({"a": X[:, 0], "label": ["u", "v"] * 4})
    assert from_frame(frame, "label").feature_names == ("a",)
    assert from_frame(frame.sample(frac=1, random_state=0), "label").y.bincount().tolist() == [4, 4]
    shuffled = frame["label"].sample(frac=1, random_state=0)
    assert from_arrays(frame[["a"]], shuffled).y.tolist() == [0, 1] * 4


@pytest.mark.parametrize(
    ("y", "problem", "expected", "classes"),
    [
        (["b", "a", "b", None], "multiclass", [1, 0, 1, -1], ("a", "b")),
        (["10", "9", "", "NA"], "multiclass", [1, 0, -1, -1], ("9", "10")),  # by size, not by alphabet
        ([1.0, 2.0, float("nan"), 1.0], "multiclass", [0, 1, -1, 0], ("1", "2")),
        ([-1, 1, 1, -1], "multiclass", [0, 1, 1, 0], ("-1", "1")),  # two classes, not one and none
        ([-1, 0, 1, 1], "multiclass", [-1, 0, 1, 1], ("0", "1")),
        ([True, False, None, True], "multiclass", [1, 0, -1, 1], ("False", "True")),
        ([0.5, -1, float("nan"), 2], "regression", [0.5, -1, None, 2], ()),
        ([[1, 0], [0, 1], [None, 1], [0, -1]], "multilabel", [[1, 0], [0, 1], [None, 1], [0, None]], ()),
        ([[1.5, 0], [0, 1], [None, 1], [0, -1]], "regression", [[1.5, 0], [0, 1], [None, 1], [0, -1]], ()),
    ],
)
def test_labels_tell_the_problem(y, problem, expected, classes):
    task = from_arrays(X[:4], y, splits=index_split("mine", [1], [], []))
    assert task.problem == problem
    got = torch.nan_to_num(task.y, nan=-99).tolist() if task.y.is_floating_point() else task.y.tolist()
    assert got == [
        [-99 if v is None else v for v in r] if isinstance(r, list) else -99 if r is None else r for r in expected
    ]
    assert task.class_names == classes


def test_missing_values_of_frames_are_unlabelled():
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame(X, columns=["a", "b", "c"])
    for y in (
        pd.Series([0, 1, 0, 1, 0, 1, None, 1], dtype="Int64"),
        pd.Series([*"uvuvuv", None, "v"], dtype="string"),
        pd.Series([*"uvuvuv", None, "v"], dtype="category"),
        pd.Series([False, True] * 3 + [None, True], dtype="boolean"),
    ):
        assert from_arrays(x, y).y.tolist() == Y
    x["a"] = pd.array([1, None] * 4, dtype="Int64")
    with pytest.raises(DataError, match="x, row 1, column 'a': a number is missing here"):
        from_arrays(x, Y)


def test_labels_equal_to_column_names_stay_labels():
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame(X, columns=["a", "b", "c"])
    for task in (from_arrays(x, ["a", "b"] * 4), from_frame(x, ["a", "b"] * 4)):
        assert task.num_features == 3
        assert task.class_names == ("a", "b")
    assert from_frame(x.assign(d=Y), "d").num_features == 3
    assert from_frame(x.assign(d=Y, e=Y), ["d", "e"], problem="multilabel").class_names == ("d", "e")
    with pytest.raises(DataError, match="frame: has no column 'e'; it has 'a', 'b', 'c'"):
        from_frame(x, "e")
    with pytest.raises(
        DataError, match=r"y: expected one label per row .* got str; from_frame takes the name of a column"
    ):
        from_arrays(x, "a")


@pytest.mark.parametrize("y", [None, 3, "yes", dict.fromkeys(range(8), 0), {"a", "b"}])
def test_labels_without_an_order_are_refused(y):
    with pytest.raises(DataError, match="y: expected one label per row of x, in the order of the rows"):
        from_arrays(X, y)


def test_bytes_are_texts():
    task = from_arrays(X, np.array([b"no", b"yes"] * 4), instance_names=[name.encode().decode() for name in PEOPLE])
    assert task.class_names == ("no", "yes")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"edge_index": [[0, 1], [1]]}, "edge_index: expected shape .* got rows of different lengths"),
        ({"edge_index": [[0], [1]], "edge_weight": ["big"]}, "edge 0: a weight must be a finite number ≥ 0, got 'big'"),
        ({"edge_index": [[0], [1]], "edge_weight": [[1], [2, 3]]}, "edge"),
        ({"edge_weight": [1.0]}, "edge_weight: weights without edges"),
        ({"node_ptr": [0, 3.5, 8]}, "node_ptr: expected whole numbers"),
    ],
)
def test_invalid_edges_weights_and_pointers_are_refused(options, complaint):
    with pytest.raises(DataError, match=complaint):
        from_arrays(X, Y, **options)


def test_a_series_needs_one_graph_or_one_per_snapshot():
    series = np.zeros((9, 4, 2))
    with pytest.raises(DataError, match="edge_index: a list of 8 graphs for 9 snapshots"):
        from_arrays(series, np.zeros((9, 4)), edge_index=[np.array([[0], [1]])] * 8)


def test_ambiguous_labels_are_refused_with_the_remedy():
    many = np.arange(60) % 50
    with pytest.raises(DataError, match=r"50 different ones in 60 labelled rows; pass problem=regression"):
        from_arrays(np.ones((60, 1)), [f"type {i}" for i in many])
    with pytest.raises(DataError, match=r"25 different ones in 30 labelled rows; pass problem=regression"):
        from_arrays(np.ones((30, 1)), np.arange(30) % 25)
    assert from_arrays(np.ones((60, 1)), many, problem="regression").y.dtype == torch.float32
    assert from_arrays(np.ones((60, 1)), many, problem="multiclass").num_outputs == 50
    with pytest.raises(
        DataError, match=r"row 2, column 1: 'x' is not a number, while other labels have fractions \(1.5\)"
    ):
        from_arrays(X[:3], [1.5, 2.5, "x"])
    with pytest.raises(DataError, match="at least two classes, found 'a'"):
        from_arrays(X[:3], ["a", "a", None])
    with pytest.raises(DataError, match="no label at all"):
        from_arrays(X[:3], [None, None, None])
    with pytest.raises(DataError, match="a class is one column, got 2"):
        from_arrays(X[:3], [[0, 1], [1, 0], [1, 1]], problem="multiclass")
    with pytest.raises(DataError, match="must be 0 or 1, got '2'"):
        from_arrays(X[:3], [[0, 1], [1, 0], [1, 2]], problem="multilabel")
    with pytest.raises(ValueError, match="problem: expected one of"):
        from_arrays(X[:3], [0, 1, 1], problem="ranking")


def test_class_names_may_be_an_array():
    names = np.array(["low", "mid", "high"])
    assert from_arrays(X[:4], ["low", "high", "mid", "low"], class_names=names).class_names == ("low", "mid", "high")


def test_class_names_set_the_order_of_classes():
    task = from_arrays(
        X[:4], ["low", "high", "mid", "low"], class_names=["low", "mid", "high"], fractions=(0.5, 0, 0.5)
    )
    assert task.y.tolist() == [0, 2, 1, 0]
    with pytest.raises(DataError, match=r"row 1, column 1: label 'high' is not among class_names \('low', 'mid'\)"):
        from_arrays(X[:3], ["low", "high", "mid"], class_names=["low", "mid"])
    assert from_arrays(X[:4], ["-1", "0", "1", "0"], missing=(), fractions=(1, 0, 0)).class_names == ("-1", "0", "1")


@given(labels=st.lists(st.sampled_from(["a", "b", "7", "7.0", "", "nan", "?", " a "]), min_size=1, max_size=30))
@settings(deadline=None)
def test_encoding_keeps_every_label(labels):
    clean = [{"7.0": "7"}.get(label.strip(), label.strip()) for label in labels]
    words = (
        {"nan", "?"} if "7" in clean and {*clean} <= {"7", "", "nan", "?"} else set()
    )  # among numbers they cannot be classes
    known = sorted({label for label in clean if label not in {"", *words}})
    if len(known) < 2:
        with pytest.raises(DataError):
            encode_targets([labels])
        return
    targets = encode_targets([labels])
    decoded = [targets.class_names[c] if c >= 0 else None for c in targets.y.tolist()]
    assert decoded == [label if label in known else None for label in clean]


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        ([[1, 2], [3]], r"row 1: x: has 1 columns, expected 2"),
        ([[1, "two"], [3, 4]], r"row 0, column 2: x: expected a number, got 'two'"),
        ([[1, None], [3, 4]], r"row 0, column 2"),
        ([1.0, 2.0], r"got shape \[2\]; a single column is x.reshape"),
        (np.array([[1.0, np.nan], [1, 2]]), r"row 0, column 2: x: holds nan"),
        (scipy.sparse.csr_matrix([[0.0, 1.0], [np.inf, 0]]), r"row 1, column 1: x: holds inf"),
        (np.array([[1e300, 1.0], [1, 2]]), r"holds inf; features must be finite numbers of single precision"),
        (np.empty((2, 0)), "rows and columns"),
        ("file.csv", "x: expected"),
    ],
)
def test_errors_in_features_name_row_and_column(x, complaint):
    with pytest.raises(DataError, match=complaint):
        from_arrays(x, [0, 1])


def test_frames_with_texts_name_the_column():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1, 2], "colour": ["red", "blue"]})
    with pytest.raises(DataError, match="x, row 0, column 'colour': expected a number, got 'red'"):
        from_arrays(frame, [0, 1])
    with pytest.raises(DataError, match="x, row 1, column 'a': a number is missing"):
        from_arrays(pd.DataFrame({"a": [1, None]}), [0, 1])
    with pytest.raises(DataError, match=r"row 1: id 'u' is already that of row 0"):
        from_arrays(pd.DataFrame({"a": [1, 2]}, index=["u", "u"]), [0, 1])


def test_edges_to_unknown_nodes_are_refused():
    for edges, complaint in (
        (np.array([[0, 8], [1, 0]]), "edge 1: there is no node 8: rows are counted from 0 to 7"),
        (np.array([[1, 8], [2, 1]]), "yours seem to count from 1"),
        (np.array([[0.5], [1]]), "0.5 is not the number of a row"),
        (np.zeros((3, 5)), r"expected shape \[2, E\] or \[E, 2\], got \[3, 5\]"),
        (scipy.sparse.eye(5), "square"),
        ([("a", "b")], "edge 0: 'a' is not the number of a row, and the nodes have no ids"),
    ):
        with pytest.raises(DataError, match=complaint):
            from_arrays(X, Y, edges)


def test_mismatched_counts_are_refused():
    with pytest.raises(DataError, match="expected 8 labels, one per row of x, got 3"):
        from_arrays(X, [0, 1, 0])
    with pytest.raises(DataError, match="3 labelled instances are too few to give 25% of them to valid"):
        from_arrays(X[:3], [0, 1, 1])
    with pytest.raises(DataError, match="carries no target"):
        from_arrays(X, Y, splits=index_split("mine", [6], [0], [1]))


def test_splits_may_be_given_drawn_or_read(tmp_path):
    for wrong in (7, "", [], ["x"]):
        with pytest.raises(UserError, match=r"seeds?: expected (a )?whole number"):
            from_arrays(X, Y, seeds=wrong)
    named = [index_split(f"own/seed={name}", [0], [1], [2]) for name in ("x", "9" * 5000)]
    assert "2 splits, own/seed=x to" in from_arrays(X, Y, splits=named).protocol
    assert [s.name for s in from_arrays(X, Y, seeds=(3, 5)).splits] == [
        "stratified 50/25/25/seed=3",
        "stratified 50/25/25/seed=5",
    ]
    given_split = index_split("mine", [0, 1], [2], [3])
    assert from_arrays(X, Y, splits=given_split).splits[0].name == "mine"
    save_splits([given_split], tmp_path / "s.json")
    assert from_arrays(X, Y, splits=tmp_path / "s.json").splits[0].train.tolist() == [0, 1]


def test_a_series_and_many_graphs():
    x = np.arange(60.0).reshape(10, 3, 2)
    series = from_arrays(x, x[..., 0], np.array([[0, 1], [1, 2]]))
    assert (series.kind, series.problem, series.splits[0].sizes()) == ("series", "regression", (2, 2, 6))
    changing = from_arrays(x, x[..., 0], [scipy.sparse.eye(3) * (1 + t) for t in range(10)], self_loops="keep")
    assert changing.edge_weight[4].tolist() == [5.0] * 3
    assert changing.edge_weight[0].tolist() == [1.0] * 3
    with pytest.raises(DataError, match=r"\[T, N\] = \[10, 3\] for .*, got shape \[10, 4\]"):
        from_arrays(x, np.ones((10, 4)))
    graphs = from_arrays(X, ["a", "b", "a"], EDGES[:, [0, 2]], node_ptr=[0, 2, 5, 8], fractions=(0.67, 0, 0.33))
    assert (graphs.kind, graphs.num_instances) == ("graphs", 3)
    with pytest.raises(DataError, match="joins two different graphs"):
        from_arrays(X, ["a", "b", "a"], EDGES, node_ptr=[0, 2, 5, 8], fractions=(0.67, 0, 0.33))


def test_an_empty_label_is_never_a_class():
    """Texts of one's own for "no label" come on top of cells that are empty."""
    task = from_arrays(np.eye(6), np.array(["a", "b", "", "?", "a", "b"]), missing=["?"], fractions=(0.5, 0.25, 0.25))
    assert task.class_names == ("a", "b")
    assert int((task.y >= 0).sum()) == 4


@pytest.mark.parametrize("y", [np.zeros(10), [1.0] * 10, ["a"] * 10, np.zeros((4, 10)), np.zeros((10, 3)), None])
def test_targets_of_a_series_have_its_shape(y):
    with pytest.raises(
        DataError, match=r"y: expected .*\[T, N\] = \[10, 4\] for a series x \[10, 4, 2\], got"
    ) as caught:
        from_arrays(np.zeros((10, 4, 2)), y)
    assert "[N, F]" not in str(caught.value)


class TestStandardize:
    def test_columns_of_different_scale_get_a_note(self):
        x = X * [1.0, 1000.0, 0.0] + [0.0, 5e4, 7.0]
        note = next(n for n in from_arrays(x, Y, feature_names=["age", "pay", "same"]).notes if "scale" in n)
        assert "'pay' has deviation 6.87e+03, 'age' 6.87" in note
        assert "standardize=true" in note
        assert "column 2 has deviation" in from_arrays(x, Y).notes[-1]
        for quiet in (
            from_arrays(x, Y, standardize=True),
            from_arrays(X * [1.0, 50.0, 0.0], Y),
            from_arrays(np.zeros((8, 3)), Y),
            from_arrays(scipy.sparse.csr_array(x), Y),
        ):
            assert not any("differ in scale" in n for n in quiet.notes)

    def test_rare_indicator_columns_get_no_note_on_scale(self):
        x = np.zeros((60_000, 2), dtype=np.float32)
        x[0, 0] = 1
        x[:, 1] = np.arange(60_000) % 7
        y = np.arange(60_000) % 2
        assert not from_arrays(x, y).notes
        assert from_arrays(x * [0.5, 1.0], y).notes

    def test_columns_have_mean_zero_and_deviation_one(self):
        x = X * [1.0, 1000.0, 0.0] + [0.0, 5e6, 7.0]  # the second far from the origin, the third without change
        task = from_arrays(x, Y, edge_index=EDGES, feature_names=["age", "income", "same"], standardize=True)
        expected = (x - x.mean(0)) / [x[:, 0].std(), x[:, 1].std(), 1.0]
        np.testing.assert_allclose(task.x, expected, atol=1e-5)
        assert "columns standardised" in task.protocol
        assert any("standardised over all 8 rows, no label used" in note for note in task.notes)
        np.testing.assert_allclose(task.scaling.shift, x.mean(0))
        plain = from_arrays(x, Y, edge_index=EDGES)
        assert plain.scaling is None
        assert torch.equal(plain.scaled(plain.x), plain.x)
        np.testing.assert_allclose(task.scaled(plain.x), task.x)
        assert task.fingerprint() != plain.fingerprint()

    def test_zeros_of_a_sparse_matrix_stay(self):
        x = scipy.sparse.csr_array(X * (X % 2))
        task = from_arrays(x, Y, standardize=True)
        assert task.x.layout == torch.sparse_csr
        dense = task.x.to_dense()
        assert ((dense == 0).numpy() == (x.toarray() == 0)).all()
        torch.testing.assert_close(dense.square().mean(0).sqrt(), torch.ones(3))
        torch.testing.assert_close(
            task.scaled(torch.tensor([[2.0, 2.0, 2.0]])) * task.scaling.scale, torch.full((1, 3), 2.0).double()
        )

    def test_adding_unscaled_rows_to_a_scaled_task_is_refused(self):
        task = from_arrays(X, Y, standardize=True)
        new = torch.cat([task.x, torch.ones(1, 3)])
        y = torch.cat([task.y, torch.tensor([-1])])
        with pytest.raises(ValueError, match=r"standardised over 8 rows, and x holds 9: .* task\.scaled\(x\)"):
            replace(task, x=new, y=y)
        assert replace(task, x=new, y=y, scaling=None).num_nodes == 9
        with pytest.raises(ValueError, match=r"rows of 3 columns, \[N, F\], got shape \(2, 4\)"):
            task.scaled(torch.ones(2, 4))

    def test_graphs_and_series(self):
        graphs = from_arrays(np.concatenate([X, X + 1]), [0, 1, 0, 1], node_ptr=[0, 4, 8, 12, 16], standardize=True)
        torch.testing.assert_close(graphs.x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
        with pytest.raises(DataError, match="standardize: a series is not scaled here"):
            from_arrays(np.zeros((9, 4, 2)), np.zeros((9, 4)), standardize=True)


def test_splits_may_be_mappings_of_their_parts() -> None:
    parts = {"train": [0, 1, 2], "val": np.array([3, 4]), "test": torch.tensor([5, 6, 7])}
    task = from_arrays(np.eye(8), [0, 1] * 4, splits=parts)
    assert [index.tolist() for index in task.splits[0].parts().values()] == [[0, 1, 2], [3, 4], [5, 6, 7]]
    assert len(from_arrays(np.eye(8), [0, 1] * 4, splits=[parts, parts]).splits) == 2
    for wrong in ({"train": [0, 1], "test": [2, 3]}, {**parts, "train": np.arange(8) < 3}, [3], 7):
        with pytest.raises(DataError, match=r"^splits: .*expected a Split, a mapping of train, valid and test"):
            from_arrays(np.eye(8), [0, 1] * 4, splits=wrong)  # type: ignore[arg-type]


def test_a_sparse_matrix_with_missing_arrays_is_refused(tmp_path) -> None:
    np.savez(tmp_path / "x.npz", x_indptr=np.array([0, 1]), x_data=np.ones(1), y=np.arange(3))
    with pytest.raises(DataError, match=r"x\.npz: is not an array file that can be read .*no array 'x_indices'"):
        read_arrays(tmp_path / "x.npz")
    (tmp_path / "x.npy").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"x\.npy: is not an array file that can be read .*not in the NPY format"):
        read_arrays(tmp_path / "x.npy")
