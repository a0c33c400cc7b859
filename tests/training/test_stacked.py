import gc
import json
import math
import os
import signal
import weakref

import pytest
import torch
from small_tasks import StackedSetting, blocks, many_labels, point_sets, runs_of, series, train_stacked

import difformer
from difformer import zoo
from difformer.errors import UserError
from difformer.training import NonFiniteLossError, RunFolderError, TrainConfig, fit, resume, train_one
from difformer.training import stack as stacked_module
from difformer.training.checkpoint import Snapshot
from difformer.training.devices import saved_bytes
from difformer.training.optimizer import StackedAdam, clip_gradients
from difformer.training.stack import StackJournal, StackTrainer, apart, faster, unstackable

OPTIONS = {"hidden_channels": 8, "num_layers": 3}
DIFFERENT = [
    StackedSetting(seed=3, split=1, learning_rate=0.02, weight_decay=0.01, dropout=0.5, step_size=0.3),
    StackedSetting(seed=0, split=0, learning_rate=0.001, weight_decay=0.0, dropout=0.0, step_size=0.9),
    StackedSetting(seed=3, split=0, learning_rate=0.01, weight_decay=0.1, dropout=0.2, step_size=0.5),
    StackedSetting(seed=5, split=1, learning_rate=0.05, weight_decay=0.001, dropout=0.3, step_size=0.7),
]


def assert_same_run(record, alone, tolerance=1e-4):
    for name in ("seed", "split", "metric", "best_epoch", "status", "epochs"):
        assert getattr(record, name) == getattr(alone, name), name
    for name in ("train", "valid", "test", "loss"):
        assert getattr(record, name) == pytest.approx(getattr(alone, name), abs=tolerance, nan_ok=True), name
    for row, expected in zip(record.history, alone.history, strict=True):
        expected = {name: value for name, value in expected.items() if name != "seconds"}
        assert row == pytest.approx(expected, abs=tolerance, nan_ok=True)
    assert list(record.state) == list(alone.state)
    for name, value in alone.state.items():
        torch.testing.assert_close(record.state[name], value, rtol=0, atol=tolerance)
    torch.testing.assert_close(record.outputs, alone.outputs, rtol=0, atol=tolerance)


def assert_each_equals_its_own(task, settings, config, **options):
    records = train_stacked(task, settings, config, "cpu", **options)
    assert len(records) == len(settings)
    for setting, record in zip(settings, records, strict=True):
        assert_same_run(record, train_one(task, setting.split, setting.config(config), setting.seed, "cpu"))
    return records


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decoupled": True, "schedule": "cosine", "warmup": 2, "gradient_clip": 0.5},
        {"eval_every": 3, "class_weights": True, "label_smoothing": 0.1},
        {"model": "difformer-a"},
        {"options": {**OPTIONS, "num_heads": 2, "activation": "relu", "transform": False, "qk_norm": "global"}},
        {"options": {**OPTIONS, "norm": False, "graph_weight": 0.8, "source_weight": 0.3}},
    ],
    ids=["plain", "schedule", "weights", "sigmoid", "heads", "source"],
)
def test_each_run_of_a_stack_is_its_own_single_run(changes):
    config = TrainConfig(epochs=6, options=OPTIONS).replace(**changes)
    assert_each_equals_its_own(blocks(sparse=True), DIFFERENT, config)


@pytest.mark.parametrize("model", ["mlp", "gcn"])
def test_other_models_stack_too(model):
    settings = [StackedSetting(seed=s, split=s % 2, dropout=0.1 * s, learning_rate=0.01) for s in range(4)]
    assert_each_equals_its_own(blocks(), settings, TrainConfig(model=model, epochs=8, options={"num_layers": 2}))


