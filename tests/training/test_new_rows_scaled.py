"""New rows for a model that was trained on standardised features come as they are."""

import numpy as np
import torch

from difformer.data import from_arrays, from_files
from difformer.training.trained_run import new_task

X = np.arange(24.0).reshape(8, 3) * [1.0, 1000.0, 1.0]
Y = [0, 1] * 4


def test_new_rows_are_brought_to_the_scale_of_the_others():
    task = from_arrays(X, Y, standardize=True)
    for together in (True, False):
        joined, start = new_task(task, X[:2], together=together)
        torch.testing.assert_close(joined.x[start:], task.x[:2])


def test_files_standardised_on_request(tmp_path):
    path = tmp_path / "f.csv"
    path.write_text("a,b,label\n" + "".join(f"{i},{i * i},{'xy'[i % 2]}\n" for i in range(12)))
    task = from_files(path, standardize=True)
    torch.testing.assert_close(task.x.mean(0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(task.x.std(0, correction=0), torch.ones(2))
    torch.testing.assert_close(task.scaling.shift, torch.tensor([5.5, 506 / 12]), check_dtype=False)
    assert "columns standardised over all 12 rows, no label used" in task.notes
