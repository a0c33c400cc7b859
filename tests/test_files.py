import os
import stat
import threading

import pytest

from difformer import files
from difformer.files import RunFolderError, append_bytes, atomic_write, only_one, write_bytes, write_whole


def test_a_file_appears_whole_and_its_folder_is_made(tmp_path):
    path = tmp_path / "new" / "folder" / "file.bin"
    with atomic_write(path) as stream:
        stream.write(b"one")
        assert not path.exists()
        stream.seek(0)
        assert stream.read() == b"one"  # archives are written and read again
        stream.write(b" two")
    assert path.read_bytes() == b"one two"
    assert os.listdir(path.parent) == ["file.bin"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_no_temporary_files(tmp_path, error):
    path = tmp_path / "file.bin"
    write_whole(path, b"old")

    def interrupted():
        with atomic_write(path) as stream:
            stream.write(b"half")
            stream.flush()
            assert len(os.listdir(tmp_path)) == 2
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("disk full")

    write_whole(tmp_path / "file.bin", b"old")
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_whole(tmp_path / "file.bin", b"new")
    assert (tmp_path / "file.bin").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


@pytest.mark.skipif(os.name == "nt", reason="permissions of another kind")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_are_those_of_any_new_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "file.bin", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.bin").stat().st_mode) == 0o666 & ~mask


def test_concurrent_writers_leave_one_whole_file(tmp_path):
    """The last to finish wins, and no reader ever sees a mixture."""
    path = tmp_path / "file.bin"
    contents = [bytes([i]) * 10_000 for i in range(8)]
    writers = [threading.Thread(target=write_whole, args=(path, content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["file.bin"]


def test_a_lock_file_that_is_removed_at_once_is_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_lock_file", lambda folder: None)
    with pytest.raises(RunFolderError, match="removed at once"), only_one(tmp_path):
        write_bytes(tmp_path / "result", b"")
    monkeypatch.undo()
    with only_one(tmp_path):  # the lock was released
        write_bytes(tmp_path / "result", b"")


@pytest.mark.parametrize("durable", [False, True])
def test_an_unfinished_line_is_cut_off_before_the_next(tmp_path, durable):
    path = tmp_path / "lines"
    for before, after in ((b"", b""), (b"one\n", b"one\n"), (b"one\ntw", b"one\n"), (b"on", b"")):
        path.write_bytes(before)
        append_bytes(path, b"next\n", durable=durable)
        assert path.read_bytes() == after + b"next\n"
