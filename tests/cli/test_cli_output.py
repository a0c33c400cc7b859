"""What is printed is safe for a terminal, whatever names and labels hold."""

from __future__ import annotations

import json
import os

import pytest

from difformer.cli.output import Output, counted, printable

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
    answers.append(call("embed", "run", "--out", "e.npz"))
    for given in answers:
        assert "\x1b" not in given.out + given.err, given
    for written in ("p.csv", "q.csv"):
        text = (hostile / written).read_text()
        assert "\x1b" not in text
        assert "p\\x1b[31m3" in text


def test_tables_in_a_pipe_are_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((72, 20)))
    assert Output().out.width == 72

    def refuse(_):
        raise OSError

    monkeypatch.setattr("os.get_terminal_size", refuse)
    assert Output().out.width == 160


@pytest.mark.parametrize(("number", "text"), [(1, "1 class"), (2, "2 classes"), (1000, "1,000 classes")])
def test_counted_uses_the_singular_for_one(number, text):
    assert counted(number, "classes") == text
    assert counted(number, "targets") == text.replace("classes", "targets").replace("class", "target")


def test_a_name_between_colons_is_not_shown_as_emoji(capsys):
    output = Output()
    for show in (output.say, output.remark, output.show):
        show("search space of package.models:sandwich:")
    said = capsys.readouterr()
    assert (said.out + said.err).count(":sandwich:") == 3
