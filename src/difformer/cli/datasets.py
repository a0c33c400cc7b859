"""``difformer datasets``: the available data sets, and whether they are on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from difformer import data
from difformer.cli.command import argument, command, dataset_names, option
from difformer.cli.description import meanings
from difformer.cli.output import Output, count, shown

COLUMNS = ("name", "size", "edges", "files")


@command("difformer datasets cora")
def datasets(
    output: Output,
    name: str | None = argument(
        "A data set, to see its protocols and options.", metavar="NAME", autocompletion=dataset_names
    ),
    root: Path | None = option("Folder to search for files first."),
) -> None:
    """List the data sets, or show one.

    The list has sizes and where the files are; `difformer datasets NAME` has all facts, --json those of every data set.
    """
    if name is not None:
        _one(data.catalogue.entry(name), root, output)
        return
    listed = data.download.list_datasets(root)
    output.json([_document(one) for one in listed])
    output.table(COLUMNS, [[(_facts(one.entry) | {"files": _where(one)})[key] for key in COLUMNS] for one in listed])
    output.say("Edges are undirected and counted once, though a task lists both directions, unless it says directed.")
    output.say("`difformer datasets NAME` shows features, protocols, licence, metric, options and source;")
    output.say("`difformer fit NAME` trains on it.")


def _document(listing: data.Listing) -> dict[str, Any]:
    entry = listing.entry
    return {**asdict(entry), "source": entry.source, "place": listing.place, "lacks": listing.lacks}


def _facts(entry: data.Entry) -> dict[str, str]:
    return {
        "name": entry.name,
        "about": entry.about,
        "kind": entry.kind,
        "size": _size(entry),
        "edges": _edges(entry),
        "features": count(entry.features),
        "outputs": count(entry.outputs),
        "metric": entry.metric,
        "protocols": ", ".join(entry.protocols) or "–",
        "licence": entry.licence,
    }


def _size(entry: data.Entry) -> str:
    """Nodes; for series and graphs how many of them, and of how many nodes each."""
    if entry.nodes is None:
        return "any"
    if entry.kind == "nodes":
        return f"{entry.nodes:,} nodes"
    each = f"snapshots × {entry.nodes:,}" if entry.kind == "series" else f"graphs × ~{entry.nodes:,}"
    return f"{count(entry.length)} {each}"


def _edges(entry: data.Entry, *, at_length: bool = False) -> str:
    """How many edges, and whether they are directed; at length also what papers print where that is another number."""
    if entry.edges is None or not at_length:
        return f"{count(entry.edges)} directed".removeprefix("– ") if entry.directed else count(entry.edges)
    counted = "directed, over all snapshots" if entry.directed else "undirected, each counted once, without self-loops"
    papers = "" if entry.links is None else f" (papers print {entry.links:,}, the raw links)"
    return f"{entry.edges:,} {counted}{papers}"


def _where(listing: data.Listing) -> str:
    if listing.lacks is not None:
        return "lacks features"  # not offered for download, so the data set does not load yet
    if listing.place is None:
        return "to download"
    return listing.place if listing.place in ("built in", "your own") else "on disk"


def _one(entry: data.Entry, root: Path | None, output: Output) -> None:
    listing = data.download.listing(entry, root)
    options: dict[str, Any] = data.dataset_options(entry.name)
    explained = meanings(data.registry.loader_of(entry.name), options)
    output.json({**_document(listing), "options": options, "meanings": explained})
    lacks = f"{listing.lacks}: train it (docs/data.md), or --data features=pca" if listing.lacks else ""
    here = {"source": entry.source, "files": listing.place or "to download", "lacks": lacks}
    output.facts({**_facts(entry), "edges": _edges(entry, at_length=True), **here})
    output.say("options (`--data KEY=VALUE`), with their defaults:")
    output.table(["option", "default", "meaning"], [[k, shown(v), explained[k]] for k, v in options.items()])
