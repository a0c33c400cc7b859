"""Break the code on purpose and see whether a test notices.

    python -m benchmarks.mutations --count 120 --seed 0 --out mutations.jsonl

draws `--count` single changes (an operator, a comparison, a constant, a negated condition, a dropped term) at random
places of the modules below, applies each to a copy of the source tree, and runs the tests of that room until the first
failure. A change that no test notices has survived; each one is printed with its place, so that you can decide whether
a test is missing or the change is harmless (for example a block size that only affects speed).

Changes in docstrings, error messages and type annotations are not drawn, nor modules that only a GPU runs
(``attention/flex.py``, ``attention/pair_*.py``, ``kernels/row_kernels.py``).
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
# Which tests have to notice a change of which modules (a pattern below src/difformer).
ROOMS = {
    "nn/conv.py": ["tests/nn"],
    "nn/difformer.py": ["tests/nn"],
    "nn/structure.py": ["tests/nn"],
    "nn/context.py": ["tests/nn", "tests/training/test_inference.py"],
    "nn/dropout.py": ["tests/nn"],
    "nn/readout.py": ["tests/nn"],
    "graph.py": ["tests/test_graph.py", "tests/test_edge_forms.py"],
    "sparse.py": ["tests/test_graph.py", "tests/test_edge_forms.py", "tests/nn"],
    "attention/[!fp]*.py": ["tests/attention"],
    "attention/polynomial.py": ["tests/attention"],
    "kernels/[!r]*.py": ["tests/kernels", "tests/nn"],
    "kernels/rows.py": ["tests/kernels", "tests/nn"],
    "kernels/cpu/*.py": ["tests/kernels"],
    "data/split.py": ["tests/data/test_splits.py"],
    "data/split_rules.py": ["tests/data/test_splits.py"],
    "training/journal.py": ["tests/training/test_loop.py", "tests/training/test_stacked.py"],
    "training/loop.py": ["tests/training/test_loop.py"],
    "training/metrics.py": ["tests/training/test_metrics.py"],
    "training/losses.py": ["tests/training/test_loop.py", "tests/training/test_metrics.py"],
}
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
    path: Path
    line: int
    before: str
    after: str
    source: str
    tests: list[str]


def functions(tree: ast.Module) -> Iterator[ast.AST]:
    """Bodies that run: functions, without annotations, messages of errors, docstrings and GPU branches."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (stmt for stmt in node.body if not isinstance(stmt, ast.Raise))


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
    new = copy.deepcopy(node)
    if kind == "operator":
        new.op = SWAPS[type(new.op)]()  # type: ignore[attr-defined]
    elif kind == "comparison":
        new.ops = [SWAPS[type(new.ops[0])]()]  # type: ignore[attr-defined]
    elif kind == "condition":
        new.op = SWAPS[type(new.op)]()  # type: ignore[attr-defined]
    elif kind == "negation":
        new = new.operand  # type: ignore[attr-defined]
    elif kind == "constant":
        value = new.value  # type: ignore[attr-defined]
        new.value = (not value) if isinstance(value, bool) else value + 1  # type: ignore[attr-defined]
    else:
        new.func.attr = METHODS[new.func.attr]  # type: ignore[attr-defined]
    return new


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().visit(node)


def mutations(src: Path) -> list[Mutation]:
    found = []
    for pattern, tests in ROOMS.items():
        for path in sorted(src.glob(pattern)):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            seen: set[int] = set()
            for statement in functions(tree):
                for node, kind in sites(statement):
                    if id(node) in seen:
                        continue
                    seen.add(id(node))
                    new = changed(node, kind)
                    before, after = ast.unparse(node), ast.unparse(new)
                    whole = _Replace(node, new).visit(tree)
                    source = ast.unparse(ast.fix_missing_locations(whole))
                    _Replace(new, node).visit(whole)
                    there = [name for name in tests if (ROOT / name).exists()]
                    found.append(Mutation(path.relative_to(src), node.lineno, before, after, source, there))  # type: ignore[attr-defined]
    return found


def survives(one: Mutation, tree: Path, timeout: float) -> bool:
    """Whether all tests of the room pass with the change."""
    target = tree / "difformer" / one.path
    original = target.read_text(encoding="utf-8")
    target.write_text(one.source, encoding="utf-8")
    try:
        run = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "120", *one.tests]
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, timeout=timeout).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        target.write_text(original, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only modules whose path contains this")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--out", type=Path, default=Path("mutations.jsonl"))
    given = parser.parse_args()
    every = [one for one in mutations(ROOT / "src" / "difformer") if given.only in str(one.path) and one.tests]
    # The same number from every room, so that a long module does not take all of them.
    draw, rooms = random.Random(given.seed), {}
    for one in every:
        rooms.setdefault(one.path, []).append(one)
    for waiting in rooms.values():
        draw.shuffle(waiting)
    chosen: list[Mutation] = []
    while len(chosen) < given.count and any(rooms.values()):
        chosen += [waiting.pop() for waiting in rooms.values() if waiting]
    chosen = chosen[: given.count]
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "src"
        shutil.copytree(ROOT / "src", tree, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for number, one in enumerate(chosen, 1):
            started = time.monotonic()
            alive = survives(one, tree, given.timeout)
            survivors += alive
            row = {"path": str(one.path), "line": one.line, "before": one.before, "after": one.after, "survived": alive}
            with given.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")
            word = "SURVIVED" if alive else "noticed"
            print(
                f"{number:3} {word:8} {time.monotonic() - started:5.1f} s  {one.path}:{one.line}  "
                f"{one.before}  →  {one.after}",
                flush=True,
            )
    print(f"{survivors} of {len(chosen)} changes survived, of {len(every)} possible ones")


if __name__ == "__main__":
    main()
