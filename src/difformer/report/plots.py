"""Figures of the page as plotly objects. The map alone is drawn by the page's own script.

Names from data go through `safe`: plotly would take ``<b>`` for a tag. Colours of text, grid and ground are set by the
page, which knows whether it is light or dark.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from difformer.report.explanation import PARTS, Explanation
from difformer.report.gather import rounded, shortened
from difformer.report.layers import LayerEnergies, Within
from difformer.report.quality import Calibration, Importance
from difformer.training.run_folder import RunFolder

# Ten colours that differ, also for most colour-blind people: Okabe and Ito's without black, olive, grey, purple, brown.
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#B3B000", "#7F7F7F", "#5B2A86", "#7A4419",
)  # fmt: skip
PART_COLOURS = {"train": COLOURS[7], "valid": COLOURS[1], "test": COLOURS[0]}
DASHES = {"train": "dot", "valid": "dash", "test": "solid"}
CURVE_POINTS = 300  # per seed
SHOWN_COLUMNS = 20
Figure = dict[str, Any]


def safe(text: object, length: int = 28) -> str:
    """A short text that plotly shows as it is."""
    return html.escape(shortened(str(text), length), quote=False)


def make(traces: Sequence[Any], *, x: str = "", y: str = "", height: int = 340, **layout: Any) -> Figure:
    """A figure of one panel as JSON has it; its legend is above, where it covers nothing however long it gets."""
    import plotly.graph_objects as go

    figure = go.Figure(traces)
    figure.update_layout(
        height=height,
        margin={"l": 55, "r": 15, "t": 30, "b": 45},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={"title": {"text": x}, "automargin": True},
        yaxis={"title": {"text": y}, "automargin": True},
    )
    figure.update_layout(**layout)
    found = json.loads(figure.to_json())
    found["layout"].pop("template", None)
    return found


def layer_names(count: int) -> list[str]:
    """Of a DIFFormer's states."""
    return ["input", *(f"layer {k}" for k in range(1, count))]


def learning_curves(folder: RunFolder, metric: str) -> tuple[dict[str, Figure], bool]:
    """Training loss and metric of every seed by epoch, and whether epochs were left out."""
    import plotly.graph_objects as go

    best = {result["seed"]: result["best_epoch"] for result in folder.results()}
    by_seed: dict[int, list[dict[str, Any]]] = {}
    for row in folder.metrics.read():
        by_seed.setdefault(int(row["seed"]), []).append(row)
    losses, scores, thinned, seen = [], [], False, set()

    def line(name: str, seed: int, rows: list[dict[str, Any]], key: str, **style: Any) -> Any:
        first = name not in seen
        seen.add(name)
        return go.Scatter(
            x=[row["epoch"] for row in rows], y=[rounded(row.get(key)) for row in rows], name=name, legendgroup=name,
            showlegend=first, opacity=0.8, hovertemplate=f"seed {seed}, epoch %{{x}}: {name} %{{y:.4g}}<extra></extra>",
            **{"mode": "lines", **style},
        )  # fmt: skip

    for seed, rows in sorted(by_seed.items()):
        rows.sort(key=lambda row: int(row["epoch"]))
        evaluated = [row for row in rows if row.get("valid") is not None or row.get("train") is not None]
        kept, drawn = _thin(evaluated, best.get(seed)), _thin(rows, best.get(seed))
        thinned |= len(kept) < len(evaluated) or len(drawn) < len(rows)
        losses.append(line("training loss", seed, drawn, "loss", line={"color": COLOURS[2], "width": 1.2}))
        for part, colour in PART_COLOURS.items():
            if any(row.get(part) is not None for row in kept):
                style = {"color": colour, "width": 1.4, "dash": DASHES[part]}
                scores.append(line(part, seed, kept, part, line=style))
        chosen = [row for row in kept if row["epoch"] == best.get(seed)]
        if chosen:
            mark = {"color": COLOURS[1], "size": 9, "line": {"color": "#1b1f24", "width": 1}}
            scores.append(line("kept epoch", seed, chosen, "valid", mode="markers", marker=mark))
    figures = {
        "metric-curves": make(scores, x="epoch", y=safe(metric)),
        "loss-curves": make(losses, x="epoch", y="loss"),
    }
    return figures, thinned


