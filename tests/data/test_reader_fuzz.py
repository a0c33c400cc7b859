"""Broken files of every kind go in; tasks or `DataError` come out, and nothing else."""

import gzip
import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from difformer.data import from_files, read_features
from difformer.data.split import load_splits, random_split, save_splits
from difformer.errors import DataError

EXAMPLES = 60
quickly = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

FEATURES = b"id,a,b\n" + b"".join(b"n%d,%d,%d.5\n" % (i, i, -i) for i in range(12))
LABELS = b"id,label\n" + b"".join(b"n%d,%s\n" % (i, (b"u", b"v", b"")[i % 3]) for i in range(12))
EDGES = b"source,target,weight\n" + b"".join(b"n%d,n%d,%d\n" % (i, i + 1, i + 1) for i in range(11))

SIGNS = [",", ";", "\t", "|", "\n", "\r\n", "\r", "#", '"', "'", '""', "\x00", "\ufeff", "\u2028", "\x1a", "\\", " "]
CELLS = [
    "1",
    "0",
    "2.5",
    "-1",
    "nan",
    "inf",
    "1e999",
    "x",
    "id",
    "label",
    "n1",
    "n2",
    "n3",
    "",
    "é",
    "𝟛",
    "1_0",
    "0x10",
    "True",
]
CELLS += [
    "train",
    "test",
    "split",
    "source",
    "target",
    "weight",
    "NA",
    "1,5",
    "-",
    "+",
    ".",
    "9" * 400,
    "7.0",
    '"a,b"',
    "12%",
]
texts = st.lists(st.sampled_from([*SIGNS, *CELLS]), max_size=60).map("".join)


@st.composite
def tables(draw):
    """Rows of one width and any cells: what looks like a table and holds nonsense."""
    width = draw(st.integers(1, 4))
    row = st.lists(st.sampled_from(CELLS), min_size=width, max_size=width).map(
        draw(st.sampled_from([",", ";", "\t"])).join
    )
    return draw(st.sampled_from(["\n", "\r\n"])).join(draw(st.lists(row, max_size=14)))


@st.composite
def damaged(draw, original):
    """The original with some bytes changed, cut out, put in, or everything after a point gone."""
    content = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(["change", "cut", "insert", "truncate", "repeat"])):
            case "change" if content:
                content[place] = draw(st.integers(0, 255))
            case "cut":
                del content[place : place + draw(st.integers(1, 20))]
            case "insert":
                content[place:place] = draw(st.binary(min_size=1, max_size=8))
            case "truncate":
                del content[place:]
            case "repeat":
                content[place:place] = content[place : place + draw(st.integers(1, 30))]
    return bytes(content)


