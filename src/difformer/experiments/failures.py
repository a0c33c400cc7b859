"""Why a run could not be made, in words that fit a cell; and whether that is a result or a mistake of the program."""

from __future__ import annotations

from pathlib import Path

import torch

from difformer.errors import WouldNotFitError
from difformer.training.journal import NonFiniteLossError


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def expected(error: Exception) -> bool:
    """Whether it is a result: too little memory, divergence, something that is not installed."""
    return isinstance(error, (NonFiniteLossError, ImportError)) or _out_of_memory(error)


def reason_of(error: Exception, device: torch.device) -> str:
    """What a table says in place of a score."""
    if isinstance(error, WouldNotFitError):
        return f"not enough memory: {str(error).partition(';')[0]}"
    if _out_of_memory(error):
        return f"out of memory on {device}"
    if isinstance(error, NonFiniteLossError):
        return f"diverged: {str(error).partition(';')[0]}"  # what to do about it is for whoever tunes
    return f"{type(error).__name__}: {error}"


def first_sentence(error: Exception) -> str:
    """What is missing, without what to do about it on this machine."""
    return str(error).split(". ")[0].replace(str(Path.home()), "~")
