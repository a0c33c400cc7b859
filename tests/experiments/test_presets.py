"""Shipped presets are valid and complete; written presets can be read back."""

from __future__ import annotations

import pytest

from difformer.data.catalogue import ENTRIES
from difformer.errors import UserError
from difformer.experiments import Preset, find_preset, load_presets, read_preset, write_preset
from difformer.experiments.analysis import mean_of, published
from difformer.zoo import MODELS, check_options, options_of

SHIPPED = load_presets()


def test_shipped_presets_have_unique_identities():
    keys = [(preset.name, preset.model, preset.dataset, preset.variant) for preset in SHIPPED]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("preset", SHIPPED, ids=lambda p: f"{p.name}-{p.model}-{p.dataset}-{p.variant}")
def test_a_shipped_preset_names_existing_models_and_options(preset):
    from difformer.training.config import TrainConfig

    assert preset.model in MODELS
    assert preset.dataset in {*ENTRIES, "own-data"}
    assert preset.source
    fields = TrainConfig().to_dict()
    options = {key: value for key, value in preset.settings.items() if key not in fields}
    check_options(preset.model, options)
    if preset.name in ("paper", "best"):
        assert preset.validation is not None
        assert preset.trials
        assert preset.command.startswith(
            ("difformer tune", "a search of version 0.1", "python -m benchmarks.search_gpu")
        )


AT_HAND = {"cora", "citeseer", "pubmed", "chameleon", "squirrel", "actor", "chickenpox", "covid", "cifar10"}
AT_HAND |= {"20news", "synmol"}
ON_POINTS = {"gcn-knn": "gcn", "gat-knn": "gat"}  # the graph of points is that of the nearest


def test_every_system_is_tuned_where_the_paper_reports_it():
    tuned = {(p.dataset, p.model): p.trials or 0 for p in load_presets() if p.name == "paper"}
    missing = set()
    for name in ("citation", "heterophily", "temporal", "unobserved", "particles"):
        for data, row in published()[name]["paper"].items():
            dataset = data.split("-")[0]
            for system, value in row.items():
                if dataset not in AT_HAND or mean_of(value) is None:  # words stand where it did not fit into memory
                    continue
                model = system.removesuffix("-no-graph")
                model = ON_POINTS.get(model, model) if name == "particles" else model
                if tuned.get((dataset, model), 0) < 16:
                    missing.add((dataset, model))
    assert not missing


def test_the_authors_values_for_cora():
    preset = find_preset("public-code", model="difformer-s", dataset="cora")
    expected = {"learning_rate": 0.001, "weight_decay": 0.01, "dropout": 0.2, "num_layers": 8, "hidden_channels": 64}
    expected |= {"epochs": 500, "qk_norm": "global", "transform": False, "norm": True, "residual": True}
    assert {key: preset.settings[key] for key in expected} == expected
    assert preset.protocol == "authors"


# Hyper-parameters of the authors' code: learning rate, weight decay, dropout, layers, hidden size.
AUTHORS = {
    ("cora", "difformer-s"): (0.001, 0.01, 0.2, 8, 64),
    ("cora", "difformer-a"): (0.001, 0.1, 0.0, 8, 64),
    ("citeseer", "difformer-s"): (0.001, 1.0, 0.2, 4, 64),
    ("citeseer", "difformer-a"): (0.001, 1.0, 0.2, 4, 32),
    ("pubmed", "difformer-s"): (0.001, 1e-4, 0.2, 8, 64),
    ("pubmed", "difformer-a"): (0.001, 0.1, 0.5, 4, 64),
    ("ogbn-proteins", "difformer-s"): (0.01, 0.0, 0.0, 3, 64),
    ("pokec", "difformer-s"): (0.01, 0.0, 0.0, 3, 128),
    ("actor", "difformer-s"): (0.001, 0.1, 0.5, 2, 64),
    ("actor", "difformer-a"): (0.001, 0.05, 0.5, 1, 64),
    ("squirrel", "difformer-s"): (0.01, 1e-4, 0.5, 2, 64),
    ("squirrel", "difformer-a"): (0.05, 5e-4, 0.5, 2, 64),
    ("chameleon", "difformer-s"): (0.01, 1e-4, 0.2, 2, 128),
    ("chameleon", "difformer-a"): (0.01, 1e-3, 0.3, 3, 128),
    ("stl10", "difformer-s"): (0.0005, 0.1, 0.0, 2, 400),
    ("stl10", "difformer-a"): (0.0005, 0.1, 0.0, 2, 400),
    ("cifar10", "difformer-s"): (0.0001, 0.1, 0.0, 2, 300),
    ("cifar10", "difformer-a"): (0.0005, 0.1, 0.0, 2, 300),
    ("20news", "difformer-s"): (0.0005, 0.1, 0.0, 2, 300),
    ("20news", "difformer-a"): (0.0005, 0.1, 0.0, 2, 300),
    ("chickenpox", "difformer-s"): (0.01, 0.0, 0.2, 2, 4),
    ("chickenpox", "difformer-a"): (0.005, 0.0, 0.2, 2, 4),
    ("covid", "difformer-s"): (0.01, 0.0, 0.2, 2, 4),
    ("covid", "difformer-a"): (0.01, 0.005, 0.5, 2, 4),
    ("wikimath", "difformer-s"): (0.005, 0.0, 0.0, 2, 4),
    ("wikimath", "difformer-a"): (0.005, 0.0, 0.0, 2, 4),
    ("actstrack", "difformer-s"): (0.0015, 1e-3, 0.4, 2, 64),
    ("actstrack", "difformer-a"): (0.0015, 1e-3, 0.4, 2, 64),
    ("synmol", "difformer-s"): (0.01, 1e-4, 0.3, 2, 64),
    ("synmol", "difformer-a"): (0.01, 1e-4, 0.4, 2, 64),
}


