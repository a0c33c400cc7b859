"""What figures show: every row, what lies outside of the axis, and in words what marks, bars and lines are."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
from small_experiment import BLOCKS, GCN, MLP, SMALL, line

from difformer.experiments import batch_size, large, visualise
from difformer.experiments.catalogue import find
from difformer.experiments.costs import draw as draw_cost
from difformer.experiments.drawing import pyplot
from difformer.experiments.figures import dots
from difformer.experiments.outliers import near
from difformer.experiments.plan import System
from difformer.experiments.summary import summarise

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


@pytest.mark.parametrize(
    ("points", "kept"),
    [
        ((0.61, 0.65, 0.7, 0.8, 0.9, 2.78), (0.61, 0.9)),
        ((-50, 60, 61, 62, 63, 64, 200), (60, 64)),
        ((55, 70, 80, 81, 82, 83), (55, 83)),  # far, but not so far that the others cannot be told apart
        ((0.6, 0.7, 9.0), (0.6, 9.0)),
        ((0.5,) * 6, (0.5, 0.5)),
        ((0.5,), (0.5, 0.5)),
    ],
)
def test_the_axis_holds_what_can_be_told_apart(points, kept):
    assert near(points) == kept


def test_what_lies_far_from_the_others_is_an_arrow_with_its_value():
    scores = {f"gcn{i}": 0.60 + 0.05 * i for i in range(6)} | {"mlp": 2.7777}
    rest = {"metric": "mse", "higher_is_better": False}
    lines = [line(key, seed, value, **rest) for key, value in scores.items() for seed in range(3)]
    (ax,) = dots(summarise(MANY, lines, (), quick=False), None).axes
    low, high = ax.get_xlim()
    assert 0.55 < low < 0.60
    assert 0.85 < high < 0.90
    (said,) = ax.texts
    assert said.get_text() == "2.778"
    assert said.arrow_patch is not None
    assert said.xy == (high, names(ax).index("MLP (untuned)"))
    near_ones = [one for one in lines if one["system"] != "mlp"]
    (ax,) = dots(summarise(MANY, near_ones, (), quick=False), None).axes
    assert not ax.texts


def test_names_say_the_settings_and_how_many_runs_are_missing():
    lines = [line("gcn", seed, 0.5, preset="paper") for seed in range(3)] + [line("mlp", 0, 0.4)]
    fig = dots(summarise(MANY, lines, (), quick=False), None)
    assert names(fig.axes[0]) == ["GCN (paper's grid)", "MLP (untuned), 1 of 3 runs"]
    assert "bars: ± standard deviation over seeds and splits" in legend(fig)
    fig = dots(summarise(MANY, lines[-1:], (), quick=False), None)
    assert not [said for said in legend(fig) if said.startswith("bars")]


def test_the_legend_says_what_the_papers_figure_is_over():
    cora = find("citation")
    lines = [line("gcn", seed, 0.8, data="cora-random", preset="paper") for seed in range(10)]
    fig = dots(summarise(cora, lines, (), quick=False), None)
    (said,) = [text for text in legend(fig) if "paper's figure" in text]
    assert said.endswith("five initialisations on one split")


def cost_lines(data, *systems, **rest):
    return [
        line(one, seed, None, data=data, measures={"epoch_seconds": 0.1}, **rest) for one in systems for seed in (0, 1)
    ]


def test_costs_name_their_devices_and_the_runs_that_are_missing():
    lines = [*cost_lines("cora", "gcn"), *cost_lines("cora", "gat", device="another")]
    time, _ = draw_cost(summarise(find("cost"), lines, (), quick=False), None).axes
    assert names(time) == ["GAT, 2 of 3 runs B", "GCN, 2 of 3 runs A"]
    assert "A a machine; B another" in time.get_title(loc="left")


def test_large_graphs_have_panels_of_scores_and_of_cost():
    scores = [line("gcn", seed, 0.6, data="sbm-quick") for seed in range(2)]
    costs = cost_lines("random-graph-quick", "gcn", "mlp")
    for lines, labels in (
        (scores, ["test accuracy in %"]),
        (costs, ["milliseconds an epoch", "peak of memory in MB"]),
        ([*scores, *costs], ["test accuracy in %", "milliseconds an epoch", "peak of memory in MB"]),
    ):
        fig = large.draw(summarise(find("large"), lines, (), quick=True), None)
        assert [ax.get_xlabel() for ax in fig.axes if ax.axison] == labels


def test_attention_off_stands_beside_the_sizes_of_batches():
    keys = {"batch-5000": 0.6, "whole": 0.7}
    lines = [line(key, seed, value, data="pokec") for key, value in keys.items() for seed in range(5)]
    off = [line("off", 0, 0.4, data="pokec", settings={"batch_size": None}, peak_memory=9e6)]
    summary = summarise(find("batch-size"), [*lines, *off], (), quick=False)
    fig = batch_size.draw(summary, None)
    assert "attention off" in legend(fig)
    score, memory = fig.axes
    drawn = [[list(one.get_ydata()) for one in ax.lines] for ax in (score, memory)]
    assert [pytest.approx(40.0)] in drawn[0]
    assert [9.0] in drawn[1]
    assert [text.get_text() for text in score.get_xticklabels()] == ["5000", "whole"]
    assert [text.get_text() for text in score.texts if text.get_text()] == ["1 of 5 runs"]
    fig = batch_size.draw(summarise(find("batch-size"), lines, (), quick=False), None)
    assert "attention off" not in legend(fig)


@pytest.mark.parametrize(
    ("panel", "said"),
    [
        ({"classes": [0, 2, 2], "values": None, "pairs": []}, ["class 0", "class 2"]),
        (
            {"classes": [1, 1, 0], "values": None, "pairs": [[0, 1, 0.5]]},
            ["class 0", "class 1", "a pair with the largest attention, the darker the larger"],
        ),
        ({"classes": None, "values": [0.1, 0.2, 0.3], "pairs": []}, ["a node, coloured by its target"]),
    ],
)
def test_maps_say_what_points_and_lines_are(panel, said):
    picture = [{"title": "layer 1", "x": [0, 50, 100], "y": [0, 50, 100], **panel}]
    lines = [line("difformer-s", 0, 0.5, data="cifar10", measures={"pictures": picture})]
    fig = visualise.draw(summarise(find("visualise"), lines, (), quick=False), None)
    assert legend(fig) == said


def test_a_figure_of_one_row_has_room_for_its_titles(tmp_path):
    lines = [line("gcn", seed, 0.8, data="cora-authors") for seed in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that collapses is a warning
        dots(summarise(find("citation"), lines, (), quick=False), tmp_path).canvas.draw()
