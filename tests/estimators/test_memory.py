"""Large tables: what is kept while training, and what a process holds at most."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from difformer.estimators import DIFFormerClassifier, frugal
from difformer.estimators.fitting import BATCH, WHOLE, Recipe
from difformer.nn import DIFFormer


def test_frugal_training_is_the_same_training(wine: Any, quick: dict[str, Any], monkeypatch: Any) -> None:
    x, _, partly = wine
    options = {**quick, "n_models": 1, "graph": "knn"}
    weight = np.arange(1.0, len(x) + 1)
    plain = [DIFFormerClassifier(**options).fit(x, partly, w).label_distributions_ for w in (None, weight)]
    made: list[DIFFormer] = []
    be_frugal = frugal.be_frugal
    monkeypatch.setattr(frugal, "ROOM", 0)
    monkeypatch.setattr("difformer.estimators.mass.be_frugal", lambda model: (made.append(model), be_frugal(model)))
    for wanted, w in zip(plain, (None, weight), strict=True):
        assert (DIFFormerClassifier(**options).fit(x, partly, w).label_distributions_ == wanted).all()
    assert len(made) == 2
    DIFFormerClassifier(**options, dropout=0.1).fit(x, partly)  # masks are drawn once
    assert len(made) == 2


def test_of_a_layer_its_state_alone_is_kept() -> None:
    torch.manual_seed(0)
    model, x = DIFFormer(5, 8, 2, num_layers=4, transform=False), torch.randn(1000, 5)
    kept = []
    for change in (lambda model: None, frugal.be_frugal):
        change(model)
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            outputs = model(x)
        kept.append(sum(sizes.values()))
        outputs.sum().backward()
    assert kept[1] < 0.5 * kept[0]


@pytest.mark.parametrize(
    ("diffusivity", "backend", "batch"),
    [("simple", "auto", None), ("constant", "auto", None), ("sigmoid", "auto", BATCH), ("sigmoid", "polynomial", None)],
)
def test_pairs_of_many_rows_are_looked_at_in_batches(diffusivity: str, backend: str, batch: int | None) -> None:
    recipe: Recipe = DIFFormerClassifier(diffusivity=diffusivity, backend=backend)._recipe()
    assert recipe.batch(WHOLE) is None
    assert recipe.batch(100_000) == batch


FIT = """
import resource, sys
import numpy as np
from difformer import DIFFormerClassifier
x = np.random.RandomState(0).randn(100_000, 100)
y = np.where(np.arange(100_000) % 10 == 0, (x[:, 0] > 0).astype(int), -1)
DIFFormerClassifier(diffusivity=sys.argv[1], graph=None, steps=2, random_state=0).fit(x, y)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.slow
@pytest.mark.parametrize("diffusivity", ["simple", "sigmoid"])
def test_a_hundred_thousand_rows_fit_into_two_gigabytes(diffusivity: str) -> None:
    done = subprocess.run([sys.executable, "-c", FIT, diffusivity], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2e9
