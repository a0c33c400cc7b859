"""Tables as people have them: categories, dates, truth values and gaps become features, and it is said how."""

import json
import time

import numpy as np
import pytest
import torch

from difformer.data import DataError, Preprocessing, from_files, from_frame, read_features
from difformer.data.own.preprocessing import OTHER
from difformer.data.own.targets import encode_targets, suspicions

N = 300


def customers(seed=0):
    """Columns of every kind, gaps among them, and a label."""
    draw = np.random.default_rng(seed)
    plan = draw.choice(["basic", "plus", "pro"], N, p=[0.6, 0.3, 0.1]).astype(object)
    plan[:3] = ["gold", "", "gold"]
    age = draw.normal(40, 9, N).round(1).astype(object)
    age[draw.random(N) < 0.1] = ""
    age[0] = 71.5
    day = np.datetime64("2021-01-01") + draw.integers(0, 900, N)
    return {
        "customer_id": [f"c{i}" for i in range(N)],
        "age": [str(value) for value in age],
        "active": [("yes", "no")[i] for i in draw.integers(0, 2, N)],
        "plan": plan.tolist(),
        "joined": ["" if i % 50 == 7 else str(d) for i, d in enumerate(day)],
        "country": ["SI"] * N,
        "comment": [f"text {i} of its own" for i in range(N)],
        "income": [f"{v:.2f}" for v in draw.lognormal(10, 1, N)],
        "segment": ["" if i % 3 else ("stays", "leaves")[i % 2] for i in range(N)],
    }


def write(path, columns, rows=slice(None)):
    names = list(columns)
    lines = [",".join(names), *(",".join(row) for row in list(zip(*columns.values(), strict=True))[rows])]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def task(tmp_path):
    return from_files(write(tmp_path / "customers.csv", customers()), label_columns="segment")


def test_every_kind_of_column_is_recognised(task):
    kinds = {column.name: column.kind for column in task.preprocessing.columns}
    assert kinds == {
        "age": "number",
        "active": "boolean",
        "plan": "category",
        "joined": "date",
        "country": "left out",
        "comment": "left out",
        "income": "number",
    }
    assert task.instance_names[:2] == ("c0", "c1")
    assert task.class_names == ("leaves", "stays")
    assert bool(task.x.isfinite().all())
    assert task.feature_names == task.preprocessing.feature_names
    assert task.num_features == len(task.feature_names)
    assert any("'country' (constant: 'SI' in every row)" in note for note in task.notes)
    assert any("'comment' (300 different texts in 300 rows: names or free text)" in note for note in task.notes)


def test_the_features_are_those_of_scikit_learn(task):
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    raw = customers()
    table = np.empty((N, 3), dtype=object)
    table[:, 0] = [float(cell) if cell else np.nan for cell in raw["age"]]
    table[:, 1] = [float(cell) for cell in raw["income"]]
    table[:, 2] = [cell or "(missing)" for cell in raw["plan"]]
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    onehot = OneHotEncoder(min_frequency=3, handle_unknown="infrequent_if_exist", sparse_output=False)
    expected = ColumnTransformer([("numbers", numbers, [0, 1]), ("categories", onehot, [2])]).fit_transform(table)
    column = {name: task.x[:, i].numpy() for i, name in enumerate(task.feature_names)}
    np.testing.assert_allclose(column["age"], expected[:, 0].astype(float), atol=1e-5)
    np.testing.assert_allclose(column["income"], expected[:, 1].astype(float), atol=1e-5)
    assert column["age missing"].tolist() == [float(not cell) for cell in raw["age"]]
    categories = [name for name in task.feature_names if name.startswith("plan=")]
    assert categories == ["plan=basic", "plan=plus", "plan=pro", f"plan={OTHER}"]
    np.testing.assert_array_equal(np.stack([column[name] for name in categories], 1), expected[:, 3:].astype(float))


