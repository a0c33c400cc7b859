"""Large tables: in parts where pairs are looked at, and what a process holds at most."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from difformer.estimators import DIFFormerClassifier, selection
from difformer.estimators.recipe import BATCH, WHOLE, Recipe
from difformer.estimators.selection import PartsFeed


@pytest.mark.parametrize(
    ("diffusivity", "backend", "batch"),
    [("simple", "auto", None), ("constant", "auto", None), ("sigmoid", "auto", BATCH), ("sigmoid", "polynomial", None)],
)
def test_large_tables_are_batched_if_pairs_are_compared(diffusivity: str, backend: str, batch: int | None) -> None:
    recipe = Recipe(DIFFormerClassifier(diffusivity=diffusivity, backend=backend), labels=10)
    assert recipe.batch(WHOLE) is None
    assert recipe.batch(100_000) == batch


def test_evaluation_in_batches_uses_one_fixed_partition(wine: Any, quick: dict[str, Any], monkeypatch: Any) -> None:
    """Every row exchanges within its part of 50, at every evaluation the same one."""
    x, y, _ = wine
    partitions, judged = [], []
    outputs = PartsFeed.outputs

    def recorded(feed: Any, model: Any) -> torch.Tensor:
        found = outputs(feed, model)
        batches = list(feed.partitions.epoch(0))
        for batch in batches:
            torch.testing.assert_close(found[batch.nodes], model(batch.x))
        partitions.append([batch.nodes.tolist() for batch in batches])
        judged.append(found.shape)
        return found

    monkeypatch.setattr(PartsFeed, "outputs", recorded)
    monkeypatch.setattr(selection, "ENOUGH", 100)
    options = {**quick, "graph": None, "diffusivity": "sigmoid", "batch_size": 50, "steps": 30}
    model = DIFFormerClassifier(**options).fit(x, y)
    assert len(judged) > 2
    assert set(judged) == {(178, 3)}
    assert all(partition == partitions[0] for partition in partitions)
    assert sorted(len(part) for part in partitions[0])[-1] <= 50
    assert model.score(x, y) > 0.8
    weighted = DIFFormerClassifier(**options).fit(x, y, sample_weight=np.arange(1.0, 179))
    assert weighted.score(x, y) > 0.8


FIT = """
import json, resource, sys
import numpy as np
from difformer import DIFFormerClassifier
x = np.random.RandomState(0).randn(100_000, 100)
y = np.where(np.arange(100_000) % 10 == 0, (x[:, 0] > 0).astype(int), -1)
DIFFormerClassifier(**json.loads(sys.argv[1]), graph=None, steps=2, random_state=0).fit(x, y)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"diffusivity": "sigmoid", "num_layers": 2, "n_models": 1}])
def test_a_hundred_thousand_rows_fit_into_two_gigabytes(options: dict[str, Any]) -> None:
    command = [sys.executable, "-c", FIT, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2e9
