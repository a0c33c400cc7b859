"""Preset files into presets.toml: what a search or `difformer tune` found becomes part of the package.

    python -m difformer.experiments.collect found/*/*.toml

A preset takes the place of the one for the same name, model, data set and question, or is added at the end; everything
else in the file, comments included, stays as it is. The file is written whole or not at all.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from difformer.experiments.presets import SHIPPED, Preset, read_preset
from difformer.files import write_whole
from difformer.training import toml

MARK = "[[preset]]"
Identity = tuple[str, str, str, str | None]


def identity(preset: Preset) -> Identity:
    """What a preset is for; no two in a file are for the same."""
    return preset.name, preset.model, preset.dataset, preset.variant


def collected(text: str, presets: Iterable[Preset]) -> str:
    """The text of a presets.toml with `presets` in it."""
    head, *entries = text.split(f"\n{MARK}\n")
    # Comments between two entries stand at the end of the first: they speak of what follows.
    known = {_entry_identity(entry): place for place, entry in enumerate(entries)}
    for preset in presets:
        written = _entry(preset)
        place = known.get(identity(preset))
        if place is None:
            known[identity(preset)] = len(entries)
            entries[-1:] = [entries[-1].rstrip() + "\n"] if entries else []
            entries.append(written)
        else:
            entries[place] = written + _comments(entries[place])
    return f"\n{MARK}\n".join([head, *entries]).rstrip() + "\n"


def _entry(preset: Preset) -> str:
    fields = preset.to_dict()
    settings = fields.pop("settings")
    return f"{toml.dumps(fields)}[preset.settings]\n{toml.dumps(settings)}"


def _entry_identity(entry: str) -> Identity:
    found = toml.loads(f"{MARK}\n{entry}")["preset"][0]
    return found["name"], found["model"], found["dataset"], found.get("variant")


def _comments(entry: str) -> str:
    """Lines of an entry from its last comment on, which belongs to the next one."""
    lines = entry.splitlines(keepends=True)
    last = next((i for i in range(len(lines), 0, -1) if lines[i - 1].strip() and lines[i - 1][0] != "#"), 0)
    return "".join(lines[last:])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m difformer.experiments.collect", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, default=SHIPPED)
    given = parser.parse_args(arguments)
    presets = [read_preset(path) for path in given.files]
    twice = {identity(p) for p in presets if sum(identity(q) == identity(p) for q in presets) > 1}
    if twice:
        parser.error(
            f"several files hold a preset for {' / '.join(map(str, sorted(twice, key=str)[0]))}: give one of them"
        )
    write_whole(given.into, collected(given.into.read_text(encoding="utf-8"), presets).encode())
    print(f"{len(presets)} presets into {given.into}")


if __name__ == "__main__":
    main()