def test_dates_give_days_months_and_weekdays(task):
    raw = customers()["joined"]
    column = {name: task.x[:, i].numpy() for i, name in enumerate(task.feature_names)}
    known = [i for i, cell in enumerate(raw) if cell]
    days = np.array([raw[i] for i in known], dtype="M8[D]").astype(float)
    scaled = column["joined"][known]
    assert np.corrcoef(days, scaled)[0, 1] == pytest.approx(1, abs=1e-6)
    assert column["joined missing"].tolist() == [float(not cell) for cell in raw]
    for i in known[:40]:
        month = np.datetime64(raw[i], "M").astype(int) % 12 + 1
        assert column[f"joined month={month}"][i] == 1
        assert sum(column[f"joined month={m}"][i] for m in range(1, 13)) == 1
    gap = raw.index("")
    assert sum(column[name][gap] for name in column if "month" in name) == 0


@pytest.mark.parametrize(
    ("cells", "note"),
    [
        (["31.03.2021", "01.04.2021", "15.12.2021"], None),
        (["2021-03-31T10:20:30", "2021-04-01T00:00:00", "2021-12-15T12:00:00"], None),
        (["2021/03/31", "2021/04/01", "2021/12/15"], None),
        (["03/31/2021", "04/01/2021", "12/15/2021"], None),
        (["01/03/2021", "02/04/2021", "05/12/2021"], "read as day/month/year"),
    ],
)
def test_dates_are_read_in_the_usual_forms(cells, note):
    fitted = Preprocessing.fit([("when", cells * 10)])
    assert fitted.columns[0].kind == "date"
    assert (note is not None) == any(note in said for said in fitted.notes if note)


def test_new_rows_are_encoded_as_in_training(task, tmp_path):
    raw = customers()
    path = write(tmp_path / "new.csv", {name: cells for name, cells in raw.items() if name != "segment"}, slice(0, 20))
    found = read_features(path, preprocessing=task.preprocessing, id_name="customer_id")
    torch.testing.assert_close(found.x, task.x[:20])
    assert found.ids == task.instance_names[:20]
    assert not [note for note in found.notes if "header" not in note]


def test_new_categories_gaps_and_columns_of_new_rows_get_notes(task, tmp_path):
    raw = {name: cells[:4] for name, cells in customers().items() if name not in ("segment", "country")}
    raw["plan"] = ["basic", "platinum", "platinum", "plus"]
    raw["income"] = ["1", "", "3", "4"]
    raw["height"] = ["1", "2", "3", "4"]
    found = read_features(write(tmp_path / "new.csv", raw), preprocessing=task.preprocessing, id_name="customer_id")
    assert any(
        "column 'plan': 'platinum' (2 rows) did not occur in training; counted as other" in n for n in found.notes
    )
    assert any("column 'income': 1 cell missing, which training did not have; filled with" in n for n in found.notes)
    assert any("that training did not have are left out: 'height'" in n for n in found.notes)
    assert found.x[1, task.feature_names.index(f"plan={OTHER}")] == 1
    del raw["age"]
    with pytest.raises(DataError, match=r"new\.csv: lacks 1 of the 5 columns wanted: 'age'"):
        read_features(write(tmp_path / "new.csv", raw), preprocessing=task.preprocessing)
    raw = {name: cells[:4] for name, cells in customers().items() if name != "segment"}
    raw["joined"] = ["2021-03-04", "yesterday", "", ""]
    with pytest.raises(
        DataError,
        match=r"new\.csv, line 3, column 'joined': expected a date such as 2024-03-31 as in training, got 'yest",
    ):
        read_features(write(tmp_path / "new.csv", raw), preprocessing=task.preprocessing)


def test_preprocessing_round_trips_through_json(task):
    text = json.dumps(task.preprocessing.to_dict())
    again = Preprocessing.from_dict(json.loads(text))
    assert again == task.preprocessing
    raw = {name: cells for name, cells in customers().items() if name not in ("segment", "customer_id")}
    numbers = {name: np.array([float(c) if c else np.nan for c in raw[name]]) for name in ("age", "income")}
    np.testing.assert_array_equal(again.transform({**raw, **numbers})[0], task.x.numpy())
    for change in ({"version": 2}, {"columns": [{}]}, {"columns": None}, {"rows": "many"}):
        with pytest.raises(DataError, match="is not a description of a preprocessing"):
            Preprocessing.from_dict({**json.loads(text), **change})
    broken = json.loads(text)
    broken["columns"][0]["scale"] = 0
    with pytest.raises(DataError, match="is scaled by 0"):
        Preprocessing.from_dict(broken)


