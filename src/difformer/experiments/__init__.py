"""Presets of hyper-parameters, and the experiments that reproduce tables and figures with them."""

from difformer.experiments.presets import Preset, find_preset, load_presets, read_preset, write_preset

__all__ = ["Preset", "find_preset", "load_presets", "read_preset", "write_preset"]
