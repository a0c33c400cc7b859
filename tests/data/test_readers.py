import gzip
import os
import threading

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from difformer.data import from_files
from difformer.data.own.cell_values import canonical_id, number
from difformer.data.own.csv_files import TextFormat, looks_like_header, open_table, sniff_delimiter
from difformer.data.own.features import read_arrays
from difformer.data.own.table import open_parquet
from difformer.errors import DataError, UserError


def every_column(head):
    return range(len(head.names))


def read_csv(path, *, text=lambda head: (), format=TextFormat(), role="edges"):  # noqa: B008  frozen
    table = open_table(path, format, role=role)
    return table.read(text(table))


def read_parquet(path, *, text):
    table = open_parquet(path)
    return table.read(text(table))


def numbers(table):
    """The columns of numbers side by side."""
    return np.stack([values for values in table.cells.values() if isinstance(values, np.ndarray)], 1)


@pytest.fixture
def write(tmp_path):
    def write(content, name="table.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


NUMBERS = [[1.0, 2.5], [3.0, -4.0]]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("1,2.5\n3,-4\n", None),
        ("1,2.5\n3,-4", None),  # no line end at the end
        ("a,b\n1,2.5\n3,-4\n", ("a", "b")),
        ("\ufeffa,b\r\n1,2.5\r\n3,-4\r\n", ("a", "b")),  # byte-order mark, Windows line ends
        ("a,b\r1,2.5\r3,-4\r", ("a", "b")),  # line ends of old Macs
        ("a;b\n1;2.5\n3;-4\n", ("a", "b")),
        ("a\tb\n1\t2.5\n3\t-4\n", ("a", "b")),
        ("a|b\n1|2.5\n3|-4\n", ("a", "b")),
        ('"a","b"\n"1","2.5"\n"3","-4"\n', ("a", "b")),
        ("a, b\n1, 2.5\n 3 , -4 \n", ("a", "b")),
        ("\n\na,b\n\n1,2.5\n\n\n3,-4\n\n", ("a", "b")),  # blank lines
        ("# made by hand\n# on Monday\na,b\n1,2.5\n3,-4\n", ("a", "b")),
        ("# a,b\n1,2.5\n3,-4\n", ("a", "b")),  # a header behind a comment sign
        ("a,b\n1,2.5\n3,-4\n,\n,\n", ("a", "b")),  # rows of nothing at the end, as spreadsheets leave them
        ("a,b,\n1,2.5,\n3,-4,\n", ("a", "b")),  # a delimiter at the end of every line
        ("1.0e0,+2.5\n3.0,-4.\n", None),
        ("sep=;\na;b\n1;2.5\n3;-4\n", ("a", "b")),  # as a spreadsheet may say
    ],
)
def test_the_same_numbers_however_they_are_written(write, content, names):
    table = read_csv(write(content))
    assert numbers(table).tolist() == NUMBERS
    assert table.named == (names is not None)
    assert table.names == (names or ("1", "2"))


@pytest.mark.parametrize("suffix", [".txt", ".dat", ".edges"])
def test_runs_of_spaces_separate_cells_outside_of_csv(write, suffix):
    table = read_csv(write("  1   2.5\n3\t -4\n", f"table{suffix}"))
    assert numbers(table).tolist() == NUMBERS
    assert read_csv(write("New York\nOld York\n", "names.csv"), text=every_column).cells[0] == ["New York", "Old York"]


