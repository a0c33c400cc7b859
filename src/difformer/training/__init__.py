"""Training: from a task and a configuration to a saved, resumable, comparable run.

Names are resolved on first use, so that configurations can be read and checked before torch is loaded.
"""

from __future__ import annotations

from difformer._lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
