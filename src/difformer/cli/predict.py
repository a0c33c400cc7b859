"""``difformer predict``: predictions of a run for its own instances, or for new ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from difformer import training
from difformer.cli.command import DEVICE, FORCE, RUN, SEED, command, option
from difformer.cli.inputs import NewRows
from difformer.cli.output import Output, check_new, counted
from difformer.errors import UserError

SHOWN, COLUMNS = 10, 12  # rows and columns on the screen; the file has all


@command("difformer predict runs/my-run --features new.csv --out predictions.csv")
def predict(
    new: NewRows,
    output: Output,
    run: Path = RUN,
    out: Path = option("New file for the predictions, .csv or .npz; - for CSV on standard output.", ...),
    alone: bool = option("Propagate new rows among themselves, without the run's own instances.", False, "--alone"),
    seed: int | None = SEED,
    force: bool = FORCE,
    device: str = DEVICE,
) -> None:
    """Predict the instances of a run, or new rows.

    The file has one row per instance: the prediction and the probability of every class. New rows (`--features
    new.csv`, with the columns used in training) are propagated together with the instances of the run, so the
    prediction of a row may depend on the other new rows; with `--alone` they form a set of their own.
    """
    if str(out) == "-":
        if output.as_json:
            raise UserError("--out - and --json both need standard output; give a file, or leave out --json")
    elif out.suffix not in (".csv", ".npz"):
        raise UserError(f"--out: predictions are written as .csv or .npz, or as CSV to -, got {str(out)!r}")
    else:
        check_new(out, force)
    given, names = new.read(run, output, together=not alone)
    found = training.predict(run, **given, together=not alone, seed=seed, device=device)
    if given:
        found = replace(found, instance_names=names)
    if str(out) == "-":
        sys.stdout.write(found.csv())
        return
    found.write(out)
    headings, rows = found.table()
    document: dict[str, Any] = {"run": run, "out": out, "instances": len(rows), "columns": headings}
    if found.problem == "multiclass":
        labels = found.labels().flatten()
        names = found.class_names or tuple(str(c) for c in range(found.outputs.shape[-1]))
        document["predicted"] = {name: int((labels == c).sum()) for c, name in enumerate(names)}
    output.json(document)
    output.table(headings[:COLUMNS], [row[:COLUMNS] for row in rows[:SHOWN]])
    more = f" (the first {SHOWN} are shown)" if len(rows) > SHOWN else ""
    output.say(f"{counted(len(rows), 'predictions')} in {out}{more}")
