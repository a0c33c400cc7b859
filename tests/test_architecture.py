"""The shape of the source tree: which room may import which, and how modules are named."""

import ast
import os
import py_compile
import shutil
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


def test_packages_name_their_exports_for_type_checkers():
    """A type checker does not run `lazy_names`: it reads the stub beside it, or an ``__all__`` of texts."""
    for path in (path for path in MODULES if path.name == "__init__.py" and not path.with_suffix(".pyi").exists()):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node):
                assert isinstance(node.value, ast.List), path


def test_changes_by_hand_are_still_possible():
    """`benchmarks.mutations --hand` replaces texts of the source, each of which must occur once."""
    listed = toml.loads((SRC.parents[1] / "benchmarks" / "mutations_by_hand.toml").read_text(encoding="utf-8"))
    texts = {(row["path"], row["before"]) for row in listed["mutation"]}
    stale = [f"{path}: {before}" for path, before in texts if (SRC / path).read_text("utf-8").count(before) != 1]
    assert not stale


@pytest.mark.parametrize("stub", sorted(SRC.rglob("*.pyi")), ids=lambda p: p.parent.name)
def test_lazy_packages_export_what_their_stub_names(stub):
    package = import_module(".".join(("difformer", *stub.relative_to(SRC).parts[:-1])))
    tree = ast.parse(stub.read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in imports for alias in node.names), "not exported"
    homes = {alias.name: node.module for node in imports if node.level == 0 for alias in node.names}
    assert set(package.__all__) == homes.keys()
    assert all(getattr(package, name) is getattr(import_module(home), name) for name, home in homes.items())
    modules = [alias.name for node in imports if node.level for alias in node.names]
    assert all(getattr(package, name).__name__ == f"{package.__name__}.{name}" for name in modules)
    assert all(name in dir(package) for name in (*homes, *modules))
    assert not {"annotations", "lazy_names"} & {*dir(package)}
    for node in tree.body:  # what the package defines by itself
        if isinstance(node, ast.FunctionDef | ast.AnnAssign):
            assert hasattr(package, node.name if isinstance(node, ast.FunctionDef) else node.target.id)


def test_the_package_is_imported_without_its_sources(tmp_path):
    for path in SRC.glob("*.py"):
        py_compile.compile(str(path), tmp_path / "difformer" / f"{path.stem}.pyc")
    shutil.copy(SRC / "__init__.pyi", tmp_path / "difformer")  # the wheel has it, as it has the tables
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
