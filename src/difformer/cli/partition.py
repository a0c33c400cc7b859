"""``difformer partition``: cut a task into parts, so that several processes can train on it together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from difformer.cli.errors import verb
from difformer.cli.options import DataOptions, Dataset, Edges, Features, Json, Labels, Protocol, Root, SplitFile
from difformer.cli.output import Output
from difformer.cli.request import describe_task, read_source


@verb
def partition(
    dataset: Dataset = None,
    parts: Annotated[
        int, typer.Option(help="How many parts: one a process, or more (a process then takes several).", min=1)
    ] = 2,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the parts, new; parts/DATASET-P by default.", show_default=False)
    ] = None,
    method: Annotated[
        str, typer.Option(help="metis, stream (ours, always there), or auto: METIS where it is installed.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Of the order in which nodes stream by.")] = 0,
    protocol: Protocol = None,
    data: DataOptions = None,
    root: Root = None,
    features: Features = None,
    labels: Labels = None,
    edges: Edges = None,
    split: SplitFile = None,
    as_json: Json = False,
) -> None:
    """Cut a graph into parts with few edges between them, one file a part.

    `torchrun --nproc-per-node P -m difformer fit FOLDER` then trains on the whole graph, every process holding its own
    part alone; the result is that of one process.
    """
    from difformer.distributed.folder import write_partition

    output = Output(as_json)
    source = read_source(
        dataset,
        root=root,
        protocol=protocol,
        data=data,
        features=features,
        labels=labels,
        edges=edges,
        split=split,
    )
    task = source.load()
    task.check_finite()
    for line in describe_task(task):
        output.say(line)
    folder = out or Path("parts") / f"{task.name}-{parts}"
    made = write_partition(task, folder, parts, method=method, seed=seed, source=source.complete().to_dict())
    found = made.quality
    output.json({"folder": folder, "method": made.about["method"], "sizes": made.sizes, **vars(found)})
    output.say(f"{parts} parts by {made.about['method']}: {found.describe()}")
    output.say(f"parts: {folder}")
    output.say(f"Try next: torchrun --nproc-per-node {parts} -m difformer fit {folder}")
