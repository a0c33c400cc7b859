import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from small_tasks import StackedSetting, blocks, many_labels, point_sets, series, train_stacked
from torch.nn import functional

from difformer import DIFFormer
from difformer.training import NonFiniteLossError, TrainConfig, fit, train_one
from difformer.training.loop import Trainer
from difformer.training.model import build_model
from difformer.training.optimizer import learning_rate
from difformer.training.randomness import isolated_rng
from difformer.training.record import warning_signs
from difformer.zoo import MODELS

CPU = torch.device("cpu")
SMALL = {"hidden_channels": 8}


def config(**changes):
    options = SMALL | changes.pop("options", {})
    return TrainConfig(options=options, **({"epochs": 8, "learning_rate": 0.05} | changes))


def trainer_of(task, settings, seed=0):
    with isolated_rng(CPU):
        torch.manual_seed(seed)
        return Trainer(task, task.splits[0], settings, seed, CPU)


def curves(record):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in record.history]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_trainer_equals_a_plain_loop(dropout):
    """Same parameters, same losses and metrics as twenty lines of torch that evaluate after every step."""
    task, split = blocks(), blocks().splits[0]
    settings = config(options={"dropout": dropout}, weight_decay=0.01, epochs=6)
    record = train_one(task, 0, settings, seed=3, device="cpu")

    from difformer.nn.dropout import dropout_key

    torch.manual_seed(3)
    model = DIFFormer(5, 8, 3, dropout=dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=0.01)
    rows, best, best_state = [], -1.0, {}
    for epoch in range(1, 7):
        model.train()
        optimizer.zero_grad()
        with dropout_key(3, epoch):
            loss = functional.cross_entropy(model(task.x, task.edge_index)[split.train], task.y[split.train])
        loss.backward()
        optimizer.step()
        model.eval()
        right = model(task.x, task.edge_index).argmax(1) == task.y
        measured = {name: right[index].double().mean().item() for name, index in split.parts().items()}
        rows.append({"epoch": epoch, "loss": loss.item()} | measured)
        if measured["valid"] > best:
            best, best_epoch = measured["valid"], epoch
            best_state = {name: value.clone() for name, value in model.state_dict().items()}
    for mine, theirs in zip(curves(record), rows, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-5)
    assert record.best_epoch == best_epoch
    torch.testing.assert_close(record.state, best_state, atol=1e-4, rtol=1e-4)


def test_one_forward_pass_serves_gradient_and_evaluation(monkeypatch):
    calls = []
    original = DIFFormer.forward
    monkeypatch.setattr(DIFFormer, "forward", lambda self, *a: calls.append(self.training) or original(self, *a))
    counts = {}
    for dropout in (0.0, 0.2):
        trainer = trainer_of(blocks(), config(epochs=10, options={"dropout": dropout}))
        calls.clear()
        trainer.run()
        counts[dropout] = len(calls)
    # Without dropout: 10 passes with gradient, the last evaluation, and the outputs of the best state.
    assert counts == {0.0: 12, 0.2: 21}


class Noisy(DIFFormer):
    def forward(self, x, *structure):
        return super().forward(x + torch.randn_like(x) * self.training, *structure)


def test_one_pass_is_decided_from_module_types_and_dropout_rates():
    trainer = trainer_of(blocks(), config())
    assert trainer.one_pass
    changed = {
        "a subclass": Noisy(5, 8, 3),
        "dropout": DIFFormer(5, 8, 3, dropout=0.1),
        "batch statistics": torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3)),
        "torch dropout": torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Dropout(0.1)),
        "spectral norm": torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(5, 3)),
    }
    hooked = DIFFormer(5, 8, 3)
    hooked.output.register_forward_hook(lambda module, inputs, outputs: outputs * (1 + module.training))
    for name, model in {**changed, "a hook": hooked}.items():
        trainer.model = model
        assert not trainer.one_pass, name
    trainer.model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Dropout(0.0), torch.nn.LayerNorm(3))
    assert trainer.one_pass


