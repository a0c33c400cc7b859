import os
from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the test's own, and no other folder with data."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DIFFORMER_CACHE", str(folder))
    monkeypatch.delenv("DIFFORMER_DATA", raising=False)
    monkeypatch.delenv("DIFFORMER_OFFLINE", raising=False)
    return folder


@pytest.fixture(scope="session")
def real_data(tmp_path_factory):
    """The folder with real data; processed forms go to a cache that all tests of a session share."""
    folder = os.environ.get("DIFFORMER_DATA")
    if not folder:
        pytest.skip("DIFFORMER_DATA is not set")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIFFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("DIFFORMER_OFFLINE", "1")
        yield Path(folder)
