import json
import pickle
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from difformer import DIFFormer, Diffusivity
from difformer.diffusion import gaussian
from difformer.nn import PretrainedError


def test_a_saved_model_comes_back(tmp_path):
    model = DIFFormer(5, 8, 3, diffusivity="sigmoid", graph_weight=0.3, num_heads=2).eval()
    model.save_pretrained(tmp_path / "new" / "folder")
    again = DIFFormer.from_pretrained(tmp_path / "new" / "folder").eval()
    x = torch.randn(10, 5)
    assert torch.equal(again(x), model(x))
    assert again.config == model.config
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["config.json", "model.safetensors"]


def test_saving_again_replaces_what_was_there(tmp_path):
    DIFFormer(5, 8, 3).save_pretrained(tmp_path)
    model = DIFFormer(4, 6, 2).eval()
    model.save_pretrained(tmp_path)
    assert torch.equal(DIFFormer.from_pretrained(tmp_path).eval()(torch.ones(3, 4)), model(torch.ones(3, 4)))


@pytest.mark.parametrize("given", [gaussian(0.5), "gaussian:0.5", "sharp", "softmax", "softmax:3"], ids=str)
def test_a_diffusivity_with_a_parameter_is_kept_by_name(tmp_path, given):
    model = DIFFormer(5, 8, 3, diffusivity=given).eval()
    model.save_pretrained(tmp_path)
    again = DIFFormer.from_pretrained(tmp_path).eval()
    assert again.config["diffusivity"] == ("gaussian:0.5" if isinstance(given, Diffusivity) else given)
    x = torch.randn(4, 5)
    assert torch.equal(again(x), model(x))


def test_custom_diffusivity_has_to_be_passed_again(tmp_path):
    cauchy = Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
    model = DIFFormer(5, 8, 3, diffusivity=cauchy).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match=r"a custom diffusivity, 'cauchy'.*pass it again"):
        DIFFormer.from_pretrained(tmp_path)
    x = torch.randn(4, 5)
    assert torch.equal(DIFFormer.from_pretrained(tmp_path, diffusivity=cauchy).eval()(x), model(x))


def damage_config(folder, **changes):
    description = json.loads((folder / "config.json").read_text())
    description.update(changes)
    (folder / "config.json").write_text(json.dumps(description))


def swap_weights(folder, other):
    other.save_pretrained(folder / "other")
    (folder / "other" / "model.safetensors").rename(folder / "model.safetensors")


def replace_weight(folder, name):
    """By whole numbers, in a file that is otherwise as it was."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        weights, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    save_file(weights | {name: weights[name].long()}, folder / "model.safetensors", metadata=metadata)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda f: (f / "config.json").write_text("{ not json"), "config.json: damaged"),
        (lambda f: (f / "config.json").write_text("[]"), "not written by difformer"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "config.json: damaged"),
        (lambda f: damage_config(f, format="other"), "not written by difformer"),
        (lambda f: damage_config(f, format_version=99), "written in format version 99.*upgrade difformer"),
        (lambda f: damage_config(f, config=3), "must be a table"),
        (lambda f: damage_config(f, config={"in_channels": 5}), "not a configuration"),
        (lambda f: (f / "model.safetensors").write_bytes(b"half a file"), "model.safetensors: damaged"),
        (lambda f: swap_weights(f, DIFFormer(5, 9, 3)), "belongs to another config"),
        (lambda f: replace_weight(f, "layers.0.value.weight"), r"damaged, or not the weights.*torch\.int64"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read_are_explained(tmp_path, damage, complaint):
    DIFFormer(5, 8, 3).save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(PretrainedError, match=complaint):
        DIFFormer.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    DIFFormer(5, 8, 3).save_pretrained(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        DIFFormer.from_pretrained(tmp_path)


def test_nothing_is_unpickled(tmp_path):
    DIFFormer(5, 8, 3).save_pretrained(tmp_path)
    torch.save({"weights": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(PretrainedError, match="damaged"):
        DIFFormer.from_pretrained(tmp_path)


def public_state(layers=3, hidden=4, heads=2, features=6, classes=5, transform=True):
    """Parameters as the authors' code names them."""
    linear = lambda a, b: torch.nn.Linear(a, b).state_dict()
    state = {}
    parts = {"fcs.0": linear(features, hidden), "fcs.1": linear(hidden, classes)}
    parts |= {f"bns.{i}": torch.nn.LayerNorm(hidden).state_dict() for i in range(layers + 1)}
    for i in range(layers):
        for name in ("Wq", "Wk", *(["Wv"] if transform else [])):
            parts[f"convs.{i}.{name}"] = linear(hidden, hidden * heads)
    for module, values in parts.items():
        state |= {f"{module}.{key}": torch.randn_like(value) for key, value in values.items()}
    return state


