"""Your own diffusivity by a name: registered, or by its place; from training to the report."""

import json
import subprocess
import sys

import pytest
import torch
from small_tasks import blocks

import difformer
from difformer.diffusivity import OWN, Diffusivity, as_diffusivity, gaussian
from difformer.errors import UserError
from difformer.files import RunFolderError
from difformer.nn.pretrained import PretrainedError
from difformer.training import TrainConfig, fit, predict

SOURCE = "from difformer import Diffusivity\ncauchy = Diffusivity('cauchy', f=lambda u: 1 / (1 + u))\nother = 3\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "own_forms.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_forms:cauchy"
    sys.modules.pop("own_forms", None)


@pytest.fixture
def cauchy():
    yield Diffusivity("cauchy", f=lambda u: 1 / (1 + u))
    OWN.clear()


def trained(out, diffusivity):
    config = TrainConfig(options={"diffusivity": diffusivity, "hidden_channels": 8}, epochs=2)
    fit(blocks(), config, seeds=1, device="cpu", out=out)
    return predict(out, task=blocks(), device="cpu").outputs


def test_a_run_by_place_and_by_registered_name_are_the_same(place, cauchy, tmp_path):
    wanted = trained(tmp_path / "place", place)
    with pytest.raises(UserError, match=r"cannot be kept in a folder.*difformer\.register_diffusivity"):
        trained(tmp_path / "refused", cauchy)
    difformer.register_diffusivity("my-cauchy", cauchy)
    assert torch.equal(trained(tmp_path / "name", "my-cauchy"), wanted)
    assert torch.equal(trained(tmp_path / "object", cauchy), wanted)
    assert 'diffusivity = "my-cauchy"' in (tmp_path / "object" / "config.toml").read_text()
    assert not torch.equal(trained(tmp_path / "simple", "simple"), wanted)
    OWN.clear()
    with pytest.raises(RunFolderError, match=r"diffusivity 'my-cauchy' of this run is not known here.*registers it"):
        predict(tmp_path / "name", task=blocks(), device="cpu")


def test_a_diffusivity_of_the_package_is_stored_by_its_name():
    assert TrainConfig(options={"diffusivity": gaussian(0.5)}).options == {"diffusivity": "gaussian:0.5"}


def test_a_name_can_be_registered_anew(cauchy):
    q = torch.nn.functional.normalize(torch.randn(6, 1, 4), dim=-1)
    difformer.register_diffusivity("mine", cauchy)
    first = difformer.attention.propagate(q, q, q, "mine")
    difformer.register_diffusivity("mine", gaussian(0.1))
    assert not torch.allclose(difformer.attention.propagate(q, q, q, "mine"), first)


@pytest.mark.parametrize(
    ("name", "given", "complaint"),
    [
        ("simple", gaussian(), "'simple' is a diffusivity of the package"),
        ("a:b", gaussian(), "has no spaces, colons or slashes, got 'a:b'"),
        ("mine", lambda u: u, "'mine' must be a Diffusivity, got <function"),
    ],
)
def test_invalid_registrations_of_diffusivities_are_explained(name, given, complaint):
    with pytest.raises(UserError, match=complaint):
        difformer.register_diffusivity(name, given)


def test_places_that_hold_no_diffusivity_are_explained(place):
    with pytest.raises(UserError, match="cannot import 'own_froms'"):
        as_diffusivity("own_froms:cauchy")
    with pytest.raises(UserError, match="'other' in 'own_forms' is 3, not a Diffusivity"):
        as_diffusivity("own_forms:other")


def test_saved_models_and_estimators_import_nothing(place, tmp_path):
    difformer.DIFFormer(4, 8, 2, diffusivity=place).save_pretrained(tmp_path / "model")
    x, y = torch.randn(20, 4).numpy(), [0, 1] * 10
    difformer.DIFFormerClassifier(diffusivity=place, hidden_channels=4).fit(x, y).save_pretrained(
        tmp_path / "estimator"
    )
    del sys.modules["own_forms"]
    for kind, folder in ((difformer.DIFFormer, "model"), (difformer.DIFFormerClassifier, "estimator")):
        with pytest.raises(PretrainedError, match=r"'(own_forms:)?cauchy'.*pass it again"):
            kind.from_pretrained(tmp_path / folder)
        assert "own_forms" not in sys.modules
    again = difformer.DIFFormerClassifier.from_pretrained(tmp_path / "estimator", diffusivity=as_diffusivity(place))
    assert len(again.predict(x)) == 20


def test_the_command_line_takes_a_place(place, tmp_path):
    def call(*words):
        command = [sys.executable, "-m", "difformer", *words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    few = ["--set", "epochs=2", "--set", "hidden_channels=8", "--device", "cpu"]
    call("fit", "iris", "--set", f"diffusivity={place}", *few, "--seeds", "1", "--out", "run")
    call("report", "run", "--out", "page.html")
    assert place in (tmp_path / "page.html").read_text()
    call("tune", "iris", "--space", f"diffusivity={place}", "--trials", "2", *few, "--out", "study")
    assert place in (tmp_path / "study" / "trials.jsonl").read_text()
    call("fit", "iris", "--model", "mlp", *few, "--seeds", "1", "--out", "other")
    assert json.loads(call("compare", "run", "other", "--json"))["settings"]["diffusivity"] == [place, "–"]
