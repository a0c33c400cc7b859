"""Models of users: registered, named by module and class, or given as a class; from training to the command line."""

import json
import sys

import pytest
import torch
from test_zoo import graphs_task, nodes_task, series_task
from torch import nn

import difformer
from difformer import zoo
from difformer.files import RunFolderError
from difformer.training import TrainConfig, fit, predict, train_one
from difformer.training.config import parse_settings
from difformer.training.spaces import default_space
from difformer.zoo import model_registry
from difformer.zoo.model_registry import Plain, name_of

SOURCE = '''
import torch
from torch_geometric.nn import GCNConv


class Sandwich(torch.nn.Module):
    """Two convolutions with a linear map between.

    Args:
        slices: How often the linear map is applied.
        dropout: Before the last layer.
    """

    def __init__(self, in_channels, hidden_channels, out_channels, *, slices=1, dropout=0.0):
        super().__init__()
        self.first, self.last = GCNConv(in_channels, hidden_channels), GCNConv(hidden_channels, out_channels)
        self.middle = torch.nn.ModuleList(torch.nn.Linear(hidden_channels, hidden_channels) for _ in range(slices))
        self.dropout = dropout

    def forward(self, x, edge_index):
        z = self.first(x, edge_index).relu()
        for layer in self.middle:
            z = layer(z).relu()
        return self.last(torch.nn.functional.dropout(z, self.dropout, self.training), edge_index)
'''


