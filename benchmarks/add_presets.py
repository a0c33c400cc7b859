"""Adds preset files, as `difformer tune` and `benchmarks.search_gpu` write them, to the package's presets.

python -m benchmarks.add_presets found/presets/*.toml
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from difformer import toml
from difformer.experiments.presets import SHIPPED, Preset, read_preset
from difformer.files import write_whole


def add_presets(text: str, presets: Iterable[Preset]) -> str:
    """The text of a presets.toml with `presets` added or replaced; everything else, comments included, stays."""
    mark = "\n[[preset]]\n"
    head, *entries = text.split(mark)
    known = {}
    for place, entry in enumerate(entries):
        found = toml.loads(f"[[preset]]\n{entry}")["preset"][0]
        known[found["name"], found["model"], found["dataset"], found.get("variant")] = place
    for preset in presets:
        fields = preset.to_dict()
        tables = {key: fields.pop(key) for key in ("data", "settings") if fields.get(key)}
        written = toml.dumps(fields)
        for key, table in tables.items():
            written += f"{key} = {{ {', '.join(toml.dumps(table).splitlines())} }}\n"
        place = known.setdefault(preset.identity, len(entries))
        if place == len(entries):
            entries[-1:] = [entries[-1].rstrip() + "\n"] if entries else []
            entries.append(written)
        else:
            # Comments at the end of an entry belong to the next one.
            lines = entries[place].splitlines(keepends=True)
            last = next((i for i in range(len(lines), 0, -1) if lines[i - 1].strip() and lines[i - 1][0] != "#"), 0)
            entries[place] = written + "".join(lines[last:])
    return mark.join([head, *entries]).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.add_presets", description="Add preset files.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, default=SHIPPED)
    given = parser.parse_args(arguments)
    presets = [read_preset(path) for path in given.files]
    names = [preset.identity for preset in presets]
    if twice := next((name for name in names if names.count(name) > 1), None):
        parser.error(f"several files hold a preset for {' / '.join(map(str, twice))}: give one of them")
    write_whole(given.into, add_presets(given.into.read_text(encoding="utf-8"), presets).encode())
    print(f"{len(presets)} presets into {given.into}")


if __name__ == "__main__":
    main()
