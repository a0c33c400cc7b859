"""What is said about data and settings before a training, and about results after it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from difformer.cli.command import with_options
from difformer.cli.inputs import DEFAULT_MODEL, PAPER_MODEL
from difformer.cli.output import Output, clock_time, counted, listed, mean_and_deviation, score, shown

if TYPE_CHECKING:
    from difformer.cli.inputs import Request
    from difformer.data import Task
    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.process_group import Ranks
    from difformer.distributed.rank_runs import Sent
    from difformer.training import Summary, TrainConfig
    from difformer.training.run_folder import TaskSource

# Settings of the training that also a model without parameters uses; all others concern an optimiser.
WITHOUT_TRAINING = ("batch_size", "metric", "graph", "precision")
# Settings of the length of a training, which choose no model.
LENGTH = frozenset({"epochs", "patience", "eval_every"})


def describe_task(task: Task, config: TrainConfig | None = None) -> list[str]:
    """Size, protocol and notes in a few lines; with what a configuration says about metric and graph."""
    from difformer.training.metrics import protocol_text

    facts, metric = task.facts(), "auto" if config is None else config.metric
    parts = ("graphs", "snapshots", "nodes", "edges", "features", "classes", "targets")
    sizes = [counted(int(facts[key]), key) for key in parts if key in facts]
    split = "/".join(str(size) for size in task.splits[0].sizes())
    protocol = protocol_text(task.protocol, task.metric if metric == "auto" else metric)
    lines = [f"{task.name}: {', '.join(sizes)}", f"protocol: {protocol}"]
    lines.append(f"train/valid/test: {split}" + (f", {len(task.splits)} splits" if len(task.splits) > 1 else ""))
    if task.preprocessing is not None:
        lines += ["columns:", *(f"  {line}" for line in task.preprocessing.describe().splitlines())]
    notes = [*task.notes, *([] if config is None else _missing_edges(task, config))]
    return lines + [f"note: {with_options(note)}" for note in notes]


def _missing_edges(task: Task, config: TrainConfig) -> list[str]:
    """A note if there are no edges: for a model that works over them, and for one that has a sharper form."""
    from difformer.training.config import knn_of
    from difformer.training.spaces import MOST_ROWS
    from difformer.zoo import find

    if knn_of(config.graph) is not None or (task.edge_index is not None and config.graph == "given"):
        return []
    if config.model == "difformer" and "diffusivity" not in config.options and task.num_nodes <= MOST_ROWS:
        return [
            "no graph: --model difformer-sharp lets attention select near instances, where the default spreads "
            "it almost evenly; train both and see with `difformer compare`"
        ]
    if not find(config.model).needs_graph:
        return []
    return [
        f"{config.model} passes messages along edges, but there are no edges here, so every instance is on its "
        f"own; --set graph=knn:5 connects each to its nearest neighbours"
        + ("" if task.edge_index is not None else ", --edges FILE gives a graph for your own files")
    ]


def describe_request(request: Request, source: TaskSource | None) -> list[str]:
    """Model, settings, where they come from, and notes; a partitioned task has no source."""
    from difformer.training.config import TrainConfig
    from difformer.zoo import find

    model, chosen = request.config.model, {} if request.preset is None else request.preset.settings
    lines = [f"model: {model} ({listed(request.settings) or 'defaults'})"]
    if request.preset is not None:
        lines += _origin(request, source)
    elif not set(request.settings) - LENGTH:
        lines.append(f"untuned: defaults of {model}{_other_presets(request, source)}")
    if not find(model).trained:
        of_training = vars(TrainConfig()).keys() - {"model", "options", *WITHOUT_TRAINING}
        typed = listed({k: v for k, v in request.settings.items() if k in of_training and chosen.get(k) != v})
        lines += [f"note: {model} trains nothing, so {typed} changes nothing"] if typed else []
    return lines


def _other_presets(request: Request, source: TaskSource | None) -> str:
    """Which presets could be used in place of the defaults."""
    from difformer.experiments.presets import PREFERRED, load_presets

    model, dataset = request.config.model, request.dataset
    every = [p for p in load_presets() if (p.dataset, p.variant) == (dataset, None)]
    known, whose = [p for p in every if p.model == model], ""
    if not known and model == DEFAULT_MODEL:
        known, whose = [p for p in every if p.model == PAPER_MODEL], f" (of {PAPER_MODEL})"
    if not known:
        return f", no preset for {dataset or ('a partitioned task' if source is None else 'your own data')}"
    known.sort(key=lambda preset: PREFERRED.index(preset.name) if preset.name in PREFERRED else len(PREFERRED))
    other = [p.protocol if p.protocol not in (None, _protocol(source)) else None for p in known]
    names = [f"{p.name} under protocol {o}" if o else p.name for p, o in zip(known, other, strict=True)]
    words = f"--preset {known[0].name}" + (f" --protocol {other[0]}" if other[0] else "")
    return f"; presets for {dataset}{whose}: {', '.join(names)} (add {words})"


def _origin(request: Request, source: TaskSource | None) -> list[str]:
    """What a preset is, how it was found, and whether it was chosen for this request."""
    preset = request.preset
    assert preset is not None
    lines = [f"preset: {preset.describe()}"]
    lines += [f"found by: {preset.found_by}"] if preset.command else []
    lines += [f"note: {preset.note}"] if preset.note else []
    if request.dataset is not None and preset.dataset != request.dataset:
        lines.append(f"note: these settings were chosen on {preset.dataset}, not on {request.dataset}")
    if preset.protocol is not None and _protocol(source) != preset.protocol:
        lines.append(
            f"note: these settings belong to protocol {preset.protocol!r}; add --protocol {preset.protocol} for it"
        )
    if source is not None and source.name == preset.dataset:
        from difformer.data.registry import dataset_options

        if taken := listed({key: value for key, value in preset.data.items() if source.options.get(key) == value}):
            lines.append(f"data: {taken}, from the preset")
        here = {**dataset_options(preset.dataset), **source.options}
        found = {key: value for key, value in preset.data_options.items() if key != "protocol"}
        if other := [f"{key}={value}" for key, value in found.items() if shown(here.get(key)) != value]:
            words = " ".join(f"--data {option}" for option in other)
            lines.append(f"note: these settings were found with {', '.join(other)}; add {words} for it")
    return lines


def _protocol(source: TaskSource | None) -> str | None:
    """The protocol of the data set: the requested one, or its default."""
    if source is None or source.name is None:
        return None
    from difformer.data.catalogue import entry

    return source.options.get("protocol") or next(iter(entry(source.name).protocols), None)


def meanings(documented: Callable[..., Any]) -> dict[str, str]:
    """Every argument of a function or class with its explanation, from the ``Args:`` section of its docstring.

    A class that does not explain an argument leaves it to its bases.
    """
    explained: dict[str, str] = {}
    for one in reversed(documented.__mro__) if isinstance(documented, type) else (documented,):
        section = re.split(r"\n(?=\S)", inspect.cleandoc(one.__doc__ or "").partition("\nArgs:\n")[2])[0]
        for name, text in re.findall(r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?: (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
            plain = re.sub(r"``\"?([^`]*?)\"?``", r"\1", " ".join(text.split()))
            explained[name] = plain.replace("`", "")
    return explained


def report_results(found: Summary | tuple[Summary, Sent], output: Output, about: Mapping[str, Any]) -> None:
    """The table of seeds, the result in one line, notes, the run folder, and what ranks sent each other."""
    summary, sent = found if isinstance(found, tuple) else (found, None)
    about = about if sent is None else {**about, "sent": vars(sent)}
    output.json({**about, **summary.to_dict(), "notes": list(summary.notes), "run": summary.folder})
    parts = ("train", "valid", "test")
    rows = []
    for r in summary.results:
        epoch, scores = f"{r['best_epoch']}/{r['epochs']}", [score(r[part]) for part in parts]
        rows.append([r["seed"], r["split"], epoch, *scores, clock_time(r["seconds"])])
    output.table(["seed", "split", "best epoch", *parts, "time"], rows)
    output.say(headline(summary))
    for note in summary.notes:
        output.say(f"note: {note}")
    if about.get("preset"):
        changed = listed(about.get("overrides", {}))
        output.say(f"settings: preset {about['preset']}{', with ' * bool(changed)}{changed}")
    if summary.folder is not None:
        output.say(f"run folder: {summary.folder}")
    if sent is not None:
        output.say(describe_sent(sent))


def headline(summary: Summary) -> str:
    """The result in one line."""
    runs = len(summary.results)
    over = f"mean ± standard deviation over {runs} seeds{variety(summary.results)}" if runs > 1 else "one seed"
    return f"test {summary.metric}: {mean_and_deviation(summary.mean('test'), summary.std('test'), runs)} ({over})"


def variety(results: Sequence[Mapping[str, Any]]) -> str:
    """What differs between seeds besides the initialisation, so that a ± can be read."""
    splits = len({result["split"] for result in results})
    if splits == 1:
        return ", all on one split: ± is over initialisations only"
    return ", each on its own split" if splits == len(results) else f" on {splits} splits"


def describe_seeds(task: Task, config: TrainConfig, seeds: int, ranks: Ranks) -> str:
    """Which rank trains what."""
    from difformer.distributed.rank_trainer import shares_batches

    group = f"ranks: {ranks.size} ({ranks.device.type})"
    if seeds >= ranks.size:
        return f"{group}, {counted(seeds, 'seeds')} spread over them; rank 0's are shown"
    if shares_batches(task, config):
        return f"{group}, each with a share of every batch of graphs"
    hint = "; --shard spreads the graph, so that all ranks train each seed together" if task.kind == "nodes" else ""
    idle = counted(ranks.size - seeds, "ranks")
    return f"note: {ranks.size} ranks for {counted(seeds, 'seeds')}: nothing to do for {idle}{hint}"


def describe_partition(partition: Partition, ranks: Ranks) -> list[str]:
    about, sizes = partition.about, partition.sizes
    backend = "NCCL" if ranks.device.type == "cuda" else "gloo"
    lines = [
        f"{about['name']}: {about['num_nodes']:,} nodes, {about['num_edges'] or 0:,} edges, {about['num_features']:,} "
        f"features, in {len(sizes)} parts of {min(sizes):,} to {max(sizes):,} nodes ({about['method']})",
        f"protocol: {about['protocol']}",
        partition.quality.describe(),
        f"ranks: {ranks.size} ({ranks.device.type}, {backend})",
    ]
    if ranks.size > len(sizes):
        lines.append(
            f"note: {ranks.size - len(sizes)} of {ranks.size} ranks have no part; `difformer partition` with --parts "
            f"{ranks.size} would give each one"
        )
    return lines


def describe_sent(sent: Sent) -> str:
    """Bytes by kind, in one line."""
    from rich.filesize import decimal

    kinds, once = (
        ", ".join(f"{kind} {decimal(round(count))}" for kind, count in counts.items() if count >= 1)
        for counts in (sent.by_kind, sent.once)
    )
    if not kinds:
        return "sent: nothing, there was one rank"
    note = " (ring: keys and values of all nodes, O(N d))" if sent.by_kind.get("ring") else ""
    return f"sent per epoch by the busiest of {sent.ranks} ranks: {kinds}{note}; once: {once or 'nothing'}"
