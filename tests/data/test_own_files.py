import sys

import numpy as np
import pytest
import scipy.sparse
from own_people import BOTH_WAYS, EDGES, LABELS, NAMED_EDGES, PEOPLE, X, Y, pairs, people

from difformer.data import from_arrays, from_files, read_features
from difformer.errors import DataError


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content)
        return path

    return write


def test_three_files_joined_by_ids(write):
    files = (write("people.csv", people()), write("labels.csv", LABELS), write("edges.csv", NAMED_EDGES))
    task = from_files(*files, standardize=False)
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


def test_blank_lines_are_missing_labels_if_the_count_requires_it(write):
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


def test_wrong_number_of_labels_says_what_may_be_meant(write):
    features = write("f.csv", people(ids=False))
    blanks = write("l.txt", "gruppe\na\nb\n\na\nb\n\na\nb\n")
    with pytest.raises(
        DataError, match=r"has 7 rows beside 2 blank lines .*no label.*, the features have 8.* header=true"
    ):
        from_files(features, blanks)
    assert from_files(features, blanks, header={"labels": True}).y.tolist() == [0, 1, -1, 0, 1, -1, 0, 1]
    with pytest.raises(
        DataError, match=r"has 6 rows, .*blank lines at the end do not count: give every label the id of its row"
    ):
        from_files(features, write("l.txt", "label\na\nb\na\nb\na\nb\n\n\n"))


