"""Kernels in C for a model's passes over rows on a CPU, compiled at first use; without a compiler torch does it all.

`difformer.kernels.cpu.explain()` says whether they are used, and why not. ``DIFFORMER_NATIVE=0`` switches them off.
"""

from difformer.kernels.cpu.build import explain, library

__all__ = ["explain", "library"]
