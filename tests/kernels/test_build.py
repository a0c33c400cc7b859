"""How the kernels come to be, and what happens where they cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from difformer import DIFFormer
from difformer.kernels.cpu import build, explain, library

needs_compiler = pytest.mark.skipif(build._compiler() is None, reason="there is no C compiler")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """As in a new process on a new machine."""
    build.find.cache_clear()
    monkeypatch.setenv("DIFFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DIFFORMER_NATIVE", raising=False)
    monkeypatch.delenv("CC", raising=False)
    yield tmp_path
    build.find.cache_clear()


def path_in(story, folder):
    return "torch's operations are used" in story and str(folder / "cache" / "native") in story


def outputs():
    torch.manual_seed(0)
    return DIFFormer(5, 64, 3)(torch.randn(600, 5))


def without_kernels(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("DIFFORMER_NATIVE", "0")
        assert library() is None
        assert "DIFFORMER_NATIVE=0" in explain()
        patch.setenv("DIFFORMER_NATIVE", "Off")
        assert library() is None
        return outputs()


@needs_compiler
def test_library_is_compiled_once_and_cached(fresh, monkeypatch):
    assert library() is not None
    (path,) = (fresh / "cache" / "native").iterdir()
    assert "kernels in C are used" in explain()
    assert str(path) in explain()
    build.find.cache_clear()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert library() is not None


def test_missing_compiler_falls_back_to_torch(fresh, monkeypatch):
    wanted = without_kernels(monkeypatch)
    monkeypatch.setenv("PATH", "")
    assert torch.equal(outputs(), wanted)
    assert "there is no C compiler" in explain()
    assert not (fresh / "cache").exists()
    monkeypatch.setattr(build, "_compiler", lambda: pytest.fail("looked again"))  # the answer is remembered
    outputs()


@needs_compiler
def test_unwritable_cache_falls_back_to_torch(fresh, monkeypatch):
    wanted = without_kernels(monkeypatch)
    (fresh / "file").write_text("no folder")
    monkeypatch.setenv("DIFFORMER_CACHE", str(fresh / "file"))
    assert torch.equal(outputs(), wanted)
    assert "torch's operations are used" in explain()
    assert "file" in explain()


@needs_compiler
def test_missing_home_folder_falls_back_to_torch(fresh, monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DIFFORMER_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(build.Path, "home", homeless)
    assert library() is None
    assert "DIFFORMER_CACHE names another folder" in explain()


@needs_compiler
def test_read_only_cache_folder_falls_back_to_torch(fresh, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied", "cache")

    monkeypatch.setattr(build, "write_whole", refused)  # the superuser may write anywhere
    assert library() is None
    assert "Permission denied" in explain()


def pretend_compiler(fresh, monkeypatch, script):
    place = fresh / "pretended"
    place.write_bytes(b"#!/bin/sh\n" + script)
    place.chmod(0o755)
    monkeypatch.setenv("CC", str(place))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (b"echo it does not work >&2; exit 1", "it does not work"),
        (b"printf 'erreur: \\351\\377' >&2; exit 1", "erreur"),  # not in the encoding that Python expects
    ],
)
def test_failing_compiler_falls_back_to_torch(fresh, monkeypatch, script, said):
    pretend_compiler(fresh, monkeypatch, script)
    assert library() is None
    assert said in explain()


def test_hanging_compiler_falls_back_to_torch(fresh, monkeypatch):
    pretend_compiler(fresh, monkeypatch, b"exec sleep 60")
    monkeypatch.setattr(build, "LONGEST_COMPILATION", 0.2)
    assert library() is None
    assert "timed out" in explain()


def test_missing_sources_fall_back_to_torch(fresh, monkeypatch):
    """As in a bundle that somebody made of the modules alone."""
    monkeypatch.setattr(build, "SOURCES", ("absent.c",))
    monkeypatch.setattr(build, "_compiler", lambda: sys.executable)
    assert library() is None
    assert "absent.c" in explain()


def of_somebody_else(target):
    """`Path.stat`, with another owner of one path."""
    real, found = build.Path.stat, target.stat()
    foreign = os.stat_result((*found[:4], 54321, *found[5:10]))
    return lambda self, **given: foreign if self == target else real(self, **given)


@needs_compiler
def test_library_that_others_can_change_is_not_loaded(fresh, monkeypatch):
    assert library() is not None
    folder = fresh / "cache" / "native"
    (path,) = folder.iterdir()
    monkeypatch.setattr(build, "_load", lambda _: pytest.fail("loaded"))
    for target in (folder, path):
        before = target.stat()
        assert before.st_mode & 0o077 == 0
        target.chmod(0o777)
        build.find.cache_clear()
        assert library() is None
        assert f"others may write to {target}" in explain()
        target.chmod(before.st_mode)
        with monkeypatch.context() as patch:
            patch.setattr(build.Path, "stat", of_somebody_else(target))
            build.find.cache_clear()
            assert library() is None
            assert f"{target} belongs to user 54321" in explain()


@needs_compiler
@pytest.mark.parametrize("kept", [0, 100, 0.5, -1], ids=["empty", "header", "half", "one byte short"])
def test_truncated_library_is_rebuilt(fresh, monkeypatch, kept):
    assert library() is not None
    (path,) = (fresh / "cache" / "native").iterdir()
    whole = path.read_bytes()
    cut = path.with_suffix(".cut")  # renamed into place: this process has mapped the whole one
    cut.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    cut.chmod(0o600)
    cut.replace(path)
    # In a process of its own: the loader of a damaged library may end it.
    code = "from difformer.kernels.cpu import explain, library; library(); print(explain())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("kernels in C are used")
    assert len(path.read_bytes()) == len(whole)


@needs_compiler
def test_foreign_library_is_not_used(fresh, monkeypatch):
    def another(compiler, flags, path):
        (fresh / "other.c").write_text("int difformer_other(void) { return 0; }\n")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        build._run(compiler, "-shared", "-fPIC", str(fresh / "other.c"), "-o", str(path))

    monkeypatch.setattr(build, "_compile", another)
    assert library() is None
    assert "difformer_sum_rows" in explain()


@needs_compiler
def test_unloadable_library_falls_back_to_torch(fresh, monkeypatch):
    def no_library(compiler, flags, path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        build.write_whole(path, b"no library")

    monkeypatch.setattr(build, "_compile", no_library)
    assert library() is None
    assert path_in(explain(), fresh)


@needs_compiler
@pytest.mark.parametrize("flags", build.FLAGS[1:])
def test_every_set_of_flags_gives_the_same_results(flags, fresh, monkeypatch):
    wanted = without_kernels(monkeypatch)
    monkeypatch.setattr(build, "FLAGS", (flags,))
    torch.testing.assert_close(outputs(), wanted, rtol=1e-4, atol=1e-5)
    assert library() is not None
    assert build.find().threads == ("-fopenmp" in flags)


def test_library_name_depends_on_machine_compiler_and_flags(fresh, monkeypatch):
    compiler = sys.executable  # any file
    names = {build._name(compiler, flags) for flags in build.FLAGS}
    assert len(names) == len(build.FLAGS)
    monkeypatch.setattr(build, "_processor", lambda: "another one")
    assert build._name(compiler, build.FLAGS[0]) not in names


def test_nothing_is_compiled_before_it_pays(fresh):
    DIFFormer(4, 8, 2)(torch.randn(20, 4))
    assert build.find.cache_info().currsize == 0
    assert not (fresh / "cache").exists()


@needs_compiler
def test_processes_do_not_disturb_each_other(tmp_path):
    code = "from difformer.kernels.cpu import explain; print(explain())"
    environment = {**os.environ, "DIFFORMER_CACHE": str(tmp_path), "OMP_NUM_THREADS": "1", "DIFFORMER_NATIVE": ""}
    given = {"env": environment, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([sys.executable, "-c", code], **given) for _ in range(2)]
    assert all("kernels in C are used" in process.communicate(timeout=120)[0] for process in running)
    assert len(list((tmp_path / "native").iterdir())) == 1


def test_library_name_depends_on_every_source_file():
    folder = build.Path(build.__file__).parent
    assert sorted(build.SOURCES) == sorted(path.name for path in folder.iterdir() if path.suffix in (".c", ".h"))


@pytest.mark.parametrize("processors", [1, 2])
def test_a_library_is_named_after_the_abilities_of_the_first_processor(monkeypatch, processors):
    text = "".join(
        f"processor\t: {i}\nmodel name\t: A{i}\nflags\t\t: avx{i}\nbogomips\t: 1\n\n" for i in range(processors)
    )
    monkeypatch.setattr(Path, "read_text", lambda self, **options: text)
    assert build._processor() == "model name\t: A0\nflags\t\t: avx0"
