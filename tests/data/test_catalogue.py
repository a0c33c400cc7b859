import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from difformer.data import ENTRIES, dataset_options, list_datasets, load
from difformer.data.catalogue import ALIASES, FORMS, entry


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_list_needs_no_torch():
    code = (
        "import sys, difformer.data as d; n = len(d.list_datasets());"
        "print(n, *(m for m in ('torch', 'numpy', 'scipy', 'sklearn') if m in sys.modules))"
    )
    assert run(code) == str(len(ENTRIES))


def test_nothing_here_needs_an_extra_to_be_imported():
    """As on a machine where none is installed: their finder finds everything else, and not them."""
    code = """
import importlib, pkgutil, sys
from importlib.machinery import PathFinder

class Finder:
    extras = ("pandas", "pyarrow", "polars", "rdkit", "pynndescent", "ogb", "optuna", "plotly", "torchdiffeq")

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in cls.extras else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
import difformer.data as data
modules = [m.name for m in pkgutil.walk_packages(data.__path__, "difformer.data.")]
for name in modules:
    importlib.import_module(name)
for name in data.__all__:
    getattr(data, name)
task = data.load("digits", num_splits=1)
data.from_arrays([[0.0], [1.0]] * 6, ["a", "b"] * 6, [(0, 1)])
try:
    data.knn_graph(task.x, 3, approximate=True)
except ImportError as error:
    print("difformer[neighbours]" in str(error), len(modules) > 25)
"""
    assert run(code) == "True True"


def test_public_names_are_found_when_asked_for():
    import difformer.data as data

    assert sorted(data.__all__) == data.__all__
    for name in data.__all__:
        assert getattr(data, name) is not None
        assert name in dir(data)
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        data.absent  # noqa: B018


def test_every_file_belongs_to_a_data_set_and_every_alias_to_a_name():
    assert set(FORMS) <= set(ENTRIES)
    assert set(ALIASES.values()) <= set(ENTRIES)
    assert not set(ALIASES) & set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_complete(name):
    one = ENTRIES[name]
    assert one.kind in ("nodes", "series", "graphs")
    assert one.metric in ("accuracy", "rocauc", "mse")
    assert one.about
    assert one.licence
    options = dataset_options(name)
    if one.protocols:
        assert options["protocol"] == one.protocols[0]
    assert (one.source == "built in") == (name not in FORMS)
    assert one.source == "built in" or one.source.startswith("http")


@pytest.mark.parametrize("name", ENTRIES)
def test_the_guide_names_every_data_set_and_its_protocols(name):
    guide = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    (line,) = [line for line in guide.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]]
    told = line.split("|")[2]
    places = [told.find(f"`{protocol}`") for protocol in ENTRIES[name].protocols]
    assert -1 not in places
    assert places == sorted(places)  # the default first


@pytest.mark.parametrize("name", [n for n in ENTRIES if ENTRIES[n].protocols])
def test_the_protocols_listed_are_those_a_reader_takes(name, cache, monkeypatch):
    """A reader says which protocols it takes before it looks for files."""
    monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
    with pytest.raises(ValueError, match="protocol must be one of") as caught:
        load(name, protocol="no such thing")
    for protocol in ENTRIES[name].protocols:
        assert repr(protocol) in str(caught.value)
    assert str(caught.value).count("'") == 2 * (len(ENTRIES[name].protocols) + 1)


@pytest.mark.parametrize(
    "form", [form for forms in FORMS.values() for form in forms], ids=lambda form: form.files[0].path
)
def test_addresses_and_checksums_are_well_formed(form):
    for file in form.files:
        assert not file.path.startswith("/")
        assert ".." not in file.path
        if file.url is not None:
            assert file.url.startswith(("https://", "http://ai.stanford.edu/"))
        if file.checksum is not None:
            kind, _, digest = file.checksum.partition(":")
            assert len(digest) == {"sha256": 64, "md5": 32}[kind]
            assert set(digest) <= set("0123456789abcdef")


