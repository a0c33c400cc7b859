"""The files of ActsTrack, Zenodo record 7265547, magnetic field of 2 T.

*Processed*: all events' hits end to end, ten tracks per event, as chosen by those who published them. *Raw*: two lists
of events, each (particles at the start, something else, hits), as pandas tables. From the raw events a signal event
is kept if exactly one pair of opposite charge, two muons or two electrons, has the mass of the z boson to within 2
GeV, where for momenta p₁, p₂

    M² = 2 (m² + E₁E₂ - p₁·p₂),   E = √(m² + |p|²),

and if the pair left a hit; to the pair as many particles of the event are drawn (with replacement, the pair not left
out, as those who published the data did) as make up ten tracks.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import IO, Any

import numpy as np

from difformer.data.archives import check_size
from difformer.data.datasets.pickles import Frame, read_pickle, read_tensors
from difformer.data.errors import DataError
from difformer.data.lookup import Found, locate, reading
from difformer.data.processed import Arrays, processed

COLUMNS = ("tt", "tpx", "tpy", "tpz", "te", "deltapx", "deltapy", "deltapz", "deltae")
POSITION = ("tx", "ty", "tz")
Z_MASS, TOLERANCE = 91.1876, 2.0  # GeV
MUON, ELECTRON = 13, 11
TRACKS = 10
DRAW_SEED = 42
_FORMAT = 1


def read_actstrack(name: str, root: str | os.PathLike[str] | None, source: str) -> tuple[Arrays, str]:
    """Hits ``x``, ``pos``, ``node_label``, events' ``node_ptr`` and ``y``, and ``columns``; and from which files."""
    forms = {"auto": None, "processed": ("processed-folder", "processed"), "raw": ("raw-folder", "raw")}[source]
    found = locate(name, root, forms=forms)
    with reading(found):
        kind = found.form.removesuffix("-folder")
        read = read_collated if kind == "processed" else read_events
        return processed(f"{name}-{kind}", lambda: read(found), sources=found.paths, version=_FORMAT), kind


def read_collated(found: Found) -> Arrays:
    """The processed file."""
    with _member(found, "data_2T.pt") as stream:
        data, slices, *_ = read_tensors(stream)
    ptr = slices["x"].astype(np.int64)
    if data["x"].shape[1] != len(COLUMNS) or data["pos"].shape != (len(data["x"]), 3):
        raise DataError(
            f"expected {len(COLUMNS)} features and 3 coordinates a hit, got {tuple(data['x'].shape)} and "
            f"{tuple(data['pos'].shape)}",
            path=found.path,
        )
    return {
        "x": data["x"],
        "pos": data["pos"],
        "node_label": data["node_label"].astype(np.int8),
        "y": data["y"].ravel().astype(np.int64),
        "node_ptr": ptr,
        "columns": np.array(COLUMNS),
    }


def read_events(found: Found) -> Arrays:
    """The raw events, signal first."""
    rng = np.random.default_rng(DRAW_SEED)
    kept: list[tuple[Frame, Any, Any, int]] = []
    for kind, label in (("signal", 1), ("bkg", 0)):
        with _member(found, f"{kind}_events_2T.pkl") as stream:
            events = read_pickle(stream)
        for particles, _, hits in events:
            chosen = _choose(particles, hits, signal=label == 1, rng=rng)
            if chosen is not None:
                kept.append((hits, *chosen, label))
    if not kept:
        raise DataError("no event is left after selection", path=found.path)

    def stacked(names: tuple[str, ...]) -> Any:
        tables = [
            np.stack([np.asarray(hits[n], dtype=np.float32)[rows] for n in names], 1) for hits, rows, _, _ in kept
        ]
        return np.concatenate(tables)

    return {
        "x": stacked(COLUMNS),
        "pos": stacked(POSITION),
        "node_label": np.concatenate([on_signal for _, _, on_signal, _ in kept]).astype(np.int8),
        "y": np.array([label for _, _, _, label in kept], dtype=np.int64),
        "node_ptr": np.concatenate([[0], np.cumsum([len(rows) for _, rows, _, _ in kept])]).astype(np.int64),
        "columns": np.array(COLUMNS),
    }


def _choose(particles: Frame, hits: Frame, *, signal: bool, rng: np.random.Generator) -> tuple[Any, Any] | None:
    """Rows of the hits that are kept, and which of them belong to the decay; None where the event is not."""
    if len(hits) == 0 or len(particles) == 0:
        return None
    owner = np.asarray(hits["particle_id"])
    decay: list[Any] = []
    if signal:
        pairs = [pair for flavour in (ELECTRON, MUON) for pair in _decays(particles, flavour)]
        if len(pairs) != 1 or not np.isin(owner, pairs[0]).any():
            return None
        decay = list(pairs[0])
    drawn = rng.choice(np.unique(owner), TRACKS - len(decay))
    rows = np.flatnonzero(np.isin(owner, [*drawn, *decay]))
    return rows, np.isin(owner[rows], decay)


def _decays(particles: Frame, flavour: int) -> list[tuple[Any, Any]]:
    """Pairs of opposite charge with the mass of the z boson."""
    members = np.flatnonzero(np.abs(np.asarray(particles["particle_type"])) == flavour)
    charge, mass, number = (np.asarray(particles[key])[members] for key in ("q", "m", "particle_id"))
    p = np.stack([np.asarray(particles[key], dtype=np.float64)[members] for key in ("px", "py", "pz")], axis=1)
    found = []
    for i, j in combinations(range(len(members)), 2):
        m2 = float(mass[i]) ** 2
        energy = np.sqrt((m2 + p[i] @ p[i]) * (m2 + p[j] @ p[j]))
        if charge[i] * charge[j] <= 0 and abs(np.sqrt(2 * (m2 + energy - p[i] @ p[j])) - Z_MASS) < TOLERANCE:
            found.append((number[i], number[j]))
    return found


@contextmanager
def _member(found: Found, name: str) -> Iterator[IO[bytes]]:
    if found.form.endswith("-folder"):
        with open(found[name], "rb") as stream:
            yield stream
        return
    with zipfile.ZipFile(found.path) as archive:
        inside = next((item for item in archive.namelist() if item.rsplit("/", 1)[-1] == name), None)
        if inside is None:
            raise DataError(f"the archive holds no {name}", path=found.path)
        check_size(archive.getinfo(inside).file_size, name)
        with archive.open(inside) as stream:
            yield stream
