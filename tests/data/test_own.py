import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from difformer.data.errors import DataError
from difformer.data.own import from_arrays, from_files, from_pyg, read_features
from difformer.data.split import save_splits
from difformer.data.splitting import index_split
from difformer.data.targets import encode_targets

X = np.arange(24.0).reshape(8, 3)
Y = [0, 1, 0, 1, 0, 1, -1, 1]
EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
PEOPLE = ["ann", "bob", "cat", "dan", "eve", "fay", "gil", "hal"]


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content)
        return path

    return write


def people(label=False, ids=True):
    """The table of features as CSV, with or without ids and labels."""
    head = ["name"] * ids + ["a", "b", "c"] + ["label"] * label
    rows = [[PEOPLE[i]] * ids + [f"{v:g}" for v in X[i]] + [["no", "yes", ""][Y[i]]] * label for i in range(8)]
    return "\n".join(",".join(row) for row in [head, *rows]) + "\n"


LABELS = "name,group\n" + "".join(f"{PEOPLE[i]},{['no', 'yes', ''][Y[i]]}\n" for i in reversed(range(8)))
NAMED_EDGES = "from,to\nann,bob\nbob,cat\ncat,dan\ndan,eve\n"
BOTH_WAYS = {(i, i + 1) for i in range(4)} | {(i + 1, i) for i in range(4)} | {(i, i) for i in range(8)}


def pairs(task):
    return {tuple(edge) for edge in task.edge_index.T.tolist()}


# --- arrays


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