@pytest.mark.parametrize("case", ["zero output", "one channel"])
def test_the_recorded_scores_are_those_of_the_stored_outputs(case, monkeypatch):
    """A trial pass cannot see dropout where the output layer is zero, or where one channel is kept."""

    def zeroed(task, settings, seed=None):
        model = build_model(task, settings, seed)
        torch.nn.init.zeros_(model.output.weight)
        return model

    if case == "zero output":
        monkeypatch.setattr("difformer.training.model.build_model", zeroed)
    task = blocks(n=90)
    width = 1 if case == "one channel" else 8
    settings = config(options={"dropout": 0.5, "hidden_channels": width}, epochs=15)
    for seed in range(4):
        record = train_one(task, 0, settings, seed, device="cpu")
        for part, index in task.splits[0].parts().items():
            right = (record.outputs[index].argmax(-1) == task.y[index]).double().mean().item()
            assert right == getattr(record, part), (seed, part)


def test_weights_loss_feed_and_metric_are_arguments_of_the_trainer():
    from difformer.training.metrics import find_metric

    task = blocks()
    split, settings = task.splits[0], config(epochs=30)
    only_class_0 = torch.where(task.y == 0, 1.0, 0.0)

    def loss(outputs, targets):
        each = functional.cross_entropy(outputs, targets, reduction="none")
        return (each * only_class_0[split.train]).mean()

    metric = find_metric("f1")
    trainer = Trainer(task, split, settings, 0, CPU, loss=loss, metric=metric)
    record = trainer.run()
    assert record.metric == "f1"
    assert bool((record.outputs.argmax(-1) == 0).all())
    fed = Trainer(task, split, settings, 0, CPU, feed=trainer.feed)
    assert fed.feed is trainer.feed
    assert fed.run().test > 0.7


def test_outputs_that_are_not_finite_in_an_evaluation_end_the_run(monkeypatch):
    """With a finite loss, too: such a run has no best epoch."""

    class Fails(DIFFormer):
        def forward(self, *inputs):
            found = super().forward(*inputs)
            return found if self.training else found / 0

    monkeypatch.setattr("difformer.training.model.build_model", lambda task, settings, seed: Fails(5, 8, 3))
    with pytest.raises(NonFiniteLossError, match=r"outputs of an evaluation are not finite at epoch 2; try a smaller"):
        train_one(blocks(), 0, config(eval_every=2), device="cpu")


@pytest.mark.parametrize("stacked", [False, True])
def test_training_in_threads_gives_the_results_of_training_alone(stacked):

    task = blocks(n=40)
    settings = config(options={"dropout": 0.3}, epochs=4)

    def work(seed):
        if stacked:
            return train_stacked(task, [StackedSetting(seed), StackedSetting(seed + 50)], settings, "cpu")[1]
        return train_one(task, 0, settings, seed, device="cpu")

    before = torch.get_rng_state()
    alone = [work(seed) for seed in range(12)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(work, range(12)))
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(alone, together, strict=True):
        assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
        assert torch.equal(one.outputs, other.outputs)


def test_a_run_inside_a_callback_does_not_change_the_outer_run(monkeypatch):
    """Of a model that draws from the global generator, too: every exit restores it, not only the last one."""
    monkeypatch.setattr("difformer.training.model.build_model", lambda task, settings, seed: Noisy(5, 8, 3))

    class Nested:
        def on_epoch(self, event):
            if event.seed == 0:
                train_one(blocks(), 0, config(epochs=2), 1, "cpu", callbacks=[self])

    alone = train_one(blocks(), 0, config(), 0, "cpu")
    assert curves(train_one(blocks(), 0, config(), 0, "cpu", callbacks=[Nested()])) == curves(alone)


