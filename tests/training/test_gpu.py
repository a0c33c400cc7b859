"""Training on a GPU; needs one."""

import dataclasses
import gc

import pytest
import torch
from small_tasks import StackedSetting, blocks, many_labels, point_sets, series, train_stacked

from difformer import DIFFormer
from difformer.data import load
from difformer.training import TrainConfig, evaluate, fit, loop, predict, resume, train_one
from difformer.training.feeds import BatchesFeed
from difformer.training.stack import StackTrainer
from difformer.zoo import MODELS, options_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CONFIG = TrainConfig(options={"hidden_channels": 8, "dropout": 0.2}, epochs=8, learning_rate=0.02)


@pytest.mark.parametrize("make", [blocks, lambda: blocks(sparse=True), many_labels, series, point_sets])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_training_on_a_gpu_matches_the_cpu(make, dropout):
    """Initialisation, masks and batches are the same everywhere, so curves differ by rounding alone."""
    task = make()
    config = CONFIG.replace(options={"hidden_channels": 8, "dropout": dropout})
    records = [train_one(task, 0, config, 1, device) for device in ("cuda", "cpu")]
    for mine, theirs in zip(*(record.history for record in records), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    torch.testing.assert_close(records[0].outputs, records[1].outputs, atol=1e-2, rtol=1e-2)
    assert records[0].outputs.device.type == "cpu"


@pytest.mark.parametrize("model", ["difformer-s", "difformer-a", "gcn", "mlp"])
@pytest.mark.parametrize("batch_size", [None, 20])
def test_mini_batches_and_mixed_precision(model, batch_size):
    for precision in ("float32", "bf16"):
        config = CONFIG.replace(model=model, batch_size=batch_size, precision=precision, epochs=30)
        assert train_one(blocks(), 0, config, 0, "cuda").test > 0.7


@pytest.mark.parametrize("sparse", [False, True])
def test_batches_that_are_cut_on_a_gpu_are_those_of_a_cpu(sparse):
    task = blocks()
    task = dataclasses.replace(task, edge_weight=torch.rand(task.num_edges))
    if sparse:
        task = dataclasses.replace(task, x=task.x.to_sparse_csr())
    place = torch.device("cuda")
    config = CONFIG.replace(batch_size=17)
    torch.manual_seed(0)
    model = DIFFormer(task.x.shape[1], 8, task.num_outputs).eval()
    feeds = [BatchesFeed(task, task.splits[0], config, 3, device) for device in (torch.device("cpu"), place)]
    assert feeds[1].partitions.x.device.type == "cuda"
    for here, there in zip(*(feed.partitions.epoch(2) for feed in feeds), strict=True):
        assert there.nodes.device.type == "cuda"
        x = [(one.x.to_dense() if sparse else one.x).cpu() for one in (here, there)]
        assert x[0].equal(x[1])
        for name in ("nodes", "y", "edge_index", "edge_weight"):
            assert getattr(here, name).equal(getattr(there, name).cpu()), name
    found = [feed.outputs(model.to(feed.device)).detach().cpu() for feed in feeds]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
    feeds[1]._in_one_pass = False  # features on the GPU, states too large for it
    torch.testing.assert_close(feeds[1].outputs(model).detach().cpu(), found[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_stacks_whose_products_are_sliced_learn_as_single_runs(precision):
    task = load("sbm", num_nodes=600)
    options = {"hidden_channels": 8, "dropout": 0.0, **GLOBAL}
    config = TrainConfig(model="difformer-s", options=options, epochs=20, learning_rate=0.02, precision=precision)
    together = train_stacked(task, [StackedSetting(seed, 0) for seed in range(3)], config, "cuda")
    for seed, record in enumerate(together):
        alone = train_one(task, 0, config, seed, "cuda")
        assert record.loss == pytest.approx(alone.loss, rel=1e-3 if precision == "float32" else 0.1)


def test_a_run_folder_made_on_a_gpu(tmp_path):
    class Stop:
        def on_epoch(self, event):
            if event.epoch == 6:
                raise RuntimeError("the light went out")

    config = CONFIG.replace(checkpoint_every=2)
    with pytest.raises(RuntimeError, match="light"):
        fit(blocks(), config, seeds=1, out=tmp_path / "run", device="cuda", callbacks=[Stop()], stacked=False)
    summary = resume(tmp_path / "run", task=blocks())
    whole = fit(blocks(), config, seeds=1, device="cuda", stacked=False)
    assert [row["epoch"] for row in summary.records[0].history] == list(range(1, 9))
    for mine, theirs in zip(summary.records[0].history, whole.records[0].history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
    for device in ("cpu", "cuda"):
        values = evaluate(tmp_path / "run", task=blocks(), device=device)[0].values
        assert values["accuracy"]["test"] == pytest.approx(summary.results[0]["test"], abs=0.06)
        assert predict(tmp_path / "run", blocks().x[:3], task=blocks(), device=device).outputs.shape == (3, 3)


GLOBAL = {"qk_norm": "global", "transform": False}  # of difformer-s a step by the Gram matrix of its states


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("difformer-s", {}),
        ("difformer-s", GLOBAL),
        ("difformer-a", {}),
        ("difformer-a", GLOBAL),
        ("gcn", {}),
        ("mlp", {}),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recorded_epochs_equal_launched_epochs(model, more, dropout, monkeypatch):
    options = {"hidden_channels": 8, "dropout": dropout, **more}
    config = CONFIG.replace(model=model, options=options, epochs=20, gradient_clip=1.0)
    recorded = train_one(blocks(), 0, config, 0, "cuda")
    trainer = loop.Trainer(blocks(), blocks().splits[0], config, 0, torch.device("cuda"))
    assert trainer._recording() is not None
    monkeypatch.setattr(loop.Trainer, "_recording", lambda self: None)
    launched = train_one(blocks(), 0, config, 0, "cuda")
    for mine, theirs in zip(recorded.history, launched.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    torch.testing.assert_close(recorded.outputs, launched.outputs, atol=1e-3, rtol=1e-3)


def test_recorded_models_leave_no_memory_behind():
    config = CONFIG.replace(model="difformer-s", options={"hidden_channels": 8}, epochs=5)
    held = []
    for _ in range(6):
        train_one(blocks(), 0, config, 0, "cuda")
        gc.collect()
        held.append(torch.cuda.memory_allocated())
    assert held[-1] - held[1] < 2**20  # the first may load libraries


STACKABLE = [name for name, info in MODELS.items() if info.stackable and "nodes" in info.kinds]


@pytest.mark.parametrize("model", STACKABLE)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("eval_every", [1, 3])
def test_recorded_stacks_equal_launched_stacks(model, dropout, eval_every, monkeypatch):
    """A replayed epoch counts, learns, judges and stops as one that is launched kernel by kernel."""
    options = {"hidden_channels": 8} | ({"dropout": dropout} if "dropout" in options_of(model) else {})
    config = CONFIG.replace(model=model, options=options, epochs=30, patience=6, eval_every=eval_every)
    settings = [StackedSetting(seed, learning_rate=rate) for seed, rate in enumerate((0.02, 0.01, 0.05))]
    graphs, turn = [], StackTrainer._turn

    def watched(self, due):
        turn(self, due)
        graphs[:] = [self._can_record, *self._recorded]

    monkeypatch.setattr(StackTrainer, "_turn", watched)
    recorded = train_stacked(blocks(), settings, config, "cuda")
    assert graphs[0]
    assert len(graphs) > 1
    monkeypatch.setattr(StackTrainer, "_turn", StackTrainer._turn_by_kernels)
    launched = train_stacked(blocks(), settings, config, "cuda")
    for mine, theirs in zip(recorded, launched, strict=True):
        assert (mine.best_epoch, mine.status, mine.epochs) == (theirs.best_epoch, theirs.status, theirs.epochs)
        assert (mine.train, mine.valid, mine.test) == pytest.approx((theirs.train, theirs.valid, theirs.test), abs=0.05)
        for row, other in zip(mine.history, theirs.history, strict=True):
            assert row["loss"] == pytest.approx(other["loss"], rel=1e-2, abs=1e-4)
        torch.testing.assert_close(mine.outputs, theirs.outputs, atol=2e-2, rtol=2e-2)


def test_weights_in_the_loss_reach_recorded_epochs():
    """The loss of an epoch that is replayed is the one that the trainer was given, also when it is replaced later."""
    task, place = blocks(), torch.device("cuda")
    split = task.splits[0]
    weight = torch.where(task.y == 0, 1.0, 0.0)[split.train]

    def weighted(outputs, targets):
        each = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
        return (each * weight.to(outputs.device)).mean()

    settings = CONFIG.replace(options={"hidden_channels": 8, "dropout": 0.0}, epochs=30)
    on_cpu = loop.Trainer(task, split, settings, 0, torch.device("cpu"), loss=weighted).run()
    given = loop.Trainer(task, split, settings, 0, place, loss=weighted)
    record = given.run()
    assert given._recording() is not None
    assert not record.notes
    for mine, theirs in zip(record.history, on_cpu.history, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-5)
    assert bool((record.outputs.argmax(-1) == 0).all())

    replaced = loop.Trainer(task, split, settings, 0, place)
    replaced.train_epoch()
    before = replaced._recording()
    replaced.loss = weighted
    replaced.train_epoch()
    assert replaced._recording() is not before
    assert replaced.run().history[-1]["loss"] < 0.05


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_sample_weights_of_the_estimators_count_on_a_gpu(kind):
    from difformer.estimators import DIFFormerClassifier, DIFFormerRegressor

    task = blocks(n=90)
    x, y = task.x.numpy(), task.y.numpy()
    make = DIFFormerClassifier if kind == "classifier" else DIFFormerRegressor
    weight = (y != 2) * 1.0 + 1e-6
    settings = {"epochs": 40, "random_state": 0, "device": "cuda"}
    weighted = make(**settings).fit(x, y, sample_weight=weight).predict(x)
    plain = make(**settings).fit(x, y).predict(x)
    off = abs(weighted - y)[y == 2].mean(), abs(plain - y)[y == 2].mean()
    assert off[0] > 2 * off[1] + 0.2


def test_a_model_that_cannot_be_recorded_says_why(monkeypatch, caplog):
    original = DIFFormer.forward

    def waits(self, *inputs):
        outputs = original(self, *inputs)
        return outputs + 0 * outputs.sum().item()

    monkeypatch.setattr(DIFFormer, "forward", waits)
    record = train_one(blocks(), 0, CONFIG, 0, "cuda")
    assert "could not be recorded as a CUDA graph" in record.notes[0]
    assert record.result()["notes"][0] == record.notes[0]
    train_one(blocks(), 0, CONFIG, 1, "cuda")
    assert sum("could not be recorded" in message for message in caplog.messages) <= 1
