"""Altered tasks: nested draws of labels and edges, with validation and test parts untouched."""

from __future__ import annotations

import pytest
import torch

from difformer.data import load
from difformer.experiments.samples import altered

TASK = load("sbm", num_nodes=90, num_classes=3, num_splits=2, fractions=(0.3, 0.2, 0.5))


def pairs(task):
    return {tuple(sorted(pair)) for pair in task.edge_index.T.tolist()}


@pytest.mark.parametrize("number", [0, 1])
def test_labels_per_class_are_nested_and_outside_of_validation_and_test(number):
    small, large = (altered(TASK, labels_per_class=count).splits[number] for count in (2, 5))
    before = TASK.splits[number]
    assert set(small.train.tolist()) < set(large.train.tolist())
    assert torch.bincount(TASK.y[large.train]).tolist() == [5, 5, 5]
    assert torch.equal(large.valid, before.valid)
    assert torch.equal(large.test, before.test)
    assert not {*large.train.tolist()} & {*before.valid.tolist(), *before.test.tolist()}


def test_a_class_with_few_candidates_contributes_all_of_them():
    split = altered(TASK, labels_per_class=1000).splits[0]
    assert split.train.numel() == TASK.num_nodes - split.valid.numel() - split.test.numel()


def test_nodes_without_features_are_never_drawn():
    import dataclasses

    x = TASK.x.clone()
    x[TASK.splits[0].train] = 0.0
    split = altered(dataclasses.replace(TASK, x=x), labels_per_class=1000).splits[0]
    assert not {*split.train.tolist()} & {*TASK.splits[0].train.tolist()}


def test_removed_edges_are_nested_undirected_and_spare_self_loops():
    every, some, fewer, none = (pairs(altered(TASK, edges_removed=share)) for share in (0.0, 0.3, 0.7, 1.0))
    loops = {pair for pair in every if pair[0] == pair[1]}
    assert every == pairs(TASK)
    assert none == loops
    assert fewer < some < every
    assert (len(some) - len(loops)) / (len(every) - len(loops)) == pytest.approx(0.7, abs=0.1)
    thin = altered(TASK, edges_removed=0.3).edge_index
    assert {tuple(edge) for edge in thin.T.tolist()} == {tuple(edge) for edge in thin.flip(0).T.tolist()}


def test_the_protocol_says_what_was_altered_and_the_fingerprint_differs():
    found = altered(TASK, labels_per_class=2, edges_removed=0.5)
    assert found.protocol.endswith("; 2 training labels per class; 50 % of edges removed")
    assert found.fingerprint() != TASK.fingerprint()
    assert altered(TASK) is TASK
