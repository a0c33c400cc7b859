"""``difformer certify``: theorems as a table, and an exit code that a script can use."""

from __future__ import annotations

import json

import pytest

import difformer.diffusion
from difformer.diffusion import Certificate


def test_all_theorems_hold_on_the_karate_club(installed, tmp_path):
    answer = installed("certify", "karate", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("karate: 34 states of length 34, 190 edges")
    for name in ("thm-gcn", "prop-bound", "thm-main", "eqn-energy-graph"):
        assert name in answer.out
    assert "proven statements hold" in answer.out


def test_default_data_set_and_json_output(call):
    document = json.loads(call("certify", "--nodes", 50, "--steps", 2, "--json").out)
    assert document["data"].startswith("sbm, 50 of")
    met = [one for one in document["certificates"] if one["condition_met"]]
    assert met
    assert all(one["holds"] for one in met)


def test_claims_about_graphs_are_left_out_without_a_graph(call):
    answer = call("certify", "iris", "--nodes", 60, "--diffusivity", "sigmoid", "--steps", 2)
    assert answer.code == 0
    assert "thm-main" in answer.out
    assert "thm-gcn" not in answer.out
    assert "There is no graph in these data" in answer.out
    assert "error: " in call("certify", "iris", "--diffusivity", "simpel").err


def test_a_violated_claim_ends_with_exit_code_1(call, monkeypatch):
    broken = Certificate("thm-x", "2 < 1", "always", condition_met=True, violation=1.0)
    monkeypatch.setattr(difformer.diffusion, "certify", lambda *_, **__: [broken])
    answer = call("certify", "karate")
    assert (answer.code, answer.err) == (1, "violated: thm-x\n")


def test_certify_refuses_a_run_folder(call, tmp_path):
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "config.toml").write_text("")
    answer = call("certify", "ws")
    assert answer.code == 2
    assert "ws is a run folder, not a data set" in answer.err
    assert "difformer energy ws" in answer.err


def test_certify_accepts_your_own_files(call, people):
    words = ["--features", people / "people.csv", "--labels", people / "groups.csv", "--edges", people / "friends.csv"]
    answer = call("certify", *words, "--steps", 2)
    assert answer.code == 0, answer.err
    assert answer.out.startswith("people: 60 states of length 2, 180 edges")


@pytest.mark.parametrize(
    "name", ["digits", "wine", "breast-cancer", "iris", "karate", "sbm", "two-moons", "heat", "random-graph"]
)
def test_certify_accepts_every_built_in_data_set(call, name):
    """`heat` has one feature: its normalised states are 1 and -1, as far apart as states can be."""
    for diffusivity in ("simple", "sigmoid"):
        answer = call("certify", name, "--nodes", "60", "--steps", "3", "--diffusivity", diffusivity)
        assert answer.code == 0, answer.err
        assert "proven statements hold" in answer.out