def test_every_exit_of_nested_generators_restores_the_state_of_its_entry():
    before = torch.get_rng_state()
    with isolated_rng(CPU, 1):
        torch.rand(3)
        outer = torch.get_rng_state()
        with isolated_rng(CPU, 2):
            torch.rand(3)
        assert torch.equal(torch.get_rng_state(), outer)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_is_initialised_from_the_private_generator(name, monkeypatch):
    task = {"nodes": blocks(), "series": series(), "graphs": point_sets()}[MODELS[name].kinds[0]]
    with monkeypatch.context() as patch:  # drawn from torch's own generator
        patch.setattr("difformer.training.model.private_rng", lambda seed: nullcontext())
        torch.manual_seed(3)
        expected = build_model(task, TrainConfig(model=name)).state_dict()
    torch.manual_seed(9)
    before = torch.get_rng_state()
    found = build_model(task, TrainConfig(model=name), 3).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_constant_predictions_and_collapsed_states_are_noted():
    task = blocks(n=90)
    rare = dataclasses.replace(task, y=(torch.arange(90) % 10 == 0).long(), num_outputs=2, edge_index=None)
    rare = dataclasses.replace(rare, x=torch.ones(90, 5))
    record = train_one(rare, 0, config(epochs=20), device="cpu")
    share = (rare.y[torch.cat([task.splits[0].valid, task.splits[0].test])] == 0).double().mean()
    assert f"predicted as class 0, so the accuracy there ({share:.4f})" in record.notes[0]
    rows = record.outputs[torch.cat([task.splits[0].valid, task.splits[0].test])].double()
    spread = float((rows - rows.mean(0)).square().mean().sqrt() / rows.square().mean().sqrt())
    assert spread < 1e-6  # equal features give equal outputs
    assert (
        f"collapsed states: the outputs of all instances agree to a relative spread of {spread:.1e}" in record.notes[1]
    )
    assert record.result()["notes"] == list(record.notes)
    summary = fit(rare, config(epochs=5), seeds=2, device="cpu")
    assert summary.notes
    assert {"predicted as class 0" in note or "collapsed states" in note for note in summary.notes} == {True}
    healthy = train_one(task, 0, config(epochs=30), device="cpu")
    assert healthy.notes == ()
    assert "notes" not in healthy.result()


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_an_accuracy_below_the_most_frequent_class_is_noted(metric):
    task = blocks(n=100)
    y = (torch.arange(100) % 5 == 0).long()
    task = dataclasses.replace(task, y=y, num_outputs=2, x=torch.randn(100, 5, generator=torch.Generator()))
    outputs = torch.nn.functional.one_hot(torch.arange(100) % 2, 2).float()
    held = torch.cat([task.splits[0].valid, task.splits[0].test])
    share, reached = (y[held] == 0).double().mean(), (y[held] == held % 2).double().mean()
    expected = (
        f"no better than always predicting the most frequent class ({share:.2f}): accuracy outside the training part "
        f"is {reached:.2f}"
    )
    assert warning_signs(task, task.splits[0], outputs, metric) == [expected] * (metric == "accuracy")
    right = torch.nn.functional.one_hot(y, 2).float()
    assert warning_signs(task, task.splits[0], right, metric) == []


@pytest.mark.parametrize("stacked", [False, True])
def test_a_fit_below_the_most_frequent_class_says_so(stacked):
    task = blocks(n=100)
    y = (torch.arange(100) % 5 == 0).long()
    noise = torch.randn(100, 5, generator=torch.Generator().manual_seed(1))
    task = dataclasses.replace(task, y=y, num_outputs=2, x=noise, edge_index=None)
    summary = fit(task, config(epochs=60), seeds=2, device="cpu", stacked=stacked)
    assert any("no better than always predicting the most frequent class (0." in note for note in summary.notes)


