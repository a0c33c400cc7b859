"""Own data: what the ± is over, files that are not overwritten, and rows that were there before."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

QUICK = ("--set", "epochs=2", "--set", "hidden_channels=4")


@pytest.fixture
def own(people):
    return ("--features", people / "people.csv", "--labels", people / "groups.csv")


def test_each_seed_has_a_split_of_its_own(call, own):
    answer = call("fit", *own, "--model", "mlp", "--seeds", "3", *QUICK)
    assert answer.code == 0, answer.err
    said = "own data, no graph; columns standardised; stratified 50/25/25, 10 splits, seeds 0 to 9\n"
    said += "train/valid/test: 25, 12 and 13 rows, 3 of 10 splits (--seeds 10 for all)\n"
    assert f"protocol: {said}target: one of 3 classes (" in answer.out
    assert "over 3 seeds, each on its own split)" in answer.out
    assert all(f"seed={seed} " in answer.out for seed in range(3))


def test_deviation_over_one_split_is_labelled_as_such(call, own):
    answer = call("fit", *own, "--model", "mlp", "--seeds", "3", *QUICK, "--data", "seeds=4", "--out", "run")
    assert "stratified 50/25/25/seed=4" in answer.out
    assert "over 3 seeds, all on one split: ± is over initialisations only)" in answer.out
    assert "all on one split" in call("evaluate", "run").out
    two = call("fit", *own, "--model", "mlp", "--seeds", "3", *QUICK, "--data", "seeds=4,9")
    assert "2 splits, seeds 4, 9" in two.out
    assert "over 3 seeds on 2 splits)" in two.out


def test_own_files_start_from_the_setting_that_was_best_on_average(call, own):
    answer = call("fit", *own, "--seeds", "1", *QUICK, "--set", "dropout=0.1")
    assert "preset: own-data: the settings that did best on average over eight other data sets\n" in answer.out
    assert "validation" not in answer.out.partition("seed ")[0]  # a score on other data would be taken for a result
    assert "learning_rate=0.01, weight_decay=0.005, dropout=0.1, hidden_channels=4" in answer.out
    assert "settings: preset own-data, with epochs=2, hidden_channels=4, dropout=0.1\n" in answer.out
    assert "own-data" not in call("fit", *own, "--seeds", "1", *QUICK, "--model", "mlp").out
    refused = call("fit", "karate", "--preset", "own-data", "--model", "difformer", *QUICK)
    assert refused.code == 2
    assert "there is no preset 'own-data' for difformer on karate" in refused.err


def test_sharp_model_is_suggested_without_a_graph(call, own):
    quick = ("--seeds", "1", *QUICK)
    assert "note: no graph: --model difformer-sharp" in call("fit", *own, "--model", "difformer", *quick).out
    for model in ("difformer-sharp", "mlp"):
        assert "difformer-sharp lets" not in call("fit", *own, "--model", model, *quick).out


def test_a_graph_model_without_edges_is_noted(call, own, people):
    answer = call("fit", *own, "--model", "gcn", "--seeds", "1", *QUICK)
    assert answer.code == 0, answer.err
    assert "note: gcn passes messages along edges, but there are no edges here" in answer.out
    assert "--set graph=knn:5" in answer.out
    joined = call("fit", *own, "--model", "gcn", "--seeds", "1", *QUICK, "--set", "graph=knn:5")
    given = call("fit", *own, "--edges", people / "friends.csv", "--model", "gcn", "--seeds", "1", *QUICK)
    without = call("fit", "karate", "--model", "gcn", "--seeds", "1", *QUICK, "--set", "graph=none")
    assert "passes messages" not in joined.out + given.out
    assert "passes messages" in without.out


@pytest.fixture
def run(call, own, tmp_path):
    assert call("fit", *own, "--model", "mlp", "--seeds", "1", *QUICK, "--out", "run").code == 0
    return tmp_path / "run"


def test_an_existing_output_file_is_kept_unless_forced(call, run, tmp_path):
    (tmp_path / "p.csv").write_text("my thesis")
    answer = call("predict", run, "--out", "p.csv")
    assert answer.code == 2
    assert "p.csv already exists; nothing was changed. Choose another name, or add --force" in answer.err
    assert (tmp_path / "p.csv").read_text() == "my thesis"
    assert call("predict", run, "--out", "p.csv", "--force").code == 0
    assert (tmp_path / "p.csv").read_text().startswith("instance,")
    assert call("embed", run).code == 0
    assert "already exists" in call("embed", run).err
    assert call("embed", run, "--force").code == 0


def test_predict_prints_csv_to_standard_output(call, run, people):
    answer = call("predict", run, "--out", "-")
    rows = list(csv.DictReader(io.StringIO(answer.out)))
    assert [row["instance"] for row in rows] == [f"p{i}" for i in range(60)]
    assert call("predict", run, "--out", "-", "--json").code == 2


def test_new_rows_with_known_ids_are_noted(call, run, tmp_path):
    (tmp_path / "again.csv").write_text("name,height,weight\np1,0,0\nn1,1,1\nn1,2,2\n")
    answer = call("predict", run, "--features", "again.csv", "--out", "-")
    assert answer.code == 0, answer.err
    assert "note: 1 of 3 rows of again.csv have the id of an instance of the run ('p1')" in answer.err
    assert "note: again.csv has 1 id in several rows, e.g. 'n1'" in answer.err
    assert len(answer.out.splitlines()) == 4


def test_new_rows_without_edges_are_noted_where_the_run_has_a_graph(call, own, people, tmp_path):
    edges = ("--edges", people / "friends.csv")
    assert call("fit", *own, *edges, "--model", "gcn", "--seeds", "1", *QUICK, "--out", "joined").code == 0
    (tmp_path / "new.csv").write_text("name,height,weight\nn1,0,0\n")
    (tmp_path / "new_edges.csv").write_text("from,to\np1,n1\n")
    words = ("predict", "joined", "--features", "new.csv", "--out", "-")
    assert "note: new rows have no edges, although the run has a graph; --edges joins" in call(*words).err
    assert "no edges" not in call(*words, "--edges", "new_edges.csv").err


def test_id_column_of_new_rows_is_matched_by_its_training_name(call, run, tmp_path):
    (tmp_path / "last.csv").write_text("height,weight,name\n0,0,n1\n3,-2,n2\n")
    answer = call("predict", run, "--features", "last.csv", "--out", "-")
    assert [row["instance"] for row in csv.DictReader(io.StringIO(answer.out))] == ["n1", "n2"]
    (tmp_path / "none.csv").write_text("height,weight\n0,0\n3,-2\n")
    assert len(call("predict", run, "--features", "none.csv", "--out", "-").out.splitlines()) == 3


def test_ids_that_edges_reveal_are_those_of_new_rows(call, tmp_path):
    rows = "".join(f"{(7 * i) % 24 + 1},{i / 9},{i % 4},{'ab'[i % 2]}\n" for i in range(24))
    (tmp_path / "x.csv").write_text("customer,u,v,label\n" + rows)
    (tmp_path / "e.csv").write_text("from,to\n1,24\n24,3\n")
    words = ("fit", "x.csv", "--label", "label", "--edges", "e.csv", "--model", "gcn", "--seeds", "1", *QUICK)
    answer = call(*words, "--out", "run")
    assert "column 'customer' of x.csv was read as ids, since it holds a different whole number" in answer.out
    assert re.search(r"pass (--data )?ids=false if these are numbers of rows", answer.out)
    assert "read as ids" not in call(*words, "--data", "ids=false", "--data", "drop=customer").out
    (tmp_path / "new.csv").write_text("v,u,customer\n1,2,100\n")
    (tmp_path / "new_edges.csv").write_text("from,to\n100,24\n")
    answer = call("predict", "run", "--features", "new.csv", "--edges", "new_edges.csv", "--out", "-")
    assert [row["instance"] for row in csv.DictReader(io.StringIO(answer.out))] == ["100"], answer.err
    (tmp_path / "e.csv").write_text("from,to\n1,24\n24,999\n")
    refused = call(*words).err
    assert "e.csv, line 3, column 'to': no node is called '999'" in refused
    assert refused.rstrip().endswith("pass --data ids=false if these are numbers of rows")


def test_id_column_given_by_number_is_matched_by_name_in_new_rows(call, tmp_path):
    rows = "".join(f"{i / 9},{100 + i},{i % 4},{'ab'[i % 2]}\n" for i in range(24))
    (tmp_path / "x.csv").write_text("u,nr,v,label\n" + rows)
    words = ("--features", "x.csv", "--data", "ids=2", "--model", "mlp", "--seeds", "1", *QUICK, "--out", "run")
    assert call("fit", *words).code == 0
    (tmp_path / "new.csv").write_text("nr,v,u\n7,1,2\n")
    answer = call("predict", "run", "--features", "new.csv", "--out", "-")
    assert [row["instance"] for row in csv.DictReader(io.StringIO(answer.out))] == ["7"], answer.err


def test_fit_accepts_a_pyg_file(call, tmp_path):
    import torch
    from torch_geometric import data

    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    torch.save(data.Data(x=x, edge_index=torch.tensor([[0, 1], [1, 2]]), y=(x[:, 0] > 0).long()), tmp_path / "own.pt")
    answer = call("fit", "--features", "own.pt", "--model", "mlp", "--seeds", "2", *QUICK, "--out", "run")
    assert answer.code == 0, answer.err
    assert "own: 40 nodes, 44 edges, 3 features, 2 classes" in answer.out
    assert call("predict", "run", "--out", "-").out.count("\n") == 41


def test_new_rows_of_a_built_in_table_are_given_unscaled(call, tmp_path):
    from difformer.data import load

    raw = load("iris", standardize=False)
    lines = [",".join(raw.feature_names), *(",".join(f"{value:.4f}" for value in row) for row in raw.x.tolist())]
    (tmp_path / "raw.csv").write_text("\n".join(lines) + "\n")
    words = ("--model", "mlp", "--seeds", "1", "--set", "epochs=40", "--set", "learning_rate=0.02")
    assert call("fit", "iris", *words, "--out", "run").code == 0
    own = list(csv.DictReader(io.StringIO(call("predict", "run", "--out", "-").out)))
    new = list(csv.DictReader(io.StringIO(call("predict", "run", "--features", "raw.csv", "--out", "-").out)))
    assert len({row["prediction"] for row in own}) == 3
    assert [row["prediction"] for row in new] == [row["prediction"] for row in own]


def test_notes_name_the_options_that_help(call, tmp_path):
    rows = "".join(f"p{i},{i},{50_000 + 900 * i},{'ab'[i % 2]}\n" for i in range(24))
    (tmp_path / "x.csv").write_text("name,age,pay,label\n" + rows)
    (tmp_path / "e.csv").write_text("von,nach,jahr\np0,p1,1999\n")
    words = ("fit", "--features", "x.csv", "--edges", "e.csv", "--model", "mlp", "--seeds", "1", *QUICK)
    answer = call(*words, "--data", "standardize=false")
    assert "note: features differ in scale: 'pay' has deviation 6.23e+03, 'age' 6.92; " in answer.out
    assert re.search(r"--data standardize=true brings all columns to one scale", answer.out)
    said = r"weighted by column 'jahr' of e.csv; pass --data edge_columns=.*von.*nach"
    assert re.search(said, answer.out)
    better = call(*words, "--data", "edge_columns=von,nach")
    assert "differ in scale" not in better.out
    assert "weighted" not in better.out


def test_leaks_are_noted_first_and_repeated_after_the_result(call, tmp_path):
    rows = "".join(f"p{i},{i % 7},{90 + i % 3},{1 + i % 3}\n" for i in range(60)) + "p60,1,9,4\n"
    (tmp_path / "x.csv").write_text("name,age,code,grade\n" + rows)
    words = ("fit", "x.csv", "--label", "grade", "--model", "mlp", "--seeds", "1", *QUICK)
    before, _, after = call(*words).out.partition("best epoch")
    target, *notes = before[before.index("target: ") : before.index("model: ")].splitlines()
    assert target == "target: one of 4 classes (1, 2, 3, 4); if these are quantities, add --data problem=regression"
    leak = "note: column 'code' determines the label in all 61 labelled rows; "
    assert notes[0].startswith(leak)
    assert notes[0].endswith("pass --data drop=code")
    assert any(note.startswith("note: label '4' occurs once") for note in notes)
    assert any(note.startswith("note: class '4' has no instance in the training part") for note in notes)
    assert leak in after
    assert leak.removeprefix("note: ") in json.loads(call(*words, "--json").out)["notes"][0]
    assert "target: a number (regression)\n" in call(*words, "--data", "problem=regression").out


def test_a_table_of_texts_dates_and_gaps_is_fitted_and_new_rows_are_predicted(call, tmp_path):
    plans, rows = ("basic", "plus", "pro"), range(60)
    cells = [f"c{i},{'' if i % 7 == 3 else 20 + i % 40},{plans[i % 3]},2024-0{1 + i % 9}-1{i % 9}" for i in rows]
    labels = [",".join((cell, ("stays", "leaves")[i % 3 == 0])) for i, cell in enumerate(cells)]
    (tmp_path / "customers.csv").write_text("\n".join(["customer_id,age,plan,joined,segment", *labels]))
    new = ["n0,31,basic,2024-03-11,x", "n1,,gold,2024-04-12,x"]
    (tmp_path / "new.csv").write_text("\n".join(["customer_id,age,plan,joined,shoe", *new]))
    fitted = call(
        "fit", "customers.csv", "--label", "segment", "--model", "mlp", "--seeds", "1", *QUICK, "--out", "run"
    )
    assert fitted.code == 0, fitted.err
    assert re.search(r"  plan +category +3 columns of 0 and 1", fitted.out)
    assert re.search(r"  age +number +\d+ +1 column, standardised, gaps filled with .* and marked", fitted.out)
    stored = json.loads((tmp_path / "run" / "preprocessing.json").read_text())
    assert [column["kind"] for column in stored["columns"]] == ["number", "category", "date"]
    predicted = call("predict", "run", "--features", "new.csv", "--out", "p.csv")
    assert predicted.code == 0, predicted.err
    said = predicted.out + predicted.err
    assert "column 'plan': 'gold' (1 row) did not occur in training" in said
    assert "columns of new.csv that training did not have are left out: 'shoe'" in said
    assert [line.split(",")[0] for line in (tmp_path / "p.csv").read_text().splitlines()[1:]] == ["n0", "n1"]
    (tmp_path / "bad.csv").write_text("customer_id,age,plan,joined\nn0,x31,basic,2024-03-11\n")
    refused = call("predict", "run", "--features", "bad.csv", "--out", "q.csv")
    assert refused.code == 2
    assert "line 2, column 'age': expected a number, got 'x31'; this column held numbers in training" in refused.err
    assert not re.search("categories|drop|--data", refused.err)
    (tmp_path / "run" / "preprocessing.json").write_text("[]")
    refused = call("predict", "run", "--features", "new.csv", "--out", "q.csv")
    assert refused.code == 2
    assert "preprocessing.json: cannot be read" in refused.err
