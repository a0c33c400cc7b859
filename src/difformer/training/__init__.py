"""Training: from a task and a configuration to a saved, resumable, comparable run.

Names are resolved on first use, so that configurations can be read and checked before torch is loaded.
"""

# ruff: noqa: I001 (one import per module)
from __future__ import annotations

from typing import TYPE_CHECKING

from difformer._lazy import lazy_names

if TYPE_CHECKING:
    from difformer.files import RunFolderError as RunFolderError
    from difformer.training.callbacks import Callback as Callback, EpochEvent as EpochEvent
    from difformer.training.callbacks import TrainingInterrupted as TrainingInterrupted
    from difformer.training.config import TrainConfig as TrainConfig, parse_settings as parse_settings
    from difformer.training.journal import NonFiniteLossError as NonFiniteLossError
    from difformer.training.loop import train_one as train_one
    from difformer.training.record import RunRecord as RunRecord, Summary as Summary
    from difformer.training.run import fit as fit, resume as resume
    from difformer.training.run_folder import RunFolder as RunFolder, TaskSource as TaskSource
    from difformer.training.trained_run import embed as embed, energy as energy, evaluate as evaluate
    from difformer.training.trained_run import load_run as load_run, predict as predict

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {
        "callbacks": "Callback EpochEvent TrainingInterrupted",
        "config": "TrainConfig parse_settings",
        "journal": "NonFiniteLossError",
        "loop": "train_one",
        "record": "RunRecord Summary",
        "run": "fit resume",
        "run_folder": "RunFolder RunFolderError TaskSource",
        "trained_run": "embed energy evaluate load_run predict",
    },
    modules="metrics spaces study",
)
