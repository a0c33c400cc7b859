"""Preset files are added to presets.toml without changing anything else."""

import pytest

from benchmarks.add_presets import add_presets, main
from difformer.experiments.presets import SHIPPED, Preset, load_presets, write_preset

TEXT = """# Head.

[base.some]
step_size = 0.5

[[preset]]
name = "paper"
model = "gcn"
dataset = "cora"
inherits = ["some"]
[preset.settings]
dropout = 0.2

# Of the next one.

[[preset]]
name = "best"
model = "mlp"
dataset = "cora"
[preset.settings]
dropout = 0.5
"""
NEW = Preset(
    "paper",
    "gcn",
    "cora",
    {"dropout": 0.7, "graph": "knn:5", "patience": None},
    source="here",
    validation=0.8,
    trials=16,
)


def presets_of(text, tmp_path):
    path = tmp_path / "presets.toml"
    path.write_text(text, encoding="utf-8")
    load_presets.cache_clear()
    return {preset.identity: preset for preset in load_presets(path)}


def test_a_preset_replaces_the_one_with_the_same_identity(tmp_path):
    text = add_presets(TEXT, [NEW])
    found = presets_of(text, tmp_path)
    assert found[NEW.identity] == NEW
    assert found["best", "mlp", "cora", None].settings == {"dropout": 0.5}
    assert text.index("# Of the next one.") < text.index('"mlp"')
    assert text.startswith("# Head.")


def test_adding_a_preset_twice_changes_nothing(tmp_path):
    other = Preset("best", "gat", "cora", {"dropout": 0.1}, variant="per_class=10")
    text = add_presets(add_presets(TEXT, [other]), [other])
    assert text == add_presets(TEXT, [other])
    assert list(presets_of(text, tmp_path)) == [*presets_of(TEXT, tmp_path), other.identity]


def test_adding_nothing_leaves_the_shipped_file_unchanged():
    text = SHIPPED.read_text(encoding="utf-8")
    assert add_presets(text, []) == text


def test_the_command_refuses_two_files_for_the_same_preset(tmp_path, capsys):
    into, first, second = (tmp_path / name for name in ("presets.toml", "a.toml", "b.toml"))
    into.write_text(TEXT, encoding="utf-8")
    write_preset(NEW, first)
    write_preset(NEW, second)
    with pytest.raises(SystemExit):
        main([str(first), str(second), "--into", str(into)])
    assert "several files hold a preset for paper / gcn / cora" in capsys.readouterr().err
    assert into.read_text(encoding="utf-8") == TEXT
    main([str(first), "--into", str(into)])
    assert into.read_text(encoding="utf-8") == add_presets(TEXT, [NEW])
