"""What a reader guesses it says, and nothing is transposed, relabelled, resplit or dropped without a word."""

import gzip
import os
import threading
from typing import ClassVar

import numpy as np
import pytest
import torch
from own_people import EDGES, PEOPLE, X, Y, pairs, said
from scipy import sparse

from difformer.data import DataError, from_arrays, from_files, from_frame, from_pyg
from difformer.data.own.graphs import edge_ends


class TestEdges:
    @pytest.mark.parametrize("count", [1, 2, 3, 4])
    def test_a_list_of_pairs_is_read_as_pairs_whatever_its_length(self, count):
        given = [(0, 1), (2, 3), (4, 5), (6, 7)][:count]
        for edges in (given, tuple(given), [list(pair) for pair in given]):
            task = from_arrays(X, Y, edges, directed=True, self_loops="keep")
            assert pairs(task) == set(given)
            assert said(task, "was read as two pairs: 0 → 1 and 2 → 3") == (count == 2)

    def test_two_pairs_of_ids(self):
        task = from_arrays(
            X, Y, [("ann", "bob"), ("cat", "dan")], instance_names=PEOPLE, directed=True, self_loops="keep"
        )
        assert pairs(task) == {(0, 1), (2, 3)}

    @pytest.mark.parametrize("make", [np.array, torch.tensor])
    def test_an_array_of_two_by_two_has_sources_above_targets_and_a_note(self, make):
        task = from_arrays(X, Y, make([[0, 1], [2, 3]]), directed=True, self_loops="keep")
        assert pairs(task) == {(0, 2), (1, 3)}
        assert said(task, "was read as sources above targets: 0 → 2 and 1 → 3; pass a list of pairs")

    def test_two_rows_of_arrays_are_sources_and_targets(self):
        ends, note = edge_ends([np.array([0, 1]), np.array([2, 3])])
        assert ends.tolist() == [[0, 1], [2, 3]]
        assert note is not None
        ends, note = edge_ends(EDGES.tolist())
        assert (ends.tolist(), note) == (EDGES.tolist(), None)

    def test_a_matrix_has_its_senders_in_rows(self):
        matrix = sparse.csr_array(([1.0], ([0], [1])), shape=(8, 8))
        for graph in (matrix, matrix.tocoo(), matrix.toarray(), torch.from_numpy(matrix.toarray()).to_sparse()):
            task = from_arrays(X, Y, graph, directed=True, self_loops="keep")
            assert task.edge_index.tolist() == [[0], [1]]

    def test_edges_that_normalisation_would_drop_get_a_note(self):
        task = from_arrays(X, Y, EDGES, directed=True, self_loops="keep")
        assert said(task, "1 of 4 directed edges leave nodes that receive nothing")
        assert not said(from_arrays(X, Y, EDGES, directed=True), "receive nothing")
        assert not said(from_arrays(X, Y, EDGES), "receive nothing")

    def test_graphs_of_pyg_are_undirected_unless_said_otherwise(self):
        pyg = pytest.importorskip("torch_geometric.data")
        data = pyg.Data(x=torch.from_numpy(X).float(), y=torch.tensor(Y), edge_index=torch.from_numpy(EDGES))
        task = from_pyg(data)
        assert pairs(task) == {(i, j) for a, b in EDGES.T.tolist() for i, j in ((a, b), (b, a))}
        assert said(task, "4 of 4 edges came in one direction only; both are used")
        assert pairs(from_pyg(data, directed=True)) == {tuple(edge) for edge in EDGES.T.tolist()}
        data.edge_index = torch.from_numpy(np.concatenate([EDGES, EDGES[::-1]], axis=1))
        assert not said(from_pyg(data), "one direction")


