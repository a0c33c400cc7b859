"""Reports on runs: one HTML page, one prediction explained, and runs side by side.

Names are resolved on first use. `write_report` needs plotly and jinja2 (extra ``report``); the other two need neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difformer.report.comparison import Comparison as Comparison
    from difformer.report.comparison import compare_runs as compare_runs
    from difformer.report.explanation import Explanation as Explanation
    from difformer.report.explanation import explain_node as explain_node
    from difformer.report.page import Report as Report
    from difformer.report.page import write_report as write_report

_HOME = {
    "Comparison": "comparison",
    "compare_runs": "comparison",
    "Explanation": "explanation",
    "explain_node": "explanation",
    "Report": "page",
    "write_report": "page",
}

ATTENTION_OFF = "attention-off"  # ends the name of a run folder beside another: the same settings with attention off

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"difformer.report.{_HOME[name]}"), name)
    raise AttributeError(f"module 'difformer.report' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
