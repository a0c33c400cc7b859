"""``difformer tune``: from a search to a preset that ``fit`` takes."""

from __future__ import annotations

import json

import pytest

from difformer.experiments import read_preset

pytest.importorskip("optuna")
SMALL = ("--space", "learning_rate=0.001,0.05", "--space", "hidden_channels=4,8", "--set", "epochs=4")
HELD = ("--set", "num_layers=2", "--set", "dropout=0", "--set", "weight_decay=0")


def test_a_search_ends_in_a_preset_that_fit_takes(installed, tmp_path):
    answer = installed("tune", "iris", "--model", "mlp", "--trials", 2, *SMALL, *HELD, "--out", "study", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert "4 settings" in answer.out
    assert "the test part was not looked at" in answer.out
    assert answer.err.count("trial ") == 2
    preset = read_preset(tmp_path / "study/best.toml")
    assert (preset.model, preset.dataset, preset.trials, preset.metric) == ("mlp", "iris", 2, "accuracy")
    assert preset.command.startswith("difformer tune iris --model mlp --trials 2")
    assert preset.settings["epochs"] == 4
    fitted = installed(
        "fit", "iris", "--preset", "study/best.toml", "--seeds", 1, "--json", "--out", "run", cwd=tmp_path
    )
    assert fitted.code == 0, fitted.err
    config = json.loads(fitted.out)["config"]
    assert config["model"] == "mlp"
    assert config["learning_rate"] == preset.settings["learning_rate"]
    # The same seed on the same split gives the score that was selected.
    assert json.loads(fitted.out)["valid"]["mean"] == pytest.approx(preset.validation)


def test_the_same_command_goes_on(call):
    words = ["tune", "iris", "--model", "mlp", *SMALL, *HELD, "--out", "study", "--json"]
    first = json.loads(call(*words, "--trials", 1).out)
    more = call(*words, "--trials", 3)
    found = json.loads(more.out)
    assert len(first["trials"]) == 1
    assert [trial["number"] for trial in found["trials"]] == [0, 1, 2]
    assert more.err.count("trial ") == 2
    assert found["valid"] == max(trial["value"] for trial in found["trials"])


def test_a_long_list_says_that_it_is_not_whole(call, monkeypatch):
    monkeypatch.setattr("difformer.cli.tune.SHOWN", 2)
    words = ["tune", "iris", "--model", "mlp", *SMALL, *HELD, "--out", "study", "--no-prune"]
    assert "the best" not in call(*words, "--trials", 2).out
    assert "the best 2 of 3 completed trials" in call(*words, "--trials", 3).out


def test_the_default_space_is_the_papers(call):
    answer = call("tune", "karate", "--model", "gcn", "--trials", 1, "--set", "epochs=1")
    assert answer.code == 0, answer.err
    assert "search space: the paper's Appendix E, observed graphs, 864 settings" in answer.out
    assert "weight_decay: 0.0, 0.0001, 0.001, 0.01, 0.1, 1.0" in answer.out
    assert "best settings: tune/karate-gcn/best.toml" in answer.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "mlpp"], "did you mean 'mlp'"),
        (["--space", "colour=red,blue"], "unknown setting 'colour'"),
        (["--space", "epochs=0"], "epochs must be a whole number"),
        (["--space", "dropout=0", "--set", "dropout=0.2"], "choose one"),
        (["--sampler", "luck"], "sampler must be one of random, tpe, grid"),
        (["--stacked", "--sampler", "tpe"], "stacked: sampler"),
    ],
)
def test_what_is_wrong_is_said(call, tmp_path, words, complaint):
    answer = call("tune", "iris", "--model", "mlp", *words)
    assert answer.code == 2
    assert complaint in answer.err
    assert not (tmp_path / "tune").exists()


def test_a_preset_of_another_model_is_refused(call, tmp_path):
    (tmp_path / "mine.toml").write_text('name = "mine"\nmodel = "mlp"\ndataset = "iris"\n[settings]\nnum_layers = 3\n')
    answer = call("fit", "iris", "--preset", "mine.toml", "--model", "gcn")
    assert answer.code == 2
    assert "is for model 'mlp', but --model says 'gcn'" in answer.err


def test_a_grid_stops_where_it_is_told_and_says_how_large_it_is(call):
    words = ["tune", "iris", "--model", "mlp", "--sampler", "grid", "--set", "epochs=1"]
    space = ["--space", "dropout=0.0,0.2,0.4", "--space", "hidden_channels=4", "--space", "weight_decay=0.0"]
    axes = ["--space", "learning_rate=0.01", "--space", "num_layers=2"]
    answer = call(*words, *space, *axes, "--trials", 2)
    assert answer.code == 0, answer.err
    assert "2 trials" in answer.out
    assert "2 of the 3 points of the grid were tried; --trials 3 tries them all" in answer.out
    every = call(*words, *space, *axes, "--trials", 9)
    assert "3 trials" in every.out
    assert "points of the grid" not in every.out


def test_a_broken_database_is_one_message(call, tmp_path):
    (tmp_path / "study").mkdir()
    (tmp_path / "study/study.db").write_text("no database")
    answer = call("tune", "iris", "--model", "mlp", "--set", "epochs=1", "--trials", 1, "--out", "study")
    assert answer.code == 2
    assert "error: study/study.db cannot be used as the study's database (file is not a database)" in answer.err
    assert "Traceback" not in answer.err
    assert (tmp_path / "study/study.db").read_text() == "no database"
    (tmp_path / "file").write_text("")
    assert "error: file cannot be written" in call("tune", "iris", "--trials", 1, "--out", "file").err
