"""Whether a run folder may be gone on with, and whether the result will be that of an uninterrupted run to the bit."""

from __future__ import annotations

import warnings

import torch

from difformer.data import Task
from difformer.training.config import TrainConfig
from difformer.training.rundescription import description, kernels
from difformer.training.runfiles import RunFolderError
from difformer.training.runfolder import RunFolder


def check_same_run(folder: RunFolder, task: Task, config: TrainConfig, seeds: tuple[int, ...]) -> None:
    """Refuses to go on with a folder that holds something else.

    Raises:
        RunFolderError: Naming what differs.
    """
    folder.task(task)
    asked = description(
        task, config, seeds=seeds, device=torch.device("cpu"), source=folder.source, stacked=folder.stacked
    )
    there = folder.about
    differs = [
        f"{name} is {there[table].get(name)!r} there and {value!r} here"
        for table in ("model", "training")
        for name, value in asked[table].items()
        if value != there[table].get(name) and not name.startswith("checkpoint_")
    ]
    if tuple(there["run"]["seeds"]) != seeds:
        differs.append(f"seeds are {list(there['run']['seeds'])} there and {list(seeds)} here")
    if differs:
        raise RunFolderError(
            f"{folder.path} holds another run: {'; '.join(differs)}. Choose another folder, or resume it as it is"
        )


def warn_of_changes(folder: RunFolder) -> None:
    """Numbers are the same to the bit only where they are added in the same order."""
    here = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    there = {"torch": folder.about["versions"]["torch"], "threads": folder.about["run"]["threads"]}
    if "kernels" in folder.about["run"]:
        here["kernels in"], there["kernels in"] = kernels(), folder.about["run"]["kernels"]
    changed = [f"{name} {there[name]}, now {here[name]}" for name in here if here[name] != there[name]]
    if changed:
        warnings.warn(
            f"{folder.path} was begun with {'; '.join(changed)}: results may differ from an uninterrupted run's by "
            f"rounding",
            stacklevel=4,
        )
