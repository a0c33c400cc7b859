import dataclasses

import numpy as np
import pytest
import torch
from small_tasks import blocks, point_sets, series

from difformer.data import Split
from difformer.training import RunFolderError, TrainConfig, embed, energy, evaluate, fit, load_run, predict

CONFIG = TrainConfig(options={"hidden_channels": 8}, epochs=10, learning_rate=0.05)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        task.name: fit(task, CONFIG, seeds=2, out=folder / task.name, device="cpu", stacked=False)
        for task in (blocks(), series(), point_sets())
    }


@pytest.mark.parametrize("make", [blocks, series, point_sets])
def test_evaluation_measures_what_was_recorded(runs, make):
    task = make()
    summary = runs[task.name]
    for evaluation, result in zip(evaluate(summary.folder, task=task), summary.results, strict=True):
        assert (evaluation.seed, evaluation.split) == (result["seed"], result["split"])
        for part in ("train", "valid", "test"):
            assert evaluation.values[task.metric][part] == pytest.approx(result[part], rel=1e-6)
    assert ("broadcast-mse" in evaluation.values) == (task.kind == "series")


def test_predictions_of_the_tasks_own_instances(runs):
    summary = runs["blocks"]
    best = max(summary.records, key=lambda record: record.valid)
    made = predict(summary.folder, task=blocks())
    assert torch.equal(made.outputs, best.outputs)
    assert torch.equal(made.labels(), best.outputs.argmax(1))
    torch.testing.assert_close(made.probabilities().sum(1), torch.ones(60))
    headings, rows = made.table()
    assert headings[:5] == ["instance", "part", "target", "prediction", "probability"]
    assert headings[5:] == [f"probability {c}" for c in range(made.outputs.shape[1])]
    assert rows[7][:3] == [7, made.part[7], "1"]
    other = predict(summary.folder, task=blocks(), seed=1)
    assert torch.equal(other.outputs, summary.records[1].outputs)


def test_new_rows_are_seen_beside_the_old_ones(runs):
    """A copy of a node, with the same neighbours, gets what the node would get in that larger graph."""
    task = blocks()
    run = runs["blocks"].folder
    node = 4
    sources = task.edge_index[0, (task.edge_index[1] == node) & (task.edge_index[0] != node)]
    edges = torch.stack([sources, torch.full_like(sources, 60)])
    made = predict(run, task.x[[node]].numpy(), edges=edges.numpy(), task=task)
    assert made.outputs.shape == (1, 3)
    model = load_run(run, task=task).model
    joined = torch.cat([task.edge_index, edges, torch.tensor([[60], [60]])], 1)
    with torch.no_grad():
        expected = model(torch.cat([task.x, task.x[[node]]]), joined)[60:]
    torch.testing.assert_close(made.outputs, expected)
    assert embed(run, task.x[[node]], edges=edges, task=task).shape == (1, 8)
    alone = predict(run, task.x[:5], task=task, together=False)
    loops = torch.arange(5).expand(2, -1)
    with torch.no_grad():
        torch.testing.assert_close(alone.outputs, model(task.x[:5], loops))


def test_new_rows_beside_sparse_features_stay_sparse(tmp_path):
    from scipy.sparse import csr_array

    task = blocks(sparse=True)
    fit(task, CONFIG.replace(epochs=1), seeds=1, out=tmp_path / "run", device="cpu")
    rows = task.x.to_dense()[:3]
    made = [predict(tmp_path / "run", form, task=task).outputs for form in (rows, csr_array(rows.numpy()))]
    torch.testing.assert_close(made[0], made[1])
    from difformer.training.trained_run import new_task

    assert new_task(task, rows)[0].x.layout == torch.sparse_csr


def test_new_snapshots_and_new_graphs(runs):
    task = series()
    made = predict(runs["ring"].folder, task.x[3:5], task=task)
    whole = predict(runs["ring"].folder, task=task)
    torch.testing.assert_close(made.outputs, whole.outputs[3:5])
    assert made.table()[0] == ["snapshot", "node", "prediction"]
    sets = point_sets()
    torch.testing.assert_close(
        predict(runs["sets"].folder, on=sets, task=sets).outputs, predict(runs["sets"].folder, task=sets).outputs
    )
    with pytest.raises(ValueError, match="new graphs are given as a task of their own"):
        predict(runs["sets"].folder, sets.x, task=sets)


def test_new_snapshots_with_graphs_of_their_own_are_a_task(tmp_path):
    task = series(graphs="many")
    summary = fit(task, CONFIG.replace(epochs=1), seeds=1, out=tmp_path / "run", device="cpu")
    some = dataclasses.replace(
        task, x=task.x[3:5], y=task.y[3:5], edge_index=task.edge_index[3:5], edge_weight=task.edge_weight[3:5],
        splits=(Split("new", *[torch.empty(0, dtype=torch.long)] * 3),),
    )  # fmt: skip
    made = predict(summary.folder, on=some, task=task, device="cpu").outputs
    torch.testing.assert_close(made, predict(summary.folder, task=task, device="cpu").outputs[3:5])
    with pytest.raises(ValueError, match=r"graphs of their own are given as a task: on="):
        predict(summary.folder, task.x[3:5], task=task, device="cpu")