def test_every_run_has_the_labels_of_its_split():
    settings = [StackedSetting(seed=s, split=s % 2, source_weight=0.5 + s, dropout=0.2 * s) for s in range(4)]
    config = TrainConfig(model="grand++", epochs=6, options={"num_layers": 3})
    for setting, record in zip(settings, train_stacked(blocks(), settings, config, "cpu"), strict=True):
        alone = train_one(blocks(), setting.split, setting.config(config), setting.seed, "cpu")
        assert record.best_epoch == alone.best_epoch
        # Not its state: attention does not see the bias of its keys, whose gradient is rounding alone.
        torch.testing.assert_close(record.outputs, alone.outputs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_run_without_dropout_beside_others_keeps_the_masks_of_a_second_rate(sparse):
    settings = [StackedSetting(seed=s, dropout=0.25 * s, learning_rate=0.01) for s in range(3)]
    assert_each_equals_its_own(blocks(sparse=sparse), settings, TrainConfig(model="sgformer", epochs=4))


def test_graph_and_source_weights_differ_from_run_to_run():
    settings = [StackedSetting(seed=1, graph_weight=0.1 * w, source_weight=0.5 * w) for w in range(4)]
    assert_each_equals_its_own(blocks(), settings, TrainConfig(epochs=8, learning_rate=0.01, options=OPTIONS))


@pytest.mark.parametrize("steps", ["epoch", "snapshot"])
def test_stacked_runs_on_a_series_equal_single_runs(steps):
    settings = [StackedSetting(seed=s, dropout=0.2 * s, learning_rate=0.01) for s in range(3)]
    config = TrainConfig(epochs=3, steps_per_epoch=steps, batch_size=2, options={**OPTIONS, "num_layers": 2})
    assert_each_equals_its_own(series(steps=10), settings, config)


def test_stacked_runs_with_several_labels_equal_single_runs():
    settings = [StackedSetting(seed=s, learning_rate=0.01 * (s + 1)) for s in range(3)]
    assert_each_equals_its_own(many_labels(), settings, TrainConfig(epochs=6, options=OPTIONS))


def test_runs_stop_early_by_themselves():
    config = TrainConfig(epochs=40, patience=6, eval_every=2, options=OPTIONS)
    settings = [StackedSetting(seed=s, learning_rate=rate) for s, rate in enumerate((0.1, 0.02, 1e-5))]
    records = assert_each_equals_its_own(blocks(), settings, config)
    assert len({record.epochs for record in records}) > 1, "all runs ended at one epoch: nothing was tested"
    assert {record.status for record in records} >= {"stopped early"}


def test_patience_that_runs_out_at_the_last_epoch_does_not_stop_the_run():
    config = TrainConfig(epochs=40, patience=5, learning_rate=0.05, options=OPTIONS)
    early = train_one(blocks(), 0, config, 0, "cpu")
    assert early.status == "stopped early"
    record = assert_each_equals_its_own(blocks(), [StackedSetting()] * 2, config.replace(epochs=early.epochs))[0]
    assert record.status == "finished"


def test_without_dropout_a_pass_serves_training_and_evaluation(monkeypatch):
    task, config = blocks(), TrainConfig(epochs=5, options=OPTIONS)
    passes = []
    evaluate = StackTrainer._evaluate
    monkeypatch.setattr(StackTrainer, "_evaluate", lambda self, *a: passes.append(1) or evaluate(self, *a))
    train_stacked(task, [StackedSetting(seed=s) for s in range(2)], config, "cpu")
    # The last epoch, and the best outputs.
    assert len(passes) == 2


def test_a_diverging_run_does_not_change_the_others():
    task, config = blocks(), TrainConfig(epochs=8, options={**OPTIONS, "norm": False, "qk_norm": "none"})
    settings = [StackedSetting(seed=0, learning_rate=0.01), StackedSetting(seed=1, learning_rate=1e30)]
    record, error = train_stacked(task, settings, config, "cpu")
    assert isinstance(error, NonFiniteLossError)
    with pytest.raises(NonFiniteLossError) as alone:
        train_one(task, 0, settings[1].config(config), 1, "cpu")
    assert error.epoch == alone.value.epoch
    assert_same_run(record, train_one(task, 0, settings[0].config(config), 0, "cpu"))
    assert "learning_rate (it is 1e+30)" in str(error)


def test_a_diverging_seed_of_a_stack_ends_the_fit(tmp_path):
    config = TrainConfig(epochs=8, learning_rate=1e30, options={**OPTIONS, "norm": False, "qk_norm": "none"})
    with pytest.raises(NonFiniteLossError, match=r"learning_rate \(it is 1e\+30\)"):
        fit(blocks(), config, seeds=2, stacked=True, out=tmp_path / "run", device="cpu")


def test_a_stack_that_does_not_fit_is_halved(monkeypatch):
    task, config = blocks(), TrainConfig(epochs=3, options=OPTIONS)
    expected = train_stacked(task, DIFFERENT, config, "cpu")
    train, sizes = StackTrainer.run, []

    def short_of_memory(self, *given):
        sizes.append(len(self.runs))
        if len(self.runs) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return train(self, *given)

    monkeypatch.setattr(StackTrainer, "run", short_of_memory)
    for record, other in zip(train_stacked(task, DIFFERENT, config, "cpu"), expected, strict=True):
        assert_same_run(record, other, 1e-5)
    assert sizes == [4, 2, 1, 1, 2, 1, 1]


def test_a_resumed_stack_that_does_not_fit_starts_again_in_halves(monkeypatch):
    task, config = blocks(), TrainConfig(epochs=4, checkpoint_every=2, options=OPTIONS)
    saved: list[Snapshot] = []
    expected = train_stacked(task, DIFFERENT, config, "cpu", save=saved.append)
    train = StackTrainer.run

    def short_of_memory(self, *given):
        if len(self.runs) > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return train(self, *given)

    monkeypatch.setattr(StackTrainer, "run", short_of_memory)
    found = train_stacked(task, DIFFERENT, config, "cpu", state=saved[0])
    for record, other in zip(found, expected, strict=True):
        assert_same_run(record, other, 1e-5)


def test_the_generator_and_the_modules_are_left_as_they_were():
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    train_stacked(blocks(), DIFFERENT, TrainConfig(epochs=2, options=OPTIONS), "cpu")
    assert torch.equal(torch.rand(3), expected)
    config = TrainConfig(epochs=2, options=OPTIONS)
    runs, hyper = stacked_module._checked(blocks(), runs_of(DIFFERENT, config))
    trainer = StackTrainer(blocks(), runs, hyper, torch.device("cpu"))
    trainer.run()
    model = trainer.model._module.model
    assert isinstance(model.dropout, float)
    assert all(isinstance(layer.step_size, float) for layer in model.layers)


def test_callbacks_get_every_run_and_stop_ends_all_runs():
    events = []

    class Listener:
        def on_epoch(self, event):
            events.append(event)

    config = TrainConfig(epochs=9, eval_every=2, options=OPTIONS)
    records = train_stacked(
        blocks(), DIFFERENT, config, "cpu", callbacks=[Listener()], stop=lambda: bool(events) and events[-1].epoch >= 4
    )
    assert [record.status for record in records] == ["interrupted"] * 4
    assert sorted({event.epoch for event in events}) == [2, 4]
    assert len(events) == 8
    last = {(event.seed, event.split): event for event in events[4:]}
    for record in records:
        event = last[record.seed, record.split]
        assert (event.best_epoch, event.best_valid) == (record.best_epoch, record.valid)
        assert event.valid_metric == record.history[3]["valid"]
        assert event.loss == record.history[3]["loss"]


@pytest.mark.parametrize("decoupled", [False, True])
def test_stacked_adam_is_torchs_adam_on_every_row(decoupled):
    g = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(3, 7, generator=g), torch.randn(20, 3, 7, generator=g)
    rates, decays = torch.tensor([0.1, 0.01, 0.03]), torch.tensor([0.0, 0.5, 0.01])
    stack = start.clone()
    used = torch.tensor([1.0] * 5 + [0.0] * 2)  # the last two never have a gradient
    adam = StackedAdam(stack, decays, decoupled=decoupled)
    for gradient in gradients:
        adam.step(gradient * used, rates, used)
    for row in range(3):
        trained, unused = start[row, :5].clone().requires_grad_(), start[row, 5:].clone().requires_grad_()
        kind = torch.optim.AdamW if decoupled else torch.optim.Adam
        optimizer = kind([trained, unused], lr=float(rates[row]), weight_decay=float(decays[row]))
        for gradient in gradients:
            trained.grad = gradient[row, :5].clone()
            optimizer.step()
        torch.testing.assert_close(stack[row], torch.cat([trained, unused]).detach(), rtol=1e-5, atol=1e-6)


class PartlyUsed(torch.nn.Module):
    """A linear map; the second one never has a gradient, so weight decay must not reach it either."""

    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.map, self.unused = torch.nn.Linear(in_channels, out_channels), torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.map(x)


@pytest.mark.parametrize("decoupled", [False, True])
def test_parameters_without_a_gradient_do_not_decay(decoupled, monkeypatch):
    monkeypatch.setattr(zoo.model_registry, "_registered", {})
    monkeypatch.setattr(zoo.model_registry, "MODELS", dict(zoo.MODELS))
    difformer.register_model("partly-used", PartlyUsed, kinds=("nodes", "series"), stackable=True)
    settings = [StackedSetting(seed=0, learning_rate=0.01), StackedSetting(seed=1, learning_rate=0.1)]
    config = TrainConfig(model="partly-used", epochs=3, weight_decay=0.5, decoupled=decoupled)
    assert_each_equals_its_own(blocks(), settings, config)
    for steps in ("epoch", "snapshot"):
        assert_each_equals_its_own(series(), settings, config.replace(steps_per_epoch=steps, batch_size=2))


def test_gradients_are_clipped_row_by_row():
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    clip_gradients(gradient, 1.0)
    torch.testing.assert_close(gradient, torch.tensor([[0.6, 0.8], [0.3, 0.4]]), rtol=1e-5, atol=0)


def test_memory_per_run_is_measured():
    x = torch.randn(1000, requires_grad=True)
    # exp keeps its result, and sin its input, which is the same memory.
    assert saved_bytes(lambda: x.exp().sin()) == 4000


def test_a_measured_pass_leaves_no_memory_behind():
    x = torch.randn(1000, requires_grad=True)
    made = []

    def forward():
        y = x.exp()  # keeps its own result
        made.append(weakref.ref(y))
        return y

    assert saved_bytes(forward) == 4000
    assert saved_bytes(forward, besides=[x]) == 4000
    assert saved_bytes(x.sin, besides=[x]) == 0
    gc.collect()
    assert [one() for one in made] == [None, None]


def test_a_stack_leaves_no_memory_behind():
    def tensors():
        gc.collect()
        return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())

    def train():
        config = TrainConfig(model="glcn", epochs=2, options={"hidden_channels": 8})
        train_stacked(blocks(), [StackedSetting(seed, 0) for seed in range(3)], config, "cpu")

    train()
    before = tensors()
    train()
    assert tensors() <= before  # fewer where a cache that an earlier test filled is emptied meanwhile


