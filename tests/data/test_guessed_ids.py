"""Columns of ids that edges or labels reveal, columns of labels that are given elsewhere, and what the notes say."""

import numpy as np
import pytest
from own_people import said

from difformer.data import DataError, from_files, from_frame
from difformer.data.own.csv_files import TextFormat
from difformer.data.own.features import id_column_name

CUSTOMERS = np.random.default_rng(0).permutation(40) + 1  # 1 to 40, in no order
EDGES = [(1, 40), (40, 7), (3, 12)]
WAS_READ = "column 'customer' of f.csv was read as ids, since it holds a different whole number in every row, and all"


@pytest.fixture
def files(tmp_path):
    """Customers with ids that are whole numbers, their edges, and their segments in a file of their own."""
    rows = "".join(f"{c},{i % 7}.5,{i % 5},{'ab'[c % 2]}\n" for i, c in enumerate(CUSTOMERS))
    (tmp_path / "f.csv").write_text("customer,spend,visits,segment\n" + rows)
    (tmp_path / "e.csv").write_text("from,to\n" + "".join(f"{a},{b}\n" for a, b in EDGES))
    (tmp_path / "l.csv").write_text("customer,segment\n" + "".join(f"{c},{'ab'[c % 2]}\n" for c in range(1, 41)))
    return tmp_path


def frame():
    pd = pytest.importorskip("pandas")
    columns = {"customer": CUSTOMERS, "spend": np.arange(40) % 7 + 0.5, "visits": np.arange(40) % 5}
    return pd.DataFrame({**columns, "segment": ["ab"[c % 2] for c in CUSTOMERS]})


def edges_by_id(task):
    names = [int(name) for name in task.instance_names]
    return {(names[a], names[b]) for a, b in task.edge_index.T.tolist() if a != b}


def edges_by_row(task):
    return {(a, b) for a, b in task.edge_index.T.tolist() if a != b}


def both_ways(edges):
    return {(a, b) for a, b in edges} | {(b, a) for a, b in edges}


