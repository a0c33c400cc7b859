import os

import numpy as np
import pytest

from difformer.data.datasets.common import processed


def left_behind(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


class TestProcessed:
    def build(self):
        self.built += 1
        return {"a": np.arange(5), "b": np.array(["x", "yz"])}

    def get(self, source, name="thing"):
        return processed(name, self.build, sources=[source])

    @pytest.fixture
    def source(self, tmp_path):
        self.built = 0
        path = tmp_path / "source"
        path.write_bytes(b"1")
        return path

    def test_processed_file_is_written_once(self, cache, source):
        first, second = self.get(source), self.get(source)
        assert self.built == 1
        assert all((first[key] == second[key]).all() for key in ("a", "b"))
        assert len(left_behind(cache / "processed")) == 1
        assert left_behind(source.parent / "processed") == []

    def test_processed_file_is_rewritten_when_its_source_changes(self, cache, source):
        self.get(source)
        self.get(source, "thing-5")
        source.write_bytes(b"22")
        self.get(source)
        os.utime(source, ns=(1, 1))
        self.get(source)
        assert self.built == 4

    def test_equal_files_in_two_folders_are_processed_separately(self, cache, source):
        twin = source.parent / "elsewhere" / source.name
        twin.parent.mkdir()
        twin.write_bytes(b"2")
        for path in (source, twin):
            os.utime(path, ns=(1, 1))
            self.get(path)
        assert self.built == 2

    def test_a_broken_processed_file_is_rewritten(self, cache, source):
        self.get(source)
        kept = next((cache / "processed").iterdir())
        kept.write_bytes(kept.read_bytes()[:50])
        with pytest.warns(UserWarning, match="is rebuilt"):
            assert (self.get(source)["a"] == np.arange(5)).all()
        self.get(source)
        assert self.built == 2

    def test_a_processed_file_with_another_unpacker_is_rewritten(self, cache, source):
        self.get(source)
        kept = next((cache / "processed").iterdir())
        content = bytearray(kept.read_bytes())
        content[content.index(b"PK\x01\x02") + 10] = 99  # way of compression, in the table of contents
        kept.write_bytes(content)
        with pytest.warns(UserWarning, match="is rebuilt"):
            assert (self.get(source)["a"] == np.arange(5)).all()

    def test_a_cache_that_cannot_be_written_is_no_obstacle(self, source, tmp_path, monkeypatch):
        (tmp_path / "file").write_bytes(b"")
        monkeypatch.setenv("DIFFORMER_CACHE", str(tmp_path / "file" / "below"))
        with pytest.warns(UserWarning, match="DIFFORMER_CACHE"):
            assert (self.get(source)["a"] == np.arange(5)).all()