def test_what_cannot_be_stacked_says_why():
    config = TrainConfig(options=OPTIONS)
    added = config.replace(options={**OPTIONS, "graph_weight": None})
    assert "graphs" in unstackable(point_sets(), config)
    assert "mini-batches" in unstackable(blocks(), config.replace(batch_size=20))
    assert "model" in unstackable(blocks(), TrainConfig(model="label-spreading"))
    assert "adaptive" in unstackable(blocks(), TrainConfig(model="grand", options={"method": "dopri5"}))
    assert not unstackable(blocks(), TrainConfig(model="grand", options={"method": "rk4"}))
    with pytest.raises(ValueError, match="cannot be trained as one: mini-batches"):
        train_stacked(blocks(), DIFFERENT, config.replace(batch_size=20), "cpu")
    with pytest.raises(ValueError, match=r"graph_weight is None in one of them and 0\.5 in another"):
        train_stacked(blocks(), [StackedSetting(), StackedSetting(graph_weight=0.5)], added, "cpu")
    for split in (7, -1):
        with pytest.raises(UserError, match=f"split {split} of a run: task 'blocks' has 2 splits"):
            train_stacked(blocks(), [StackedSetting(), StackedSetting(split=split)], config, "cpu")
    with pytest.raises(ValueError, match="has no option 'step_size'"):
        train_stacked(blocks(), [StackedSetting(step_size=0.5)], TrainConfig(model="mlp"), "cpu")
    assert train_stacked(blocks(), [], config, "cpu") == []


