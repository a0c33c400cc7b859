"""``difformer predict``: what a run says of its instances, or of new ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from difformer.cli.errors import verb
from difformer.cli.options import Device, Force, Json, NewEdges, NewFeatures, Run, Seed
from difformer.cli.output import Output, check_new, printable

if TYPE_CHECKING:
    from difformer.training.predictions import Predictions

SHOWN = 10


@verb
def predict(
    run: Run,
    out: Annotated[
        Path,
        typer.Option(
            help="New file for the predictions, .csv or .npz; - for CSV on standard output.", show_default=False
        ),
    ],
    features: NewFeatures = None,
    edges: NewEdges = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Propagate new rows among themselves, without the run's own instances.")
    ] = False,
    seed: Seed = None,
    force: Force = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict all instances of a run, or new ones.

    New rows (`--features new.csv`, the same columns as in training) are propagated together with the instances that the
    model was trained on, so what is predicted for a row may depend on the other new rows. With `--alone` they form a
    set by themselves.
    """
    from difformer.training.using import predict as ask

    output = Output(as_json)
    printed = str(out) == "-"
    _check_out(out, as_json, force)
    if features is None:
        if edges is not None or alone:
            raise ValueError("--edges and --alone speak of new instances: give --features too")
        found = ask(run, seed=seed, device=device)
    else:
        from difformer.cli.newrows import read_new_rows

        new = read_new_rows(run, features, edges, together=not alone)
        for note in new.notes:
            output.remark(f"warning: {note}")
        found = ask(
            run, new.x, edges=new.edge_index, edge_weight=new.edge_weight, together=not alone, seed=seed, device=device
        )
        found = replace(found, instance_names=new.names)
    if printed:
        text = found.csv()
        sys.stdout.write(printable(text))
        if printable(text) != text:
            output.remark(
                "warning: control characters in names are written out here; --out FILE keeps them as they are"
            )
        return
    found.write(out)
    headings, rows = found.table()
    output.json({"run": run, "out": out, "instances": len(rows), "columns": headings, **_shares(found)})
    output.table(headings, rows[:SHOWN])
    more = f" (the first {SHOWN} are shown)" if len(rows) > SHOWN else ""
    output.say(f"{len(rows):,} predictions in {out}{more}")


def _check_out(out: Path, as_json: bool, force: bool) -> None:
    """Before anything is computed."""
    if str(out) == "-":
        if as_json:
            raise ValueError("--out - and --json both want standard output; give a file, or leave --json out")
        return
    if out.suffix not in (".csv", ".npz"):
        raise ValueError(f"--out: predictions are written as .csv or .npz, or as CSV to -, got {str(out)!r}")
    check_new(out, force)


def _shares(found: Predictions) -> dict[str, Any]:
    """How many instances fall to each class, where there are classes."""
    if found.problem != "multiclass":
        return {}
    labels = found.labels().flatten()
    names = found.class_names or tuple(str(c) for c in range(found.outputs.shape[-1]))
    return {"predicted": {name: int((labels == c).sum()) for c, name in enumerate(names)}}