def test_values_further_off_than_the_mean_of_the_training_part_are_noted():
    task = blocks(n=100)
    y = torch.randn(100, 2, generator=torch.Generator().manual_seed(0)) + 3
    y[::7, 1] = torch.nan
    task = dataclasses.replace(task, y=y, num_outputs=2, problem="regression", metric="mse", class_names=())
    split = task.splits[0]
    held, mean = torch.cat([split.valid, split.test]), y[split.train].double().nanmean(0)
    simple = (y[held].double() - mean).square().nanmean()
    off = y.nan_to_num(3.0) + torch.tensor([2.0, -2.0])
    expected = f"no better than always predicting the mean of the training part ({simple:.4g}): the mean squared error"
    assert [note.partition(" outside")[0] for note in warning_signs(task, split, off, "mse")] == [expected]
    assert warning_signs(task, split, y.nan_to_num(3.0), "mse") == []


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (lambda: blocks(sparse=True), {"epochs": 30}),
        (many_labels, {"epochs": 60, "class_weights": True, "label_smoothing": 0.1}),
        (series, {"epochs": 60, "options": {"graph_weight": 0.9}}),
        (lambda: series(graphs="many"), {"epochs": 60, "batch_size": 8, "options": {"graph_weight": 0.9}}),
        (lambda: series(graphs="one"), {"epochs": 20, "steps_per_epoch": "snapshot", "learning_rate": 0.02}),
        (point_sets, {"epochs": 30, "batch_size": 12}),
        (lambda: point_sets(edges=False), {"epochs": 30, "batch_size": 12, "readout": "sum"}),
        (blocks, {"epochs": 40, "batch_size": 20}),
        (blocks, {"epochs": 25, "batch_size": 30, "precision": "bf16"}),
        (blocks, {"epochs": 30, "precision": "bf16"}),
    ],
    ids=[
        "sparse",
        "labels",
        "series",
        "series-graphs",
        "series-steps",
        "graphs",
        "sets",
        "mini-batch",
        "mini-batch-bf16",
        "bf16",
    ],
)
def test_every_kind_of_task_learns(make, settings):
    task = make()
    record = train_one(task, 0, config(**settings), device="cpu")
    assert record.status == "finished"
    assert len(record.history) == settings["epochs"]
    assert record.history[-1]["loss"] < 0.8 * record.history[0]["loss"]
    if task.metric == "mse":
        assert record.test < 0.7 * task.y[task.splits[0].test].square().mean()
    else:
        assert record.test > 0.7
    instances = task.y.shape[:2] if task.kind == "series" else (task.num_instances,)
    assert record.outputs.shape == (*instances, task.num_outputs)
    best = min if task.metric == "mse" else max
    assert record.valid == best(row["valid"] for row in record.history)
    assert record.best_epoch == next(row["epoch"] for row in record.history if row["valid"] == record.valid)


@pytest.mark.parametrize("name", ["mlp", "gcn", "difformer-a"])
def test_other_models_learn_a_block_graph(name):
    record = train_one(blocks(), 0, config(model=name, epochs=20), device="cpu")
    assert record.test > 0.7


def test_a_model_without_parameters_is_evaluated_once():
    record = train_one(blocks(), 0, TrainConfig(model="label-spreading", epochs=50), device="cpu")
    assert [row["epoch"] for row in record.history] == [1]
    assert record.test > 0.7
    assert record.state == {}


@pytest.mark.parametrize("make", [blocks, series, point_sets])
def test_a_seed_gives_one_result_and_does_not_touch_the_global_generator(make):
    task = make()
    settings = config(options={"dropout": 0.2}, batch_size=20 if task.kind != "series" else None)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = train_one(task, 0, settings, seed=1, device="cpu")
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(100)
    second = train_one(task, 0, settings, seed=1, device="cpu")
    assert curves(first) == curves(second)
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)
    other = train_one(task, 0, settings, seed=2, device="cpu")
    assert curves(other) != curves(first)


@pytest.mark.parametrize("make", [blocks, many_labels, series, point_sets])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_resumed_run_is_bit_identical(make, dropout, tmp_path):
    from difformer.training.checkpoint import Snapshot

    task = make()
    batch = {"blocks": 20, "sets": 8}.get(task.name) if dropout else None
    settings = config(
        options={"dropout": dropout}, eval_every=3, checkpoint_every=4, epochs=11, batch_size=batch, schedule="cosine"
    )
    taken = []
    whole = train_one(task, 0, settings, seed=1, device="cpu", save=taken.append)
    assert [snapshot.epoch for snapshot in taken] == [4, 8]
    for snapshot in taken:
        snapshot.write(tmp_path / "checkpoint")
        resumed = train_one(task, 0, settings, seed=1, device="cpu", state=Snapshot.read(tmp_path / "checkpoint"))
        assert curves(resumed) == curves(whole)
        assert all(torch.equal(resumed.state[name], whole.state[name]) for name in whole.state)
        assert torch.equal(resumed.outputs, whole.outputs)
        assert (resumed.best_epoch, resumed.test) == (whole.best_epoch, whole.test)


