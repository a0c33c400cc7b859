"""The shape of the source tree: which room may import which, and how modules are named."""

import ast
from collections import Counter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "difformer"
MODULES = sorted(SRC.rglob("*.py"))

# From the bottom to the top: a room imports from itself and from rooms before it. Modules of the package itself
# (graph, sparse, diffusivity, errors, …) are the ground that everything stands on.
ROOMS = (
    "ground",
    "attention",
    "diffusion",
    "kernels",
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


def test_no_module_name_occurs_twice():
    # A command is named after what it shows; `errors` is the same concept for the package, for data and for commands.
    names = Counter(path.stem for path in MODULES if path.stem not in {*FRONT, "errors"} and path.parent.name != "cli")
    assert not {name: count for name, count in names.items() if count > 1}


def test_modules_are_named_by_nouns():
    gerunds = [path.stem for path in MODULES if path.stem.endswith("ing") and path.stem not in NOUNS]
    assert not gerunds, f"name these modules after the thing they hold: {', '.join(gerunds)}"


NOUNS = {"early_stopping", "label_spreading", "preprocessing", "scaling"}