def test_compressed_and_other_encodings(write):
    assert numbers(read_csv(write(gzip.compress(b"1,2.5\n3,-4\n"), "table.csv.gz"))).tolist() == NUMBERS
    assert numbers(read_csv(write("a,b\n1,2.5\n3,-4\n".encode("utf-16")))).tolist() == NUMBERS
    latin = write("größe,b\n1,2.5\n3,-4\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"table\.csv: is not text .*encoding=latin-1"):
        read_csv(latin)
    assert read_csv(latin, format=TextFormat(encoding="latin-1")).names[0] == "größe"
    for binary in (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", gzip.compress(bytes(range(256)))):
        with pytest.raises(DataError, match="holds zero bytes: it is not text, or it is UTF-16") as refused:
            read_csv(write(binary, f"t.csv{'.gz' * binary.startswith(bytes([31, 139]))}"))
        assert "latin-1" not in str(refused.value)


def test_pipes_are_read(tmp_path):
    """As a shell hands over the output of a command: ``difformer fit --features <(zcat x.csv.gz)``."""
    for content in (b"\xef\xbb\xbfa,b\n1,2\n", "a,b\n1,2\n".encode("utf-16"), b"a,b\n1,two\n"):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True)
        writer.start()
        if b"two" in content:
            with pytest.raises(DataError, match="pipe, line 2, column 'b': expected a number, got 'two'"):
                read_csv(pipe)
        else:
            assert numbers(read_csv(pipe)).tolist() == [[1, 2]]
        writer.join()
        pipe.unlink()


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_without_a_mark_needs_an_encoding(write, encoding):
    path = write("\na,b\n1,2\n".encode(encoding), "t.csv")
    with pytest.raises(DataError, match=r"t\.csv, line \d: holds zero bytes.*encoding=utf-16-le"):
        read_csv(path)
    assert numbers(read_csv(path, format=TextFormat(encoding=encoding))).tolist() == [[1, 2]]


def test_commas_between_thousands_are_not_decimal_ones(write):
    with pytest.raises(DataError, match="got '25,000'; leave out the commas between thousands, or pass decimal=','"):
        read_csv(write('a,b\n1,2\n3,"25,000"\n'))


def test_decimal_commas_on_request(write):
    path = write("a;b\n1;2,5\n3,0;-4\n")
    with pytest.raises(DataError, match=r"line 2, column 'b': expected a number, got '2,5'; pass decimal=','"):
        read_csv(path)
    table = read_csv(path, format=TextFormat(decimal=","), text=lambda head: [1])
    assert numbers(table).tolist() == [[1.0], [3.0]]
    assert table.cells[1] == ["2.5", "-4"]
    assert not read_csv(write("1,5;2,5\n3,5;4,5\n"), format=TextFormat(decimal=",")).named


def test_truth_values_are_numbers(write):
    assert numbers(read_csv(write("a,b\nTrue,false\nFALSE,1\n"))).tolist() == [[1, 0], [0, 1]]


def test_text_columns_and_lines(write):
    table = read_csv(
        write('id,x,note\n\nann,1,"one, two"\nbob,2,"a ""word""\non two lines"\neve,3,\n'), text=lambda h: [0, 2]
    )
    assert table.cells[0] == ["ann", "bob", "eve"]
    assert table.cells[2] == ["one, two", 'a "word"\non two lines', ""]
    assert table.lines.tolist() == [3, 5, 6]  # a row is where it ends
    assert list(table.notes) == ["line 1 of table.csv was read as a header"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "table.csv: holds no rows"),
        ("\n \n\n", "holds no rows"),
        ("# only\n# comments\n", "holds no rows"),
        ("a,b\n", "holds a header and no rows|expected a number"),
        ("a,b\n1,2\n3\n", r"line 3, column 'b': has 1 cell\(s\), expected 2 as in the header"),
        ("a,b\n1,2\n3,4,5\n", r"line 3, column 3: has 3 cell\(s\), expected 2"),
        ("1,2\n3,4,5\n", r"line 2, column 3: has 3 cell\(s\), expected 2 as in the first row"),
        ("a,b,c\n1,2\n", r"line 2: has 2 cell\(s\), but the header names 3"),
        ("a,b\n1,2\n3,x\n", r"line 3, column 'b': expected a number, got 'x'"),
        ("1,2\n3,x\n", r"line 2, column 2: expected a number, got 'x'; pass header=true"),
        ("a,b\n1,2\n3,\n", r"line 3, column 'b': a number is missing here"),
        ("a,b\n1,2\n,\n3,4\n", r"line 3, column 'a': a number is missing here"),  # inside, a row of nothing is a row
        ("a,b\n1,2\n3,1_000\n", r"line 3, column 'b': expected a number, got '1_000'"),
        ("a,b\n1,2\n3,12%\n", "got '12%'"),
        ("a,b\n1,2\n3,#N/A\n", "got '#N/A'"),
        ("a,a\n1,2\n", r"line 1, column 2: the name 'a' is already that of column 1"),
        ("a,,c\n1,2,3\n", r"line 1, column 2: the header leaves this column without a name"),
        ('a,b\n1,"2\n3,4\n', r"line 3: cannot be read as a table: unexpected end of data"),
        ('a,b\n1,"2"x\n', r"line 2: cannot be read as a table"),
        ("#ann,1,2\n#bob,3,4\neve,5,6\n", r"line 2: begins with '#', as a comment does, but looks like a row"),
    ],
)
def test_broken_tables_are_located(write, content, complaint):
    with pytest.raises(DataError, match=complaint):
        read_csv(write(content), text=lambda head: [0] if head.textual[0] else [])


