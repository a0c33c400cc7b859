"""Descriptions of data and settings before a training, and of results after it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from difformer import data, experiments, training, zoo
from difformer.cli.command import with_options
from difformer.cli.inputs import DEFAULT_MODEL, OWN_PRESET, Request, protocol_of
from difformer.cli.output import PARTS, Output, clock_time, counted, listed, mean_and_deviation, score
from difformer.experiments.presets import PREFERRED
from difformer.training.config import TrainConfig, knn_of

if TYPE_CHECKING:
    from difformer.distributed.partition_folder import Partition
    from difformer.distributed.process_group import Ranks
    from difformer.distributed.rank_runs import Sent

# Settings that only change how long a model is trained.
LENGTH = frozenset({"epochs", "patience", "eval_every"})


def describe_task(task: data.Task, config: TrainConfig | None = None, seeds: Iterable[int] = ()) -> list[str]:
    """Size, protocol, splits that the seeds use, target, notes (leaks first) and columns."""
    facts, metric = task.facts(), task.metric if config is None or config.metric == "auto" else config.metric
    nodes = "nodes" if task.kind != "nodes" or task.edge_index is not None else "rows"
    parts = ("graphs", "snapshots", "nodes", "edges", "features", "classes", "targets")
    sizes = [counted(int(facts[key]), nodes if key == "nodes" else key) for key in parts if key in facts]
    train, valid, test = (f"{size:,}" for size in task.splits[0].sizes())
    splits = len(task.splits)
    used = len({seed % splits for seed in seeds}) or splits
    several = f", {splits} splits" if used == splits else f", {used} of {splits} splits (--seeds {splits} for all)"
    lines = [
        f"{task.name}: {', '.join(sizes)}",
        f"protocol: {training.metrics.protocol_text(task.protocol, metric)}",
        f"train/valid/test: {train}, {valid} and {test} {sizes[0].split()[1]}" + several * (splits > 1),
    ]
    if task.protocol.startswith("own data"):
        lines.append(f"target: {_target(task)}")
    suspect, advice = leaks(task), [] if config is None else _missing_edges(task, config)
    notes = sorted(task.notes, key=lambda note: note not in suspect)
    lines += [f"note: {with_options(note)}" for note in (*notes, *advice)]
    if task.preprocessing is not None:
        lines += ["columns:", *(f"  {line}" for line in task.preprocessing.describe().splitlines())]
    return lines


def _target(task: data.Task) -> str:
    """What is predicted, as your own labels were understood."""
    if task.problem != "multiclass":
        return "a number (regression)" if task.problem == "regression" else "several labels, each yes or no"
    names, count = ", ".join(task.class_names[:6]), len(task.class_names)
    numbers = count > 2 and all(name.lstrip("-").isdigit() for name in task.class_names)
    guess = "; if these are quantities, add --data problem=regression" if numbers else ""
    return f"one of {count} classes ({names}{', …' * (count > 6)}){guess}"


def leaks(task: data.Task) -> list[str]:
    """Notes on columns that determine the label, and may be copies of it."""
    from difformer.data.own.targets import DETERMINES

    return [note for note in task.notes if DETERMINES in note]


def _missing_edges(task: data.Task, config: TrainConfig) -> list[str]:
    """A note if there are no edges: for a model that works over them, and for one that has a sharper form."""
    if knn_of(config.graph) is not None or (task.edge_index is not None and config.graph == "given"):
        return []
    few = task.num_nodes <= training.spaces.MOST_ROWS
    if few and config.model == DEFAULT_MODEL and "diffusivity" not in config.options:
        sharp = "--model difformer-sharp lets attention select near instances"
        return [f"no graph: {sharp}; train both and see with `difformer compare`"]
    if not zoo.find(config.model).needs_graph:
        return []
    return [
        f"{config.model} passes messages along edges, but there are no edges here, so instances do not exchange "
        f"anything; --set graph=knn:5 connects each to its nearest neighbours"
        + ("" if task.edge_index is not None else ", --edges FILE gives a graph for your own files")
    ]


def describe_request(request: Request, task_name: str) -> list[str]:
    """Model, settings, where they come from, and notes."""
    model = request.config.model
    lines = [f"model: {model} ({listed(request.settings) or 'defaults'})"]
    if request.preset is not None:
        lines += _origin(request, request.preset, task_name)
    elif not set(request.settings) - LENGTH:
        lines.append(f"untuned: defaults of {model}{_other_presets(request)}")
    ignored = ("epochs", "learning_rate", "weight_decay")
    unused = {key: value for key, value in request.settings.items() if key in ignored}
    if unused and not zoo.find(model).trained:
        lines.append(f"note: {model} trains nothing, so {listed(unused)} changes nothing")
    return lines


def _other_presets(request: Request) -> str:
    """Which presets could be used in place of the defaults."""
    model, dataset = request.config.model, None if request.source is None else request.source.name
    known = [p for p in experiments.presets.load_presets() if (p.model, p.dataset, p.variant) == (model, dataset, None)]
    if not known:
        return f", no preset for {dataset or ('a partitioned task' if request.source is None else 'your own data')}"
    known.sort(key=lambda p: PREFERRED.index(p.name) if p.name in PREFERRED else len(PREFERRED))
    other = [p.protocol if p.protocol not in (None, protocol_of(request.source)) else "" for p in known]
    names = [p.name + f" (of protocol {o})" * bool(o) for p, o in zip(known, other, strict=True)]
    words = f"--preset {known[0].name}" + f" --protocol {other[0]}" * bool(other[0])
    return f"; presets for {dataset}: {', '.join(names)} (add {words})"


def _origin(request: Request, preset: experiments.Preset, task_name: str) -> list[str]:
    """What a preset is, and whether it suits this request; scores are shown only if they are of the same data set."""
    source, here = request.source, preset.dataset == task_name
    lines = [f"preset: {preset.describe() if here else f'{preset.name}: {preset.source}'}"]
    if request.automatic:
        better = f"it has the best validation score of the tuned DIFFormer models for {preset.dataset}"
        better += ", and attention off" * (preset.model == "difformer-off")
        lines.append(f"{better}; --model {DEFAULT_MODEL} trains the untuned defaults")
    if here and preset.note:
        lines.append(f"note: {preset.note}")
    if not here and preset.dataset != OWN_PRESET:
        lines.append(f"note: these settings were chosen on {preset.dataset}, not on {task_name}")
    if preset.protocol is not None and protocol_of(source) != preset.protocol:
        belong = f"note: these settings belong to protocol {preset.protocol!r}"
        lines.append(f"{belong}; add --protocol {preset.protocol} for it")
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
    output.json({**about, **summary.to_dict(), "notes": [*notes, *summary.notes], "run": summary.folder})
    rows = []
    for r in summary.results:
        epoch, scores = f"{r['best_epoch']}/{r['epochs']}", [score(r[part]) for part in PARTS]
        rows.append([r["seed"], r["split"], epoch, *scores, clock_time(r["seconds"])])
    output.table(["seed", "split", "best epoch", *PARTS, "time"], rows)
    output.say(headline(summary))
    for note in (*notes, *summary.notes):
        output.say(f"note: {with_options(note)}")
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