@pytest.fixture
def sandwich(tmp_path, monkeypatch):
    """A module of users that can be imported."""
    (tmp_path / "picnic.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "picnic:Sandwich"
    sys.modules.pop("picnic", None)


@pytest.fixture
def names(monkeypatch):
    """Whatever a test registers is forgotten after it."""
    monkeypatch.setattr(model_registry, "_registered", {})
    before = dict(zoo.MODELS)
    yield
    zoo.MODELS.clear()
    zoo.MODELS.update(before)


class Mean(nn.Module):
    """A linear map; knows nothing of edges."""

    def __init__(self, in_channels, hidden_channels, out_channels, *, scale=1.0):
        super().__init__()
        self.map, self.scale = nn.Linear(in_channels, out_channels), scale

    def forward(self, x):
        return self.scale * self.map(x)


def test_a_registered_model_is_one_of_the_catalogue(names):
    info = difformer.register_model("mean", Mean, kinds=("nodes", "series"), space={"scale": (0.5, 1.0)})
    assert info.about == "A linear map; knows nothing of edges."
    assert zoo.options_of("mean") == {"hidden_channels": 64, "scale": 1.0}
    for kind in ("nodes", "series"):
        assert default_space(kind, observed=False, model="mean", own=True).axes == {"scale": (0.5, 1.0)}
    assert train_one(nodes_task(), 0, TrainConfig(model="mean", epochs=2), 0, "cpu").outputs.shape == (30, 3)
    assert train_one(series_task(), 0, TrainConfig(model="mean", epochs=2), 0, "cpu").outputs.shape == (6, 5, 1)
    with pytest.raises(ValueError, match="has no option 'scael'; did you mean 'scale'"):
        zoo.build("mean", 6, 3, scael=2.0)
    with pytest.raises(ValueError, match="'mean' serves nodes, series"):
        train_one(graphs_task(), 0, TrainConfig(model="mean", epochs=1), 0, "cpu")
    assert difformer.register_model("mean", Mean, defaults={"scale": 3.0}) is zoo.find(
        "mean"
    )  # once more, as in notebooks
    assert zoo.build("mean", 6, 3).model.scale == 3.0


@pytest.mark.parametrize(
    ("name", "model", "complaint"),
    [
        ("gcn", Mean, "'gcn' is a model of the package; register yours under another name"),
        ("my model", Mean, "has no spaces, colons or slashes, got 'my model'"),
        ("mine", lambda *sizes: None, "must be a class derived from torch.nn.Module"),
        ("mine", nn.Linear, "must be built as Linear.*its signature is"),
    ],
)
def test_invalid_registrations_are_explained(names, name, model, complaint):
    if model is nn.Linear:

        class Wrong(nn.Module):
            def __init__(self, channels):
                super().__init__()

        model, complaint = Wrong, "must be built as Wrong.*its signature is"
    with pytest.raises(ValueError, match=complaint):
        difformer.register_model(name, model)
    with pytest.raises(ValueError, match="kinds are of nodes, series, graphs, got trees"):
        difformer.register_model("mine", Mean, kinds=("trees",))


def test_a_configuration_accepts_a_class(names, sandwich, tmp_path):
    import picnic

    config = TrainConfig(model=picnic.Sandwich, options={"slices": 2}, epochs=2)
    assert config.model == "picnic:Sandwich"
    summary = fit(nodes_task(), config, seeds=1, device="cpu", out=tmp_path / "run")
    assert "picnic:Sandwich" in (tmp_path / "run" / "config.toml").read_text()
    found = predict(tmp_path / "run", task=nodes_task(), device="cpu")
    accuracy = (found.outputs.argmax(1) == nodes_task().y)[nodes_task().splits[0].valid].float().mean()
    assert float(accuracy) == pytest.approx(summary.mean("valid"), abs=1e-6)

    class Local(Mean):
        """Nothing else can import this one."""

    assert TrainConfig(model=Local).model == "Local"
    assert zoo.find("Local").about == "Nothing else can import this one."
    assert name_of(difformer.DIFFormer) == "difformer"


def test_a_plain_model_gets_the_arguments_its_signature_names():
    seen = {}

    class Curious(nn.Module):
        def forward(self, x, edge_index, edge_weight=None, batch=None):
            seen.update(x=x, edges=edge_index, weight=edge_weight, batch=batch)
            return x

    x, edges = torch.randn(4, 2).relu(), torch.tensor([[0, 1], [1, 2]])
    graph = difformer.Graph(edges, 4, torch.tensor([0.5, 2.0]))
    out = Plain(Curious())(x.to_sparse(), graph, batch=torch.tensor([0, 0, 0, 1]))
    assert torch.equal(out, x)
    assert torch.equal(seen["edges"], edges)
    assert seen["weight"].tolist() == [0.5, 2.0]
    assert seen["batch"].tolist() == [0, 0, 0, 1]
    Plain(Curious())(x)
    assert seen["edges"].shape == (2, 0)
    assert seen["weight"] is None


def test_options_need_not_be_keyword_only(names):
    class Loose(Mean):
        def __init__(self, in_channels, hidden_channels, out_channels, scale=1.0, dropout=0.1):
            super().__init__(in_channels, hidden_channels, out_channels, scale=scale)
            self.dropout = dropout

    difformer.register_model("loose", Loose)
    assert parse_settings(["dropout=0.2"], "loose") == ({}, {"dropout": 0.2})
    assert zoo.build("loose", 6, 3, dropout=0.2).model.dropout == 0.2


def test_a_run_of_a_model_that_is_not_registered_here_says_so(names, tmp_path):
    difformer.register_model("sand", Mean)
    fit(nodes_task(), TrainConfig(model="sand", epochs=1), seeds=1, device="cpu", out=tmp_path / "run")
    del zoo.MODELS["sand"], model_registry._registered["sand"]
    with pytest.raises(RunFolderError, match=r"'sand' of this run is not known here.*import the code that registers"):
        predict(tmp_path / "run", task=nodes_task(), device="cpu")


def test_names_that_cannot_be_imported_are_explained(sandwich):
    with pytest.raises(ValueError, match=r"cannot import 'picknick'.*installed or on PYTHONPATH"):
        zoo.find("picknick:Sandwich")
    with pytest.raises(ValueError, match="module 'picnic' has no 'Sandwitch'; did you mean Sandwich"):
        zoo.find("picnic:Sandwitch")
    with pytest.raises(ValueError, match="there is no model 'idgl': it was removed"):
        zoo.find("idgl")


def test_an_installed_package_can_name_a_model(names, sandwich, monkeypatch):
    from importlib.metadata import EntryPoint

    entry = EntryPoint("sandwich", "picnic:Sandwich", "difformer.models")
    monkeypatch.setattr(model_registry, "entry_points", lambda group: [entry] if group == entry.group else [])
    assert zoo.options_of("sandwich") == {"hidden_channels": 64, "slices": 1, "dropout": 0.0}


def test_the_command_line_trains_predicts_tunes_and_reports_a_users_model(sandwich, tmp_path, capsys, monkeypatch):
    from difformer.cli import main

    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        code = 0
        try:
            main([*words])
        except SystemExit as end:
            code = end.code
        said = capsys.readouterr()
        assert not code, said.err
        return said.out

    run = ["--model", sandwich, "--device", "cpu", "--set", "epochs=3", "--set", "graph=knn:4"]
    call("fit", "digits", *run, "--set", "slices=2", "--seeds", "1", "--out", "run")
    call("predict", "run", "--out", "found.csv")
    assert (tmp_path / "found.csv").exists()
    call("report", "run", "--out", "page.html")
    assert "picnic:Sandwich" in (tmp_path / "page.html").read_text()
    call(
        "tune",
        "digits",
        *run,
        "--space",
        "slices=1,2",
        "--space",
        "learning_rate=0.01",
        "--trials",
        "2",
        "--out",
        "study",
    )
    assert (tmp_path / "study" / "trials.jsonl").read_text().count("slices") >= 2
    shown = json.loads(call("models", sandwich, "--json"))
    assert shown["options"] == {"hidden_channels": 64, "slices": 1, "dropout": 0.0}
    assert shown["meanings"]["options"]["slices"] == "How often the linear map is applied."
