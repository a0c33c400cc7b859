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
from difformer.files import write_bytes


@command("difformer embed runs/my-run --out states.npz")
def embed(
    new: NewRows,
    output: Output,
    run: Path = RUN,
    out: Path | None = option("File for the states, .npz; RUN/embeddings.npz by default."),
    seed: int | None = SEED,
    force: bool = FORCE,
    device: str = DEVICE,
) -> None:
    """Write the final state of every instance.

    States before the output layer, with the names of the instances, for plots, clustering and search.
    """
    import numpy as np

    path = out or run / "embeddings.npz"
    if path.suffix != ".npz":
        raise UserError(f"--out: embeddings are written as .npz, got {str(path)!r}")
    check_new(path, force)
    folder = training.RunFolder.open(run)
    given, names = new.read(run, output)
    states = training.embed(folder, **given, seed=seed, device=device).numpy(force=True)
    names = names if given else folder.task().instance_names
    arrays: dict[str, Any] = {"embeddings": states} | ({"names": names} if len(names) == len(states) else {})
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    write_bytes(path, content.getvalue())
    output.json({"run": run, "out": path, "shape": list(states.shape)})
    output.say(f"embeddings of shape {states.shape} in {path}")