def archive(**arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def only_data_errors(read):
    try:
        return read()
    except DataError:
        return None


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


def whole(folder, **changed):
    parts = {"features": ("f.csv", FEATURES), "labels": ("l.csv", LABELS), "edges": ("e.csv", EDGES), **changed}
    return {role: write(folder, *part) for role, part in parts.items()}


def test_the_files_are_sound_to_begin_with(tmp_path):
    task = from_files(**whole(tmp_path))
    assert (task.num_nodes, task.num_features, task.num_outputs) == (12, 2, 2)
    assert (task.y >= 0).sum() == 8


@quickly
@given(content=st.binary(max_size=200) | (texts | tables()).map(lambda t: t.encode("utf-8", "surrogatepass")), suffix=st.sampled_from([".csv", ".txt", ".tsv", ".csv.gz", ".npz", ".npy", ".parquet"]))  # fmt: skip  # noqa: E501
def test_anything_for_features(tmp_path, content, suffix):
    only_data_errors(lambda: read_features(write(tmp_path, f"f{suffix}", content)))
    only_data_errors(lambda: from_files(write(tmp_path, f"f{suffix}", content)))


@quickly
@given(
    text=texts | tables(),
    role=st.sampled_from(["features", "labels", "edges"]),
    suffix=st.sampled_from([".csv", ".txt"]),
)
def test_anything_for_one_of_the_files(tmp_path, text, role, suffix):
    content = text.encode("utf-8", "surrogatepass")
    only_data_errors(lambda: from_files(**whole(tmp_path, **{role: (f"x{suffix}", content)})))


@quickly
@given(role=st.sampled_from(["features", "labels", "edges"]), data=st.data())
def test_damaged_tables(tmp_path, role, data):
    original = {"features": FEATURES, "labels": LABELS, "edges": EDGES}[role]
    content = data.draw(damaged(original))
    task = only_data_errors(lambda: from_files(**whole(tmp_path, **{role: ("x.csv", content)})))
    if task is not None and role != "features":
        assert task.num_nodes == 12  # whatever happened to the others, the rows are those of the features


@quickly
@given(data=st.data())
def test_damaged_archives(tmp_path, data):
    x = np.arange(24.0).reshape(12, 2)
    y = np.arange(12) % 3
    edges = np.array([[0, 1], [1, 2]])
    ones = np.ones(12, dtype=bool)
    original = data.draw(
        st.sampled_from(
            [
                archive(x=x, y=y, edge_index=edges),
                archive(x=x, y=y, train_mask=ones, val_mask=~ones, test_mask=~ones),
                archive(x_data=x[:, 0], x_indices=y % 2, x_indptr=np.arange(13), x_shape=np.array([12, 2]), y=y),
            ]
        )
    )
    only_data_errors(lambda: from_files(write(tmp_path, "all.npz", data.draw(damaged(original)))))


@quickly
@given(
    shape=st.sampled_from([(12, 2), (12,), (0, 2), (12, 0), (2, 12, 2), ()]),
    kind=st.sampled_from(["f8", "i8", "U3", "?", "c16", "f2", "M8[s]", "S2", "u1"]),
    labels=st.sampled_from([(12,), (12, 1), (12, 3), (5,), (), (12, 2, 2)]),
    label_kind=st.sampled_from(["f8", "i8", "U3", "?", "c16", "M8[s]", "S2"]),
    edges=st.sampled_from([(2, 4), (4, 2), (12, 12), (0,), (3, 3), ()]),
    edge_kind=st.sampled_from(["i8", "f8", "U2", "?", "u1", "c16"]),
)
def test_arrays_of_any_shape_and_kind(tmp_path, shape, kind, labels, label_kind, edges, edge_kind):
    def filled(shape, kind):
        return np.arange(int(np.prod(shape))).reshape(shape).astype(kind)

    content = archive(x=filled(shape, kind), y=filled(labels, label_kind), edge_index=filled(edges, edge_kind))
    only_data_errors(lambda: from_files(write(tmp_path, "all.npz", content)))


@quickly
@given(data=st.data())
def test_damaged_compression(tmp_path, data):
    content = data.draw(damaged(gzip.compress(FEATURES)))
    only_data_errors(lambda: read_features(write(tmp_path, "f.csv.gz", content)))


@quickly
@given(data=st.data())
def test_damaged_splits(tmp_path, data):
    for suffix in (".json", ".npz"):
        save_splits([random_split(20, seed=s) for s in range(2)], tmp_path / f"s{suffix}")
        original = (tmp_path / f"s{suffix}").read_bytes()
        path = write(tmp_path, f"d{suffix}", data.draw(damaged(original)))
        only_data_errors(lambda path=path: load_splits(path))


@quickly
@given(data=st.data())
def test_damaged_parquet(tmp_path, data):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    stream = io.BytesIO()
    parquet.write_table(pa.table({"id": [f"n{i}" for i in range(12)], "a": range(12), "label": ["u", "v"] * 6}), stream)
    content = data.draw(damaged(stream.getvalue()))
    only_data_errors(lambda: from_files(write(tmp_path, "f.parquet", content)))
