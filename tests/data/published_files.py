"""Archives and tables in the very formats in which data sets are published, written by the tests."""

import io
import tarfile
import zipfile

import numpy as np


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def csv(rows):
    return "".join(",".join(str(v) for v in np.atleast_1d(row)) + "\n" for row in rows).encode()


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def undirected(edge_index):
    return {tuple(sorted(edge)) for edge in edge_index.t().tolist() if edge[0] != edge[1]}
