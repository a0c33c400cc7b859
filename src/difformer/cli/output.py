"""Results go to standard output, progress and remarks to standard error; with ``--json`` one document replaces both."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.files import UNSAFE, finite
from difformer.files import printable as printable

_NUMBER = re.compile(r"|–|input|[|+-]?[\d.]([\d.,:/%±…e +-]|[hms]\b)*")  # also 7/60, 0.7 ± 0.1, 1e-07, 3m04s

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class Output:
    """Standard output for results, standard error for everything else."""

    def __init__(self, as_json: bool = False) -> None:
        from rich.console import Console

        self.as_json = as_json
        self.out: Console = Console(highlight=False, emoji=False, width=_width())
        self.err: Console = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)

    def say(self, text: str = "") -> None:
        """A sentence for people; nothing with ``--json``."""
        if not self.as_json:
            self.out.print(printable(text), markup=False, soft_wrap=True)

    def remark(self, text: str) -> None:
        """A sentence on standard error, with or without ``--json``."""
        self.err.print(printable(text), markup=False)

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table for people; nothing with ``--json``."""
        self.show(make_table(headings, rows))

    def records(self, columns: Mapping[str, Callable[[Any], object]], records: Iterable[Any]) -> None:
        """A table with a row per record, and a function of it per heading; nothing with ``--json``."""
        self.table(list(columns), ([cell(one) for cell in columns.values()] for one in records))

    def show(self, what: Table | str) -> None:
        """A table that was made elsewhere, or a paragraph, in lines that fit; nothing with ``--json``."""
        if not self.as_json:
            self.out.print(printable(what) if isinstance(what, str) else what, markup=False)

    def json(self, document: Any) -> None:
        """The document; nothing without ``--json``."""
        if self.as_json:
            text = json.dumps(finite(document), indent=2, ensure_ascii=False, default=str)
            print(UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def _width() -> int | None:
    """Columns of a table that goes into a pipe: as many as the terminal has, 160 in a log."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return None
    try:
        return os.get_terminal_size(2).columns
    except OSError:
        return 160


def check_new(path: Path, force: bool) -> None:
    """Refuses to write over a file, before anything is computed."""
    if path.exists() and not force:
        raise FileExistsError(f"--out: {path} already exists; nothing was changed. Choose another name, or add --force")


def make_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table with one rule under its headings; numbers are aligned at the right, names at the left stay whole."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    for place, heading in enumerate(headings):
        numbers = all(_NUMBER.fullmatch(row[place]) for row in texts)
        look: dict[str, Any] = {"justify": "right" if numbers else "left", "overflow": "fold", "no_wrap": place == 0}
        table.add_column(Text(printable(heading)), **look)
    for row in texts:
        table.add_row(*map(Text, row))
    return table


def count(value: int | None) -> str:
    """1234567 as 1,234,567; a dash where there is nothing."""
    return "–" if value is None else f"{value:,}"


def counted(number: int, noun: str) -> str:
    """``1 class`` or ``7 classes``, from the plural."""
    return f"{number:,} {noun if number != 1 else {'classes': 'class'}.get(noun, noun.removesuffix('s'))}"


def listed(settings: Mapping[str, object]) -> str:
    """``epochs=5, dropout=0.5``."""
    return ", ".join(f"{key}={shown(value)}" for key, value in settings.items())


def shown(value: object) -> str:
    """A setting as it is typed on the command line."""
    if isinstance(value, tuple | list):
        return ",".join(map(shown, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