def test_public_code_presets_have_the_authors_values():
    names = ("learning_rate", "weight_decay", "dropout", "num_layers", "hidden_channels")
    found = {(p.dataset, p.model): tuple(p.settings[n] for n in names) for p in SHIPPED if p.name == "public-code"}
    assert found == AUTHORS
    without = {
        (p.dataset, p.model): (p.settings["learning_rate"], p.settings["weight_decay"])
        for p in SHIPPED
        if p.name == "public-code-no-graph"
    }
    assert without == {
        ("chickenpox", "difformer-s"): (0.01, 0.0),
        ("chickenpox", "difformer-a"): (0.01, 0.005),
        ("covid", "difformer-s"): (0.01, 0.005),
        ("covid", "difformer-a"): (0.005, 0.005),
        ("wikimath", "difformer-s"): (0.005, 0.0),
        ("wikimath", "difformer-a"): (0.005, 0.0),
    }
    assert all(
        p.settings["steps_per_epoch"] == "snapshot"
        for p in SHIPPED
        if p.dataset == "wikimath" and p.name.startswith("public-code")
    )


def test_settings_of_a_preset_override_inherited_ones():
    preset = find_preset("public-code", model="difformer-a", dataset="chameleon")
    assert preset.settings["transform"] is True
    assert preset.settings["norm"] is False
    assert preset.settings["qk_norm"] == "none"


@pytest.mark.parametrize(
    ("name", "model", "dataset", "complaint"),
    [
        ("public_code", "difformer-s", "cora", "did you mean public-code"),
        ("best", "difformer-a", "actor", "for that pair there is public-code"),
        ("public-code", "gin", "cora", "on cora it exists for difformer-a, difformer-s"),
        ("public-code", "difformer-s", "wine", "difformer-s has it for 20news, actor"),
        ("public-code", "gcn", "wine", "for gcn on wine; gcn has it for no data set"),
    ],
)
def test_a_missing_preset_lists_those_that_exist(name, model, dataset, complaint):
    with pytest.raises(ValueError, match=complaint):
        find_preset(name, model=model, dataset=dataset)


def test_a_missing_preset_lists_data_sets_of_its_own_model_only():
    with pytest.raises(ValueError, match="gat has it for ") as caught:
        find_preset("paper", model="gat", dataset="wine")
    named = str(caught.value).partition("gat has it for ")[2].partition(". ")[0].split(", ")
    assert set(named) == {p.dataset for p in SHIPPED if (p.name, p.model, p.variant) == ("paper", "gat", None)}
    assert "cifar10" not in named


def test_a_written_preset_reads_back(tmp_path):
    preset = Preset(
        "tuned",
        "difformer-s",
        "digits",
        settings={"learning_rate": 1e-05, "norm": False, "graph": "knn:5", "num_layers": 3, "graph_weight": None},
        source='a "quoted" search: ü, \\ and all',
        metric="accuracy",
        validation=0.875,
        trials=20,
        command="difformer tune digits",
    )
    path = tmp_path / "best.toml"
    write_preset(preset, path)
    assert read_preset(path) == preset
    assert list(tmp_path.iterdir()) == [path]
    assert options_of("difformer-s").keys() >= {"norm", "num_layers", "graph_weight"}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("name = 'a'\nmodel = 'mlp'", "dataset must be a text"),
        ("name = 'a'\nmodel = 'mlp'\ndataset = 'x'\ncolour = 1", "unknown field 'colour'"),
        ("name = ", "is not a TOML file"),
        ("name = 'a'\nmodel = 'mlp'\ndataset = 'x'\nsettings = 3", "settings must be a table"),
    ],
)
def test_a_file_that_is_not_a_preset_is_refused(tmp_path, content, complaint):
    path = tmp_path / "broken.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=complaint):
        read_preset(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent\.toml"):
        read_preset(tmp_path / "absent.toml")


@pytest.mark.parametrize("field", ["validation = []", "command = 1979-05-27", "trials = 'x'", "data = 3", "note = 1"])
def test_a_preset_with_a_field_of_the_wrong_kind_is_refused(tmp_path, field):
    (tmp_path / "p.toml").write_text(f"name = 'own'\nmodel = 'mlp'\ndataset = 'cora'\n{field}\n")
    with pytest.raises(UserError, match=rf"p\.toml: {field.split()[0]} must be "):
        read_preset(tmp_path / "p.toml")


def test_a_preset_nested_too_deeply_is_refused(tmp_path):
    (tmp_path / "p.toml").write_text("a = " + "[" * 50_000)
    with pytest.raises(UserError, match="is not a TOML file"):
        read_preset(tmp_path / "p.toml")
