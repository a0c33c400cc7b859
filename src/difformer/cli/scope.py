"""What the package does not do, said where somebody asks for it."""

from __future__ import annotations

import re
from collections.abc import Iterable

OUTSIDE = "link prediction and edge features are outside of this package for now"

# Names that settings, options and protocols for links and features of edges have elsewhere.
_ASKED = re.compile(
    r"links?(_?(pred\w*|level|task))?|edge_?(dim|attr\w*|feat\w*|channels|encoder|level|pred\w*|classification)"
)


def outside(words: Iterable[str]) -> str:
    """A clause to end an error with, where one of its words asks for links or features of edges; else nothing."""
    for word in words:
        name = word.partition("=")[0].strip().lower().replace("-", "_").replace(" ", "_")
        if _ASKED.fullmatch(name):
            return f"; {OUTSIDE}"
    return ""
