"""From words on the command line to what is trained: the source of a task, and a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.cli.dataoptions import read_data_options
from difformer.cli.scope import outside
from difformer.cli.wording import as_typed

if TYPE_CHECKING:
    from difformer.data import Task
    from difformer.experiments import Preset
    from difformer.training import TrainConfig
    from difformer.training.source import TaskSource

DEFAULT_MODEL = "difformer-s"
OWN_SPLITS = 10  # seeded splits of a user's own data, where nobody says otherwise


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Args:
        settings: Settings that differ from the defaults, a preset's and the command line's in one mapping.
        config: The complete configuration.
        preset: The preset, where one was named.
        dataset: The data set by its name; None for own files.
        origin: The preset as it was named: its name, or the path of its file.
    """

    settings: dict[str, Any]
    config: TrainConfig
    preset: Preset | None = None
    dataset: str | None = None
    origin: str | None = None


def read_source(
    dataset: str | None,
    *,
    root: Path | None = None,
    protocol: str | None = None,
    data: list[str] | None = None,
    features: Path | None = None,
    labels: Path | None = None,
    edges: Path | None = None,
    split: Path | None = None,
) -> TaskSource:
    """The recipe of a task, from a data set's name or a user's files.

    Raises:
        ValueError: If both or neither are given.
        FileNotFoundError: If a file is not there.
    """
    files = {role: path for role, path in (("features", features), ("labels", labels), ("edges", edges)) if path}
    if dataset is not None and files:
        raise ValueError(f"give either a data set ({dataset!r}) or your own files (--{next(iter(files))}), not both")
    if dataset is None and not files:
        raise ValueError(
            "say what to train on: a data set by name (`difformer datasets` lists them), or --features x.csv "
            "--labels y.csv and, where there is a graph, --edges e.csv"
        )
    if dataset is not None and split is not None:
        raise ValueError("--split goes with your own files; a data set has its splits, which --protocol chooses among")
    from difformer.training.source import TaskSource

    if dataset is not None:
        from difformer.data.catalogue import entry

        name, known = entry(dataset).name, entry(dataset).protocols
        if protocol is not None and protocol not in known and (beyond := outside([protocol])):
            raise ValueError(f"--protocol: {name} has no protocol {protocol!r}; it has {', '.join(known)}{beyond}")
        options = read_data_options(data, name)
        if protocol is not None and options.setdefault("protocol", protocol) != protocol:
            raise ValueError(f"--protocol says {protocol!r}, but --data says protocol={options['protocol']}")
        return TaskSource(name, None if root is None else str(root), options)
    if features is None:
        raise ValueError("--features is missing: own data need a table of features")
    if protocol is not None or root is not None:
        given = "--protocol" if protocol is not None else "--root"
        raise ValueError(f"{given} belongs to a data set; with your own files, --split and --data say how to split")
    options = read_data_options(data, None)
    for role, path in [*files.items(), *([] if split is None else [("split", split)])]:
        if not path.exists():
            raise FileNotFoundError(f"--{role}: there is no file {path}")
    if split is not None:
        options["splits"] = str(split.resolve())
    elif not options.keys() & {"splits", "seeds"}:
        # One split a seed, as data sets have them: else ± would speak of initialisations alone. What a file says of
        # its split, in a column or masks, goes before.
        options["seeds"] = list(range(OWN_SPLITS))
    return TaskSource(options=options, files={role: str(path) for role, path in files.items()})


def read_request(
    dataset: str | None,
    *,
    model: str | None,
    preset: str | None,
    settings: list[str] | None,
    batch_size: int | None = None,
) -> Request:
    """The configuration: defaults, then the preset's settings, then those of the command line.

    Raises:
        ValueError: If a model, preset or setting is unknown, or preset and model contradict each other.
    """
    from difformer.training.config import make_config

    found = None if preset is None else read_named_preset(preset, model=model, dataset=dataset)
    chosen = model or (found.model if found is not None else DEFAULT_MODEL)
    words = [*(settings or ()), *([] if batch_size is None else [f"batch_size={batch_size}"])]
    merged = {**(found.settings if found is not None else {}), **read_settings(words, chosen)}
    return Request(merged, make_config(chosen, merged), found, dataset, preset)


def read_settings(words: list[str], model: str) -> dict[str, Any]:
    """``["hidden_channels=64", "patience=none"]`` as one mapping of settings.

    Raises:
        ValueError: See `difformer.training.parse_settings`.
    """
    from difformer.training.config import parse_settings

    try:
        fields, options = parse_settings(words, model)
    except ValueError as error:
        raise ValueError(f"{error}{outside(words)}") from error
    return {**fields, **options}


def read_named_preset(name: str, *, model: str | None, dataset: str | None) -> Preset:
    """A preset of the package by its name, or of a file by its path."""
    from difformer.experiments import read_preset

    if not name.endswith(".toml") and not Path(name).is_file():
        if dataset is None:
            raise ValueError(f"preset: {name!r} belongs to a data set; with your own files give a .toml file")
        from difformer.data.catalogue import entry

        return _shipped_preset(name, model or DEFAULT_MODEL, entry(dataset).name)
    found = read_preset(name)
    if model is not None and model != found.model:
        raise ValueError(f"preset: {name} is for model {found.model!r}, but --model says {model!r}")
    return found


def _shipped_preset(name: str, model: str, dataset: str) -> Preset:
    """A preset of the package; where there is none, the error also says which there are for this very request."""
    from difformer.experiments import find_preset
    from difformer.experiments.presets import load_presets

    try:
        return find_preset(name, model=model, dataset=dataset)
    except ValueError as error:
        if "for that pair there is" in str(error):
            raise
        here = [preset.name for preset in load_presets() if (preset.model, preset.dataset) == (model, dataset)]
        raise ValueError(f"{error}. Presets for {model} on {dataset}: {', '.join(here) or 'none'}") from error


def without_edges(task: Task, config: TrainConfig) -> list[str]:
    """A remark where a model that works over edges is given none."""
    from difformer.training.config import knn_of
    from difformer.zoo import find

    if not find(config.model).needs_graph or knn_of(config.graph) is not None:
        return []
    if task.edge_index is not None and config.graph == "given":
        return []
    return [
        f"note: {config.model} passes messages along edges, and here are none, so every instance stands alone; "
        f"--set graph=knn:5 joins each to its nearest"
        + ("" if task.edge_index is not None else ", --edges FILE gives a graph of your own files")
    ]


def describe_task(task: Task) -> list[str]:
    """Size, protocol and notes in a few lines."""
    facts = task.facts()
    shown = [f"{facts[key]:,} {key}" for key in ("graphs", "snapshots", "nodes", "edges", "features") if key in facts]
    shown += [f"{facts[key]} {key}" for key in ("classes", "targets") if key in facts]
    sizes = "/".join(str(size) for size in task.splits[0].sizes())
    lines = [f"{task.name}: {', '.join(shown)}", f"protocol: {task.protocol}"]
    lines.append(f"train/valid/test: {sizes}" + (f", {len(task.splits)} splits" if len(task.splits) > 1 else ""))
    return lines + [f"note: {as_typed(note)}" for note in task.notes]