class TestEdges:
    def test_the_only_column_that_holds_all_ends_becomes_ids(self, files):
        task = from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment")
        assert edges_by_id(task) == both_ways(EDGES)
        assert task.feature_names == ("spend", "visits")
        assert said(task, f"{WAS_READ} ends of edges; pass ids=false if these are numbers of rows")

    def test_the_guess_can_be_undone(self, files):
        (files / "e.csv").write_text("from,to\n1,39\n")
        task = from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment", ids=False)
        assert edges_by_row(task) == both_ways([(1, 39)])
        assert (task.instance_names, task.feature_names) == ((), ("customer", "spend", "visits"))
        assert not said(task, "customer'")

    def test_ends_that_may_be_row_numbers_are_row_numbers_with_a_note(self, files):
        (files / "e.csv").write_text("from,to\n1,3\n3,12\n")
        task = from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment")
        assert edges_by_row(task) == both_ways([(1, 3), (3, 12)])
        assert task.feature_names == ("customer", "spend", "visits")
        assert said(task, "although column 'customer' of f.csv holds them all; pass ids=customer if that holds the ids")
        ordered = "".join(f"{i},{i % 7}.5,{'ab'[i % 2]}\n" for i in range(40))  # both readings are the same
        (files / "f.csv").write_text("place,spend,segment\n" + ordered)
        task = from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment")
        assert edges_by_row(task) == both_ways([(1, 3), (3, 12)])
        assert not said(task, "although column")

    def test_two_columns_that_hold_all_ends_stay_features_with_a_note(self, files):
        lines = (files / "f.csv").read_text().splitlines()
        (files / "f.csv").write_text("".join(f"{line},{i or 'rank'}\n" for i, line in enumerate(lines)))
        (files / "e.csv").write_text("from,to\n1,2\n")
        task = from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment")
        assert edges_by_row(task) == both_ways([(1, 2)])
        assert said(task, "ends of edges were read as numbers of rows, counted from 0, although column 'customer' and")
        assert said(task, "column 'rank' of f.csv holds them all; pass ids=customer if that holds the ids")

    def test_ends_out_of_range_name_the_column_that_may_hold_ids(self, files):
        (files / "e.csv").write_text("from,to\n40,1\n998,999\n")
        with pytest.raises(
            DataError, match=r"e\.csv, line 2, column 'from': there is no node 40: .* 39; if"
        ) as refused:
            from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment")
        assert str(refused.value).endswith("if column 'customer' holds the ids, pass ids=customer")
        with pytest.raises(DataError, match=r"if column 'customer' holds the ids, pass ids=\"customer\"$"):
            from_frame(frame(), "segment", edges=[(1, 40), (998, 999)])

    def test_a_wrong_id_is_named_and_not_the_first_that_is_no_row(self, files):
        (files / "e.csv").write_text("from,to\n1,40\n2,999\n")
        with pytest.raises(
            DataError, match=r"e\.csv, line 3, column 'to': no node is called '999'; the 40 "
        ) as refused:
            from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment")
        assert str(refused.value).endswith(
            f"{WAS_READ.removesuffix('all')}3 of 4 different ends of edges; pass ids=false if these are numbers of rows"
        )
        labels = (files / "l.csv").read_text().replace("\n39,b", "\n390,b")
        (files / "l.csv").write_text(labels)
        with pytest.raises(DataError, match=r"l\.csv, line 40, column 'customer': no row is called '390'"):
            from_files(files / "f.csv", labels=files / "l.csv", drop="segment")

    def test_a_column_of_texts_is_proposed_only_if_it_holds_the_ends(self, files):
        lines = [f"{i}.5,town{i},k{i},{'ab'[i % 2]}\n" for i in range(40)]
        (files / "f.csv").write_text("spend,town,customer,segment\n" + "".join(lines))
        (files / "e.csv").write_text("from,to\nk1,k2\nk2,k3\n")
        with pytest.raises(DataError, match=r"no ids; if column 'customer' holds the ids, pass ids=customer$"):
            from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment")
        with pytest.raises(DataError, match=r"no ids; give the rows ids, or name them by number, from 0$"):
            from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment", drop="customer")

    def test_a_guessed_column_of_texts_that_edges_do_not_name_is_pointed_out(self, files):
        lines = [f"town{i},{i}.5,k{i},{'ab'[i % 2]}\n" for i in range(40)]
        (files / "f.csv").write_text("town,spend,customer,segment\n" + "".join(lines))
        (files / "e.csv").write_text("from,to\nk1,k2\nk2,k3\n")
        with pytest.raises(
            DataError, match=r"no node is called 'k1'.* column 'town' of f\.csv .* read as ids"
        ) as refused:
            from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment")
        assert str(refused.value).endswith("; if column 'customer' holds the ids, pass ids=customer")

    def test_without_such_a_column_a_shift_by_one_is_suggested(self, files):
        (files / "e.csv").write_text("from,to\n1,40\n40,1\n")
        with pytest.raises(DataError, match=r"yours seem to count from 1$"):
            from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment", drop="customer")

    def test_columns_taken_as_ends_are_named(self, files):
        taken = "; columns 'customer' and 'spend' were taken as the ends of edges: pass edge_columns= if others are"
        with pytest.raises(DataError, match="there is no node 40: ") as refused:
            from_files(files / "f.csv", edges=files / "f.csv", label_columns="segment", ids=False)
        assert str(refused.value).endswith(taken)
        (files / "e.csv").write_text("who,whom,note,day\n1,2,x,y\n")
        task = from_files(files / "f.csv", edges=files / "e.csv", label_columns="segment")
        assert said(
            task, "columns of e.csv not used: note, day; columns 'who' and 'whom' were taken as the ends of edges"
        )

    def test_a_new_table_finds_the_column_by_the_ids_of_the_run(self, files):
        for names, column in (((), None), (map(str, CUSTOMERS), "customer")):
            assert id_column_name(files / "f.csv", names=[*names], format=TextFormat()) == column


