"""What a fit says while it works, and what it leaves alone: threads, the generator of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed

from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor, selection
from difformer.estimators.predictor import SMALL


def test_nothing_is_printed_unless_asked_for(wine: Any, quick: dict[str, Any], capsys: Any) -> None:
    x, y, _ = wine
    DIFFormerClassifier(**quick).fit(x, y)
    assert capsys.readouterr().out == ""


def test_verbose_reports_the_graph_and_every_model(wine: Any, quick: dict[str, Any], capsys: Any) -> None:
    x, y, _ = wine
    options = {**quick, "steps": 40, "n_models": 2}
    talking = DIFFormerClassifier(**options, verbose=True).fit(x, y)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[DIFFormerClassifier] ") for line in lines)
    assert lines[0].endswith("178 rows of 13 features, 178 of them labelled")
    assert "with the neighbour graph: log loss" in lines[1]
    assert "without a graph: log loss" in lines[2]
    assert len([line for line in lines if "model 1 of 2, step " in line]) == 10
    assert f"model 2 of 2, step {talking.n_iter_} of {talking.n_iter_}, loss " in lines[-1]
    # To look does not change what is seen.
    assert (talking.label_distributions_ == DIFFormerClassifier(**options).fit(x, y).label_distributions_).all()


@pytest.mark.parametrize("more", [{}, {"batch_size": 60}])
def test_verbose_shows_held_out_rows_and_changes_nothing(
    more: dict[str, Any], wine: Any, quick: dict[str, Any], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, _ = wine
    monkeypatch.setattr(selection, "ENOUGH", 100)
    options = {**quick, "graph": None, **more}
    talking = DIFFormerClassifier(**options, verbose=1).fit(x, y, sample_weight=np.arange(1.0, 179))
    assert "held out " in capsys.readouterr().out
    silent = DIFFormerClassifier(**options).fit(x, y, sample_weight=np.arange(1.0, 179))
    assert (talking.label_distributions_ == silent.label_distributions_).all()


def test_small_tables_are_trained_on_one_thread(wine: Any, quick: dict[str, Any], monkeypatch: Any) -> None:
    x, y, _ = wine
    seen = []
    train = selection.train

    def watched(*arguments: Any, **options: Any) -> Any:
        if not seen or seen[-1] != torch.get_num_threads():
            seen.append(torch.get_num_threads())
        return train(*arguments, **options)

    monkeypatch.setattr(selection, "train", watched)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        model = DIFFormerClassifier(**{**quick, "graph": None}).fit(x, y)
        large = np.random.RandomState(0).randn(SMALL // 8 + 1, 2)
        DIFFormerClassifier(**{**quick, "graph": None, "steps": 1}).fit(large, large[:, 0] > 0)
        assert seen == [1, 2]
        with pytest.raises(ValueError, match="graph"):
            DIFFormerClassifier(**quick).fit(x, y, graph="nonsense")
        assert torch.get_num_threads() == 2
        answer = model.fitted_.forward
        monkeypatch.setattr(model.fitted_, "forward", lambda *z: (seen.append(torch.get_num_threads()), answer(*z))[1])
        model.predict(x)
        assert seen[-1] == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_global_generator_of_torch_is_untouched(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    before = torch.get_rng_state()
    model = DIFFormerClassifier(**quick).fit(x, partly)
    model.save_pretrained(tmp_path)
    DIFFormerClassifier.from_pretrained(tmp_path).predict(x)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("options", [{}, {"graph": "knn", "dropout": 0.5}, {"diffusivity": "sigmoid", "graph": None}])
def test_fits_in_threads_equal_fits_in_sequence(options: dict[str, Any], wine: Any, quick: dict[str, Any]) -> None:
    x, _, partly = wine

    def fit(seed: int) -> np.ndarray:
        return DIFFormerClassifier(**{**quick, "random_state": seed, **options}).fit(x, partly).label_distributions_

    alone = [fit(seed) for seed in range(4)]
    threads = torch.get_num_threads()
    together = Parallel(n_jobs=8, backend="threading")(delayed(fit)(seed % 4) for seed in range(16))
    for number, found in enumerate(together):
        assert (found == alone[number % 4]).all()
    assert torch.get_num_threads() == threads


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [DIFFormerClassifier, DIFFormerRegressor])
def test_sample_weights_count_on_a_gpu(kind: Any, wine: Any, quick: dict[str, Any]) -> None:
    x, y, _ = wine
    options = {**quick, "graph": None, "steps": 40, "dropout": 0.0}
    if kind is DIFFormerClassifier:
        target, weight = np.where(np.arange(178) % 3 == 0, y, -1), np.random.RandomState(0).randint(1, 5, 178)
    else:  # a target that the features do not tell: its weighted mean is what can be learned
        target = np.where(np.arange(178) % 2 == 0, 1.0, -1.0)
        weight = np.where(target > 0, 4, 1)
    found = {}
    for device in ("cpu", "cuda"):
        for name, given in (("plain", None), ("weighted", weight)):
            found[device, name] = kind(**options, device=device).fit(x, target, given).fitted_.predict(x)
    scale = np.abs(found["cpu", "weighted"]).max()
    np.testing.assert_allclose(found["cuda", "weighted"], found["cpu", "weighted"], atol=0.02 * scale)
    difference = np.abs(found["cpu", "weighted"] - found["cpu", "plain"]).max()
    assert difference > 0.05 * scale
    assert np.abs(found["cuda", "weighted"] - found["cuda", "plain"]).max() > 0.5 * difference
