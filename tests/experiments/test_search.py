import json
import math

import pytest

from difformer.experiments import search
from difformer.experiments.presets import read_preset
from difformer.training import NonFiniteLossError
from difformer.training.spaces import Space

ARGUMENTS = ["karate", "--models", "gcn", "mlp", "--trials", "3", "--set", "epochs=4", "--device", "cpu"]


def lines(folder):
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


def test_every_model_gets_the_same_budget_and_a_preset(tmp_path, capsys):
    search.main([*ARGUMENTS, "--out", str(tmp_path)])
    found = lines(tmp_path)
    assert [line["model"] for line in found] == ["gcn"] * 3 + ["mlp"] * 3
    assert all("test" not in line for line in found)
    assert [line["settings"] for line in found[:3]] == [line["settings"] for line in found[3:]]
    for model in ("gcn", "mlp"):
        preset = read_preset(tmp_path / f"karate-{model}.toml")
        best = max(line["valid"] for line in found if line["model"] == model)
        assert preset.validation == pytest.approx(best, abs=1e-6)
        assert preset.trials == 3
        assert preset.settings["epochs"] == 4
    assert "3 of 3 settings" in capsys.readouterr().out


def test_a_variant_is_said_in_the_preset_and_in_its_name(tmp_path):
    search.main(
        ["karate", "--models", "mlp", "--trials", "1", "--set", "epochs=2", "--variant", "few", "--out", str(tmp_path)]
    )
    assert read_preset(tmp_path / "karate-few-mlp.toml").variant == "few"


def test_what_is_there_is_not_trained_again(tmp_path, monkeypatch):
    search.main([*ARGUMENTS, "--out", str(tmp_path)])
    path = tmp_path / "trials.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]) + '{"cut off')
    trained = []
    before = search.search
    monkeypatch.setattr(search, "search", lambda t, q, points, d: trained.extend(points) or before(t, q, points, d))
    search.main([*ARGUMENTS, "--out", str(tmp_path)])
    assert len(trained) == 1


def test_a_setting_that_was_written_twice_counts_once(tmp_path, capsys):
    search.main([*ARGUMENTS, "--out", str(tmp_path)])
    path = tmp_path / "trials.jsonl"
    written = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*written, written[0]]))
    capsys.readouterr()
    search.main([*ARGUMENTS, "--out", str(tmp_path)])
    assert "3 of 3 settings" in capsys.readouterr().out
    path.write_text("".join([*written[:2], written[0]]))  # three lines of gcn, two settings
    (tmp_path / "karate-gcn.toml").unlink()
    search.main([*ARGUMENTS, "--seconds", "-1", "--out", str(tmp_path)])
    assert "gcn: 2 of 3 settings" in capsys.readouterr().out
    assert not (tmp_path / "karate-gcn.toml").exists()


def test_a_setting_that_was_given_is_said_in_the_source(tmp_path):
    search.main([*ARGUMENTS, "--first", "learning_rate=0.02", "--out", str(tmp_path)])
    assert "and one setting that was given" in read_preset(tmp_path / "karate-gcn.toml").source


def test_a_setting_that_diverges_is_never_the_best(tmp_path, monkeypatch):
    def explode(*args, **options):
        raise NonFiniteLossError(1, math.nan, args[2])

    monkeypatch.setattr(search, "why_not", lambda *_: "because")
    monkeypatch.setattr(search, "train_one", explode)
    search.main([*ARGUMENTS[:3], "--trials", "2", "--set", "epochs=2", "--out", str(tmp_path)])
    assert all(math.isnan(line["valid"]) for line in lines(tmp_path))
    assert not list(tmp_path.glob("*.toml"))


def test_customary_values_may_be_the_first_of_the_trials(tmp_path):
    ask = [*ARGUMENTS, "--out", str(tmp_path)]
    search.main(ask)
    search.main([*ask, "--first", "learning_rate=0.007", "num_heads=3", "dropout=0.3"])
    tried = [line["settings"] for line in lines(tmp_path) if line["model"] == "gcn"]
    assert len(tried) == 4  # three at first; then one more, with two of the three
    assert tried[-1] == {"learning_rate": 0.007, "dropout": 0.3}  # a GCN has no heads
    preset = read_preset(tmp_path / "karate-gcn.toml")
    assert preset.trials == 3
    assert "--first learning_rate=0.007" in preset.command
    assert preset.validation == max(
        line["valid"]
        for line in lines(tmp_path)
        if line["settings"] in [*tried[:2], tried[3]] and line["model"] == "gcn"
    )


def test_customary_values_that_are_drawn_too_are_one_trial():
    space = Space("small", {"dropout": (0.1, 0.2, 0.3)})
    for rate in (0.1, 0.2, 0.3):
        points = search.points_of(space, "gcn", 3, 0, {"dropout": rate})
        assert points[0] == {"dropout": rate}
        assert sorted(point["dropout"] for point in points) == [0.1, 0.2, 0.3]
