"""A GPU replays recordings of epochs; here a CPU does, of operators: they find all that changes where it was."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from small_tasks import StackedSetting, blocks, train_stacked
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from difformer.training import TrainConfig, cuda_graph
from difformer.training.loop import Trainer
from difformer.training.stack import StackTrainer
from difformer.zoo import MODELS, options_of

STACKABLE = [name for name, info in MODELS.items() if info.stackable and "nodes" in info.kinds]
SETTINGS = [StackedSetting(seed, split=seed % 2, learning_rate=rate) for seed, rate in enumerate((0.02, 0.01, 0.05))]


class Tape(TorchDispatchMode):
    """Operators with the tensors they read and wrote; a replay does them again, into the same tensors."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = operator(*args, **kwargs)
        schema = operator._schema
        # A view is there already, and what is written in place is written by doing it again.
        is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)
        if not is_view:
            self.calls.append((operator, args, kwargs, found))
        return found

    def replay(self):
        with torch.no_grad():
            for operator, args, kwargs, written in self.calls:
                again = operator(*args, **kwargs)
                for old, new in zip(tree_leaves(written), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor):
                        put(new, old)


def put(new, old):
    """The values of one tensor into the memory of another, which may be that of an expanded one."""
    if old.layout != torch.strided:  # of sparse matrices, where entries are never changes
        old, new = old.values(), new.values()
    into, values = old.untyped_storage(), new.untyped_storage()
    if into.data_ptr() == values.data_ptr():
        return
    if old.stride() == new.stride() and into.nbytes() == values.nbytes():
        into.copy_(values)
    else:
        old.copy_(new)


class Recorder:
    """As `cuda_graph.Recorder`; but a CPU cannot record without doing, so that the first replay does nothing."""

    def __init__(self):
        self.kinds = 0

    def record(self, work):
        tape = Tape()
        with tape:
            work()
        done = [True]
        replay = tape.replay
        tape.replay = lambda: done.pop() if done else replay()
        self.kinds += 1
        return tape


def recorded(monkeypatch):
    """Makes all stacks record on this CPU; the recorders that they got."""
    recorders, make = [], StackTrainer.__init__

    def init(self, *args):
        make(self, *args)
        self._recorder, self._can_record = Recorder(), True
        recorders.append(self._recorder)

    monkeypatch.setattr(StackTrainer, "__init__", init)
    return recorders


@pytest.mark.parametrize(
    ("model", "dropout", "eval_every"),
    [*((name, 0.3, 2) for name in STACKABLE), *((name, 0.0, 1) for name in ("difformer-s", "gin", "nodeformer"))],
)
def test_replayed_turns_equal_launched_turns(model, dropout, eval_every, monkeypatch):
    options = {"hidden_channels": 8} | ({"dropout": dropout} if "dropout" in options_of(model) else {})
    config = TrainConfig(
        model=model, options=options, epochs=9, patience=4, eval_every=eval_every, gradient_clip=1.0, warmup=3,
        schedule="cosine", weight_decay=0.01,
    )  # fmt: skip
    launched = train_stacked(blocks(), SETTINGS, config, "cpu")
    recorders = recorded(monkeypatch)
    replayed = train_stacked(blocks(), SETTINGS, config, "cpu")
    assert recorders[-1].kinds == eval_every
    for mine, theirs in zip(replayed, launched, strict=True):
        assert (mine.best_epoch, mine.status, mine.epochs) == (theirs.best_epoch, theirs.status, theirs.epochs)
        assert mine.history == theirs.history
        assert torch.equal(mine.outputs, theirs.outputs)
        for name, value in theirs.state.items():
            assert torch.equal(mine.state[name], value), name


def test_a_turn_is_done_before_it_is_recorded(monkeypatch):
    """What is kept for later must not be made while recording: it would have no values until the first replay."""
    kinds, turn = [], StackTrainer._turn_by_kernels

    def watched(self, due):
        kinds.append((due, torch.utils._python_dispatch._get_current_dispatch_mode() is not None))
        turn(self, due)

    monkeypatch.setattr(StackTrainer, "_turn_by_kernels", watched)
    recorded(monkeypatch)
    train_stacked(blocks(), SETTINGS[:1], TrainConfig(epochs=12, eval_every=4), "cpu")
    assert kinds == [(False, False), (False, False), (False, True), (True, False), (True, True)]


def test_a_metric_that_waits_is_never_recorded(monkeypatch):
    config = TrainConfig(epochs=8, eval_every=2, metric="f1")
    launched = train_stacked(blocks(), SETTINGS, config, "cpu")
    recorders = recorded(monkeypatch)
    replayed = train_stacked(blocks(), SETTINGS, config, "cpu")
    assert recorders[-1].kinds == 1
    assert [record.history for record in replayed] == [record.history for record in launched]


def test_what_cannot_be_recorded_is_launched(monkeypatch):
    config = TrainConfig(epochs=6)
    launched = train_stacked(blocks(), SETTINGS, config, "cpu")
    recorded(monkeypatch)
    monkeypatch.setattr(Recorder, "record", lambda self, work: None)
    found = train_stacked(blocks(), SETTINGS, config, "cpu")
    assert [record.history for record in found] == [record.history for record in launched]


@pytest.fixture
def taped_graphs(monkeypatch):
    """CUDA graphs that are tapes; the pools that they were recorded in."""
    pools = []

    class Graph:
        def pool(self):
            return "the first pool"

        def replay(self):
            self.tape.replay()

    @contextmanager
    def graph(recorded, pool, stream):
        pools.append(pool)
        recorded.tape = Tape()
        with recorded.tape:
            yield

    stream = SimpleNamespace(device=torch.device("cpu"), wait_stream=lambda other: None)
    monkeypatch.setattr(cuda_graph, "side_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return pools


def trainer_of(task, dropout=0.3):
    config = TrainConfig(epochs=9, options={"hidden_channels": 8, "dropout": dropout}, eval_every=2)
    return Trainer(task, task.splits[0], config, 1, torch.device("cpu"))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_single_run_of_recorded_epochs_equals_launched_ones(dropout, taped_graphs, monkeypatch):
    launched, trainer = trainer_of(blocks(), dropout).run(), trainer_of(blocks(), dropout)
    recorded = cuda_graph.RecordedEpoch(trainer.model, trainer.feed, trainer.loss, trainer.seed, trainer.config)
    monkeypatch.setattr(trainer, "_recording", lambda: recorded)
    replayed = trainer.run()
    assert taped_graphs == [None, "the first pool"]
    assert [row["loss"] for row in replayed.history] == [row["loss"] for row in launched.history]
    assert torch.equal(replayed.outputs, launched.outputs)


def test_a_recording_that_fails_leaves_the_model_as_it_was(taped_graphs):
    trainer = trainer_of(blocks())
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}

    def waits(outputs, targets):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("cannot wait for a value\nwhile recording")
        return outputs.square().mean()

    with pytest.raises(cuda_graph.NotRecordableError, match=r"training is slower: cannot wait for a value$"):
        cuda_graph.RecordedEpoch(trainer.model, trainer.feed, waits, trainer.seed, trainer.config)
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
