"""``difformer datasets``: what there is to train on, and whether it is on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from difformer.cli.docstrings import meanings
from difformer.cli.errors import verb
from difformer.cli.options import Json
from difformer.cli.output import Output, count, shown

if TYPE_CHECKING:
    from difformer.data.catalogue import Listing
    from difformer.data.entries import Entry


@verb
def datasets(
    name: Annotated[
        str | None,
        typer.Argument(help="One data set, to see its protocols and options.", show_default=False),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder to look for files in first.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List the data sets: size, kind, metric, protocols, and where the files are."""
    from difformer.data.catalogue import entry, list_datasets

    output = Output(as_json)
    if name is not None:
        _one(entry(name).name, root, output)
        return
    listed = list_datasets(root)
    output.json([_document(one) for one in listed])
    output.table(
        ["name", "kind", "size", "edges", "features", "outputs", "metric", "protocols", "files"],
        [
            [
                one.entry.name,
                one.entry.kind,
                _size(one.entry),
                count(one.entry.edges),
                count(one.entry.features),
                count(one.entry.outputs),
                one.entry.metric,
                ", ".join(one.entry.protocols) or "–",
                _where(one),
            ]
            for one in listed
        ],
        right=["edges", "features", "outputs"],
    )
    output.say("`difformer datasets NAME` shows protocols, options and licence; `difformer fit NAME` trains on it.")


def _document(listing: Listing) -> dict[str, Any]:
    entry = listing.entry
    return {**asdict(entry), "source": entry.source, "place": listing.place, "lacks": listing.lacks}


def _size(entry: Entry) -> str:
    """Nodes; for series and graphs how many of them, and of how many nodes each."""
    if entry.nodes is None:
        return "any"
    if entry.kind == "nodes":
        return f"{entry.nodes:,} nodes"
    if entry.kind == "series":
        return f"{count(entry.length)} snapshots × {entry.nodes:,}"
    return f"{count(entry.length)} graphs × ~{entry.nodes:,}"


def _where(listing: Listing) -> str:
    if listing.lacks is not None:
        return "lacks features"  # which nobody offers for download: whatever else is on disk, it does not load yet
    if listing.place is None:
        return "to download"
    return listing.place if listing.place == "built in" else "on disk"


def _one(name: str, root: Path | None, output: Output) -> None:
    from difformer.data.catalogue import list_datasets
    from difformer.data.registry import dataset_options, loader_of

    listing = next(one for one in list_datasets(root) if one.entry.name == name)
    options: dict[str, Any] = dataset_options(name)
    explained = meanings(loader_of(name))
    output.json(
        {**_document(listing), "options": options, "meanings": {key: explained.get(key, "") for key in options}}
    )
    entry = listing.entry
    output.table(
        ["", ""],
        [
            ["name", entry.name],
            ["about", entry.about],
            ["kind", entry.kind],
            ["size", _size(entry)],
            ["edges", count(entry.edges)],
            ["features", count(entry.features)],
            ["outputs", count(entry.outputs)],
            ["metric", entry.metric],
            ["protocols", ", ".join(entry.protocols) or "–"],
            ["licence", entry.licence],
            ["source", entry.source],
            ["files", listing.place or "to download"],
            *(
                [["lacks", f"{listing.lacks}: train it (docs/data.md), or --data features=pca"]]
                if listing.lacks
                else []
            ),
        ],
    )
    output.say("options (`--data KEY=VALUE`), with their defaults:")
    output.table(
        ["option", "default", "meaning"],
        [[key, shown(value), explained.get(key, "")] for key, value in options.items()],
    )