def test_a_checkpoint_of_another_run_is_refused():
    from difformer.training.checkpoint import CheckpointError

    taken = []
    train_one(blocks(), 0, config(checkpoint_every=4), seed=1, device="cpu", save=taken.append)
    with pytest.raises(CheckpointError, match="of seed 1, this run has 2"):
        train_one(blocks(), 0, config(), seed=2, device="cpu", state=taken[0])
    with pytest.raises(CheckpointError, match="of another model"):
        train_one(blocks(), 0, config(options={"hidden_channels": 9}), seed=1, device="cpu", state=taken[0])
    for wrong in ({"best": [1]}, {"best": {"train": 1}}, {"history": [{}]}, {"history": [3]}, {"best_epoch": "x"}):
        with pytest.raises(CheckpointError, match="of another model"):
            train_one(
                blocks(),
                0,
                config(),
                seed=1,
                device="cpu",
                state=dataclasses.replace(taken[0], facts=taken[0].facts | wrong),
            )
    more = dataclasses.replace(taken[0], facts=taken[0].facts | {"best": taken[0].facts["best"] | {"": 1}})
    assert train_one(blocks(), 0, config(), seed=1, device="cpu", state=more).epochs == config().epochs


def test_evaluation_every_few_epochs():
    events = []

    class Watch:
        on_epoch = staticmethod(events.append)

    record = train_one(blocks(), 0, config(epochs=11, eval_every=4), device="cpu", callbacks=[Watch()])
    assert [row["epoch"] for row in record.history] == list(range(1, 12))
    assert [row["epoch"] for row in record.history if "valid" in row] == [4, 8, 11]
    assert [event.epoch for event in events] == [4, 8, 11]
    every = train_one(blocks(), 0, config(epochs=11), device="cpu")
    assert [row["loss"] for row in record.history] == [row["loss"] for row in every.history]
    assert events[-1].best_epoch == record.best_epoch
    assert events[-1].best_test == record.test


def test_patience_restarts_at_every_better_epoch(monkeypatch):
    validation = iter([0.1, 0.2, 0.2, 0.2, 0.3, 0.1, 0.1, 0.1, 0.9])

    def measure(self, epoch, outputs):
        return {"train": 0.0, "valid": next(validation), "test": 0.0}

    monkeypatch.setattr("difformer.training.loop.Journal.measure", measure)
    record = train_one(blocks(), 0, config(epochs=9, patience=3), device="cpu")
    assert record.status == "stopped early"
    assert (record.best_epoch, record.epochs) == (5, 8)


def test_patience_is_counted_at_evaluated_epochs(monkeypatch):
    """Between two evaluations nothing is known, so a run does not stop there."""
    monkeypatch.setattr(
        "difformer.training.loop.Journal.measure",
        lambda self, epoch, outputs: {"train": 0.0, "valid": 0.5, "test": 0.0},
    )
    record = train_one(blocks(), 0, config(epochs=20, eval_every=4, patience=2), device="cpu")
    assert (record.best_epoch, record.epochs, record.status) == (4, 8, "stopped early")


def test_without_validation_the_last_epoch_is_kept():
    from difformer.data import Split

    task = blocks()
    split = task.splits[0]
    alone = Split("no validation", split.train, split.valid[:0], split.test)
    record = train_one(task, alone, config(), device="cpu")
    assert record.best_epoch == 8
    assert math.isnan(record.valid)


def test_a_loss_that_is_not_finite_stops_with_advice():
    with pytest.raises(
        NonFiniteLossError, match=r"loss is (nan|inf) at epoch \d+; try a smaller learning_rate"
    ) as told:
        train_one(blocks(), 0, config(learning_rate=1e30, epochs=50, eval_every=7), device="cpu")
    assert 1 < told.value.epoch <= 7


def test_gradient_clipping_decay_and_penalty_reach_the_parameters():
    def weights(**changes):
        return train_one(blocks(), 0, config(**changes), device="cpu").state["input.weight"]

    plain = weights()
    assert not torch.equal(weights(gradient_clip=1e-3), plain)
    assert not torch.equal(weights(weight_decay=0.1), weights(weight_decay=0.1, decoupled=True))
    assert not torch.equal(weights(class_weights=True, label_smoothing=0.2), plain)


def test_a_penalty_of_the_model_is_added_to_the_loss(monkeypatch):
    plain = train_one(blocks(), 0, config(epochs=30), device="cpu").state["input.weight"].norm()
    monkeypatch.setattr(DIFFormer, "penalty", lambda self: 10 * self.input.weight.square().sum(), raising=False)
    assert train_one(blocks(), 0, config(epochs=30), device="cpu").state["input.weight"].norm() < 0.5 * plain


