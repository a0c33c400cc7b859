"""The command on small real data: a citation graph with sparse features, a series, and a heterophilous graph."""

from __future__ import annotations

import json
import os

import pytest

pytestmark = pytest.mark.skipif(not os.environ.get("DIFFORMER_DATA"), reason="DIFFORMER_DATA names no folder")


def test_cora_with_the_authors_settings_and_protocol(call):
    words = ["--preset", "public-code", "--protocol", "authors", "--set", "epochs=3", "--seeds", "1", "--out", "run"]
    answer = call("fit", "cora", *words)
    assert answer.code == 0, answer.err
    assert "cora: 2,708 nodes, 13,264 edges, 1,433 features, 7 classes" in answer.out
    assert "authors: 20 labels per class, 500, 1000, one split, seed 123" in answer.out
    assert "preset: public-code (difformer-s on cora): the authors' public code" in answer.out
    energy = json.loads(call("energy", "run", "--json").out)
    assert len(energy["energy"]) == 9
    assert "accuracy" in call("evaluate", "run").out


def test_fit_notes_the_protocol_of_a_preset(call):
    answer = call("fit", "cora", "--preset", "public-code", "--set", "epochs=1", "--set", "num_layers=1", "--seeds", 1)
    assert "these settings belong to protocol 'authors'; add --protocol authors" in answer.out


def test_chickenpox_with_and_without_its_graph(call):
    for preset in ("public-code", "public-code-no-graph"):
        words = ["--preset", preset, "--set", "epochs=2", "--seeds", "1", "--json", "--out", preset]
        answer = call("fit", "chickenpox", "--model", "difformer-a", *words)
        assert answer.code == 0, answer.err
        document = json.loads(answer.out)
        assert document["metric"] == "mse"
        assert document["config"]["loss"] == "broadcast-mse"
        assert document["config"]["graph"] == ("given" if preset == "public-code" else "none")
    assert call("predict", "public-code", "--out", "p.csv").code == 0


def test_chameleon_with_its_published_splits(call):
    words = ["--preset", "public-code", "--set", "epochs=2", "--seeds", "2", "--json", "--out", "run"]
    document = json.loads(call("fit", "chameleon", *words).out)
    assert len({result["split"] for result in document["results"]}) == 2
    assert document["config"]["options"]["graph_weight"] == 0.7


def test_datasets_on_disk_are_found(call):
    place = {entry["name"]: entry["place"] for entry in json.loads(call("datasets", "--json").out)}
    assert place["cora"].startswith(os.environ["DIFFORMER_DATA"])