class TestFrames:
    @pytest.mark.parametrize("make", [lambda pd: EDGES, lambda pd: pd.DataFrame(EDGES, columns=["a", "b"])])
    def test_edges_reveal_ids_as_in_files(self, make):
        task = from_frame(frame(), "segment", edges=make(pytest.importorskip("pandas")))
        assert edges_by_id(task) == both_ways(EDGES)
        assert said(task, "column 'customer' of frame was read as ids, since it")
        assert said(task, "pass ids=False if these are numbers of rows")

    def test_labels_indexed_by_ids_are_refused_with_a_remedy(self):
        pd = pytest.importorskip("pandas")
        by_id = pd.Series(["ab"[c % 2] for c in range(1, 40)], index=range(1, 40))
        with pytest.raises(DataError, match=r"its index is not that of the frame, whose ids are in column 'customer'"):
            from_frame(frame().drop(columns="segment"), by_id, ids="customer")
        task = from_frame(
            frame().drop(columns="segment"), by_id.reindex(frame()["customer"]).to_numpy(), ids="customer"
        )
        names = {
            name: task.class_names[c] for name, c in zip(task.instance_names, task.y.tolist(), strict=True) if c >= 0
        }
        assert names == {str(c): "ab"[c % 2] for c in range(1, 40)}

    def test_a_column_with_the_name_of_the_labels_is_left_out(self):
        task = from_frame(frame(), frame()["segment"], ids="customer")
        assert task.feature_names == ("spend", "visits")
        assert said(task, "column 'segment' of frame is not used as a feature, since the labels have this name")

    def test_arrays_hold_positions(self):
        task = from_frame(frame(), "segment", edges=np.array(EDGES) - 1)
        assert edges_by_row(task) == both_ways([(a - 1, b - 1) for a, b in EDGES])
        assert said(task, 'is used as a feature; pass ids="customer" if these are ids')

    def test_columns_of_ids_are_recognised_as_in_files(self, tmp_path):
        for name, cells in (("customer_id", CUSTOMERS), ("who", [f"c{c}" for c in CUSTOMERS])):
            table = frame().assign(customer=cells).rename(columns={"customer": name})
            table.to_csv(tmp_path / "f.csv", index=False)
            tasks = from_frame(table, "segment"), from_files(tmp_path / "f.csv", label_columns="segment")
            assert tasks[0].instance_names == tasks[1].instance_names == tuple(map(str, cells))
            assert tasks[0].feature_names == tasks[1].feature_names == ("spend", "visits")
        assert said(tasks[0], "'who' of frame holds a different text in every row and was read as ids; pass ids=False")

    def test_an_index_left_by_a_filter_yields_to_a_column_of_ids(self):
        table = frame().rename(columns={"customer": "id"})
        assert from_frame(table[5:], "segment").instance_names == tuple(map(str, CUSTOMERS[5:]))
        assert from_frame(table.drop(columns="id")[5:], "segment").instance_names == tuple(map(str, range(5, 40)))
        named = from_frame(table.rename_axis("row")[5:], "segment")
        assert (named.instance_names[0], named.feature_names) == ("5", ("id", "spend", "visits"))


def test_a_first_column_of_whole_numbers_without_edges_stays_a_feature_with_a_note(files):
    task = from_files(files / "f.csv", label_columns="segment")
    assert task.feature_names == ("customer", "spend", "visits")
    note = "column 'customer' of f.csv holds a different whole number in every row and is used as a feature"
    assert said(task, f"{note}; pass ids=customer if these are ids")
    assert not said(from_files(files / "f.csv", label_columns="segment", ids=False), note)


class TestLabels:
    def test_rows_that_labels_name_reveal_ids(self, files):
        task = from_files(files / "f.csv", labels=files / "l.csv")
        assert task.instance_names == tuple(map(str, CUSTOMERS))
        assert [task.class_names[y] for y in task.y] == ["ab"[c % 2] for c in CUSTOMERS]
        assert said(task, f"{WAS_READ} labelled rows")

    def test_labels_name_rows_as_edges_do(self, files):
        (files / "e.csv").write_text("from,to\n0,1\n")  # there is no customer 0
        (files / "l.csv").write_text("row,group\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(1, 40)))
        task = from_files(files / "f.csv", labels=files / "l.csv", edges=files / "e.csv", drop="segment")
        assert (task.instance_names, edges_by_row(task)) == ((), both_ways([(0, 1)]))
        assert [task.class_names[y] for y in task.y[1:]] == ["ab"[i % 2] for i in range(1, 40)]

    def test_a_column_with_the_name_of_the_labels_is_dropped_with_a_note(self, files):
        task = from_files(files / "f.csv", labels=files / "l.csv", edges=files / "e.csv")
        assert task.feature_names == ("spend", "visits")
        assert said(task, "column 'segment' of f.csv is not used as a feature, since the labels have this name")
        assert said(task, WAS_READ)
        for file in ("f.csv", "l.csv"):  # a name that is usual for labels
            (files / file).write_text((files / file).read_text().replace("segment", "label"))
        assert from_files(files / "f.csv", labels=files / "l.csv").feature_names == ("spend", "visits")

    def test_columns_without_names_are_not_those_of_the_labels(self, files):
        (files / "f.csv").write_text("0,1\n" + "".join(f"{i % 7}.5,{i % 3}.5\n" for i in range(8)))
        (files / "l.csv").write_text("a\nb\n" * 4)
        assert from_files(files / "f.csv", labels=files / "l.csv", header={"features": True}).feature_names == (
            "0",
            "1",
        )
