"""Every table and figure that can be reproduced, by name. No torch here: the list must come at once."""

from __future__ import annotations

import difflib
from importlib import import_module

from difformer.experiments.plan import Experiment

MODULES = {
    "citation": "citation",
    "heterophily": "heterophily",
    "large": "large",
    "temporal": "temporal",
    "unobserved": "unobserved",
    "particles": "particles",
    "attention-ablation": "ablation",
    "depth": "depth",
    "batch-size": "batch_size",
    "cost": "cost",
    "energy": "energy",
    "visualise": "visualise",
}


def find(name: str) -> Experiment:
    """The experiment of a name.

    Raises:
        ValueError: If there is none, with the nearest.
    """
    if name not in MODULES:
        near = difflib.get_close_matches(name, MODULES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no experiment {name!r}; {hint}known are {', '.join(MODULES)}")
    experiment: Experiment = import_module(f"difformer.experiments.{MODULES[name]}").EXPERIMENT
    return experiment


def experiments() -> tuple[Experiment, ...]:
    """All of them, in the order of the paper."""
    return tuple(find(name) for name in MODULES)
