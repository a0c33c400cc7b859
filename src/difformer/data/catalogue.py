"""The table of data sets, read from ``catalogue.toml``: what each is, its size, terms, files and their addresses.

No torch and no numpy here: `difformer datasets` must answer at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from difformer import toml
from difformer.errors import UserError, did_you_mean

BUILT_IN, OWN = "built in", "your own"
ZIP, JSON = b"PK\x03\x04", b"{"
_BEGINNINGS = {"zip": ZIP, "json": JSON, "mat": b"MATLAB 5.0 MAT-file"}


@dataclass(frozen=True)
class RemoteFile:
    """One file of a form."""

    path: str  # relative to a data folder, with forward slashes
    url: str | None = None  # official address; None for what can only be put there by hand
    checksum: str | None = None  # "sha256:…" or "md5:…"; None if none is published: the first download's is kept
    magic: bytes | None = None  # bytes the file must begin with: an error page under its address does not

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Form:
    """Files that together are a data set: all of `files` are needed, and readers tell forms apart by `name`."""

    name: str
    files: tuple[RemoteFile, ...]

    @property
    def downloadable(self) -> bool:
        return all(file.url is not None for file in self.files)


@dataclass(frozen=True)
class Entry:
    """What is known of a data set before any of it is read."""

    name: str
    about: str  # one line
    kind: str  # "nodes", "series" or "graphs"
    metric: str  # what is reported
    loader: str  # "package.module:function"
    nodes: int | None = None  # nodes or instances; nodes of a typical graph for "graphs"; None if the caller decides
    edges: int | None = None  # undirected ones counted once, directed ones over all snapshots; None if unknown
    directed: bool = False  # directions are kept; otherwise a task lists both of every edge, and self-loops
    links: int | None = None  # the number that papers print, if it differs: raw links, repeated ones counted
    features: int | None = None  # columns of x by default
    outputs: int | None = None  # classes, or target columns
    class_names: tuple[str, ...] = ()
    length: int | None = None  # snapshots of a series as published, or number of graphs
    protocols: tuple[str, ...] = ()  # values of the option protocol, the default first; empty if there is no choice
    licence: str = "none stated"  # of the source
    aliases: tuple[str, ...] = ()  # other names
    notes: tuple[str, ...] = ()  # what a reader of results should know, one sentence each
    former: Mapping[str, Any] = field(default_factory=dict)  # options of earlier versions, and their only value now
    learned: str | None = None  # file of the default features, if these are learned and not downloaded
    forms: tuple[Form, ...] = ()  # the sets of files it may be read from; none for what is built in

    @property
    def source(self) -> str:
        """Official address, or "built in"; for your own data sets, the function that makes them."""
        otherwise = BUILT_IN if self.licence != OWN else self.loader
        return next((form.files[0].url or "" for form in self.forms if form.downloadable), otherwise)


def _entry(name: str, facts: dict[str, Any]) -> Entry:
    for form in facts.get("forms", ()):
        for file in form["files"]:
            file["magic"] = _BEGINNINGS.get(file.pop("begins", ""))
    forms = [Form(form["name"], tuple(RemoteFile(**file) for file in form["files"])) for form in facts.pop("forms", ())]
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in {**facts, "forms": forms}.items()}
    return Entry(name, **{**plain, "loader": f"difformer.data.{plain['loader']}"})


_TABLE = toml.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ENTRIES: dict[str, Entry] = {name: _entry(name, facts) for name, facts in _TABLE.items()}
FORMS: dict[str, tuple[Form, ...]] = {name: entry.forms for name, entry in ENTRIES.items() if entry.forms}
ALIASES: dict[str, str] = {alias: name for name, entry in ENTRIES.items() for alias in entry.aliases}


def entry(name: str) -> Entry:
    """The entry of a name, however it is spelled: case, blanks and underscores do not matter."""
    if ":" in name:
        return own_entry(name, name)
    plain = plain_name(name)
    known = {**ENTRIES, **installed()}
    if plain in known:
        return known[plain]
    hint = did_you_mean(plain, [*known, *ALIASES]) or f"known are {', '.join(known)}. "
    raise UserError(f"there is no data set {name!r}; {hint}`difformer datasets` lists all {len(known)}")


def plain_name(name: str) -> str:
    """The name of a data set as `ENTRIES` has it."""
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    return ALIASES.get(plain, plain)


def own_entry(name: str, loader: str, about: str = "", kind: str = "nodes", metric: str = "any") -> Entry:
    """The entry of a data set that is not the package's."""
    return Entry(name, about or f"made by {loader}", kind, metric, loader, licence=OWN)


def installed() -> dict[str, Entry]:
    """Data sets that installed packages name in the entry-point group ``difformer.datasets``."""
    named = {plain_name(point.name): point.value for point in entry_points(group="difformer.datasets")}
    return {name: own_entry(name, place) for name, place in named.items() if name not in ENTRIES}
