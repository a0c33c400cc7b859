"""What a fit says while it works, and what it leaves alone: threads, the generator of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from difformer.estimators import DIFFormerClassifier, fitting
from difformer.estimators.threads import SMALL
from difformer.training.stacked import FEWEST


def test_nothing_is_printed_unless_asked_for(wine: Any, quick: dict[str, Any], capsys: Any) -> None:
    x, y, _ = wine
    DIFFormerClassifier(**quick).fit(x, y)
    assert capsys.readouterr().out == ""


def test_verbose_tells_of_the_graph_and_of_every_model(wine: Any, quick: dict[str, Any], capsys: Any) -> None:
    x, y, _ = wine
    options = {**quick, "steps": 40, "n_models": 2}
    talking = DIFFormerClassifier(**options, verbose=True).fit(x, y)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("[DIFFormerClassifier] ") for line in lines)
    assert lines[0].endswith("178 rows of 13 features, 178 of them labelled")
    assert [line for line in lines if 'graph="auto"' in line] == lines[1:3]
    assert len([line for line in lines if "model 1 of 2, step " in line]) == 10
    assert "model 2 of 2, step 40 of 40, loss " in lines[-1]
    # To look does not change what is seen.
    assert (talking.label_distributions_ == DIFFormerClassifier(**options).fit(x, y).label_distributions_).all()


@pytest.mark.parametrize("more", [{}, {"batch_size": 60}])
def test_verbose_shows_held_out_rows_and_changes_nothing(
    more: dict[str, Any], wine: Any, quick: dict[str, Any], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, _ = wine
    monkeypatch.setattr(fitting, "ENOUGH", 100)
    options = {**quick, "graph": None, **more}
    talking = DIFFormerClassifier(**options, verbose=1).fit(x, y, sample_weight=np.arange(1.0, 179))
    assert "held out " in capsys.readouterr().out
    silent = DIFFormerClassifier(**options).fit(x, y, sample_weight=np.arange(1.0, 179))
    assert (talking.label_distributions_ == silent.label_distributions_).all()


def test_small_tables_are_left_to_one_thread(wine: Any, quick: dict[str, Any], monkeypatch: Any) -> None:
    x, y, _ = wine
    seen = []
    train = fitting.train

    def watched(*arguments: Any) -> Any:
        seen.append(torch.get_num_threads())
        return train(*arguments)

    monkeypatch.setattr(fitting, "train", watched)
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
        combine = model.fitted_.combine
        monkeypatch.setattr(model.fitted_, "combine", lambda z: (seen.append(torch.get_num_threads()), combine(z))[1])
        model.predict(x)
        assert seen[-1] == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_generator_of_torch_is_left_alone(wine: Any, quick: dict[str, Any], tmp_path: Path) -> None:
    x, _, partly = wine
    before = torch.get_rng_state()
    model = DIFFormerClassifier(**quick).fit(x, partly)
    model.save_pretrained(tmp_path)
    DIFFormerClassifier.from_pretrained(tmp_path).predict(x)
    assert torch.equal(torch.get_rng_state(), before)


def test_few_models_are_trained_one_after_the_other_and_many_as_one(
    wine: Any, quick: dict[str, Any], monkeypatch: Any
) -> None:
    x, _, partly = wine
    stacks = []
    stacked = fitting.train_stacked

    def watched(task: Any, settings: Any, *arguments: Any, **options: Any) -> Any:
        stacks.append(len(settings))
        return stacked(task, settings, *arguments, **options)

    monkeypatch.setattr(fitting, "train_stacked", watched)
    found = {}
    for models in (3, FEWEST["cpu"]):
        options = {**quick, "device": "cpu", "n_models": models}
        found[models] = DIFFormerClassifier(**options).fit(x, partly)
    assert stacks == [FEWEST["cpu"]]
    # The first models are the same ones, however they were trained.
    rows = torch.from_numpy(found[3].fitted_.scaling(x))
    for first, same in zip(found[3].fitted_.members, found[FEWEST["cpu"]].fitted_.members, strict=False):
        wanted, states = (member.model.encode(rows) for member in (first, same))  # type: ignore[operator,union-attr]
        torch.testing.assert_close(states, wanted, rtol=1e-3, atol=1e-4)
