import gc

import pytest
import torch
from small_tasks import blocks

from difformer.data import knn_graph
from difformer.training import TrainConfig, feeds, fit
from difformer.training.feeds import neighbours_of


@pytest.fixture
def searches(monkeypatch):
    """How often neighbours were searched for."""
    made = []

    def search(*args, **options):
        made.append(options)
        return knn_graph(*args, **options)

    monkeypatch.setattr(feeds, "knn_graph", search)
    return made


@pytest.mark.parametrize("sparse", [False, True])
def test_neighbours_are_found_once(searches, sparse):
    x = torch.rand(20, 4)
    x = x.to_sparse_csr() if sparse else x
    wanted = knn_graph(x, 3, include_self=True, symmetric=True)
    for _ in range(3):
        assert neighbours_of(x, 3).equal(wanted)
    assert len(searches) == 1
    assert not neighbours_of(x, 4).equal(wanted)
    assert len(searches) == 2


def test_features_that_change_have_other_neighbours(searches):
    x = torch.rand(20, 4)
    first = neighbours_of(x, 3)
    with torch.inference_mode():
        assert not neighbours_of(torch.rand(20, 4), 3).is_inference()
    x.numpy()[:10] = 1 - x.numpy()[:10]  # unseen by torch
    assert neighbours_of(x, 3).equal(knn_graph(x, 3, include_self=True, symmetric=True))
    assert not neighbours_of(x, 3).equal(first)
    ptr = torch.tensor([0, 10, 20])
    within = neighbours_of(x, 3, ptr)
    assert within.equal(knn_graph(x, 3, include_self=True, symmetric=True, node_ptr=ptr))
    assert len(searches) == 4


def test_cached_neighbours_are_freed_with_the_features(searches):
    x = torch.rand(20, 4)
    neighbours_of(x, 3)
    kept = feeds._FOUND._found
    assert x in kept
    before = len(kept)
    del x
    gc.collect()
    assert len(kept) == before - 1


def test_runs_of_a_task_share_their_graph(searches):
    config = TrainConfig(model="gcn", graph="knn:4", epochs=2)
    fit(blocks(), config, seeds=3, device="cpu", stacked=False)
    assert len(searches) == 1
