"""How tests speak to the command: as a person does, in a process of its own, or quickly, in this one."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from difformer.cli import main

COMMAND = Path(sys.executable).with_name("difformer")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DIFFORMER_")}
    return {**kept, "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "160", "PYTHONHASHSEED": "0", "DIFFORMER_OFFLINE": "1"}


def run_command(*words: object, cwd: Path) -> Answer:
    """The installed command, in a process of its own."""
    done = subprocess.run(
        [COMMAND, *map(str, words)], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300
    )
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session", name="environment")
def environment_fixture():
    return environment()


@pytest.fixture(scope="session")
def installed():
    assert COMMAND.is_file(), f"{COMMAND} is missing: install the package first"
    return run_command


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    """The same command in this process: no second start of torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("DIFFORMER_OFFLINE", "1")

    def answer(*words: object) -> Answer:
        capsys.readouterr()
        try:
            main([str(word) for word in words])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return answer


@pytest.fixture(scope="session")
def people(tmp_path_factory):
    """Files of sixty people in three groups, ten of them without a label, and friends within each group."""
    folder = tmp_path_factory.mktemp("people")
    draw = random.Random(0)
    rows = [(f"p{i}", i % 3, [draw.gauss(1.5 * (i % 3), 0.6), draw.gauss(-(i % 3), 0.6)]) for i in range(60)]
    lines = ["name,height,weight"] + [f"{name},{u:.3f},{v:.3f}" for name, _, (u, v) in rows]
    (folder / "people.csv").write_text("\n".join(lines) + "\n")
    lines = ["name,group"] + [f"{name},{'abc'[group]}" for name, group, _ in rows[:50]]
    (folder / "groups.csv").write_text("\n".join(lines) + "\n")
    lines = ["from,to"] + [f"p{i},p{(i + 3) % 60}" for i in range(60)]
    (folder / "friends.csv").write_text("\n".join(lines) + "\n")
    (folder / "new.csv").write_text("name,weight,height\nn1,-0.1,0.0\nn2,-2.1,3.2\n")
    (folder / "new_friends.csv").write_text("from,to\nn1,p0\nn2,p2\nn2,n1\n")
    return folder
