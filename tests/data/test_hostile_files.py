"""Files that lie about their sizes and indices are refused before anything follows them."""

import gzip
import io
import zipfile

import numpy as np
import pytest
import torch
from own_people import X, Y
from scipy import sparse

from difformer.data import DataError, from_arrays, from_files, load, load_splits
from difformer.data.archives import number_blocks, read_members, read_npz
from difformer.data.download import Found, locate, reading
from difformer.errors import UserError

HUGE = 2**30


def forged(kind="csr", **changes):
    """A matrix whose arrays were changed after scipy had looked at them."""
    matrix = sparse.csr_matrix(np.eye(8)) if kind == "csr" else sparse.csc_matrix(np.eye(8))
    for part, (at, value) in changes.items():
        getattr(matrix, part)[at] = value
    return matrix


FORGERIES = [
    {"indices": (2, HUGE)},
    {"indices": (2, -1)},
    {"indptr": (4, HUGE)},
    {"indptr": (3, 7)},
    {"indptr": (-1, 0)},
]


@pytest.mark.parametrize("kind", ["csr", "csc"])
@pytest.mark.parametrize("change", FORGERIES)
def test_a_matrix_with_indices_out_of_range_is_refused(tmp_path, kind, change):
    matrix = forged(kind, **change)
    with pytest.raises(DataError, match="x: is not a sparse matrix that can be used"):
        from_arrays(matrix, Y)
    with pytest.raises(DataError, match="edge_index: is not an adjacency matrix that can be used"):
        from_arrays(X, Y, matrix)
    sparse.save_npz(tmp_path / "f.npz", matrix)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    with pytest.raises(DataError, match=r"f\.npz: is not an array file that can be read"):
        from_files(tmp_path / "f.npz", tmp_path / "y.npy")
    with pytest.raises(DataError, match=r"f\.npz: is not an array file that can be read"):
        from_files(tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "f.npz")


def test_a_saved_matrix_of_columns_is_read(tmp_path):
    sparse.save_npz(tmp_path / "x.npz", sparse.csc_matrix(X))
    np.save(tmp_path / "y.npy", Y)
    assert from_files(tmp_path / "x.npz", tmp_path / "y.npy").x.to_dense().tolist() == X.tolist()
    sparse.save_npz(tmp_path / "x.npz", sparse.bsr_matrix(X))
    with pytest.raises(DataError, match="in the format 'bsr'; save it as CSR"):
        from_files(tmp_path / "x.npz", tmp_path / "y.npy")


def test_a_tensor_with_indices_out_of_range_is_refused():
    ptr, columns = torch.arange(9), torch.tensor([0, 1, HUGE, 3, 4, 5, 6, 7])
    matrix = torch.sparse_csr_tensor(ptr, columns, torch.ones(8), (8, 8), check_invariants=False)
    with pytest.raises(DataError, match="x: is not a sparse matrix"):
        from_arrays(matrix, Y)
    with pytest.raises(DataError, match="edge_index: is not an adjacency matrix"):
        from_arrays(X, Y, matrix)


@pytest.mark.parametrize("part", ["attr", "adj"])
@pytest.mark.parametrize("change", FORGERIES)
def test_published_graphs_with_indices_out_of_range_are_refused(cache, tmp_path, part, change):
    matrices = {"attr": forged(), "adj": forged(), part: forged(**change)}
    arrays = {
        f"{name}_{key}": value
        for name, matrix in matrices.items()
        for key, value in (("data", matrix.data), ("indices", matrix.indices), ("indptr", matrix.indptr))
    }
    arrays |= {f"{name}_shape": np.array([8, 8]) for name in matrices}
    (tmp_path / "gnn_benchmark").mkdir()
    np.savez(tmp_path / "gnn_benchmark" / "amazon_electronics_photo.npz", labels=np.arange(8) % 2, **arrays)
    with pytest.raises(DataError, match="data set 'amazon-photo' cannot be read"):
        load("amazon-photo", tmp_path, protocol="60/20/20")


