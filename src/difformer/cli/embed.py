"""``difformer embed``: the states that a trained model gives its instances."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from difformer import training
from difformer.cli.command import DEVICE, FORCE, RUN, SEED, command, option
from difformer.cli.inputs import NewRows
from difformer.cli.output import Output, check_new
from difformer.errors import UserError
from difformer.files import csv_text, write_bytes


@command("difformer embed runs/my-run --out states.npz")
def embed(
    new: NewRows,
    output: Output,
    run: Path = RUN,
    out: Path | None = option("File for the states, .npz or .csv; RUN/embeddings.npz by default."),
    seed: int | None = SEED,
    force: bool = FORCE,
    device: str = DEVICE,
) -> None:
    """Write the final state of every instance.

    States before the output layer, as a table for plots, clustering and search.
    """
    path = out or run / "embeddings.npz"
    if path.suffix not in (".npz", ".csv"):
        raise UserError(f"--out: embeddings are written as .npz or .csv, got {str(path)!r}")
    check_new(path, force)
    folder = training.RunFolder.open(run)
    given, names = new.read(run, output)
    states = training.embed(folder, **given, seed=seed, device=device)
    _write_states(path, states.numpy(force=True), names if given else folder.task().instance_names)
    output.json({"run": run, "out": path, "shape": list(states.shape)})
    output.say(f"embeddings of shape {tuple(states.shape)} in {path}")


def _write_states(path: Path, array: Any, names: tuple[str, ...]) -> None:
    import numpy as np

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
