"""Figures show every row, values outside the axis, and legends and titles that are not cut off."""

from __future__ import annotations

import dataclasses
import io
import warnings
from pathlib import Path

import pytest
from small_experiment import BLOCKS, GCN, MLP, SMALL, line

from difformer.experiments.analysis import read_summary, summarise
from difformer.experiments.figures import BARS, QUICK, attention_figure, draw, legend_below, panels, pyplot, save
from difformer.experiments.spec import System, find

MANY = dataclasses.replace(
    SMALL,
    data=(BLOCKS,),
    systems=(*(System(f"gcn{i}", f"GCN {i}", "gcn") for i in range(6)), MLP, GCN),
)


@pytest.fixture(autouse=True)
def closed():
    yield
    pyplot().close("all")


def legend(fig):
    return [text.get_text().replace("\n", " ") for text in fig.legends[0].get_texts()]


def names(ax):
    return [text.get_text() for text in ax.get_yticklabels()]


def test_errors_have_a_logarithmic_axis():
    scores = {f"gcn{i}": 0.60 + 0.05 * i for i in range(6)} | {"mlp": 2.7777}
    rest = {"metric": "mse", "higher_is_better": False}
    lines = [line(key, seed, value, **rest) for key, value in scores.items() for seed in range(3)]
    (ax,) = draw(summarise(MANY, lines, (), quick=False)).axes
    assert ax.get_xscale() == "log"
    assert pytest.approx(2.7777) in [one.get_xdata()[0] for one in ax.lines]
    assert ax.get_xlim()[1] > 2.7777
    (ax,) = draw(summarise(MANY, [line("mlp", 0, 0.4)], (), quick=False)).axes
    assert ax.get_xscale() == "linear"


def test_row_names_contain_settings():
    lines = [line("gcn", seed, 0.5, preset="paper") for seed in range(3)] + [line("mlp", 0, 0.4)]
    fig = draw(summarise(MANY, lines, (), quick=False))
    assert names(fig.axes[0]) == ["GCN (paper's grid)", "MLP (untuned)"]
    assert "bars: ± standard deviation over seeds and splits" in legend(fig)
    fig = draw(summarise(MANY, lines[-1:], (), quick=False))
    assert not [said for said in legend(fig) if said.startswith("bars")]


def test_the_legend_cites_the_source_of_the_papers_figure():
    cora = find("citation")
    lines = [line("gcn", seed, 0.8, data="cora-random", preset="paper") for seed in range(10)]
    fig = draw(summarise(cora, lines, (), quick=False))
    (said,) = [text for text in legend(fig) if "paper's figure" in text]
    assert said.endswith("five initialisations on one split")


def cost_lines(data, *systems, **rest):
    return [
        line(one, seed, None, data=data, measures={"epoch_seconds": 0.1}, **rest) for one in systems for seed in (0, 1)
    ]


def test_cost_panels_name_devices():
    lines = [*cost_lines("cora", "gcn"), *cost_lines("cora", "gat", device="another")]
    (time,) = draw(summarise(find("cost"), lines, (), quick=False)).axes
    assert names(time) == ["GAT (another)", "GCN (a machine)"]
    assert "a machine and another; 2 seeds" in time.get_title(loc="left")
    assert [text.get_text() for text in time.texts] == ["5 MB", "5 MB"]


def test_large_graphs_have_panels_of_scores_and_of_cost():
    scores = [line("gcn", seed, 0.6, data="sbm-quick") for seed in range(2)]
    costs = cost_lines("random-graph-quick", "gcn", "mlp")
    for lines, labels in (
        (scores, ["test accuracy in %"]),
        (costs, ["milliseconds per epoch; peak memory"]),
        ([*scores, *costs], ["test accuracy in %", "milliseconds per epoch; peak memory"]),
    ):
        fig = draw(summarise(find("large"), lines, (), quick=True))
        assert [ax.get_xlabel() for ax in fig.axes if ax.axison] == labels


def test_attention_off_is_drawn_with_the_batch_sizes():
    keys = {"batch-5000": 0.6, "whole": 0.7}
    lines = [line(key, seed, value, data="pokec") for key, value in keys.items() for seed in range(5)]
    off = [line("off", 0, 0.4, data="pokec", settings={"batch_size": None}, peak_memory=9e6)]
    summary = summarise(find("batch-size"), [*lines, *off], (), quick=False)
    fig = draw(summary)
    assert "attention off" in legend(fig)
    score, memory = fig.axes
    drawn = [[list(one.get_ydata()) for one in ax.lines] for ax in (score, memory)]
    assert [pytest.approx(40.0)] in drawn[0]
    assert [9.0] in drawn[1]
    assert [text.get_text() for text in score.get_xticklabels()] == ["5000", "whole"]
    fig = draw(summarise(find("batch-size"), lines, (), quick=False))
    assert "attention off" not in legend(fig)


def test_robustness_draws_complete_runs_of_the_settings_in_use():
    reed = {"labels-1": 0.6, "labels-5": 0.7, "edges-0": 0.8, "edges-1": 0.5}
    lines = [line("mlp", s, v, data=f"facebook100-reed98-{key}") for key, v in reed.items() for s in range(5)]
    lines += [line("mlp", s, 0.1, data="facebook100-reed98-labels-1", preset="best") for s in range(5)]  # earlier
    lines += [line("gcn+", 0, 0.2, data="facebook100-reed98-labels-1")]  # one of five
    lines += [line("mlp", s, 0.3, data="facebook100-johnshopkins55-labels-1") for s in range(5)]  # no edge curve
    fig = draw(summarise(find("robustness"), lines, (), quick=False))
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["Facebook100, Reed"] * 2
    drawn = [[list(one.get_ydata()) for one in ax.lines if len(one.get_ydata()) == 2] for ax in fig.axes]
    assert [60.0, 70.0] in [pytest.approx(one) for one in drawn[0]]
    assert legend(fig)[0] == "MLP"
    assert "GCN+" not in legend(fig)
    assert not any(10 <= value <= 30 for panel in drawn for one in panel for value in one)


