"""How the kernels come to be, and what happens where they cannot."""

import os
import subprocess
import sys

import pytest
import torch

from difformer import DIFFormer
from difformer.native import build, explain, library

needs_compiler = pytest.mark.skipif(build._compiler() is None, reason="there is no C compiler")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """As in a new process on a new machine."""
    monkeypatch.setattr(build, "_found", None)
    monkeypatch.setenv("DIFFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DIFFORMER_NATIVE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def outputs():
    torch.manual_seed(0)
    return DIFFormer(5, 64, 3)(torch.randn(600, 5))


def without_kernels(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("DIFFORMER_NATIVE", "0")
        assert library() is None
        assert "DIFFORMER_NATIVE=0" in explain()
        return outputs()


@needs_compiler
def test_compiled_once_and_kept(fresh, monkeypatch):
    assert library() is not None
    (path,) = (fresh / "cache" / "native").iterdir()
    assert "kernels in C are used" in explain()
    assert str(path) in explain()
    monkeypatch.setattr(build, "_found", None)
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert library() is not None


def test_without_a_compiler(fresh, monkeypatch):
    wanted = without_kernels(monkeypatch)
    monkeypatch.setenv("PATH", "")
    assert torch.equal(outputs(), wanted)
    assert "there is no C compiler" in explain()
    assert not (fresh / "cache").exists()
    monkeypatch.setattr(build, "_look", lambda: pytest.fail("looked again"))  # the answer is remembered
    outputs()


@needs_compiler
def test_without_a_place_to_write_to(fresh, monkeypatch):
    wanted = without_kernels(monkeypatch)
    (fresh / "file").write_text("no folder")
    monkeypatch.setenv("DIFFORMER_CACHE", str(fresh / "file"))
    assert torch.equal(outputs(), wanted)
    assert "torch's operations are used" in explain()
    assert "file" in explain()


@needs_compiler
def test_without_a_home(fresh, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DIFFORMER_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(build.Path, "home", homeless)
    assert library() is None
    assert "DIFFORMER_CACHE names one" in explain()


@needs_compiler
def test_in_a_folder_that_is_read_only(fresh, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied", "cache")

    monkeypatch.setattr(build, "write_whole", refused)  # the superuser may write anywhere
    assert library() is None
    assert "Permission denied" in explain()


def test_with_a_compiler_that_fails(fresh, monkeypatch):
    broken = fresh / "broken"
    broken.write_text("#!/bin/sh\necho it does not work >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    assert library() is None
    assert "it does not work" in explain()


@needs_compiler
def test_with_a_library_that_does_not_load(fresh, monkeypatch):
    monkeypatch.setattr(build, "_compile", lambda compiler, flags, path: build.write_whole(path, b"no library"))
    assert library() is None
    assert "torch's operations are used" in explain()


@needs_compiler
@pytest.mark.parametrize("flags", build.FLAGS[1:])
def test_every_set_of_flags_gives_the_same(flags, fresh, monkeypatch):
    wanted = without_kernels(monkeypatch)
    monkeypatch.setattr(build, "FLAGS", (flags,))
    torch.testing.assert_close(outputs(), wanted, rtol=1e-4, atol=1e-5)
    assert library() is not None
    assert build.has_threads() == ("-fopenmp" in flags)


def test_the_name_tells_machines_compilers_and_flags_apart(fresh, monkeypatch):
    compiler = sys.executable  # any file
    names = {build._name(compiler, flags) for flags in build.FLAGS}
    assert len(names) == len(build.FLAGS)
    monkeypatch.setattr(build, "_processor", lambda: "another one")
    assert build._name(compiler, build.FLAGS[0]) not in names


def test_nothing_is_compiled_before_it_pays(fresh):
    DIFFormer(4, 8, 2)(torch.randn(20, 4))
    assert build._found is None
    assert not (fresh / "cache").exists()


@needs_compiler
def test_processes_do_not_disturb_each_other(tmp_path):
    code = "from difformer.native import explain; print(explain())"
    environment = {**os.environ, "DIFFORMER_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1", "DIFFORMER_NATIVE": ""}
    given = {"env": environment, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([sys.executable, "-c", code], **given) for _ in range(2)]
    assert all("kernels in C are used" in process.communicate(timeout=120)[0] for process in running)
    assert len(list((tmp_path / "native").iterdir())) == 1