def public_forward(state, x, adjacency, kernel, heads, alpha=0.5, graph_weight=None):
    """What the authors' code computes, written out from its description."""
    lin = lambda name, z: z @ state[f"{name}.weight"].T + state[f"{name}.bias"]
    norm = lambda name, z: torch.nn.functional.layer_norm(
        z, z.shape[1:], state[f"{name}.weight"], state[f"{name}.bias"]
    )
    degree = adjacency.sum(1)
    graph = adjacency / degree.sqrt().unsqueeze(1) / degree.sqrt()
    z = torch.relu(norm("bns.0", lin("fcs.0", x)))
    layers = len([name for name in state if name.endswith("Wq.weight")])
    for i in range(layers):
        q, k = (lin(f"convs.{i}.{part}", z).view(len(x), heads, -1) for part in ("Wq", "Wk"))
        has_value = f"convs.{i}.Wv.weight" in state
        v = lin(f"convs.{i}.Wv", z).view(len(x), heads, -1) if has_value else z.unsqueeze(1).expand(-1, heads, -1)
        if kernel == "simple":
            q, k = q / q.norm(), k / k.norm()
            weights = 1 + torch.einsum("nhd,mhd->hnm", q, k)
        else:
            weights = torch.einsum("nhd,mhd->hnm", q, k).sigmoid()
        latent = torch.einsum("hnm,mhc->nhc", weights / weights.sum(-1, keepdim=True), v)
        observed = torch.einsum("nm,mhc->nhc", graph, v)
        if graph_weight is None:
            mixed = latent + observed
        else:
            mixed = (1 - graph_weight) * latent + graph_weight * observed
        z = norm(f"bns.{i + 1}", alpha * mixed.mean(1) + (1 - alpha) * z)
    return lin("fcs.1", z)


@pytest.mark.parametrize("kernel", ["simple", "sigmoid"])
@pytest.mark.parametrize("transform", [True, False])
@pytest.mark.parametrize("graph_weight", [None, 0.8])
def test_weights_of_the_authors_code_give_their_answer(kernel, transform, graph_weight):
    torch.manual_seed(0)
    state = public_state(transform=transform)
    adjacency = (torch.rand(9, 9) < 0.4).float().fill_diagonal_(1)
    adjacency = ((adjacency + adjacency.T) > 0).float()
    x = torch.randn(9, 6)
    model = DIFFormer.from_public_code(state, diffusivity=kernel, step_size=0.5, graph_weight=graph_weight).eval()
    expected = public_forward(state, x, adjacency, kernel, heads=2, graph_weight=graph_weight)
    torch.testing.assert_close(model(x, adjacency.to_sparse()), expected, rtol=1e-4, atol=1e-4)


def test_norms_that_are_saved_but_not_used_are_passed_over():
    model = DIFFormer.from_public_code(public_state(), norm=False)
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in model.modules())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda s: s.pop("fcs.1.bias"), r"Missing key.*\n?.*output\.bias"),
        (lambda s: s.pop("fcs.0.weight"), r"whose names are fcs\.0, .* got fcs\.0\.bias.*: 'fcs.0.weight'"),
        (lambda s: s.update({"extra.weight": torch.ones(1)}), r"Unexpected key.*\n?.*extra\.weight"),
        (lambda s: s.update({"convs.0.Wk.weight": torch.ones(3, 3)}), r"size mismatch for layers\.0\.key\.weight"),
        (lambda s: [s.pop(n) for n in list(s) if n.startswith("convs.1.")], r"Missing key.*layers\.1\.query"),
    ],
)
def test_foreign_weights_are_explained(change, complaint):
    state = public_state()
    change(state)
    with pytest.raises(ValueError, match=complaint):
        DIFFormer.from_public_code(state)


def test_saving_that_was_interrupted_between_the_files_is_found_out(tmp_path):
    DIFFormer(5, 8, 3, step_size=0.5).save_pretrained(tmp_path)
    swap_weights(tmp_path, DIFFormer(5, 8, 3, step_size=0.9))  # same shapes, another model
    with pytest.raises(PretrainedError, match="belongs to another config"):
        DIFFormer.from_pretrained(tmp_path)


