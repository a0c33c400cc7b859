"""Seeds, batches of graphs and trials over ranks: what one process finds, each in its share of the time."""

import numpy as np
import pytest
import torch
from ranks_work import train_seeds, tune_together
from test_exact import graph_task

from difformer.data import Split, Task
from difformer.training import RunFolder, TrainConfig, fit
from difformer.training.spaces import Space
from difformer.training.study import Question, tune

SIZES = [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (3, 4))]
CPU = {"device": "cpu", "stacked": False}


def graphs_task(count=37, seed=0, problem="multilabel"):
    """Graphs of 2 to 7 nodes, a few of their labels unknown."""
    g = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 8, (count,), generator=g)
    ptr = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    x = torch.randn(int(ptr[-1]), 4, generator=g)
    chain = torch.cat([torch.stack([torch.arange(a, b - 1), torch.arange(a + 1, b)]) for a, b in zip(ptr, ptr[1:])], 1)  # noqa: B905, RUF007
    y = (torch.rand(count, 3, generator=g) < 0.5).float()
    y[5:, 1][torch.rand(count - 5, generator=g) < 0.2] = torch.nan
    if problem == "multiclass":
        y = torch.randint(0, 3, (count,), generator=g)
    order = torch.randperm(count, generator=g)
    split = Split("s", order[:21], order[21:29], order[29:])
    return Task(
        "sets", "graphs", problem, "rocauc" if problem == "multilabel" else "accuracy", "made", x, y, (split,), 3,
        edge_index=torch.cat([chain, chain.flip(0)], 1), node_ptr=ptr,
    )  # fmt: skip


def config(**changes):
    options = {"hidden_channels": 8, "dropout": 0.3, **changes.pop("options", {})}
    return TrainConfig(epochs=6, learning_rate=0.02, checkpoint_every=2, options=options, **changes)


@pytest.mark.parametrize("size", SIZES)
def test_seeds_over_ranks_equal_those_of_one_process(groups, tmp_path, size):
    task, setting = graph_task(), config()
    fit(task, setting, seeds=5, out=tmp_path / "alone", **CPU)
    (results, sent), *_ = groups(size)(train_seeds, task, setting, range(5), tmp_path / "ranks")
    alone, ranks = RunFolder.open(tmp_path / "alone"), RunFolder.open(tmp_path / "ranks")
    assert [result["seed"] for result in results] == list(range(5))
    for seed in range(5):
        for key, value in alone.read_weights(seed).items():
            torch.testing.assert_close(value, ranks.read_weights(seed)[key], atol=1e-5, rtol=1e-5)
    assert sent["gradients"] == sent["sums"] == 0
    names = [sorted(p.relative_to(f.path) for p in f.path.rglob("*")) for f in (alone, ranks)]
    assert names[0] == names[1]
    lines = [sorted((row["seed"], row["epoch"]) for row in folder.rows()) for folder in (alone, ranks)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("problem", ["multilabel", "multiclass"])
def test_batches_of_graphs_over_ranks_equal_those_of_one_process(groups, tmp_path, problem, size):
    """Eight graphs a batch, the last of five; and with four ranks a batch of one, so that three have no graph."""
    task = graphs_task(problem=problem)
    setting = config(batch_size=10 if size == 4 else 8, class_weights=True, options={"diffusivity": "sigmoid"})
    setting = setting.replace(model="difformer")
    expected = fit(task, setting, seeds=1, **CPU).records[0]
    answers = groups(size)(train_seeds, task, setting, [0], tmp_path / "run")
    (result,), sent = answers[0]
    assert sent["gradients"] > 0
    assert result["best_epoch"] == expected.best_epoch
    assert result["loss"] == pytest.approx(expected.loss, abs=2e-5)
    for part in ("train", "valid", "test"):
        assert result[part] == pytest.approx(getattr(expected, part), abs=1e-6)
    with np.load(tmp_path / "run" / "seed-0" / "predictions.npz") as files:
        np.testing.assert_allclose(files["outputs"], expected.outputs, atol=2e-5)


def test_an_interrupted_run_is_resumed(groups, tmp_path):
    task, setting = graphs_task(), config(batch_size=8)
    expected = fit(task, setting, seeds=1, **CPU).records[0]
    assert groups(2)(train_seeds, task, setting, [0], tmp_path / "run", 4) == ["interrupted"] * 2
    (results, _), _ = groups(2)(train_seeds, task, setting, [0], tmp_path / "run", None, True)
    assert results[0]["loss"] == pytest.approx(expected.loss, abs=2e-5)


@pytest.mark.slow
def test_trials_are_spread(groups, tmp_path):
    space = Space("made", {"learning_rate": (0.001, 0.01, 0.1), "hidden_channels": (4, 8)}, {"epochs": 4})
    question = Question("difformer-s", space, sampler="grid", prune=False)
    task = graph_task()
    expected = tune(task, question, trials=6, out=tmp_path / "alone", device="cpu", stacked=False)["difformer-s"]
    first, second = groups(2)(tune_together, task, question, 6, tmp_path / "ranks")
    assert first == second
    assert first[2] == pytest.approx(expected.score, abs=1e-6)
    assert first[3] == ["complete"] * 6
