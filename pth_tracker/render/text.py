"""What every renderer shares: harmless text, short lists of names, the words of the exit statuses.

Only the standard library is imported, since every error message passes through here.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Final

from pth_tracker.errors import ExitCode

EXIT_WORDS: Final[Mapping[ExitCode, str]] = {
    ExitCode.OK: "every judged check passed, or only warned",
    ExitCode.CHECK_FAILED: "a check failed (with `--strict`: or could not be judged)",
    ExitCode.NOTHING: "nothing was selected, or nothing could be judged",
    ExitCode.TRACKER: "the tracker failed: unreachable, refused, a run unreadable, a write refused",
    ExitCode.USAGE: "wrong usage, configuration or design, or a project that does not exist",
    ExitCode.INTERRUPTED: "interrupted",
}
"""What each exit status means, in the words of the documentation."""


def short_exit_words(status: ExitCode) -> str:
    """What ``status`` means in a few words, for the end of a report.

    >>> short_exit_words(ExitCode.CHECK_FAILED)
    'a check failed'
    """
    return EXIT_WORDS[status].split(" (", 1)[0]


_ESCAPED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SHORT_ESCAPES: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def safe_text(text: object, *, newlines: bool = False) -> str:
    r"""``text`` with every character escaped that could steer a terminal or reorder a line.

    Control codes, bidirectional marks, line separators, private and unassigned characters and lone surrogates become
    ``\x1b`` or ``\u202e``; with ``newlines`` line feeds stay.

    >>> print(safe_text("run\x1b[2J\u202e"))
    run\x1b[2J\u202e
    """
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(char if char == "\n" and newlines else _escape(char) for char in plain)


def _escape(char: str) -> str:
    if unicodedata.category(char) not in _ESCAPED_CATEGORIES:
        return char
    code = ord(char)
    escape = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _SHORT_ESCAPES.get(char, escape)


def counted(number: int, noun: str, plural: str = "") -> str:
    """``number`` and its noun.

    >>> counted(1, "run"), counted(3, "run"), counted(2, "history", "histories")
    ('1 run', '3 runs', '2 histories')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sorting key that puts ``seed9`` before ``seed10``."""
    parts = re.findall(r"[0-9]{1,30}|[^0-9]+|[0-9]+", name)
    return tuple((0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part) for part in parts)


def compact_names(names: Iterable[str], limit: int | None = 8) -> str:
    """Names as one short harmless line: common stems written once, beyond ``limit`` (None: none) only counted.

    >>> compact_names(["grpo-s43", "grpo-s42", "tis-s42"])
    'grpo-{s42,s43}, tis-s42'
    >>> compact_names([f"run{i}" for i in range(12)], limit=3)
    'run0, run1, run2 and 9 more'
    """
    ordered = sorted(dict.fromkeys(safe_text(name) for name in names), key=natural_key)
    shown = ordered if limit is None or len(ordered) <= limit + 1 else ordered[:limit]
    pieces = []
    for stem, group in groupby(shown, key=_stem):
        members = [name[len(stem) :] for name in group]
        pieces.append(f"{stem}{{{','.join(members)}}}" if stem and len(members) > 1 else f"{stem}{members[0]}")
        pieces += members[1:] if not stem else []
    more = len(ordered) - len(shown)
    return ", ".join(pieces) + (f" and {more} more" if more else "")


def _stem(name: str) -> str:
    cut = max(name.rfind(separator) for separator in "-_/.") + 1
    tail = name[cut:]
    return name[:cut] if cut >= 3 and tail and not set("{}, ") & set(tail) else ""


def wrap(text: str, width: int, indent: str = "", first: str | None = None, *, newlines: bool = False) -> list[str]:
    """``text`` as harmless lines of at most ``width`` columns where its words allow; names are never broken.

    Every line starts with ``indent``, the first with ``first`` where given; with ``newlines`` line feeds in ``text``
    stay breaks.
    """
    lines: list[str] = []
    for paragraph in safe_text(text, newlines=newlines).split("\n"):
        start = indent if lines or first is None else first
        lines += textwrap.wrap(
            paragraph,
            max(width, len(indent) + 20),
            initial_indent=start,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [start.rstrip()]
    return lines