@pytest.mark.parametrize("spelling", ["Cora", " cora ", "CORA"])
def test_data_set_names_ignore_case_and_separators(spelling):
    assert entry(spelling).name == "cora"
    assert entry("Amazon_Photo").name == "amazon-photo"
    assert entry("Reed98").name == "facebook100-reed98"


@pytest.mark.parametrize(
    ("asked", "suggested"), [("coar", "cora"), ("cifar", "cifar10"), ("ogbn-protein", "ogbn-proteins")]
)
def test_an_unknown_name_brings_the_nearest(asked, suggested):
    with pytest.raises(ValueError, match=f"no data set '{asked}'.*{suggested}"):
        load(asked)


def test_a_name_like_no_other_brings_them_all():
    with pytest.raises(ValueError, match="known are cora, citeseer"):
        load("qqqqqqqqqqqq")


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no option 'num_split'; did you mean num_splits.*protocol='random'"):
        load("cora", num_split=3)
    with pytest.raises(ValueError, match="'sbm' has no option 'root_folder'"):
        load("sbm", root_folder=3)


def test_list_shows_which_data_sets_are_on_disk(cache, tmp_path):
    listed = {one.entry.name: one for one in list_datasets(tmp_path)}
    assert listed["digits"].place == "built in"
    assert listed["cora"].place is None
    assert not listed["cora"].on_disk
    (tmp_path / "planetoid").mkdir()
    (tmp_path / "planetoid" / "cora.npz").write_bytes(b"")
    listed = {one.entry.name: one for one in list_datasets(tmp_path)}
    assert listed["cora"].place == str(tmp_path / "planetoid")
    assert listed["pubmed"].place is None


def test_features_that_have_to_be_trained_are_listed_as_lacking(cache, tmp_path):
    lacking = {one.entry.name: one.lacks for one in list_datasets(tmp_path) if one.lacks}
    assert lacking == {name: f"{name}/{name}_simclr.npz" for name in ("cifar10", "stl10")}
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar10_simclr.npz").write_bytes(b"")
    assert [one.entry.name for one in list_datasets(tmp_path) if one.lacks] == ["stl10"]


@pytest.mark.parametrize(
    ("name", "option", "expected"),
    [
        ("karate", {"self_loops": "no"}, "self_loops must be True or False, got 'no'"),
        ("sbm", {"num_nodes": "500"}, "num_nodes must be a whole number, got '500'"),
        ("wine", {"num_splits": 2.5}, "num_splits must be a whole number, got 2.5"),
        ("wine", {"knn": "5"}, "knn must be a whole number or None, got '5'"),
        ("heat", {"time": True}, "time must be a number, got True"),
    ],
)
def test_an_option_of_another_kind_is_refused(name, option, expected):
    with pytest.raises(ValueError, match=f"data set '{name}': {expected}"):
        load(name, **option)
    assert load("heat", time=1, seed=np.int64(3)).num_nodes == 400


def said(*arguments, capsys):
    from difformer.cli import main

    with pytest.raises(SystemExit) as left:
        main(["datasets", *arguments])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_the_list_fits_a_terminal_of_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = said(capsys=capsys).splitlines()
    cora = next(line for line in lines if line.startswith(" cora "))
    assert "2,708 nodes" in cora
    assert "5,278" in cora
    assert "shows features, protocols, licence" in " ".join(lines)


def test_the_list_says_how_edges_are_counted_and_under_which_terms(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    rows = {line.split()[0]: line for line in said(capsys=capsys).splitlines() if line.strip()}
    assert "5,278 " in rows["cora"]
    assert "82,529 directed" in rows["covid"]
    assert "undirected and counted once" in rows["Edges"]
    assert set(ENTRIES) <= set(rows)  # no name is broken over two lines
    assert "5,278 undirected, each counted once, without self-loops (papers print 5,429" in said("cora", capsys=capsys)
    assert "MIT" in said("cora", capsys=capsys)
    assert "82,529 directed, over all snapshots" in said("covid", capsys=capsys)
