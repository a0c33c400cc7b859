"""Inputs of the commands: data to train on, a configuration, and new rows for a trained model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import difformer.data
from difformer import experiments, training, zoo
from difformer.cli.command import argument, dataset_names, file_options, key_values, member, with_options
from difformer.cli.output import Output, listed
from difformer.errors import DataError, UserError, did_you_mean
from difformer.experiments import Preset
from difformer.training.config import TrainConfig, make_config, parse_settings

OWN_DATA, DATA = "Your own data", "Data"  # headings in help
DEFAULT_MODEL = "difformer"
OWN_PRESET = "own-data"  # the preset of the default model for data that have none
PAPER_MODEL = "difformer-s"  # has presets for data sets where the default model has none
OWN_SPLITS = 10  # seeded splits of a user's files, unless --data seeds or a file says otherwise
TABLES = (".csv", ".tsv", ".txt", ".parquet", ".npz", ".npy", ".pt", ".gz")


@dataclass(frozen=True)
class Data:
    """The options that say what to train on."""

    dataset: str | None = member(
        "Name of a data set (`difformer datasets` lists them), or a table such as customers.csv.",
        declare=argument,
        metavar="DATASET",
        autocompletion=dataset_names,
    )
    protocol: str | None = member("Splits and preprocessing of the data set; short for --data protocol=….", panel=DATA)
    data: list[str] | None = member(
        "An option of the data, such as num_splits=5 or knn=5; repeatable. `difformer datasets NAME` lists them.",
        panel=DATA,
        metavar="KEY=VALUE",
    )
    root: Path | None = member("Folder to search for data files first.", panel=DATA)
    features: Path | None = member(
        "Table of features, one row per instance (CSV, Parquet, NPZ), or a PyG .pt file.", panel=OWN_DATA
    )
    label: str | None = member(
        "Column to predict, in the table of features or of labels; several separated by commas.", panel=OWN_DATA
    )
    labels: Path | None = member("Labels of some or all instances; the others are predicted.", panel=OWN_DATA)
    edges: Path | None = member("Edges between instances, if there is a graph.", panel=OWN_DATA)
    split: Path | None = member("Splits (.npz or .json: train, valid, test); random ones by default.", panel=OWN_DATA)

    def given(self) -> list[str]:
        """Options that were given, as they are typed, without the data set."""
        return [f"--{name}" for name, value in vars(self).items() if name != "dataset" and value is not None]

    def source(self) -> training.TaskSource:
        """The recipe of a task, from a data set's name or your own files."""
        features, dataset = self.features, self.dataset
        path = Path(dataset or "")
        if dataset is not None and features is None and (path.is_file() or path.suffix.lower() in TABLES):
            if not path.exists():
                raise FileNotFoundError(f"there is no file {path}, and no data set of that name")
            features, dataset = path, None
        named = {"features": features, "labels": self.labels, "edges": self.edges}
        files = {role: path for role, path in named.items() if path is not None}
        if dataset is None:
            return self._files(files)
        if files or self.label is not None:
            first = next(iter(files), "label")
            raise UserError(f"give either a data set ({dataset!r}) or your own files (--{first}), not both")
        if (path / "config.toml").is_file():
            problem = f"{dataset} is a run folder, not a data set; to resume it: difformer fit --resume {dataset}; "
            problem += f"for its energy: difformer energy {dataset}"
            raise UserError(problem)
        if self.split is not None:
            raise UserError("--split is for your own files; a data set has its splits, chosen by --protocol")
        name = difformer.data.catalogue.entry(dataset).name
        options = read_data_options(self.data, name)
        if self.protocol is not None and options.setdefault("protocol", self.protocol) != self.protocol:
            raise UserError(f"--protocol says {self.protocol!r}, but --data says protocol={options['protocol']}")
        return training.TaskSource(name, None if self.root is None else str(self.root), options)

    def _files(self, files: Mapping[str, Path]) -> training.TaskSource:
        if not files:
            problem = "say what to train on: a data set by name (`difformer datasets` lists them), a table (FILE "
            problem += "--label COLUMN), or --features x.csv --labels y.csv; --edges e.csv gives a graph"
            raise UserError(problem)
        if "features" not in files:
            raise UserError("--features is missing: your own data need a table of features")
        if self.protocol is not None or self.root is not None:
            given = "--protocol" if self.protocol is not None else "--root"
            raise UserError(f"{given} belongs to a data set; with your own files, --split and --data say how to split")
        options = read_data_options(self.data, None)
        if self.label is not None:
            columns = [word.strip() for word in self.label.split(",")]
            chosen: Any = columns if len(columns) > 1 else columns[0]
            if options.setdefault("label_columns", chosen) != chosen:
                raise UserError(f"--label says {self.label}, but --data says label_columns={options['label_columns']}")
        _check_files(**files, split=self.split)
        if self.split is not None:
            options["splits"] = str(self.split.resolve())
        elif not options.keys() & {"splits", "seeds"}:
            # One split per seed, as data sets have them: otherwise ± would measure initialisations only. A split that
            # a file brings along, in a column or as masks, overrides this.
            options["seeds"] = list(range(OWN_SPLITS))
        return training.TaskSource(options=options, files={role: str(path) for role, path in files.items()})


