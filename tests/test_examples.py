"""Every public class and function has an example that runs: in its docstring, or on the reference page."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
from test_readme import registered_models  # noqa: F401 (a fixture: what an example registers is forgotten)

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "difformer",
    "difformer.attention",
    "difformer.data",
    "difformer.diffusion",
    "difformer.distributed",
    "difformer.estimators",
    "difformer.experiments",
    "difformer.nn",
    "difformer.report",
    "difformer.training",
    "difformer.zoo",
)
DOWNLOADED = {
    "difformer.data.DownloadError",
    "difformer.data.load_images",
    "difformer.data.period_scale",
}  # need a file
REFERENCE = ROOT / "docs" / "api.md"  # its Python blocks are run by test_readme.py
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def public():
    """Classes and functions of the public packages by their full name, each object once."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            one = getattr(module, name)
            if (inspect.isclass(one) or inspect.isroutine(one)) and one not in found.values():
                found[f"{package}.{name}"] = one
    return found


PUBLIC = public()


def shown():
    """Names that the blocks of the reference page use."""
    blocks = FENCE.findall(REFERENCE.read_text(encoding="utf-8"))
    used = set()
    for block in blocks:
        tree = ast.parse(block)
        # An import alone shows nothing.
        used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return used


def examples(one):
    return [test for test in doctest.DocTestFinder(recurse=False).find(one, "example") if test.examples]


@pytest.mark.parametrize("name", [name for name, one in PUBLIC.items() if ">>>" in (one.__doc__ or "")])
def test_examples_of_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for test in examples(PUBLIC[name]):
        said = []
        doctest.DocTestRunner(optionflags=flags).run(test, out=said.append, clear_globs=False)
        assert not said, "".join(said)


def test_every_public_name_has_an_example():
    used = shown()
    missing = [
        name
        for name, one in PUBLIC.items()
        if ">>>" not in (one.__doc__ or "") and name.rpartition(".")[2] not in used and name not in DOWNLOADED
    ]
    assert not missing, f"no example in the docstring or in docs/api.md: {', '.join(missing)}"
