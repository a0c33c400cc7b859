"""Every Python snippet of the README and the guides runs."""

import importlib.util
import re
from pathlib import Path

import pytest

from difformer.data import registry
from difformer.zoo import model_registry

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPTIONAL = ("fastapi", "httpx", "onnxruntime", "onnxscript")  # guides use them; the package does not depend on them
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets():
    for page in PAGES:
        for number, match in enumerate(FENCE.finditer(page.read_text(encoding="utf-8"))):
            yield pytest.param(match.group(1), id=f"{page.relative_to(ROOT)}-{number}")


@pytest.fixture(autouse=True)
def registered_models():
    """Models and data sets that a snippet registers are forgotten afterwards."""
    registries = (model_registry.MODELS, model_registry._registered, registry.ENTRIES, registry._registered)
    before = [dict(one) for one in registries]
    yield
    for known, entries in zip(registries, before, strict=True):
        known.clear()
        known.update(entries)


@pytest.mark.parametrize("snippet", list(snippets()))
def test_snippet_runs(snippet, tmp_path, monkeypatch):
    for package in OPTIONAL:
        if re.search(rf"^(?:from|import) {package}\b", snippet, re.MULTILINE) and not importlib.util.find_spec(package):
            pytest.skip(f"{package} is not installed")
    monkeypatch.chdir(tmp_path)  # what a snippet writes goes where the test cleans up
    exec(compile(snippet, "snippet", "exec"), {"__name__": "snippet"})


def test_paths_in_contributing_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[a-z_]+/(?:[a-z_]+/)*(?:[a-z_]+\.(?:py|toml)\b)?", text))
    named.discard("build/")  # made by `make docs` and `make bench`
    assert len(named) > 30
    missing = [path for path in sorted(named) if not any((ROOT / top / path).exists() for top in ("", "src/difformer"))]
    assert not missing
