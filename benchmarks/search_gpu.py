"""One search for every system and data set of the comparison, in slices of a few minutes.

    python -m benchmarks.search_gpu --out found --seconds 480
    python -m benchmarks.search_gpu --out found --seconds 480 --resume earlier/trials.jsonl   # a second slice
    python -m benchmarks.search_gpu --out found --conclude                                    # presets of what is done

The protocol is ``experiments/specs/protocol.toml``: data sets and systems in order of priority, the same number of
trials for each pair. Trials are made in rounds, so that all pairs have had a quarter of their trials before any has
half of them. Each finished trial is a line of ``OUT/trials.jsonl``, on disk before the next stack starts; a process
that is killed loses at most the stack in progress. Trials that are in OUT or in a file given by ``--resume`` are not
repeated. No line contains a test score.

``--conclude`` writes one preset per pair, ``OUT/presets/*.toml``, for

    difformer reproduce citation --presets OUT/presets --preset best --models difformer-s,off,gcn+ --device cuda
    python -m difformer.experiments.presets OUT/presets/*.toml          # into the package
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from scipy.stats import qmc

from difformer.data import DataError, Task, load
from difformer.experiments.cells import complete, defaults_of_base
from difformer.experiments.ledger import append_line, code_version, identity, read_lines
from difformer.experiments.presets import Preset, load_presets, write_preset
from difformer.experiments.spec import SPECS
from difformer.training import NonFiniteLossError, toml, train_one
from difformer.training.config import TrainConfig, make_config
from difformer.training.devices import describe, resolve
from difformer.training.metrics import find_metric
from difformer.training.stack import HYPER, RATES, StackedSetting, apart, train_stacked, unstackable
from difformer.zoo import MODELS, find, options_of

# Axes that may differ within a stack. A graph weight of none cannot be stacked with numbers, so it counts as shape.
STACKED = tuple(name for name in (*RATES, *HYPER) if name != "graph_weight")
ROUNDS = 4
PARENTS = 4  # the best settings so far, which later trials vary
Settings = dict[str, Any]
Line = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """A system on a data set.

    Args:
        key: Key of the system.
        model: Its model.
        dataset: Name of the data set.
        options: Options of the data set.
        features: The choices of ``features``; empty if the data set has none.
        fixed: Settings that define the system.
        base: Model that it is a variant of; empty if it is none.
        axes: Values that compete, ``features`` included.
        variant: Variant of the preset that results.
    """

    key: str
    model: str
    dataset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    variant: str | None = None

    @property
    def name(self) -> str:
        return f"{self.dataset}{f'-{self.variant}' if self.variant else ''}-{self.key}"

    @property
    def id(self) -> str:
        """Identity of the question: trials of two files with the same id answer the same one."""
        return identity(system=self.key, dataset=self.dataset, options=dict(self.options))


def read_protocol(path: Path = SPECS / "protocol.toml") -> dict[str, Any]:
    """The ``[search]`` part of the protocol."""
    found: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))["search"]
    return found


def pairs_of(protocol: Mapping[str, Any], systems: Sequence[str] = (), data: Sequence[str] = ()) -> list[Pair]:
    """Pairs in order of priority: the first system on all data sets, then the second.

    Args:
        protocol: See `read_protocol`.
        systems: Only these, in this order; all if empty.
        data: Only these data sets, in this order, as ``cora`` or ``cora-authors``; all if empty.
    """
    known = {entry["key"]: entry for entry in protocol["system"]}
    sets = {_data_name(entry): entry for entry in protocol["data"]}
    wanted = [name for one in data for name in sets if one in (name, sets[name]["dataset"])] if data else list(sets)
    for option, names, there in (("--systems", systems, known), ("--data", data, {**sets, **_by_set(sets)})):
        for name in names:
            if name not in there:
                raise SystemExit(f"{option}: there is no {name!r}; known are {', '.join(there)}")
    there = [key for key in systems or known if known[key].get("model", key) in MODELS]
    return [_pair(known[key], sets[name], protocol) for key in there for name in wanted]


def _data_name(entry: Mapping[str, Any]) -> str:
    return entry["dataset"] + (f"-{entry['variant']}" if entry.get("variant") else "")


def _by_set(sets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {entry["dataset"]: entry for entry in sets.values()}


def _pair(system: Mapping[str, Any], data: Mapping[str, Any], protocol: Mapping[str, Any]) -> Pair:
    model, fixed = system.get("model", system["key"]), dict(system.get("settings", {}))
    known = {*TrainConfig().to_dict(), *options_of(model)}
    left = {*fixed, *system.get("without", ()), "epochs", "patience"}
    axes = {key: tuple(values) for key, values in find(model).space.items() if key in known and key not in left}
    features = tuple(protocol["features"].get(data["dataset"], ()))
    if features:
        axes["features"] = features
    options, variant = dict(data.get("options", {})), data.get("variant")
    return Pair(system["key"], model, data["dataset"], options, features, fixed, system.get("base", ""), axes, variant)


def first_settings(pair: Pair) -> list[Settings]:
    """Settings that are always among the trials: published ones, and the presets of the package.

    Published settings of tuned classic networks are for raw features, as are most others; presets were found with
    row-normalised ones. Both are tried with each.
    """
    known = {*TrainConfig().to_dict(), *options_of(pair.model)}
    presets = [p for p in load_presets() if p.dataset == pair.dataset and p.model in (pair.model, pair.base)]
    published = find(pair.model).published
    given: list[Mapping[str, Any]] = [published[pair.dataset]] if pair.dataset in published else [*published.values()]
    # A variant of another model starts from that model's defaults.
    start = defaults_of_base(pair.model, pair.base)
    given += [{**start, **one.settings} for one in presets if one.variant in (None, pair.variant)]
    chosen: list[Settings] = []
    for settings in given:
        kept = {k: v for k, v in settings.items() if k in known and k not in ("epochs", "patience", "batch_size")}
        for features in pair.features or (None,):
            one = {**kept, **pair.fixed, **({"features": features} if features else {})}
            if one not in chosen:
                chosen.append(one)
    return chosen


def block_of(pair: Pair, number: int, size: int, total: int, seed: int, done: Sequence[Line]) -> list[Settings]:
    """Settings that share one architecture: Sobol points in the first half, then variations of the best so far.

    Args:
        pair: The pair.
        number: Number of the block.
        size: Settings in it.
        total: Number of blocks.
        seed: Of the search.
        done: Finished trials of the pair.
    """
    shape = {key: values for key, values in pair.axes.items() if key not in STACKED}
    inner = {key: values for key, values in pair.axes.items() if key in STACKED}
    scored = [line for line in done if line["valid"] is not None]
    if number < total // 2 or not scored:
        outside = _sobol(shape, number, 1, seed)
        inside = _sobol(inner, size * number, size, seed + 1)
        return [{**pair.fixed, **outside[0], **one} for one in inside]
    sign = 1 if scored[0]["higher_is_better"] else -1
    best = sorted(scored, key=lambda line: -sign * line["valid"])[:PARENTS]
    draw = random.Random(f"{seed} {number} {pair.name}")
    parent = {**best[number % len(best)]["settings"], **_features(best[number % len(best)])}
    changed = draw.choice(list(shape)) if number % 2 else None
    outside = [{key: parent.get(key, values[0]) for key, values in shape.items()}]
    if changed is not None:
        outside[0][changed] = draw.choice(shape[changed])
    found = []
    for _ in range(size):
        inside = {key: parent.get(key, values[0]) for key, values in inner.items()}
        for key, values in inner.items():
            if draw.random() < 0.5:
                place = values.index(inside[key]) if inside[key] in values else draw.randrange(len(values))
                inside[key] = values[max(0, min(len(values) - 1, place + draw.choice((-1, 1))))]
        # What the parent sets outside of the space, such as a published option, is kept.
        rest = {key: value for key, value in parent.items() if key not in pair.axes}
        found.append({**rest, **pair.fixed, **outside[0], **inside})
    return found


def _features(line: Line) -> Settings:
    return {"features": line["data_options"]["features"]} if "features" in line["data_options"] else {}


def _sobol(axes: Mapping[str, Sequence[Any]], start: int, count: int, seed: int) -> list[Settings]:
    """Points `start` to `start + count` of a Sobol sequence over a grid."""
    if not axes:
        return [{} for _ in range(count)]
    engine = qmc.Sobol(len(axes), scramble=True, seed=seed)
    points = engine.fast_forward(start).random(count) if start else engine.random(count)
    return [
        {
            key: values[min(int(u * len(values)), len(values) - 1)]
            for u, (key, values) in zip(row, axes.items(), strict=True)
        }
        for row in points
    ]


class Search:
    """The state of one call.

    Args:
        out: Folder of ``trials.jsonl``.
        protocol: See `read_protocol`.
        known: Trials of earlier calls.
        device: Where to train.
        deadline: `time.monotonic` after which nothing new starts and running stacks stop.
    """

    def __init__(
        self, out: Path, protocol: Mapping[str, Any], known: Sequence[Line], device: torch.device, deadline: float
    ) -> None:
        self.path, self.protocol, self.device, self.deadline = out / "trials.jsonl", protocol, device, deadline
        self.done: dict[str, dict[str, Line]] = {}
        for line in known:
            self.done.setdefault(line["pair"], {})[line["id"]] = line
        self.tasks: dict[str, Task | None] = {}
        self.made = 0

    def over(self) -> bool:
        return time.monotonic() > self.deadline

    def trials(self, pair: Pair) -> list[Line]:
        return list(self.done.get(pair.id, {}).values())

    def run(self, pairs: Sequence[Pair]) -> None:
        """Round by round, pair by pair."""
        size, total = self.protocol["settings_per_architecture"], self.protocol["trials"]
        for number in range(1, ROUNDS + 1):
            for pair in pairs:
                goal = total * number // ROUNDS
                for settings in self._blocks(pair, size, total, goal):
                    if self.over():
                        return
                    self._train(pair, settings)

    def _blocks(self, pair: Pair, size: int, total: int, goal: int) -> Iterator[list[Settings]]:
        """Settings that are not done yet, until `goal` trials are."""
        first = first_settings(pair)
        yield from self._missing(pair, first)
        number, blocks = 0, max(1, -(-(total - len(first)) // size))
        while len(self.trials(pair)) < goal and number < 4 * blocks and not self.over():
            chosen = block_of(pair, number, size, blocks, self.protocol["seed"], self.trials(pair))
            room = max(1, goal - len(self.trials(pair)))
            yield from self._missing(pair, chosen[:room])
            number += 1

    def _missing(self, pair: Pair, chosen: Sequence[Settings]) -> Iterator[list[Settings]]:
        """Settings without a trial, in groups that can train as one stack."""
        known = set(self.done.get(pair.id, {}))
        groups: dict[str, list[Settings]] = {}
        for settings in chosen:
            if (name := self._id(pair, settings)) not in known:
                known.add(name)
                shared = {**apart(self._config(pair, settings)).to_dict(), "features": settings.get("features")}
                groups.setdefault(json.dumps(shared, sort_keys=True, default=str), []).append(settings)
        yield from groups.values()

    def _config(self, pair: Pair, settings: Settings) -> TrainConfig:
        length = {key: self.protocol[key] for key in ("epochs", "patience")}
        return make_config(pair.model, {**{k: v for k, v in settings.items() if k != "features"}, **length})

    def _id(self, pair: Pair, settings: Settings) -> str:
        every = {**complete(self._config(pair, settings)), "features": settings.get("features")}
        return identity(pair=pair.id, settings=every, runs=self.protocol["runs"])

    def _task(self, pair: Pair, features: str | None) -> Task | None:
        options = {**pair.options, **({"features": features} if features else {})}
        name = f"{pair.dataset} {sorted(options.items())}"
        if name not in self.tasks:
            try:
                self.tasks[name] = load(pair.dataset, **options)
            except (DataError, OSError) as error:
                print(f"{pair.name}: {error}", flush=True)
                self.tasks[name] = None
        return self.tasks[name]

    def _train(self, pair: Pair, group: Sequence[Settings]) -> None:
        """Train settings of one shape with all their runs, and write a line for each."""
        task, began = self._task(pair, group[0].get("features")), time.perf_counter()
        if task is None:
            return
        runs, config = self.protocol["runs"], self._config(pair, group[0])
        try:
            results = self._results(task, pair, group, config, runs)
        except (torch.cuda.OutOfMemoryError, MemoryError) as error:
            results = [error] * (len(group) * runs)
            torch.cuda.empty_cache()
        if results is None:
            return
        seconds = (time.perf_counter() - began) / len(group)
        for place, settings in enumerate(group):
            self._write(pair, task, settings, results[place * runs : (place + 1) * runs], seconds)

    def _results(
        self, task: Task, pair: Pair, group: Sequence[Settings], config: TrainConfig, runs: int
    ) -> list[Any] | None:
        """A record or an error per setting and run; None if the time is up before all are finished."""
        splits = [run % len(task.splits) for run in range(runs)]
        if not unstackable(task, config, splits):
            stack = [
                _stacked(self._config(pair, settings), run, splits[run]) for settings in group for run in range(runs)
            ]
            results = train_stacked(task, stack, config, self.device, stop=self.over, keep_errors=True)
            whole = len(results) == len(stack)
        else:
            results, whole = [], True
            for settings in group:
                for run in range(runs):
                    results.append(_one(task, splits[run], self._config(pair, settings), run, self.device, self.over))
        cut = any(getattr(one, "status", "") == "interrupted" for one in results)
        return results if whole and not cut else None

    def _write(self, pair: Pair, task: Task, settings: Settings, results: Sequence[Any], seconds: float) -> None:
        failed = next((one for one in results if isinstance(one, Exception)), None)
        config = self._config(pair, settings)
        metric = find_metric(task.metric if config.metric == "auto" else config.metric, task.problem)
        features = settings.get("features")
        line = {
            "pair": pair.id,
            "id": self._id(pair, settings),
            "system": pair.key,
            "model": pair.model,
            "dataset": pair.dataset,
            "data_options": {**pair.options, **({"features": features} if features else {})},
            "settings": {key: value for key, value in settings.items() if key != "features"},
            "epochs": config.epochs,
            "patience": config.patience,
            "metric": metric.name,
            "higher_is_better": metric.higher_is_better,
            "valid": None if failed else sum(one.valid for one in results) / len(results),
            "valids": [] if failed else [one.valid for one in results],
            "best_epochs": [] if failed else [one.best_epoch for one in results],
            "reason": "" if failed is None else f"{type(failed).__name__}: {failed}"[:200],
            "seconds": round(seconds, 3),
            "fingerprint": task.fingerprint(),
            "versions": {"difformer": code_version(), "torch": torch.__version__},
            "device": describe(self.device),
        }
        append_line(self.path, line)
        self.done.setdefault(pair.id, {})[line["id"]] = line
        self.made += 1
        score = "failed" if failed else f"{metric.name} {line['valid']:.4f}"
        print(f"{pair.name} [{len(self.trials(pair))}] {score}, {seconds:.1f} s", flush=True)


def _stacked(config: TrainConfig, seed: int, split: int) -> StackedSetting:
    rates = {name: getattr(config, name) for name in RATES}
    options = {name: config.options[name] for name in HYPER if name in config.options}
    return StackedSetting(seed=seed, split=split, **rates, **options)


def _one(task: Task, split: int, config: TrainConfig, seed: int, device: torch.device, stop: Callable[[], bool]) -> Any:
    try:
        return train_one(task, split, config, seed, device, stop=stop)
    except NonFiniteLossError as error:
        return error


def conclude(search: Search, pairs: Sequence[Pair], out: Path, command: str) -> list[Path]:
    """Write the best setting of each pair as a preset, and print what is done."""
    written = []
    for pair in pairs:
        lines = search.trials(pair)
        scored = [line for line in lines if line["valid"] is not None]
        if not scored:
            continue
        sign = 1 if scored[0]["higher_is_better"] else -1
        best = max(scored, key=lambda line: sign * line["valid"])
        data = _features(best)
        length = {"epochs": best["epochs"], "patience": best["patience"]}
        preset = Preset(
            "best",
            pair.model,
            pair.dataset,
            settings={**best["settings"], **length},
            source="a search over the system's own space under the common protocol, chosen on validation",
            protocol=pair.options.get("protocol"),
            metric=best["metric"],
            validation=round(best["valid"], 6),
            trials=len(lines),
            runs=search.protocol["runs"],
            command=command,
            variant=pair.variant,
            data=data,
        )
        path = out / "presets" / f"{pair.name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_preset(preset, path)
        written.append(path)
        print(f"{pair.name}: {len(lines)} trials, best {best['valid']:.4f}: {best['settings']} {data}")
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("found"), help="folder of trials.jsonl and presets (found)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many seconds")
    parser.add_argument("--resume", type=Path, nargs="*", default=[], help="files of earlier trials")
    parser.add_argument("--systems", nargs="*", default=[], help="only these, in this order")
    parser.add_argument("--data", nargs="*", default=[], help="only these (cora, cora-authors), in this order")
    parser.add_argument("--trials", type=int, help="trials per pair, in place of the protocol's")
    parser.add_argument("--runs", type=int, help="seeds and splits per trial, in place of the protocol's")
    parser.add_argument("--epochs", type=int, help="epochs at most, in place of the protocol's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--conclude", action="store_true", help="run nothing; write presets of what is done")
    given = parser.parse_args(arguments)
    protocol = read_protocol()
    protocol |= {key: value for key in ("trials", "runs", "epochs") if (value := getattr(given, key)) is not None}
    pairs = pairs_of(protocol, given.systems, given.data)
    given.out.mkdir(parents=True, exist_ok=True)
    known = [line for path in (*given.resume, given.out / "trials.jsonl") for line in read_lines(path)]
    deadline = time.monotonic() + given.seconds
    search = Search(given.out, protocol, known, resolve(given.device), deadline)
    if not given.conclude:
        search.run(pairs)
        print(f"{search.made} trials made, {len(known)} were there", flush=True)
    conclude(search, pairs, given.out, "python -m benchmarks.search_gpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
