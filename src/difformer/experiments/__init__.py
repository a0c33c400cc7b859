"""What is tried on which data, as data: presets of hyper-parameters, and the tables and figures made with them."""

from difformer.experiments.presets import Preset, find_preset, load_presets, read_preset, write_preset

__all__ = ["Preset", "find_preset", "load_presets", "read_preset", "write_preset"]
