"""``difformer datasets``: what there is to train on, and whether it is on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from difformer.cli.errors import verb
from difformer.cli.options import Json
from difformer.cli.output import Output, count, shown


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
    output.json([{**asdict(one.entry), "source": one.entry.source, "place": one.place} for one in listed])
    output.table(
        ["name", "kind", "nodes", "edges", "features", "outputs", "metric", "protocols", "files"],
        [
            [
                one.entry.name,
                one.entry.kind,
                count(one.entry.nodes),
                count(one.entry.edges),
                count(one.entry.features),
                count(one.entry.outputs),
                one.entry.metric,
                ", ".join(one.entry.protocols) or "–",
                _where(one.place),
            ]
            for one in listed
        ],
        right=["nodes", "edges", "features", "outputs"],
    )
    output.say("`difformer datasets NAME` shows protocols, options and licence; `difformer fit NAME` trains on it.")


def _where(place: str | None) -> str:
    return "to download" if place is None else ("built in" if place == "built in" else "on disk")


def _one(name: str, root: Path | None, output: Output) -> None:
    from difformer.data.catalogue import list_datasets
    from difformer.data.registry import dataset_options

    listing = next(one for one in list_datasets(root) if one.entry.name == name)
    options: dict[str, Any] = dataset_options(name)
    output.json({**asdict(listing.entry), "source": listing.entry.source, "place": listing.place, "options": options})
    entry = listing.entry
    output.table(
        ["", ""],
        [
            ["name", entry.name],
            ["about", entry.about],
            ["kind", entry.kind],
            ["nodes", count(entry.nodes)],
            ["edges", count(entry.edges)],
            ["features", count(entry.features)],
            ["outputs", count(entry.outputs)],
            ["length", count(entry.length)],
            ["metric", entry.metric],
            ["protocols", ", ".join(entry.protocols) or "–"],
            ["licence", entry.licence],
            ["source", entry.source],
            ["files", listing.place or "to download"],
        ],
    )
    output.say("options (`--data KEY=VALUE`), with their defaults:")
    output.table(["option", "default"], [[key, shown(value)] for key, value in options.items()])