def test_missing_and_infinite_numbers_are_located(write):
    for cell, complaint in (
        ("nan", "a number is missing"),
        ("inf", "inf is too large"),
        ("1e39", "1e.39 is too large"),
    ):
        with pytest.raises(DataError, match=rf"line 3, column 'b': {complaint}"):
            read_csv(write(f"a,b\n1,2\n3,{cell}\n"))


def test_row_names_written_by_pandas_and_r(write):
    pandas = read_csv(write(",a,b\nann,1,2.5\nbob,3,-4\n"), text=lambda head: [0])
    r = read_csv(
        write('"a" "b"\n"ann" 1 2.5\n"bob" 3 -4\n', "table.txt"), format=TextFormat(delimiter=" "), text=lambda h: [0]
    )
    assert pandas.names == r.names == ("", "a", "b")
    assert pandas.cells[0] == r.cells[0] == ["ann", "bob"]
    assert numbers(r).tolist() == numbers(pandas).tolist() == NUMBERS


def test_blank_lines_of_labels_are_empty_cells(write):
    path = write("cat\n\ndog\n\n\n")
    assert read_csv(path, text=every_column).cells[0] == ["cat", "dog"]
    assert read_csv(path, text=every_column, role="labels").cells[0] == ["cat", "", "dog"]
    assert read_csv(write('cat\n""\ndog\n'), text=every_column).cells[0] == ["cat", "", "dog"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["a", "b"], ["1", "2"], True),
        (["ann", "1"], ["bob", "2"], False),
        (["id", "1"], ["ann", "2"], False),  # a name that is a number could be data
        (["node", "label"], ["ann", "cat"], True),
        (["ann", "cat"], ["bob", "dog"], False),
        (["paper_id", "venue"], ["p1", "KDD"], True),
        (["", "a"], ["ann", "b"], True),
        (["1", "2"], ["3", "4"], False),
        (["a", "b"], ["x", "1", "2"], True),
        (["label"], ["cat"], True),
        (["cat"], None, False),
    ],
)
def test_headers_are_recognised(first, second, expected):
    assert looks_like_header(first, second, role="edges") == expected


def test_columns_counted_from_zero_are_names_where_features_are_read():
    counted = ["0", "1", "2"]
    assert looks_like_header(counted, ["0.3", "1.2", "2.2"], role="features")
    assert not looks_like_header(counted, ["0.3", "1.2", "2.2"], role="edges")
    assert not looks_like_header(["0", "1"], ["5", "6"], role="features")  # may well be an edge


def test_given_formats_override_guesses(write):
    path = write("1,2\n3,4\n")
    assert read_csv(path, format=TextFormat(header=True)).names == ("1", "2")
    assert read_csv(path, format=TextFormat(header=True)).rows == 1
    assert read_csv(write("a,b\nc,d\n"), format=TextFormat(header=False), text=every_column).cells[0] == ["a", "c"]
    assert read_csv(write("#a,1\n#b,2\n"), format=TextFormat(comment=None), text=lambda h: [0]).cells[0] == ["#a", "#b"]
    for options, complaint in (
        ({"delimiter": "::"}, "one character"),
        ({"decimal": ";"}, "'.' or ','"),
        ({"encoding": "klingon"}, "unknown encoding"),
        ({"comment": ""}, "comment"),
    ):
        with pytest.raises(ValueError, match=complaint):
            TextFormat(**options)


def test_delimiters_are_found_by_agreement():
    assert sniff_delimiter(["a b,c", "d e f,g"], spaces=True) == ","
    assert sniff_delimiter(["1,5;2", "1;2,5"], spaces=False) == ";"
    assert sniff_delimiter(["word", "other"], spaces=True) == ","
    assert sniff_delimiter(["1 2", "3 4"], spaces=True) == " "


def test_missing_files_and_unsupported_kinds(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_csv(tmp_path / "none.csv")
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "none.npz")
    with pytest.raises(DataError, match="is a folder"):
        read_csv(tmp_path)
    with pytest.raises(DataError, match=r"a\.xlsx: is not a supported type of file; save it as CSV"):
        read_csv(tmp_path / "a.xlsx")
    with pytest.raises(DataError, match=r"a\.pt: is not a supported type of file; .* pass it to from_pyg"):
        read_csv(tmp_path / "a.pt")


