"""Published pickles: data come out, and nothing that a pickle says is run."""

import contextlib
import io
import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from difformer.data import DataError
from difformer.data.datasets.pickles import read_pickle


def test_arrays_come_out_of_pickles():
    matrix = sparse.random(4, 3, 0.5, format="csr", random_state=0)
    content = {
        "a": [np.arange(6.0).reshape(2, 3)],
        "m": matrix,
        "t": (b"bytes", "text", None, {1: True}),
    }
    back = read_pickle(pickle.dumps(content, protocol=2))
    assert (back["a"][0] == content["a"][0]).all()
    assert (back["m"] != matrix).nnz == 0
    assert back["t"] == content["t"]


class _Foul:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "foul",
    [
        _Foul(os.system, "true"),
        _Foul(eval, "1 + 1"),
        _Foul(getattr, "text", "upper"),
        _Foul(np.load, "file.npy"),
        _Foul(io.open, "file"),
    ],
    ids=["os.system", "eval", "getattr", "numpy.load", "open"],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_pickles_that_call_anything_are_refused(foul, protocol):
    with pytest.raises(DataError, match="could run arbitrary code"):
        read_pickle(pickle.dumps([np.arange(3), foul], protocol=protocol))


@given(content=st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_bytes_give_a_data_error_or_plain_values(content):
    with contextlib.suppress(DataError):
        assert not callable(read_pickle(content))


def name(module, attribute):
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def text(value):
    raw = value.encode()
    return b"X" + len(raw).to_bytes(4, "little") + raw


def call(function, *arguments):
    return function + b"(" + b"".join(arguments) + b"tR"


NDARRAY, DTYPE, CSR = name("numpy", "ndarray"), name("numpy", "dtype"), name("scipy.sparse._csr", "csr_matrix")
RECONSTRUCT = name("numpy.core.multiarray", "_reconstruct")
ONE, EIGHT = b"K\x01", b"U\x08" + bytes(8)
OBJECT = (
    call(DTYPE, text("O8"), b"\x89", b"\x88") + b"(K\x03" + text("|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb"
)
DOUBLE = (
    call(DTYPE, text("f8"), b"\x89", b"\x88") + b"(K\x03" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
WITH_FIELDS = (
    call(DTYPE, text("V8"), b"\x89", b"\x88")
    + b"(K\x03"
    + text("|")
    + b"N("
    + text("a")
    + b"t}"
    + text("a")
    + OBJECT
    + b"K\x00\x86sK\x08K\x01K\x00tb"
)
FIELDS_ON_A_PLAIN_DTYPE = (
    call(DTYPE, text("f8"), b"\x89", b"\x88") + b"(K\x03" + text("<") + b"N(" + text("a") + b"t}tb"
)
EMPTY = call(RECONSTRUCT, NDARRAY, b"(K\x00t", b"U\x01b")

ATTACKS = {
    "array of objects over chosen memory": call(NDARRAY, b"(K\x01t", text("O"), EIGHT),
    "array of objects from bytes": EMPTY + b"(K\x01(K\x01t" + OBJECT + b"\x89" + EIGHT + b"tb",
    "array of objects from a list": EMPTY + b"(K\x01(K\x01t" + OBJECT + b"\x89]" + NDARRAY + b"atb",
    "scalar of an object": call(name("numpy.core.multiarray", "scalar"), OBJECT, EIGHT),
    "buffer of objects": call(name("numpy.core.numeric", "_frombuffer"), EIGHT, OBJECT, b"(K\x01t", text("C")),
    "dtype with an object field": WITH_FIELDS,
    "fields put into a plain dtype": FIELDS_ON_A_PLAIN_DTYPE,
    "dtype from a list of fields": call(DTYPE, b"](" + text("a") + text("O") + b"ta"),
    "dtype of a long text": call(DTYPE, text("U200000000")),
    "state of a class": CSR + b"}" + text("check_format") + name("builtins", "dict") + b"sb",
    "state of a class as slots": CSR + b"(N}" + text("check_format") + name("builtins", "dict") + b"stb",
    "state of a list": b"]}" + text("append") + ONE + b"sb",
    "subtype of an array": call(RECONSTRUCT, CSR, b"(K\x00t", b"U\x01b"),
    "call of what a call gave": call(call(NDARRAY, b"(K\x01t"), ONE),
    "call of a text": call(text("os.system"), text("true")),
    "new object of a plain class": name("builtins", "object") + b")\x81",
    "new array": NDARRAY + b"(K\x01tb",
    "array by NEWOBJ": NDARRAY + b"(K\x01t\x81",
    "NEWOBJ_EX": CSR + b")}\x92",
    "INST": b"(" + text("true") + b"ios\nsystem\n",
    "OBJ": b"(" + name("builtins", "dict") + b"o",
    "extension registry": b"\x82\x01",
    "large extension code": b"\x84\x01\x00\x00\x00",
    "persistent id": b"Pfile\n",
    "binary persistent id": ONE + b"Q",
    "out-of-band buffer": b"\x97",
    "dotted name": text("numpy") + text("ndarray.__class__") + b"\x93",
    "dotted module": text("numpy.core.multiarray.scalar") + text("__class__") + b"\x93",
    "name that is not text": ONE + ONE + b"\x93",
    "factory of another kind": call(name("collections", "defaultdict"), name("numpy", "ndarray")),
    "a name in the data": b"]" + name("builtins", "list") + b"a",
    "an unfinished array in the data": b"]" + EMPTY + b"a",
    "codec": call(name("_codecs", "encode"), text("x"), text("rot13")),
    "eval": call(name("builtins", "eval"), text("1")),
    "getattr": call(name("builtins", "getattr"), text("x"), text("upper")),
    "getattr as Python 2 says it": call(name("__builtin__", "getattr"), text("x"), text("upper")),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_pickles_that_are_more_than_data_are_refused(attack):
    before = dict(vars(sparse.csr_matrix))
    with pytest.raises(DataError, match="arbitrary code"):
        read_pickle(b"\x80\x02" + ATTACKS[attack] + b".")
    assert dict(vars(sparse.csr_matrix)) == before


BROKEN = {
    "array longer than its bytes": EMPTY + b"(K\x01(J\x00\x00\x00\x40t" + DOUBLE + b"\x89" + EIGHT + b"tb",
    "array of negative length": EMPTY + b"(K\x01(J\xff\xff\xff\xfft" + DOUBLE + b"\x89" + EIGHT + b"tb",
    "nested tuple as a key": b"}" + b")" + b"\x85" * 100_000 + ONE + b"s",
    "number below those of 64 bits": b"\x8a\x09" + (-(2**63) - 1).to_bytes(9, "little", signed=True),
    "number of a million bits": b"]\x8b" + (125_000).to_bytes(4, "little") + b"\x7f" * 125_000 + b"a",
    "empty stack": b"R",
    "no mark": ONE + b"t",
    "no such memo": b"h\x05",
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_pickles_give_a_data_error(case):
    with pytest.raises(DataError):
        read_pickle(b"\x80\x02" + BROKEN[case] + b".")


@pytest.mark.parametrize(
    "change",
    [
        {"indices": np.array([0, 2**30, 1], dtype=np.int32)},
        {"indices": np.array([0, -1, 1], dtype=np.int32)},
        {"indptr": np.array([0, 2, 1, 3], dtype=np.int32)},
        {"indptr": np.array([0, 1, 2, 2**30], dtype=np.int32)},
        {"_shape": (3, 1)},
        {"_shape": (2**40, 3)},
        {"data": [1.0, 2.0, 3.0]},
        {"indices": None},
    ],
)
def test_a_matrix_with_forged_state_is_refused(change):
    matrix = sparse.csr_matrix(np.eye(3))
    matrix.__dict__.update(change)
    with pytest.raises(DataError):
        read_pickle(pickle.dumps(matrix, protocol=2))


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_pickles_give_an_error_or_data(data):
    frame = {"m": sparse.random(4, 3, 0.5, format="csr", random_state=0), "a": np.arange(6.0), "t": ("x", [1, 2])}
    content = bytearray(pickle.dumps(frame, protocol=2))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DataError):
        read_pickle(bytes(content))


def test_a_pickle_that_repeats_a_long_text_is_refused_before_memory_is_full() -> None:
    once = name("_codecs", "encode") + b"q\x00X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20) + b"q\x01]"
    again = b"h\x00h\x01" + text("latin1") + b"\x86Ra"
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="again and again"):
            read_pickle(b"\x80\x02" + once + 400 * again + b".")
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()
    assert len(read_pickle(b"\x80\x02" + once + 4 * again + b".")) == 4