def _thin(rows: list[dict[str, Any]], best: int | None) -> list[dict[str, Any]]:
    """Every n-th row, the last one and the kept one."""
    step = max(1, -(-len(rows) // CURVE_POINTS))
    return [row for i, row in enumerate(rows) if i % step == 0 or i == len(rows) - 1 or row["epoch"] == best]


def confusion(found: dict[str, Any]) -> Figure:
    import plotly.graph_objects as go

    names, counts = [safe(name) for name in found["names"]], np.array(found["confusion"])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    places = list(range(len(names)))
    heat = go.Heatmap(
        x=places, y=places, z=shares.tolist(), zmin=0, zmax=1, colorscale="Blues", text=counts.tolist(),
        texttemplate="%{text}" if len(names) <= 15 else "",
        hovertemplate="true %{y}, predicted %{x}: %{text} (%{z:.1%} of the row)<extra></extra>", showscale=False,
    )  # fmt: skip
    ticks = {"tickvals": places, "ticktext": names, "automargin": True}
    return make(
        [heat], height=max(340, 130 + 26 * len(names)), xaxis={**ticks, "title": {"text": "predicted"}},
        yaxis={**ticks, "title": {"text": "true"}, "autorange": "reversed"},
    )  # fmt: skip


def reliability(found: Calibration) -> Figure:
    import plotly.graph_objects as go

    hover = "predicted %{x:.1%}, right %{y:.1%} of %{customdata:,}<extra></extra>"
    size = [max(6.0, 26.0 * (n / max(found.count)) ** 0.5) for n in found.count]
    low = min(0.5, *found.confidence, *found.accuracy) if found.confidence else 0.0
    traces = [
        go.Scatter(x=[low, 1], y=[low, 1], mode="lines", name="perfectly calibrated", hoverinfo="skip",
                   line={"color": COLOURS[7], "dash": "dash"}),
        go.Scatter(x=found.confidence, y=found.accuracy, mode="lines+markers", name="this run", customdata=found.count,
                   marker={"size": size, "color": COLOURS[0]}, line={"color": COLOURS[0]}, hovertemplate=hover),
    ]  # fmt: skip
    return make(
        traces, x="predicted probability", y="share that is right", xaxis_tickformat=".0%", yaxis_tickformat=".0%"
    )


def residuals(found: dict[str, Any]) -> dict[str, Figure]:
    import plotly.graph_objects as go

    target, prediction, bars = found["scatter"]["target"], found["scatter"]["prediction"], found["histogram"]
    ends = [min(target), max(target)]
    points = go.Scatter(
        x=target, y=prediction, mode="markers", marker={"color": COLOURS[0], "size": 5, "opacity": 0.6},
        hovertemplate="target %{x:.4g}, prediction %{y:.4g}<extra></extra>",
    )  # fmt: skip
    ideal = go.Scatter(x=ends, y=ends, mode="lines", line={"color": COLOURS[7], "dash": "dash"}, hoverinfo="skip")
    heights = go.Bar(
        x=[left + bars["width"] / 2 for left in bars["left"]], y=bars["height"], width=bars["width"],
        marker={"color": COLOURS[1]}, hovertemplate="error %{x:.4g}: %{y}<extra></extra>",
    )  # fmt: skip
    figures = {
        "residuals": make([points, ideal], x="target", y="prediction", showlegend=False),
        "error-histogram": make([heights], x="prediction - target", y="count"),
    }
    if over := found["over_time"]:
        line = go.Scatter(x=over["time"], y=over["mse"], mode="lines", line={"color": COLOURS[0]})
        figures["over-time"] = make([line], x="snapshot", y="mean squared error", height=300)
    return figures


def importance(found: Importance, metric: str) -> Figure:
    import plotly.graph_objects as go

    names = [safe(name) for name in found.names[:SHOWN_COLUMNS]]
    places = list(range(len(names)))
    bars = go.Bar(
        x=[rounded(v) for v in found.losses[:SHOWN_COLUMNS]], y=places, orientation="h", customdata=names,
        marker={"color": COLOURS[0]}, hovertemplate="%{customdata}: %{x:.4f}<extra></extra>",
    )  # fmt: skip
    ticks = {"tickvals": places, "ticktext": names, "autorange": "reversed", "automargin": True}
    return make([bars], x=f"{safe(metric)} lost", height=max(220, 100 + 24 * len(names)), yaxis=ticks)


def energies(found: LayerEnergies) -> dict[str, Figure]:
    import plotly.graph_objects as go

    def line(name: str, y: list[float], colour: int, symbol: str, dash: str = "solid") -> Any:
        style = {"color": COLOURS[colour], "dash": dash}
        return go.Scatter(
            x=layer_names(len(y)), y=y, name=name, mode="lines+markers", line=style, marker={"symbol": symbol}
        )

    traces = [line("all pairs (measured)", found.energy, 0, "circle")]
    if found.edges:
        traces.append(line("observed edges (measured)", found.edges, 2, "square"))
    if found.theorem:
        traces.append(line("diffusion the theorem covers", found.theorem, 3, "diamond", "dash"))
    figures = {
        "energy-plot": make(traces, y="mean energy per pair"),
        "rank-plot": make([line("effective rank", found.rank, 4, "triangle-up")], y="effective rank",
                          yaxis_rangemode="tozero"),
    }  # fmt: skip
    if found.separation:
        share = line("between classes", found.separation, 1, "star")
        figures["separation-plot"] = make(
            [share], y="variance between classes", yaxis_tickformat=".0%", yaxis_rangemode="tozero"
        )
    return figures


def within(found: Within) -> Figure:
    import plotly.graph_objects as go

    layers = layer_names(len(found.share) + 1)[1:]
    hover = "%{y:.1%}<extra></extra>"

    def level(name: str, y: float, colour: int, dash: str) -> Any:
        style = {"color": COLOURS[colour], "dash": dash}
        return go.Scatter(
            x=layers, y=[y] * len(layers), name=name, mode="lines+markers", line=style, hovertemplate=hover
        )

    bars = go.Bar(x=layers, y=found.share, name="attention", marker={"color": COLOURS[0]}, hovertemplate=hover)
    traces = [bars, level("uniform attention", found.chance, 3, "dash")]
    if found.edges:
        traces.append(level("observed edges", found.joined / found.edges, 2, "dot"))
    return make(traces, y="share within one class", yaxis_tickformat=".0%", yaxis_rangemode="tozero")


def explanation(found: Explanation) -> Figure:
    import plotly.graph_objects as go

    layers = [f"layer {step.layer}" for step in found.steps]
    bars = [
        go.Bar(
            x=layers, y=[rounded(step.effects[part]) for step in found.steps], name=part,
            marker={"color": COLOURS[colour], "pattern": {"shape": pattern}},
            hovertemplate=f"{part}: %{{y:.4g}}<extra></extra>",
        )
        for part, colour, pattern in zip(PARTS, (7, 0, 2, 1), ("", "/", "x", "."), strict=True)
    ]  # fmt: skip
    return make(bars, y="effect on the score", height=300, barmode="relative")
