"""Whole runs over ranks: histories, weights, files and checkpoints are those of one process."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks_work import compare_versions, train, train_seeds, train_unlike
from safetensors.torch import load_file
from test_exact import graph_task

from difformer.data import from_files
from difformer.distributed.partition_folder import Partition, write_partition
from difformer.training import RunFolder, TrainConfig, TrainingInterrupted, evaluate, fit, resume

CPU = {"device": "cpu", "stacked": False}


def setting(**changes):
    given = {"epochs": 12, "learning_rate": 0.02, "weight_decay": 0.01, "eval_every": 2, "checkpoint_every": 3}
    options = {"hidden_channels": 8, "dropout": 0.3}
    options |= changes.pop("options", {})
    return TrainConfig(**{**given, **changes}, options=options)


@pytest.fixture
def parted(tmp_path):
    def made(parts, **options):
        task = graph_task(weighted=True, **options)
        return task, write_partition(task, tmp_path / f"parts-{parts}", parts).path

    return made


def same_history(found, expected):
    assert len(found) == len(expected)
    for here, there in zip(found, expected, strict=True):
        assert here.keys() - {"seconds"} == there.keys() - {"seconds"}  # written where a checkpoint is
        for key in here.keys() - {"seconds"}:
            assert here[key] == pytest.approx(there[key], abs=2e-5, nan_ok=True), (key, here, there)


CONFIGS = {
    "dropout, clipping, class weights": setting(gradient_clip=0.5, class_weights=True, label_smoothing=0.1),
    "one pass an epoch": setting(options={"dropout": 0.0}, metric="rocauc", schedule="cosine", warmup=2),
    "ring": setting(model="difformer-a", patience=4),
    "no graph": setting(graph="none", decoupled=True),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_run_over_ranks_equals_that_of_one_process(groups, parted, tmp_path, name):
    task, parts = parted(3)
    config = CONFIGS[name]
    expected = fit(task, config, seeds=[1], **CPU)
    histories, results, _ = groups(2)(train, parts, tmp_path / "run", config, [1])[0]
    same_history(histories[0], expected.records[0].history)
    record, result = expected.records[0], results[0]
    for key in ("best_epoch", "epochs", "status", "split", "metric"):
        assert result[key] == record.result()[key]
    folder = RunFolder.open(tmp_path / "run")
    for key, value in folder.read_weights(1).items():
        torch.testing.assert_close(value, record.state[key], atol=2e-5, rtol=1e-4)
    with np.load(tmp_path / "run" / "seed-1" / "predictions.npz") as files:
        np.testing.assert_allclose(files["outputs"], record.outputs, atol=2e-5)
        np.testing.assert_array_equal(files["target"], task.y)


def test_mixed_precision_to_its_own_rounding(groups, parted, tmp_path):
    task, parts = parted(2)
    for model in ("difformer-s", "difformer-a"):
        config = setting(model=model, precision="bf16", epochs=4)
        expected = fit(task, config, seeds=1, **CPU).records[0]
        histories, _, _ = groups(2)(train, parts, tmp_path / model, config, [0])[0]
        assert histories[0][-1]["loss"] == pytest.approx(expected.loss, abs=0.02)


def test_the_folder_is_locked_by_one_process(groups, parted, tmp_path):
    task, parts = parted(2)
    fit(task, setting(), seeds=2, out=tmp_path / "alone", **CPU)
    answers = groups(2)(train, parts, tmp_path / "ranks", setting(), [0, 1])
    assert answers[0][1] == answers[1][1]  # every rank knows the results
    alone, ranks = (
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*"))
        for name in ("alone", "ranks")
    )
    assert ranks == sorted([*alone, "distributed.json"])
    about = json.loads((tmp_path / "ranks" / "distributed.json").read_text())
    assert about["ranks"] == 2
    assert about["bytes_an_epoch"]["boundary"] > 0
    once = [answer[2]["once"] for answer in answers]
    # Rows of the other rank that each needs, asked for before the first seed, and outputs that come to rank 0.
    assert once[0] == once[1]
    assert once[0]["plan"] >= 8 * max(int(Partition.open(parts).read(i).halo_row.numel()) for i in range(2))
    assert once[0]["results"] >= 41 // 2 * 3 * 4
    # One process uses what ranks have trained.
    mine, theirs = (evaluate(tmp_path / name, task=task, device="cpu") for name in ("alone", "ranks"))
    for a, b in zip(mine, theirs, strict=True):
        assert a.values["f1"] == pytest.approx(b.values["f1"], abs=1e-6)


@pytest.mark.parametrize("size", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))])
def test_an_interrupted_run_is_resumed_by_another_number_of_ranks(groups, parted, tmp_path, size):
    task, parts = parted(4)
    expected = fit(task, setting(), seeds=2, **CPU)
    out = tmp_path / "run"
    assert [answer[0] for answer in groups(2)(train, parts, out, setting(), [0, 1], 6)] == ["interrupted"] * 2
    if size == 1:  # one process without ranks, as `difformer fit --resume` does it
        results = resume(out, task=task, device="cpu").results
    else:
        results = groups(size)(train, parts, out, None, None, None, True)[0][1]
    for result, record in zip(results, expected.records, strict=True):
        assert result["status"] == "finished"
        assert result["loss"] == pytest.approx(record.loss, abs=2e-5)
        assert result["best_epoch"] == record.best_epoch
    rows = RunFolder.open(out).rows()
    same_history([row for row in rows if row.pop("seed") == 0], expected.records[0].history)


def test_a_run_on_parts_of_a_table_is_resumed(groups, tmp_path):
    rows = [f"n{i},{'red' if i % 3 else 'blue'},{i % 7},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "x.csv").write_text("\n".join(["id,colour,size,label", *rows]))
    (tmp_path / "e.csv").write_text("\n".join(["source,target", *(f"n{i},n{(7 * i + 1) % 40}" for i in range(40))]))
    task = from_files(tmp_path / "x.csv", edges=tmp_path / "e.csv", label_columns="label")
    assert task.preprocessing is not None
    parts, config = write_partition(task, tmp_path / "parts", 2).path, setting(epochs=6, checkpoint_every=2)
    expected = groups(2)(train, parts, tmp_path / "whole", config, [0])[0]
    assert groups(2)(train, parts, tmp_path / "run", config, [0], 4)[0][0] == "interrupted"
    found = groups(2)(train, parts, tmp_path / "run", None, None, None, True)[0]
    assert found[1][0]["loss"] == expected[1][0]["loss"]
    assert found[1][0]["weights"] == expected[1][0]["weights"]


def test_a_checkpoint_over_ranks_equals_that_of_one_process(groups, parted, tmp_path):
    """And ranks go on from one that a single process wrote."""
    task, parts = parted(2)

    class Stop:
        def on_epoch(self, event):
            if event.epoch == 6:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingInterrupted):
        fit(task, setting(), seeds=1, out=tmp_path / "alone", callbacks=[Stop()], **CPU)
    groups(2)(train, parts, tmp_path / "ranks", setting(), [0], 6)
    name = "seed-0/checkpoint.safetensors"
    alone, ranks = load_file(tmp_path / "alone" / name), load_file(tmp_path / "ranks" / name)
    assert alone.keys() == ranks.keys()
    for key in alone:
        torch.testing.assert_close(alone[key], ranks[key], atol=2e-5, rtol=1e-3)
    expected = fit(task, setting(), seeds=1, **CPU).records[0]
    histories, results, _ = groups(2)(train, parts, tmp_path / "alone", None, None, None, True)[0]
    assert results[0]["loss"] == pytest.approx(expected.loss, abs=2e-5)
    same_history(histories[0], expected.history)


REFUSED = {
    "batch_size=8: a partitioned graph is trained whole": setting(batch_size=8),
    "neighbours must be found before": setting(graph="knn:3"),
    "model 'gcn' cannot be trained on a partitioned graph": TrainConfig(model="gcn"),
    "metric 'mse' cannot measure": setting(metric="mse"),
}


@pytest.mark.parametrize("said", REFUSED)
def test_invalid_requests_are_refused_on_every_rank_and_nothing_is_written(groups, parted, tmp_path, said):
    _, parts = parted(2)
    answers = groups(2)(train, parts, tmp_path / "run", REFUSED[said], [0])
    assert all(said in answer for answer in answers), answers
    assert not (tmp_path / "run").exists()


UNLIKE = {
    "settings": [
        "setting learning_rate is 0.02 on rank 0 and 0.5 on rank 1",
        "setting options num_layers is absent on rank 0 and 3 on rank 1",
    ],
    "data": ["data fingerprint is "],
    "seeds": ["seeds is [0] on rank 0 and [1] on rank 1"],
}


@pytest.mark.parametrize("how", UNLIKE)
def test_ranks_started_on_different_data_or_settings_are_refused(groups, tmp_path, how):
    task = graph_task()
    write_partition(task, tmp_path / "parts", 2)
    write_partition(replace(task, x=task.x + 1), tmp_path / "other", 2)
    answers = groups(2)(train_unlike, how, task, tmp_path / "parts", tmp_path / "run", setting())
    assert answers[0] == answers[1]
    for said in answers[0]:
        assert said.startswith("the ranks were started differently: ")
        assert all(part in said for part in UNLIKE[how]), said
    assert not (tmp_path / "run").exists()


def test_ranks_on_two_cuts_of_the_same_data_are_refused(groups, tmp_path):
    task = graph_task()
    write_partition(task, tmp_path / "parts", 2)
    write_partition(task, tmp_path / "cut", 2, assignment=torch.arange(task.num_nodes) % 2)
    for answer in groups(2)(train_unlike, "cut", task, tmp_path / "parts", tmp_path / "run", setting(epochs=1)):
        assert answer[0] == "trained"
        assert "partition is " in answer[1]


def test_ranks_of_different_versions_are_refused(groups):
    for said in groups(2)(compare_versions):
        assert said.startswith("UserError: the ranks were started differently: version of difformer is 0.1 on rank 0")
        assert "torch" not in said


def test_a_diverged_seed_does_not_end_the_other_ranks(groups, tmp_path):
    task = graph_task(problem="regression")
    split = task.splits[0]
    y = task.y.clone()
    y[split.test] = 1e30  # its square is infinite
    swapped = replace(split, name="swapped", train=split.test, test=split.train)
    task = replace(task, y=y, splits=(split, swapped))
    alone = fit(replace(task, splits=(split,)), setting(epochs=3, scale_targets=False), seeds=[2], **CPU).records[0]
    answers = groups(2)(train_seeds, task, setting(epochs=3, scale_targets=False), [0, 1, 2], tmp_path / "run")
    for said in answers:
        assert said.startswith("UserError: seed 1: the training loss is inf at epoch 1")
        assert said.endswith(f"The other seeds are finished and saved in {tmp_path / 'run'}.")
    folder = RunFolder.open(tmp_path / "run")
    assert folder.unfinished == (1,)
    assert next(r for r in folder.results() if r["seed"] == 2)["loss"] == pytest.approx(alone.loss, abs=2e-5)


def test_a_diverged_seed_of_a_sharded_run_does_not_end_the_other_seeds(groups, tmp_path):
    task = graph_task(problem="regression")
    split = task.splits[0]
    y = task.y.clone()
    y[split.test] = 1e30
    swapped = replace(split, name="swapped", train=split.test, test=split.train)
    made = write_partition(replace(task, y=y, splits=(split, swapped)), tmp_path / "parts", 2)
    config = setting(epochs=3, scale_targets=False)
    for said in groups(2)(train, made.path, tmp_path / "run", config, [0, 1, 2]):
        assert said.startswith("UserError: seed 1: the training loss is inf at epoch 1")
        assert said.endswith(f"The other seeds are finished and saved in {tmp_path / 'run'}.")
    assert [result["seed"] for result in RunFolder.open(tmp_path / "run").results()] == [0, 2]


def test_raw_targets_are_learnt_in_the_units_of_one_process(groups, tmp_path):
    task = graph_task(problem="regression")
    task = replace(task, y=1e3 + 20 * task.y)
    made = write_partition(task, tmp_path / "parts", 3)
    expected = fit(task, setting(epochs=4), seeds=1, **CPU).records[0]
    histories, _, _ = groups(2)(train, made.path, tmp_path / "run", setting(epochs=4), [0])[0]
    assert [row["loss"] for row in histories[0]] == pytest.approx([row["loss"] for row in expected.history], rel=1e-3)
    weights = RunFolder.open(tmp_path / "run").read_weights(0)
    torch.testing.assert_close(weights["target_mean"], expected.state["target_mean"])
    with np.load(tmp_path / "run" / "seed-0" / "predictions.npz") as files:
        np.testing.assert_allclose(files["outputs"], expected.outputs, rtol=1e-4)
