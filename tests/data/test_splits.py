import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from difformer.data.split import (
    Split,
    authors_split,
    current_name,
    fraction_split,
    index_split,
    labelled,
    load_splits,
    masks_split,
    per_class_split,
    random_split,
    save_splits,
    time_split,
)
from difformer.errors import DataError, UserError

classes = st.lists(st.integers(-1, 3), min_size=1, max_size=80).map(torch.tensor)
seeds = st.integers(0, 2**31)
fractions = st.tuples(*[st.integers(0, 10)] * 3).filter(lambda f: 0 < sum(f) <= 10).map(lambda f: [v / 10 for v in f])


def drawn(split):
    return torch.cat(list(split.parts().values()))


@given(y=classes, shares=fractions, seed=seeds, stratify=st.booleans())
def test_a_random_split_draws_only_labelled_instances_and_has_the_sizes_asked_for(y, shares, seed, stratify):
    split = random_split(y, fractions=shares, seed=seed, stratify=stratify)
    known = labelled(y)
    assert torch.isin(drawn(split), known).all()
    for size, share in zip(split.sizes(), shares, strict=True):
        assert abs(size - share * known.numel()) < 2
    if sum(shares) == pytest.approx(1):
        assert torch.equal(drawn(split).sort().values, known)
    assert f"seed={seed}" in split.name


@given(y=classes, seed=seeds)
def test_a_stratified_split_keeps_the_proportions(y, seed):
    split = random_split(y, fractions=(0.5, 0.25, 0.25), seed=seed, stratify=True)
    for label in range(4):
        members = int((y == label).sum())
        for part, share in zip(split.parts().values(), (0.5, 0.25, 0.25), strict=True):
            # Each of the two cuts of a part misses the exact place by less than one instance of the class, and the
            # rounding of the cut itself by at most one instance more.
            assert abs(int((y[part] == label).sum()) - share * members) <= 3


@given(y=classes, per_class=st.integers(1, 3), seed=seeds, gone=st.sets(st.integers(0, 79)))
def test_a_split_by_class_takes_exactly_that_many_of_each_and_never_the_excluded(y, per_class, seed, gone):
    candidates = [i for i in labelled(y).tolist() if i not in gone]
    counts = {c: sum(1 for i in candidates if y[i] == c) for c in {int(y[i]) for i in candidates}}
    if not counts or min(counts.values()) < per_class:
        with pytest.raises(ValueError, match=r"per_class|no labelled"):
            per_class_split(y, per_class=per_class, num_valid=0, num_test=None, seed=seed, exclude=sorted(gone))
        return
    split = per_class_split(y, per_class=per_class, num_valid=0, num_test=None, seed=seed, exclude=sorted(gone))
    assert all(int((y[split.train] == c).sum()) == per_class for c in counts)
    assert sorted(drawn(split).tolist()) == candidates


@given(y=classes, seed=seeds)
@settings(max_examples=20)
def test_a_seed_is_all_that_a_split_depends_on(y, seed):
    torch.manual_seed(seed % 7)  # the global generator must not matter
    first = random_split(y, seed=seed)
    torch.rand(3)
    second = random_split(y, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(first.parts().values(), second.parts().values(), strict=True))


def test_different_seeds_give_different_splits():
    assert not random_split(100, seed=0).same_as(random_split(100, seed=1))


@pytest.mark.parametrize("seed", ["x", None, 0.5, 2**70, [1]])
def test_non_integer_seed_is_refused(seed):
    with pytest.raises(UserError, match="seed: expected a whole number"):
        random_split(10, seed=seed)


@pytest.mark.parametrize("fractions", [1, "abc", [0.5, "x", 0.1], [0.5, None, 0.5], {}, [0.5]])
def test_invalid_fractions_are_refused(fractions):
    with pytest.raises(UserError, match="fractions: expected three shares"):
        random_split(10, fractions=fractions)


def test_targets_of_every_form_say_what_is_labelled():
    nan = float("nan")
    assert labelled(torch.tensor([0, -1, 2])).tolist() == [0, 2]
    assert labelled(torch.tensor([0.0, nan, -1.0])).tolist() == [0, 2]
    assert labelled(np.array([[nan, 1.0], [nan, nan]])).tolist() == [0]


def test_protocols_by_their_usual_names():
    y = torch.arange(1000) % 10
    assert fraction_split(y, protocol="10/10/80", seed=4).sizes() == (100, 100, 800)
    assert fraction_split(y, protocol="50/25/25").sizes() == (500, 250, 250)
    assert per_class_split(y, per_class=10, num_valid=200, num_test=None).sizes() == (100, 200, 700)
    assert per_class_split(y, per_class=20, num_valid=300, num_test=400).sizes() == (200, 300, 400)
    with pytest.raises(ValueError, match="three percentages such as '10/10/80', got 'half'"):
        fraction_split(y, protocol="half")
    with pytest.raises(ValueError, match=r"500 \+ 1000 asked for, but only 800"):
        per_class_split(y)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Split("own", [0], [1], [2]), "train must be a tensor, got list; index_split takes lists"),
        (lambda: index_split("own", [0.5], [1], [2]), "'own': train must hold whole numbers, got float64"),
        (lambda: index_split("own", [0], [True, False], [2]), "valid must hold whole numbers.*masks_split"),
        (lambda: index_split("own", [0], [1], ["x"]), "test must hold whole numbers"),
        (lambda: masks_split([0, 1], [2, 3], [4, 5]), "expected True and False.*index_split"),
        (lambda: per_class_split(torch.arange(9) % 3, per_class=-1), "per_class: expected at least 0, got -1"),
        (lambda: per_class_split(torch.arange(9) % 3, per_class=1, num_valid=-2), "num_valid: expected at least 0"),
    ],
)
def test_non_indices_are_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()
    assert index_split("own", np.array([3.0, 1.0]), [], [2]).train.tolist() == [3, 1]
    for kind in (int, np.uint64, np.float32):
        assert masks_split(*np.array([[1, 0], [0, 1], [0, 0]], kind))[0].sizes() == (1, 1, 0)


