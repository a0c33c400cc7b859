"""Which settings each row runs with."""

from __future__ import annotations

import pytest

from difformer.experiments.cells import UNTUNED, Cell, Request, choices, read_presets, wanted_cells
from difformer.experiments.ledger import complete, settings_id
from difformer.experiments.presets import Preset, load_presets, write_preset
from difformer.experiments.spec import Data, find, shared_systems
from difformer.zoo import options_of

CITATION = find("citation")
CORA = CITATION.data[0]
GCN, DIFFORMER_S, OFF = (shared_systems()[key] for key in ("gcn", "difformer-s", "off"))


def names(system, presets, data=CORA):
    return [one.name for one in choices(CITATION, data, system, presets)]


def preset(name, model, dataset="cora", **rest):
    settings = rest.pop("settings", {"learning_rate": 0.5})
    return Preset(name, model, dataset, settings=settings, source="a test", trials=16, **rest)


def test_our_systems_run_with_every_preset_and_rivals_with_their_best():
    ours = [preset(name, "difformer-s") for name in ("best", "public-code", "paper")]
    theirs = [preset(name, "gcn") for name in ("paper", "best")]
    assert names(DIFFORMER_S, ours) == ["public-code", "paper", "best"]
    assert names(GCN, theirs) == ["best"]
    assert names(GCN, theirs[:1]) == ["paper"]
    assert choices(CITATION, CORA, GCN, theirs)[0].trials == 16


def test_systems_without_a_preset_use_the_untuned_settings_of_the_table():
    (only,) = choices(CITATION, CORA, GCN, ())
    assert only.name == UNTUNED
    assert dict(only.settings) == dict(CITATION.untuned)
    assert names(GCN, [preset("best", "gcn", "citeseer")]) == [UNTUNED]


def test_attention_off_uses_presets_of_difformer_s_unless_it_has_its_own():
    base = preset("best", "difformer-s", settings={"learning_rate": 0.5, "num_layers": 7})
    (followed,) = choices(CITATION, CORA, OFF, [base])
    # Where the model has other defaults than DIFFormer-s, those of DIFFormer-s count.
    general = options_of("difformer-off")
    shared = {key: value for key, value in options_of("difformer-s").items() if general.get(key) != value}
    assert dict(followed.settings) == {**shared, "learning_rate": 0.5, "num_layers": 7}
    own = preset("best", "difformer-off", settings={"learning_rate": 0.1})
    (tuned,) = choices(CITATION, CORA, OFF, [base, own])
    assert dict(tuned.settings) == {**shared, "learning_rate": 0.1}
    another = preset("best", "difformer", settings={"learning_rate": 0.1})
    assert choices(CITATION, CORA, OFF, [another, base])[0].settings["num_layers"] == 7


def test_class_defaults_and_attention_off_have_different_identities_and_presets():
    general = shared_systems()["difformer"]
    tuned = preset("best", "difformer", settings={"learning_rate": 0.1})
    cells = [Cell(CORA, system, choices(CITATION, CORA, system, [tuned])[0]) for system in (general, OFF)]
    assert [cell.preset.name for cell in cells] == ["best", UNTUNED]
    plain = [Cell(CORA, system, preset(UNTUNED, system.model, settings={})) for system in (general, OFF)]
    assert len({cell.settings_id() for cell in plain}) == 2
    assert complete(plain[1].config())["diffusivity"] is None


def test_lines_of_attention_off_from_before_it_had_a_model_keep_their_identity():
    cell = Cell(CORA, OFF, preset("best", "difformer-off", settings={"learning_rate": 0.1}))
    old = settings_id("difformer", {**cell.settings(), "diffusivity": None}, "cora", CORA.options)
    assert old == cell.settings_id()
    assert settings_id("difformer", {**cell.settings(), "diffusivity": "simple"}, "cora", CORA.options) != old


def test_series_without_graph_use_their_own_presets():
    temporal = find("temporal")
    data = next(one for one in temporal.data if one.key == "covid-published")
    system = next(one for one in temporal.systems if one.key == "difformer-s-no-graph")
    only, *tuned = choices(temporal, data, system, load_presets())
    assert only.name == "public-code"
    assert [choice.name for choice in tuned] == ["paper", "best"]
    assert {choice.settings["graph"] for choice in tuned} == {"none"}
    assert (only.settings["weight_decay"], only.settings["graph"]) == (0.005, "none")
    assert (only.settings["loss"], only.settings["metric"]) == ("broadcast-mse", "broadcast-mse")
    true = next(one for one in temporal.data if one.key == "covid")
    only, *_ = choices(temporal, true, system, load_presets())
    assert (only.settings["loss"], only.settings["metric"]) == ("auto", "mse")


def test_a_preset_variant_is_used_only_for_its_section():
    few = Data("few", "cora", "few", variant="per_class=5")
    general, special = preset("best", "gcn"), preset("best", "gcn", variant="per_class=5", settings={"epochs": 3})
    found = [general, special]
    assert dict(choices(CITATION, few, GCN, found)[0].settings) == {"epochs": 3}
    assert dict(choices(CITATION, CORA, GCN, found)[0].settings) == {"learning_rate": 0.5}
    assert dict(choices(CITATION, few, GCN, [general])[0].settings) == {"learning_rate": 0.5}
    assert names(GCN, [special]) == [UNTUNED]


def test_only_presets_restricts_the_rows_of_a_table():
    depth = find("depth")
    system = depth.systems[0]
    found = [preset(name, "difformer-s") for name in ("public-code", "paper", "best")]
    assert [one.name for one in choices(depth, CORA, system, found)] == ["public-code"]
    assert [one.name for one in choices(depth, CORA, system, found[1:])] == [UNTUNED]
    with pytest.raises(ValueError, match="no selected row of depth has such a preset; there are rows of public-code"):
        wanted_cells(depth, Request(presets=("best",)))


def test_presets_of_a_folder_override_those_of_the_package(tmp_path):
    write_preset(preset("public-code", "difformer-s"), tmp_path / "mine.toml")
    found = read_presets(tmp_path)
    assert choices(CITATION, CORA, DIFFORMER_S, found)[0].settings["learning_rate"] == 0.5
    assert len(found) == len(load_presets()) + 1
    with pytest.raises(ValueError, match="absent is not a folder"):
        read_presets(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no \.toml"):
        read_presets(tmp_path / "empty")
    write_preset(preset("mine", "difformer-s"), tmp_path / "mine.toml")
    with pytest.raises(ValueError, match=r"mine\.toml has name = 'mine', which no row uses"):
        read_presets(tmp_path)


def test_series_learn_their_targets_as_recorded_runs_did():
    temporal = find("temporal")
    data = next(one for one in temporal.data if one.key == "covid")
    (choice, *_) = choices(temporal, data, DIFFORMER_S, ())
    cell = Cell(data, DIFFORMER_S, choice)
    assert cell.config().scale_targets is False
    recorded = {key: value for key, value in cell.settings().items() if key != "scale_targets"}
    assert settings_id("difformer-s", recorded, "covid", data.options) == cell.settings_id()
