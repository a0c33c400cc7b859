"""What is printed is safe for a terminal, whatever names and labels hold."""

from __future__ import annotations

import json

import pytest

from difformer.cli.output import Output, printable

ESCAPES = ["\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\r", "\x08", "\x7f", "\u202e", "\x00"]


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("as_json", [False, True])
def test_control_characters_do_not_reach_the_terminal(capsys, escape, as_json):
    output = Output(as_json)
    name = f"a{escape}b"
    output.say(name)
    output.remark(name)
    output.table([name], [[name]])
    output.show(name)
    output.json({name: name})
    out, err = capsys.readouterr()
    assert escape[0] not in out + err
    if as_json:
        assert json.loads(out) == {name: name}  # scripts get the name as it is
    else:
        assert repr(escape[0])[1:-1] in out


def test_ordinary_text_is_unchanged():
    text = "Ünïcode – 名前, tabs\tand\nlines"
    assert printable(text) == text


@pytest.fixture
def hostile(tmp_path):
    rows = range(12)
    (tmp_path / "x.csv").write_text("name,size\n" + "".join(f"p\x1b[31m{i},{i}\n" for i in rows))
    (tmp_path / "y.csv").write_text("name,group\n" + "".join(f"p\x1b[31m{i},{'ab'[i % 2]}\x1b[2J\n" for i in rows))
    (tmp_path / "few.csv").write_text("name,size\n" + "".join(f"p\x1b[31m{i},\x1b[5mx{i}\n" for i in rows))
    return tmp_path


def test_labels_and_names_with_escape_sequences_are_shown_harmlessly(call, hostile):
    answer = call("fit", "--features", "x.csv", "--labels", "y.csv", "--seeds", 1, "--set", "epochs=1", "--out", "run")
    assert answer.code == 0, answer.err
    answers = [
        answer,
        call("fit", "--features", "few.csv", "--labels", "y.csv"),
        call("fit", "--features", "x\x1b[31m.csv", "--labels", "y.csv"),
        call("fit", "di\x1b[31mgits"),
        call("predict", "run", "--out", "-"),
        call("predict", "run", "--out", "p.csv"),
        call("predict", "run", "--out", "q.csv", "--json"),
        call("evaluate", "run"),
        call("explain", "run", "--node", "p\x1b[31m3"),
        call("explain", "run", "--node", "q\x1b[31m3"),
        call("difformer\x1b[31m"),
        call("fit", "--opt\x1b[31mion"),
    ]
    answers.append(call("embed", "run", "--out", "e.csv"))
    for given in answers:
        assert "\x1b" not in given.out + given.err, given
    for written in ("p.csv", "q.csv", "e.csv"):
        text = (hostile / written).read_text()
        assert "\x1b" not in text
        assert "p\\x1b[31m3" in text
