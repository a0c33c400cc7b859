"""Options that several verbs share, with one wording each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OWN_DATA = "Your own data"
DATA = "Data"
MODEL = "Model and training"

Dataset = Annotated[
    str | None,
    typer.Argument(help="A data set by name (`difformer datasets` lists them); leave it out with --features."),
]
Run = Annotated[Path, typer.Argument(help="Folder of a run, as `difformer fit` made it.", show_default=False)]
Seed = Annotated[
    int | None,
    typer.Option(help="Which of the run's seeds; the best on validation by default.", show_default=False),
]
NewFeatures = Annotated[
    Path | None,
    typer.Option("--features", help="Table of new instances, with the columns of training.", show_default=False),
]
NewEdges = Annotated[
    Path | None,
    typer.Option(
        "--edges", help="Edges of new instances, among themselves or to those of the run.", show_default=False
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that is already there.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for scripts; progress goes to stderr.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Root = Annotated[
    Path | None,
    typer.Option(help="Folder to look for data files in first.", rich_help_panel=DATA, show_default=False),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="Which protocol of the data set (splits and preprocessing); short for --data protocol=….",
        rich_help_panel=DATA,
        show_default=False,
    ),
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="KEY=VALUE",
        help="An option of the data set, such as num_splits=5 or knn=5; repeatable. "
        "`difformer datasets NAME` lists them.",
        rich_help_panel=DATA,
        show_default=False,
    ),
]
Features = Annotated[
    Path | None,
    typer.Option(
        help="Table of features, one row an instance (CSV, Parquet, NPZ), or a PyG .pt with everything.",
        rich_help_panel=OWN_DATA,
        show_default=False,
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        help="Labels of some or all instances; what has none is predicted.",
        rich_help_panel=OWN_DATA,
        show_default=False,
    ),
]
Edges = Annotated[
    Path | None,
    typer.Option(help="Edges between instances, where there is a graph.", rich_help_panel=OWN_DATA, show_default=False),
]
SplitFile = Annotated[
    Path | None,
    typer.Option(
        "--split",
        help="File with splits of your own (.npz or .json: train, valid, test); drawn at random otherwise.",
        rich_help_panel=OWN_DATA,
        show_default=False,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting of the model or the training, such as hidden_channels=64 or learning_rate=0.01; repeatable. "
        "`difformer models NAME` lists them.",
        rich_help_panel=MODEL,
        show_default=False,
    ),
]


def key_values(words: list[str] | None, option: str) -> dict[str, str]:
    """``["a=1", "b=x"]`` as a mapping of texts.

    Raises:
        ValueError: If a word has no ``=`` or a key stands twice.
    """
    found: dict[str, str] = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{option}: expected KEY=VALUE, got {word!r}")
        key = key.strip().replace("-", "_")
        if key in found:
            raise ValueError(f"{option}: {key} is given twice, as {found[key]!r} and {value!r}")
        found[key] = value.strip()
    return found