class TestMasks:
    train, test = np.arange(8) < 5, np.arange(8) >= 6

    def check(self, task):
        (split,) = task.splits
        assert split.test.tolist() == [7]  # 6 has no label
        assert sorted([*split.train.tolist(), *split.valid.tolist()]) == [0, 1, 2, 3, 4]
        assert split.valid.numel() == 1
        assert said(task, "has no validation part: 1 of its 5 training instances, drawn with seed 0, are used for")

    def test_masks_without_validation_are_honoured(self, tmp_path):
        np.savez(tmp_path / "all.npz", x=X, y=Y, train_mask=self.train, test_mask=self.test)
        self.check(from_files(tmp_path / "all.npz"))
        pyg = pytest.importorskip("torch_geometric.data")
        data = pyg.Data(x=torch.from_numpy(X).float(), y=torch.tensor(Y), edge_index=torch.from_numpy(EDGES))
        data.train_mask, data.test_mask = torch.from_numpy(self.train), torch.from_numpy(self.test)
        self.check(from_pyg(data))
        torch.save(data, tmp_path / "all.pt")
        self.check(from_files(tmp_path / "all.pt"))

    def test_a_split_column_without_validation_is_honoured(self, tmp_path):
        words = ["train" if a else "test" if b else "" for a, b in zip(self.train, self.test, strict=True)]
        labels = [["no", "yes", ""][y] for y in Y]
        rows = [f"{x[0]},{x[1]},{label},{word}" for x, label, word in zip(X, labels, words, strict=True)]
        (tmp_path / "f.csv").write_text("\n".join(["a,b,label,split", *rows]))
        self.check(from_files(tmp_path / "f.csv"))

    @pytest.mark.parametrize("given", ["train", "test"])
    def test_one_mask_alone_is_refused(self, tmp_path, given):
        np.savez(tmp_path / "all.npz", x=X, y=Y, **{f"{given}_mask": self.train})
        with pytest.raises(DataError, match=r"there is no \w+_mask; pass splits="):
            from_files(tmp_path / "all.npz")
        pyg = pytest.importorskip("torch_geometric.data")
        data = pyg.Data(x=torch.from_numpy(X).float(), y=torch.tensor(Y), **{f"{given}_mask": torch.ones(8) > 0})
        with pytest.raises(DataError, match=r"there is no \w+_mask; pass splits="):
            from_pyg(data)