def test_original_restores_cells_in_their_units(task):
    raw = customers()
    back = task.preprocessing.original(task.x[:50])
    for row in range(50):
        assert back[row]["plan"] in (raw["plan"][row], OTHER)
        assert back[row]["active"] == raw["active"][row]
        assert back[row]["joined"] == raw["joined"][row]
        if raw["age"][row]:
            assert float(back[row]["age"]) == pytest.approx(float(raw["age"][row]), rel=1e-4)
        else:
            assert back[row]["age"] == ""
    groups = task.preprocessing.groups()
    assert groups["plan"] == ["plan=basic", "plan=plus", "plan=pro", f"plan={OTHER}"]
    assert [name for names in groups.values() for name in names] == list(task.feature_names)


def test_describe_has_one_line_per_column(task):
    lines = task.preprocessing.describe().splitlines()
    assert lines[0].split() == ["column", "read", "as", "missing", "becomes"]
    assert len(lines) == 8
    assert any(line.startswith("plan") and "3 columns of 0 and 1, 2 rare ones in one column" in line for line in lines)
    assert any(line.startswith("country") and "constant" in line for line in lines)
    assert any(line.startswith("age") and "standardised, gaps filled with" in line for line in lines)
    assert task.preprocessing.describe() in task.describe()


@pytest.mark.parametrize("forced", [[], ["shop"]])
def test_a_column_of_rare_categories_alone_is_left_out_with_a_note(forced):
    cells = [f"s{i % 300}" for i in range(3000)]
    made = Preprocessing.fit([("shop", cells), ("size", np.arange(3000.0))], categories=forced)
    assert made.feature_names == ("size",)
    reason = "300 different values, each in less than 1% of the rows: too rare to learn from"
    assert any(
        line.startswith("shop") and "left out" in line and reason in line for line in made.describe().splitlines()
    )
    assert any(reason in note for note in made.notes)
    common = Preprocessing.fit([("shop", ["s0"] * 30 + cells[30:])])
    assert common.feature_names == ("shop=s0", f"shop={OTHER}")


@pytest.mark.parametrize("cells", [["$1,234.50", "$80.00"], ["12%", "7.5 %"], ["1,234.50", "20,000.00"], ["€5", "-€3"]])
def test_amounts_with_signs_get_a_note(cells):
    hint = f"column 'a' looks like numbers with a currency, percent or thousands sign, for example {cells[0]!r}"
    assert any(hint in note for note in Preprocessing.fit([("a", cells * 20)]).notes)


@pytest.mark.parametrize(
    "cells", [["A$1", "B$2"], ["1.2.3", "2.0.1"], ["10-20", "20-30"], ["1,2,3", "4,5"], ["50%", *"xyz"]]
)
def test_codes_are_not_taken_for_amounts(cells):
    assert not Preprocessing.fit([("a", cells * 20)]).notes


