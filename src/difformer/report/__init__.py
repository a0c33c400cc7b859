"""Reports on runs: one HTML page, one prediction explained, and runs side by side.

Names are resolved on first use. `write_report` needs plotly and jinja2 (extra ``report``); the others need neither.
"""

from __future__ import annotations

from difformer._lazy import lazy_names

ATTENTION_OFF = "attention-off"  # ends the name of a run folder beside another: the same settings with attention off

__all__, __getattr__, __dir__ = lazy_names(__name__)
