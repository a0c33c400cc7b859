"""Descriptions of data and settings before a training, and of results after it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from difformer import data, experiments, training, zoo
from difformer.cli.command import with_options
from difformer.cli.inputs import DEFAULT_MODEL, Request, protocol_of
from difformer.cli.output import PARTS, Output, clock_time, counted, listed, mean_and_deviation, score
from difformer.experiments.presets import PREFERRED
from difformer.training.config import TrainConfig, knn_of

if TYPE_CHECKING:
    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.process_group import Ranks
    from difformer.distributed.rank_runs import Sent

# Settings that only change how long a model is trained.
LENGTH = frozenset({"epochs", "patience", "eval_every"})


def describe_task(task: data.Task, config: TrainConfig) -> list[str]:
    """Size, protocol and notes in a few lines, with the metric and the graph of a configuration."""
    facts, metric = task.facts(), task.metric if config.metric == "auto" else config.metric
    parts = ("graphs", "snapshots", "nodes", "edges", "features", "classes", "targets")
    sizes = [counted(int(facts[key]), key) for key in parts if key in facts]
    split, several = "/".join(map(str, task.splits[0].sizes())), len(task.splits) > 1
    lines = [
        f"{task.name}: {', '.join(sizes)}",
        f"protocol: {training.metrics.protocol_text(task.protocol, metric)}",
        f"train/valid/test: {split}" + (f", {len(task.splits)} splits" if several else ""),
    ]
    if task.preprocessing is not None:
        lines += ["columns:", *(f"  {line}" for line in task.preprocessing.describe().splitlines())]
    return lines + [f"note: {with_options(note)}" for note in (*task.notes, *_missing_edges(task, config))]


def _missing_edges(task: data.Task, config: TrainConfig) -> list[str]:
    """A note if there are no edges: for a model that works over them, and for one that has a sharper form."""
    if knn_of(config.graph) is not None or (task.edge_index is not None and config.graph == "given"):
        return []
    few = task.num_nodes <= training.spaces.MOST_ROWS
    if few and config.model == "difformer" and "diffusivity" not in config.options:
        return [
            "no graph: --model difformer-sharp lets attention select near instances, where the default spreads "
            "it almost evenly; train both and see with `difformer compare`"
        ]
    if not zoo.find(config.model).needs_graph:
        return []
    return [
        f"{config.model} passes messages along edges, but there are no edges here, so every instance is on its "
        f"own; --set graph=knn:5 connects each to its nearest neighbours"
        + ("" if task.edge_index is not None else ", --edges FILE gives a graph for your own files")
    ]


def describe_request(request: Request) -> list[str]:
    """Model, settings, where they come from, and notes."""
    model = request.config.model
    lines = [f"model: {model} ({listed(request.settings) or 'defaults'})"]
    if request.preset is not None:
        lines += _origin(request, request.preset)
    elif not set(request.settings) - LENGTH:
        lines.append(f"untuned: defaults of {model}{_other_presets(request)}")
    return lines


def _other_presets(request: Request) -> str:
    """Which presets could be used in place of the defaults."""
    model, dataset = request.config.model, request.dataset
    known = [
        p.name for p in experiments.presets.load_presets() if (p.model, p.dataset, p.variant) == (model, dataset, None)
    ]
    if not known:
        return f", no preset for {dataset or ('a partitioned task' if request.source is None else 'your own data')}"
    known.sort(key=lambda name: PREFERRED.index(name) if name in PREFERRED else len(PREFERRED))
    return f"; presets for {dataset}: {', '.join(known)} (add --preset {known[0]})"


def _origin(request: Request, preset: experiments.Preset) -> list[str]:
    """What a preset is, how it was found, and whether it was chosen for this request."""
    source, lines = request.source, [f"preset: {preset.describe()}"]
    if request.automatic:
        lines.append(
            f"chosen because it has the best validation score of the DIFFormer presets {preset.name!r} for "
            f"{preset.dataset} with as many runs; --model {DEFAULT_MODEL} trains the untuned defaults"
        )
    lines += [f"found by: {preset.command}"] if preset.command else []
    lines += [f"note: {preset.note}"] if preset.note else []
    if request.dataset is not None and preset.dataset != request.dataset:
        lines.append(f"note: these settings were chosen on {preset.dataset}, not on {request.dataset}")
    if preset.protocol is not None and protocol_of(source) != preset.protocol:
        lines.append(
            f"note: these settings belong to protocol {preset.protocol!r}; add --protocol {preset.protocol} for it"
        )
    if source is not None and source.name == preset.dataset:
        given = {key: value for key, value in preset.data.items() if source.options.get(key) != value}
        if taken := listed({key: value for key, value in preset.data.items() if key not in given}):
            lines.append(f"data: {taken}, from the preset")
        lines += [f"note: these settings were found with {listed(given)}"] if given else []
    return lines


def meanings(documented: Callable[..., Any], names: Iterable[str]) -> dict[str, str]:
    """Arguments of a function or class with their explanations, from the ``Args:`` section of its docstring.

    Arguments that a class does not document are taken from its base classes.
    """
    explained: dict[str, str] = {}
    for one in reversed(documented.__mro__) if isinstance(documented, type) else (documented,):
        section = re.split(r"\n(?=\S)", inspect.cleandoc(one.__doc__ or "").partition("\nArgs:\n")[2])[0]
        for name, text in re.findall(r"^ {4}\*{0,2}(\w+)(?: \([^)]*\))?: (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
            plain = re.sub(r"``\"?([^`]*?)\"?``", r"\1", " ".join(text.split()))
            explained[name] = plain.replace("`", "")
    return {name: explained.get(name, "") for name in names}


def report_results(
    found: training.Summary | tuple[training.Summary, Sent], output: Output, about: Mapping[str, Any], *notes: str
) -> None:
    """The table of seeds, the result in one line, notes, the run folder, and what ranks sent each other."""
    summary, sent = found if isinstance(found, tuple) else (found, None)
    about = about if sent is None else {**about, "sent": vars(sent)}
    output.json({**about, **summary.to_dict(), "notes": [*summary.notes, *notes], "run": summary.folder})
    rows = []
    for r in summary.results:
        epoch, scores = f"{r['best_epoch']}/{r['epochs']}", [score(r[part]) for part in PARTS]
        rows.append([r["seed"], r["split"], epoch, *scores, clock_time(r["seconds"])])
    output.table(["seed", "split", "best epoch", *PARTS, "time"], rows)
    output.say(headline(summary))
    for note in (*summary.notes, *notes):
        output.say(f"note: {note}")
    if about.get("preset"):
        changed = listed(about.get("overrides", {}))
        output.say(f"settings: preset {about['preset']}{', with ' * bool(changed)}{changed}")
    output.say(f"run folder: {summary.folder}")
    if sent is not None:
        output.say(describe_sent(sent))


def headline(summary: training.Summary) -> str:
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


def describe_seeds(task: data.Task, config: TrainConfig, seeds: int, ranks: Ranks) -> str:
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
    idle, backend = ranks.size - len(sizes), "NCCL" if ranks.device.type == "cuda" else "gloo"
    remedy = f"`difformer partition` with --parts {ranks.size} would give each one"
    return [
        f"{about['name']}: {about['num_nodes']:,} nodes, {about['num_edges'] or 0:,} edges, {about['num_features']:,} "
        f"features, in {len(sizes)} parts of {min(sizes):,} to {max(sizes):,} nodes ({about['method']})",
        f"protocol: {about['protocol']}",
        partition.quality.describe(),
        f"ranks: {ranks.size} ({ranks.device.type}, {backend})",
        *([f"note: {idle} of {ranks.size} ranks have no part; {remedy}"] if idle > 0 else []),
    ]


def describe_sent(sent: Sent) -> str:
    """Bytes by kind, in one line."""
    kinds, once = (
        ", ".join(f"{kind} {decimal(round(count))}" for kind, count in counts.items() if count >= 1)
        for counts in (sent.by_kind, sent.once)
    )
    if not kinds:
        return "sent: nothing, there was one rank"
    note = " (ring: keys and values of all nodes, O(N d))" if sent.by_kind.get("ring") else ""
    return f"sent per epoch by the busiest of {sent.ranks} ranks: {kinds}{note}; once: {once or 'nothing'}"