def test_ids_are_canonical_and_numbers_are_recognised():
    assert [canonical_id(v) for v in ("7.0", " 7 ", 7, 7.0, np.float64(7), "007", "x.0", "1e3")] == [
        "7", "7", "7", "7", "7", "007", "x.0", "1e3"
    ]  # fmt: skip
    assert [number(c) for c in ("1", " 2.5 ", "true", "1_0", "", "x")] == [1.0, 2.5, 1.0, None, None, None]


@given(
    rows=st.lists(st.tuples(st.text(min_size=1, max_size=6), st.floats(-3e38, 3e38, allow_nan=False)), min_size=1),
    delimiter=st.sampled_from([",", ";", "\t"]),
)
@settings(max_examples=60, deadline=None)
def test_files_of_the_csv_module_are_read_back(tmp_path_factory, rows, delimiter):
    import csv

    rows = [(text.replace("\x00", "").strip() or "x", value) for text, value in rows]
    path = tmp_path_factory.mktemp("csv") / "written.csv"
    with open(path, "w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=delimiter, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(["name", "value"])
        writer.writerows(rows)
    table = read_csv(path, text=lambda head: [0], format=TextFormat(delimiter=delimiter, comment=None))
    assert table.cells[0] == [text for text, _ in rows]
    assert numbers(table)[:, 0].tolist() == [value for _, value in rows]


def test_arrays_are_read_from_every_usual_file(tmp_path):
    x = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "b.npz", whatever=x)
    np.savez(tmp_path / "c.npz", features=x, y=np.arange(3))
    sparse = scipy.sparse.csr_matrix(x)
    scipy.sparse.save_npz(tmp_path / "d.npz", sparse)
    np.savez(
        tmp_path / "e.npz",
        x_data=sparse.data,
        x_indices=sparse.indices,
        x_indptr=sparse.indptr,
        x_shape=sparse.shape,
        y=[0],
    )
    assert read_arrays(tmp_path / "a.npy")["x"].tolist() == x.tolist()
    assert read_arrays(tmp_path / "b.npz")["x"].tolist() == x.tolist()
    assert set(read_arrays(tmp_path / "c.npz")) == {"features", "y"}
    assert read_arrays(tmp_path / "d.npz")["x"].toarray().tolist() == x.tolist()
    assert read_arrays(tmp_path / "e.npz")["x"].toarray().tolist() == x.tolist()


def test_a_stored_matrix_with_indices_out_of_range_is_refused(tmp_path):
    sparse = scipy.sparse.csr_matrix(np.eye(3))
    sparse.indices[-1] = 7
    np.savez(
        tmp_path / "a.npz",
        data=sparse.data,
        indices=sparse.indices,
        indptr=sparse.indptr,
        shape=sparse.shape,
        format=np.array("csr"),
    )
    with pytest.raises(DataError, match=r"a\.npz: is not an array file"):
        read_arrays(tmp_path / "a.npz")


def test_pickled_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"a\.npz: is not an array file"):
        read_arrays(tmp_path / "a.npz")


def test_parquet_columns_of_every_kind(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    parquet.write_table(
        pa.table(
            {
                "id": ["a", "b"],
                "whole": [1, 2],
                "holes": pa.array([1, None], pa.int64()),
                "flag": [True, False],
                "kind": pa.array(["u", None]).dictionary_encode(),
                "vector": [[1.0, 2.0], [3.0, 4.0]],
            }
        ),
        path,
    )
    table = read_parquet(
        path, text=lambda head: [i for i, name in enumerate(head.names) if name in ("id", "holes", "kind")]
    )
    assert table.names == ("id", "whole", "holes", "flag", "kind", "vector_0", "vector_1")
    assert numbers(table).tolist() == [[1, 1, 1, 2], [2, 0, 3, 4]]
    assert [table.cells[i] for i in (0, 2, 4)] == [["a", "b"], ["1", ""], ["u", ""]]
    with pytest.raises(DataError, match=r"t\.parquet, row 1, column 'holes': a number is missing here"):
        read_parquet(path, text=lambda head: [0, 4])
    with pytest.raises(DataError, match="row 0, column 'id': expected a number, got 'a'"):
        read_parquet(path, text=lambda head: [])
    parquet.write_table(pa.table({"v": [[1.0], [2.0, 3.0]]}), path)
    with pytest.raises(DataError, match="row 1, column 'v': expected a list of 1 numbers"):
        read_parquet(path, text=lambda head: [])
    parquet.write_table(pa.table({"t": pa.array([86400, None], pa.timestamp("s"))}), path)
    assert read_parquet(path, text=every_column).cells[0] == ["1970-01-02T00:00:00", ""]
    parquet.write_table(pa.table({"t": pa.array([b"x"], pa.binary())}), path)
    with pytest.raises(DataError, match=r"column 't': holds binary"):
        read_parquet(path, text=lambda head: [])
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match="is not a Parquet file"):
        read_parquet(path, text=lambda head: [])


