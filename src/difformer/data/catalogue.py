"""The list of data sets, and which of them are on this machine. No torch here: it must answer at once."""

from __future__ import annotations

import os
from dataclasses import dataclass

from difformer.data.entries import BUILT_IN, ENTRIES, Entry
from difformer.data.lookup import find, find_file
from difformer.data.sources import FORMS, LEARNED, features_path
from difformer.errors import UserError, did_you_mean

ALIASES = {
    "film": "actor",
    "proteins": "ogbn-proteins",
    "england-covid": "covid",
    "wikimaths": "wikimath",
    "wiki-maths": "wikimath",
    "cifar-10": "cifar10",
    "stl-10": "stl10",
    "20newsgroups": "20news",
    "20newsgroup": "20news",
    "photo": "amazon-photo",
    "computers": "amazon-computers",
    "reed98": "facebook100-reed98",
    "johnshopkins55": "facebook100-johnshopkins55",
    "johns-hopkins55": "facebook100-johnshopkins55",
    "cornell5": "facebook100-cornell5",
    "amherst41": "facebook100-amherst41",
    "penn94": "facebook100-penn94",
    "deezer": "deezer-europe",
    "karate-club": "karate",
    "moons": "two-moons",
}


@dataclass(frozen=True)
class Listing:
    """An entry, and where its files are.

    Args:
        entry: The data set.
        place: Folder of its files, ``"built in"`` for what needs none, None where it would be downloaded.
        lacks: A file that `load` needs by default and nobody offers for download: features of images, which are
            trained (`difformer.data.features`). None where nothing is lacking.
    """

    entry: Entry
    place: str | None
    lacks: str | None = None

    @property
    def on_disk(self) -> bool:
        return self.place is not None


def entry(name: str) -> Entry:
    """The entry of a name, however it is spelled: case, blanks and underscores do not matter.

    Raises:
        ValueError: If there is no such data set, with the nearest names.
    """
    plain = name.strip().lower().replace("_", "-").replace(" ", "-")
    plain = ALIASES.get(plain, plain)
    if plain in ENTRIES:
        return ENTRIES[plain]
    hint = did_you_mean(plain, [*ENTRIES, *ALIASES]) or f"known are {', '.join(ENTRIES)}. "
    raise UserError(f"there is no data set {name!r}; {hint}`difformer datasets` lists all {len(ENTRIES)}")


def list_datasets(root: str | os.PathLike[str] | None = None) -> tuple[Listing, ...]:
    """Every data set, and where its files are; what `difformer datasets` shows. Reads and downloads nothing.

    Args:
        root: Folder to search first, as in `load`.
    """
    return tuple(Listing(one, _place(one.name, root), _lacks(one.name, root)) for one in ENTRIES.values())


def _place(name: str, root: str | os.PathLike[str] | None) -> str | None:
    if name not in FORMS:
        return BUILT_IN
    found = find(name, root)
    return None if found is None else str(found.path.parent)


def _lacks(name: str, root: str | os.PathLike[str] | None) -> str | None:
    if name not in LEARNED or find_file(features_path(name), root) is not None:
        return None
    return features_path(name)