def _check_files(**files: Path | None) -> None:
    for role, path in files.items():
        if path is not None and not path.exists():
            raise FileNotFoundError(f"--{role}: there is no file {path}")


def load(source: training.TaskSource) -> difformer.data.Task:
    """The task, whose features and targets must be finite."""
    task = source.load()
    task.check_finite()
    return task


@dataclass(frozen=True)
class Request:
    """What is to be trained."""

    settings: dict[str, Any]  # settings that differ from the defaults: the preset's, overridden by the command line's
    config: TrainConfig  # the complete configuration
    source: training.TaskSource | None  # of the task, with the data options of the preset; None for a partitioned task
    preset: Preset | None  # the preset, if one is used
    origin: str | None  # the preset as it was named: its name, or the path of its file
    overrides: dict[str, Any]  # what the command line changes in the preset
    automatic: bool  # whether neither a model nor a preset was named, so that the best preset was taken


def setting_words(settings: list[str] | None, metric: str | None, batch_size: int | None = None) -> list[str]:
    """All settings as ``KEY=VALUE``; an unknown metric is refused before any data are read."""
    words = list(settings or ())
    if metric is not None:
        words.append(f"metric={training.metrics.find_metric(metric.lower()).name}")
    return words if batch_size is None else [*words, f"batch_size={batch_size}"]


def read_request(
    source: training.TaskSource | None, model: str | None, preset: str | None, words: list[str], with_attention: bool
) -> Request:
    """The configuration: defaults, overridden by the preset, overridden by the words of the command line.

    Without a model and a preset, the best preset for the data set is taken, see `best_preset`.
    """
    dataset, found, automatic = None if source is None else source.name, None, False
    if preset is None and source is not None and dataset is None and model in (None, DEFAULT_MODEL):
        preset = OWN_PRESET
    if preset is not None:
        found = _read_named_preset(preset, model, dataset, protocol_of(source))
    elif model is None and source is not None:
        found = best_preset(source, words, with_attention)
        preset, automatic = (None, False) if found is None else (found.name, True)
    chosen = model or (DEFAULT_MODEL if found is None else found.model)
    known, typed = {} if found is None else found.settings, read_settings(words, chosen)
    merged, changed = {**known, **typed}, {k: v for k, v in typed.items() if k not in known or known[k] != v}
    if source is not None and found is not None and dataset == found.dataset:  # it may need ``features=raw``
        source = replace(source, options={**found.data, **source.options})
    return Request(merged, make_config(chosen, merged), source, found, preset, changed, automatic)


def protocol_of(source: training.TaskSource | None) -> str | None:
    """The protocol of the data set: the requested one, or its default."""
    if source is None or source.name is None:
        return None
    return source.options.get("protocol") or next(iter(difformer.data.catalogue.entry(source.name).protocols), None)


def best_preset(source: training.TaskSource, words: list[str], with_attention: bool) -> Preset | None:
    """The DIFFormer preset with the best validation score for a data set and its protocol, or None.

    Presets of the common search come first, then those whose scores are means over more runs, then better scores.
    Models that fix a setting in `words` are left out; if `words` sets the diffusivity, only the default model remains.
    With `with_attention`, models without attention are left out.
    """
    protocol, typed = protocol_of(source), {word.partition("=")[0].strip().replace("-", "_") for word in words}

    def suits(preset: Preset) -> bool:
        info = zoo.find(preset.model)
        if preset.dataset != source.name or preset.validation is None or info.group != "difformer":
            return False
        if preset.protocol not in (None, protocol) or preset.variant not in (None, protocol, preset.metric):
            return False
        if with_attention and info.fixed.get("diffusivity", "") is None:
            return False
        return not typed & ({*info.fixed} if preset.model == DEFAULT_MODEL else {*info.fixed, "diffusivity"})

    def rank(preset: Preset) -> tuple[bool, int, float]:
        assert preset.validation is not None
        higher = training.metrics.find_metric(preset.metric or "accuracy").higher_is_better
        return preset.name == "common", preset.runs or 0, preset.validation if higher else -preset.validation

    return max(filter(suits, experiments.presets.load_presets()), key=rank, default=None)


