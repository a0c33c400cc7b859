"""Where this package keeps what it can make or fetch again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """`$DIFFORMER_CACHE`, or the platform's place for such things."""
    if chosen := os.environ.get("DIFFORMER_CACHE"):
        return Path(chosen).expanduser()
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "difformer"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "difformer" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "difformer"
