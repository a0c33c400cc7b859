"""Published pickles, read as data: containers, numeric arrays, CSR matrices and pandas tables come out, nothing else.

Some data sets are published as Python pickles. A pickle is a program, and `pickle.load` runs it. Here a small machine
knows the opcodes that such files consist of. A global name is only a word to it: nothing is imported and nothing that a
file names is called. The few words that it understands stand for constructors of this module, and each of them builds
plain data from checked parts:

    numpy   arrays and scalars of booleans, whole numbers and floats; arrays of objects only as tuples of texts
    scipy   CSR matrices, every index checked
    pandas  `DataFrame` as `Frame`: columns by name
    torch   tensors as arrays, and PyG's ``Data`` as a dictionary of them (`read_tensors`)

Everything else (other names, dtypes with fields, subtypes, BUILD on anything but an unfinished array, matrix or table)
is refused with a `DataError`.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any, NoReturn

import numpy as np
from scipy import sparse

from difformer.data.archives import check_size
from difformer.data.errors import DAMAGE, DataError
from difformer.data.sparse import checked_csr
from difformer.errors import UserError

Array = np.ndarray[Any, Any]

MOST_MADE = (8, 1 << 26)  # bytes of arrays and texts that may be made: so many per byte of the pickle, and so many more
_MARK = object()
_SCALARS = (str, bytes, bool, int, float, type(None))
_NUMERIC = re.compile(r"[biuf][1248]\Z")
_BUILTINS = ("builtins", "__builtin__")
_CORES = ("numpy.core", "numpy._core")
_STORAGES = {
    **{"Double": "f8", "Float": "f4", "Half": "f2"},
    **{"Long": "i8", "Int": "i4", "Short": "i2", "Char": "i1", "Byte": "u1", "Bool": "b1"},
}
_INDEX_KINDS = ("Index", "RangeIndex", "Int64Index", "UInt64Index", "Float64Index", "NumericIndex")

# What each global name stands for. The words are keys of `_REDUCE` or `_BUILD`, or mere markers.
_WORDS: dict[tuple[str, str], str] = {
    ("collections", "defaultdict"): "dict",
    ("collections", "OrderedDict"): "dict",
    ("_codecs", "encode"): "bytes",
    ("copy_reg", "_reconstructor"): "object",
    ("copyreg", "_reconstructor"): "object",
    **{(module, "object"): "base" for module in _BUILTINS},
    **{(module, name): name for module in _BUILTINS for name in ("list", "dict", "set", "slice")},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    **{(f"{core}.multiarray", "_reconstruct"): "array" for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): "scalar" for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): "buffer" for core in _CORES},
    ("scipy.sparse.csr", "csr_matrix"): "csr",
    ("scipy.sparse._csr", "csr_matrix"): "csr",
    ("pandas", "DataFrame"): "frame",
    ("pandas.core.frame", "DataFrame"): "frame",
    ("pandas.core.internals.managers", "BlockManager"): "manager",
    ("pandas._libs.internals", "_unpickle_block"): "block",
    ("pandas.core.indexes.base", "_new_Index"): "index",
    **{
        (module, name): "index kind"
        for module in ("pandas", "pandas.core.indexes.base", "pandas.core.indexes.range", "pandas.core.indexes.numeric")
        for name in _INDEX_KINDS
    },
    ("torch._utils", "_rebuild_tensor_v2"): "tensor",
    **{("torch", f"{name}Storage"): f"storage {code}" for name, code in _STORAGES.items()},
    ("torch_geometric.data.data", "Data"): "data",
    ("torch_geometric.data.storage", "GlobalStorage"): "mapping",
    ("torch_geometric.data.data", "DataTensorAttr"): "attributes",
    ("torch_geometric.data.data", "DataEdgeAttr"): "attributes",
}


@dataclass(frozen=True)
class _Word:
    """A global name that is understood."""

    kind: str


@dataclass(eq=False)
class _Unfinished:
    """An object between its creation and the BUILD that fills it; `slots` are its places in the memo."""

    kind: str
    code: str = ""
    slots: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Frame:
    """Columns of a table by name."""

    columns: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0


Persistent = Callable[[Any], Any]


def read_tensors(source: IO[bytes]) -> Any:
    """The data in a file of ``torch.save``, which is an archive of a pickle and one member per storage."""
    try:
        with zipfile.ZipFile(io.BytesIO(source.read())) as archive:
            for info in archive.infolist():
                check_size(info.file_size, info.filename)
            members = {name.split("/", 1)[-1]: name for name in archive.namelist()}
            if "constants.pkl" in members:
                raise DataError("is a TorchScript program, not a file of tensors; it was not loaded")
            if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
                raise DataError("holds tensors of the other byte order; save it on a little-endian machine")

            storages: dict[tuple[str, str], Array] = {}  # tensors may share one

            def storage(identity: Any) -> Array:
                kind, word, key, _, count = identity
                usual = kind == "storage" and isinstance(word, _Word) and word.kind.startswith("storage ")
                _allow(usual, "asks for an unusual storage")
                place = (word.kind, members[f"data/{key}"])
                if place not in storages or len(storages[place]) != count:
                    storages[place] = _filled(archive.read(place[1]), np.dtype(f"<{word.kind[-2:]}"), (count,), False)
                return storages[place]

            return read_pickle(archive.read(members["data.pkl"]), persistent=storage)
    except (*DAMAGE, TypeError, RuntimeError) as error:  # zipfile raises RuntimeError for an encrypted member
        if isinstance(error, DataError):
            raise
        raise DataError(f"is not a file of tensors that can be read ({type(error).__name__}: {error})") from error


def read_pickle(source: bytes | IO[bytes], *, persistent: Persistent | None = None) -> Any:
    """The data in a pickle; texts of Python 2 are read as latin-1.

    `persistent` finds what is stored beside the pickle; without it such a reference is refused.

    Raises:
        DataError: If the pickle is damaged, or holds or calls anything that is not listed above.
    """
    content = source if isinstance(source, bytes) else source.read()
    try:
        value = _run(content, persistent)
        _check_finished(value)
    except DataError:
        raise
    except (ValueError, LookupError, OverflowError, TypeError, RecursionError, MemoryError, struct.error) as error:
        raise DataError(f"is not a pickle that can be read ({type(error).__name__}: {error})") from error
    return value


def _refuse(what: str) -> NoReturn:
    raise DataError(
        f"the pickle {what}, which no published data set needs; it was not loaded, because loading it could run "
        f"foreign code"
    )


def _allow(known: bool, what: str) -> None:
    if not known:
        _refuse(what)


def _need(good: bool, what: str) -> None:
    if not good:
        raise UserError(what)


def _run(content: bytes, persistent: Persistent | None) -> Any:
    """Opcode by opcode, on a stack and a memo."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    made_bytes, most_bytes = 0, MOST_MADE[0] * len(content) + MOST_MADE[1]

    def push(value: Any) -> None:
        """Put what was made on the stack; one long text can be made into an array again and again."""
        nonlocal made_bytes
        if isinstance(value, np.ndarray):
            made_bytes += value.nbytes if value.base is None else 0  # views take no room
        elif isinstance(value, (bytes, tuple, set)):
            made_bytes += len(value) * (1 if isinstance(value, bytes) else 8)
        if made_bytes > most_bytes:
            raise DataError(
                f"the pickle makes more than {most_bytes:,} bytes of data out of {len(content):,}, by using parts "
                f"again and again, which no published data set does; get the file from its official source"
            )
        stack.append(value)

    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _LITERALS:
            small = not isinstance(argument, int) or -(2**63) <= argument < 2**64
            _need(small, "a whole number of more than 64 bits")
            stack.append(bytes(argument) if isinstance(argument, bytearray) else argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in ("PROTO", "FRAME"):
            pass
        elif name == "STOP":
            return stack.pop()
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "POP":
            stack.pop()
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            slot = len(memo) if name == "MEMOIZE" else argument
            memo[slot] = stack[-1]
            if isinstance(stack[-1], _Unfinished):
                stack[-1].slots.append(slot)
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            if len(stack) < count:
                raise IndexError("the stack is empty")
            stack[-count:] = [tuple(stack[-count:])]
        elif name in ("TUPLE", "LIST", "DICT", "FROZENSET", "POP_MARK"):
            items = _since_mark(stack)
            if name != "POP_MARK":
                stack.append(_MAKERS[name](items))
        elif name in ("APPEND", "APPENDS"):
            items = _since_mark(stack) if name == "APPENDS" else [stack.pop()]
            _top(stack, list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = _since_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            _top(stack, dict).update(_pairs(items))
        elif name == "ADDITEMS":
            items = _since_mark(stack)
            _top(stack, set).update(_key(item) for item in items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(_word(argument.split(" ", 1) if name == "GLOBAL" else [stack.pop(-2), stack.pop()]))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, maker = stack.pop(), stack.pop()
            table = _REDUCE if name == "REDUCE" else _NEW
            if not isinstance(maker, _Word) or not isinstance(arguments, tuple) or maker.kind not in table:
                _refuse(f"calls {getattr(maker, 'kind', type(maker).__name__)!r}")
            push(table[maker.kind](*arguments))
        elif name == "BUILD":
            state, made = stack.pop(), stack.pop()
            _allow(isinstance(made, _Unfinished), f"changes the state of a {type(made).__name__}")
            finished = _BUILD[made.kind](made, state)
            for slot in made.slots:
                memo[slot] = finished
            push(finished)
        elif name == "BINPERSID" and persistent is not None:
            stack.append(persistent(stack.pop()))
        else:
            _refuse(f"holds the opcode {name}")
    raise UserError("it has no end")


_LITERALS = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
        _need(at >= 0, "a mark is missing")
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _top(stack: list[Any], kind: type) -> Any:
    _allow(type(stack[-1]) is kind, f"fills a {type(stack[-1]).__name__} as if it were a {kind.__name__}")
    return stack[-1]


def _key(value: Any) -> Any:
    """Keys and members are plain: hashing a deeply nested tuple could exhaust the stack of the process."""
    plain = type(value) in _SCALARS or (type(value) is tuple and all(type(part) in _SCALARS for part in value))
    _need(plain, f"a {type(value).__name__} as a key")
    return value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return {_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "TUPLE": tuple,
    "LIST": list,
    "DICT": _pairs,
    "FROZENSET": lambda items: frozenset(map(_key, items)),
}


def _word(parts: list[Any]) -> _Word:
    module, name = parts
    kind = _WORDS.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
    if kind is None:
        _refuse(f"asks for {module}.{name}" if isinstance(name, str) else "asks for a name that is no text")
    return _Word(kind)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _Word) and value.kind == kind


def _raw(value: Any) -> bytes:
    """Bytes, which pickles of Python 2 hold as texts."""
    raw = value.encode("latin1") if isinstance(value, str) else value
    _need(isinstance(raw, bytes), f"expected bytes, got {type(value).__name__}")
    return raw


def _new_array(subtype: Any, shape: Any, code: Any) -> _Unfinished:
    _allow(_is(subtype, "ndarray"), "makes an array of a subtype")
    return _Unfinished("array")


def _new_dtype(code: Any, *_: Any) -> _Unfinished:
    known = isinstance(code, str) and (bool(_NUMERIC.match(code)) or code in ("O", "O8"))
    _allow(known, f"makes an array of dtype {str(code)[:20]!r}")
    return _Unfinished("dtype", code)


def _new_object(kind: Any, base: Any, state: Any) -> _Unfinished:
    _allow(_is(base, "base") and isinstance(kind, _Word) and kind.kind in _NEW and state is None, "makes an object")
    return _Unfinished(kind.kind)


def _dtype(made: _Unfinished, state: Any) -> Any:
    """``(version, byte order, subtype, names, fields, …)``: None where the dtype is plain, as here it must be."""
    usual = isinstance(state, tuple) and len(state) >= 5 and state[1] in ("<", ">", "|", "=")
    _allow(usual, "describes a dtype in an unusual way")
    _allow(all(part is None for part in state[2:5]), "makes a dtype with fields")
    return _TEXTS if made.code[0] == "O" else np.dtype(made.code).newbyteorder(state[1])


_TEXTS = _Word("texts")  # the dtype of arrays of objects


def _filled(raw: bytes, dtype: Any, shape: Any, fortran: bool) -> Array:
    _allow(isinstance(dtype, np.dtype) and dtype.kind in "biuf", "makes an array whose dtype is not numeric")
    possible = isinstance(shape, tuple) and len(shape) <= 8 and all(type(n) is int and 0 <= n < 2**48 for n in shape)
    _need(possible, "an array of an impossible shape")
    _need(math.prod(shape) * dtype.itemsize == len(raw), f"an array of shape {shape} from {len(raw)} bytes")
    array = np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="))  # a copy that can be written to


def _array(made: _Unfinished, state: Any) -> Any:
    _allow(isinstance(state, tuple) and len(state) in (4, 5), "fills an array in an unusual way")
    shape, dtype, fortran, raw = state[-4:]
    if dtype is _TEXTS:
        texts = isinstance(raw, list) and all(type(text) is str for text in raw) and shape == (len(raw),)
        _allow(texts, "makes an array of objects other than texts")
        return tuple(raw)
    return _filled(_raw(raw), dtype, shape, bool(fortran))


def _csr(made: _Unfinished, state: Any) -> Any:
    _allow(isinstance(state, dict), "fills a matrix in an unusual way")
    shape = state.get("_shape", state.get("shape"))
    parts = [state.get(key) for key in ("data", "indices", "indptr")]
    _need(all(isinstance(part, np.ndarray) for part in parts), "a matrix without its three arrays")
    shaped = isinstance(shape, tuple) and len(shape) == 2 and all(type(n) is int for n in shape)
    _need(shaped, "a matrix without a shape")
    data, indices, ptr = parts
    return checked_csr(data, indices, ptr, shape)


def _dict(*arguments: Any) -> dict[Any, Any]:
    _allow(arguments in ((), (_Word("list"),), (_Word("dict"),)), "makes a dictionary with a factory")
    return {}


def _set(items: Any = ()) -> set[Any]:
    _need(type(items) in (list, tuple), "a set that is not made from a list")
    return {_key(item) for item in items}


def _slice(*limits: Any) -> slice:
    plain = 1 <= len(limits) <= 3 and all(limit is None or type(limit) is int for limit in limits)
    _need(plain, "a slice of something other than whole numbers")
    return slice(*limits)


def _bytes(text: Any, encoding: Any = "latin1") -> bytes:
    _allow(isinstance(text, str) and encoding == "latin1", "asks for a codec")
    return _raw(text)


def _index(kind: Any, state: Any) -> Any:
    """An index of pandas: its values, or the range that it counts."""
    _allow(_is(kind, "index kind") and isinstance(state, dict), "makes an unusual index")
    if "data" in state:
        _need(isinstance(state["data"], (tuple, np.ndarray)), "an index without values")
        return state["data"]
    limits: list[Any] = [state.get(key) for key in ("start", "stop", "step")]
    _need(all(type(limit) is int for limit in limits), "an index without limits")
    return range(*limits)


@dataclass(frozen=True)
class _Manager:
    """pandas' blocks of columns and the names of all columns."""

    blocks: tuple[tuple[Array, Any], ...]
    names: tuple[Any, ...]


def _manager(blocks: Any = (), axes: Any = (), *_: Any) -> _Manager:
    listed = isinstance(blocks, (list, tuple)) and isinstance(axes, (list, tuple)) and bool(axes)
    _need(listed, "a table without blocks")
    if isinstance(axes[0], range):  # a short text can name more columns than fit into memory
        check_size(len(axes[0]), "the table", "COLUMNS")
    checked = []
    for block in blocks:
        values, place = block if isinstance(block, tuple) and len(block) == 2 else (None, None)
        numeric = isinstance(values, np.ndarray) and isinstance(place, (slice, np.ndarray))
        _need(numeric, "a table whose columns are not numbers")
        checked.append((np.atleast_2d(values), place))  # type: ignore[arg-type]
    named = isinstance(axes[0], (tuple, range, np.ndarray)) and len(axes[0]) == sum(len(v) for v, _ in checked)
    _need(named, "a table with more or fewer names than columns")
    return _Manager(tuple(checked), tuple(axes[0]))


def _old_manager(made: _Unfinished, state: Any) -> _Manager:
    """The layout before pandas 1.3."""
    inner = state[3]["0.14.1"]
    return _manager([(block["values"], block["mgr_locs"]) for block in inner["blocks"]], inner["axes"])


def _frame(made: _Unfinished, state: Any) -> Frame:
    manager = state.get("_mgr", state.get("_data")) if isinstance(state, dict) else None  # _data before pandas 1.1
    _need(isinstance(manager, _Manager), "a table without its columns")
    columns: dict[str, Array] = {}
    for values, place in manager.blocks:  # type: ignore[union-attr]
        for at, column in zip(np.arange(len(manager.names))[place], values, strict=True):  # type: ignore[union-attr]
            columns[str(manager.names[at])] = column  # type: ignore[union-attr]
    return Frame(columns)


MOST_DIMENSIONS = 16  # published tensors have three at most


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Array:
    """A tensor whose entries follow each other, as all published ones do."""
    stored = isinstance(storage, np.ndarray) and type(offset) is int and isinstance(size, tuple)
    _need(stored, "a tensor without a storage")
    sized = len(size) <= MOST_DIMENSIONS and all(type(n) is int and n >= 0 for n in size)
    _need(sized, f"a tensor of {len(size)} dimensions, or with sizes that are not whole numbers")
    expected = tuple(math.prod(size[i + 1 :]) for i in range(len(size)))
    dense = all(n <= 1 or given == wanted for n, given, wanted in zip(size, stride, expected, strict=True))
    _need(dense, f"a tensor with strides {stride}")
    end = offset + math.prod(size)
    _need(0 <= offset <= end <= len(storage), "a tensor that reaches beyond its storage")
    return storage[offset:end].reshape(size)


def _data(made: _Unfinished, state: Any) -> Any:
    """PyG's ``Data``: the dictionary of its tensors, directly or within a storage."""
    _need(isinstance(state, dict), "a Data without attributes")
    return state.get("_store", state)


def _mapping(made: _Unfinished, state: Any) -> Any:
    attributes = isinstance(state, dict) and isinstance(state.get("_mapping"), dict)
    _need(attributes, "a storage of Data without attributes")
    return state["_mapping"]


def _unfinished(kind: str) -> Callable[..., _Unfinished]:
    def make(*arguments: Any) -> _Unfinished:
        _allow(not arguments, f"makes a {kind} with arguments")
        return _Unfinished(kind)

    return make


_BUILD: dict[str, Callable[[_Unfinished, Any], Any]] = {
    "array": _array,
    "dtype": _dtype,
    "csr": _csr,
    "frame": _frame,
    "manager": _old_manager,
    "data": _data,
    "mapping": _mapping,
    "attributes": lambda made, state: None,
}
_NEW: dict[str, Callable[..., Any]] = {kind: _unfinished(kind) for kind in _BUILD if kind not in ("array", "dtype")}
_REDUCE: dict[str, Callable[..., Any]] = {
    "array": _new_array,
    "dtype": _new_dtype,
    "object": _new_object,
    "scalar": lambda dtype, raw: _filled(_raw(raw), dtype, (), False)[()],
    "buffer": lambda raw, dtype, shape, order: _filled(_raw(raw), dtype, shape, order == "F"),
    "bytes": _bytes,
    "dict": _dict,
    "set": _set,
    "slice": _slice,
    "index": _index,
    "block": lambda values, place, *_: (values, place),
    "manager": _manager,
    "tensor": _tensor,
}


def _check_finished(value: Any) -> None:
    """Nothing but data may come out, at any depth."""
    plain = (*_SCALARS, np.ndarray, np.generic, sparse.csr_matrix, Frame, slice, range)
    waiting, seen = [value], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, plain) or id(item) in seen:
            continue
        _allow(isinstance(item, (list, tuple, dict, set, frozenset)), "holds something that is not data")
        seen.add(id(item))
        waiting.extend([*item, *item.values()] if isinstance(item, dict) else item)
