"""``report``, ``explain`` and ``compare`` as a person types them."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def runs(people, tmp_path_factory):
    """A DIFFormer and a GCN on a user's own files."""
    from difformer.cli import main

    root = tmp_path_factory.mktemp("runs")
    files = [f"--{role}={people / name}" for role, name in (("features", "people.csv"), ("labels", "groups.csv"))]
    files.append(f"--edges={people / 'friends.csv'}")
    for model in ("difformer-s", "gcn"):
        options = ["--set", "hidden_channels=8", "--set", "epochs=5", "--seeds", "2", "--out", str(root / model)]
        with pytest.raises(SystemExit) as end:
            main(["fit", *files, "--model", model, *options])
        assert not end.value.code
    return root


def test_report_writes_one_file(call, runs, tmp_path):
    run = runs / "difformer-s"
    answer = call("report", run)
    assert answer.code == 0, answer.err
    assert "report.html" in answer.out
    assert "p17" in (run / "report.html").read_text(encoding="utf-8")
    document = json.loads(call("report", run, "--out", tmp_path / "r.html", "--node", "p3", "--json").out)
    assert document["bytes"] == (tmp_path / "r.html").stat().st_size
    assert document["verdict"]
    assert "a logistic regression" in document["answer"]
    assert document["answer"] in answer.out
    assert "p3: predicted" in (tmp_path / "r.html").read_text(encoding="utf-8")
    again = call("report", run, "--out", tmp_path / "r.html")
    assert again.code == 2
    assert "add --force" in again.err


def test_report_opens_a_browser_when_asked(call, runs, monkeypatch):
    import webbrowser

    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or len(opened) > 1)
    first = call("report", runs / "gcn", "--open")
    assert "no browser could be started" in first.err
    assert opened == [(runs / "gcn" / "report.html").resolve().as_uri()]
    assert "no browser" not in call("report", runs / "gcn", "--open").err


def test_report_without_plotly_names_the_extra(call, runs, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    answer = call("report", runs / "gcn")
    assert answer.code == 2
    assert "pip install 'difformer[report]'" in answer.err


def test_explain_is_one_sentence(call, runs):
    short = call("explain", runs / "difformer-s", "--node", "p7")
    assert short.code == 0, short.err
    assert short.out.startswith("p7: Predicted ")
    assert "with average features" in short.out
    assert len(short.out.splitlines()) == 1
    document = json.loads(call("explain", runs / "gcn", "--node", "7", "--json").out)
    assert document["name"] == "p7"
    found = document["attribution"]
    effects = [*found["columns"].values(), *found["neighbours"].values(), found["others"], found["gap"]]
    assert sum(effects) == pytest.approx(found["value"] - found["base"], abs=1e-5)


def test_explain_takes_new_rows_as_predict_does(call, runs, tmp_path):
    (tmp_path / "new.csv").write_text("name,height,weight\nNEW-0,1,2\np7,0,0\n")
    (tmp_path / "joined.csv").write_text("from,to\np1,NEW-0\n")
    (tmp_path / "one.csv").write_text("name,height,weight\nNEW-0,1,2\n")
    words = (runs / "gcn", "--features", "one.csv", "--edges", "joined.csv")
    predicted = call("predict", *words, "--out", "-").out.splitlines()[1].split(",")[1]
    answer = call("explain", *words, "--node", "NEW-0")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(f"NEW-0: Predicted {predicted} (")
    assert "neighbour p1 (" in answer.out
    assert "target" not in answer.out
    alone = call("explain", runs / "gcn", "--features", "new.csv", "--node", "p7")
    assert alone.out.startswith("p7: Predicted ")
    assert "note: new rows have no edges" in alone.err


def test_explain_names_the_target_of_several(call, people):
    (people / "two.csv").write_text("name,pay,rate\n" + "".join(f"p{i},{i}.5,0.{i}\n" for i in range(40)))
    files = ("--features", people / "people.csv", "--labels", people / "two.csv")
    quick = ("--model", "mlp", "--set", "epochs=2", "--seeds", "1", "--out", "two")
    assert call("fit", *files, *quick).code == 0
    unknown = call("explain", "two", "--node", "p50", "--target", "rate").out
    assert "Its target" not in unknown
    assert "; rate (" in unknown
    assert "Its target is pay 3.5, rate 0.3." in call("explain", "two", "--node", "p3").out


def test_explain_errors_name_the_problem(call, runs):
    unknown = call("explain", runs / "difformer-s", "--node", "nobody")
    assert unknown.code == 2
    assert "no instance 'nobody'; expected names such as 'p0'" in unknown.err
    assert "no instance 'P7'; did you mean p7?" in call("explain", runs / "difformer-s", "--node", "P7").err
    assert call("explain", runs / "gcn").code == 2


def test_compare_pairs_seeds(call, runs):
    answer = call("compare", runs / "difformer-s", runs / "gcn")
    assert answer.code == 0, answer.err
    assert "settings that differ" in answer.out
    document = json.loads(call("compare", runs / "difformer-s", runs / "gcn", "--json").out)
    assert document["against_first"][0]["pairs"] == 2
    assert document["settings"]["model"] == ["difformer-s", "gcn"]
    one = call("compare", runs / "gcn")
    assert one.code == 2
    assert "at least two runs" in one.err