def read_settings(words: list[str], model: str) -> dict[str, Any]:
    """``["hidden_channels=64", "patience=none"]`` as one mapping of settings."""
    fields, options = parse_settings(words, model)
    return {**fields, **options}


def _read_named_preset(name: str, model: str | None, dataset: str | None, protocol: str | None) -> Preset:
    """A preset of the package by its name, or of a file by its path; one that is for the protocol comes first."""
    if name.endswith(".toml") or Path(name).is_file():
        found = experiments.read_preset(name)
        if model is not None and model != found.model:
            raise UserError(f"--preset: {name} is for model {found.model!r}, but --model says {model!r}")
        return found
    if dataset is None and name != OWN_PRESET:
        raise UserError(f"--preset: {name!r} belongs to a data set; with your own files give a .toml file")
    dataset, known = dataset or OWN_PRESET, {one.identity: one for one in experiments.presets.load_presets()}
    if model is None:
        ours = (name, DEFAULT_MODEL, dataset) in (identity[:3] for identity in known)
        model = DEFAULT_MODEL if ours else PAPER_MODEL
    of_protocol = known.get((name, model, dataset, protocol))
    return of_protocol or experiments.find_preset(name, model=model, dataset=dataset)


_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_EXPECTED = {"int": "a whole number", "float": "a number", "bool": "true or false", "None": "none"}


def read_data_options(words: list[str] | None, dataset: str | None) -> dict[str, Any]:
    """``--data KEY=VALUE`` of a data set, or of your files if `dataset` is None.

    Strings are converted as the reader's annotations say: ``int | None`` is a whole number or the word none,
    ``Sequence[float]`` numbers separated by commas, ``Column`` a name or a number.
    """
    given = key_values(words, "--data")
    if not given:
        return {}
    registry = difformer.data.registry
    if dataset is None:
        kinds, whose = registry.annotations_of(difformer.data.from_files), "own files have"
        takes = f"they take {', '.join(file_options()[3:])}"
    else:
        kinds, whose = registry.annotations_of(registry.loader_of(dataset)), f"data set {dataset!r} has"
        takes = f"it takes, with these defaults, {listed(difformer.data.dataset_options(dataset))}"
    for key in given:
        if key not in kinds:
            raise UserError(f"--data: {whose} no option {key!r}; {did_you_mean(key, kinds)}{takes}")
    return {key: _value(key, text, kinds[key]) for key, text in given.items()}


def _value(key: str, text: str, annotation: str) -> Any:
    """The value of a string for an annotation such as ``Column | Sequence[Column] | None``."""
    kinds = [part.strip() for part in annotation.split("|")]
    single = [kind for kind in kinds if not kind.startswith(("Sequence[", "Mapping["))]
    if "None" in single and text.lower() == "none":
        return None
    inner = [kind[len("Sequence[") : -1] for kind in kinds if kind.startswith("Sequence[")]
    if inner and ("," in text or single in ([], ["None"])):
        return [_one(key, word.strip(), inner, text) for word in text.split(",")]
    return _one(key, text, single, text)


def _one(key: str, text: str, kinds: list[str], whole: str) -> Any:
    if "bool" in kinds and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    for kind, number in (("int", int), ("Column", int), ("float", float)):
        if kind in kinds:
            try:
                return number(text)
            except ValueError:
                continue
    if all(kind in _EXPECTED for kind in kinds):
        expected = " or ".join(_EXPECTED[kind] for kind in kinds)
        came = repr(text) if text == whole else f"{text!r} in {whole!r}"
        raise UserError(f"--data {key}: expected {expected}, got {came}")
    return text.replace("\\t", "\t") if key == "delimiter" else text


# Options that describe how files are written; those of the files of the training also hold for new ones.
_FORMAT = ("delimiter", "header", "encoding", "decimal", "comment")