@pytest.mark.parametrize(
    ("panel", "said"),
    [
        ({"classes": [0, 2, 2], "values": None, "pairs": []}, ["class 0", "class 2"]),
        (
            {"classes": [1, 1, 0], "values": None, "pairs": [[0, 1, 0.5]]},
            ["class 0", "class 1", "a pair with the largest attention; darker is larger"],
        ),
    ],
)
def test_the_legend_of_maps_explains_points_and_lines(panel, said):
    picture = [{"title": "layer 1", "x": [0, 50, 100], "y": [0, 50, 100], **panel}]
    lines = [line("difformer-s", 0, 0.5, data="cifar10", measures={"pictures": picture})]
    fig = draw(summarise(find("visualise"), lines, (), quick=False))
    assert legend(fig) == said


def test_a_map_of_targets_has_a_colour_bar():
    panel = {"title": "snapshot 1", "x": [0, 50, 100], "y": [0, 50, 100], "classes": None, "pairs": []}
    measures = {"pictures": [{**panel, "values": [0.1, 0.2, 0.3]}]}
    lines = [line("difformer-s", 0, 0.5, data="cifar10", measures=measures)]
    _, bar = draw(summarise(find("visualise"), lines, (), quick=False)).axes
    assert bar.get_ylabel() == "target"


def test_a_figure_of_one_row_has_room_for_its_titles(tmp_path):
    lines = [line("gcn", seed, 0.8, data="cora-authors") for seed in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that collapses is a warning
        draw(summarise(find("citation"), lines, (), quick=False)).canvas.draw()


def inside(fig, artist):
    fig.canvas.draw()
    box = artist.get_window_extent(fig.canvas.get_renderer())
    return box.x0 >= 0 and box.x1 <= fig.bbox.width


@pytest.mark.parametrize(("width", "columns"), [(12.0, 4), (3.9, 2), (1.9, 1)])
def test_a_legend_has_as_many_columns_as_fit(width, columns):
    fig, _ = panels(1, width=width, height=3)
    marks = [pyplot().Line2D([], [], label=said) for said in ("ours", "rival", "attention off", "hollow: not tuned")]
    legend_below(fig, marks)
    (found,) = fig.legends
    assert found._ncols == columns
    assert inside(fig, found)


@pytest.mark.parametrize("quick", [True, False])
def test_the_heading_fits_and_marks_the_quick_form(quick):
    lines = [line("mlp", 0, 0.5)]
    fig = draw(summarise(SMALL, lines, (), quick=quick))
    said = fig.get_suptitle()
    assert said.startswith(SMALL.title)
    assert (QUICK in said.replace("\n", " ")) == quick
    assert inside(fig, fig._suptitle)


def test_legend_of_one_small_panel():
    lines = [line(system, seed, 0.5 + 0.1 * seed) for system in ("mlp", "difformer-s", "off") for seed in range(2)]
    fig = draw(summarise(SMALL, lines, (), quick=False))
    assert inside(fig, fig.legends[0])
    assert set(legend(fig)) == {"ours", "rival", "attention off", "hollow: not tuned", BARS}


def test_a_section_without_scores_has_no_panel():
    assert draw(summarise(SMALL, [line("mlp", 0, None, valid=None)], (), quick=False)) is None


def test_a_legend_names_lines_that_the_first_panel_lacks():
    lines = [line(system, 0, 0.5, data="cora") for system in ("K2-t0.1", "K2-t0.5-source")]
    fig = draw(summarise(find("depth"), lines, (), quick=False))
    assert legend(fig) == ["τ = 0.1", "τ = 0.5", BARS]


def test_a_title_wider_than_its_panel_widens_the_picture(tmp_path):
    sizes = []
    for title in ("short", "a title that is far longer than the panel below it can be wide"):
        fig, (ax,) = panels(1, width=2, height=2)
        ax.set_title(title, loc="left")
        save(fig, tmp_path)
        sizes.append(pyplot().imread(io.BytesIO((tmp_path / "figure.png").read_bytes())).shape[1])
    assert sizes[1] > 1.5 * sizes[0]


def test_what_attention_adds_is_drawn_with_its_interval():
    runs = {"difformer-s": (0.80, 0.82, 0.85), "off": (0.70, 0.71, 0.72)}
    lines = [line(key, seed, value) for key, found in runs.items() for seed, value in enumerate(found)]
    sections = summarise(SMALL, lines, (), quick=False).sections
    (ax,) = attention_figure(sections).axes
    comparison = sections[0].comparison("attention off")
    assert names(ax) == ["blocks"]
    assert ax.lines[1].get_xdata() == pytest.approx([comparison.gain])
    low, high = comparison.test.interval
    (bar,) = ax.containers[0].lines[2][0].get_segments()
    assert bar[1][0] - bar[0][0] == pytest.approx(100 * (high - low))


def test_energy_lines_have_distinct_labels_and_a_legend_below_the_panels():
    summary = read_summary(find("energy"), Path(__file__).parents[2] / "results" / "energy")
    fig = draw(summary)
    labels = legend(fig)
    assert len(set(labels)) == len(labels)
    assert {"DIFFormer-s (best)", "DIFFormer-s (public-code)"} <= set(labels)
    assert all(ax.get_legend() is None for ax in fig.axes if ax.get_xlabel() == "layer")
