"""Plain English: idioms that readers stumbled over do not come back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]
IDIOMS = {
    r"\b(?:one|a) (?:line|row|file|step|run|number|message|table|page) (?:a|an) "
    r"(?:epoch|seed|row|node|class|graph|run|split|layer|snapshot|file|table|head|label|line|rank)\b": 'say "per"',
    r"\b(?:labels|rows|nodes|points|edges|seconds|ms|numbers) (?:a|an) "
    r"(?:class|epoch|seed|row|node|graph|run|split|step|layer)\b": 'say "per"',
    r"\b(?:kB|MB|GB|TB|bytes|µs|ns|neighbours|entries|trials) (?:a|an) "
    r"(?:node|pair|row|step|layer|machine|setting|graph|rank|class)\b": 'say "per"',
    r"\bis no (?:error|part of)\b": 'say "is not"',
    r"\bcounted around\b": 'say "modulo"',
    r"\bgone on with\b": 'say "resumed"',
    r"\bgoes? before (?:it|them|the preset)\b": 'say "overrides"',
    r"\bof (?:yours|your own)\b": 'say "your"',
    r"\b(?:nobody|whoever)\b": "say who",
    r"\bno right to (?:write|read)\b": 'say "no write permission"',
}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_old_idioms_are_gone(page):
    text = page.read_text(encoding="utf-8")
    found = [
        f"line {text.count(chr(10), 0, match.start()) + 1}: {match.group(0)!r} ({advice})"
        for idiom, advice in IDIOMS.items()
        for match in re.finditer(idiom, text)
    ]
    assert not found, "\n".join(found)
