"""The example of a linked table."""

import csv

from difformer.data import from_files
from difformer.data.customers import write_customers


def test_customers_are_a_function_of_the_seed(tmp_path):
    first, again, other = (
        [path.read_text(encoding="utf-8") for path in write_customers(tmp_path / name, seed=seed)]
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert first == again
    assert first != other


def test_customers_are_read_as_they_are_and_known_segments_agree_with_outcomes(tmp_path):
    customers, referrals, outcomes = write_customers(tmp_path)
    task = from_files(customers, label_columns="segment", edges=referrals)
    assert (task.y >= 0).sum() == 100
    assert task.edge_index.shape == (2, 2 * 900 + 1000)
    read = {column.name: column.kind for column in task.preprocessing.columns}
    assert (read["joined"], read["plan"], read["newsletter"]) == ("date", "category", "boolean")
    later = {row["id"]: row["segment"] for row in csv.DictReader(outcomes.open(encoding="utf-8"))}
    for row in csv.DictReader(customers.open(encoding="utf-8")):
        assert row["segment"] in ("", later[row["id"]])
