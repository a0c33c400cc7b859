"""Builds the kernels in C once per machine and loads them.

The first pass that is long enough to profit compiles them with the machine's C compiler into the user's cache folder.
The file name is a hash of sources, flags, compiler and processor: nothing is compiled twice, and nothing stale is
loaded. Without a compiler or a writable folder torch's operations are used, and `explain` gives the reason.

The kernels share torch's threads: the library is linked with no OpenMP runtime and uses the one that torch has loaded.
If that is not the one that the compiler expects, the kernels run in one thread.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from difformer.files import cache_folder, write_whole

SOURCES = ("steps.c", "product.h", "pass.h", "tail.h", "gram.h", "rows.h", "pairs.h")  # all of them name the library
# No fast-math flags: NaN and infinity have to propagate. Only errno and floating-point traps are not needed.
COMMON = ("-O3", "-std=gnu11", "-fPIC", "-w", "-fno-math-errno", "-fno-trapping-math")
# From the fastest to what every compiler accepts.
FLAGS = (
    ("-march=native", "-mprefer-vector-width=512", "-fopenmp"),
    ("-march=native", "-fopenmp"),
    ("-march=native", "-fopenmp-simd"),
    ("-fopenmp-simd",),
    (),
)
LONGEST_COMPILATION = 60.0  # seconds; two are usual


class Found(NamedTuple):
    """The library or None, whether it has threads, and an explanation."""

    library: ctypes.CDLL | None
    threads: bool
    story: str


def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where torch's operations are used instead."""
    return None if _switched_off() else find().library


def explain() -> str:
    """One sentence: whether the kernels are used on this machine, and if not, why.

    Example:
        >>> explain().startswith(("kernels in C are used", "torch's operations are used"))
        True
    """
    if _switched_off():
        chosen = os.environ["DIFFORMER_NATIVE"]
        return f"torch's operations are used: DIFFORMER_NATIVE={chosen} switches the kernels in C off"
    return find().story


def _switched_off() -> bool:
    return os.environ.get("DIFFORMER_NATIVE", "").strip().lower() in ("0", "off", "no", "false")


@functools.cache
def find() -> Found:
    """Loads the kernels, compiled before or now, even if they have been switched off since; once per process."""
    if sys.platform == "win32":
        return _none("they are built only on Linux and macOS")
    if sys.byteorder != "little":
        return _none("they need a little-endian machine")
    compiler = _compiler()
    if compiler is None:
        return _none("there is no C compiler (cc, gcc or clang on the PATH, or the variable CC)")
    reason = ""
    for flags in FLAGS:
        try:
            path = cache_folder() / "native" / f"{_name(compiler, flags)}.so"
            if not path.exists():
                _compile(compiler, flags, path)
            _trust(path.parent)
            _trust(path)
            content = path.read_bytes()
            # It ends with the hash of what precedes it; loading a truncated library would end the process.
            if hashlib.sha256(content[:-32]).digest() != content[-32:]:
                path.unlink()
                _compile(compiler, flags, path)
        except subprocess.CalledProcessError as error:  # flags that this compiler does not know
            reason = f"{compiler} failed: {error.stderr.strip()[-200:]}"
            continue
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:  # RuntimeError: a user without a home
            return _none(f"they cannot be built or kept ({error}); DIFFORMER_CACHE names another folder")
        try:
            kernels = _load(path)
        except (OSError, AttributeError) as error:  # functions of threads that torch does not have, or another file
            reason = str(error)
            continue
        threads = "-fopenmp" in flags
        return Found(kernels, threads, f"kernels in C are used, {'in threads, ' if threads else ''}from {path}")
    return _none(reason)


def _none(reason: str) -> Found:
    return Found(None, False, f"torch's operations are used, not kernels in C: {reason}")


def _compiler() -> str | None:
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _name(compiler: str, flags: tuple[str, ...]) -> str:
    """A hash of all that the compiled code depends on."""
    built = os.stat(compiler)
    parts = [compiler, str(built.st_size), str(built.st_mtime_ns), *COMMON, *flags, platform.machine(), _processor()]
    digest = hashlib.sha256("\0".join(parts).encode())
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """Model and instruction sets of the processor: different machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model", "flags", "Features", "CPU ")))


def _compile(compiler: str, flags: tuple[str, ...], path: Path) -> None:
    """Compiles in a folder of its own, then moves the library into place: other processes may do the same."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    source = Path(__file__).parent / SOURCES[0]
    with tempfile.TemporaryDirectory() as folder:
        objects, linked = Path(folder) / "steps.o", Path(folder) / "steps.so"
        _run(compiler, *COMMON, *flags, "-c", str(source), "-o", str(objects))
        # Without -fopenmp: the functions of the runtime are those that torch has brought along.
        undefined = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
        _run(compiler, "-shared", str(objects), "-o", str(linked), *undefined, "-lm")
        code = linked.read_bytes()
        write_whole(path, code + hashlib.sha256(code).digest())
        path.chmod(0o600)


def _run(*command: str) -> None:
    # Messages of compilers are translated, not always into the encoding that Python expects.
    given = {"stdin": subprocess.DEVNULL, "text": True, "errors": "replace", "timeout": LONGEST_COMPILATION}
    subprocess.run(command, check=True, capture_output=True, **given)  # type: ignore[call-overload]


def _trust(path: Path) -> None:
    """Refuses what others can write to: a shared cache must not run their code as this user."""
    found = path.stat()
    if found.st_uid not in (os.getuid(), 0):
        raise PermissionError(f"{path} belongs to user {found.st_uid}")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others may write to {path}")


def _load(path: Path) -> ctypes.CDLL:
    import torch  # noqa: F401  (brings the runtime of its threads into the process)

    kernels = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    _ = kernels.difformer_sum_rows  # an AttributeError if this is another library
    return kernels