def test_precision_numbers_and_class_come_back(tmp_path):
    class Mine(DIFFormer):
        pass

    model = Mine(np.int64(5), 8, 3, graph_weight=np.float32(0.5)).double()
    model.save_pretrained(tmp_path)
    again = Mine.from_pretrained(tmp_path)
    assert type(again) is Mine
    assert again.input.weight.dtype == torch.float64
    assert again.config["graph_weight"] == 0.5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.gpu
def test_models_move_between_devices(tmp_path):
    model = DIFFormer(5, 8, 3).cuda().eval()
    model.save_pretrained(tmp_path)
    x = torch.randn(10, 5)
    torch.testing.assert_close(
        DIFFormer.from_pretrained(tmp_path).eval()(x), model(x.cuda()).cpu(), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(DIFFormer.from_pretrained(tmp_path).cuda().eval()(x.cuda()), model(x.cuda()))


@pytest.mark.parametrize("diffusivity", ["simple", "softmax", gaussian(0.3)])
def test_models_are_pickled(diffusivity):
    model = DIFFormer(5, 8, 3, diffusivity=diffusivity).eval()
    x = torch.randn(4, 5)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


class LowRank(torch.nn.Linear):
    """A map with an addition that no configuration describes."""


def _replace_value(model):
    model.layers[1].value = LowRank(8, 8)


def _replace_norm(model):
    model.norms[0] = torch.nn.Identity()


def _change_step(model):
    model.layers[0].step_size = 0.1


def _add_head(model):
    model.extra = torch.nn.Linear(2, 2)


def _parametrise(model):
    torch.nn.utils.parametrizations.weight_norm(model.output)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_replace_value, "layers.1.value was replaced by LowRank"),
        (_replace_norm, "norms.0 was replaced by Identity"),
        (_change_step, "layers.0.step_size was changed"),
        (_add_head, "extra.bias, extra.weight is not of the configuration"),
        (_parametrise, "output was replaced by ParametrizedLinear"),
    ],
)
def test_a_model_that_its_configuration_does_not_describe_is_not_saved(tmp_path, change, named):
    model = DIFFormer(4, 8, 3)
    change(model)
    with pytest.raises(ValueError, match=named):
        model.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layers", [10**5, 10**9, 2**63])
def test_a_configuration_larger_than_its_weights_is_refused_at_once(tmp_path, layers):
    DIFFormer(3, 4, 2).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert '"num_layers": 2' in text
    (tmp_path / "config.json").write_text(text.replace('"num_layers": 2', f'"num_layers": {layers}'))
    with pytest.raises(PretrainedError, match=r"the model of the configuration is larger than its weights|too large"):
        DIFFormer.from_pretrained(tmp_path)


def test_a_model_of_the_hub_is_fetched_by_its_name(tmp_path, monkeypatch):
    monkeypatch.delenv("DIFFORMER_OFFLINE", raising=False)  # which data sets of other tests may have set
    model = DIFFormer(4, 8, 2).eval()
    model.save_pretrained(tmp_path / "cache")
    asked = []

    def download(repository, name):
        asked.append((repository, name))
        if repository != "org/name":
            raise OSError("404")
        return str(tmp_path / "cache" / name)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    again = DIFFormer.from_pretrained("org/name").eval()
    assert torch.equal(again(torch.ones(3, 4)), model(torch.ones(3, 4)))
    assert asked == [("org/name", "model.safetensors"), ("org/name", "config.json")]
    with pytest.raises(FileNotFoundError, match=r"org/other is neither a folder nor a model of the .* Hub: 404"):
        DIFFormer.from_pretrained("org/other")
    monkeypatch.setenv("DIFFORMER_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match=r"org/name is not a folder, and \$DIFFORMER_OFFLINE forbids"):
        DIFFormer.from_pretrained("org/name")
    monkeypatch.setenv("DIFFORMER_OFFLINE", "0")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match=r"pip install 'difformer\[hub\]'"):
        DIFFormer.from_pretrained("org/name")
    with pytest.raises(FileNotFoundError, match=r"nowhere.config.json is missing"):
        DIFFormer.from_pretrained("nowhere")


def test_a_misspelt_name_with_a_parameter_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"unknown diffusivity 'gausian:0\.5': did you mean gaussian"):
        DIFFormer(4, 8, 2, diffusivity="gausian:0.5")
