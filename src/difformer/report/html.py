"""Text into HTML. Whatever comes from a user's data passes through here, or reaches the page as JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from difformer.files import finite


def escape(value: object) -> str:
    """A text that shows as itself, in an element or in an attribute."""
    return html.escape(str(value), quote=True)


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph; nothing for an empty text."""
    return f"<p{f' class={kind!r}' if kind else ''}>{escape(text)}</p>" if text else ""


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    """A table; columns in `right` hold numbers. Without headings its first column names the rows, unbroken."""
    side = [' class="number"' if c in right else "" for c in range(len(headings))]
    if not any(headings):
        side[0] = ' class="label"'
    head = "".join(f"<th{s}>{escape(h)}</th>" for s, h in zip(side, headings, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{s}>{escape('–' if v is None else v)}</td>" for s, v in zip(side, row, strict=True))
        + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(headings) else ""
    return f'<div class="wide"><table>{top}<tbody>{body}</tbody></table></div>'


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page with an address of its own."""
    return f'<section id="{escape(name)}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def plot(name: str) -> str:
    """A place for the script to draw in."""
    return f'<div class="plot" id="{escape(name)}"></div>'


def code(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>"


def embedded_json(document: Any) -> str:
    """A document that no text inside can break out of: JSON allows every ``<`` to be written as ``\\u003c``."""
    text = json.dumps(finite(document), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def asset(name: str) -> str:
    """A file of the page's own."""
    return (files("difformer.report") / "assets" / name).read_text(encoding="utf-8")


def plotly_script() -> str:
    """Plotly's whole program.

    Raises:
        ImportError: If plotly is not installed, naming the extra.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("a report needs plotly; install it with: pip install 'difformer[report]'") from error
    return str(get_plotlyjs())


def page(title: str, body: str, data: Any) -> str:
    """The whole file. Its policy forbids every request, so that nothing inside can phone anybody."""
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{asset('page.css')}</style>\n</head>\n<body>\n{body}\n"
        f'<script type="application/json" id="data">{embedded_json(data)}</script>\n'
        f"<script>{plotly_script()}</script>\n<script>{asset('page.js')}</script>\n</body>\n</html>\n"
    )
