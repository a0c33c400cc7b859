"""One search for every system and data set of the comparison, in slices of a few minutes.

    python -m benchmarks.search_gpu --out found --seconds 480          # one slice
    python -m benchmarks.search_gpu --out found --conclude             # presets of what is done

The protocol is ``benchmarks/protocol.toml``: data sets and systems in order of priority, the same number of
trials for each pair, successive halving. Pairs advance in rounds of a quarter of their trials, so that a search that is
cut short has treated all alike. Each finished trial is one line per protocol of ``OUT/trials.jsonl``, on disk before
the next stack starts; a process that is killed loses the stack in progress. Trials of OUT, of
``results/search/trials.jsonl`` and of files given by ``--resume`` are not repeated. No line contains a test score.

Processes share a search by ``--part``, a name for each: the part writes ``OUT/trials-PART.jsonl``, a pair is advanced
by one process at a time, and each reads what the others have written.

Presets are written at the end to ``OUT/presets/1``, ``OUT/presets/2``, …: the finalists of each pair and protocol, best
first. Each makes its final runs, and the one with the best validation score over them becomes the preset:

    difformer reproduce citation --presets OUT/presets/1 --preset common --models difformer-s,off,gcn+ --runs-only
    difformer reproduce citation --presets OUT/presets/2 --preset common --models difformer-s,off,gcn+ --runs-only
    python -m benchmarks.search_gpu --out OUT --conclude --ledgers results/*/runs.jsonl
    python -m benchmarks.add_presets OUT/presets/1/*.toml          # into the package
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import filelock
import torch
from scipy.stats import qmc

from difformer import toml
from difformer.data import DataError, Task, load
from difformer.errors import UserError
from difformer.experiments.cells import defaults_of_base
from difformer.experiments.ledger import append_line, code_version, complete, identity, read_lines
from difformer.experiments.presets import Preset, load_presets, write_preset
from difformer.training import NonFiniteLossError, train_one
from difformer.training.config import TrainConfig, make_config
from difformer.training.devices import describe, resolve
from difformer.training.journal import Run
from difformer.training.metrics import find_metric
from difformer.training.stack import HYPER, RATES, apart, train_stacked, unstackable
from difformer.training.study import without_test
from difformer.zoo import MODELS, find, options_of

PROTOCOL = Path(__file__).with_name("protocol.toml")
STORED = Path(__file__).parents[1] / "results" / "search" / "trials.jsonl"
# Axes that may differ within a stack. A graph weight of none cannot be stacked with numbers, so it counts as shape.
STACKED = tuple(name for name in (*RATES, *HYPER) if name != "graph_weight")
ROUNDS = 4
PARENTS = 4  # the best settings so far, which later trials vary
LENGTH = ("epochs", "patience", "eval_every", "batch_size")
Settings = dict[str, Any]
Line = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """A system on a data set.

    Args:
        key: Key of the system.
        model: Its model.
        dataset: Name of the data set.
        protocols: Protocols of the data set; an empty name is its default.
        base: Model that it is a variant of; may be empty.
        axes: Values that compete, ``features`` included.
        candidates: Settings of the protocol that are always among the trials.
        settings: Settings of the data set that do not compete, such as its loss.
        variant: Of presets for the data set, if a section of a table asks for one.
        final_seeds: Final runs per setting.
    """

    key: str
    model: str
    dataset: str
    protocols: tuple[str, ...] = ("",)
    base: str = ""
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    candidates: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    variant: str | None = None
    final_seeds: int = 10

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.key}"

    def question(self, protocol: str) -> str:
        """Identity of what a line answers."""
        options = {"protocol": protocol} if protocol else {}
        return identity(system=self.key, dataset=self.dataset, options=options)

    @property
    def shape(self) -> dict[str, tuple[Any, ...]]:
        return {key: values for key, values in self.axes.items() if key not in STACKED}

    @property
    def rates(self) -> dict[str, tuple[Any, ...]]:
        return {key: values for key, values in self.axes.items() if key in STACKED}


@dataclass
class Trial:
    """What is known of one setting: its scores by protocol, after the first epochs and at full length."""

    settings: Settings
    first: dict[str, float | None] = field(default_factory=dict)
    full: dict[str, float | None] = field(default_factory=dict)
    higher: bool = True
    metric: str = ""

    def score(self, protocol: str | None = None, *, full: bool = False) -> float:
        """Larger is better; minus infinity if it failed or is unknown; the mean over protocols if none is given."""
        known = self.full if full else {**self.full, **self.first}
        values = [known.get(name) for name in (known if protocol is None else [protocol])]
        if not values or any(value is None for value in values):
            return -math.inf
        return (1 if self.higher else -1) * sum(v for v in values if v is not None) / len(values)


def read_protocol(path: Path = PROTOCOL) -> dict[str, Any]:
    """The ``[search]`` part of the protocol, with the lengths of final runs as ``final``."""
    found = toml.loads(path.read_text(encoding="utf-8"))
    final = {key: value for key, value in found["final"].items() if key in LENGTH}
    return {**found["search"], "final": final, "final_seeds": found["final"]["seeds"]}


def pairs_of(protocol: Mapping[str, Any], systems: Sequence[str] = (), data: Sequence[str] = ()) -> list[Pair]:
    """Pairs in order of priority: the first system on all data sets, then the second.

    Args:
        protocol: See `read_protocol`.
        systems: Only these, in this order; all that the zoo has if empty.
        data: Only these data sets, in this order; all if empty.
    """
    known = {entry["key"]: entry for entry in protocol["system"] if entry.get("model", entry["key"]) in MODELS}
    sets = {entry["dataset"]: entry for entry in protocol["data"]}
    for option, names, there in (("--systems", systems, known), ("--data", data, sets)):
        for name in names:
            if name not in there:
                raise SystemExit(f"{option}: there is no {name!r}; known are {', '.join(there)}")
    return [
        _pair(known[key], sets[name], protocol)
        for key in systems or known
        for name in data or sets
        if key in sets[name].get("systems", protocol["systems"])
    ]


def _pair(system: Mapping[str, Any], data: Mapping[str, Any], protocol: Mapping[str, Any]) -> Pair:
    model = system.get("model", system["key"])
    known = {*TrainConfig().to_dict(), *options_of(model)} - {*LENGTH}
    space = {**find(model).space, **{key: one for key, one in data.get("axes", {}).items() if key in find(model).space}}
    axes = {key: tuple(values) for key, values in space.items() if key in known}
    if features := protocol["features"].get(data["dataset"]):
        axes["features"] = tuple(features)
    protocols = tuple(data.get("protocols", ("",)))
    candidates = tuple(
        one["settings"]
        for one in protocol.get("candidate", ())
        if data["dataset"] in one["datasets"] and model in one["models"]
    )
    return Pair(
        system["key"], model, data["dataset"], protocols, system.get("base", ""), axes, candidates,
        data.get("settings", {}), data.get("variant"), data.get("final_seeds", protocol["final_seeds"]),
    )  # fmt: skip


def first_settings(pair: Pair) -> list[Settings]:
    """Settings that are always among the trials: published ones, presets and candidates, with all features."""
    known = {*TrainConfig().to_dict(), *options_of(pair.model)} - {*LENGTH}
    # Presets of this search are among its trials.
    models = (pair.model, pair.base)
    presets = [p for p in load_presets() if p.dataset == pair.dataset and p.model in models and p.name != "common"]
    published = find(pair.model).published
    given: list[Mapping[str, Any]] = [published[pair.dataset]] if pair.dataset in published else [*published.values()]
    # A variant of another model starts from that model's defaults.
    start = defaults_of_base(pair.model, pair.base)
    variants = (None, pair.variant, *pair.protocols)
    given += [{**start, **one.settings} for one in presets if one.variant in variants and "graph" not in one.settings]
    given += [{**start, **one} for one in pair.candidates]
    chosen: list[Settings] = []
    for settings in given:
        for features in pair.axes.get("features", (None,)):
            one = {key: value for key, value in settings.items() if key in known and key not in pair.settings}
            one |= {"features": features} if features else {}
            if one not in chosen:
                chosen.append(one)
    return chosen


def blocks_of(pair: Pair, protocol: Mapping[str, Any], done: Sequence[Trial]) -> Iterator[list[Settings]]:
    """Settings that share one shape, block by block: first settings, Sobol points, and variations of the best so far.

    No other setting is tried before all first settings were. The list depends on `done` in its last part only.
    """
    size, seed, total = protocol["settings_per_shape"], protocol["seed"], protocol["trials"]
    shapes: dict[str, list[Settings]] = {}
    for one in first_settings(pair):
        shapes.setdefault(str({key: one.get(key) for key in pair.shape}), []).append(one)
    yield from shapes.values()
    number = len(shapes)
    half = max(number + 1, total // size // 2)
    tried = 0
    while number < half and tried < 64:
        (shape,) = _sobol(pair.shape, tried, 1, seed)
        tried += 1
        if shape.get("num_layers", 1) * shape.get("hidden_channels", 1) <= protocol["size"]:
            rates = _sobol(pair.rates, number * size, size, seed + 1)
            start = defaults_of_base(pair.model, pair.base)
            yield [{**start, **shape, **one} for one in rates]
            number += 1
    draw = random.Random(f"{seed} {pair.name} {len(done)}")
    while True:
        best = sorted(done, key=lambda trial: -trial.score())[:PARENTS]
        yield _varied(pair, draw.choice(best).settings if best else {}, draw, size)


def _varied(pair: Pair, parent: Settings, draw: random.Random, size: int) -> list[Settings]:
    """The parent with one axis of its shape drawn anew, and neighbouring values on some other axes."""
    shape = {key: parent.get(key, values[0]) for key, values in pair.shape.items()}
    if shape:
        changed = draw.choice(list(shape))
        shape[changed] = draw.choice(pair.shape[changed])
    found = []
    for _ in range(size):
        rates = {key: parent.get(key, values[0]) for key, values in pair.rates.items()}
        for key, values in pair.rates.items():
            if draw.random() < 0.5:
                place = values.index(rates[key]) if rates[key] in values else draw.randrange(len(values))
                rates[key] = values[max(0, min(len(values) - 1, place + draw.choice((-1, 1))))]
        found.append({**parent, **shape, **rates})
    return found


def _sobol(axes: Mapping[str, Sequence[Any]], start: int, count: int, seed: int) -> list[Settings]:
    """Points `start` to `start + count` of a Sobol sequence over a grid."""
    if not axes:
        return [{} for _ in range(count)]
    engine = qmc.Sobol(len(axes), scramble=True, seed=seed)
    points = (engine.fast_forward(start) if start else engine).random(count)
    grid = list(axes.items())
    return [{key: values[int(u * len(values))] for u, (key, values) in zip(row, grid, strict=True)} for row in points]


class Search:
    """The state of one call.

    Args:
        out: Folder of ``trials.jsonl``.
        protocol: See `read_protocol`.
        pairs: In order of priority.
        known: Lines of earlier calls.
        device: Where to train.
        deadline: `time.monotonic` after which nothing new starts and running stacks stop.
        part: Name of this process if several share the search; empty if it is the only one.
    """

    def __init__(
        self,
        out: Path,
        protocol: Mapping[str, Any],
        pairs: Sequence[Pair],
        known: Sequence[Line],
        device: torch.device,
        deadline: float,
        part: str = "",
    ) -> None:
        self.out, self.part = out, part
        self.path, self.protocol, self.pairs = out / f"trials{part and '-' + part}.jsonl", protocol, pairs
        self.device, self.deadline, self.made = device, deadline, 0
        self.tasks: dict[str, tuple[Task, list[tuple[str, int]]] | None] = {}
        self.trials: dict[str, dict[str, Trial]] = {pair.name: {} for pair in pairs}
        self.asked = {pair.question(name): (pair, name) for pair in pairs for name in pair.protocols}
        self.enter(known)

    def enter(self, known: Sequence[Line]) -> None:
        """Lines of other calls; a line may come twice."""
        for line in known:
            if line["pair"] in self.asked:
                pair, name = self.asked[line["pair"]]
                settings = {**line["settings"], **_features(line)}
                self._enter(pair, settings, name, line)

    def _enter(self, pair: Pair, settings: Settings, name: str, line: Line) -> None:
        found = Trial(settings, higher=line["higher_is_better"], metric=line.get("metric", ""))
        trial = self.trials[pair.name].setdefault(self._id(pair, settings), found)
        (trial.first if line.get("rung", 2) == 1 else trial.full)[name] = line["valid"]

    def over(self) -> bool:
        return time.monotonic() > self.deadline

    def run(self) -> None:
        """Round by round, pair by pair: new settings for their first epochs, then the best of them at full length."""
        goals = [self.protocol["trials"] * number // ROUNDS for number in range(1, ROUNDS + 1)]
        waiting = [(goal, pair) for goal in goals for pair in self.pairs]
        while waiting and not self.over():
            done = next((one for one in waiting if self._advanced(*one)), None)
            if done:
                waiting.remove(done)
            else:
                time.sleep(1.0)  # other processes work on all that are left

    def _advanced(self, goal: int, pair: Pair) -> bool:
        """Bring a pair to `goal` trials; False if another process is at work on it."""
        if not self.part:
            self._advance(goal, pair)
            return True
        try:
            held = filelock.FileLock(self.out / "locks" / pair.name).acquire(timeout=0)
        except filelock.Timeout:
            return False
        with held:
            for path in sorted(self.out.glob("trials-*.jsonl")):
                self.enter(read_lines(path))
            self._advance(goal, pair)
        return True

    def _advance(self, goal: int, pair: Pair) -> None:
        first = 1 if self._config(pair, {}, rung=1).epochs < self._config(pair, {}).epochs else 2
        for group in self._new(pair, goal):
            if self.over():
                return
            self._train(pair, group, rung=first)
        for group in self._promoted(pair, goal):
            if self.over():
                return
            self._train(pair, group, rung=2)

    def _new(self, pair: Pair, goal: int) -> Iterator[list[Settings]]:
        """Settings without a trial, in groups that train as one stack, until `goal` trials are there.

        First settings are tried even if the goal is reached without them.
        """
        known = self.trials[pair.name]
        leaders = {self._id(pair, one) for one in first_settings(pair)}
        for count, block in enumerate(blocks_of(pair, self.protocol, list(known.values()))):
            # A trial of an earlier search that lacks a protocol does not count, and is made again if it is drawn.
            there = {name for name, one in known.items() if {*one.first, *one.full} >= {*pair.protocols}}
            left = {name: one for one in block if (name := self._id(pair, one)) not in there}
            if not left.keys() <= leaders:
                if len(there) >= goal or count > 4 * self.protocol["trials"]:
                    return
                left = dict(list(left.items())[: goal - len(there)])
            if self.over():
                return
            yield from self._groups(pair, list(left.values()))

    def _promoted(self, pair: Pair, goal: int) -> Iterator[list[Settings]]:
        """Settings that are among the best of any protocol and have not been trained at full length."""
        trials = list(self.trials[pair.name].values())
        count = max(1, int(max(goal, len(trials)) * self.protocol["kept"]))
        chosen: list[Settings] = []
        for name in pair.protocols:
            for trial in sorted(trials, key=lambda one: -one.score(name))[:count]:
                if trial.score(name) > -math.inf and name not in trial.full and trial.settings not in chosen:
                    chosen.append(trial.settings)
        yield from self._groups(pair, chosen)

    def _groups(self, pair: Pair, chosen: Sequence[Settings]) -> Iterator[list[Settings]]:
        groups: dict[str, list[Settings]] = {}
        for settings in chosen:
            shared = {**apart(self._config(pair, settings)).to_dict(), "features": settings.get("features")}
            groups.setdefault(json.dumps(shared, sort_keys=True, default=str), []).append(settings)
        yield from groups.values()

    def _config(self, pair: Pair, settings: Settings, rung: int = 2) -> TrainConfig:
        length = {key: self.protocol[key] for key in ("epochs", "patience", "eval_every")}
        settings = {key: value for key, value in settings.items() if key != "features"}
        settings = {**settings, **length, **pair.settings}
        if rung == 1:
            settings |= {"epochs": min(settings["epochs"], self.protocol["first_epochs"]), "patience": None}
        return make_config(pair.model, settings)

    def _id(self, pair: Pair, settings: Settings) -> str:
        return _settings_name(complete(self._config(pair, settings)), settings.get("features"))

    def _task(self, pair: Pair, features: str | None) -> tuple[Task, list[tuple[str, int]]] | None:
        """The data with the splits of all protocols, and the protocol and split of each run."""
        name = f"{pair.dataset} {features}"
        if name not in self.tasks:
            try:
                self.tasks[name] = self._loaded(pair, {"features": features} if features else {})
            except (DataError, OSError) as error:
                print(f"{pair.name}: {error}", flush=True)
                self.tasks[name] = None
        return self.tasks[name]

    def _loaded(self, pair: Pair, options: Settings) -> tuple[Task, list[tuple[str, int]]]:
        splits: list[Any] = []
        runs: list[tuple[str, int]] = []
        for protocol in pair.protocols:
            task = load(pair.dataset, **options, **({"protocol": protocol} if protocol else {}))
            used = min(self.protocol["runs"], len(task.splits))
            runs += [(protocol, len(splits) + run % used) for run in range(self.protocol["runs"])]
            splits += task.splits[:used]
        return without_test(replace(task, splits=tuple(splits))), runs

    def _train(self, pair: Pair, group: Sequence[Settings], rung: int) -> None:
        """Train settings of one shape with all their runs, and write a line per setting and protocol."""
        loaded, began = self._task(pair, group[0].get("features")), time.perf_counter()
        if loaded is None:
            return
        task, runs = loaded
        configs = [self._config(pair, settings, rung) for settings in group]
        try:
            results = self._results(task, configs, runs)
        except (RuntimeError, MemoryError, UserError) as error:
            if "CUDA error" in str(error):  # nothing more can be computed in this process
                raise
            if self.part and isinstance(error, torch.cuda.OutOfMemoryError):
                return  # other processes had the memory: no result of this setting
            results = [error] * (len(group) * len(runs))
        finally:
            torch.cuda.empty_cache()  # other processes may need it
        if results is None:
            return
        seconds = (time.perf_counter() - began) / len(group)
        for place, (settings, config) in enumerate(zip(group, configs, strict=True)):
            own = results[place * len(runs) : (place + 1) * len(runs)]
            self._write(pair, task, settings, config, rung, list(zip(runs, own, strict=True)), seconds)

    def _results(self, task: Task, configs: Sequence[TrainConfig], runs: Sequence[tuple[str, int]]) -> list[Any] | None:
        """A record or an error per setting and run; None if the time is up before all are finished."""
        seeds = [(place % self.protocol["runs"], split) for place, (_, split) in enumerate(runs)]
        asked = [(config, seed, split) for config in configs for seed, split in seeds]
        if not unstackable(task, configs[0], [split for _, split in runs]):
            stack = [Run(seed, split, config) for config, seed, split in asked]
            results = train_stacked(task, stack, self.device, stop=self.over)
        else:
            results = []
            for config, seed, split in asked:
                try:
                    results.append(train_one(task, split, config, seed, self.device, stop=self.over))
                except NonFiniteLossError as error:
                    results.append(error)
        cut = any(getattr(one, "status", "") == "interrupted" for one in results)
        return None if cut or len(results) < len(asked) else results

    def _write(
        self,
        pair: Pair,
        task: Task,
        settings: Settings,
        config: TrainConfig,
        rung: int,
        results: Sequence[tuple[tuple[str, int], Any]],
        seconds: float,
    ) -> None:
        metric = find_metric(task.metric if config.metric == "auto" else config.metric, task.problem)
        said = []
        for name in pair.protocols:
            own = [record for (protocol, _), record in results if protocol == name]
            failed = next((one for one in own if isinstance(one, Exception)), None)
            valid = None if failed else sum(one.valid for one in own) / len(own)
            options = {"protocol": name} if name else {}
            features = {"features": settings["features"]} if settings.get("features") else {}
            line = {
                "pair": pair.question(name),
                "rung": rung,
                "system": pair.key,
                "model": pair.model,
                "dataset": pair.dataset,
                "data_options": {**options, **features},
                "settings": {key: value for key, value in settings.items() if key != "features"},
                **{key: getattr(config, key) for key in ("epochs", "patience", "eval_every")},
                "runs": len(own),
                "metric": metric.name,
                "higher_is_better": metric.higher_is_better,
                "valid": valid,
                "valids": [] if failed else [one.valid for one in own],
                "best_epochs": [] if failed else [one.best_epoch for one in own],
                "reason": "" if failed is None else f"{type(failed).__name__}: {failed}"[:200],
                "seconds": round(seconds, 3),
                "fingerprint": task.fingerprint(),
                "versions": {"difformer": code_version(), "torch": torch.__version__},
                "device": describe(self.device),
            }
            append_line(self.path, line)
            self._enter(pair, settings, name, line)
            said.append(f"{name or metric.name} {'failed' if valid is None else f'{valid:.4f}'}")
        self.made += rung == 1
        count = f"{len(self.trials[pair.name])}{'' if rung == 1 else ', full length'}"
        print(f"{pair.name} [{count}] {', '.join(said)}, {seconds:.1f} s", flush=True)


@dataclass(frozen=True)
class FinalRuns:
    """Final runs of one setting, all of the same length."""

    length: Mapping[str, Any]  # the `LENGTH` of their settings
    valid: dict[int, float] = field(default_factory=dict)  # validation scores by seed

    @property
    def mean(self) -> float:
        return sum(self.valid.values()) / len(self.valid)


def _finals(ledger: Sequence[Line]) -> dict[tuple[str, str], list[FinalRuns]]:
    """Final runs by what they answer and their settings; those with the most patience first."""
    found: dict[tuple[str, str], list[FinalRuns]] = {}
    for line in ledger:
        if line.get("status") == "done" and line.get("preset") == "common":
            options = {key: value for key, value in line["data_options"].items() if key != "features"}
            question = identity(system=line["system"], dataset=line["dataset"], options=options)
            name = question, _settings_name(line["settings"], line["data_options"].get("features"))
            runs = FinalRuns({key: line["settings"][key] for key in LENGTH if key in line["settings"]})
            same = [one for one in found.setdefault(name, []) if one.length == runs.length]
            found[name] += [] if same else [runs]
            (same[0] if same else runs).valid[line["seed"]] = line["valid"]
    for every in found.values():
        every.sort(key=lambda runs: -(runs.length.get("patience") or math.inf))
    return found


def _settings_name(settings: Mapping[str, Any], features: str | None) -> str:
    return identity(settings={key: value for key, value in settings.items() if key not in LENGTH}, features=features)


def _features(line: Line) -> Settings:
    return {"features": line["data_options"]["features"]} if "features" in line["data_options"] else {}


def conclude(search: Search, out: Path, ledger: Sequence[Line] = ()) -> list[Path]:
    """Write the finalists of each pair and protocol as presets, and print how many trials the pair had.

    Settings whose final runs are complete come first, in the order of their mean validation score over these runs;
    others follow in the order of the search.

    Args:
        search: With all trials.
        out: Gets ``presets/1`` with the best of each, ``presets/2`` with the second, and so on.
        ledger: Lines of final runs.
    """
    written = []
    finals = _finals(ledger)
    for pair in search.pairs:
        for name in pair.protocols:
            trials = {key: one for key, one in search.trials[pair.name].items() if name in {**one.first, **one.full}}
            ranked = []
            for key, one in trials.items():
                every = finals.get((pair.question(name), key), [])
                runs = next((one for one in every if len(one.valid) >= pair.final_seeds), None)
                if runs is not None:
                    ranked.append((1, runs.mean if one.higher else -runs.mean, len(runs.valid), runs.length, one))
                elif (score := one.score(name, full=True)) > -math.inf:
                    ranked.append((0, score, search.protocol["runs"], search.protocol["final"], one))
            ranked.sort(key=lambda entry: entry[:2], reverse=True)
            for place, (_, score, runs_of, length, best) in enumerate(ranked[: search.protocol["finalists"]], 1):
                settings = dict(best.settings)
                data = {"features": settings.pop("features")} if "features" in settings else {}
                variant = name if name == "authors" else pair.variant
                preset = Preset(
                    "common",
                    pair.model,
                    pair.dataset,
                    settings={**settings, **length, **pair.settings},
                    source="a search over the system's own space under the common protocol, chosen on validation",
                    protocol=name or None,
                    metric=best.metric or None,
                    validation=round(abs(score), 6),
                    trials=len(trials),
                    runs=runs_of,
                    command="python -m benchmarks.search_gpu",
                    variant=variant,
                    data=data,
                )
                file = f"{pair.dataset}{f'-{variant}' if variant else ''}-{pair.key}.toml"
                path = out / "presets" / str(place) / file
                path.parent.mkdir(parents=True, exist_ok=True)
                write_preset(preset, path)
                written.append(path)
                print(f"{place} {path.stem}: {len(trials)} trials, {preset.validation:.4f}: {settings} {data}")
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("found"), help="folder of trials.jsonl and presets (found)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so many seconds")
    parser.add_argument("--resume", type=Path, nargs="*", default=[], help="more files of earlier trials")
    parser.add_argument("--systems", nargs="*", default=[], help="only these, in this order")
    parser.add_argument("--data", nargs="*", default=[], help="only these data sets, in this order")
    for name in ("trials", "runs", "epochs"):
        parser.add_argument(f"--{name}", type=int, help="in place of the protocol's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--part", default="", help="name of this process, if several share the search")
    parser.add_argument("--ledgers", type=Path, nargs="*", default=[], help="final runs that choose among finalists")
    parser.add_argument("--conclude", action="store_true", help="run nothing; write presets of what is done")
    given = parser.parse_args(arguments)
    protocol = read_protocol()
    protocol |= {key: value for key in ("trials", "runs", "epochs") if (value := getattr(given, key)) is not None}
    given.out.mkdir(parents=True, exist_ok=True)
    own = sorted(given.out.glob("trials*.jsonl"))
    known = [line for path in (STORED, *given.resume, *own) for line in read_lines(path)]
    torch.set_float32_matmul_precision(protocol["matmul_precision"])
    pairs, deadline = pairs_of(protocol, given.systems, given.data), time.monotonic() + given.seconds
    search = Search(given.out, protocol, pairs, known, resolve(given.device), deadline, given.part)
    if not given.conclude:
        (given.out / "locks").mkdir(exist_ok=True)
        search.run()
        print(f"{search.made} trials made, {len(known)} lines were there", flush=True)
    if not given.part:
        conclude(search, given.out, [line for path in given.ledgers for line in read_lines(path)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