def test_weights_directions_and_loops():
    weights = [1.0, 2.0, 3.0, 4.0]
    task = from_arrays(X, Y, EDGES, weights, directed=True, self_loops="keep")
    assert task.edge_index.tolist() == EDGES.tolist()
    assert task.edge_weight.tolist() == weights
    matrix = scipy.sparse.csr_matrix((weights, tuple(EDGES)), shape=(8, 8))
    assert from_arrays(X, Y, matrix, directed=True, self_loops="keep").edge_weight.tolist() == weights
    for bad, complaint in (
        ([1.0, 2, 3], "expected 4 numbers, one an edge"),
        ([1.0, 2, 3, -4], "edge 3: a weight must be a finite number ≥ 0, got -4"),
        ([1.0, 2, float("nan"), 4], "edge 2"),
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
    assert from_arrays(frame, "label").feature_names == ("a",)
    assert from_arrays(frame.sample(frac=1, random_state=0), "label").y.bincount().tolist() == [4, 4]
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


def test_what_labels_do_not_tell_is_asked_for():
    many = np.arange(60) % 50
    with pytest.raises(DataError, match=r"50 different ones in 60 labelled rows; pass problem='regression'"):
        from_arrays(np.ones((60, 1)), many)
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


def test_classes_in_an_order_of_ones_own():
    task = from_arrays(
        X[:4], ["low", "high", "mid", "low"], class_names=["low", "mid", "high"], fractions=(0.5, 0, 0.5)
    )
    assert task.y.tolist() == [0, 2, 1, 0]
    with pytest.raises(DataError, match=r"row 1, column 1: label 'high' is none of class_names \('low', 'mid'\)"):
        from_arrays(X[:3], ["low", "high", "mid"], class_names=["low", "mid"])
    assert from_arrays(X[:4], ["-1", "0", "1", "0"], missing=(), fractions=(1, 0, 0)).class_names == ("-1", "0", "1")


@given(labels=st.lists(st.sampled_from(["a", "b", "7", "7.0", "", "nan", "?", " a "]), min_size=1, max_size=30))
@settings(deadline=None)
def test_encoding_keeps_every_label(labels):
    clean = [{"7.0": "7"}.get(label.strip(), label.strip()) for label in labels]
    known = sorted({label for label in clean if label not in ("", "nan", "?")})
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
def test_features_that_are_no_numbers_are_located(x, complaint):
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


def test_edges_to_nowhere_are_refused():
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


def test_counts_must_agree():
    with pytest.raises(DataError, match="expected 8 labels, one a row of x, got 3"):
        from_arrays(X, [0, 1, 0])
    with pytest.raises(DataError, match="3 labelled instances are too few to give 25% of them to valid"):
        from_arrays(X[:3], [0, 1, 1])
    with pytest.raises(DataError, match="carries no target"):
        from_arrays(X, Y, splits=index_split("mine", [6], [0], [1]))


def test_splits_may_be_given_drawn_or_read(tmp_path):
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
    with pytest.raises(DataError, match=r"needs y \[T, N\] = \[10, 3\], got \[10, 4\]"):
        from_arrays(x, np.ones((10, 4)))
    graphs = from_arrays(X, ["a", "b", "a"], EDGES[:, [0, 2]], node_ptr=[0, 2, 5, 8], fractions=(0.67, 0, 0.33))
    assert (graphs.kind, graphs.num_instances) == ("graphs", 3)
    with pytest.raises(DataError, match="joins two different graphs"):
        from_arrays(X, ["a", "b", "a"], EDGES, node_ptr=[0, 2, 5, 8], fractions=(0.67, 0, 0.33))


# --- files


def test_three_files_joined_by_ids(write):
    task = from_files(write("people.csv", people()), write("labels.csv", LABELS), write("edges.csv", NAMED_EDGES))
    assert task.name == "people"
    assert task.x.tolist() == X.tolist()
    assert task.feature_names == ("a", "b", "c")
    assert task.instance_names == tuple(PEOPLE)
    assert task.class_names == ("no", "yes")
    assert task.y.tolist() == Y
    assert pairs(task) == BOTH_WAYS
    assert task.edge_weight is None


def test_one_file_with_labels_and_split(write):
    table = people(label=True).splitlines()
    parts = ["train", "val", "test", "train", "train", "", "test", "validation"]  # gil has no label
    text = "\n".join([table[0] + ",split", *(f"{row},{part}" for row, part in zip(table[1:], parts, strict=True))])
    task = from_files(write("all.csv", text))
    assert task.y.tolist() == Y
    assert [p.tolist() for p in task.splits[0].parts().values()] == [[0, 3, 4], [1, 7], [2]]
    with pytest.raises(
        DataError, match=r"all\.csv, line 3, column 'split': expected train, valid, test or nothing, got 'vali'"
    ):
        from_files(write("all.csv", text.replace(",val\n", ",vali\n")))


def test_without_ids_rows_are_known_by_their_number(write):
    features = write("f.csv", people(ids=False))
    order = write("l.csv", "\n".join("abc"[v] for v in Y))
    assert from_files(features, order).y.tolist() == [0, 1, 0, 1, 0, 1, 2, 1]
    numbered = write("l.csv", "row 7 b\nrow 0 a\nrow 2 a\nrow 3 b\n".replace("row ", "").replace(" ", ","))
    assert from_files(features, numbered).y.tolist() == [0, -1, 0, 1, -1, -1, -1, 1]
    edges = write("e.txt", "# Directed graph\n# FromNodeId ToNodeId\n0 1\n1 2\n2 3\n3 4\n")
    assert pairs(from_files(features, order, edges)) == BOTH_WAYS
    weighted = write("e.tsv", "0\t1\t0.5\n3\t4\t2\n")
    assert from_files(features, order, weighted, self_loops="keep").edge_weight.tolist() == [0.5, 0.5, 2, 2]


def test_labels_left_out_by_blank_lines(write):
    features = write("f.csv", people(ids=False))
    assert from_files(features, write("l.txt", "a\nb\n\na\nb\n\na\nb\n"), fractions=(1, 0, 0)).y.tolist() == [
        0,
        1,
        -1,
        0,
        1,
        -1,
        0,
        1,
    ]
    assert (
        from_files(features, write("l.txt", "a\n\nb\na\nb\na\nb\na\nb\n"), fractions=(1, 0, 0)).y.tolist() == [0, 1] * 4
    )
    with pytest.raises(DataError, match=r"l\.txt: has 3 rows, the features have 8"):
        from_files(features, write("l.txt", "a\nb\nc\n"))


def test_several_columns_of_labels(write):
    features = write("people.csv", people())
    text = "name,sport,music\n" + "".join(f"{p},{i % 2},{(i // 2) % 2}\n" for i, p in enumerate(PEOPLE))
    task = from_files(features, write("l.csv", text))
    assert (task.problem, task.num_outputs, task.class_names, task.metric) == (
        "multilabel",
        2,
        ("sport", "music"),
        "rocauc",
    )
    only = from_files(features, write("l.csv", text), label_columns="music")
    assert (only.problem, only.y.tolist()) == ("multiclass", [0, 0, 1, 1, 0, 0, 1, 1])
    in_order = write("l.csv", "sport,music\n" + "".join(f"{i % 2},{(i // 2) % 2}\n" for i in range(8)))
    assert from_files(features, in_order).y.tolist() == task.y.tolist()
    heights = write("l.csv", "id,height\n" + "".join(f"{p},1.{i}\n" for i, p in enumerate(PEOPLE[:6])))
    task = from_files(features, heights)
    assert (task.problem, task.metric, task.y[:2].tolist()) == ("regression", "mse", [1.0, pytest.approx(1.1)])
    assert task.y[7].isnan()


def test_data_sets_without_a_header_have_their_class_last(write):
    text = "".join(f"{i},{i * i},{'abc'[i % 3]}\n" for i in range(12))
    task = from_files(write("iris.data", text))
    assert (task.num_features, task.class_names) == (2, ("a", "b", "c"))
    task = from_files(
        write("frame.csv", ",0,1,2\n" + "".join(f"{i},{i},{i},{i}\n" for i in range(8))), write("l.csv", "a\nb\n" * 4)
    )
    assert (task.num_features, task.instance_names[1], task.feature_names) == (3, "1", ("0", "1", "2"))
    task = from_files(
        write("frame.csv", "0,1,2\n" + "".join(f"{i},{i},{i}\n" for i in range(8))), write("l.csv", "a\nb\n" * 4)
    )
    assert task.num_nodes == 8


def test_whole_numbers_written_as_fractions_are_the_same_ids(write):
    features = write("f.csv", "id,a\n" + "".join(f"{i + 100},{i}\n" for i in range(8)))
    labels = write("l.csv", "id,label\n" + "".join(f"{i + 100}.0,{i % 2}.0\n" for i in range(8)))
    edges = write("e.csv", "source,target,weight\n100.0,101.0,2\n")
    task = from_files(features, labels, edges, self_loops="keep")
    assert (task.class_names, pairs(task), task.edge_weight.tolist()) == (("0", "1"), {(0, 1), (1, 0)}, [2, 2])


def test_npz_with_everything(tmp_path):
    masks = np.zeros((2, 8), dtype=bool)
    masks[:, :2] = True
    np.savez(tmp_path / "all.npz", x=X, y=Y, edge_index=EDGES, ids=PEOPLE, train_masks=masks, val_masks=np.roll(masks, 2, 1), test_masks=np.roll(masks, 4, 1))  # fmt: skip  # noqa: E501
    task = from_files(tmp_path / "all.npz")
    assert task.instance_names == tuple(PEOPLE)
    assert pairs(task) == BOTH_WAYS
    assert [s.name for s in task.splits] == ["masks/0", "masks/1"]
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_matrix((np.ones(4), tuple(EDGES)), shape=(8, 8)))
    task = from_files(tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "a.npz")
    assert pairs(task) == BOTH_WAYS
    assert task.y.tolist() == Y
    np.savez(tmp_path / "other.npz", a=X, b=X)
    with pytest.raises(DataError, match="no array called x or features; it has a, b"):
        from_files(tmp_path / "other.npz")


