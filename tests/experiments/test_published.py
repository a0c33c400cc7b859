"""Published figures belong to existing rows and have the values of the paper."""

from __future__ import annotations

import re

import pytest

from difformer.experiments.analysis import AUTHORS, MEMORY, PAPER, figure, mean_of, published
from difformer.experiments.spec import experiments, find

SOURCES = (PAPER, AUTHORS, MEMORY)


def test_every_figure_belongs_to_a_row_of_a_table():
    for name, tables in published().items():
        experiment = find(name)
        systems = {system.key for system in experiment.systems}
        for source in SOURCES:
            for key, entries in tables.get(source, {}).items():
                sections = {one.key for one in experiment.data} | {one.published for one in experiment.data}
                assert key in sections, f"{name}.{source}.{key}"
                assert set(entries) <= systems, f"{name}.{source}.{key}: {set(entries) - systems}"
                for entry in entries.values():
                    assert re.fullmatch(r"\d+(\.\d+)?( ± \d+(\.\d+)?)?|[a-z ]+", entry)


def test_every_system_of_the_papers_tables_has_a_figure():
    """Rows that the paper has on every data set of a table."""
    wanted = {"citation": 21, "heterophily": 10, "temporal": 10, "unobserved": 8, "particles": 7, "large": 7, "cost": 5}
    for name, count in wanted.items():
        for key, entries in published()[name][PAPER].items():
            assert len(entries) == count, f"{name}.{key}"


@pytest.mark.parametrize(
    ("name", "data", "system", "printed"),
    [
        ("citation", "cora-authors", "difformer-s", "85.9 ± 0.4"),
        ("citation", "citeseer-random", "difformer-a", "75.7 ± 0.3"),
        ("citation", "pubmed-authors", "nodeformer", "81.5 ± 0.4"),
        ("heterophily", "squirrel", "difformer-a", "40.5 ± 1.8"),
        ("temporal", "covid-published", "difformer-a-no-graph", "0.741 ± 0.052"),
        ("unobserved", "20news-4000", "difformer-s", "65.9 ± 0.8"),
        ("unobserved", "cifar10-100", "difformer-a", "69.3 ± 1.4"),
        ("particles", "synmol", "difformer-a", "73.28 ± 1.65"),
        ("large", "pokec", "difformer-s", "69.24 ± 0.76"),
        ("batch-size", "pokec", "batch-50000", "68.96 ± 0.63"),
        ("cost", "wikimath", "dense-gat", "0.0364"),
    ],
)
def test_figures_of_the_paper(name, data, system, printed):
    section = next(one for one in find(name).data if one.key == data)
    assert figure(name, PAPER, section, system) == printed
    assert mean_of(printed) == float(printed.split()[0])


def test_published_text_is_kept_and_missing_figures_are_none():
    pubmed = next(one for one in find("citation").data if one.key == "pubmed-authors")
    assert figure("citation", PAPER, pubmed, "lds") == "out of memory"
    assert mean_of("out of memory") is None
    assert figure("citation", PAPER, pubmed, "off") is None
    random = next(one for one in find("citation").data if one.key == "cora-random")
    assert figure("citation", AUTHORS, random, "difformer-s") is None  # it was measured on the authors' split


def test_true_mse_is_never_compared_with_published_broadcast_mse():
    for one in find("temporal").data:
        if one.settings["metric"] == "mse":
            assert figure("temporal", PAPER, one, "difformer-s") is None


def test_tables_are_named_after_experiments():
    assert set(published()) <= {one.name for one in experiments()}
