"""The linear probe."""

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simclr import linear_probe, load_features, probe_table


def test_the_probe_tells_separable_classes_and_guesses_at_noise():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 100)
    noise = rng.normal(size=(400, 8))
    table = probe_table(noise + 8 * np.eye(4, 8)[labels], labels, per_class=(2, 20), draws=3)
    assert table[20].mean > 0.98
    assert table[20].mean >= table[2].mean
    assert linear_probe(noise, labels, per_class=20).mean == pytest.approx(0.25, abs=0.08)
    assert linear_probe(noise, labels, per_class=20) == linear_probe(noise, labels, per_class=20)
    assert linear_probe(noise, labels, per_class=20) != linear_probe(noise, labels, per_class=20, seed=1)


def test_the_probe_never_tests_on_what_it_was_given():
    """Features that are the instance's number, one-hot: all that can be learned is useless elsewhere."""
    labels = np.arange(40) % 2
    result = linear_probe(np.eye(40), labels, per_class=10, draws=4)
    assert result.mean == pytest.approx(0.5, abs=0.05)


def test_the_probe_says_when_labels_run_out():
    with pytest.raises(ValueError, match="leaves no instance of class 1 to test on: it has 3 in all"):
        linear_probe(np.zeros((10, 2)), np.array([0] * 7 + [1] * 3), per_class=3)


@pytest.fixture(scope="module")
def cifar10():
    path = Path(os.environ.get("DIFFORMER_DATA", "")) / "cifar10" / "cifar10_15000.npz"
    if not os.environ.get("DIFFORMER_DATA") or not path.exists():
        pytest.skip("set DIFFORMER_DATA to a folder with cifar10/cifar10_15000.npz")
    with np.load(path, allow_pickle=False) as file:
        return path.parent, file["images"], file["labels"]


def test_published_features_reach_their_published_accuracy(cifar10):
    folder, _, labels = cifar10
    features, _ = load_features(folder / "cifar10_simclr.npz")
    assert linear_probe(features, labels, per_class=100, draws=1).mean == pytest.approx(0.767, abs=0.015)
