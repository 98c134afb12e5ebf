"""The configuration that verl prints at start-up, recovered from between the lines of other processes.

verl pretty-prints one Python literal over hundreds of lines. Ray prefixes each with the printing process and lets
others write in between; values land on lines of their own, two lines are glued to one, warnings of the same process
fall into the middle. `read_config` therefore follows the grammar of a literal token by token and takes only lines
that continue it; the text it took is then read by `ast.literal_eval`.
"""

from __future__ import annotations

import ast
import io
import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Final

from pydantic_core import from_json

from pth_tracker_files.verl_lines import ANSI, PREFIX

STARTS: Final = (b"{'actor_rollout_ref': ", b"{'algorithm': {", b"{'async_training': {", b"{'data': {'")
"""How the printed literal may begin: its alphabetically first section (the last one: SFT trainers)."""
MAX_BYTES: Final = 1 << 21
"""How far after its beginning a configuration may end in the file (bytes)."""
MAX_TAKEN: Final = 1 << 18
"""How long a configuration itself may be (bytes)."""
MAX_LINE: Final = 1 << 16
"""Longer lines (bytes) are not verl's; the SFT trainers print all in one."""
MAX_NESTING: Final = 60

_ANSI_TEXT: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX_TEXT: Final = re.compile("(" + PREFIX.decode() + ") ?")
_PREFIXED: Final = re.compile(ANSI + PREFIX)
_REPEATED: Final = re.compile(r" *\[repeated \d+x across cluster\]")
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?P<scalar>[-+]?(?:inf|nan)\b|[-+]?\.?\d[\d_.]*(?:[eE][-+]?\d+)?|(?:None|True|False)\b)"""
    r"""|(?P<mark>[{}\[\]():,]))\s*"""
)
_NAN: Final = "\0nan"

_KEY, _COLON, _VALUE, _NEXT, _DONE = range(5)


class _Grammar:
    """How far a literal has been followed: the open brackets and what may come next."""

    def __init__(self, stack: str = "", expected: int = _VALUE, after_text: bool = False) -> None:
        self.stack = stack
        self.expected = expected
        self.after_text = after_text

    def accepts(self, kind: str, token: str) -> bool:
        """Goes on by one token, or says that it does not fit."""
        expected, text = self.expected, kind == "string"
        after_text, self.after_text = self.after_text, text and expected != _KEY
        if kind != "mark":
            if expected == _VALUE:
                self.expected = _NEXT
            elif expected == _KEY:
                self.expected = _COLON
            else:
                # Long text is printed as several literals in a row.
                return text and after_text and expected == _NEXT
            return True
        if token == ":":
            self.expected = _VALUE
            return expected == _COLON
        if token == ",":
            self.expected = _KEY if self.stack[-1:] == "{" else _VALUE
            return expected == _NEXT and self.stack != ""
        if token in "{[(":
            self.stack += token
            self.expected = _KEY if token == "{" else _VALUE
            return expected == _VALUE and len(self.stack) <= MAX_NESTING
        opened = self.stack[-1:]
        self.stack = self.stack[:-1]
        self.expected = _NEXT if self.stack else _DONE
        return {"}": "{", "]": "[", ")": "("}[token] == opened and expected in (
            _NEXT,
            _KEY if opened == "{" else _VALUE,
        )


class _Literal:
    """A literal that grows line by line, one doubtful line of which may be taken back."""

    def __init__(self) -> None:
        self._taken: list[str] = []
        self._state = ("", _VALUE, False)
        self._doubt: tuple[int, tuple[str, int, bool]] | None = None
        self.size = 0

    @property
    def complete(self) -> bool:
        return self._state[1] == _DONE

    @property
    def text(self) -> str:
        return " ".join(self._taken)

    def offer(self, line: str) -> bool:
        """Takes ``line``, or the beginning of it that is glued to something else, where it continues the literal."""
        if self._extend(line, self._state, len(self._taken)):
            return True
        if self._doubt is None:
            return False
        kept, state = self._doubt
        return self._extend(line, state, kept)

    def _extend(self, line: str, state: tuple[str, int, bool], kept: int) -> bool:
        grammar, tokens, position, safe = _Grammar(*state), [], 0, 0
        after_safe = state
        while position < len(line) and grammar.expected != _DONE:
            match = _TOKEN.match(line, position)
            if match is None or not grammar.accepts(match.lastgroup or "", match[match.lastgroup or 0]):
                break
            token = match[match.lastgroup or 0]
            tokens.append(
                repr(_NAN)
                if token.endswith("nan")
                else token.replace("inf", "1e999")
                if match.lastgroup == "scalar"
                else token
            )
            position = match.end()
            if token in ",}])" and match.lastgroup == "mark":
                safe, after_safe = len(tokens), (grammar.stack, grammar.expected, grammar.after_text)
        else:
            safe, after_safe = len(tokens), (grammar.stack, grammar.expected, grammar.after_text)
        if not safe:
            return False
        self._taken[kept:] = tokens[:safe]
        self.size += position
        # A line that ends within a pair may be a stranger that happens to look right: it can be taken back.
        certain = tokens[safe - 1] in ",{[(}])" or after_safe[1] == _DONE
        self._doubt = None if certain else (kept, state)
        self._state = after_safe
        return True


def read_config(data: bytes, at: int) -> dict[str, object] | None:
    """The mapping printed from the opening bracket at ``data[at]`` on, or None where it is cut short or is none.

    Before ``at`` is the line's beginning with the prefix of the printing process, if it has one.
    """
    line_start = max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
    prefixes = list(_PREFIXED.finditer(data, line_start, at))
    return _read_literal(data[prefixes[-1].start() if prefixes else at :])


def _read_literal(data: bytes) -> dict[str, object] | None:
    undisturbed = _read_undisturbed(data)
    if undisturbed is not None:
        return undisturbed
    owner: str | None = None
    literal = _Literal()
    for tag, text in _pieces(data):
        if owner is None:
            owner = tag
        if tag not in (owner, ""):
            continue
        literal.offer(text)
        if literal.complete:
            return _evaluate(literal.text)
        if literal.size > MAX_TAKEN:
            return None
    return None


def _read_undisturbed(data: bytes) -> dict[str, object] | None:
    """The mapping where no other line of the same process falls between: the ordinary case, much faster."""
    prefix = data[: max(data.find(b"{"), 0)]
    lines: list[bytes] = []
    size = position = 0
    while size < MAX_TAKEN:
        end = data.find(b"\n", position)
        if end < 0:
            break
        if data.startswith(prefix, position):
            line = data[position + len(prefix) : end]
            if (lines and line[:1] != b" ") or len(line) > MAX_LINE:
                break
            lines.append(line)
            size += len(line)
        position = end + 1
    text = b"\n".join(lines).rstrip()
    if not text.endswith(b"}"):
        return None
    plain = _evaluate_plain(text)
    return _evaluate(text.decode("utf-8", "replace")) if plain is None else plain


def _evaluate_plain(text: bytes) -> dict[str, object] | None:
    """The mapping where it is JSON but for its quotes and words, which is read ten times as fast; else None."""
    if b"\\" in text or b'"' in text or b"\0" in text:
        return None
    # Without escapes and other quotes, every second piece lies within a string.
    pieces = text.split(b"'")
    outside = b"\0".join(pieces[::2])
    for word, json_word in ((b"None", b"null"), (b"True", b"true"), (b"False", b"false")):
        outside = outside.replace(word, json_word)
    pieces[::2] = outside.split(b"\0")
    try:
        value = from_json(b'"'.join(pieces), allow_inf_nan=False)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _pieces(data: bytes) -> Iterator[tuple[str, str]]:
    """Each line as (prefix, text); a line to which others are glued is taken apart at their prefixes."""
    for raw in io.BytesIO(data):
        if len(raw) > MAX_LINE:
            continue
        line = _REPEATED.sub("", _ANSI_TEXT.sub("", raw.decode("utf-8", "replace").rstrip("\r\n")))
        parts = _PREFIX_TEXT.split(line)
        if parts[0].strip():
            yield "", parts[0]
        yield from zip(parts[1::2], parts[2::2])


def _evaluate(text: str) -> dict[str, object] | None:
    try:
        with warnings.catch_warnings():
            # A text with a stray backslash would warn about its escapes.
            warnings.simplefilter("ignore")
            value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
    if not isinstance(value, dict):
        return None
    restored = _restore_nan(value) if repr(_NAN)[1:-1] in text else value
    return {str(key): item for key, item in restored.items()} if isinstance(restored, dict) else None


def _restore_nan(value: object) -> object:
    if isinstance(value, dict):
        return {key: _restore_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_restore_nan(item) for item in value]
    return float("nan") if value == _NAN else value


def flatten(config: object, prefix: str = "") -> Iterable[tuple[str, object]]:
    """Each leaf of a nested configuration as (dotted key, value)."""
    if isinstance(config, dict) and config:
        for key, value in config.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, config
