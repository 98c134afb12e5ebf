"""Where text begins in a console log: Ray's prefixes, their colours, progress bars and time stamps."""

from __future__ import annotations

import re
from typing import Final

ANSI: Final = rb"(?:\x1b\[[0-9;]*m)*"
PREFIX: Final = rb"\((?:raylet|(?:[A-Za-z_][\w:.]* ?)?pid=\d*)(?:, ?ip=[^)\s]*)?\)"
"""Ray's ``(TaskRunner pid=7, ip=10.0.0.1)``, without the colours around it."""
LOOK_BACK: Final = 300
"""How far before a text its prefix may begin (bytes)."""

_START: Final = re.compile(
    rb"(?:^" + ANSI + rb"\s*"
    rb"|^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^ \n]* (?:\[?[A-Z]+\]?[ :|-]+)?"
    rb"|(?:it/s|s/it)[^\]\r\n]{0,99}\] ?"
    rb"|" + ANSI + rb"(" + PREFIX + rb")" + ANSI + rb" ?" + ANSI + rb")\Z"
)


class LineStarts:
    """Tells whether text begins at a position: at the beginning of a line, after a prefix or a progress bar."""

    def __init__(self) -> None:
        self._seen: dict[bytes, bytes | None] = {}

    def tag(self, block: bytes, position: int) -> bytes | None:
        """The process by its prefix's name and number (b"" without one), or None where no text begins here."""
        if position == 0 or block[position - 1] in b"\r\n":
            return b""
        if block[position - 1] not in b" )m]\t":
            return None
        low = max(0, position - LOOK_BACK)
        line_start = block.rfind(b"\n", low, position) + 1
        before = block[line_start or low : position]
        if before in self._seen:
            return self._seen[before]
        returned = before.rfind(b"\r") + 1
        if returned:
            line_start, before = position - len(before) + returned, before[returned:]
        text = before.rstrip()
        if text and text[-1] not in b")]m" and not text[:1].isdigit() and text[:1] != b"[":
            return None  # a sentence: neither a prefix nor a bar nor a time of day is what it ends with
        match = _START.search(before)
        tag = None if match is None or (not line_start and low and match.start() == 0) else match[1] or b""
        if tag:
            tag = tag.strip(b"()").partition(b",")[0]
        if len(self._seen) < 1000:
            self._seen[before] = tag
        return tag
