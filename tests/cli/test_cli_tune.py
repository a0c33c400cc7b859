"""``difformer tune``: from a search to a preset that ``fit`` takes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from difformer.errors import UserError
from difformer.experiments import read_preset
from difformer.experiments.presets import load_presets

SMALL = ("--space", "learning_rate=0.001,0.05", "--space", "hidden_channels=4,8", "--set", "epochs=4")
HELD = ("--set", "num_layers=2", "--set", "dropout=0", "--set", "weight_decay=0")


def test_tune_writes_a_preset_that_fit_accepts(installed, call, tmp_path):
    answer = installed("tune", "iris", "--model", "mlp", "--trials", 2, *SMALL, *HELD, "--out", "study", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert "4 settings, and the defaults" in answer.out
    assert "The test part was not given to the trainer." in answer.out
    assert "trial 1 (defaults): valid" in answer.err
    assert answer.err.count("trial ") == 2
    preset = read_preset(tmp_path / "study/best.toml")
    assert (preset.model, preset.dataset, preset.trials, preset.metric) == ("mlp", "iris", 2, "accuracy")
    assert preset.command.startswith("difformer tune iris --model mlp --trials 2")
    assert preset.settings["epochs"] == 4
    fitted = call("fit", "iris", "--preset", "study/best.toml", "--seeds", 1, "--json", "--out", "run")
    assert fitted.code == 0, fitted.err
    config = json.loads(fitted.out)["config"]
    assert config["model"] == "mlp"
    assert config["learning_rate"] == preset.settings["learning_rate"]
    # The same seed on the same split gives the score that was selected.
    assert json.loads(fitted.out)["valid"]["mean"] == pytest.approx(preset.validation)


def test_tune_on_own_files_tries_the_settings_that_fit_starts_from(call, tmp_path):
    rows = [f"{i % 7},{(3 * i) % 5},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["x,z,label", *rows]))
    answer = call("tune", tmp_path / "t.csv", "--trials", 2, "--set", "epochs=2", "--out", "study", "--json")
    assert answer.code == 0, answer.err
    start = next(preset for preset in load_presets() if preset.name == "own-data").settings
    tried = json.loads(answer.out)["trials"][1]["settings"]
    assert {key: tried[key] for key in start if key != "epochs"} == {k: v for k, v in start.items() if k != "epochs"}


def test_the_same_command_continues_a_study(call):
    words = ["tune", "iris", "--model", "mlp", *SMALL, *HELD, "--out", "study", "--json"]
    first = json.loads(call(*words, "--trials", 1).out)
    more = call(*words, "--trials", 3)
    found = json.loads(more.out)
    assert len(first["trials"]) == 1
    assert [trial["number"] for trial in found["trials"]] == [0, 1, 2]
    assert more.err.count("trial ") == 2
    assert found["valid"] == max(trial["value"] for trial in found["trials"])


def test_long_trial_table_says_it_is_shortened(call, monkeypatch):
    monkeypatch.setattr("difformer.cli.tune.SHOWN", 2)
    words = ["tune", "iris", "--model", "mlp", *SMALL, *HELD, "--out", "study", "--no-prune"]
    assert "the best" not in call(*words, "--trials", 2).out
    assert "the best 2 of 3 completed trials" in call(*words, "--trials", 3).out


def test_default_space_is_the_paper_grid(call):
    answer = call("tune", "karate", "--model", "difformer-s", "--trials", 1, "--set", "epochs=1")
    assert answer.code == 0, answer.err
    assert "search space of difformer-s: the paper's Appendix E, observed graphs, 864 settings" in answer.out
    assert "weight_decay: 0.0, 0.0001, 0.001, 0.01, 0.1, 1.0" in answer.out
    assert "best settings: tune/karate-difformer-s/best.toml" in answer.out


def test_several_models_are_tuned_with_one_budget_each(call, tmp_path):
    words = ["tune", "karate", "--models", "gcn", "mlp", "--trials", 2, "--set", "epochs=2"]
    answer = call(*words, "--out", "study", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)["models"]
    assert [one["model"] for one in found] == ["gcn", "mlp"]
    assert [len(one["trials"]) for one in found] == [2, 2]
    assert answer.err.count("gcn trial ") == answer.err.count("mlp trial ") == 2
    for name in ("gcn", "mlp"):
        assert read_preset(tmp_path / f"study/best-{name}.toml").model == name
    again = call(*words, "--out", "study")
    assert "trial 1" not in again.err
    assert any(line.split() == ["rank", "model", "valid", "accuracy", "trials"] for line in again.out.splitlines())


def test_own_data_are_searched_around_the_defaults(call, tmp_path):
    rows = "".join(f"{i % 7},{(i * 3) % 5},{'ab'[i % 2]}\n" for i in range(60))
    (tmp_path / "x.csv").write_text("u,v,label\n" + rows)
    answer = call("tune", "--features", "x.csv", "--trials", 2, "--set", "epochs=2", "--out", "study")
    assert answer.code == 0, answer.err
    assert "values around the defaults" in answer.out
    assert "learning_rate: 0.0003, 0.001, 0.003, 0.01" in answer.out
    assert "defaults 0." in answer.out


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
def test_invalid_requests_are_explained(call, tmp_path, words, complaint):
    answer = call("tune", "iris", "--model", "mlp", *words)
    assert answer.code == 2
    assert complaint in answer.err
    assert not (tmp_path / "tune").exists()


def test_a_preset_of_another_model_is_refused(call, tmp_path):
    (tmp_path / "mine.toml").write_text('name = "mine"\nmodel = "mlp"\ndataset = "iris"\n[settings]\nnum_layers = 3\n')
    answer = call("fit", "iris", "--preset", "mine.toml", "--model", "gcn")
    assert answer.code == 2
    assert "is for model 'mlp', but --model says 'gcn'" in answer.err


def test_grid_sampler_stops_at_trials(call):
    words = ["tune", "iris", "--model", "mlp", "--sampler", "grid", "--set", "epochs=1"]
    space = ["--space", "dropout=0.0,0.2,0.4", "--space", "hidden_channels=4", "--space", "weight_decay=0.0"]
    axes = ["--space", "learning_rate=0.01", "--space", "num_layers=2"]
    answer = call(*words, *space, *axes, "--trials", 2)
    assert answer.code == 0, answer.err
    assert "2 trials" in answer.out
    assert "3 settings, and the defaults" in answer.out
    every = call(*words, *space, *axes, "--trials", 9)
    assert "4 trials" in every.out


def test_an_unusable_study_folder_gives_one_message(call, tmp_path):
    words = ["tune", "iris", "--model", "mlp", "--set", "epochs=1", "--trials", 1]
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/study.json").write_text("[")
    answer = call(*words, "--out", "damaged")
    assert answer.code == 2
    assert "study.json cannot be read" in answer.err
    assert "Traceback" not in answer.err
    (tmp_path / "file").write_text("")
    assert "error: file cannot be written" in call("tune", "iris", "--trials", 1, "--out", "file").err


def test_a_study_with_other_settings_says_which_and_what_to_do(call):
    words = ("tune", "iris", "--model", "mlp", "--trials", 1, "--out", "study")
    assert call(*words, "--set", "epochs=2", "--space", "dropout=0,0.5").code == 0
    answer = call(*words, "--set", "epochs=3", "--space", "dropout=0,0.2", "--seed", 1)
    assert answer.code == 2
    for part in ("epochs=2 (now 3)", "dropout=[0, 0.5] (now [0, 0.2])", "seed=0 (now 1)"):
        assert part in answer.err
    assert "to continue it repeat the earlier request, to start a new study choose another folder" in answer.err


def test_ranks_stop_after_seconds_too(call, monkeypatch):
    given = {}

    def search(*_, **options):
        given.update(options)
        raise UserError("enough")

    ranks = SimpleNamespace(size=2, device=torch.device("cpu"))
    monkeypatch.setattr("difformer.training.study.tune", search)
    monkeypatch.setattr("difformer.cli.tune.under_torchrun", lambda: True)
    monkeypatch.setattr("difformer.cli.tune.joined", lambda device: nullcontext(ranks))
    assert call("tune", "iris", "--model", "mlp", "--seconds", 5).err.endswith("error: enough\n")
    assert (given["seconds"], given["ranks"]) == (5, ranks)