def test_ids_of_labels_for_features_without_ids(write):
    features = write("f.csv", people(ids=False))
    for text in (LABELS, LABELS.replace("name,group", "wer,gruppe"), LABELS.partition("\n")[2]):
        with pytest.raises(
            DataError, match=r"is not the number of a row, and the rows have no ids; add a column"
        ) as caught:
            from_files(features, write("l.csv", text))
        assert "header=" not in str(caught.value)
    whole = "name,group\n" + "".join(f"{p},{'ab'[i % 2]}\n" for i, p in enumerate(PEOPLE))
    task = from_files(features, write("l.csv", whole), label_ids=False, label_columns="group")  # as the error says
    assert task.y.tolist() == [0, 1] * 4
    numbered = write("l.csv", "row,group\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(8)))
    with pytest.raises(DataError, match=r"'row' is not the number of a row, .* no ids; pass header=true"):
        from_files(features, numbered, header={"labels": False})


def test_decimal_commas_give_the_remedy(write):
    rows = [f"{i},5;{2 * i},25;{'ab'[i % 2]}\n" for i in range(8)]
    features = write("f.csv", "\ufeffgroesse;gewicht;gruppe\n" + "".join(rows))
    complaint = r"line 2, column 'groesse': expected a number, got '0,5'; pass decimal=',' if"
    with pytest.raises(DataError, match=complaint):
        from_files(features, label_columns="gruppe")
    task = from_files(features, label_columns="gruppe", decimal=",", standardize=False)
    assert (task.feature_names, task.x[1].tolist()) == (("groesse", "gewicht"), [1.5, 2.25])
    with pytest.raises(DataError, match=r"line 1, column 1: expected a number, got '0,5'; pass decimal=',' if"):
        from_files(write("f.csv", "".join(rows)))
    alone = write("f.csv", "groesse;label\n" + "".join(f"{i},5;{'ab'[i % 2]}\n" for i in range(8)))
    with pytest.raises(DataError, match=complaint):
        from_files(alone)  # its only column of features is not taken for ids


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


def test_npz_by_names(tmp_path):
    """Edges by id, classes by number and name; what is no table of instances is for `from_arrays`."""
    path = tmp_path / "own.npz"
    named = {"ids": np.array(PEOPLE), "edge_index": np.array([["ann", "bob"], ["bob", "cat"]])}
    task = from_arrays(X, Y, edge_index=[[0, 1], [1, 2]])
    np.savez(path, x=X, y=np.array(Y), class_names=np.array(["no", "yes", "never"]), **named)
    found = from_files(path)
    assert found.class_names == ("no", "yes", "never")
    assert found.y.tolist() == Y
    assert found.edge_index.tolist() == task.edge_index.tolist()
    np.savez(tmp_path / "edges.npz", edge_index=named["edge_index"])
    np.savez(path, x=X, y=np.array(Y), ids=named["ids"])
    assert from_files(path, edges=tmp_path / "edges.npz").edge_index.tolist() == task.edge_index.tolist()
    np.savez(path, x=X, class_names=np.array(["no", "yes"]))
    (tmp_path / "l.csv").write_text("\n".join(["no", "yes"] * 4))
    assert from_files(path, labels=tmp_path / "l.csv").class_names == ("no", "yes")
    masks = {"train_mask": np.arange(6) < 2, "val_mask": np.arange(6) == 3, "test_mask": np.arange(6) == 4}
    for arrays, complaint in (
        ({"x": np.zeros((9, 4, 2)), "y": np.zeros((9, 4))}, r"a series of snapshots; .*from_arrays"),
        ({"x": X, "y": np.array([0, 1]), "node_ptr": np.array([0, 4, 8])}, r"holds many graphs .*from_arrays"),
        ({"x": X, "y": np.array(Y), **masks}, r"the masks are not splits: expected 8 entries per split, got 6"),
        ({"x": X, "y": np.array(Y), "edge_index": EDGES, "edge_weight": np.array(["a"] * 4)}, "edge 0: a weight must"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(DataError, match=rf"own\.npz: .*{complaint}"):
            from_files(path)


def test_parquet_columns_of_lists_and_large_integers(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def read(**columns):
        parquet.write_table(pa.table(columns), tmp_path / "own.parquet")
        return from_files(tmp_path / "own.parquet")

    label = ["no", "yes"] * 4
    embedded = read(vector=[[float(i), 2.0] for i in range(8)], label=label)
    assert embedded.feature_names == ("vector_0", "vector_1")  # the first column holds lists, not ids
    assert embedded.instance_names == ()
    large = 2**60  # beyond what a float tells apart
    task = read(a=range(8), label=[large + 1, large + 3, None, None] * 2)
    assert task.y.tolist() == [0, 1, -1, -1] * 2
    for column in ([True, None] * 4, [large + 1, None] * 4, [1, None] * 4):
        assert read(a=column, b=range(8), label=label).feature_names == ("a", "a missing", "b")
    with pytest.raises(DataError, match=r"own\.parquet, row 0, column 'id': the id is missing"):
        read(id=[None, *range(large, large + 7)], a=range(8), label=label)


def test_parquet_without_pandas_names_the_extra(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    (tmp_path / "own.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"reading Parquet needs pandas.*pip install 'difformer\[frames\]'"):
        from_files(tmp_path / "own.parquet")


def test_a_row_number_of_thousands_of_digits_is_refused(write):
    features = write("f.csv", "\n".join(f"{i},{i}" for i in range(8)))
    with pytest.raises(DataError, match=r"l\.csv, line 2, column 'id': inf is not the number of a row"):
        from_files(features, labels=write("l.csv", f"id,g\n{'9' * 5000},A\n0,B\n"))


def test_a_column_of_folds_gets_a_note(write):
    table = "a,fold,label\n" + "".join(f"{i},{i % 4},{'xy'[i % 2]}\n" for i in range(12))
    task = from_files(write("f.csv", table))
    assert any("column 'fold' of f.csv is used as a feature" in note for note in task.notes)
    assert not any("fold" in note for note in from_files(write("f.csv", table), drop="fold").notes)


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
        (
            {"labels": LABELS + "zoe,yes\n"},
            r"l\.csv, line 10, column 'name': no row is called 'zoe'; the 8 known ids begin with 'ann'",
        ),
        (
            {"labels": LABELS + "ann,yes\n"},
            r"l\.csv, line 10, column 'name': a second label for 'ann', the first is on line 9",
        ),
        ({"labels": "name,v\nann,1.5\nbob,2.5\ncat,x\n"}, r"l\.csv, line 4, column 'v': 'x' is not a number"),
        ({"features": people() + "ann,1,2,3\n"}, r"f\.csv, line 10, column 'name': id 'ann' is already that of line 2"),
        ({"features": people() + ",1,2,3\n"}, r"f\.csv, line 10, column 'name': the id is missing here"),
        ({"features": people() + "zoe,1,red,3\n"}, r"f\.csv, line 10, column 'b': expected a number, got 'red'"),
        ({"features": people() + "zoe,1,inf,3\n"}, r"f\.csv, line 10, column 'b': inf is too large"),
        ({"features": people() + "zoe,1,2\n"}, r"f\.csv, line 10, column 'c': has 3 cell\(s\), expected 4"),
        ({"features": people(label=True)}, r"column 'label' looks like labels and would be used as a feature"),
        ({"labels": None}, r"f\.csv: none of its columns is called label or class; .* 'name', 'a', 'b', 'c'"),
    ],
)
def test_errors_name_file_line_and_column(write, files, complaint):
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
    with pytest.raises(DataError, match=r"f\.csv: label_columns: expected at least one column"):
        from_files(features, label_columns=[])
    with pytest.raises(FileNotFoundError):
        from_files(write("f.csv", people()), "nowhere.csv")


def test_unusual_headers_of_edges_are_recognised_by_ids(write):
    edges = write("e.csv", NAMED_EDGES.replace("from,to", "person_a,person_b"))
    task = from_files(write("f.csv", people(label=True)), edges=edges)
    assert pairs(task) == BOTH_WAYS
    assert "line 1 of e.csv was read as a header" in task.notes


def test_a_letter_is_said_not_to_look_like_a_table(write):
    for text in ("Dear customer\nthis is a letter\nbye\n", "Dear customer\nthis is a letter, no more\nbye\n"):
        for option in ({}, {"label_columns": "segment"}):
            with pytest.raises(DataError, match=r"one unnamed column of text \(this does not look like a table\)$"):
                from_files(write("letter.txt", text), **option)


def test_a_third_column_of_edges_used_as_weights_gets_a_note(write):
    features, labels = write("f.csv", people()), write("l.csv", LABELS)
    rows = "ann,bob,1999\nbob,cat,2004\n"
    task = from_files(features, labels, write("e.csv", "von,nach,jahr\n" + rows))
    said = "edges are weighted by column 'jahr' of e.csv; pass edge_columns=von,nach if it is not a weight"
    assert said in task.notes
    assert task.edge_weight.max() == 2004
    task = from_files(features, labels, write("e.csv", "von,nach,jahr\n" + rows), edge_columns=("von", "nach"))
    assert task.edge_weight is None
    assert not any("weighted" in note for note in task.notes)
    unnamed = from_files(features, labels, write("e.csv", rows))
    assert any("by column 3 of e.csv; pass edge_columns=1,2" in note for note in unnamed.notes)
    for header in ("von,nach,weight\n", "von,w,nach\n"):
        meant = rows if header.endswith("weight\n") else "ann,1,bob\nbob,2,cat\n"
        columns = None if header.endswith("weight\n") else ("von", "nach", "w")
        task = from_files(features, labels, write("e.csv", header + meant), edge_columns=columns)
        assert task.edge_weight is not None
        assert not any("weighted" in note for note in task.notes)


def test_classes_missing_from_training_get_a_note(write):
    rows = [(i, "abc"[i % 3], "train" if i % 3 < 2 and i < 8 else "valid" if i < 10 else "test") for i in range(12)]
    text = "size,label,split\n" + "".join(f"{i},{label},{part}\n" for i, label, part in rows)
    task = from_files(write("f.csv", text))
    assert "class 'c' has no instance in the training part: no model can learn to predict that" in task.notes
    task = from_files(write("f.csv", text.replace(",b,train", ",b,test")))
    assert any(note.startswith("classes 'b', 'c' have no instance in the training part") for note in task.notes)
    task = from_files(write("f.csv", text.replace("2,c,valid", "2,c,train")))
    assert not any("training part" in note for note in task.notes)


def test_unusual_headers_of_labels_are_recognised_by_ids(write):
    features = write("f.csv", people())
    task = from_files(features, write("l.csv", LABELS.replace("name,group", "person,team")))
    assert task.y.tolist() == Y
    assert "line 1 of l.csv was read as a header" in task.notes
    unknown = write("l.csv", LABELS.replace("name,group", "amn,yes"))
    with pytest.raises(DataError, match=r"l\.csv, line 1, column 1: no row is called 'amn'; .* pass header=true"):
        from_files(features, unknown, header={"labels": False})


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
    with pytest.raises(ValueError, match="self_loops: expected one of add, remove, keep, got 'sometimes'"):
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


def test_validation_mask_alone_is_refused(tmp_path):
    np.savez(tmp_path / "some.npz", x=X, y=Y, val_mask=np.arange(len(Y)) < 2)
    with pytest.raises(DataError, match="there is no train_mask; pass splits="):
        from_files(features=tmp_path / "some.npz")


def test_quotes_between_spaces_end_with_their_line(write):
    rows = [f"p{i} x{i % 3} {i}" for i in range(20)]
    rows[7:9] = ['p7 "x1 7', 'p8 5" 8']
    rows[10] = 'p10 "New  York" 10'
    lines = "\n".join(row + (" a" if i % 2 else " b") for i, row in enumerate(rows))
    task = from_files(
        write("t.txt", "name town size label\n" + lines + "\n"), label_columns="label", ids="name", delimiter=" "
    )
    assert task.num_instances == 20
    assert any("New  York" in name for name in task.feature_names)
