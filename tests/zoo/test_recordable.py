"""Models whose runs can be stacked never wait for a value: on a GPU their epochs are recorded, and replayed."""

import dataclasses
import pickle
from collections import Counter

import pytest
import torch
from test_zoo import STACKABLE, nodes_task
from torch.utils._python_dispatch import TorchDispatchMode

from difformer import zoo
from difformer.training import TrainConfig
from difformer.training.journal import RECORDABLE, Run
from difformer.training.metrics import METRICS
from difformer.training.stack import StackTrainer
from difformer.zoo.encoder import Passes, self_loops

# Operators that bring a number to the host, or whose result is as large as values say.
WAITING = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "lift_fresh",  # a tensor made of Python's numbers
    "masked_select",
    "nonzero",
    "unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "linalg_qr",
    "_linalg_check_errors",
}


class Watch(TorchDispatchMode):
    """Counts operators that wait."""

    def __init__(self):
        super().__init__()
        self.waited = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = operator.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        counts = name == "repeat_interleave" and isinstance(args[-1], torch.Tensor)
        counted = counts and kwargs.get("output_size") is None
        if name in WAITING or by_mask or counted:
            self.waited[name] += 1
        return operator(*args, **kwargs)


def with_sparse_features(task):
    return dataclasses.replace(task, x=task.x.relu().to_sparse_csr())


def without_edges(task):
    return dataclasses.replace(task, edge_index=None)


CASES = [(name, change) for name in STACKABLE for change in (with_sparse_features, without_edges)]


@pytest.mark.parametrize(
    ("name", "change"),
    [case for case in CASES if case[1] is with_sparse_features or not zoo.MODELS[case[0]].needs_graph],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_stacked_epoch_does_not_synchronise(name, change):
    options = {"dropout": 0.2} if "dropout" in zoo.options_of(name) else {}
    config = TrainConfig(model=name, epochs=4, options=options)
    runs = [Run(seed, 0, config) for seed in range(2)]
    trainer = StackTrainer(change(nodes_task()), runs, (), torch.device("cpu"))
    for due in (False, True):  # these fill caches
        trainer._turn_by_kernels(due)
        trainer.epoch += 1
    with Watch() as watch:
        trainer._turn_by_kernels(True)
    assert not watch.waited


@pytest.mark.parametrize("name", RECORDABLE)
@pytest.mark.parametrize("kind", ["classes", "columns", "numbers"])
def test_recorded_metrics_do_not_synchronise(name, kind):
    problem = {"classes": "multiclass", "columns": "multilabel", "numbers": "regression"}[kind]
    if problem not in METRICS[name].problems:
        pytest.skip("not for this problem")
    g = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 8, 1 if kind == "numbers" else 3, generator=g)
    targets = {
        "classes": torch.randint(-1, 3, (6, 8), generator=g),
        "columns": torch.rand(6, 8, 3, generator=g).round(),
        "numbers": torch.randn(6, 8, generator=g),
    }[kind]
    with Watch() as watch:
        METRICS[name](outputs, targets)
    assert not watch.waited


def test_synchronisation_detector_notices_synchronisation():
    x = torch.arange(4.0)
    with Watch() as watch:
        float(x.sum()), x.nonzero(), x[x > 1], torch.tensor([1.0]), x.long().bincount()
        x.repeat_interleave(torch.ones(4, dtype=torch.long))
    assert set(watch.waited) == {
        "_local_scalar_dense", "nonzero", "index", "lift_fresh", "bincount", "repeat_interleave"
    }  # fmt: skip


def test_counts_do_not_synchronise_with_the_device():
    passes, count = Passes(), torch.zeros((), dtype=torch.long)
    assert passes.of(count) == 0
    with Watch() as watch:
        for expected in (1, 2, 3):
            passes.add(count)
            assert passes.of(count) == expected
    assert not watch.waited
    count.fill_(7)  # by others, as when a state is loaded
    assert passes.of(count) == 7
    passes.add(count)
    assert int(count) == passes.of(count) == 8
    assert passes.of(torch.tensor(2)) == 2
    runs = torch.tensor([3, 5])
    torch.vmap(passes.add, out_dims=None)(runs)
    assert runs.tolist() == [4, 6]
    with torch.inference_mode():
        other = torch.tensor(1)
        passes.add(other)
        assert passes.of(other) == 2


@pytest.mark.parametrize(("name", "option"), [("polynormer", "local_passes"), ("cpgnn", "pretraining")])
def test_training_phase_is_restored_from_the_state(name, option):
    task = nodes_task()
    torch.manual_seed(0)
    model = zoo.build(name, 6, 3, hidden_channels=8, dropout=0.0, **{option: 3}).train()
    if name == "cpgnn":
        model.observe(task.y, task.splits[0].train)
    for _ in range(4):
        model(task.x, task.edge_index)
    later = model.eval()(task.x, task.edge_index)
    model.load_state_dict({**model.state_dict(), "passes": torch.tensor(1)})
    assert not torch.allclose(model(task.x, task.edge_index), later)
    model.load_state_dict({**model.state_dict(), "passes": torch.tensor(4)})
    for copy in (model, pickle.loads(pickle.dumps(model)), model.double().float()):
        torch.testing.assert_close(copy(task.x, task.edge_index), later, rtol=1e-4, atol=1e-5)


def test_self_loops_are_built_once():
    first, second = (self_loops(7) for _ in range(2))
    assert first is second
    assert torch.equal(first.edge_index, torch.arange(7).expand(2, 7))
    assert self_loops(8).num_nodes == 8
    with torch.inference_mode():
        made = self_loops(9)
    assert not made.edge_index.is_inference()
    states = torch.ones(9, 2, requires_grad=True)
    made.propagate(states).sum().backward()
    assert torch.equal(states.grad, torch.ones(9, 2))
