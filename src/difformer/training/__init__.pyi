# ruff: noqa: I001 (one import per module)
from . import metrics as metrics, spaces as spaces, study as study
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