def test_a_table_of_numbers_is_standardised_by_default(tmp_path):
    rows = "".join(f"{i},{1000 * i},{'ab'[i % 2]}\n" for i in range(12))
    (tmp_path / "f.csv").write_text("a,b,label\n" + rows)
    task = from_files(tmp_path / "f.csv")
    assert task.preprocessing is None
    torch.testing.assert_close(task.x.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(task.x.std(0, correction=0), torch.ones(2))
    plain = from_files(tmp_path / "f.csv", standardize=False)
    torch.testing.assert_close(task.scaled(plain.x), task.x)


def test_codes_can_be_categories_and_a_repeated_first_column_is_no_id(tmp_path):
    rows = "".join(f"{['DE', 'FR', 'SI'][i % 3]},{i % 4 + 100},{i},{'ab'[i % 2]}\n" for i in range(24))
    (tmp_path / "f.csv").write_text("country,shop,size,label\n" + rows)
    task = from_files(tmp_path / "f.csv", categories="shop")
    assert task.instance_names == ()
    assert any("column 'country' repeats values, so it is used as a feature and not as ids" in n for n in task.notes)
    assert task.preprocessing.groups()["shop"] == [f"shop={code}" for code in (100, 101, 102, 103)]
    with pytest.raises(DataError, match="has no column 'shoe'"):
        from_files(tmp_path / "f.csv", categories="shoe")


def test_a_first_column_of_distinct_texts_is_read_as_ids_with_a_note(tmp_path):
    rows = "".join(f"person {i},{i},{'ab'[i % 2]}\n" for i in range(12))
    (tmp_path / "f.csv").write_text("who,a,label\n" + rows)
    task = from_files(tmp_path / "f.csv")
    assert task.instance_names[3] == "person 3"
    assert any("column 'who' of f.csv holds a different text in every row and was read as ids" in n for n in task.notes)


def test_options_of_tables_are_not_ignored_for_arrays(tmp_path):
    np.savez(tmp_path / "f.npz", x=np.eye(8), y=np.arange(8) % 2)
    with pytest.raises(DataError, match=r"f\.npz: holds arrays, which have no named .*; leave out drop, categories"):
        from_files(tmp_path / "f.npz", drop="a", categories="b")


def test_a_typing_error_in_a_column_of_numbers_is_located(tmp_path):
    rows = "".join(f"{i},{'x12' if i == 7 else i},{'ab'[i % 2]}\n" for i in range(12))
    (tmp_path / "f.csv").write_text("a,b,label\n" + rows)
    complaint = r"f\.csv, line 9, column 'b': expected a number, got 'x12'; correct the cell, or pass categories=b"
    with pytest.raises(DataError, match=complaint):
        from_files(tmp_path / "f.csv")


@pytest.mark.parametrize(
    ("column", "cell", "complaint"),
    [
        (
            "age",
            "x12",
            "expected a number, got 'x12'; this column held numbers in training: write one, as in 1234.5, or",
        ),
        ("age", "1,5", "expected a number, got '1,5'; this column held numbers in training"),
        ("active", "maybe", "expected yes or no as in training, got 'maybe'; correct the cell, or leave it empty"),
        ("joined", "soon", "expected a date such as 2024-03-31 as in training, got 'soon'; correct the cell, or leave"),
    ],
)
def test_a_bad_cell_of_new_rows_says_what_training_had(task, tmp_path, column, cell, complaint):
    new = customers()
    new[column][2] = f'"{cell}"'
    path = write(tmp_path / "new.csv", new, slice(5))
    with pytest.raises(DataError) as refused:
        read_features(path, preprocessing=task.preprocessing, id_name="customer_id")
    assert f"new.csv, line 4, column '{column}': {complaint}" in str(refused.value)
    assert refused.value.argument is None
    assert "categories=" not in str(refused.value)


class TestFrames:
    def frame(self):
        pd = pytest.importorskip("pandas")
        raw = customers()
        frame = pd.DataFrame(raw).replace("", None)
        frame["age"] = frame["age"].astype(float)
        frame["income"] = frame["income"].astype(float)
        frame["joined"] = pd.to_datetime(frame["joined"])
        frame["plan"] = frame["plan"].astype("category")
        frame["active"] = frame["active"] == "yes"
        return frame

    def test_a_frame_gives_the_same_task_as_the_file(self, task):
        made = from_frame(self.frame(), label="segment", ids="customer_id")
        assert made.feature_names == task.feature_names
        torch.testing.assert_close(made.x, task.x)
        assert torch.equal(made.y, task.y)
        assert made.instance_names == task.instance_names

    def test_new_rows_of_a_frame(self, task):
        frame = self.frame()
        x, notes = from_frame(frame, label="segment", ids="customer_id").preprocessing.transform(frame.head(9))
        torch.testing.assert_close(torch.from_numpy(x), task.x[:9])
        assert notes == ("columns that training did not have are left out: 'customer_id', 'segment'",)

    def test_edges_by_index_and_labels_beside(self):
        frame = self.frame().set_index("customer_id")
        label = frame.pop("segment")
        made = from_frame(frame, label, edges=[("c0", "c1"), ("c1", "c2"), ("c2", "c9")], self_loops="keep")
        assert made.instance_names[:2] == ("c0", "c1")
        assert {tuple(e) for e in made.edge_index.T.tolist()} == {(0, 1), (1, 0), (1, 2), (2, 1), (2, 9), (9, 2)}
        assert int((made.y >= 0).sum()) == 100

    def test_edges_by_id_without_ids_name_the_column_to_pass(self, tmp_path):
        frame, edges = self.frame(), [("c0", "c1"), ("c1", "c2")]
        frame = frame[["age", *frame.columns.drop("age")]]
        complaint = "edge 0: 'c0' is not the number of a row, and the nodes have no ids; "
        complaint += "if column 'customer_id' holds the ids, pass ids=\"customer_id\"$"
        with pytest.raises(DataError, match=complaint) as refused:
            from_frame(frame, "segment", edges=edges)
        assert refused.value.argument == "ids"
        assert from_frame(frame, "segment", edges=edges, ids="customer_id").num_edges
        with pytest.raises(
            DataError, match=r"the nodes have no ids; give the rows ids, or name them by number, from 0$"
        ):
            from_frame(frame[["age", "plan", "segment"]], "segment", edges=edges)
        table = customers()
        path = write(tmp_path / "f.csv", {"age": table["age"], **table})
        (tmp_path / "e.csv").write_text("from,to\nc0,c1\nc1,c2\n")
        with pytest.raises(DataError, match=r"e\.csv, line 2, column 'from': 'c0' .*pass ids=customer_id"):
            from_files(path, edges=tmp_path / "e.csv", label_columns="segment")

    def test_an_index_with_repeated_labels_can_be_ignored(self):
        pd = pytest.importorskip("pandas")
        frame = pd.concat([self.frame().head(30)] * 2)
        with pytest.raises(DataError, match=r"row 30, column 'customer_id': id 'c0' is already .*pass ids=False"):
            from_frame(frame, "segment")
        with pytest.raises(DataError, match=r"row 30: id '0' is already that of row 0; .*pass ids=False"):
            from_frame(frame.drop(columns="customer_id"), "segment")
        assert from_frame(frame, "segment", ids=False).instance_names == ()

    def test_polars_frames_and_other_objects(self):
        polars = pytest.importorskip("polars")
        raw = customers()
        frame = polars.DataFrame(
            {"plan": raw["plan"], "income": [float(v) for v in raw["income"]], "y": raw["segment"]}
        )
        assert from_frame(frame, "y").preprocessing.groups()["income"] == ["income"]
        with pytest.raises(DataError, match="frame: has no column 'z'; it has 'plan'"):
            from_frame(frame, "z")
        with pytest.raises(DataError, match="expected a pandas or polars frame, got ndarray"):
            from_frame(np.zeros((3, 2)), "y")


class TestSuspicions:
    def read(self, tmp_path, columns, **options):
        (tmp_path / "f.csv").write_text(
            "\n".join([",".join(columns), *(",".join(map(str, r)) for r in zip(*columns.values(), strict=True))])
        )
        return from_files(tmp_path / "f.csv", **options)

    @pytest.mark.parametrize("copy", [[7, 9], ["down", "up"]])
    def test_a_copy_of_the_label_gets_a_note(self, tmp_path, copy):
        draw = np.random.default_rng(0)
        y = draw.integers(0, 2, 40)
        columns = {
            "size": draw.normal(size=40).round(2),
            "other": draw.integers(0, 2, 40),
            "code": [copy[i] for i in y],
        }
        task = self.read(tmp_path, {**columns, "label": [("no", "yes")[i] for i in y]})
        assert any("column 'code' determines the label in all 40 labelled rows" in note for note in task.notes)
        assert not any("'size' determines" in note or "'other' determines" in note for note in task.notes)

    @pytest.mark.parametrize("copy", [[7, 9], ["down", "up"]])
    def test_a_typing_error_in_the_label_does_not_hide_a_copy(self, tmp_path, copy):
        draw = np.random.default_rng(0)
        y = draw.integers(0, 2, 150)
        label = [("leaves", "stays")[i] for i in y]
        label[label.index("stays")] = "stayz"
        size = np.where(y, 5.0, 2.0) + draw.normal(size=150) / 4
        columns = {"code": [copy[i] for i in y], "size": size, "label": label}
        notes = self.read(tmp_path, columns, ids=False).notes
        assert any(
            note.startswith("column 'code' determines the label in 149 of the 150 labelled rows") for note in notes
        )
        assert any(note.startswith("the size of the numbers in column 'size' determines the label") for note in notes)

    @pytest.mark.parametrize("share", [0.5, 0.9, 0.97])
    @pytest.mark.parametrize("rows", [20, 60, 150])
    def test_random_columns_are_no_copies(self, share, rows):
        for seed in range(20):
            draw = np.random.default_rng(seed)
            y = np.array(["a", "b"])[(draw.random(rows) > share).astype(int)]
            y[:6] = ["a", "b"] * 3
            columns = {
                f"c{k}": [f"v{i}" for i in draw.integers(0, k, rows)] for k in (2, 3, rows // 6, rows // 3, rows)
            }
            columns |= {"n": draw.normal(size=rows), "k": draw.integers(0, 9, rows).astype(float)}
            columns["sorted"] = np.sort(columns["k"])
            assert not suspicions([*columns.items()], encode_targets([y.tolist()]))

    def test_iris_has_no_copy_of_its_label(self):
        from sklearn.datasets import load_iris

        x, y = load_iris(return_X_y=True)
        assert not suspicions([(f"x{i}", x[:, i]) for i in range(4)], encode_targets([[str(label) for label in y]]))

    def test_a_copy_of_a_regression_target_gets_a_note(self, tmp_path):
        draw = np.random.default_rng(0)
        y = draw.normal(size=40).round(3)
        task = self.read(tmp_path, {"a": draw.normal(size=40).round(3), "b": 2.54 * y + 1, "label": y})
        assert [note for note in task.notes if "determines" in note] == [
            "column 'b' determines the label in all 40 labelled rows; if it is a copy of the label, or is known only "
            "afterwards, pass drop=b"
        ]

    def test_a_label_that_occurs_once_may_be_misspelt(self, tmp_path):
        labels = ["stays", "leaves"] * 10 + ["stayz"]
        task = self.read(tmp_path, {"a": range(21), "b": np.arange(21) % 5, "label": labels}, splits=None)
        assert "label 'stayz' occurs once: did you mean 'stays'?" in task.notes

    def test_ids_that_differ_in_case_or_spaces_are_refused_with_the_remedy(self, tmp_path):
        (tmp_path / "f.csv").write_text("id,a\n" + "".join(f"cust{i},{i}\n" for i in range(20)))
        (tmp_path / "l.csv").write_text("id,label\n" + "".join(f"CUST{i},{'ab'[i % 2]}\n" for i in range(15)))
        complaint = r"15 of the 15 ids that do not match differ in case or spaces only, .* 'CUST0' here and 'cust0'"
        with pytest.raises(DataError, match=complaint):
            from_files(tmp_path / "f.csv", tmp_path / "l.csv")
        (tmp_path / "l.csv").write_text("id,label\n" + "".join(f"cust{i},{'ab'[i % 2]}\n" for i in range(15)))
        (tmp_path / "e.csv").write_text("source,target\ncust 0,cust1\ncust1,cust2\n")
        with pytest.raises(DataError, match=r"1 of the 1 ids that .* differ in case or spaces only.*'cust 0' here"):
            from_files(tmp_path / "f.csv", tmp_path / "l.csv", tmp_path / "e.csv")

    @pytest.mark.parametrize("stranger", ["", "zoe,ann\n"])
    def test_edges_in_another_case_do_not_blame_the_header(self, tmp_path, stranger):
        (tmp_path / "f.csv").write_text("id,a,label\n" + "".join(f"C{i},{i},{'uv'[i % 2]}\n" for i in range(40)))
        rows = "".join(f"c{i},c{i + 1}\n" for i in range(30))
        (tmp_path / "e.csv").write_text(f"referrer,referred\n{rows}{stranger}")
        complaint = (
            rf"e\.csv, line 2, column 'referrer': 30 of the {30 + bool(stranger)} ids that do not match differ in case "
            r"or spaces only, for example 'c0' here and 'C0' in the features"
        )
        with pytest.raises(DataError, match=complaint):
            from_files(tmp_path / "f.csv", edges=tmp_path / "e.csv")

    def test_labels_in_another_case_do_not_blame_the_header(self, tmp_path):
        (tmp_path / "f.csv").write_text("id,a\n" + "".join(f"C{i},{i}\n" for i in range(20)))
        (tmp_path / "l.csv").write_text("client,group\n" + "".join(f"c{i},{'ab'[i % 2]}\n" for i in range(20)))
        with pytest.raises(
            DataError, match=r"l\.csv, line 2, column 'client': 20 of the 20 ids .* differ in case or spaces only"
        ):
            from_files(tmp_path / "f.csv", tmp_path / "l.csv")

    def test_constant_columns_and_large_numbers_get_notes(self, tmp_path):
        columns = {"a": range(12), "same": [3] * 12, "code": [10**16 + i for i in range(12)], "label": ["u", "v"] * 6}
        notes = self.read(tmp_path, columns).notes
        assert any(note.startswith("constant column: 'same'") for note in notes)
        assert any("column 'code' holds numbers beyond 1e+15" in note for note in notes)

    def test_a_wrong_delimiter_is_refused_with_the_remedy(self, tmp_path):
        (tmp_path / "f.csv").write_text("a;b;label\n" + "".join(f"{i};{i};{'uv'[i % 2]}\n" for i in range(8)))
        with pytest.raises(DataError, match=r"has one column, 'a;b;label', whose cells seem to be separated by ';'"):
            from_files(tmp_path / "f.csv", delimiter=",")


def test_a_table_of_twenty_thousand_text_columns_takes_seconds(tmp_path):
    width, rng = 20_000, np.random.default_rng(0)
    words = np.array(["red", "green", "blue"])
    lines = [",".join([f"c{i}" for i in range(width)] + ["label"])]
    lines += [",".join([*words[rng.integers(3, size=width)], "ab"[row % 2]]) for row in range(12)]
    (tmp_path / "wide.csv").write_text("\n".join(lines) + "\n")
    Preprocessing.fit([("a", ["x", "y"])])  # scikit-learn is imported before the clock starts
    started = time.process_time()
    task = from_files(tmp_path / "wide.csv", label_columns="label", ids=False)
    assert time.process_time() - started < 15
    assert task.num_features > 2 * width


@pytest.mark.parametrize("values", [60, 500])
def test_categories_are_grouped_as_scikit_learn_groups_them(values):
    from sklearn.preprocessing import OneHotEncoder

    rng = np.random.default_rng(values)
    cells = [f"v{i:03d}" for i in rng.geometric(8 / values, size=3000) % values]
    made = Preprocessing.fit([("c", cells)], categories=["c"]).columns[0]
    encoder = OneHotEncoder(min_frequency=30, max_categories=50).fit(np.array(cells, dtype=object)[:, None])
    assert made.rare == tuple(encoder.infrequent_categories_[0])
    assert made.categories == tuple(v for v in encoder.categories_[0] if v not in made.rare)


def test_a_misspelled_column_of_new_rows_gets_a_suggestion(tmp_path):
    (tmp_path / "new.csv").write_text("income,agee\n1,2\n")
    with pytest.raises(DataError, match=r"lacks 1 of the 2 columns wanted: 'age'; did you mean agee\?"):
        read_features(tmp_path / "new.csv", columns=["income", "age"])
