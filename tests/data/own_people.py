"""Eight people with features, labels and friends, in every form in which tests need them."""

import numpy as np

X = np.arange(24.0).reshape(8, 3)
Y = [0, 1, 0, 1, 0, 1, -1, 1]
EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
PEOPLE = ["ann", "bob", "cat", "dan", "eve", "fay", "gil", "hal"]


def people(label=False, ids=True):
    """The table of features as CSV, with or without ids and labels."""
    head = ["name"] * ids + ["a", "b", "c"] + ["label"] * label
    rows = [[PEOPLE[i]] * ids + [f"{v:g}" for v in X[i]] + [["no", "yes", ""][Y[i]]] * label for i in range(8)]
    return "\n".join(",".join(row) for row in [head, *rows]) + "\n"


LABELS = "name,group\n" + "".join(f"{PEOPLE[i]},{['no', 'yes', ''][Y[i]]}\n" for i in reversed(range(8)))
NAMED_EDGES = "from,to\nann,bob\nbob,cat\ncat,dan\ndan,eve\n"
BOTH_WAYS = {(i, i + 1) for i in range(4)} | {(i + 1, i) for i in range(4)} | {(i, i) for i in range(8)}


def pairs(task):
    return {tuple(edge) for edge in task.edge_index.T.tolist()}


def said(task, words):
    """Whether a note of the task holds these words."""
    return any(words in note for note in task.notes)
