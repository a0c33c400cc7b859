"""Regression targets of any scale: learnt in units of their deviation, reported in those of the data."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from small_tasks import StackedSetting, blocks, series, split_of, train_stacked

from difformer.data import Task, from_arrays
from difformer.training import RunFolder, TrainConfig, evaluate, fit, load_run, predict, resume, train_one
from difformer.training.losses import target_units

CONFIG = TrainConfig(options={"hidden_channels": 8}, epochs=60, learning_rate=0.01)


def table(mean=1000.0, scale=50.0, n=120, columns=1, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=g)
    y = mean + scale * (x @ torch.randn(5, columns, generator=g) + 0.1 * torch.randn(n, columns, generator=g))
    splits = (split_of(n, seed=0), split_of(n, seed=1))
    return Task("table", "nodes", "regression", "mse", "made", x, y[:, 0] if columns == 1 else y, splits, columns)


def error_of_the_mean(task, split, part="valid"):
    y = task.y.double()
    return (y[split.parts()[part]] - y[split.train].mean(0)).square().mean().item()


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize(("mean", "scale"), [(1000.0, 50.0), (-3e5, 2.0), (0.0, 1e-4), (5.0, 1e6)])
def test_a_raw_target_is_learnt_better_than_its_mean(mean, scale, columns):
    task = table(mean, scale, columns=columns)
    record = train_one(task, 0, CONFIG, device="cpu")
    assert record.valid < 0.5 * error_of_the_mean(task, task.splits[0])
    errors = (record.outputs.double().reshape(task.y.shape) - task.y)[task.splits[0].valid]
    assert record.valid == pytest.approx(errors.square().mean().item(), rel=1e-4)


def test_the_units_are_those_of_the_training_part():
    task = table(columns=2)
    mean, deviation = target_units(task.y[task.splits[0].train], 2, "regression", CONFIG)
    expected = task.y[task.splits[0].train].numpy()
    np.testing.assert_allclose(mean, expected.mean(0), rtol=1e-5)
    np.testing.assert_allclose(deviation, expected.std(0), rtol=1e-5)
    state = train_one(task, 0, CONFIG.replace(epochs=2), device="cpu").state
    assert torch.equal(state["target_mean"], mean)
    assert torch.equal(state["target_deviation"], deviation)


def test_gaps_and_constant_columns_have_units():
    y = torch.tensor([[1e3, 7.0], [3e3, 7.0], [torch.nan, 7.0]])
    mean, deviation = target_units(y, 2, "regression", CONFIG)
    assert mean.tolist() == [2000.0, 7.0]
    assert deviation.tolist() == [1000.0, 1.0]


@pytest.mark.parametrize("task", [series(), table(0.3, 0.5)], ids=["series", "table"])
def test_targets_near_unit_scale_stay_as_they_are(task):
    with_units = train_one(task, 0, CONFIG.replace(epochs=3), device="cpu")
    without = train_one(task, 0, CONFIG.replace(epochs=3, scale_targets=False), device="cpu")
    assert with_units.history[0]["loss"] == without.history[0]["loss"]
    assert torch.equal(with_units.outputs, without.outputs)
    assert "target_mean" not in with_units.state


def test_classes_and_other_losses_have_no_units():
    task = blocks()
    assert target_units(task.y, 3, "multiclass", CONFIG) is None
    assert target_units(table().y, 1, "regression", CONFIG.replace(loss="broadcast-mse")) is None


def test_a_run_folder_keeps_the_units(tmp_path):
    task = table()
    summary = fit(task, CONFIG, seeds=2, out=tmp_path / "run", device="cpu", stacked=False)
    for found, result in zip(evaluate(tmp_path / "run", task=task, device="cpu"), summary.results, strict=True):
        assert found.values["mse"]["test"] == pytest.approx(result["test"], rel=1e-5)
    values = predict(tmp_path / "run", task=task, device="cpu").outputs
    assert 500 < values.mean() < 1500
    new = predict(tmp_path / "run", task.x[:3], together=False, task=task, device="cpu").outputs
    assert new.shape == (3, 1)
    assert new.mean() > 500


def test_an_interrupted_regression_is_resumed_to_the_same_bits(tmp_path):
    from difformer.training import TrainingInterrupted

    task, config = table(), CONFIG.replace(epochs=20, checkpoint_every=5)
    whole = fit(task, config, seeds=1, out=tmp_path / "whole", device="cpu")

    class Stop:
        def on_epoch(self, event):
            if event.epoch == 12:
                raise RuntimeError("stop here")

    with pytest.raises((RuntimeError, TrainingInterrupted)):
        fit(task, config, seeds=1, out=tmp_path / "run", device="cpu", callbacks=[Stop()])
    again = resume(tmp_path / "run", task=task, device="cpu")
    assert again.results[0]["test"] == whole.results[0]["test"]
    first, second = (RunFolder.open(tmp_path / name).read_weights(0) for name in ("whole", "run"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_folders_of_earlier_versions_have_targets_in_the_units_of_the_data(tmp_path):
    task, old = table(), CONFIG.replace(scale_targets=False, epochs=4)
    fit(task, old, seeds=1, out=tmp_path / "run", device="cpu")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("scale_targets = false\n", ""))
    folder = RunFolder.open(tmp_path / "run")
    assert not folder.config.scale_targets
    assert len(evaluate(folder, task=task, device="cpu")) == 1
    before = folder.read_weights(0)
    shutil.rmtree(tmp_path / "run" / "seed-0")
    assert resume(tmp_path / "run", task=task, device="cpu").complete
    again = folder.read_weights(0)
    assert before.keys() == again.keys()
    assert all(torch.equal(before[name], again[name]) for name in before)


def test_stacked_runs_have_the_units_of_their_splits():
    task, config = table(), CONFIG.replace(epochs=15)
    together = train_stacked(task, [StackedSetting(0, 0), StackedSetting(1, 1)], config, "cpu")
    for seed, record in enumerate(together):
        alone = train_one(task, seed, config, seed, device="cpu")
        torch.testing.assert_close(record.outputs, alone.outputs, rtol=1e-4, atol=1e-2)
        assert torch.equal(record.state["target_mean"], alone.state["target_mean"])


def test_batches_and_one_pass_are_in_the_units_of_the_data():
    task = table(n=200)
    record = train_one(task, 0, CONFIG.replace(batch_size=50, epochs=30), device="cpu")
    assert record.valid < error_of_the_mean(task, task.splits[0])
    assert 500 < record.outputs.mean() < 1500


def test_a_target_far_from_zero_is_not_called_collapsed():
    task = table(1e5, 1.0)
    assert train_one(task, 0, CONFIG, device="cpu").notes == ()
    flat = dataclasses.replace(task, x=torch.ones_like(task.x))
    assert "collapsed states" in train_one(flat, 0, CONFIG, device="cpu").notes[0]


def test_a_model_loaded_from_a_run_folder_gives_values_of_the_data(tmp_path):
    g = np.random.default_rng(0)
    x = g.normal(size=(80, 3))
    task = from_arrays(x, 1e3 + 10 * x[:, 0], problem="regression")
    fit(task, CONFIG, seeds=1, out=tmp_path / "run", device="cpu")
    loaded = load_run(tmp_path / "run", task=task, device="cpu")
    torch.testing.assert_close(loaded.feed.passes()[0].outputs(loaded.model), loaded.outputs())
    assert abs(float(loaded.outputs().mean()) - 1e3) < 50