def archive(shape, content, *, dtype="<f8", name="x"):
    """An NPZ whose array announces a shape of its own."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": dtype, "fortran_order": False, "shape": shape})
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(f"{name}.npy", header.getvalue() + content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2**40,), "<f8"), ((2**20, 2**20), "<f4"), ((1,), "<U200000000"), ((3,), "|O"), ((5,), "<f8")]
)
def test_an_array_that_announces_more_than_it_holds_allocates_nothing(tmp_path, shape, dtype):
    for name in ("f.npz", "s.npz"):
        (tmp_path / name).write_bytes(archive(shape, bytes(64), dtype=dtype))
    with pytest.raises(DataError, match=r"array 'x'"):
        from_files(tmp_path / "f.npz")
    with pytest.raises(DataError):
        load_splits(tmp_path / "s.npz")


def test_members_of_archives_have_a_limit_that_can_be_raised(tmp_path, monkeypatch):
    (tmp_path / "f.npz").write_bytes(archive((1000, 100), bytes(800_000)))
    assert (tmp_path / "f.npz").stat().st_size < 10_000
    monkeypatch.setenv("DIFFORMER_MAX_MEMBER", "100000")
    with pytest.raises(DataError, match=r"array 'x' has 800,128 bytes, more than .* set DIFFORMER_MAX_MEMBER=800128"):
        read_npz(tmp_path / "f.npz")
    monkeypatch.setenv("DIFFORMER_MAX_MEMBER", "800128")
    assert read_npz(tmp_path / "f.npz")["x"].shape == (1000, 100)
    monkeypatch.delenv("DIFFORMER_MAX_MEMBER")
    monkeypatch.setattr("difformer.data.archives.PACKED", 100_000)  # the file is 200 times smaller than its array
    with pytest.raises(DataError, match=r"the archive up to 'x' has 800,128 bytes, more than the limit of 100,000"):
        read_npz(tmp_path / "f.npz")
    np.savez_compressed(tmp_path / "g.npz", x=np.random.default_rng(0).random((100, 1000)))
    assert read_npz(tmp_path / "g.npz")["x"].shape == (100, 1000)


def test_a_line_without_end_is_refused_at_the_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFORMER_MAX_LINE", "100000")
    (tmp_path / "f.csv.gz").write_bytes(gzip.compress(b"a,b,label\n" + b"1" * 10_000_000))
    with pytest.raises(DataError, match=r"line 2: .*DIFFORMER_MAX_LINE"):
        from_files(tmp_path / "f.csv.gz")


def test_a_hundred_thousand_columns_take_seconds_and_the_limit_applies(tmp_path, monkeypatch):
    import time

    names = [f"c{i}" for i in range(100_000)]
    rows = "".join(",".join(["1"] * len(names)) + f",{'ab'[i % 2]}\n" for i in range(8))
    (tmp_path / "f.csv").write_text(",".join([*names, "label"]) + "\n" + rows)
    start = time.perf_counter()
    assert from_files(tmp_path / "f.csv").num_features == 100_000
    assert time.perf_counter() - start < 15
    monkeypatch.setenv("DIFFORMER_MAX_COLUMNS", "1000")
    with pytest.raises(DataError, match="100,001 columns, more than the limit of 1,000"):
        from_files(tmp_path / "f.csv")


@pytest.mark.parametrize("error", [TypeError, AttributeError, NameError, ZeroDivisionError, AssertionError])
def test_a_fault_of_the_program_is_not_reported_as_a_damaged_file(tmp_path, error):
    with pytest.raises(error, match="a bug"), reading(Found("cora", "arrays", (tmp_path / "f.npz",))):
        raise error("a bug")


def test_cached_files_are_compared_with_the_published_checksum(cache):
    target = cache / "temporal" / "chickenpox.json"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"{}")
    with pytest.raises(DataError, match="'chickenpox': the file is not the published one: its checksum differs"):
        locate("chickenpox")


def test_encrypted_members_of_archives_are_refused(tmp_path):
    path = tmp_path / "locked.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("secret.csv", "a,b\n")
    content = bytearray(path.read_bytes())
    for sign, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(sign) + at] |= 1  # the flag that says: encrypted
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"locked.zip: secret.csv is encrypted, which is not supported"):
        read_members(path, ["secret.csv"])


def test_lines_of_tables_of_numbers_have_a_length_limit(monkeypatch):
    monkeypatch.setenv("DIFFORMER_MAX_LINE", "1000")
    monkeypatch.setattr("difformer.data.archives.BLOCK_BYTES", 500)
    with pytest.raises(DataError, match=r"a line has 1,498 characters, more than the limit of 1,000"):
        list(number_blocks(io.BytesIO(b"1\n" + b"1" * 5000 + b"\n"), columns=1, dtype=np.int64))


@pytest.mark.parametrize("name", ["delimiter", "decimal", "encoding", "comment"])
@pytest.mark.parametrize("value", [3, ["x"], "a\x00", "rot13"])
def test_a_format_of_the_wrong_kind_is_refused(tmp_path, name, value):
    (tmp_path / "f.csv").write_text("a,label\n" + "1,u\n2,v\n" * 12)
    if name == "comment" and isinstance(value, str):
        assert from_files(tmp_path / "f.csv", comment=value).num_nodes == 24
        return
    with pytest.raises(UserError, match=f"{name}: "):
        from_files(tmp_path / "f.csv", **{name: value})
