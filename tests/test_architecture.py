"""The shape of the source tree: which room may import which, and how modules are named."""

import ast
import os
import py_compile
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from difformer import toml

SRC = Path(__file__).parents[1] / "src" / "difformer"
MODULES = sorted(SRC.rglob("*.py"))

# From the bottom to the top: a room imports from itself and from rooms before it. Modules of the package itself
# (graph, sparse, diffusivity, errors, …) are the ground that everything stands on.
ROOMS = (
    "ground",
    "kernels",
    "attention",
    "diffusion",
    "nn",
    "data",
    "zoo",
    "training",
    "distributed",
    "estimators",
    "report",
    "experiments",
    "cli",
)
FRONT = {"__init__", "__main__"}  # the package's front door opens every room


def room_of(parts):
    """The room of a dotted name below `difformer`."""
    return parts[0] if parts and parts[0] in ROOMS else "ground"


def imported(path):
    """Names below `difformer` that a module imports anywhere, also inside functions, with their lines."""
    package = path.relative_to(SRC).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(("difformer", *package[: len(package) - node.level + 1], *([base] if base else [])))
            names = [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
        else:
            continue
        for name, line in names:
            if name == "difformer" or name.startswith("difformer."):
                yield tuple(name.split(".")[1:]), line


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_one_way(path):
    parts = path.relative_to(SRC).with_suffix("").parts
    if len(parts) == 1 and parts[0] in FRONT:
        return
    own = ROOMS.index(room_of(parts))
    above = [f"line {line}: {'.'.join(name)}" for name, line in imported(path) if ROOMS.index(room_of(name)) > own]
    assert not above, f"{'/'.join(parts)} imports from rooms above it: {', '.join(above)}"


def test_type_checkers_see_what_packages_export():
    """A type checker does not run `lazy_names`: it takes ``import A as A``, or an ``__all__`` of texts."""
    hidden = []
    for path in (path for path in MODULES if path.name == "__init__.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assigned = [node for node in tree.body if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node)]
        if not assigned:
            continue
        value = assigned[0].value
        if isinstance(value, ast.List) and all(isinstance(name, ast.Constant) for name in value.elts):
            continue
        package = ".".join(("difformer", *path.relative_to(SRC).parts[:-1]))
        imports = [part for part in ast.walk(tree) if isinstance(part, ast.ImportFrom)]
        seen = {alias.name for part in imports for alias in part.names if alias.asname == alias.name}
        hidden += [f"{package}.{name}" for name in import_module(package).__all__ if name not in seen]
    assert not hidden


def test_changes_by_hand_are_still_possible():
    """`benchmarks.mutations --hand` replaces texts of the source, each of which must occur once."""
    listed = toml.loads((SRC.parents[1] / "benchmarks" / "mutations_by_hand.toml").read_text(encoding="utf-8"))
    texts = {(row["path"], row["before"]) for row in listed["mutation"]}
    stale = [f"{path}: {before}" for path, before in texts if (SRC / path).read_text("utf-8").count(before) != 1]
    assert not stale


@pytest.mark.parametrize("room", ["", "data", "diffusion", "distributed", "report", "training", "zoo"])
def test_lazy_packages_export_what_type_checkers_see(room):
    package = import_module(f"difformer.{room}".rstrip("."))
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    homes = {alias.name: part.module for part in block.body for alias in part.names}
    assert homes.keys() <= set(package.__all__)
    assert all(getattr(package, name) is getattr(import_module(home), name) for name, home in homes.items())


def test_the_package_is_imported_without_its_sources(tmp_path):
    for path in SRC.glob("*.py"):
        py_compile.compile(str(path), tmp_path / "difformer" / f"{path.stem}.pyc")
    program = "import difformer; print(difformer.__file__, difformer.Graph.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(tmp_path / "difformer" / "__init__.pyc"), "Graph"]


def test_no_module_name_occurs_twice():
    # A command is named after what it shows.
    names = Counter(path.stem for path in MODULES if path.stem not in FRONT and path.parent.name != "cli")
    assert not {name: count for name, count in names.items() if count > 1}


def test_modules_are_named_by_nouns():
    gerunds = [path.stem for path in MODULES if path.stem.endswith("ing") and path.stem not in NOUNS]
    assert not gerunds, f"name these modules after the thing they hold: {', '.join(gerunds)}"


NOUNS = {"early_stopping", "label_spreading", "preprocessing", "scaling"}


# Why a module has fewer than 60 lines.
SMALL = {
    "free_memory": "six rooms ask it",
    "reference": "the dense formula, which every other operator is compared with",
    "early_stopping": "looked for under this name",
    "graphgym": "importing it registers the layer",
}


def test_small_modules_have_a_reason():
    fronts = {"__init__", "__main__", "_version", "_lazy"}
    named = [path for path in MODULES if path.stem not in fronts | SMALL.keys() and path.parent.name != "cli"]
    assert not [path.name for path in named if len(path.read_text(encoding="utf-8").splitlines()) < 60]


def test_the_package_stays_small():
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES)
    assert lines <= 37_000, "merge or drop something, or give a reason for a larger limit"
    assert len(MODULES) <= 210
