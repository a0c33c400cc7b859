import pytest

from difformer.training.config import TrainConfig, knn_of, parse_settings


def test_a_configuration_survives_its_dictionary():
    config = TrainConfig(model="gcn", options={"dropout": 0.5}, learning_rate=1, patience=3, graph="knn:5")
    again = TrainConfig.from_dict(config.to_dict())
    assert again == config
    assert isinstance(again.learning_rate, float)
    assert again.replace(epochs=7).epochs == 7
    assert again.epochs == 500


@pytest.mark.parametrize(
    ("field", "value", "complaint"),
    [
        ("epochs", 0, "epochs must be a whole number of at least 1, got 0"),
        ("epochs", 2.5, "epochs must be a whole number"),
        ("learning_rate", -1.0, "learning_rate must be a number above 0, got -1.0"),
        ("learning_rate", float("nan"), "learning_rate must be a number above 0"),
        ("weight_decay", "much", "weight_decay must be a number of at least 0, got 'much'"),
        ("schedule", "exponential", "schedule must be one of constant, cosine, linear"),
        ("label_smoothing", 1.0, r"label_smoothing must be a number in \[0, 1\)"),
        ("decoupled", 1, "decoupled must be true or false"),
        ("patience", 0, "patience must be a whole number of at least 1, or none"),
        ("model", object(), "model must be a name or a class, got an object of class object; give the class"),
        ("graph", "knn:1", "graph must be 'given', 'none' or 'knn:K'"),
        ("graph", "complete", "graph must be 'given', 'none' or 'knn:K'"),
    ],
)
def test_values_out_of_range_are_named(field, value, complaint):
    with pytest.raises(ValueError, match=complaint):
        TrainConfig(**{field: value})


def test_unknown_fields_are_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="no field 'learning_rat'; did you mean learning_rate"):
        TrainConfig.from_dict({"learning_rat": 0.1})
    with pytest.raises(ValueError, match="no field 'lr'"):
        TrainConfig().replace(lr=0.1)
    with pytest.raises(ValueError, match="no field 'self'"):  # a file may hold any name
        TrainConfig.from_dict({"self": 1})


def test_settings_of_model_and_training_are_told_apart():
    fields, options = parse_settings(
        ["hidden_channels=32", "learning-rate=1e-2", "graph_weight=none", "norm=false", "schedule=cosine"]
    )
    assert fields == {"learning_rate": 0.01, "schedule": "cosine"}
    assert options == {"hidden_channels": 32, "graph_weight": None, "norm": False}


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("hidden_chanels=3", "unknown setting 'hidden_chanels'; did you mean hidden_channels"),
        ("learning_rate", "a setting is NAME=VALUE"),
        ("epochs=many", "epochs must be a whole number of at least 1, got 'many'"),
        ("zzz=3", "Training takes epochs, learning_rate.*model 'difformer' takes hidden_channels"),
    ],
)
def test_invalid_settings_are_explained(setting, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_settings([setting])
    with pytest.raises(ValueError, match="given twice"):
        parse_settings(["epochs=3", "epochs=4"])


def test_neighbours_of_a_graph_option():
    assert knn_of("given") is None
    assert knn_of("knn:5") == 5
