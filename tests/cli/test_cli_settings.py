"""Settings as texts: the same from Python and from the command line."""

import pytest

from difformer.errors import nearest
from difformer.training import parse_settings


def test_none_is_text_for_settings_that_take_names():
    fields, options = parse_settings(["graph=none", "qk_norm=None", "patience=none", "activation=none"])
    assert fields == {"graph": "none", "patience": None}
    assert options == {"qk_norm": "none", "activation": None}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hiden", "hidden_channels"),
        ("lr", "learning_rate"),
        ("dropot", "dropout"),
        ("weigth", "weight_decay"),
        ("xyz", None),
    ],
)
def test_nearest_setting_is_suggested(typed, meant):
    assert nearest(typed, ["learning_rate", "weight_decay", "hidden_channels", "dropout", "graph_weight"]) == meant