def test_parquet_files(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=PEOPLE)
    frame.assign(label=pd.array([0, 1, 0, 1, 0, 1, None, 1], dtype="Int64")).to_parquet(tmp_path / "f.parquet")
    pd.DataFrame({"u": PEOPLE[:4], "v": PEOPLE[1:5], "w": [1.0] * 4}).to_parquet(tmp_path / "e.parquet")
    task = from_files(tmp_path / "f.parquet", edges=tmp_path / "e.parquet")
    assert task.instance_names == tuple(PEOPLE)
    assert task.y.tolist() == Y
    assert pairs(task) == BOTH_WAYS
    assert set(task.edge_weight.tolist()) == {1.0}
    assert task.feature_names == ("a", "b", "c")


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"edges": NAMED_EDGES + "eve,zoe\n"}, r"e\.csv, line 6, column 'to': no node is called 'zoe'"),
        ({"edges": "ann,bob\nbob,zoe\n"}, r"e\.csv, line 2, column 2: no node is called 'zoe'"),
        ({"edges": "zoe,bob\nbob,ann\n"}, r"e\.csv, line 1, column 1: no node is called 'zoe'"),
        ({"edges": "from,to,weight\nann,bob,x\n"}, r"line 2, column 'weight': expected a number, got 'x'"),
        ({"edges": "from,to,weight\nann,bob,-2\n"}, r"line 2, column 'weight': a weight must be a finite number ≥ 0"),
        (
            {"edges": "from,to,weight\nann,bob,1\nbob,ann,2\n"},
            r"e\.csv: .* between nodes ann and bob .* \(1, 2\)",
        ),
        (
            {"edges": "ann\nbob\n"},
            r"e\.csv: an edge has a source and a target, .* one column; pass delimiter=",
        ),
        ({"edges": "ann,bob,1,2\nbob,cat,1,2\n"}, r"expected 2 or 3 columns, got 4; pass edge_columns"),
        ({"labels": LABELS + "zoe,yes\n"}, r"l\.csv, line 10, column 'name': a label for 'zoe', but no row"),
        (
            {"labels": LABELS + "ann,yes\n"},
            r"l\.csv, line 10, column 'name': a second label for 'ann', the first is on line 9",
        ),
        ({"labels": "name,v\nann,1.5\nbob,2.5\ncat,x\n"}, r"l\.csv, line 4, column 'v': 'x' is not a number"),
        ({"features": people() + "ann,1,2,3\n"}, r"f\.csv, line 10, column 'name': id 'ann' is already that of line 2"),
        ({"features": people() + ",1,2,3\n"}, r"f\.csv, line 10, column 'name': the id is missing here"),
        ({"features": people() + "zoe,1,red,3\n"}, r"f\.csv, line 10, column 'b': expected a number, got 'red'"),
        ({"features": people() + "zoe,1,,3\n"}, r"f\.csv, line 10, column 'b': a number is missing"),
        ({"features": people() + "zoe,1,nan,3\n"}, r"f\.csv, line 10, column 'b': a number is missing"),
        ({"features": people() + "zoe,1,2\n"}, r"f\.csv, line 10: has 3 cell\(s\), expected 4"),
        ({"features": people(label=True)}, r"column 'label' looks like labels and would be used as a feature"),
        ({"features": "name\nann\nbob\n"}, r"f\.csv, line 2, column 'name': expected a number, got 'ann'"),
        ({"labels": None}, r"f\.csv: no column of it is called label or class; .* 'name', 'a', 'b', 'c'"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_and_column(write, files, complaint):
    content = {"features": people(), "labels": LABELS, "edges": NAMED_EDGES, **files}
    paths = {role: write(f"{role[0]}.csv", text) for role, text in content.items() if text is not None}
    with pytest.raises(DataError, match=complaint):
        from_files(**paths)


def test_options_decide_where_guesses_fail(write):
    features = write("f.csv", people(label=True))
    task = from_files(features, write("l.csv", LABELS), drop=["label"])
    assert task.feature_names == ("a", "b", "c")
    task = from_files(
        write("f.csv", "k,a,b\n" + "".join(f"{i + 5},{i},{i % 2}\n" for i in range(8))), ids="k", label_columns="b"
    )
    assert (task.instance_names[0], task.feature_names, task.class_names) == ("5", ("a",), ("0", "1"))
    edges = write("e.csv", "n,s,t\n1,ann,bob\n2,bob,cat\n3,cat,dan\n4,dan,eve\n")
    task = from_files(write("f.csv", people()), write("l.csv", LABELS), edges, edge_columns=("s", "t"))
    assert pairs(task) == BOTH_WAYS
    assert any("not used: n" in note for note in task.notes)
    task = from_files(
        write("f.csv", people(label=True)), edges=write("e.csv", "a,b\nann,bob\n"), header={"edges": True}
    )
    assert (0, 1) in pairs(task)
    with pytest.raises(DataError, match="has no column 'z'; it has 'name', 'a', 'b', 'c', 'label'"):
        from_files(write("f.csv", people(label=True)), label_columns="z")
    with pytest.raises(FileNotFoundError):
        from_files(write("f.csv", people()), "nowhere.csv")


def test_edges_named_in_the_file_by_names_nobody_knows(write):
    edges = write("e.csv", NAMED_EDGES.replace("from,to", "person_a,person_b"))
    task = from_files(write("f.csv", people(label=True)), edges=edges)
    assert pairs(task) == BOTH_WAYS
    assert "line 1 of e.csv was read as a header" in task.notes


def test_labels_named_in_the_file_by_names_nobody_knows(write):
    features = write("f.csv", people())
    task = from_files(features, write("l.csv", LABELS.replace("name,group", "person,team")))
    assert task.y.tolist() == Y
    assert "line 1 of l.csv was read as a header" in task.notes
    with pytest.raises(DataError, match=r"l\.csv, line 1, column 1: a label for 'amn', but no row .* pass header=True"):
        from_files(features, write("l.csv", LABELS.replace("name,group", "amn,yes")))


def test_ids_by_their_usual_names(write):
    for name in ("id", "user_id", "paperId", "Unnamed: 0", "", "Node"):
        text = f"{name},a,label\n" + "".join(f"{i + 5},{i},{i % 2}\n" for i in range(8))
        task = from_files(write("f.csv", text))
        assert (task.instance_names[0], task.feature_names) == ("5", ("a",)), name
    task = from_files(write("f.csv", "valid,a,label\n" + "".join(f"{i + 5},{i},{i % 2}\n" for i in range(8))))
    assert task.feature_names == ("valid", "a")


def test_the_protocol_says_what_was_done_to_the_graph():
    assert from_arrays(X, Y).protocol == "own data, no graph; stratified 50/25/25/seed=0"
    assert (
        "given graph, directed, self-loops removed"
        in from_arrays(X, Y, EDGES, directed=True, self_loops="remove").protocol
    )
    with pytest.raises(ValueError, match="got 'sometimes' and 'error'"):
        from_arrays(X, Y, EDGES, self_loops="sometimes")


def test_new_rows_for_a_trained_model(write):
    task = from_files(write("f.csv", people(label=True)))
    new = write("new.csv", "c,extra,name,a,b\n3,x,ivy,1,2\n6,y,jim,4,5\n")
    found = read_features(new, columns=task.feature_names, num_columns=task.num_features, ids="name")
    assert found.x.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found.ids == ("ivy", "jim")
    assert read_features(write("new.csv", "ivy,1,2,3\njim,4,5,6\n"), columns=task.feature_names).x.tolist() == [
        [1, 2, 3],
        [4, 5, 6],
    ]
    with pytest.raises(DataError, match=r"new\.csv: lacks 1 of the 3 columns wanted: 'b'"):
        read_features(write("new.csv", "name,a,c\nivy,1,2\n"), columns=task.feature_names)
    with pytest.raises(DataError, match="has 2 columns of features, expected 3"):
        read_features(write("new.csv", "1,2\n4,5\n"), num_columns=3)
    assert read_features(write("f.csv", people(label=True)), columns=task.feature_names).x.tolist() == X.tolist()


# --- PyG


def data(**changes):
    pyg = pytest.importorskip("torch_geometric.data")
    return pyg.Data(
        **{
            "x": torch.from_numpy(X).float(),
            "y": torch.tensor([0, 1, 0, 1, 0, 1, -1, 1]),
            "edge_index": torch.from_numpy(EDGES),
            **changes,
        }
    )


def test_one_graph_of_pyg():
    task = from_pyg(data(edge_attr=torch.arange(4.0)[:, None]))
    assert task.edge_index.tolist() == EDGES.tolist()
    assert task.edge_weight.tolist() == [0, 1, 2, 3]
    assert task.y.tolist() == Y
    mask = torch.arange(8) % 4
    task = from_pyg(data(train_mask=mask == 0, val_mask=mask == 1, test_mask=mask == 3))
    assert task.splits[0].valid.tolist() == [1, 5]
    two = torch.stack([mask == 0, mask == 1], 1)
    task = from_pyg(data(train_mask=two, val_mask=two.roll(2, 0), test_mask=torch.zeros_like(two)))
    assert [s.name for s in task.splits] == ["masks/0", "masks/1"]
    assert task.splits[0].valid.tolist() == [2]  # 6 is in the mask, but has no label
    assert "split masks/0: 1 instance without a label left out" in task.notes
    task = from_pyg(data(edge_attr=torch.rand(4, 5)), directed=False, self_loops="add")
    assert pairs(task) == BOTH_WAYS
    assert any("edge_attr with 5 columns is not used" in note for note in task.notes)


def test_many_graphs_of_pyg():
    graphs = [
        data(y=torch.tensor([i % 2]), pos=torch.ones(8, 3) * i, edge_index=torch.from_numpy(EDGES)[:, : i % 4])
        for i in range(8)
    ]
    task = from_pyg(graphs, use_positions=True)
    assert (task.kind, task.num_instances, task.num_nodes, task.num_features) == ("graphs", 8, 64, 6)
    assert task.edge_index[:, 0].tolist() == [8, 9]
    assert task.node_ptr.tolist() == list(range(0, 65, 8))
    batch = pytest.importorskip("torch_geometric.data").Batch.from_data_list(graphs)
    assert from_pyg(batch, use_positions=True).fingerprint() == task.fingerprint()
    clouds = from_pyg(
        [data(x=None, edge_index=None, pos=torch.rand(i + 1, 3), y=torch.tensor([float(i) / 2])) for i in range(8)]
    )
    assert (clouds.problem, clouds.num_features, clouds.edge_index) == ("regression", 3, None)
    several = from_pyg([data(y=torch.tensor([[i % 2, 1]])) for i in range(8)])
    assert (several.problem, several.y.shape) == ("multilabel", (8, 2))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: data(x=None), "data: has neither x nor pos"),
        (lambda: data(y=None), "data: has no tensor y"),
        (lambda: data(edge_index=torch.tensor([[9], [0]])), "data: edge_index, edge 0: there is no node 9"),
        (lambda: [], "an empty list"),
        (
            lambda: [data(y=torch.tensor([1])), data(y=torch.tensor([1, 0]))],
            "graph 1: y holds 2 numbers, that of graph 0 1",
        ),
        (lambda: [data(y=torch.tensor([1])), data(x=torch.rand(8, 2), y=torch.tensor([1]))], "graph 1: has 2 features"),
        (lambda: [1, 2], "got a list with int"),
        (lambda: "cora", "expected a PyG Data or a list of them, got str"),
        (lambda: pytest.importorskip("torch_geometric.data").HeteroData(), "several types"),
    ],
)
def test_pyg_objects_that_are_no_task(make, complaint):
    with pytest.raises(DataError, match=complaint):
        from_pyg(make())
