"""Options of the estimators: their valid values, and how training uses them.

A rule serves twice: for an option when an estimator is fitted, and for an entry of a file when one is loaded.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from difformer.attention import BACKENDS
from difformer.attention.scores import form_of, score_key
from difformer.attention.summary import LINEAR
from difformer.diffusivity import Diffusivity
from difformer.nn import DIFFormer
from difformer.schema import Rule, check, one_of
from difformer.training import TrainConfig

ENOUGH = 500  # labelled rows from which a share is held out once, without dropout
DROPOUT = 0.2  # with fewer
LONGER = 3  # times as many steps if held-out rows choose the epoch
EVALUATIONS = 20  # per run; each costs about half as much as a step
WHOLE = 20_000  # most rows trained on at once if pairs are compared one by one
BATCH, SMALL_BATCH = 4096, 1024  # rows of a mini-batch: of pairs, and of large tables with many labels
MOST_WHOLE = 4096  # most rows trained on at once if many are labelled; beyond, mini-batches learn faster
EPOCH = 8  # steps that an epoch of many mini-batches counts as, at most
DECAY = 0.02  # largest weight decay by default
FULL_POPULATION, LANDMARKS = 10_000, 4096  # rows up to which all keys are kept; how many keys are kept beyond


def real(words: str, holds: Callable[[Any], bool]) -> Rule:
    """A number for which `holds`, in which comparisons with NaN are false."""
    return Rule(lambda v: isinstance(v, numbers.Real) and not isinstance(v, bool) and holds(v), f"a {words}")


COUNT = real("whole number of at least 1", lambda v: isinstance(v, int | np.integer) and bool(v >= 1))
FLAG = Rule(lambda value: isinstance(value, bool | np.bool_), "True or False")
FINITE = real("finite number", lambda v: -math.inf < v < math.inf)
NOT_NEGATIVE = real("finite number of at least 0", lambda v: 0 <= v < math.inf)
FRACTION = real("number in [0, 1)", lambda v: 0 <= v < 1)

OPTIONS: dict[str, Rule] = {
    **dict.fromkeys(("hidden_channels", "num_layers", "num_heads", "neighbours", "steps", "n_models"), COUNT),
    **dict.fromkeys(("directed", "transform_values", "standardize"), FLAG),
    **dict.fromkeys(("batch_size", "landmarks"), COUNT.or_none()),
    **dict.fromkeys(("dropout", "validation_fraction"), FRACTION.or_none()),
    "diffusivity": Rule(lambda value: isinstance(value, str | Diffusivity), "a name or a Diffusivity").or_none(),
    "graph_weight": real("number in [0, 1]", lambda v: 0 <= v <= 1).or_none(),
    "step_size": real("number in (0, 1]", lambda v: 0 < v <= 1),
    "source_weight": FINITE,
    "learning_rate": real("finite number above 0", lambda v: 0 < v < math.inf),
    "weight_decay": NOT_NEGATIVE.or_none(),
    "backend": one_of(*BACKENDS),
}


MODEL_OPTIONS = [name for name in OPTIONS if name in inspect.signature(DIFFormer).parameters]


class Recipe:
    """How to train: the options of an estimator, with defaults resolved for a table with `labels` labelled rows."""

    def __init__(self, estimator: Any, labels: int, *, directed: bool = False) -> None:
        for name, rule in OPTIONS.items():
            check(getattr(estimator, name), rule, name)
        self.options = estimator
        self.model: dict[str, Any] = {name: getattr(estimator, name) for name in MODEL_OPTIONS}
        self.model |= {name: int(self.model[name]) for name in ("hidden_channels", "num_layers", "num_heads")}
        self.model["transform"] = estimator.transform_values
        if estimator.dropout is None:
            self.model["dropout"] = DROPOUT if labels < ENOUGH else 0.0
        if estimator.diffusivity in (None, "constant", "identity"):
            self.model["backend"] = "auto"  # none of them computes scores
        if directed:
            self.model["graph_norm"] = "random_walk"
        self.seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))

    def say(self, line: str) -> None:
        if self.options.verbose:
            print(f"[{type(self.options).__name__}] {line}", flush=True)

    @property
    def pairs(self) -> bool:
        """Whether rows are compared pair by pair."""
        if self.model["diffusivity"] is None:
            return False
        form = form_of(score_key(self.model["diffusivity"], self.model["hidden_channels"]))
        return form not in LINEAR and self.model["backend"] != "polynomial"

    def batch(self, rows: int, *, held_out: bool = False, edges: bool = False) -> int | None:
        """Rows of a mini-batch for a population of `rows`; None for all at once."""
        if (size := self.options.batch_size) is not None:
            return int(size) if size < rows else None
        if self.pairs and rows > WHOLE:
            return BATCH
        return SMALL_BATCH if held_out and not edges and rows > MOST_WHOLE else None  # which would cut edges

    def numbers(self, rows: int, columns: float) -> int:
        """Numbers in the largest operation of a step, features that are zero not counted."""
        together = self.batch(rows) or rows
        return int(together * max(self.model["hidden_channels"], columns, together if self.pairs else 0))

    def landmarks(self, rows: int) -> Tensor | None:
        """The rows that represent a population of `rows` where keys are remembered; None for all."""
        count = self.options.landmarks or (LANDMARKS if rows > FULL_POPULATION else rows)
        if count >= rows:
            return None
        chosen = np.random.RandomState(self.seed % 2**32).choice(rows, count, replace=False)
        return torch.from_numpy(np.sort(chosen))

    def config(self, rows: int, labels: int, steps: int, batch: int | None, *, held_out: bool) -> TrainConfig:
        """The configuration of a run of `steps` steps, more where held-out rows end it."""
        steps, decay = steps * (LONGER if held_out else 1), self.options.weight_decay
        epochs = steps if batch is None else max(1, math.ceil(steps * max(batch / rows, 1 / EPOCH)))
        return TrainConfig(
            model="difformer",
            options=dict(self.model),
            epochs=epochs,
            learning_rate=float(self.options.learning_rate),
            weight_decay=min(DECAY, 1 / max(1, labels)) if decay is None else float(decay),
            batch_size=batch,
            eval_every=max(1, epochs // EVALUATIONS),
            patience=max(1, epochs // 4) if held_out else None,
        )
