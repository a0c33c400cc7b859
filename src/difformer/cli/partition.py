"""``difformer partition``: cut a task into parts, so that several processes can train on it together."""

from __future__ import annotations

from pathlib import Path

from difformer import distributed
from difformer.cli.command import command, option
from difformer.cli.description import describe_task
from difformer.cli.inputs import Data, load
from difformer.cli.output import Output, counted


@command("difformer partition cora --parts 4 --out parts")
def partition(
    data: Data,
    output: Output,
    parts: int = option("Number of parts: one per process, or more (a process then takes several).", 2, low=1),
    out: Path | None = option("New folder for the parts; parts/DATASET-P by default."),
    method: str = option("metis, stream (always available), or auto: METIS if it is installed.", "auto"),
) -> None:
    """Cut a graph into parts for several processes.

    Few edges join different parts, and each part is one file. `torchrun --nproc-per-node P -m difformer fit FOLDER`
    then trains on the whole graph, each process holding only its own part; the result is that of one process.
    """
    source = data.source()
    task = load(source)
    output.say("\n".join(describe_task(task)))
    folder = out or Path("parts") / f"{task.name}-{parts}"
    made = distributed.write_partition(task, folder, parts, method=method, source=source.to_dict())
    found = made.quality
    output.json({"folder": folder, "method": made.about["method"], "sizes": made.sizes, **vars(found)})
    output.say(f"{counted(parts, 'parts')} by {made.about['method']}: {found.describe()}")
    output.say(f"parts: {folder}")
    output.say(f"Try next: torchrun --nproc-per-node {parts} -m difformer fit {folder}")