def test_states_decode_to_predictions(runs):
    for task in (blocks(), series(), point_sets()):
        run = runs[task.name].folder
        loaded = load_run(run, task=task)
        states = embed(run, task=task)
        assert states.shape[:-1] == predict(run, task=task).outputs.shape[:-1]
        with torch.no_grad():
            torch.testing.assert_close(loaded.model.decode(states), predict(run, task=task).outputs)


def test_energy_of_every_layer(runs, tmp_path):
    for task in (blocks(), series(), point_sets()):
        profile = energy(runs[task.name].folder, task=task)
        assert len(profile) == 3
        assert bool((profile.energy > 0).all())
        assert profile.dirichlet is not None
        assert bool((profile.effective_rank >= 1).all())
    whole = load_run(runs["blocks"].folder, task=blocks()).model.energy(blocks().x, blocks().edge_index)
    torch.testing.assert_close(energy(runs["blocks"].folder, task=blocks()).energy, whole.energy)
    fit(blocks(), CONFIG.replace(model="mlp", epochs=1), seeds=1, out=tmp_path / "run", device="cpu")
    with pytest.raises(ValueError, match="'mlp' does not measure an energy"):
        energy(tmp_path / "run", task=blocks())


def test_invalid_questions_are_refused(runs):
    run, task = runs["blocks"].folder, blocks()
    with pytest.raises(ValueError, match=r"must have shape \[M, 5\], got \(2, 4\)"):
        predict(run, np.zeros((2, 4)), task=task)
    with pytest.raises(ValueError, match="without their features"):
        predict(run, edges=[[0], [1]], task=task)
    with pytest.raises(RunFolderError, match="has no seed 7; it has 0, 1"):
        predict(run, seed=7, task=task)
    with pytest.raises(ValueError, match="trained on nodes with 5 features, task 'ring' holds series with 3"):
        predict(run, on=series(), task=task)
    changed = dataclasses.replace(task, x=task.x + 1)
    with pytest.raises(RunFolderError, match=r"the data of .* have changed"):
        evaluate(run, task=changed)


def test_a_model_that_spreads_labels_predicts_new_rows(tmp_path):
    task = dataclasses.replace(blocks(), edge_index=None)
    fit(task, TrainConfig(model="label-spreading"), seeds=1, out=tmp_path / "run", device="cpu")
    made = predict(tmp_path / "run", task.x[:10], task=task)
    assert (made.labels() == task.y[:10]).float().mean() > 0.7


def test_tables_name_classes_and_instances(tmp_path):
    names = tuple(f"node {i}" for i in range(60))
    task = dataclasses.replace(blocks(), class_names=("red", "green", "blue"), instance_names=names)
    task.y[0] = -1
    split = task.splits[0]
    kept = {part: index[index != 0] for part, index in split.parts().items()}
    task = task.with_splits(dataclasses.replace(split, **kept))
    fit(task, CONFIG.replace(epochs=1), seeds=1, out=tmp_path / "run", device="cpu")
    made = predict(tmp_path / "run", task=task)
    rows = made.table()[1]
    assert rows[0][:3] == ["node 0", "", ""]
    assert {row[3] for row in rows} <= {"red", "green", "blue"}
    made.write(tmp_path / "out.csv")
    made.write(tmp_path / "out.npz")
    assert (tmp_path / "out.csv").read_text().splitlines()[1].startswith("node 0,,,")
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["names"][1] == "node 1"
        assert arrays["classes"].tolist() == ["red", "green", "blue"]
    with pytest.raises(ValueError, match=r"written as \.csv or \.npz"):
        made.write(tmp_path / "out.txt")


def test_a_run_in_mixed_precision_is_used_as_it_was_trained(tmp_path):
    summary = fit(blocks(), CONFIG.replace(precision="bf16"), seeds=1, out=tmp_path / "run", device="cpu")
    made = predict(summary.folder, task=blocks(), device="cpu")
    assert torch.equal(made.outputs, summary.records[0].outputs)


def test_new_snapshots_keep_the_neighbour_graph_of_the_training(tmp_path):
    task = series()
    summary = fit(task, CONFIG.replace(graph="knn:3"), seeds=1, out=tmp_path / "run", device="cpu")
    own = predict(summary.folder, task=task, device="cpu").outputs
    torch.testing.assert_close(predict(summary.folder, task.x[3:5], task=task, device="cpu").outputs, own[3:5])
