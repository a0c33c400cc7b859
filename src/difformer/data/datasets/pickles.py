"""Published pickles, read as data: containers, numeric arrays and CSR matrices come out, nothing else.

Some data sets are published as Python pickles, all of protocol 2. A pickle is a program, and `pickle.load` runs it.
Here a small interpreter knows the opcodes that such files consist of. To it, a global name is only a word: nothing is
imported, and nothing that a file names is called. The few words it knows stand for constructors of this module, each of
which builds plain data from checked parts:

    numpy   arrays of booleans, whole numbers and floats
    scipy   CSR matrices, every index checked

Everything else (other names, dtypes of objects or with fields, subtypes, BUILD on anything but an unfinished array or
matrix) is refused with a `DataError`.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse

from difformer.data.sparse_features import checked_csr
from difformer.errors import DAMAGE, DataError

Array = np.ndarray[Any, Any]

MOST_MADE = (8, 1 << 26)  # bytes of arrays and texts that may be made: so many per byte of the pickle, and so many more
_MARK = object()
_SCALARS = (str, bytes, bool, int, float, type(None))


@dataclass(frozen=True, eq=False)
class _Word:
    """A global name that is understood: what its call makes, and what BUILD makes of a new object and its state."""

    name: str
    call: Callable[..., Any] | None = None
    build: Callable[[Any], Any] | None = None


@dataclass(eq=False)
class _Unfinished:
    """An object between its creation and the BUILD that fills it; `slots` are its places in the memo."""

    build: Callable[[Any], Any]
    slots: list[int] = field(default_factory=list)


def read_pickle(content: bytes) -> Any:
    """The data in a pickle; texts of Python 2 are read as latin-1.

    Raises:
        DataError: If the pickle is damaged, or holds or calls anything that is not listed above.
    """
    try:
        value = _run(content)
        _check_finished(value)
    except DataError:
        raise
    except (*DAMAGE, ValueError, LookupError, TypeError, MemoryError) as error:
        raise DataError(f"is not a pickle that can be read ({type(error).__name__}: {error})") from error
    return value


def _allow(known: bool, what: str) -> None:
    if not known:
        why = "no published data set needs; it was not loaded, because loading it could run arbitrary code"
        raise DataError(f"the pickle {what}, which {why}")


def _run(content: bytes) -> Any:
    """Opcode by opcode, on a stack and a memo."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    made_bytes, most_bytes = 0, MOST_MADE[0] * len(content) + MOST_MADE[1]

    def push(value: Any) -> None:
        """Put what was made on the stack, and count its bytes: a pickle can make arrays of one text again and again."""
        nonlocal made_bytes
        made_bytes += value.nbytes if isinstance(value, np.ndarray) else len(value) if isinstance(value, bytes) else 0
        if made_bytes > most_bytes:
            much = f"more than {most_bytes:,} bytes of data out of {len(content):,}, by using parts again and again"
            raise DataError(f"the pickle makes {much}, as no published data set does; get it from its official source")
        stack.append(value)

    def since_mark() -> list[Any]:
        items = []
        while (item := stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def top(kind: type) -> Any:
        _allow(type(stack[-1]) is kind, f"fills a {type(stack[-1]).__name__} as if it were a {kind.__name__}")
        return stack[-1]

    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in _LITERALS:
            small = not isinstance(argument, int) or -(2**63) <= argument < 2**64
            _allow(small, "holds a whole number of more than 64 bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "STOP":
            return stack.pop()
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
            if isinstance(stack[-1], _Unfinished):
                stack[-1].slots.append(argument)
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple([stack.pop() for _ in range(int(name[-1]))][::-1]))
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = since_mark() if name == "APPENDS" else [stack.pop()]
            top(list).extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = since_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            top(dict).update((_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL":
            _allow(argument in _WORDS, f"asks for {argument.replace(' ', '.')}")
            stack.append(_WORDS[argument])
        elif name == "REDUCE":
            arguments, word = stack.pop(), stack.pop()
            called = isinstance(word, _Word) and word.call is not None and isinstance(arguments, tuple)
            _allow(called, f"calls {getattr(word, 'name', type(word).__name__)!r}")
            push(word.call(*arguments))
        elif name == "NEWOBJ":
            arguments, word = stack.pop(), stack.pop()
            known = isinstance(word, _Word) and word.build is not None and arguments == ()
            _allow(known, "makes an object")
            stack.append(_Unfinished(word.build))
        elif name == "BUILD":
            state, made = stack.pop(), stack.pop()
            _allow(isinstance(made, _Unfinished), f"changes the state of a {type(made).__name__}")
            finished = made.build(state)
            for slot in made.slots:
                memo[slot] = finished
            push(finished)
        else:
            _allow(name == "PROTO", f"holds the opcode {name}")
    raise ValueError("it has no end")


def _key(value: Any) -> Any:
    """Keys and members are plain: hashing a deeply nested tuple could exhaust the stack of the process."""
    plain = type(value) in _SCALARS or (type(value) is tuple and all(type(part) in _SCALARS for part in value))
    _allow(plain, f"has a {type(value).__name__} as a key")
    return value


_LITERALS = ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINSTRING", "SHORT_BINSTRING", "BINUNICODE")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict}


def _raw(value: Any) -> bytes:
    """Bytes, which pickles of Python 2 hold as texts."""
    raw = value.encode("latin1") if isinstance(value, str) else value
    _allow(isinstance(raw, bytes), f"holds a {type(value).__name__} in place of bytes")
    return raw


def _new_array(subtype: Any, *_: Any) -> _Unfinished:
    _allow(subtype is _NDARRAY, "makes an array of a subtype")
    return _Unfinished(_array)


def _new_dtype(code: Any, *_: Any) -> _Unfinished:
    known = isinstance(code, str) and bool(re.fullmatch(r"[biuf][1248]", code))
    _allow(known, f"makes an array of dtype {str(code)[:20]!r}")

    def build(state: Any) -> Any:  # version, byte order, subtype, names, fields, …: None where the dtype is plain
        usual = isinstance(state, tuple) and len(state) >= 5 and state[1] in ("<", ">", "|", "=")
        _allow(usual and state[2:5] == (None, None, None), "makes a dtype with fields, or in an unusual way")
        return np.dtype(code).newbyteorder(state[1])

    return _Unfinished(build)


def _array(state: Any) -> Array:
    _allow(isinstance(state, tuple) and len(state) in (4, 5), "fills an array in an unusual way")
    shape, dtype, fortran, raw = state[-4:]
    raw = _raw(raw)
    _allow(isinstance(dtype, np.dtype) and dtype.kind in "biuf", "makes an array whose dtype is not numeric")
    possible = isinstance(shape, tuple) and len(shape) <= 8 and all(type(n) is int and 0 <= n < 2**48 for n in shape)
    fits = possible and math.prod(shape) * dtype.itemsize == len(raw)
    _allow(fits, f"makes an array of another shape than its {len(raw)} bytes have")
    array = np.frombuffer(raw, dtype).reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="))  # a copy that can be written to


def _csr(state: Any) -> Any:
    _allow(isinstance(state, dict), "fills a matrix in an unusual way")
    shape = state.get("_shape", state.get("shape"))
    parts = [state.get(key) for key in ("data", "indices", "indptr")]
    shaped = isinstance(shape, tuple) and len(shape) == 2 and all(type(n) is int for n in shape)
    _allow(shaped and all(isinstance(part, np.ndarray) for part in parts), "makes a matrix without arrays or shape")
    return checked_csr(parts[0], parts[1], parts[2], shape)


def _dict(factory: Any = None) -> dict[Any, Any]:
    _allow(factory is None or factory is _LIST, "makes a dictionary with a factory")
    return {}


def _bytes(text: Any, encoding: Any = "latin1") -> bytes:
    _allow(isinstance(text, str) and encoding == "latin1", "asks for a codec")
    return _raw(text)


_LIST, _NDARRAY, _BYTES = _Word("list"), _Word("ndarray"), _Word("bytes", _bytes)
_ARRAY, _CSR = _Word("array", _new_array), _Word("csr_matrix", build=_csr)
# What each global name stands for; the later names are those of Python 3 and of newer numpy and scipy.
_WORDS = {
    **{"__builtin__ list": _LIST, "builtins list": _LIST, "collections defaultdict": _Word("defaultdict", _dict)},
    **{"numpy ndarray": _NDARRAY, "numpy dtype": _Word("dtype", _new_dtype), "_codecs encode": _BYTES},
    **{f"numpy.{core}.multiarray _reconstruct": _ARRAY for core in ("core", "_core")},
    **{"scipy.sparse.csr csr_matrix": _CSR, "scipy.sparse._csr csr_matrix": _CSR},
}


def _check_finished(value: Any) -> None:
    """Nothing but data may come out, at any depth."""
    waiting, seen = [value], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, (*_SCALARS, np.ndarray, sparse.csr_matrix)) or id(item) in seen:
            continue
        _allow(isinstance(item, (list, tuple, dict)), "holds something that is not data")
        seen.add(id(item))
        waiting.extend([*item, *item.values()] if isinstance(item, dict) else item)
