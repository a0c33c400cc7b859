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

    States before the output layer, with the names of the instances, for plots, clustering and search.
    """
    import numpy as np

    path = out or run / "embeddings.npz"
    if path.suffix not in (".npz", ".csv"):
        raise UserError(f"--out: embeddings are written as .npz or .csv, got {str(path)!r}")
    check_new(path, force)
    folder = training.RunFolder.open(run)
    given, names = new.read(run, output)
    states = training.embed(folder, **given, seed=seed, device=device).numpy(force=True)
    names = names if given else folder.task().instance_names
    named = len(names) == len(states)
    if path.suffix == ".npz":
        content = io.BytesIO()
        labels: dict[str, Any] = {"names": np.array(names)} if named else {}
        np.savez_compressed(content, embeddings=states, **labels)
        write_bytes(path, content.getvalue())
    elif states.ndim != 2:
        raise UserError(f"--out: embeddings of shape {states.shape} do not fit a table; write them as .npz")
    else:
        rows = zip(names if named else range(len(states)), states.tolist(), strict=True)
        header = ["instance", *(f"state_{c}" for c in range(states.shape[1]))]
        write_bytes(path, csv_text([header, *([name, *row] for name, row in rows)]).encode())
    output.json({"run": run, "out": path, "shape": list(states.shape)})
    output.say(f"embeddings of shape {states.shape} in {path}")
