"""Running an experiment: what is there is skipped, what is made is written at once, what stops it is said.

A run ends in one of four ways: a line with its scores; a line with the reason why there can be none (data absent, too
little memory, more time than it may take, a loss that is no number, an error); no line because the time was up; no line
because of Ctrl-C. The last two are taken up by the next call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

import torch

from difformer.attention.memory import free_bytes
from difformer.data import DataError, Task, load
from difformer.data.lookup import check_folders
from difformer.experiments.asking import Outcome, Request, wanted_cells
from difformer.experiments.choosing import Cell
from difformer.experiments.failures import expected, first_sentence, reason_of
from difformer.experiments.ledger import DONE, FAILED, Ledger, Line
from difformer.experiments.limits import Watch
from difformer.experiments.measuring import surroundings
from difformer.experiments.performing import Interrupted, Ready, perform, ready, why_not
from difformer.experiments.plan import Data, Experiment
from difformer.experiments.sharing import TAKEN_FROM, Others
from difformer.files import only_one, writing
from difformer.training.devices import resolve
from difformer.training.interrupt import stop_requests

Say = Callable[[str], None]


def run(experiment: Experiment, folder: Path, request: Request, say: Say) -> Outcome:
    """Makes every run that is asked for and not there yet.

    Raises:
        ValueError: If the request names what there is not, or the folder holds runs of the other form.
        DataError: If ``$DIFFORMER_DATA`` is no folder.
    """
    device = resolve(request.device)
    check_folders()  # one that is not there is a slip of whoever named it, not data that are absent
    wanted = wanted_cells(experiment, request)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder)
    with only_one(folder), stop_requests() as stop:
        known = ledger.read()
        check_form(folder, known, request.quick)
        work = _Work(experiment, ledger, known, request, device, stop, say)
        for data in experiment.sections(request.quick):
            work.section(data, [cell for cell in wanted if cell.data.key == data.key])
        return work.outcome


def check_form(folder: Path, lines: Sequence[Line], quick: bool) -> None:
    """Refuses to put quick runs and full ones into one folder.

    Raises:
        ValueError: Saying which of the two is there.
    """
    for line in lines:
        if bool(line.get("quick")) != quick:
            there, asked = ("quick", "full") if line.get("quick") else ("full", "quick")
            raise ValueError(
                f"{folder} holds {there} runs, and {asked} ones were asked for; they are never mixed: "
                f"choose another folder with --out, or remove it"
            )


def load_data(data: Data) -> Task:
    """The task of a section."""
    if not data.loader:
        return load(data.dataset, **data.options)
    module, _, function = data.loader.partition(":")
    task: Task = getattr(import_module(module), function)(**data.options)
    return task


class _Work:
    """The state of one call."""

    def __init__(
        self,
        experiment: Experiment,
        ledger: Ledger,
        known: Sequence[Line],
        request: Request,
        device: torch.device,
        stop: Callable[[], bool],
        say: Say,
    ) -> None:
        self.experiment, self.ledger, self.request = experiment, ledger, request
        self.device, self.stop, self.say = device, stop, say
        self.began = time.monotonic()
        self.outcome = Outcome()
        self.done = {_run(line, line["id"]) for line in known if line["status"] == DONE}
        self.others = Others(ledger.folder, known, request.quick, say)
        self.refused = _still_refused(known)
        self.faults = {line["id"] for line in known if line.get("fault")}
        self.limits = {line["id"]: line["limit"] for line in known if line["status"] == FAILED and "limit" in line}
        self.fingerprints: dict[str, set[str]] = {}
        for line in known:
            if line["status"] == DONE and "fingerprint" in line:
                self.fingerprints.setdefault(line["data"], set()).add(line["fingerprint"])

    def over(self) -> bool:
        """Whether nothing new is begun."""
        if not self.outcome.stopped:
            if self.stop():
                self.outcome.stopped = "interrupted"
            elif time.monotonic() - self.began > self.request.seconds:
                self.outcome.stopped = "out of time"
        return bool(self.outcome.stopped)

    def section(self, data: Data, wanted: Sequence[Cell]) -> None:
        """Every cell of one data set, which is loaded once."""
        if not wanted:
            return
        count = self.request.seeds or data.seeds
        if self.over():
            self.outcome.left += count * len(wanted)
            return
        free = free_bytes(torch.device("cpu")) / 1e9
        if data.needs > free:
            reason = f"not enough memory: about {data.needs:g} GB to hold the graph, {free:.0f} GB are free"
            self._refuse({"data": data.key, "id": f"data:{data.key}"}, reason)
            self.outcome.left += count * len(wanted)
            return
        try:
            task = load_data(data)
        except Exception as error:  # one data set that fails must not take the others with it
            about = {"data": data.key, "id": f"data:{data.key}"}
            if isinstance(error, (DataError, OSError, ImportError)):
                # Absent files, refused downloads and absent extras all say themselves what to do.
                self.say(f"{self.experiment.name} {data.key}: {error}")
                self._refuse(about, f"data not here: {first_sentence(error)}")
            else:
                self._refuse(about, reason_of(error, torch.device("cpu")))
                self.outcome.errors += not expected(error)
            self.outcome.left += count * len(wanted)
            return
        shared = {"experiment": self.experiment.name, "quick": self.request.quick, "fingerprint": task.fingerprint()}
        if others := self.fingerprints.get(data.key, set()) - {shared["fingerprint"]}:
            self.say(
                f"{self.experiment.name} {data.key}: runs that are there were made of other data (fingerprint "
                f"{', '.join(sorted(others))}, now {shared['fingerprint']}); they still count. To make them again, "
                f"remove their lines from {self.ledger.path}"
            )
        for cell in wanted:
            self._cell(ready(cell, task, self.request.precision), count, {**shared, **surroundings(self.device)})

    def _cell(self, what: Ready, count: int, shared: Line) -> None:
        cell = what.cell
        row = {"data": cell.data.key, "system": cell.system.key, "preset": cell.choice.name}
        seeds = [seed for seed in range(count) if _run(row, what.run_id(seed)) not in self.done]
        self.outcome.there += count - len(seeds)
        seeds = [seed for seed in seeds if not self._taken_over(what, seed, shared)]
        if not seeds:
            return
        if self.over():
            self.outcome.left += len(seeds)
            return
        # What fails on one kind of device, or in one precision, may run on another.
        chosen = self.request.precision
        attempt = f"{what.settings_id} {self.device.type}" + (f" {chosen}" if chosen else "")
        failed = {**row, "id": attempt, **({"precision": chosen} if chosen else {})}
        earlier = next((reason for id_, reason in self.refused if id_ == attempt), "")
        longer = self.request.limit > self.limits.get(attempt, math.inf)  # what took too long may have the time now
        if earlier and not longer and not self.request.retry:
            self.outcome.failed[cell.key] = earlier
            self.outcome.errors += attempt in self.faults
            return
        if reason := why_not(cell, what.task):
            self._refuse(failed, reason)
            return
        made = 0
        watch = Watch(self.stop, self.request.limit)
        try:
            for line in perform(what, seeds, self.device, watch, shared):
                line["time"] = _now()
                self.ledger.append(line)
                self.others.add([line])
                made += 1
                self._tell(line, made, len(seeds))
                if made < len(seeds) and self.over():
                    break
        except Interrupted as cut:
            if watch.too_long:
                about = {**failed, "limit": self.request.limit}
                self._refuse(about, watch.reason(cut.epochs, str(shared["device"])))
            else:
                self.outcome.stopped = "interrupted"
        except Exception as error:  # one system that fails must not take the others with it; the table says why
            fault = not expected(error)
            reason = reason_of(error, self.device) + (f" (in {chosen})" if chosen else "")
            self._refuse({**failed, "fault": True} if fault else failed, reason)
            self.outcome.errors += fault
        self.outcome.made += made
        self.outcome.left += len(seeds) - made

    def _taken_over(self, what: Ready, seed: int, shared: Line) -> bool:
        line = self.others.line(what, seed, shared["fingerprint"])
        if line is None:
            return False
        own = self.experiment.name
        self.ledger.append({**line, "experiment": own})
        self.outcome.taken += 1
        self.say(
            f"{own} {line['data']} {line['system']} ({line['preset']}) seed {seed}: the same run as in "
            f"{'another row' if line[TAKEN_FROM] == own else line[TAKEN_FROM]}"
        )
        return True

    def _refuse(self, about: Line, reason: str) -> None:
        self.outcome.failed[(about["data"], about.get("system", ""), about.get("preset", ""))] = reason
        which = " ".join(str(about[what]) for what in ("data", "system") if about.get(what))
        preset = f" ({about['preset']})" if about.get("preset") else ""
        self.say(f"{self.experiment.name} {which}{preset}: {reason}")
        if (about["id"], reason) not in self.refused:
            self.refused.add((about["id"], reason))
            shared = {"experiment": self.experiment.name, "quick": self.request.quick, "device": str(self.device)}
            self.ledger.append({**shared, **about, "status": FAILED, "reason": reason, "time": _now()})

    def _tell(self, line: Line, number: int, of: int) -> None:
        score = "" if line.get("test") is None else f": {line['metric']} {line['test']:.4f}"
        self.say(
            f"{self.experiment.name} {line['data']} {line['system']} ({line['preset']}) seed {line['seed']}"
            f" [{number}/{of}]{score}, {line['seconds']:.1f} s"
        )


def _still_refused(lines: Sequence[Line]) -> set[tuple[str, str]]:
    """Attempts that failed, with the reason; a run of the same settings that was made later takes them away."""
    found: set[tuple[str, str]] = set()
    for line in lines:
        if line["status"] == FAILED:
            found.add((line["id"], line["reason"]))
        elif "settings_id" in line:
            found = {(id_, reason) for id_, reason in found if id_.split()[0] != line["settings_id"]}
    return found


def _run(row: Line, id_: str) -> tuple[str, str, str, str]:
    """A run is one of a row: two rows may hold the same settings under different names."""
    return row["data"], row["system"], row["preset"], id_


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
