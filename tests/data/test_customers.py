"""The example of a linked table."""

import csv

import pytest

from difformer.data import from_files
from difformer.data.customers import write_customers
from difformer.errors import UserError


def test_customers_are_a_function_of_their_options(tmp_path):
    first, again, other = (
        [
            path.read_text(encoding="utf-8")
            for path in write_customers(tmp_path / name, num_customers=60, num_known=20, seed=seed)
        ]
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert first == again
    assert first != other


def test_customers_are_read_as_they_are_and_known_segments_agree_with_outcomes(tmp_path):
    customers, referrals, outcomes = write_customers(tmp_path, num_customers=200, num_known=40)
    task = from_files(customers, label_columns="segment", edges=referrals)
    assert (task.y >= 0).sum() == 40
    assert task.edge_index.shape == (2, 2 * 180 + 200)
    read = {column.name: column.kind for column in task.preprocessing.columns}
    assert (read["joined"], read["plan"], read["newsletter"]) == ("date", "category", "boolean")
    later = {row["id"]: row["segment"] for row in csv.DictReader(outcomes.open(encoding="utf-8"))}
    for row in csv.DictReader(customers.open(encoding="utf-8")):
        assert row["segment"] in ("", later[row["id"]])


@pytest.mark.parametrize("options", [{"num_customers": 5}, {"num_known": 2000}, {"num_known": -1}])
def test_impossible_sizes_are_refused(tmp_path, options):
    with pytest.raises(UserError, match="expected num_customers ≥ 20"):
        write_customers(tmp_path, **options)
