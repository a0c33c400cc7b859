"""The end of a training, for people: one row a seed, mean ± standard deviation, and what the ± is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from difformer.cli.output import Output
from difformer.cli.progress import clock_time

if TYPE_CHECKING:
    from difformer.training import Summary


def report(summary: Summary, output: Output, about: Mapping[str, Any]) -> None:
    """The table of seeds, the result in one line, and where the run is."""
    output.json({**about, **summary.to_dict(), "run": summary.folder})
    output.table(
        ["seed", "split", "best epoch", "train", "valid", "test", "time"],
        [
            [
                result["seed"],
                result["split"],
                f"{result['best_epoch']}/{result['epochs']}",
                *(score(result[part]) for part in ("train", "valid", "test")),
                clock_time(result["seconds"]),
            ]
            for result in summary.results
        ],
        right=["seed", "best epoch", "train", "valid", "test", "time"],
    )
    output.say(headline(summary))
    if about.get("preset"):
        output.say(f"settings: preset {about['preset']}")
    if summary.folder is not None:
        output.say(f"run folder: {summary.folder}")


def headline(summary: Summary) -> str:
    """The result in one line."""
    runs = len(summary.results)
    over = f"mean ± standard deviation over {runs} seeds{variety(summary.results)}" if runs > 1 else "one seed"
    return f"test {summary.metric}: {mean_and_deviation(summary.mean('test'), summary.std('test'), runs)} ({over})"


def mean_and_deviation(mean: float, deviation: float, count: int) -> str:
    """Mean ± deviation; of one value there is no deviation, and a ± 0 would claim one."""
    return f"{score(mean)} ± {score(deviation)}" if count > 1 else score(mean)


def variety(results: Sequence[Mapping[str, Any]]) -> str:
    """What differs between seeds besides the initialisation, for whoever reads a ±."""
    splits = len({result["split"] for result in results})
    if splits == 1:
        return ", all on one split: ± is over initialisations alone"
    return ", each on a split of its own" if splits == len(results) else f" on {splits} splits"


def score(value: float | None) -> str:
    """A metric with four digits; a dash where there is none."""
    return "–" if value is None or value != value else f"{value:.4f}"
