"""Figures of the page as plotly objects. Only the map is drawn by the page's own script.

Names from data go through `safe`: plotly would take ``<b>`` for a tag. Colours of text, grid and ground are set by the
page, which knows whether it is light or dark.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from difformer.report.gather import layer_names, rounded, shortened
from difformer.report.layers import Attention, LayerEnergies
from difformer.report.maps import COLOURS
from difformer.report.quality import Calibration, Importance
from difformer.training.run_folder import RunFolder

PART_LINES = {"train": (COLOURS[7], "dot"), "valid": (COLOURS[1], "dash"), "test": (COLOURS[0], "solid")}
CURVE_POINTS = 300  # per seed
SHOWN_COLUMNS = 20
Figure = dict[str, Any]
PERCENT: Figure = {"yaxis_tickformat": ".0%"}
FROM_ZERO: Figure = {"yaxis_rangemode": "tozero"}


def safe(text: object, length: int = 28) -> str:
    """A short text that plotly shows as it is."""
    return html.escape(shortened(str(text), length), quote=False)


def line(name: str, x: Sequence[Any], y: Sequence[Any], colour: str, *, dash: str = "solid", **more: Any) -> Figure:
    style = {"color": colour, "dash": dash, "width": 1.6}
    return {"type": "scatter", "mode": "lines+markers", "name": name, "x": x, "y": y, "line": style, **more}


def bar(name: str, x: Sequence[Any], y: Sequence[Any], colour: str, **more: Any) -> Figure:
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": colour}, **more}


def make(traces: Sequence[Any], *, x: str = "", y: str = "", height: int = 340, **layout: Any) -> Figure:
    """A figure of one panel as JSON; its legend is above the panel, where it covers nothing."""
    from plotly.graph_objects import Figure as Plot

    figure = Plot(traces).update_layout(
        height=height, margin={"l": 55, "r": 15, "t": 30, "b": 45},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        xaxis={"title": {"text": x}, "automargin": True}, yaxis={"title": {"text": y}, "automargin": True},
    )  # fmt: skip
    found = json.loads(figure.update_layout(**layout).to_json())
    found["layout"].pop("template", None)
    return found


def learning_curves(folder: RunFolder, metric: str) -> tuple[dict[str, Figure], bool]:
    """Training loss and metric of every seed by epoch, and whether epochs were left out."""
    best = {result["seed"]: result["best_epoch"] for result in folder.results()}
    by_seed: dict[int, list[dict[str, Any]]] = {}
    for row in folder.rows():
        by_seed.setdefault(int(row["seed"]), []).append(row)
    losses, scores, thinned = [], [], False

    def curve(name: str, key: str, rows: list[dict[str, Any]], colour: str, **more: Any) -> Figure:
        hover = f"seed {seed}, epoch %{{x}}: {name} %{{y:.4g}}<extra></extra>"
        look = {"mode": "lines", "legendgroup": name, "showlegend": seed == min(by_seed), "hovertemplate": hover}
        epochs, values = [row["epoch"] for row in rows], [rounded(row.get(key)) for row in rows]
        return line(name, epochs, values, colour, **{**look, **more})

    for seed, rows in sorted(by_seed.items()):
        rows.sort(key=lambda row: int(row["epoch"]))
        evaluated = [row for row in rows if row.get("valid") is not None or row.get("train") is not None]
        kept, drawn = _thin(evaluated, best.get(seed)), _thin(rows, best.get(seed))
        thinned |= len(kept) < len(evaluated) or len(drawn) < len(rows)
        losses.append(curve("training loss", "loss", drawn, COLOURS[2]))
        for part, (colour, dash) in PART_LINES.items():
            if any(row.get(part) is not None for row in kept):
                scores.append(curve(part, part, kept, colour, dash=dash))
        if chosen := [row for row in kept if row["epoch"] == best.get(seed)]:
            mark = {"color": COLOURS[1], "size": 9, "line": {"color": "#1b1f24", "width": 1}}
            scores.append(curve("kept epoch", "valid", chosen, COLOURS[1], mode="markers", marker=mark))
    curves = {"metric-curves": (scores, safe(metric)), "loss-curves": (losses, "loss")}
    return {name: make(lines, x="epoch", y=y) for name, (lines, y) in curves.items()}, thinned


def _thin(rows: list[dict[str, Any]], best: int | None) -> list[dict[str, Any]]:
    """Every n-th row, the last one and the kept one."""
    step = max(1, -(-len(rows) // CURVE_POINTS))
    return [row for i, row in enumerate(rows) if i % step == 0 or i == len(rows) - 1 or row["epoch"] == best]


def predictions(found: dict[str, Any]) -> dict[str, Figure]:
    """Confusion matrix of classes, or the residuals of values."""
    if found["kind"] == "residuals":
        return {} if found["scatter"] is None else _residuals(found)
    names, counts = [safe(name) for name in found["names"]], np.array(found["confusion"])
    shares, places = counts / np.maximum(counts.sum(1, keepdims=True), 1), list(range(len(names)))
    heat = {
        "type": "heatmap", "x": places, "y": places, "z": shares.tolist(), "zmin": 0, "zmax": 1, "colorscale": "Blues",
        "text": counts.tolist(), "texttemplate": "%{text}" if len(names) <= 15 else "", "showscale": False,
        "hovertemplate": "true %{y}, predicted %{x}: %{text} (%{z:.1%} of the row)<extra></extra>",
    }  # fmt: skip
    ticks = {"tickvals": places, "ticktext": names}
    height, down = max(340, 130 + 26 * len(names)), {**ticks, "autorange": "reversed"}
    return {"confusion": make([heat], x="predicted", y="true", height=height, xaxis=ticks, yaxis=down)}


def _residuals(found: dict[str, Any]) -> dict[str, Figure]:
    target, prediction, bars = found["scatter"]["target"], found["scatter"]["prediction"], found["histogram"]
    marks: dict[str, Any] = {"mode": "markers", "marker": {"color": COLOURS[0], "size": 5, "opacity": 0.6}}
    hover = "target %{x:.4g}, prediction %{y:.4g}<extra></extra>"
    points = line("predictions", target, prediction, COLOURS[0], hovertemplate=hover, **marks)
    both = [points, _ideal("ideal", [min(target), max(target)])]
    middles = [left + bars["width"] / 2 for left in bars["left"]]
    hover = "error %{x:.4g}: %{y}<extra></extra>"
    heights = bar("errors", middles, bars["height"], COLOURS[1], width=bars["width"], hovertemplate=hover)
    figures = {"residuals": make(both, x="target", y="prediction", showlegend=False)}
    figures["error-histogram"] = make([heights], x="prediction - target", y="count")
    if over := found["over_time"]:
        error = line("error", over["time"], over["mse"], COLOURS[0], mode="lines")
        figures["over-time"] = make([error], x="snapshot", y="mean squared error", height=300)
    return figures


def _ideal(name: str, ends: Sequence[float]) -> Figure:
    return line(name, ends, ends, COLOURS[7], dash="dash", mode="lines", hoverinfo="skip")


def reliability(found: Calibration | None) -> dict[str, Figure]:
    if found is None:
        return {}
    marks: dict[str, Any] = {
        "marker": {"size": [max(6.0, 26.0 * (n / max(found.count)) ** 0.5) for n in found.count], "color": COLOURS[0]},
        "customdata": found.count,
        "hovertemplate": "predicted %{x:.1%}, right %{y:.1%} of %{customdata:,}<extra></extra>",
    }
    own = line("this run", found.confidence, found.accuracy, COLOURS[0], **marks)
    ideal = _ideal("perfectly calibrated", [min(0.5, *found.confidence, *found.accuracy), 1])
    scale: dict[str, Any] = {"xaxis_tickformat": ".0%", **PERCENT}
    return {"reliability": make([ideal, own], x="predicted probability", y="share that is right", **scale)}


def importance(found: Importance, metric: str) -> dict[str, Figure]:
    if not found.names:
        return {}
    names = [safe(name) for name in found.names[:SHOWN_COLUMNS]]
    places, losses = list(range(len(names))), [rounded(v) for v in found.losses[:SHOWN_COLUMNS]]
    hover = "%{customdata}: %{x:.4f}<extra></extra>"
    bars = bar("loss", losses, places, COLOURS[0], orientation="h", customdata=names, hovertemplate=hover)
    ticks, height = {"tickvals": places, "ticktext": names, "autorange": "reversed"}, max(220, 100 + 24 * len(names))
    return {"importance": make([bars], x=f"{safe(metric)} lost", height=height, yaxis=ticks)}


def energies(found: LayerEnergies | None) -> dict[str, Figure]:
    if found is None:
        return {}
    layers = layer_names(len(found.energy))
    lines = [line("all pairs (measured)", layers, found.energy, COLOURS[0])]
    if found.edges:
        lines.append(line("observed edges (measured)", layers, found.edges, COLOURS[2], marker={"symbol": "square"}))
    if found.theorem:
        marks: dict[str, Any] = {"dash": "dash", "marker": {"symbol": "diamond"}}
        lines.append(line("diffusion the theorem covers", layers, found.theorem, COLOURS[3], **marks))
    figures = {"energy-plot": make(lines, y="mean energy per pair")}
    if found.separation:
        share = line("between classes", layers, found.separation, COLOURS[1])
        return figures | {"separation-plot": make([share], y="variance between classes", **PERCENT, **FROM_ZERO)}
    rank = line("effective rank", layers, found.rank, COLOURS[4])
    return figures | {"rank-plot": make([rank], y="effective rank", **FROM_ZERO)}


def within(found: Attention | None) -> dict[str, Figure]:
    if found is None or found.chance is None:
        return {}
    layers, hover = layer_names(len(found.layers) + 1)[1:], {"hovertemplate": "%{y:.1%}<extra></extra>"}
    drawn = [
        bar("attention", layers, [one.within for one in found.layers], COLOURS[0], **hover),
        line("uniform attention", layers, [found.chance] * len(layers), COLOURS[3], dash="dash", **hover),
    ]
    if found.edges:
        level = [found.joined / found.edges] * len(layers)
        drawn.append(line("observed edges", layers, level, COLOURS[2], dash="dot", **hover))
    return {"within-plot": make(drawn, y="share within one class", **PERCENT, **FROM_ZERO)}
