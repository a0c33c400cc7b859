"""Data sets of your own by name: registered, from an entry point, and as package.module:function."""

import numpy as np
import pytest

from difformer.data import (
    ENTRIES,
    catalogue,
    dataset_options,
    from_arrays,
    list_datasets,
    load,
    register_dataset,
    registry,
)
from difformer.errors import DataError, UserError

SOURCE = '''
from difformer.data import from_arrays

def stripes(*, size: int = 40, shift=0.5):
    """Rows that alternate.

    Args:
        size: How many.
        shift: Added to all.
    """
    return from_arrays([[i % 4 + shift, i] for i in range(size)], [i % 2 for i in range(size)], name="stripes")

def wrong(*, size=3):
    return [size]

def positional(size):
    return size
'''


@pytest.fixture
def forget():
    before = dict(ENTRIES)
    yield
    for name in set(ENTRIES) - set(before):
        del ENTRIES[name]
        registry._registered.pop(name, None)


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "mydata.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))


def stripes(*, size: int = 40):
    """Rows that alternate."""
    return from_arrays([[i % 4, i] for i in range(size)], [i % 2 for i in range(size)], name="stripes")


def test_a_registered_name_loads_with_its_options(forget):
    assert register_dataset("My_Stripes", stripes).about == "Rows that alternate."
    assert load("my stripes", size=60).num_nodes == 60
    assert dataset_options("my-stripes") == {"size": 40}
    assert "my-stripes" in [one.entry.name for one in list_datasets()]
    with pytest.raises(UserError, match="size must be a whole number, got 'many'"):
        load("my-stripes", size="many")
    with pytest.raises(UserError, match="did you mean size"):
        load("my-stripes", siz=3)
    with pytest.raises(UserError, match="did you mean my-stripes"):
        load("my-strpes")
    register_dataset("my-stripes", lambda *, size=8: stripes(size=size))
    assert load("my-stripes").num_nodes == 8


@pytest.mark.parametrize(
    ("name", "loader", "words"),
    [
        ("cora", stripes, "is a data set of the package"),
        ("a:b", stripes, "no colons"),
        ("mine", 3, "expected a function"),
        ("mine", lambda size: size, r"\(\*, options…\).*\(size\)"),
        ("mine", lambda *, size: size, "a default for every option"),
    ],
)
def test_what_cannot_be_registered_is_refused(forget, name, loader, words):
    with pytest.raises(UserError, match=words):
        register_dataset(name, loader)


def test_a_function_is_found_by_its_place(package):
    task = load("mydata:stripes", size=50)
    assert task.num_nodes == 50
    with pytest.raises(UserError, match=r"must return a difformer.data.Task.*got list"):
        load("mydata:wrong")
    with pytest.raises(UserError, match=r"\(size\)"):
        load("mydata:positional")
    for absent in ("mydata:nothing", "nopackage:stripes"):
        with pytest.raises(UserError, match=r"cannot be imported.*PYTHONPATH"):
            load(absent)


def test_the_loader_is_told_the_folder_if_it_asks(forget, tmp_path):
    seen = []

    def files(name, root=None, *, size=40):
        seen.append((name, root))
        return stripes(size=size)

    register_dataset("in-files", files)
    load("in-files", tmp_path)
    assert seen == [("in-files", tmp_path)]


def test_an_entry_point_is_a_name(package, monkeypatch):
    from importlib.metadata import EntryPoint

    points = [EntryPoint("Stripes", "mydata:stripes", "difformer.datasets")]
    monkeypatch.setattr(catalogue, "entry_points", lambda group: points if group == "difformer.datasets" else [])
    assert load("stripes", size=44).num_nodes == 44
    assert "stripes" in [one.entry.name for one in list_datasets()]


class TestPublishedSplitsUnderHeterophily:
    @pytest.mark.parametrize(
        ("name", "metric", "classes"),
        [
            ("roman-empire", "accuracy", 4),
            ("amazon-ratings", "accuracy", 5),
            ("minesweeper", "rocauc", 2),
            ("tolokers", "rocauc", 2),
            ("questions", "rocauc", 2),
        ],
    )
    def test_file_splits_and_metric(self, tmp_path, name, metric, classes):
        rng = np.random.default_rng(0)
        part = rng.integers(3, size=(10, 30))
        arrays = {
            "node_features": rng.normal(size=(30, 6)).astype(np.float32),
            "node_labels": np.arange(30) % classes,
            "edges": np.stack([np.arange(29), np.arange(1, 30)], 1),
            "train_masks": part == 0,
            "val_masks": part == 1,
            "test_masks": part == 2,
        }
        (tmp_path / "heterophilous").mkdir()
        np.savez(tmp_path / "heterophilous" / f"{name.replace('-', '_')}.npz", **arrays)
        task = load(name.title().replace("-", "_"), tmp_path)
        assert (task.name, task.metric, task.num_outputs) == (name, metric, classes)
        assert task.num_edges == 2 * 29 + 30
        np.testing.assert_array_equal(task.x.numpy(), arrays["node_features"])
        assert [s.test.tolist() for s in task.splits] == [np.flatnonzero(row == 2).tolist() for row in part]
        assert metric in task.protocol
        assert ENTRIES[name].source.endswith(f"/{name.replace('-', '_')}.npz")


def test_labels_with_an_index_of_another_type_name_both_types():
    pd = pytest.importorskip("pandas")
    x = pd.DataFrame({"a": np.arange(6.0)}, index=list("012345"))
    said = r"its index holds 0, which that of x does not: it begins with '0', str and not int; pass y\.to_numpy\(\) if"
    with pytest.raises(DataError, match=said):
        from_arrays(x, pd.Series(list("ABABAB")))
