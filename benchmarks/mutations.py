"""Break the code on purpose and see whether a test notices.

    python -m benchmarks.mutations --count 110 --seed 1 --hand

draws `--count` single changes (an operator, a comparison, a constant, a negated condition, a method) at random places
of the modules below, and with `--hand` adds those of ``mutations_by_hand.toml``: a gradient, a mask or a normalisation
of each kernel, in Python and in C. Each is applied to a copy of the source tree. The tests that call the changed
function (all tests of the module, where none does directly) run until one fails. A change that no test notices has
survived; its line in `--out` says where it is, so that you can write the missing test. A change without effect on any
result (a block size, a cache, a bound that no value reaches) is entered with a reason in ``[[equivalent]]`` of the same
TOML file.

    python -m benchmarks.mutations --table mutations.jsonl > benchmarks/mutations.md

makes the table. Changes in error messages and type annotations are not drawn, nor modules that only a GPU runs
(``attention/pair_*.py``, and `GPU_ONLY`, whose changes by hand need Triton, if only its interpreter).
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis  # noqa: F401  (imported here so that no fork has to)
import pytest
import scipy.sparse  # noqa: F401
import torch  # noqa: F401

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
BY_HAND = Path(__file__).with_name("mutations_by_hand.toml")
TRACE = "DIFFORMER_MUTATIONS_TRACE"  # the file into which a run of pytest writes which test calls which function
NN = ["tests/nn", "tests/test_edge_forms.py"]
KERNELS = [
    *(f"tests/kernels/test_{name}.py" for name in ("step", "kernel_layers", "passes", "gram_products", "unit")),
    *("tests/kernels/test_kernel_memory.py", "tests/nn/test_gram.py", "tests/nn/test_extremes.py"),
    "tests/nn/test_replaced_modules.py",
]
LOOP = ["tests/training/test_loop.py", "tests/training/test_metrics.py", "tests/training/test_feeds.py"]
# Which tests have to notice a change of which modules (a pattern below src/difformer).
ROOMS = {
    "nn/conv.py": NN,
    "nn/difformer.py": [*NN, "tests/kernels/test_kernel_layers.py"],
    "nn/context.py": [*NN, "tests/training/test_inference.py"],
    "nn/dropout.py": NN,
    "nn/protocol.py": NN,
    "graph.py": ["tests/test_graph.py", *NN],
    "sparse.py": ["tests/test_sparse.py", "tests/test_graph.py", *NN],
    "attention/[!fpt]*.py": ["tests/attention"],
    "attention/polynomial.py": ["tests/attention"],
    "attention/tiles.py": ["tests/attention"],
    "kernels/gpu_layer.py": ["tests/kernels/test_gpu_layer.py"],
    "kernels/triton_rows.py": ["tests/kernels/test_gpu_layer.py"],
    "kernels/[!rt]*.py": KERNELS,
    "kernels/rows.py": KERNELS,
    "kernels/cpu/build.py": ["tests/kernels/test_build.py"],
    "kernels/cpu/*.py": KERNELS,
    "kernels/cpu/*.[ch]": KERNELS,
    "data/split.py": ["tests/data/test_splits.py"],
    "training/early_stopping.py": [*LOOP, "tests/training/test_stacked.py"],
    "training/journal.py": [*LOOP, "tests/training/test_stacked.py"],
    "training/loop.py": LOOP,
    "training/metrics.py": LOOP,
    "training/losses.py": [*LOOP, "tests/training/test_stacked.py"],
    "training/study.py": ["tests/training/test_study.py", "tests/training/test_without_test.py"],
}
LEFT_OUT = ("tests/nn/test_compiled.py", "tests/kernels/test_gpu_kernels.py")  # minutes, or a GPU
GPU_ONLY = ("kernels/gpu_layer.py", "kernels/triton_rows.py")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
METHODS = {"sum": "mean", "mean": "sum", "max": "min", "min": "max", "argmax": "argmin", "sqrt": "square"}


class Mutation(NamedTuple):
    path: str  # below src/difformer
    function: str  # the name of the changed function; empty where it is not known
    line: int
    before: str
    after: str
    number: int  # of the place in the module; -1 where the text `before` is replaced

    def source(self, text: str) -> str:
        """The module with the change."""
        if self.number < 0:
            return text.replace(self.before, self.after)
        tree = ast.parse(text)
        _, node, kind = places(tree)[self.number]
        return ast.unparse(ast.fix_missing_locations(_Replace(node, changed(node, kind)).visit(tree)))

    def tests(self, root: Path) -> list[str]:
        """The test files of the module in the tree `root`."""
        of = (tests for pattern, tests in ROOMS.items() if Path(f"difformer/{self.path}").match(f"difformer/{pattern}"))
        found = next(of, None)
        if found is None:
            raise SystemExit(f"{self.path}: no tests are named for it in ROOMS")
        files = [sorted((root / name).glob("test_*.py")) if (root / name).is_dir() else [root / name] for name in found]
        names = [str(file.relative_to(root)) for group in files for file in group if file.exists()]
        return [name for name in names if name not in LEFT_OUT]


# --------------------------------------------------------------------------------------------------- drawing changes


def sites(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Places below a statement that can be changed, with the kind of change."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.FunctionDef | ast.Assert):
        return
    if "cuda" in ast.unparse(node) and isinstance(node, ast.If):
        return
    if (
        isinstance(node, ast.BinOp)
        and type(node.op) in SWAPS
        and not isinstance(node.left, ast.Constant | ast.JoinedStr)
    ):
        yield node, "operator"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        yield node, "comparison"
    elif isinstance(node, ast.BoolOp):
        yield node, "condition"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, "negation"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield node, "constant"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield node, "method"
    for child in ast.iter_child_nodes(node):
        yield from sites(child)


def changed(node: ast.AST, kind: str) -> ast.AST:
    new: Any = copy.deepcopy(node)
    if kind in ("operator", "condition"):
        new.op = SWAPS[type(new.op)]()
    elif kind == "comparison":
        new.ops = [SWAPS[type(new.ops[0])]()]
    elif kind == "negation":
        new = new.operand
    elif kind == "constant":
        new.value = (not new.value) if isinstance(new.value, bool) else new.value + 1
    else:
        new.func.attr = METHODS[new.func.attr]
    return new


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().visit(node)


def places(tree: ast.Module) -> list[tuple[str, ast.AST, str]]:
    """Every place of a module that can be changed: the function, the node and the kind of change."""
    found, seen = [], set()
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node, kind in (place for statement in function.body for place in sites(statement)):
            if id(node) not in seen:
                seen.add(id(node))
                found.append((function.name, node, kind))
    return found


def drawn(src: Path) -> list[Mutation]:
    """Every change that can be drawn."""
    found = []
    for path in (path for pattern in ROOMS for path in sorted(src.glob(pattern)) if path.suffix == ".py"):
        name = path.relative_to(src).as_posix()
        if name in GPU_ONLY:
            continue
        for number, (function, node, kind) in enumerate(places(ast.parse(path.read_text(encoding="utf-8")))):
            before, after = ast.unparse(node), ast.unparse(changed(node, kind))
            found.append(Mutation(name, function, node.lineno, before, after, number))  # type: ignore[attr-defined]
    return found


def by_hand(src: Path) -> list[Mutation]:
    """The changes that the TOML file lists; each text must occur exactly once."""
    found = []
    for row in tomllib.loads(BY_HAND.read_text(encoding="utf-8"))["mutation"]:
        text = (src / row["path"]).read_text(encoding="utf-8")
        before, after = row["before"], row["after"]
        if text.count(before) != 1:
            raise SystemExit(f"{row['path']}: {before!r} occurs {text.count(before)} times, expected once")
        line = text[: text.index(before)].count("\n") + 1
        found.append(Mutation(row["path"], _function(row["path"], text, line), line, before, after, -1))
    return found


def _function(path: str, text: str, line: int) -> str:
    """The innermost function of Python at a line."""
    if not path.endswith(".py"):
        return ""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    around = [one for one in functions if one.lineno <= line <= (one.end_lineno or line)]
    return max(around, key=lambda one: one.lineno).name if around else ""


def choose(every: list[Mutation], count: int, seed: int) -> list[Mutation]:
    """The same number from every module, so that a long one does not take all of them."""
    draw, modules = random.Random(seed), {}
    for one in every:
        modules.setdefault(one.path, []).append(one)
    for waiting in modules.values():
        draw.shuffle(waiting)
    chosen: list[Mutation] = []
    while len(chosen) < count and any(modules.values()):
        chosen += [waiting.pop() for waiting in modules.values() if waiting]
    return chosen[:count]


# ------------------------------------------------------------------------------------------ which test calls what


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    """As a plugin of pytest: note the functions of the package that each test calls, and its time."""
    if TRACE not in os.environ:
        return (yield)
    seen, called, started = set(), set(), time.perf_counter()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code not in seen:
            seen.add(code)
            if "/difformer/" in code.co_filename:
                called.add(f"{code.co_filename.rpartition('/difformer/')[2]}:{code.co_name}")

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        return (yield)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        row = {"test": item.nodeid, "seconds": time.perf_counter() - started, "calls": sorted(called)}
        with open(os.environ[TRACE], "a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")


class Runner:
    """A copy of the source tree and its tests, in which changes are tried."""

    def __init__(self, folder: Path, timeout: float) -> None:
        self.folder, self.timeout = folder, timeout
        self.trace = folder / "trace.jsonl"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for name in ("src", "tests", "benchmarks", "pyproject.toml"):
            if (folder / name).exists():
                continue
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, folder / name)

    def pytest(self, tests: list[str], **environment: str) -> int:
        """The exit status of pytest, in a fork of this process: torch is imported once, the package every time."""
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = int(self._child(tests, environment))
            finally:
                os._exit(status)
        stop = time.monotonic() + self.timeout
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > stop:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return 1
            time.sleep(0.05)
        status = os.waitstatus_to_exitcode(ended[1])
        if status in (4, 5, 70):  # nothing was run: that says nothing
            raise SystemExit((self.folder / "output.txt").read_text(encoding="utf-8")[-3000:])
        return status

    def _child(self, tests: list[str], environment: dict[str, str]) -> int:
        os.setsid()
        output = os.open(self.folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(self.folder)
        paths = [str(self.folder / "src"), str(self.folder)]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "DIFFORMER_CACHE": str(self.folder / "cache")}
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", **environment}
        sys.dont_write_bytecode = True
        sys.path[:] = [*paths, *(path for path in sys.path if not Path(path or ".").resolve().is_relative_to(ROOT))]
        return pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--timeout", "120", *tests])

    def calls(self, tests: list[str]) -> list[dict[str, Any]]:
        """What each test calls; files that have not been traced yet are run once, and must pass."""
        known = self.trace.read_text(encoding="utf-8").splitlines() if self.trace.exists() else []
        rows = [json.loads(line) for line in known]
        missing = [file for file in tests if not any(row["test"].startswith(file) for row in rows)]
        for file in missing:
            if self.pytest([file, "-p", "benchmarks.mutations"], **{TRACE: str(self.trace)}):
                raise SystemExit(f"{file} fails without any change: nothing can be measured with it")
            if not any(json.loads(x)["test"].startswith(file) for x in self.trace.read_text().splitlines()):
                raise SystemExit(f"{file} holds no test")
        if missing:
            rows = [json.loads(line) for line in self.trace.read_text(encoding="utf-8").splitlines()]
        return [row for row in rows if row["test"].partition("::")[0] in tests]

    def noticed(self, one: Mutation) -> str:
        """The test that fails with the change; empty where all tests of the module pass."""
        tests = one.tests(self.folder)
        calling = [row for row in self.calls(tests) if f"{one.path}:{one.function}" in row["calls"]]
        first = [row["test"] for row in sorted(calling, key=lambda row: row["seconds"])]
        target = self.folder / "src" / "difformer" / one.path
        original = target.read_text(encoding="utf-8")
        target.write_text(one.source(original), encoding="utf-8")
        try:
            if not (status := self.pytest(first or tests)):
                return ""
            said = (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
            return next((line.split()[1] for line in said if line.startswith(("FAILED", "ERROR"))), str(status))
        finally:
            target.write_text(original, encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------ table


def table(lines: list[str]) -> str:
    """Markdown: per module how many changes were tried, noticed, survived and are equivalent."""
    rows = {}  # the last line about a change counts: it may have been tried again with a new test
    for line in lines:
        row = json.loads(line)
        rows[row["path"], row["line"], row["before"], row["after"]] = row
    reasons = _equivalent()
    counts: dict[str, Counter[str]] = {}
    for (path, _, before, after), row in rows.items():
        kind = "killed" if not row["survived"] else "equivalent" if (path, before, after) in reasons else "survived"
        for name in (path, "total"):
            counts.setdefault(name, Counter()).update([row["how"], kind])
    out = ["| module | drawn | by hand | killed | survived | equivalent |", "|---|---|---|---|---|---|"]
    for name in (*sorted(counts.keys() - {"total"}), "total"):
        cells = (counts[name][kind] for kind in ("drawn", "by hand", "killed", "survived", "equivalent"))
        out.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join(out)


def _equivalent() -> dict[tuple[str, str, str], str]:
    found = tomllib.loads(BY_HAND.read_text(encoding="utf-8")).get("equivalent", [])
    return {(row["path"], row["before"], row["after"]): row["why"] for row in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=110, help="how many changes are drawn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hand", action="store_true", help="also those of mutations_by_hand.toml")
    parser.add_argument("--only", default="", help="only modules whose path contains this")
    parser.add_argument("--timeout", type=float, default=600, help="seconds after which a change counts as noticed")
    parser.add_argument("--out", type=Path, default=Path("mutations.jsonl"))
    parser.add_argument("--scratch", type=Path, help="where the tree is copied to, or was by an earlier call")
    parser.add_argument("--again", type=Path, help="try the survivors of this file again")
    parser.add_argument("--table", type=Path, help="print the table of this file, and do nothing else")
    given = parser.parse_args()
    if given.table:
        print(table(given.table.read_text(encoding="utf-8").splitlines()))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.scratch or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        runner = Runner(folder, given.timeout)
        src = folder / "src" / "difformer"
        every = [one for one in drawn(src) if given.only in one.path]
        chosen = [("drawn", one) for one in choose(every, given.count, given.seed)]
        if given.hand:
            chosen += [("by hand", one) for one in by_hand(src) if given.only in one.path]
        if given.again:
            rows = [json.loads(line) for line in given.again.read_text(encoding="utf-8").splitlines()]
            wanted = {(row["path"], row["before"], row["after"]) for row in rows if row["survived"]}
            chosen = [(how, one) for how, one in chosen if (one.path, one.before, one.after) in wanted]
        known = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() and not given.again else []
        tried = {tuple(json.loads(line)[name] for name in ("path", "line", "before", "after")) for line in known}
        survivors = 0
        for number, (how, one) in enumerate(chosen, 1):
            if (one.path, one.line, one.before, one.after) in tried:
                continue
            started = time.monotonic()
            by = runner.noticed(one)
            survivors += not by
            row = {"path": one.path, "line": one.line, "before": one.before, "after": one.after}
            with given.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row | {"how": how, "survived": not by, "by": by}) + "\n")
            word = "noticed" if by else "SURVIVED"
            place = f"{one.path}:{one.line}  {one.before}  →  {one.after}"
            print(f"{number:3} {word:8} {time.monotonic() - started:5.1f} s  {place}  {by}", flush=True)
    print(f"{survivors} of {len(chosen)} changes survived; {len(every)} can be drawn")


if __name__ == "__main__":
    main()
