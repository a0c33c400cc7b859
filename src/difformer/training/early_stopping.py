"""Early stopping: the earliest epoch with the best validation score is kept, and patience is counted from it.

Both rules serve one run (numbers) and runs trained as one (tensors with one entry per run).
"""

from __future__ import annotations

from typing import Any


def improves(value: Any, best: Any, higher_is_better: bool) -> Any:
    """Whether a validation score beats the best so far; a tie does not, NaN beats nothing, any number beats NaN."""
    beats = value > best if higher_is_better else value < best
    return beats | ((best != best) & (value == value))


def out_of_patience(epoch: Any, best_epoch: Any, patience: int | None) -> Any:
    """Whether `patience` epochs have passed since the best one; never before there is a best epoch (epoch 0)."""
    return False if patience is None else (best_epoch > 0) & (epoch - best_epoch >= patience)