def test_runs_that_belong_together_are_found():
    config = TrainConfig(options=OPTIONS)
    same = config.replace(learning_rate=0.5, weight_decay=0.1, options={**OPTIONS, "dropout": 0.3, "step_size": 0.1})
    assert apart(config) == apart(same)
    assert apart(config) == apart(config.replace(options={**OPTIONS, "graph_weight": 0.5}))
    for other in ({"epochs": 7}, {"options": {"hidden_channels": 9}}, {"options": {**OPTIONS, "graph_weight": None}}):
        assert apart(config) != apart(config.replace(**other))


def test_stacks_are_faster_for_small_tasks():
    task = blocks()
    config = TrainConfig(options=OPTIONS)
    assert faster(task, config, 8, "cpu")
    assert not faster(task, config, 7, "cpu")
    assert not faster(task, config.replace(options={"hidden_channels": 4096}), 8, "cpu")
    assert not faster(blocks(n=600), config.replace(model="difformer-a"), 8, "cpu")
    assert faster(blocks(n=600), config, 8, "cpu")
    assert not faster(point_sets(), config, 8, "cpu")


def test_without_validation_the_last_epoch_is_kept():
    task = blocks()
    split = task.splits[0]
    task = task.with_splits(type(split)("no validation", split.train, split.valid[:0], split.test))
    record = assert_each_equals_its_own(task, [StackedSetting(seed=s) for s in (0, 1)], TrainConfig(epochs=4))[0]
    assert record.best_epoch == 4
    assert math.isnan(record.valid)