def test_without_pyarrow_the_extra_is_named(write, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"difformer\[frames\]"):
        read_parquet(write(b"", "t.parquet"), text=every_column)


def test_time_to_read_grows_linearly_with_rows(tmp_path):
    import time

    def seconds(rows):
        x = np.random.default_rng(0).standard_normal((rows, 50)).round(4)
        np.savetxt(tmp_path / "big.csv", x, delimiter=",", fmt="%.4f")
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            table = read_csv(tmp_path / "big.csv")
            best = min(best, time.process_time() - start)
        assert np.array_equal(numbers(table), x)
        return best

    # Ten times the rows: about ten times the time; a quadratic step would take a hundred times as long.
    assert seconds(20_000) < 30 * seconds(2_000)


class TestTrailingDelimiters:
    ROWS = ("1.5,2,A", "3.5,4,B", "5.5,6,A", "7.5,8,B")

    def read(self, path, header, rows):
        path.write_text("".join(f"{line}\n" for line in (header, *rows)))
        return from_files(path)

    def test_at_the_end_of_every_row_or_of_the_header_alone_it_adds_no_column(self, tmp_path):
        expected = self.read(tmp_path / "x.csv", "a,b,label", self.ROWS)
        header_only = self.read(tmp_path / "x.csv", "a,b,label,", self.ROWS)
        ended = self.read(tmp_path / "x.csv", "a,b,label", [f"{row}," for row in self.ROWS])
        assert expected.fingerprint() == header_only.fingerprint() == ended.fingerprint()
        assert ended.feature_names == ("a", "b")
        assert "the ',' at the end of every row of x.csv was left out" in ended.notes

    def test_names_of_rows_without_a_header_stay_names(self, tmp_path):
        rows = [f"r{i},{row}" for i, row in enumerate(self.ROWS)]
        task = self.read(tmp_path / "x.csv", "a,b,label", [*rows, "r4,9.5,8,"])
        assert (task.instance_names, task.feature_names) == (("r0", "r1", "r2", "r3", "r4"), ("a", "b"))

    def test_in_one_row_it_is_refused_with_a_remedy(self, tmp_path):
        said = r"line 3, column 4: has 4 cell\(s\), expected 3 as in the header; remove the delimiter at its end$"
        with pytest.raises(DataError, match=said):
            self.read(tmp_path / "x.csv", "a,b,label", [self.ROWS[0], f"{self.ROWS[1]},", *self.ROWS[2:]])


def test_a_letter_is_no_delimiter_and_files_have_names(tmp_path):
    (tmp_path / "x.csv").write_text("a,label\n1,A\n2,B\n3,A\n4,B\n")
    with pytest.raises(UserError, match=r"delimiter: expected one character that is no letter or digit, .* got 't'"):
        from_files(tmp_path / "x.csv", delimiter={"labels": "t"}, labels=tmp_path / "x.csv")
    with pytest.raises(UserError, match="header: expected the keys features, labels and edges, got 'label'"):
        from_files(tmp_path / "x.csv", header={"label": True})


def test_a_text_is_one_word_that_means_no_label_and_not_its_letters(tmp_path):
    (tmp_path / "x.csv").write_text("a,label\n" + "".join(f"{i}.5,{c}\n" for i, c in enumerate(["N", "A", "NA"] * 4)))
    task = from_files(tmp_path / "x.csv", missing="NA")
    assert (task.class_names, int((task.y < 0).sum())) == (("A", "N"), 4)
    with pytest.raises(UserError, match="class_names: expected the names of all classes, in order, got the text 'NA'"):
        from_files(tmp_path / "x.csv", class_names="NA")
    with pytest.raises(UserError, match=r"^splits are kept in \.npz or \.json files, got 'q'"):
        from_files(tmp_path / "x.csv", splits="q")
