"""Names for runs that have none but their place in a folder tree."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote


def names_below(paths: Sequence[Path]) -> dict[Path, str]:
    """Each path as text relative to the deepest folder above all of them (``CartPole/PPO/seed10``)."""
    if not paths:
        return {}
    whole = {path: os.path.abspath(path) for path in paths}
    root = os.path.commonpath([os.path.dirname(text) for text in whole.values()])
    return {path: as_text(os.path.relpath(text, root)).replace(os.sep, "/") for path, text in whole.items()}


def as_part(text: str) -> str:
    """``text`` for the part of a run's reference: without the characters that divide paths from parts."""
    return quote(text, safe=" .,:;=+-_~()[]{}@!", errors="replace")


def as_text(name: str | Path) -> str:
    """A file's name as valid text; bytes that are no UTF-8 are replaced."""
    return os.fsencode(name).decode("utf-8", "replace")