class TestLabels:
    WORDS = ("none", "NA", "N/A", "null", "nan", "?")

    @pytest.mark.parametrize("word", WORDS)
    @pytest.mark.parametrize("form", ["csv", "parquet", "list", "array"])
    def test_gap_words_among_texts_are_classes_with_a_note(self, tmp_path, word, form):
        labels = [word, "mild", "severe", word, "mild", "severe", "", "mild"]
        if form == "csv":
            rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
            (tmp_path / "f.csv").write_text("a,label\n" + rows)
            task = from_files(tmp_path / "f.csv", ids=False)
        elif form == "parquet":
            pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            cells = [label or None for label in labels]
            parquet.write_table(pa.table({"a": range(8), "label": cells}), tmp_path / "f.parquet")
            task = from_files(tmp_path / "f.parquet", ids=False)
        else:
            task = from_arrays(X, labels if form == "list" else np.array(labels))
        assert set(task.class_names) == {word, "mild", "severe"}
        assert int((task.y < 0).sum()) == 1
        assert said(task, f"labels {word!r} (2 rows) were read as classes; pass missing={word} if")

    @pytest.mark.parametrize("word", WORDS)
    def test_gap_words_among_numbers_are_unlabelled_with_a_note(self, word):
        task = from_arrays(X, ["0", "1", "0", "1", "0", "1", word, "1"])
        assert task.y.tolist() == Y
        assert said(task, f"labels {word!r} (1 rows) were read as unlabelled, since all others are numbers")
        task = from_arrays(X, ["0.5", "1", "0", "1", "0", "1", word, "1"])
        assert (task.problem, bool(task.y[6].isnan())) == ("regression", True)

    def test_missing_lists_the_texts_that_mean_no_label(self):
        task = from_arrays(X, ["a", "b", "a", "b", "a", "b", "None", "b"], missing=["none"])
        assert task.class_names == ("a", "b")
        assert not task.notes

    @pytest.mark.parametrize("name", ["y.csv", "y.csv.gz", "y.tsv.gz"])
    def test_a_label_of_two_words_is_one_label(self, tmp_path, name):
        np.save(tmp_path / "x.npy", X)
        text = ("New York\nLos Angeles\n" * 4).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        assert from_files(tmp_path / "x.npy", tmp_path / name).class_names == ("Los Angeles", "New York")

    def test_a_label_of_two_words_through_a_pipe(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        for text, read in (("New York\nLos Angeles\n" * 4, lambda p: from_files(tmp_path / "x.npy", p).class_names),):
            pipe = tmp_path / "pipe"
            os.mkfifo(pipe)
            writer = threading.Thread(target=pipe.write_text, args=(text,))
            writer.start()
            assert read(pipe) == ("Los Angeles", "New York")
            writer.join()

    def test_cells_separated_by_blanks_get_a_note(self, tmp_path):
        np.save(tmp_path / "x.npy", X)
        np.save(tmp_path / "y.npy", Y)
        (tmp_path / "e.txt").write_text("0 1\n1 2\n")
        task = from_files(tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "e.txt")
        assert said(task, "cells of e.txt were split at spaces")

    @pytest.mark.parametrize("other", ["target", "y", "class", "labels"])
    def test_a_feature_named_like_labels_gets_a_note(self, tmp_path, other):
        rows = "".join(f"{i},{i % 3},{'ab'[i % 2]}\n" for i in range(8))
        (tmp_path / "f.csv").write_text(f"a,{other},label\n" + rows)
        task = from_files(tmp_path / "f.csv", label_columns="label")
        assert task.feature_names == ("a", other)
        assert said(task, f"column {other!r} of f.csv is used as a feature, although its name is usual for labels")


def test_whole_numbers_as_targets_of_a_series_get_a_note():
    x, y = np.random.default_rng(0).random((30, 5, 3)), np.arange(150).reshape(30, 5) % 3
    assert "3 different whole numbers, read as quantities" in " ".join(from_arrays(x, y).notes)
    for task in (from_arrays(x, y, problem="regression"), from_arrays(x, y + 0.5), from_arrays(x, y * x[..., 0])):
        assert not said(task, "quantities")


def test_the_split_of_a_series_gets_a_note():
    x = np.arange(60.0).reshape(10, 3, 2)
    note = "split in time order: the first 2 train, the next 2 choose the model, the last 6 test"
    assert said(from_arrays(x, x[..., 0]), note)
    assert said(from_arrays(x, x[..., 0], fractions=(0.5, 0.2, 0.3)), "the first 5 train")


class TestSplitsByIndex:
    """Arrays such as train_idx are masks in another form, and follow the same rules."""

    parts: ClassVar = {"train": [0, 2, 3], "val": [1], "test": [4, 5]}

    def ways(self, tmp_path, **arrays):
        """The same arrays in an NPZ file, in a PyG Data and in a .pt file, each as a function that loads it."""
        pyg = pytest.importorskip("torch_geometric.data")
        np.savez(tmp_path / "all.npz", x=X, y=Y, **{k: np.array(v) for k, v in arrays.items()})
        data = pyg.Data(x=torch.from_numpy(X).float(), y=torch.tensor(Y))
        for name, value in arrays.items():
            setattr(data, name, torch.tensor(value))
        torch.save(data, tmp_path / "all.pt")
        return (
            lambda **options: from_files(tmp_path / "all.npz", **options),
            lambda **options: from_pyg(data, **options),
            lambda **options: from_files(tmp_path / "all.pt", **options),
        )

    @pytest.mark.parametrize("ending", ["idx", "index"])
    @pytest.mark.parametrize("valid", ["val", "valid"])
    def test_stored_indices_are_the_split(self, tmp_path, ending, valid):
        names = {"train": "train", "val": valid, "test": "test"}
        for load in self.ways(tmp_path, **{f"{names[part]}_{ending}": at for part, at in self.parts.items()}):
            task = load()
            assert [index.tolist() for index in task.splits[0].parts().values()] == list(self.parts.values())
            assert len(task.splits) == 1

    def test_a_missing_validation_part_is_drawn_from_training_with_a_note(self, tmp_path):
        for load in self.ways(tmp_path, train_idx=[0, 1, 2, 3], test_idx=[4, 5]):
            task = load()
            assert task.splits[0].test.tolist() == [4, 5]
            assert said(task, "has no validation part: 1 of its 4 training instances")

    def test_unlabelled_instances_are_left_out_with_a_note(self, tmp_path):
        for load in self.ways(tmp_path, train_idx=[0, 1, 6], val_idx=[2, 3], test_idx=[4, 5]):
            assert said(load(), "1 instance without a label left out")

    @pytest.mark.parametrize(
        ("arrays", "words"),
        [
            ({"train_idx": [0, 1]}, "there is no test_idx; pass splits="),
            ({"val_idx": [0, 1]}, "there is no train_idx"),
            ({"train_idx": [0, 8], "test_idx": [1]}, "index 8.* 8 instances"),
            ({"train_idx": [0, 1], "test_idx": [1]}, "both train and test"),
            ({"train_idx": [0.5, 1], "test_idx": [1]}, "whole numbers"),
            ({"train_idx": [0, -1], "test_idx": [1]}, "negative"),
        ],
    )
    def test_invalid_indices_are_refused_unless_splits_are_given(self, tmp_path, arrays, words):
        from difformer.data import index_split

        for load in self.ways(tmp_path, **arrays):
            with pytest.raises(DataError, match=words):
                load()
            load(splits=index_split("own", [0], [1], [2, 3]))

    def test_masks_and_indices_that_differ_are_refused(self, tmp_path):
        masks = {f"{part}_mask": [i in at for i in range(8)] for part, at in self.parts.items()}
        index = {f"{part}_idx": at for part, at in self.parts.items()}
        for load in self.ways(tmp_path, **masks, **index):
            assert load().splits[0].train.tolist() == [0, 2, 3]
        for load in self.ways(tmp_path, **masks, **{**index, "train_idx": [0]}):
            with pytest.raises(DataError, match="train_mask and train_idx differ"):
                load()


class TestLabelsThatLookAlike:
    words = ("Churn", "churn", "stay", "stay", "Churn", "churn", "stay", "stay")

    def test_labels_that_differ_in_case_only_get_a_note(self, tmp_path):
        (tmp_path / "x.csv").write_text("a,label\n" + "".join(f"{i},{w}\n" for i, w in enumerate(self.words)))
        for task in (from_arrays(X, list(self.words)), from_files(tmp_path / "x.csv")):
            assert said(task, "labels 'Churn' (2 rows) and 'churn' (2 rows) differ only in case or blanks")
            assert task.class_names == ("Churn", "churn", "stay")

    def test_labels_that_differ_in_blanks_only_get_a_note(self):
        task = from_arrays(X, ["New York", "New  York", "Rome", "Rome"] * 2)
        assert said(task, "labels 'New  York' (2 rows) and 'New York' (2 rows) differ only in case or blanks")

    def test_blanks_around_labels_are_trimmed_with_a_note(self):
        task = from_arrays(X, ["yes ", "yes", " no", "no"] * 2)
        assert task.class_names == ("no", "yes")
        assert said(task, "blanks around 4 labels were left out, such as those of 'yes '")
        assert not said(from_arrays(X, ["yes", "no"] * 4), "blanks")

    def test_many_different_numbers_get_a_hint_at_regression(self):
        y = np.arange(100) % 30
        task = from_arrays(np.arange(100.0)[:, None], y)
        assert said(task, "30 different whole numbers were read as classes; pass problem=regression if they are")
        assert not said(from_arrays(np.arange(100.0)[:, None], y, problem="multiclass"), "regression")
        assert not said(from_arrays(np.arange(100.0)[:, None], y % 5), "regression")
        assert not said(from_arrays(np.arange(100.0)[:, None], [f"c{i}" for i in y]), "regression")

    def test_mostly_rare_whole_numbers_are_quantities_with_a_note(self):
        x, y = np.arange(120.0)[:, None], [str(i % 40 + 18) for i in range(120)]
        task = from_arrays(x, y)
        assert (task.problem, task.y.tolist()) == ("regression", [float(i) for i in y])
        note = "labels: 40 different whole numbers, most in fewer than 5 rows, were read as quantities (regression)"
        assert said(task, f"{note}; pass problem=multiclass if they are classes")
        assert from_arrays(x, y, problem="multiclass").num_outputs == 40
        from_zero, gaps = [str(i % 40) for i in range(120)], [str(i % 40 - 1) for i in range(120)]
        numbers = np.arange(120) % 40 + 18  # an array of whole numbers holds classes, as in PyTorch
        for classes in (from_zero, gaps, numbers, [i for i in y for _ in (0, 1)], [f"c{i}" for i in y]):
            assert from_arrays(np.arange(len(classes)).reshape(-1, 1), classes).problem == "multiclass"


class TestMisspelledColumns:
    def test_the_nearest_column_is_suggested(self, tmp_path):
        pandas = pytest.importorskip("pandas")
        table = "name,income,segment\n" + "".join(f"p{i},{i},{'ab'[i % 2]}\n" for i in range(8))
        (tmp_path / "x.csv").write_text(table)
        frame = pandas.read_csv(tmp_path / "x.csv")
        for ask in (
            lambda: from_files(tmp_path / "x.csv", label_columns="segmnet"),
            lambda: from_frame(frame, "Segment"),
            lambda: from_frame(frame, "segmnet"),
        ):
            with pytest.raises(DataError, match=r"column 'S?s?egme?n?e?t'; did you mean segment\?"):
                ask()
        with pytest.raises(DataError, match="did you mean income") as refused:
            from_files(tmp_path / "x.csv", label_columns="segment", drop="incom")
        assert "it has 'name', 'income', 'segment'" in str(refused.value)

    def test_the_error_names_the_option_at_fault(self, tmp_path):
        (tmp_path / "x.csv").write_text("name,a,label\n" + "".join(f"p{i},{i},{'ab'[i % 2]}\n" for i in range(8)))
        for option in ("label_columns", "drop", "ids", "split_column", "categories", "dates"):
            with pytest.raises(DataError) as refused:
                from_files(tmp_path / "x.csv", **{option: "nothing"})
            assert refused.value.argument == option


class TestGraphsInEveryForm:
    def graphs(self):
        dense = np.zeros((8, 8))
        dense[EDGES[0], EDGES[1]] = 1
        return {
            "scipy csr": sparse.csr_matrix(dense),
            "scipy coo": sparse.coo_array(dense),
            "torch sparse": torch.from_numpy(dense).to_sparse(),
            "dense array": dense,
            "dense integers": dense.astype(int),
            "dense booleans": dense.astype(bool),
            "dense tensor": torch.from_numpy(dense),
            "dense lists": dense.tolist(),
            "transposed": np.ascontiguousarray(EDGES.T),
            "transposed tensor": torch.tensor(EDGES.T),
            "[2, E]": EDGES,
        }

    def test_every_form_gives_the_same_graph(self, tmp_path):
        wanted = set(map(tuple, EDGES.T.tolist()))
        for form, graph in self.graphs().items():
            assert pairs(from_arrays(X, Y, graph, directed=True, self_loops="keep")) == wanted, form

    def test_a_square_frame_is_an_adjacency_matrix(self):
        pandas = pytest.importorskip("pandas")
        task = from_arrays(X, Y, pandas.DataFrame(self.graphs()["dense array"]), directed=True, self_loops="keep")
        assert pairs(task) == set(map(tuple, EDGES.T.tolist()))

    @pytest.mark.parametrize("name", ["adj", "adjacency", "adj_matrix", "edge_index"])
    def test_arrays_of_a_file_may_be_adjacency_matrices(self, tmp_path, name):
        np.savez(tmp_path / "all.npz", x=X, y=Y, **{name: self.graphs()["dense array"]})
        task = from_files(tmp_path / "all.npz", directed=True, self_loops="keep")
        assert pairs(task) == set(map(tuple, EDGES.T.tolist()))

    def test_matrices_of_another_size_are_refused_with_the_remedy(self, tmp_path):
        for graph in (np.eye(5), sparse.eye(5), np.eye(5).tolist()):
            with pytest.raises(DataError, match=r"adjacency matrix of 8 nodes .*8, 8.*got.*5"):
                from_arrays(X, Y, graph)
        np.savetxt(tmp_path / "a.csv", np.eye(8), delimiter=",", fmt="%g")
        np.savez(tmp_path / "x.npz", x=X, y=Y)
        with pytest.raises(DataError, match=r"expected 2 or 3 columns, got 8; .* adjacency matrix with numpy.save"):
            from_files(tmp_path / "x.npz", edges=tmp_path / "a.csv")

    def test_unused_arrays_get_a_note(self, tmp_path):
        np.savez(tmp_path / "all.npz", x=X, y=Y, colours=np.arange(3))
        assert said(from_files(tmp_path / "all.npz"), "arrays of all.npz not used: colours")


def test_the_note_on_words_for_gaps_says_what_the_others_are() -> None:
    task = from_arrays(np.eye(9), ["true", "false", "NA"] * 3)
    assert said(task, "labels 'NA' (3 rows) were read as unlabelled, since all others are true or false")
    task = from_arrays(np.eye(9), ["true", "0", "NA"] * 3)
    assert said(task, "since all others are numbers, true or false")


def test_too_few_classes_mention_the_labels_that_were_read_as_unlabelled() -> None:
    with pytest.raises(DataError, match=r"found '0'; labels 'none' \(2 rows\) were read as unlabelled.*pass missing="):
        from_arrays(np.eye(4), ["none", "0", "none", "0"])
    assert from_arrays(np.eye(8), ["none", "0"] * 4, missing=()).class_names == ("0", "none")