@dataclass(frozen=True)
class NewRows:
    """The options that give new rows to a trained model."""

    features: Path | None = member("Table of new rows, with the columns used in training.")
    edges: Path | None = member("Edges of the new rows, among themselves or to instances of the run.")

    def read(self, run: Path, output: Output, *, together: bool = True) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The rows as arguments of `difformer.training.predict`, and their ids; nothing without ``--features``.

        Notes about them are printed. With `together`, edges may name the run's instances too.
        """
        features, edges = self.features, self.edges
        if features is None:
            if edges is not None or not together:
                option = "--alone" if edges is None else "--edges"
                raise UserError(f"{option} is about new instances: give --features too")
            return {}, ()
        from difformer.data.edges import tidy_edges
        from difformer.data.own.csv_files import TextFormat
        from difformer.data.own.features import Rows, id_column_name, read_features
        from difformer.data.own.graphs import read_edges

        folder = training.RunFolder.open(run)
        task, source = folder.task(), folder.source
        if task.kind != "nodes":
            problem = f"--features: {run} was trained on {task.kind}, and new rows need a run on nodes; from Python, "
            problem += f"difformer.training.predict takes new {'graphs' if task.kind == 'graphs' else 'snapshots'}"
            raise UserError(problem)
        _check_files(features=features, edges=edges)
        own_files, options = ({}, {}) if source is None or not source.files else (source.files, source.options)

        def form(role: str) -> dict[str, Any]:
            given = {key: value for key, value in options.items() if key in _FORMAT}
            return {key: value.get(role) if isinstance(value, Mapping) else value for key, value in given.items()}

        ids, name = options.get("ids"), None
        if task.instance_names and own_files:
            format, names = TextFormat(**form("features")), task.instance_names
            name = id_column_name(own_files["features"], ids=ids, names=names, format=format)
        known: dict[str, Any] = {"columns": task.feature_names, "num_columns": task.num_features, "ids": ids}
        found = read_features(features, **known, preprocessing=task.preprocessing, id_name=name, **form("features"))
        notes = list(found.notes) if task.preprocessing is not None else []  # unseen categories, new columns
        index = weight = None
        if edges is None:
            notes += _familiar(task, found)
        else:
            count = (task.num_instances if together else 0) + found.x.shape[0]
            rows = Rows(count, _index(task, found, together))
            index, weight, _ = read_edges(edges, rows, options.get("edge_columns"), TextFormat(**form("edges")))
            # Where the nodes of the task have self-loops, new nodes get theirs later, so none are added here.
            kept: dict[str, Any] = {"self_loops": "remove", "duplicates": options.get("duplicates", "error")}
            kept["directed"] = bool(options.get("directed", False))
            index, weight = tidy_edges(index, weight, num_nodes=count, **kept)
        for note in notes:
            output.remark(f"note: {with_options(note)}")
        return {"features": found.x, "edges": index, "edge_weight": weight}, tuple(found.ids)


def _familiar(task: difformer.data.Task, found: Any) -> list[str]:
    """Remarks about new rows without edges: a graph they do not join, ids that are known or repeated."""
    known, notes = set(task.instance_names), []
    if task.edge_index is not None:
        notes.append("new rows have no edges, although the run has a graph; --edges joins them to its instances")
    if old := [name for name in found.ids if name in known]:
        few = ", ".join(map(repr, old[:3])) + ", …" * (len(old) > 3)
        said = f"{len(old)} of {len(found.ids)} rows of {found.path} have the id of an instance of the run ({few}); "
        notes.append(
            f"{said}they are treated as new instances (without --features the run's own instances are predicted)"
        )
    if twice := [name for name, number in Counter(found.ids).items() if number > 1]:
        notes.append(f"{found.path} has {len(twice)} id{'s' * (len(twice) > 1)} in several rows, e.g. {twice[0]!r}")
    return notes


def _index(task: difformer.data.Task, found: Any, together: bool) -> dict[str, int] | None:
    """Position of every id, the run's instances first; None where rows are known by number."""
    old, new = task.instance_names if together else (), found.index or {}
    if together and bool(new) != bool(old):
        known, unknown = ("new rows", "instances of the run") if new else ("instances of the run", "new rows")
        problem = f"the {known} have ids and the {unknown} have none, so edges cannot name both"
        raise DataError(problem, path=found.path)
    for name in old:
        if name in new:
            problem = f"id {name!r} is that of an instance of the run, so edges to {name!r} would mean either: "
            problem += "rename this row, or remove it; edges to the id then mean the instance of the run"
            if found.table is None:
                raise DataError(problem, path=found.path, row=new[name])
            raise found.table.error(problem, new[name], found.table.ids)
    return {name: place for place, name in enumerate([*old, *new])} or None
