"""What a finished run is for: evaluate, predict, embed, energy; on a data set and on a user's own files."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest


@pytest.fixture(scope="module")
def own_run(installed, people, tmp_path_factory):
    """A run on own files, made by the installed command."""
    folder = tmp_path_factory.mktemp("own")
    answer = installed(
        "fit", "--features", people / "people.csv", "--labels", people / "groups.csv", "--edges",
        people / "friends.csv", "--data", "seeds=0,1", "--seeds", 2, "--set", "epochs=25", "--set",
        "learning_rate=0.01", "--out", "run", cwd=folder,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert answer.out.startswith("people: 60 nodes, 180 edges, 2 features, 3 classes")
    return folder / "run"


def rows_of(path):
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def test_predictions_of_all_instances_by_name(call, own_run, tmp_path):
    answer = call("predict", own_run, "--out", "all.csv")
    assert answer.code == 0, answer.err
    assert "60 predictions in all.csv" in answer.out
    rows = rows_of(tmp_path / "all.csv")
    assert [row["instance"] for row in rows] == [f"p{i}" for i in range(60)]
    assert {row["prediction"] for row in rows} <= set("abc")
    assert all(1 / 3 <= float(row["probability"]) <= 1 for row in rows)
    for row in rows:
        every = {name: float(row[f"probability {name}"]) for name in "abc"}
        assert sum(every.values()) == pytest.approx(1, abs=1e-4)
        assert max(every, key=every.get) == row["prediction"]
        assert max(every.values()) == float(row["probability"])
    unlabelled = rows[50:]
    assert {row["target"] for row in unlabelled} == {""}
    right = [row["prediction"] == "abc"[i % 3] for i, row in enumerate(rows)]
    assert sum(right) >= 45


def test_new_rows_are_predicted_in_the_context_of_the_run(call, people, own_run, tmp_path):
    answer = call("predict", own_run, "--features", people / "new.csv", "--out", "new.csv")
    assert answer.code == 0, answer.err
    rows = rows_of(tmp_path / "new.csv")
    assert [row["instance"] for row in rows] == ["n1", "n2"]
    assert [row["prediction"] for row in rows] == ["a", "c"]  # columns are matched by name, not by place
    with_edges = call(
        "predict", own_run, "--features", people / "new.csv", "--edges", people / "new_friends.csv", "--out", "e.csv"
    )
    assert with_edges.code == 0, with_edges.err
    alone = call("predict", own_run, "--features", people / "new.csv", "--alone", "--out", "alone.csv")
    assert alone.code == 0, alone.err
    found = [[row["probability"] for row in rows_of(tmp_path / name)] for name in ("new.csv", "e.csv", "alone.csv")]
    assert found[0] != found[1]
    assert found[0] != found[2]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("name,height\nn1,1\n", "lacks 1 of the 2 columns wanted: 'weight'"),
        ("name,height,weight\nn1,1\n", "line 2"),
        ("name,height,weight\nn1,1,tall\n", "line 2, column 'weight'"),
    ],
)
def test_new_rows_that_do_not_fit_are_refused(call, own_run, tmp_path, content, complaint):
    (tmp_path / "bad.csv").write_text(content)
    answer = call("predict", own_run, "--features", "bad.csv", "--out", "p.csv")
    assert answer.code == 2
    assert "bad.csv" in answer.err
    assert complaint in answer.err
    assert not (tmp_path / "p.csv").exists()


def test_errors_do_not_suggest_options_the_command_lacks(call, own_run, tmp_path):
    (tmp_path / "new.csv").write_text("name,height,weight\nq1,1.0,abc\n")
    answer = call("predict", own_run, "--features", "new.csv", "--out", "p.csv")
    assert answer.code == 2
    assert "'abc'" in answer.err
    assert "--data" not in answer.err


def test_new_rows_with_a_taken_id_are_refused(call, people, own_run, tmp_path):
    (tmp_path / "again.csv").write_text("name,height,weight\np3,1,2\n")
    (tmp_path / "edges.csv").write_text("from,to\np3,p4\n")
    answer = call("predict", own_run, "--features", "again.csv", "--edges", "edges.csv", "--out", "p.csv")
    assert answer.code == 2
    assert "id 'p3' is that of an instance of the run, so edges to 'p3' would mean either: rename" in answer.err


def test_predict_writes_npz_and_checks_path_and_seed(call, own_run, tmp_path):
    wrong = call("predict", own_run, "--out", "p.xls")
    assert wrong.code == 2
    assert ".csv or .npz" in wrong.err
    answer = call("predict", own_run, "--out", "p.npz", "--seed", "1", "--json")
    document = json.loads(answer.out)
    assert document["instances"] == 60
    assert sum(document["predicted"].values()) == 60
    with np.load(tmp_path / "p.npz") as arrays:
        assert arrays["outputs"].shape == (60, 3)
    assert "has no seed 7" in call("predict", own_run, "--out", "p.csv", "--seed", "7").err


def test_evaluate_agrees_with_the_training(call, own_run, tmp_path):
    answer = call("evaluate", own_run, "--json")
    assert answer.code == 0, answer.err
    measured = json.loads(answer.out)["metrics"]["accuracy"]
    reported = json.loads((own_run / "summary.json").read_text())
    for part in ("train", "valid", "test"):
        assert measured[part]["mean"] == pytest.approx(reported[part]["mean"], abs=1e-6)
        assert measured[part]["std"] == pytest.approx(reported[part]["std"], abs=1e-6)


def test_evaluate_prints_a_table_and_means(call, own_run):
    answer = call("evaluate", own_run)
    assert "accuracy: train" in answer.out
    assert "f1" in answer.out


def test_changed_data_are_refused(call, people, own_run, tmp_path):
    path = people / "groups.csv"
    before = path.read_text()
    try:
        path.write_text(before.replace("p0,a", "p0,b"))
        answer = call("evaluate", own_run)
        assert answer.code == 2
        assert "have changed" in answer.err
    finally:
        path.write_text(before)


def test_embed_writes_one_state_per_instance(call, own_run, tmp_path):
    answer = call("embed", own_run, "--out", "states.npz")
    assert answer.code == 0, answer.err
    assert "embeddings of shape (60, 64) in states.npz" in answer.out
    with np.load(tmp_path / "states.npz") as arrays:
        assert arrays["embeddings"].shape == (60, 64)
        assert arrays["names"][:2].tolist() == ["p0", "p1"]


def test_embed_writes_a_table(call, own_run, tmp_path):
    assert call("embed", own_run, "--out", "states.csv").code == 0
    assert call("embed", own_run, "--out", "states.npz").code == 0
    header, *rows = (line.split(",") for line in (tmp_path / "states.csv").read_text().splitlines())
    assert (header[0], header[1], header[-1], len(rows)) == ("instance", "state_0", "state_63", 60)
    with np.load(tmp_path / "states.npz") as arrays:
        assert [row[0] for row in rows] == arrays["names"].tolist()
        np.testing.assert_allclose(np.array([row[1:] for row in rows], float), arrays["embeddings"], rtol=1e-6)


def test_embed_accepts_new_rows(call, people, own_run, tmp_path):
    assert call("embed", own_run, "--features", people / "new.csv", "--out", "new.npz").code == 0
    with np.load(tmp_path / "new.npz") as arrays:
        assert arrays["names"].tolist() == ["n1", "n2"]
        assert arrays["embeddings"].shape == (2, 64)
    assert "embeddings are written as .npz or .csv" in call("embed", own_run, "--out", "new.txt").err
    answer = call("embed", own_run, "--json")
    assert json.loads(answer.out)["shape"] == [60, 64]
    assert (own_run / "embeddings.npz").is_file()
    assert call("embed", own_run, "--edges", people / "friends.csv").code == 2


def test_energy_prints_one_row_per_layer(call, own_run, tmp_path):
    answer = call("energy", own_run)
    assert answer.code == 0, answer.err
    assert "effective rank" in answer.out
    assert " input " in answer.out
    assert "energy, edges" in answer.out


def test_energy_json_and_refusal_for_other_models(call, own_run):
    document = json.loads(call("energy", own_run, "--json").out)
    assert len(document["energy"]) == len(document["effective_rank"]) == 3
    assert document["energy"][0] > 0
    assert call("fit", "iris", "--model", "mlp", "--seeds", "1", "--set", "epochs=2", "--out", "mlp").code == 0
    answer = call("energy", "mlp")
    assert answer.code == 2
    assert "does not measure an energy" in answer.err


def test_fit_uses_a_split_file(call, people, tmp_path):
    split = {"name": "mine", "train": list(range(20)), "valid": list(range(20, 35)), "test": list(range(35, 50))}
    (tmp_path / "split.json").write_text(json.dumps(split))
    answer = call(
        "fit", "--features", people / "people.csv", "--labels", people / "groups.csv", "--split", "split.json",
        "--seeds", "1", "--model", "mlp", "--set", "epochs=2", "--out", "run",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert "train/valid/test: 20, 15 and 15 " in answer.out
    assert "--split is for your own files" in call("fit", "iris", "--split", "split.json").err


def test_a_folder_without_a_run_is_refused(call, tmp_path):
    (tmp_path / "empty").mkdir()
    for verb in (["evaluate"], ["energy"], ["embed"], ["predict", "--out", "p.csv"]):
        answer = call(*verb, "empty")
        assert answer.code == 2
        assert "is not a run folder" in answer.err
