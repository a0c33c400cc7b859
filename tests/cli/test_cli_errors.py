"""Errors of the command line: one sentence for what the user can fix, a traceback for a bug."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from difformer.cli.command import explain, take_debug_flag
from difformer.errors import UserError, did_you_mean


@pytest.mark.parametrize(
    ("argument", "typed"),
    [
        ("duplicates", "--data duplicates=…"),
        ("directed", "--data directed=…"),
        ("labels", "--labels FILE"),
        ("label_columns", "--label COLUMN"),
        ("device", "--device"),
        ("splits", "--split FILE"),
        ("learning_rate", "--set learning_rate=…"),
        ("step_size", "--set step_size=…"),
        ("batch_size", "--batch-size N"),
        (None, ""),
        ("nothing_like_it", ""),
    ],
)
def test_an_error_names_its_argument_as_it_is_typed(argument, typed):
    expected = f"it is wrong ({typed})" if typed else "it is wrong"
    assert explain(UserError("it is wrong", argument=argument)) == expected


def test_an_option_that_the_message_names_is_not_repeated():
    assert explain(UserError("--device: no such device", argument="device")) == "--device: no such device"


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("pass delimiter=';' or ','", "pass --data delimiter=';' or ','"),
        ("pass fractions= or splits= to split", "pass --data fractions=… or --split FILE to split"),
        ("pass label_columns=a, or labels=FILE", "pass --label a, or --labels FILE"),
        ("ids differ (ids=false if not)", "ids differ (--data ids=false if not)"),
        ("use batch_size=64 or step_size=0.1", "use --batch-size 64 or --set step_size=0.1"),
        ("column 'drop=1' is constant", None),
        ("split stratified/seed=0 is empty", None),
        ("keep it in memory with out=None", None),
        ("--data: it takes header=none", None),
    ],
)
def test_a_message_names_arguments_as_they_are_typed(message, typed):
    assert explain(UserError(message)) == (typed or message)


def test_a_bug_of_the_package_shows_its_traceback(installed, tmp_path):
    error = ValueError("too many values to unpack")
    code = (
        "import difformer.training.run as run\n"
        f"def fit(*_, **__): raise {error!r}\n"
        "run.fit = fit\n"
        "from difformer.cli import main; main(['fit', 'karate', '--seeds', '1', '--set', 'epochs=1'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.rstrip().endswith(f"{type(error).__name__}: {error}")
    assert "please report it" in done.stderr
    assert "error: too" not in done.stderr


def test_a_user_error_shows_its_traceback_only_with_debug(call, monkeypatch):
    def refuse(*_, **__):
        raise UserError("it is wrong", argument="learning_rate")

    monkeypatch.setattr("difformer.training.run.fit", refuse)
    answer = call("fit", "karate", "--seeds", "1")
    assert (answer.code, answer.err) == (2, "error: it is wrong (--set learning_rate=…)\n")
    debugged = call("fit", "karate", "--seeds", "1", "--debug")
    assert debugged.code == 2
    assert "Traceback (most recent call last)" in debugged.err


def test_a_user_error_is_a_value_error_and_survives_pickling():
    import pickle

    error = pickle.loads(pickle.dumps(UserError("wrong", argument="device")))
    assert isinstance(error, ValueError)
    assert (str(error), error.argument) == ("wrong", "device")


def test_only_close_names_are_suggested():
    known = ("cora", "computers", "pubmed", "photo", "learning_rate")
    assert [did_you_mean(word, known) for word in ("corra", "cors", "coar", "CORA")] == ["did you mean cora? "] * 4
    assert did_you_mean("Pub", known) == "did you mean pubmed? "
    assert did_you_mean("learnig_rate", known) == "did you mean learning_rate? "
    assert [did_you_mean(word, known) for word in ("customers", "foo", "xyz", "", "p")] == [""] * 5


@pytest.fixture
def own(tmp_path):
    rows = range(12)
    (tmp_path / "x.csv").write_text(
        "name,size,city\n" + "".join(f"p{i},{i},{'rome' if i % 2 else 'oslo'}\n" for i in rows)
    )
    (tmp_path / "n.csv").write_text("name,size\n" + "".join(f"p{i},{i}\n" for i in rows))
    (tmp_path / "y.csv").write_text("name,group\n" + "".join(f"p{i},{'ab'[i % 2]}\n" for i in rows))
    (tmp_path / "few.csv").write_text("name,group\np0,a\np1,b\n")
    (tmp_path / "leak.csv").write_text("name,size,label\n" + "".join(f"p{i},{i},{i % 2}\n" for i in rows))
    (tmp_path / "e.csv").write_text("from,to,weight\np0,p1,1\np1,p0,2\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--features n.csv --labels y.csv --edges e.csv", "--data directed=true .*, or --data duplicates=sum"),
        ("--features n.csv", r"pass --label size, or another of 'name', 'size', or --labels FILE$"),
        ("--features leak.csv --labels y.csv", r"pass --data drop=label or rename it$"),
        ("--features n.csv --labels few.csv", "provide more labels, or pass"),
        ("--features n.csv --labels y.csv --device cuda:99", "device.*auto.* or '?cpu"),
        ("--features n.csv --labels y.csv --data foo=1", "own files have no option 'foo'; they take ids"),
        ("--features n.csv --labels y.csv --data direct=true", "did you mean directed"),
        ("--features n.csv --labels y.csv --data directed=7", "--data directed: expected true or false, got '7'"),
        ("--features n.csv --labels y.csv --data seeds=a", "--data seeds: expected a whole number, got 'a'"),
        ("--features n.csv --labels y.csv --data fractions=0.5,b,c", "expected a number, got 'b' in '0.5,b,c'"),
        ("--features n.csv --labels y.csv --data self_loops=true", "expected one of add, remove, keep, got 'true'"),
        ("--features n.csv --labels y.csv --protocol random", "--protocol belongs to a data set"),
        ("--features n.csv --labels y.csv --split n.csv", "splits are kept in .npz or .json"),
        ("--features n.csv --labels y.csv --out n.csv", "Choose another folder"),
        ("--features n.csv --labels y.csv --out /proc/x", "no file or folder can be created at that path"),
        ("--features n.csv --labels y.csv --set hiden=3", "did you mean hidden_channels"),
        ("--features n.csv --labels y.csv --set lr=3", "did you mean learning_rate"),
        ("wine --model difformer-s --set diffusivity=softmax", "model 'difformer' lets you choose it"),
        ("wine --data per_class=x", "--data per_class: expected a whole number, got 'x'"),
        ("wine --data knn=x", "--data knn: expected a whole number or none, got 'x'"),
        ("wine --preset best", "there is no preset 'best' for difformer-s on wine"),
        ("digits --preset paper", "for that pair there is best"),
        ("wine --seeds 1,1", "--seeds: '1,1' names seed 1 more than once"),
    ],
)  # fmt: skip
def test_invalid_request_prints_one_sentence(call, own, words, complaint):
    answer = call("fit", *words.split())
    assert answer.code == 2, answer.err
    errors = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.search(complaint, errors[0]), errors[0]
    assert not {path.name for path in own.iterdir()} & {"runs"}


def test_a_column_of_names_can_be_left_out(call, own):
    answer = call(
        "fit", "--features", "x.csv", "--labels", "y.csv", "--data", "drop=city", "--seeds", "1", "--set", "epochs=1"
    )
    assert answer.code == 0, answer.err
    assert "x: 12 rows, 1 feature, 2 classes" in answer.out


def test_debug_after_a_double_dash_is_an_argument():
    assert take_debug_flag(["fit", "--debug", "karate"]) == ["fit", "karate"]
    assert take_debug_flag(["fit", "--", "karate", "--debug"]) == ["fit", "--", "karate", "--debug"]