def interrupted(path, settings, at, **more):
    """A stacked run that Ctrl-C ends after some epoch."""
    from difformer.training import TrainingInterrupted

    class Stop:
        def on_epoch(self, event):
            if event.epoch == at and event.seed == 0:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingInterrupted) as told:
        fit(blocks(), settings, seeds=3, out=path, device="cpu", stacked=True, callbacks=[Stop()], **more)
    return str(told.value)


def contents(folder):
    """Everything that the results say, without times."""
    found = {path.parent.name: path.read_bytes() for path in folder.rglob("model.safetensors")}
    for path in folder.rglob("result.json"):
        found[f"{path.parent.name} result"] = json.loads(path.read_text()) | {"seconds": 0}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    return found


@pytest.mark.parametrize(
    "changes",
    [{}, {"patience": 7, "gradient_clip": 1.0}, {"eval_every": 3, "decoupled": True}, {"model": "gin"}],
    ids=str,
)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_an_interrupted_stack_is_resumed_to_the_same_bits(tmp_path, changes, dropout):
    settings = TrainConfig(
        options={"hidden_channels": 8, "dropout": dropout}, epochs=12, weight_decay=0.01, schedule="cosine", warmup=2
    ).replace(**changes)
    fit(blocks(), settings, seeds=3, out=tmp_path / "whole", device="cpu", stacked=True)
    told = interrupted(tmp_path / "run", settings, 6)
    assert f"the state was saved, resume it from {tmp_path / 'run'}" in told
    assert (tmp_path / "run/stack.safetensors").is_file()
    seen = []

    class Watch:
        on_epoch = staticmethod(seen.append)

    assert resume(tmp_path / "run", task=blocks(), device="cpu", callbacks=[Watch()]).complete
    assert min(event.epoch for event in seen) > 6
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
    assert not (tmp_path / "run/stack.safetensors").exists()