def test_features_are_prepared_once_and_labels_observed(monkeypatch):
    seen = []

    def prepare(self, x, edge_index, edge_weight):
        seen.append("prepared")
        return x * 0, None, None

    monkeypatch.setattr(DIFFormer, "prepare", prepare, raising=False)
    monkeypatch.setattr(DIFFormer, "observe", lambda self, y, index: seen.append(index.numel()), raising=False)
    record = train_one(blocks(), 0, config(), device="cpu")
    assert seen == [24, "prepared"]
    assert torch.equal(record.outputs, record.outputs[:1].expand_as(record.outputs))


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1, 1]),
        ("linear", 0, [1, 0.8, 0.6, 0.4, 0.2]),
        ("constant", 3, [0.25, 0.5, 0.75, 1, 1]),
        ("cosine", 0, [1, 0.9045085, 0.6545085, 0.3454915, 0.0954915]),
        ("linear", 2, [1 / 3, 2 / 3, 1, 2 / 3, 1 / 3]),
    ],
)
def test_learning_rate_follows_the_schedule(schedule, warmup, expected):
    settings = TrainConfig(epochs=5, learning_rate=1, schedule=schedule, warmup=warmup)
    assert [learning_rate(settings, epoch) for epoch in range(1, 6)] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("task", "settings", "complaint"),
    [
        (series(), {"model": "label-spreading"}, "'label-spreading' serves nodes; task 'ring' is 'series'"),
        (series(), {"model": "lds"}, "is 'series', which gcn-knn, gat-knn, .*glcn of the same group .* would serve"),
        (blocks(), {"metric": "mse"}, "'mse' cannot measure a multiclass task"),
        (blocks(), {"loss": "broadcast-mse"}, "broadcast-mse is for regression on series"),
        (series(), {"label_smoothing": 0.1}, "are for classes; task 'ring' is a regression"),
        (blocks(), {"options": {"hiden": 1}}, "no option 'hiden'"),
    ],
)
def test_incompatible_arguments_are_refused(task, settings, complaint):
    settings = {"options": {}} | settings
    with pytest.raises(ValueError, match=complaint):
        train_one(task, 0, TrainConfig(**settings), device="cpu")


def test_the_public_codes_loss_and_metric_for_series():
    task = series()
    record = train_one(task, 0, config(loss="broadcast-mse", metric="broadcast-mse", epochs=30), device="cpu")
    assert record.metric == "broadcast-mse"
    # No prediction can score below the spread of the targets: a perfect one scores twice that.
    spread = task.y[task.splits[0].test].var(-1, correction=0).mean().item()
    assert record.test > spread
    honest = train_one(task, 0, config(epochs=30), device="cpu")
    assert honest.test < spread


@pytest.mark.parametrize("graphs", ["one", "many", "none"])
def test_a_snapshot_in_a_batch_gets_the_answer_it_gets_alone(graphs):
    task = series(graphs=graphs)
    for options in ({}, {"qk_norm": "global"}):
        trainer = trainer_of(task, config(options=options))
        outputs = trainer.evaluate()
        for t in (0, 7, 19):
            index = task.edge_index[t] if graphs == "many" else task.edge_index
            weight = task.edge_weight[t] if graphs == "many" else None
            alone = trainer.model(task.x[t], index, weight)
            torch.testing.assert_close(outputs[t], alone, atol=1e-6, rtol=1e-5)


def test_gradients_of_a_series_do_not_depend_on_how_many_snapshots_go_together():
    task = series()
    curve = [curves(train_one(task, 0, config(batch_size=size, epochs=4), device="cpu")) for size in (None, 3, 1)]
    for other in curve[1:]:
        for row, expected in zip(other, curve[0], strict=True):
            assert row == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("make", [blocks, series, point_sets])
def test_graph_none_and_graph_knn(make):
    task = make()
    without = trainer_of(task, config(graph="none"))
    assert all(inputs.graph is None for inputs in without.feed.passes())
    near = trainer_of(task, config(graph="knn:3"))
    graph = near.feed.passes()[0].graph
    assert graph.num_edges >= 3 * graph.num_nodes - 2
    assert torch.equal(graph.edge_index.flip(0).unique(dim=1), graph.edge_index.unique(dim=1))
