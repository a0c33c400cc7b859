"""What a person reads is what a person can type: no argument of Python in an error of the command line."""

from __future__ import annotations

import inspect
import re

import pytest

from difformer.cli.wording import DATA, OPTIONS, SETTINGS, as_typed


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("or duplicates='sum', 'mean' or 'max'", "or --data duplicates=sum, mean or max"),
        ("pass directed=True if its", "pass --data directed=true if its"),
        ("pass labels=FILE, or label_columns= with", "pass --labels FILE, or --data label_columns=… with"),
        ("pass drop=['city'] or rename it", "pass --data drop=city or rename it"),
        ("pass missing=('x',) if", "pass --data missing=x if"),
        ("pass edge_columns=(source, target, weight)", "pass --data edge_columns=source,target,weight"),
        ("take device='auto' or 'cpu'", "take --device auto or cpu"),
        ("splits of your own: splits=", "splits of your own: --split FILE"),
        ("loss='broadcast-mse' is for", "--set loss=broadcast-mse is for"),
        ("fractions: 2 labelled", "--data fractions: 2 labelled"),
        ("then continue with resume: a/b. Nothing", "then go on with: difformer fit --resume a/b. Nothing"),
        ("say --data problem=regression, per_class=5", "say --data problem=regression, per_class=5"),
    ],
)  # fmt: skip
def test_arguments_become_options(said, typed):
    assert as_typed(said) == typed


def test_every_option_of_own_files_is_translated():
    from difformer.data import from_files

    known = {*DATA, *OPTIONS, *SETTINGS, "splits"}
    assert set(inspect.signature(from_files).parameters) <= known


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
        ("--features n.csv --labels y.csv --edges e.csv", "--data duplicates=sum, mean or max"),
        ("--features n.csv", "pass --labels FILE, or --data label_columns=…"),
        ("--features x.csv --labels y.csv", "column 'city': expected a number, got 'oslo'.*--data drop=city"),
        ("--features leak.csv --labels y.csv", "pass --data drop=label or rename it"),
        ("--features n.csv --labels few.csv", "bring more labels, or splits of your own: --split FILE"),
        ("--features n.csv --labels y.csv --device cuda:99", "take --device auto or cpu"),
        ("--features n.csv --labels y.csv --data foo=1", "own files have no option 'foo'; they take ids"),
        ("--features n.csv --labels y.csv --data direct=true", "did you mean directed"),
        ("--features n.csv --labels y.csv --data directed=7", "--data directed: expected true or false, got '7'"),
        ("--features n.csv --labels y.csv --data seeds=a", "--data seeds: expected a whole number, got 'a'"),
        ("--features n.csv --labels y.csv --data fractions=0.5,b,c", "expected a number, got 'b' in '0.5,b,c'"),
        ("--features n.csv --labels y.csv --data self_loops=true", "expected one of add, remove, keep, got 'true'"),
        ("--features n.csv --labels y.csv --protocol random", "--protocol belongs to a data set"),
        ("--features n.csv --labels y.csv --split n.csv", "--split: splits are kept in .npz or .json"),
        ("--features n.csv --labels y.csv --out n.csv", "Choose another folder with --out$"),
        ("--features n.csv --labels y.csv --out /proc/x", "there can be no file or folder at that place"),
        ("--features n.csv --labels y.csv --set hiden=3", "did you mean hidden_channels"),
        ("--features n.csv --labels y.csv --set lr=3", "did you mean learning_rate"),
        ("--features n.csv --labels y.csv --set diffusivity=softmax", "model 'difformer' lets you choose it"),
        ("wine --data per_class=x", "--data per_class: expected a whole number, got 'x'"),
        ("wine --data knn=x", "--data knn: expected a whole number or none, got 'x'"),
        ("wine --preset best", "Presets for difformer-s on wine: none"),
        ("digits --preset paper", "for that pair there is best"),
        ("wine --seeds 1,1", "--seeds: '1,1' names seed 1 more than once"),
    ],
)  # fmt: skip
def test_what_a_person_reads_when_something_is_wrong(call, own, words, complaint):
    answer = call("fit", *words.split())
    assert answer.code == 2, answer.err
    errors = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.search(complaint, errors[0]), errors[0]
    assert not re.search(r"\w+=['\[(]|=True|=False|pass \w+=", errors[0]), errors[0]
    assert not {path.name for path in own.iterdir()} & {"runs"}


def test_a_column_of_names_can_be_left_out(call, own):
    answer = call(
        "fit", "--features", "x.csv", "--labels", "y.csv", "--data", "drop=city", "--seeds", "1", "--set", "epochs=1"
    )
    assert answer.code == 0, answer.err
    assert "x: 12 nodes, 1 features" in answer.out