def test_a_series_is_split_in_time_order():
    split = time_split(517, ratio=(2, 2, 6))
    assert split.sizes() == (103, 103, 311)
    assert torch.equal(drawn(split), torch.arange(517))
    assert split.name == "time 2:2:6"
    assert time_split(10, ratio=(1, 1, 0)).sizes() == (5, 5, 0)


def test_masks_give_one_split_per_row():
    masks = torch.eye(3, dtype=torch.bool).repeat(1, 2)
    splits = masks_split(masks, masks.roll(1, 1), masks.roll(2, 1), name="geom-gcn")
    assert [s.name for s in splits] == ["geom-gcn/0", "geom-gcn/1", "geom-gcn/2"]
    assert splits[0].train.tolist() == [0, 3]
    assert splits[2].train.tolist() == [2, 5]
    assert len(masks_split(masks[0], masks[1], masks[2])) == 1
    with pytest.raises(ValueError, match="one shape"):
        masks_split(masks, masks[:2], masks)


@pytest.mark.skipif("DIFFORMER_DATA" not in os.environ, reason="needs the published splits")
@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed"])
def test_authors_split_is_reproduced_exactly(name):
    root = Path(os.environ["DIFFORMER_DATA"])
    y = np.load(root / "planetoid" / f"{name}.npz")["y"]
    (published,) = load_splits(root / "splits" / f"{name}_authors_split.npz")
    made = authors_split(y)
    for part, index in published.parts().items():
        assert torch.equal(made.parts()[part], index), part


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_splits_survive_the_disk(tmp_path, suffix):
    splits = [random_split(50, seed=0), Split("größer/ü", *(torch.tensor(p) for p in ([3, 1], [2], [0])))]
    path = tmp_path / "new folder" / f"splits{suffix}"
    save_splits(splits, path)
    for written, read in zip(splits, load_splits(path), strict=True):
        assert written.name == read.name
        assert all(torch.equal(a, b) for a, b in zip(written.parts().values(), read.parts().values(), strict=True))
    save_splits(splits[1:], path)
    assert load_splits(path)[0].name == "größer/ü"
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # nothing half-written is left


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "split.json"
    save_splits([random_split(10)], path)
    before = path.read_bytes()

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        save_splits([random_split(10, seed=1)], path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is not a file of splits"),
        ("[]", "expected an object with train"),
        ('{"train": [0], "valid": [1]}', "expected one of test"),
        ('{"train": [0], "valid": [0], "test": []}', "both train and valid"),
        ('{"train": [0.5], "valid": [1], "test": [2]}', "whole numbers"),
        ('{"train": [-1], "valid": [1], "test": [2]}', "negative index"),
    ],
)
def test_a_broken_split_file_is_named(tmp_path, content, complaint):
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(DataError, match=complaint) as raised:
        load_splits(path)
    assert "mine.json" in str(raised.value)


def test_files_that_are_absent_or_of_another_kind(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.npz"):
        load_splits(tmp_path / "gone.npz")
    with pytest.raises(ValueError, match=r"\.npz or \.json"):
        save_splits([random_split(3)], tmp_path / "split.csv")


def test_a_split_made_for_other_data_is_refused():
    with pytest.raises(ValueError, match=r"test holds index 9.*5 instances"):
        index_split("mine", [0], [1], np.array([9], dtype=np.int32)).check(5)


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_split_with_an_index_out_of_range_is_refused(part):
    parts = {"train": torch.tensor([0]), "valid": torch.tensor([1]), "test": torch.tensor([2])}
    split = Split("mine", **{**parts, part: torch.tensor([3, 5])})
    split.check(6)  # the last instance is 5
    with pytest.raises(ValueError, match=rf"{part} holds index 5, but there are 5 instances \(0 to 4\)"):
        split.check(5)


def test_split_files_with_a_single_name_or_nested_too_deeply_are_refused(tmp_path):
    np.savez(tmp_path / "s.npz", names=np.array(True), train_0=[0], valid_0=[1], test_0=[2])
    with pytest.raises(DataError, match=r"s\.npz: names: expected a list, got an array of shape \(\)"):
        load_splits(tmp_path / "s.npz")
    (tmp_path / "s.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match=r"s\.json: is not a file of splits"):
        load_splits(tmp_path / "s.json")


@pytest.mark.parametrize("seed", range(5))
def test_a_stratified_split_has_the_classes_in_proportion_in_every_part(seed):
    y = torch.tensor([0] * 60 + [1] * 30 + [2] * 10)[torch.randperm(100, generator=torch.Generator().manual_seed(seed))]
    split = random_split(y, fractions=(0.5, 0.3, 0.2), seed=seed, stratify=True)
    for part, share in zip(split.parts().values(), (0.5, 0.3, 0.2), strict=True):
        counts = torch.bincount(y[part], minlength=3)
        assert (counts - share * torch.tensor([60, 30, 10])).abs().max() <= 1


def test_names_of_splits_by_class_say_per():
    name = per_class_split(torch.arange(30) % 3, per_class=2, num_valid=6, num_test=None, seed=4).name
    assert name == current_name("2 a class/6/rest/seed=4") == "2 per class/6/rest/seed=4"
    assert current_name("a classic split") == "a classic split"
