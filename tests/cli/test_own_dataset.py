"""A data set of your own by its place, from fit to tune."""

import json

SOURCE = '''
from difformer.data import from_arrays

def stripes(*, size: int = 40):
    """Rows that alternate."""
    return from_arrays([[i % 2, i % 3] for i in range(size)], [i % 2 for i in range(size)], name="stripes")
'''


def test_fit_predict_resume_and_tune_take_a_function(call, tmp_path, monkeypatch):
    (tmp_path / "stripes_package.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    few = ("--set", "epochs=2", "--set", "hidden_channels=4")
    answer = call("fit", "stripes_package:stripes", "--data", "size=32", "--seeds", 1, *few, "--out", "run")
    assert answer.code == 0, answer.err
    assert call("predict", "run", "--out", "p.csv").code == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 33
    assert call("evaluate", "run").code == 0
    shown = json.loads(call("datasets", "stripes_package:stripes", "--json").out)
    assert (shown["source"], shown["place"]) == ("stripes_package:stripes", "your own")
    answer = call("tune", "stripes_package:stripes", "--trials", 1, *few, "--out", "study")
    assert answer.code == 0, answer.err
