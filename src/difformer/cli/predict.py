"""``difformer predict``: predictions of a run for its own instances, or for new ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from difformer.cli.command import command
from difformer.cli.inputs import new_rows
from difformer.cli.options import Device, Force, Json, NewEdges, NewFeatures, Run, Seed, option
from difformer.cli.output import Output, check_new, counted
from difformer.errors import UserError

if TYPE_CHECKING:
    from difformer.training.record import Predictions

SHOWN, COLUMNS = 10, 12  # rows and columns on the screen; the file has all


@command
def predict(
    run: Run,
    out: Annotated[Path, option("New file for the predictions, .csv or .npz; - for CSV on standard output.")],
    features: NewFeatures = None,
    edges: NewEdges = None,
    alone: Annotated[
        bool, option("Propagate new rows among themselves, without the run's own instances.", "--alone")
    ] = False,
    seed: Seed = None,
    force: Force = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict the instances of a run, or new rows.

    The file has one row per instance: the prediction and the probability of every class. New rows (`--features
    new.csv`, with the columns used in training) are propagated together with the instances of the run, so the
    prediction of a row may depend on the other new rows; with `--alone` they form a set of their own.
    """
    from difformer.training.trained_run import predict as ask

    output = Output(as_json)
    printed = str(out) == "-"
    _check_out(out, as_json, force)
    new = new_rows(run, features, edges, output, together=not alone)
    if new is None:
        found = ask(run, seed=seed, device=device)
    else:
        linked: dict[str, Any] = {"edges": new.edge_index, "edge_weight": new.edge_weight, "together": not alone}
        found = replace(ask(run, new.x, **linked, seed=seed, device=device), instance_names=new.names)
    if printed:
        sys.stdout.write(found.csv())
        return
    found.write(out)
    headings, rows = found.table()
    output.json({"run": run, "out": out, "instances": len(rows), "columns": headings, **_shares(found)})
    width = len(headings) if len(headings) <= COLUMNS else COLUMNS
    output.table(headings[:width], [row[:width] for row in rows[:SHOWN]])
    more = f" (the first {SHOWN} are shown)" if len(rows) > SHOWN else ""
    output.say(f"{counted(len(rows), 'predictions')} in {out}{more}")


def _check_out(out: Path, as_json: bool, force: bool) -> None:
    """Before anything is computed."""
    if str(out) == "-":
        if as_json:
            raise UserError("--out - and --json both need standard output; give a file, or leave out --json")
        return
    if out.suffix not in (".csv", ".npz"):
        raise UserError(f"--out: predictions are written as .csv or .npz, or as CSV to -, got {str(out)!r}")
    check_new(out, force)


def _shares(found: Predictions) -> dict[str, Any]:
    """How many instances fall to each class, where there are classes."""
    if found.problem != "multiclass":
        return {}
    labels = found.labels().flatten()
    names = found.class_names or tuple(str(c) for c in range(found.outputs.shape[-1]))
    return {"predicted": {name: int((labels == c).sum()) for c, name in enumerate(names)}}
