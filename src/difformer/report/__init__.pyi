# ruff: noqa: I001 (one import per module)
from . import layers as layers
from difformer.report.comparison import Comparison as Comparison, compare_runs as compare_runs
from difformer.report.explanation import Explanation as Explanation, explain_node as explain_node
from difformer.report.page import Report as Report, write_report as write_report

ATTENTION_OFF: str
