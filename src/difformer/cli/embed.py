"""``difformer embed``: the states that a trained model gives its instances."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

from difformer.cli.command import command
from difformer.cli.inputs import new_rows
from difformer.cli.options import Device, Force, Json, NewEdges, NewFeatures, Run, Seed, option
from difformer.cli.output import Output, check_new
from difformer.errors import UserError


@command
def embed(
    run: Run,
    out: Annotated[Path | None, option("File for the states, .npz or .csv; RUN/embeddings.npz by default.")] = None,
    features: NewFeatures = None,
    edges: NewEdges = None,
    seed: Seed = None,
    force: Force = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write the final state of every instance.

    States before the output layer, as a table for plots, clustering and search.
    """
    from difformer.training.run_folder import RunFolder
    from difformer.training.trained_run import embed as ask

    output = Output(as_json)
    path = out or run / "embeddings.npz"
    if path.suffix not in (".npz", ".csv"):
        raise UserError(f"--out: embeddings are written as .npz or .csv, got {str(path)!r}")
    check_new(path, force)
    folder = RunFolder.open(run)
    new = new_rows(run, features, edges, output, together=True)
    given: dict[str, Any] = {"seed": seed, "device": device}
    if new is not None:
        given |= {"features": new.x, "edges": new.edges, "edge_weight": new.edge_weight}
    states = ask(folder, **given)
    _write(path, states.numpy(force=True), folder.task().instance_names if new is None else new.names)
    output.json({"run": run, "out": path, "shape": list(states.shape)})
    output.say(f"embeddings of shape {tuple(states.shape)} in {path}")


def _write(path: Path, array: Any, names: tuple[str, ...]) -> None:
    import numpy as np

    from difformer.files import csv_text, write_bytes

    named = names if len(names) == array.shape[0] else ()
    if path.suffix == ".npz":
        content = io.BytesIO()
        arrays: dict[str, Any] = {"embeddings": array} | ({"names": np.array(named)} if named else {})
        np.savez_compressed(content, **arrays)
        write_bytes(path, content.getvalue())
        return
    if array.ndim != 2:
        raise UserError(f"--out: embeddings of shape {array.shape} do not fit a table; write them as .npz")
    headings = ["instance", *(f"state_{i}" for i in range(array.shape[1]))]
    rows = ([named[i] if named else i, *(float(f"{v:.6g}") for v in row)] for i, row in enumerate(array))
    write_bytes(path, csv_text([headings, *rows]).encode())
