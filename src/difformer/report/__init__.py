"""Reports on runs: one HTML page, one prediction explained, and runs side by side.

Names are resolved on first use. `write_report` needs plotly and jinja2 (extra ``report``); the others need neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer._lazy import lazy_names

if TYPE_CHECKING:
    from difformer.report.comparison import Comparison as Comparison
    from difformer.report.comparison import compare_runs as compare_runs
    from difformer.report.explanation import Explanation as Explanation
    from difformer.report.explanation import explain_node as explain_node
    from difformer.report.page import Report as Report
    from difformer.report.page import write_report as write_report

ATTENTION_OFF = "attention-off"  # ends the name of a run folder beside another: the same settings with attention off

__all__, __getattr__, __dir__ = lazy_names(
    __name__,
    {"comparison": "Comparison compare_runs", "explanation": "Explanation explain_node", "page": "Report write_report"},
    modules="layers",
)
