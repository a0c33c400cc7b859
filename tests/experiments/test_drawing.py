"""Figures hold what is written in them: legends, headings and titles are not cut off."""

from __future__ import annotations

import io

import pytest
from small_experiment import SMALL, line

from difformer.experiments.catalogue import find
from difformer.experiments.depth import draw as draw_depth
from difformer.experiments.drawing import QUICK, head, legend_below, panels, pyplot, save
from difformer.experiments.figures import dots
from difformer.experiments.summary import summarise

BARS = "bars: ± standard deviation over seeds and splits"


def inside(fig, artist):
    fig.canvas.draw()
    box = artist.get_window_extent(fig.canvas.get_renderer())
    return box.x0 >= 0 and box.x1 <= fig.bbox.width


@pytest.mark.parametrize(("width", "columns"), [(12.0, 4), (3.9, 2), (1.9, 1)])
def test_a_legend_has_as_many_columns_as_fit(width, columns):
    fig, _ = panels(1, width=width, height=3)
    marks = [pyplot().Line2D([], [], label=said) for said in ("ours", "rival", "attention off", "hollow: not tuned")]
    legend_below(fig, marks)
    (legend,) = fig.legends
    assert legend._ncols == columns
    assert inside(fig, legend)
    pyplot().close(fig)


@pytest.mark.parametrize("quick", [True, False])
def test_the_heading_is_wrapped_and_says_what_is_quick(quick):
    fig, _ = panels(1, width=3.4, height=3)
    summary = summarise(SMALL, [line("mlp", 0, 0.5)], (), quick=quick)
    head(fig, summary)
    said = fig.get_suptitle()
    assert said.startswith(SMALL.title)
    assert (QUICK in said.replace("\n", " ")) == quick
    assert inside(fig, fig._suptitle)
    pyplot().close(fig)


def test_dots_of_one_small_panel():
    lines = [line(system, seed, 0.5 + 0.1 * seed) for system in ("mlp", "difformer-s", "off") for seed in range(2)]
    fig = dots(summarise(SMALL, lines, (), quick=False), None)
    assert inside(fig, fig.legends[0])
    assert {text.get_text() for text in fig.legends[0].get_texts()} == {
        "ours", "rival", "attention off", "hollow: not tuned", BARS,
    }  # fmt: skip
    pyplot().close(fig)


def test_what_has_no_score_is_no_panel():
    lines = [line("mlp", 0, None, valid=None)]
    fig = dots(summarise(SMALL, lines, (), quick=False), None)
    assert "nothing was run yet" in fig.axes[0].texts[0].get_text()
    pyplot().close(fig)


def test_a_legend_names_lines_that_the_first_panel_lacks():
    depth = find("depth")
    lines = [line(system, 0, 0.5, data="cora") for system in ("K2-t0.1", "K2-t0.5-source")]
    fig = draw_depth(summarise(depth, lines, (), quick=False), None)
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["τ = 0.1", "τ = 0.5", BARS]
    pyplot().close(fig)


def test_a_title_wider_than_its_panel_widens_the_picture(tmp_path):
    sizes = []
    for title in ("short", "a title that is far longer than the panel below it can be wide"):
        fig, (ax,) = panels(1, width=2, height=2)
        ax.set_title(title, loc="left")
        save(fig, tmp_path)
        sizes.append(pyplot().imread(io.BytesIO((tmp_path / "figure.png").read_bytes())).shape[1])
    assert sizes[1] > 1.5 * sizes[0]
