import hashlib
import http.client
import http.server
import io
import socket
import threading
import zipfile

import numpy as np
import pytest

from difformer.data import DataError, DownloadError, load
from difformer.data.catalogue import FORMS, JSON, ZIP, Form, RemoteFile
from difformer.data.download import ATTEMPTS, Found, cache_folder, find, find_file, folders, locate, reading

CONTENT = bytes(range(256)) * 9000  # two chunks and a bit
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server:
    """A server whose answers a test lists: status, body, and how many bytes it announces."""

    def __init__(self):
        self.answers, self.asked = [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                status, body, announced = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                self.send_response(status)
                if announced is not None:
                    self.send_header("Content-Length", str(announced))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.http.server_port}/files/thing.bin"


@pytest.fixture
def server():
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def offer(monkeypatch, url, **known):
    file = RemoteFile("family/thing.bin", url, **known)
    monkeypatch.setitem(FORMS, "thing", (Form("only", (file,)),))


def left_behind(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


def test_a_valid_file_is_downloaded_once(cache, server, monkeypatch):
    server.answers = [(200, CONTENT, len(CONTENT))]
    offer(monkeypatch, server.address, checksum=f"sha256:{SHA256}")
    for _ in range(2):
        assert locate("thing").path.read_bytes() == CONTENT
    assert server.asked == ["/files/thing.bin"]
    assert left_behind(cache) == ["family/thing.bin"]


def test_md5_checksums_are_supported(cache, server, monkeypatch):
    server.answers = [(200, CONTENT, len(CONTENT))]
    offer(monkeypatch, server.address, checksum="md5:" + hashlib.md5(CONTENT).hexdigest())
    assert locate("thing").path.read_bytes() == CONTENT


def test_an_unknown_checksum_is_kept_and_a_later_change_is_noticed(cache, server, monkeypatch):
    server.answers = [(200, CONTENT, None)]
    offer(monkeypatch, server.address)
    path = locate("thing").path
    assert (path.parent / "thing.bin.sha256").read_text() == f"{SHA256}  thing.bin\n"  # as sha256sum writes it
    for changed in (CONTENT[:1000], b"x" + CONTENT[1:]):
        path.write_bytes(changed)
        with pytest.raises(DataError, match=r"'thing': the file has changed since it was downloaded, .*; delete it"):
            locate("thing")
    path.write_bytes(CONTENT)
    assert locate("thing").path == path


@pytest.mark.parametrize(
    ("answer", "known", "complaint", "attempts"),
    [
        pytest.param((200, CONTENT[:5000], len(CONTENT)), {}, "5000 of 2304000 bytes", ATTEMPTS, id="cut short"),
        pytest.param((200, CONTENT, None), {"checksum": "sha256:" + "0" * 64}, f"is {SHA256}", ATTEMPTS, id="checksum"),
        pytest.param((200, b"<html>", 6), {"magic": b"PK"}, "error page", ATTEMPTS, id="error page"),
        pytest.param((200, b"", 0), {"magic": b"PK"}, "an empty file", ATTEMPTS, id="empty"),
        pytest.param((200, b"", None), {}, "an empty file", ATTEMPTS, id="empty, length not announced"),
        pytest.param((200, b'{"a": [1, 2', None), {"magic": JSON}, "no proper end", ATTEMPTS, id="half a JSON"),
        pytest.param((200, ZIP + bytes(99), None), {"magic": ZIP}, "no proper end", ATTEMPTS, id="half a zip"),
        pytest.param((404, b"", 0), {}, "404 Not Found", 1, id="absent"),
        pytest.param((503, b"", 0), {}, "503 Service", ATTEMPTS, id="overloaded"),
    ],
)
def test_a_bad_answer_is_refused_and_leaves_nothing(cache, server, monkeypatch, answer, known, complaint, attempts):
    server.answers = [answer]
    offer(monkeypatch, server.address, **known)
    with pytest.raises(DownloadError, match=complaint) as caught:
        locate("thing")
    assert len(server.asked) == attempts
    assert left_behind(cache) == []
    for named in ("'thing'", "thing.bin", server.address, str(cache / "family")):
        assert named in str(caught.value)


@pytest.mark.parametrize("announced", ["many", "-5"])
def test_an_invalid_content_length_is_ignored(cache, server, monkeypatch, announced):
    server.answers = [(200, CONTENT, announced)]
    offer(monkeypatch, server.address, checksum=f"sha256:{SHA256}")
    assert locate("thing").path.read_bytes() == CONTENT


def test_a_complete_file_without_checksum_is_accepted(cache, server, monkeypatch):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", "b")
    for magic, content in ((ZIP, buffer.getvalue()), (JSON, b'{"a": 1}\n')):
        server.answers = [(200, content, None)]
        offer(monkeypatch, server.address, magic=magic)
        path = locate("thing").path
        assert path.read_bytes() == content
        path.unlink()


@pytest.mark.parametrize("record", ["", "no checksum at all", "0" * 64])
def test_a_kept_checksum_that_is_none(cache, server, monkeypatch, record):
    server.answers = [(200, CONTENT, None)]
    offer(monkeypatch, server.address)
    path = locate("thing").path
    beside = path.with_name("thing.bin.sha256")
    beside.write_text(f"{SHA256}  thing.bin  {len(CONTENT)}\n")  # as earlier versions wrote it
    assert locate("thing").path == path
    beside.write_text(record)
    with pytest.raises(DataError, match=r"thing\.bin: data set 'thing'.*delete it and load again"):
        locate("thing")


def test_what_the_server_says_stays_on_one_line(cache, monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def answer():
            for _ in range(ATTEMPTS):
                peer, _ = listener.accept()
                with peer:
                    peer.recv(1000)
                    peer.sendall(b"\x00\x01 not\thttp\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        offer(monkeypatch, f"http://127.0.0.1:{listener.getsockname()[1]}/thing.bin")
        with pytest.raises(DownloadError, match=r"thing\.bin: not http\. Nothing was written") as caught:
            locate("thing")
    assert str(caught.value).isprintable()


def test_a_transient_error_is_retried(cache, server, monkeypatch):
    server.answers = [(500, b"", 0), (200, CONTENT[:10], len(CONTENT)), (200, CONTENT, len(CONTENT))]
    offer(monkeypatch, server.address)
    assert locate("thing").path.read_bytes() == CONTENT


def test_missing_network_is_reported(cache, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    offer(monkeypatch, f"http://127.0.0.1:{port}/thing.bin")
    with pytest.raises(DownloadError, match="no connection"):
        locate("thing")
    assert left_behind(cache) == []


def test_an_interrupted_download_leaves_nothing(cache, server, monkeypatch):
    def impatient(chunk, size):
        assert left_behind(cache) != []  # the temporary file is there
        raise KeyboardInterrupt

    monkeypatch.setattr(http.client.HTTPResponse, "read", impatient)
    server.answers = [(200, CONTENT, len(CONTENT))]
    offer(monkeypatch, server.address)
    with pytest.raises(KeyboardInterrupt):
        locate("thing")
    assert left_behind(cache) == []


def test_downloads_can_be_forbidden(cache, server, monkeypatch):
    offer(monkeypatch, server.address)
    monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
    with pytest.raises(DownloadError, match="DIFFORMER_OFFLINE"):
        locate("thing")
    assert server.asked == []


def test_all_missing_files_are_named_once(cache, tmp_path, monkeypatch):
    files = tuple(RemoteFile(f"family/{name}", f"https://example.org/{name}") for name in ("one", "two", "three"))
    monkeypatch.setitem(FORMS, "thing", (Form("only", files),))
    monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
    (tmp_path / "family").mkdir()
    (tmp_path / "family" / "one").write_bytes(b"x")
    with pytest.raises(DownloadError) as caught:
        locate("thing", tmp_path)
    said = str(caught.value)
    assert f"Fetch all 2 missing files from there, two, three, and put them into {cache / 'family'} or into" in said
    assert "one" not in said
    (cache / "family").mkdir(parents=True)
    for name in ("two", "three"):
        (cache / "family" / name).write_bytes(b"x")
    assert [path.parent.parent for path in locate("thing", tmp_path).paths] == [tmp_path, cache, cache]
    files = tuple(RemoteFile(file.path) for file in (*files, RemoteFile("four")))
    monkeypatch.setitem(FORMS, "thing", (Form("only", files),))
    with pytest.raises(DataError, match=r"put family/two \+ family/three \+ four into"):
        locate("thing", tmp_path)


def test_files_of_a_download_have_one_folder_and_address():
    for form in (form for forms in FORMS.values() for form in forms if form.downloadable):
        assert len({(file.path.rpartition("/")[0], file.url.rpartition("/")[0]) for file in form.files}) == 1


def test_what_cannot_be_downloaded_says_where_it_belongs(cache, monkeypatch):
    offer(monkeypatch, None)
    with pytest.raises(DataError, match=r"family/thing\.bin into .*cache"):
        locate("thing")


def test_root_comes_first_then_the_variable_then_the_cache(cache, tmp_path, monkeypatch):
    offer(monkeypatch, None)
    places = {name: tmp_path / name for name in ("root", "variable")} | {"cache": cache}
    for folder in places.values():
        (folder / "family").mkdir(parents=True)
        (folder / "family" / "thing.bin").write_bytes(b"x")
    monkeypatch.setenv("DIFFORMER_DATA", str(places["variable"]))
    for first in ("root", "variable", "cache"):
        assert locate("thing", places["root"]).path.is_relative_to(places[first])
        assert find_file("family/thing.bin", places["root"]).is_relative_to(places[first])
        (places[first] / "family" / "thing.bin").unlink()
    assert find("thing", places["root"]) is None


def test_an_incomplete_form_of_a_data_set_is_ignored(cache, tmp_path, monkeypatch):
    forms = (Form("two", (RemoteFile("a"), RemoteFile("b"))), Form("one", (RemoteFile("c"),)))
    monkeypatch.setitem(FORMS, "thing", forms)
    for name in ("a", "c"):
        (tmp_path / name).write_bytes(b"")
    assert find("thing", tmp_path).form == "one"
    (tmp_path / "b").write_bytes(b"")
    assert find("thing", tmp_path).form == "two"
    assert find("thing", tmp_path, forms=("one",)).form == "one"


@pytest.mark.parametrize("place", ["root", "variable"])
def test_a_missing_data_folder_is_refused(cache, tmp_path, monkeypatch, place):
    absent = tmp_path / "absent"
    if place == "variable":
        monkeypatch.setenv("DIFFORMER_DATA", str(absent))
    with pytest.raises(DataError, match="is not a folder"):
        load("cora", absent if place == "root" else None)
    with pytest.raises(DataError, match="is not a folder"):
        load("cifar10", absent if place == "root" else None)


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DIFFORMER_CACHE", str(tmp_path / "chosen"))
    assert cache_folder() == tmp_path / "chosen"
    monkeypatch.delenv("DIFFORMER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "difformer"


def test_an_empty_environment_variable_is_ignored(cache, monkeypatch):
    monkeypatch.setenv("DIFFORMER_DATA", "")
    assert folders() == ()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and then nothing", b"not an archive at all"])
def test_a_broken_file_is_named(cache, tmp_path, content):
    (tmp_path / "planetoid").mkdir()
    path = tmp_path / "planetoid" / "cora.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cora\.npz: data set 'cora' cannot be read.*github\.com/kimiyoung/planetoid"):
        load("cora", tmp_path)


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ({"edges": np.array([[0, 1], [2, 3]])}, r"row 1: edge \(2, 3\) names a node outside 0 … 2"),
        ({"edges": np.array([[0, -1]])}, r"row 0: edge \(0, -1\) names a node"),
        ({"edges": np.array([[0, 1, 2]])}, r"pairs of whole numbers, got int64 of shape \[3, 1\]"),
        ({"edges": np.array([[0.5, 1]])}, r"pairs of whole numbers, got float64"),
        ({"node_labels": np.array([0, 1])}, r"3 rows of features, but labels of shape \[2\]"),
    ],
)
def test_parts_that_do_not_belong_together_are_named(cache, tmp_path, broken, complaint):
    (tmp_path / "heterophilous").mkdir()
    mask = np.eye(3, dtype=bool)
    good = {"node_features": np.ones((3, 2)), "node_labels": np.array([0, 1, 1]), "edges": np.array([[0, 1]])}
    masks = {f"{part}_masks": np.roll(mask, i, 1) for i, part in enumerate(("train", "val", "test"))}
    path = tmp_path / "heterophilous" / "actor.npz"
    np.savez(path, **good, **masks)
    assert load("actor", tmp_path).num_edges == 5
    np.savez(path, **{**good, **masks, **broken})
    with pytest.raises(DataError, match=rf"actor\.npz.*{complaint}.*data set 'actor'.*github\.com/yandex-research"):
        load("actor", tmp_path)


def test_memory_and_missing_extras_are_told_apart_from_damage(cache, tmp_path):
    found = Found("cora", "arrays", (tmp_path / "thing.bin",))
    with pytest.raises(DataError, match="more memory than there is"), reading(found):
        raise MemoryError("7 PiB")
    with pytest.raises(ImportError, match="rdkit"), reading(found):
        raise ImportError("rdkit is not installed")


def test_a_header_that_does_not_end_is_named(cache, tmp_path):
    """numpy hands the header of an array to Python's tokenizer, which has errors of its own."""
    (tmp_path / "heterophilous").mkdir()
    path = tmp_path / "heterophilous" / "actor.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3, 2L,".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("node_features.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(DataError, match=r"actor\.npz: data set 'actor' cannot be read"):
        load("actor", tmp_path)


def test_a_file_with_other_arrays_is_named(cache, tmp_path):
    (tmp_path / "heterophilous").mkdir()
    np.savez(tmp_path / "heterophilous" / "actor.npz", node_features=np.ones((3, 2)))
    with pytest.raises(DataError, match=r"actor\.npz: data set 'actor' cannot be read.*node_labels"):
        load("actor", tmp_path)


def test_of_several_files_the_broken_one_is_named(cache, tmp_path, monkeypatch):
    contents = {"a.bin": b"whole", "b.bin": b"whole too"}
    files = tuple(
        RemoteFile(f"family/{name}", f"https://example.org/{name}", "sha256:" + hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    )
    monkeypatch.setitem(FORMS, "thing", (Form("only", files),))
    (tmp_path / "family").mkdir()
    for name, content in contents.items():
        (tmp_path / "family" / name).write_bytes(content)
    found = locate("thing", tmp_path)
    with pytest.raises(DataError, match=r"family: data set 'thing' cannot be read"), reading(found):
        raise EOFError("each is as published")
    for fault in (ValueError, KeyError, IndexError):
        with pytest.raises(fault, match="a fault of the program"), reading(found):
            raise fault("a fault of the program")
    (tmp_path / "family" / "b.bin").write_bytes(b"cut sh")
    with (
        pytest.raises(DataError, match=r"b\.bin: data set 'thing' cannot be read.*example\.org/a\.bin"),
        reading(found),
    ):
        raise ValueError("something is wrong")


def test_what_a_reader_says_gets_data_set_file_and_address(cache, tmp_path, monkeypatch):
    offer(monkeypatch, "https://example.org/thing.bin")
    (tmp_path / "family").mkdir()
    path = tmp_path / "family" / "thing.bin"
    path.write_bytes(b"")
    found = locate("thing", tmp_path)
    with pytest.raises(DataError) as caught, reading(found):
        raise DataError("expected a number", line=3, column=2)
    said = str(caught.value)
    assert said.startswith(f"{path}, line 3, column 2: expected a number (data set 'thing': ")
    assert "https://example.org/thing.bin" in said
    assert (caught.value.line, caught.value.column) == (3, 2)


def test_a_failed_download_names_the_folders_that_were_searched(cache, tmp_path, monkeypatch):
    (tmp_path / "shared").mkdir()
    cache.mkdir(exist_ok=True)
    monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
    monkeypatch.setenv("DIFFORMER_DATA", str(tmp_path / "shared"))
    with pytest.raises(DownloadError) as caught:
        load("cora")
    searched = f"{tmp_path / 'shared'} or {cache}"
    assert f"data set 'cora': not all of its files are in {searched}, and ind.cora.x could not be" in str(caught.value)
