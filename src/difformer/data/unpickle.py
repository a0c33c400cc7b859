"""Pickles that run nothing: only containers, numpy arrays and scipy matrices can come out.

Some data sets are published as Python pickles. A pickle is a program; loading one from the internet with
`pickle.load` runs whatever its author, or whoever changed it on the way, put in. Here a name that is not on a short
list is refused before it is imported.
"""

from __future__ import annotations

import collections
import io
import pickle
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from scipy import sparse

from difformer.data.errors import DataError


def _numpy_names() -> dict[tuple[str, str], object]:
    # numpy 2 moved its core; pickles written by either version name it differently.
    multiarray = type(np.array(0)).__reduce__(np.array(0))[0]
    scalar = np.float64(0).__reduce__()[0]
    names: dict[tuple[str, str], object] = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}
    for core in ("numpy.core.multiarray", "numpy._core.multiarray"):
        names[core, "_reconstruct"] = multiarray
        names[core, "scalar"] = scalar
    frombuffer = np.zeros(1).__reduce_ex__(5)[0]
    for core in ("numpy.core.numeric", "numpy._core.numeric"):
        names[core, "_frombuffer"] = frombuffer
    return names


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stands in for ``codecs.encode``, which old pickles call for raw bytes, but with one codec only."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"codec {encoding!r} in a pickle")
    return text.encode("latin1")


def _new_object(kind: type, base: type, state: object) -> object:
    """What ``copyreg._reconstructor`` does, for the one base that carries no behaviour."""
    if base is not object:
        raise pickle.UnpicklingError(f"an object of {kind} made from {base} in a pickle")
    return object.__new__(kind)


_CONTAINERS: dict[tuple[str, str], object] = {
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("_codecs", "encode"): _latin1,
    **{
        (module, name): kind
        for module in ("builtins", "__builtin__")
        for name, kind in (
            ("list", list),
            ("dict", dict),
            ("set", set),
            ("tuple", tuple),
            ("bytearray", bytearray),
            ("slice", slice),
        )
    },
    ("copy_reg", "_reconstructor"): _new_object,
    ("copyreg", "_reconstructor"): _new_object,
    ("builtins", "object"): object,
    ("__builtin__", "object"): object,
}
_SCIPY: dict[tuple[str, str], object] = {
    ("scipy.sparse.csr", "csr_matrix"): sparse.csr_matrix,
    ("scipy.sparse._csr", "csr_matrix"): sparse.csr_matrix,
}


ALLOWED: Mapping[tuple[str, str], object] = {**_CONTAINERS, **_numpy_names(), **_SCIPY}


class SafeUnpickler(pickle.Unpickler):
    """An unpickler that knows only the names it is given.

    Args:
        file: Open for reading bytes.
        encoding: For strings of Python 2.
        extra: Names allowed besides containers, numpy and scipy's CSR matrix.
    """

    def __init__(
        self,
        file: IO[bytes],
        *,
        encoding: str = "latin1",
        extra: Mapping[tuple[str, str], object] | None = None,
        **_: Any,
    ) -> None:
        super().__init__(file, encoding=encoding)
        self._allowed = {**ALLOWED, **(extra or {})}

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._allowed[module, name]
        except KeyError:
            raise DataError(
                f"the pickle asks for {module}.{name}, which no data set here needs; it was not loaded, "
                f"because loading could run foreign code"
            ) from None


def safe_load(
    source: bytes | IO[bytes], *, encoding: str = "latin1", extra: Mapping[tuple[str, str], object] | None = None
) -> Any:
    """The object in a pickle, or a refusal.

    Args:
        source: The pickle, or a file open for reading bytes.
        encoding: For strings of Python 2; ``"latin1"`` keeps their bytes.
        extra: Names allowed besides containers, numpy and scipy's CSR matrix: ``{(module, name): object}``.

    Raises:
        DataError: If the pickle names anything else.
        pickle.UnpicklingError: If it is not a pickle.
    """
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    return SafeUnpickler(file, encoding=encoding, extra=extra).load()