def test_a_stack_that_is_killed_is_resumed_from_its_last_checkpoint(tmp_path):
    settings = TrainConfig(options={"hidden_channels": 8, "dropout": 0.2}, epochs=10, checkpoint_every=4)
    fit(blocks(), settings, seeds=3, out=tmp_path / "whole", device="cpu", stacked=True)

    class Fail:
        def on_epoch(self, event):
            if event.epoch == 7:
                raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        fit(blocks(), settings, seeds=3, out=tmp_path / "run", device="cpu", stacked=True, callbacks=[Fail()])
    assert Snapshot.read(tmp_path / "run/stack.safetensors").epoch == 4
    assert resume(tmp_path / "run", task=blocks(), device="cpu").complete
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_checkpoint_of_another_stack_is_refused(tmp_path):
    settings = TrainConfig(options={"hidden_channels": 8}, epochs=8)
    interrupted(tmp_path / "run", settings, 3)
    interrupted(tmp_path / "other", settings.replace(options={"hidden_channels": 4}), 3)
    place = tmp_path / "run/stack.safetensors"
    place.write_bytes((tmp_path / "other/stack.safetensors").read_bytes())
    with pytest.raises(RunFolderError, match=r"of another model.*delete it to train all seeds from the beginning"):
        resume(tmp_path / "run", task=blocks(), device="cpu")
    place.write_bytes(b"half")
    with pytest.raises(RunFolderError, match=r"damaged.*delete it to train all seeds"):
        resume(tmp_path / "run", task=blocks(), device="cpu")
    place.unlink()
    assert resume(tmp_path / "run", task=blocks(), device="cpu").complete


def test_an_interrupted_stack_in_halves_is_trained_again(tmp_path, monkeypatch):
    settings, train = TrainConfig(options={"hidden_channels": 8}, epochs=8), StackTrainer.run

    def short_of_memory(self, *given):
        if len(self.runs) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return train(self, *given)

    monkeypatch.setattr(StackTrainer, "run", short_of_memory)
    told = interrupted(tmp_path / "run", settings, 3)
    assert f"unfinished seeds have no checkpoint and start again on resuming {tmp_path / 'run'}" in told
    assert not (tmp_path / "run/stack.safetensors").exists()
    assert resume(tmp_path / "run", task=blocks(), device="cpu").complete
    fit(blocks(), settings, seeds=3, out=tmp_path / "whole", device="cpu", stacked=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_run_that_has_stopped_is_not_changed_by_later_epochs(monkeypatch):
    """Its validation metric would be better later; a run by itself would not have seen that."""
    scores = torch.tensor([[4.0, 1], [3, 2], [3, 3], [9, 4], [9, 5], [9, 6]]).double()
    scores = torch.cat([scores, torch.full((6, 1), math.nan)], 1)
    monkeypatch.setattr(StackJournal, "_metric", lambda self, index, targets, outputs: scores[int(self.clock) - 1])
    settings = [StackedSetting(seed=seed) for seed in range(3)]
    first, second, third = train_stacked(blocks(), settings, TrainConfig(options=OPTIONS, epochs=6, patience=2), "cpu")
    assert (first.best_epoch, first.epochs, first.valid, first.status) == (1, 3, 4, "stopped early")
    assert (second.best_epoch, second.epochs, second.valid, second.status) == (6, 6, 6, "finished")
    assert (third.best_epoch, third.epochs) == (0, 6)  # without a score there is no best epoch to count from
