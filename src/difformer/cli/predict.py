"""``difformer predict``: predictions of a run for its own instances, or for new ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from difformer.cli.command import command
from difformer.cli.inputs import new_rows
from difformer.cli.options import Device, Force, Json, NewEdges, NewFeatures, Run, Seed, option
from difformer.cli.output import Output, check_new, counted
from difformer.errors import UserError

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
    if str(out) == "-":
        if as_json:
            raise UserError("--out - and --json both need standard output; give a file, or leave out --json")
    elif out.suffix not in (".csv", ".npz"):
        raise UserError(f"--out: predictions are written as .csv or .npz, or as CSV to -, got {str(out)!r}")
    else:
        check_new(out, force)
    new = new_rows(run, features, edges, output, together=not alone)
    given: dict[str, Any] = {"seed": seed, "device": device}
    if new is None:
        found = ask(run, **given)
    else:
        given |= {"edges": new.edges, "edge_weight": new.edge_weight, "together": not alone}
        found = replace(ask(run, new.x, **given), instance_names=new.names)
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
