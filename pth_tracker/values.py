"""Configuration values: one canonical form, one equality, one border to JSON.

Trackers spell one value in many ways. W&B keeps ``1e-06`` as a number, MLflow as the text ``"1e-06"``, a list comes
from MLflow as ``key/list_len``, ``key/0`` and so on, and a console log prints Python literals. `canonical_config`
brings all of them to dotted keys and typed values, and every comparison goes through `same_value` (or, where values
are grouped, through `value_key`, which agrees with it).
"""

from __future__ import annotations

import ast
import math
import re
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np

from pth_tracker.namespaces import is_namespace, parse_namespace
from pth_tracker.redaction import REDACTED as REDACTED
from pth_tracker.redaction import hide_secrets as hide_secrets
from pth_tracker.redaction import is_secret as is_secret
from pth_tracker.redaction import without_environment as without_environment

Value: TypeAlias = "None | bool | int | float | str | list[Value] | dict[str, Value]"
"""A configuration value in canonical form."""


class _Missing(Enum):
    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = _Missing.MISSING
"""What an absent key yields: absence is no value, and differs from ``None``."""

Maybe: TypeAlias = "Value | _Missing"

MAX_DEPTH: Final = 64
"""Nesting beyond this depth is kept as text: a real configuration never reaches it, a hostile one may."""
MAX_BITS: Final = 1024
"""A whole number of more bits is kept as text: it is beyond any float64, and Python refuses to print a long one."""
MAX_NAME: Final = 1_000
"""Of a longer name or key (characters) the middle is left out."""
MAX_LITERAL: Final = 10_000
"""Text longer than this (characters) is never parsed as a literal."""

_WORDS: Final[dict[str, Value]] = {
    "None": None,
    "null": None,
    "True": True,
    "true": True,
    "False": False,
    "false": False,
    "nan": math.nan,
    "NaN": math.nan,
    "inf": math.inf,
    "Infinity": math.inf,
    "-inf": -math.inf,
    "-Infinity": -math.inf,
}
_INT: Final = re.compile(r"[-+]?(?:0|[1-9]\d{0,30})")
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]{1,16}(?=>)")
_FLOAT: Final = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d{1,4})?")


def canonical_value(raw: object, _depth: int = 0) -> Value:
    """The typed value that ``raw`` spells.

    Text is read as a Python or JSON scalar where all of it is one (``"None"``, ``"True"``, ``"1e-06"``), and as a
    list or mapping where it is a bracketed literal or a printed namespace. Everything else that is no plain value
    becomes its text, an object's without its place in memory (``<function f at 0x7f3a>``), which is another one at
    every launch.
    """
    if isinstance(raw, bool | np.bool_):
        return bool(raw)
    if raw is None:
        return None
    if isinstance(raw, int):
        return raw if raw.bit_length() <= MAX_BITS else hex(raw)
    if isinstance(raw, float):
        return float(raw)
    if isinstance(raw, np.integer):
        return int(raw)
    if isinstance(raw, np.floating):
        return float(raw)
    if isinstance(raw, str):
        return _parse_text(raw, _depth)
    if _depth >= MAX_DEPTH:
        return "(nested too deeply)"
    if isinstance(raw, Mapping):
        return {_key_text(key): canonical_value(value, _depth + 1) for key, value in raw.items()}
    if isinstance(raw, list | tuple):
        return [canonical_value(item, _depth + 1) for item in raw]
    if isinstance(raw, np.ndarray):
        return [canonical_value(item, _depth + 1) for item in raw.tolist()]
    return _parse_text(str(raw), _depth)


def _key_text(key: object) -> str:
    return hex(key) if isinstance(key, int) and key.bit_length() > MAX_BITS else str(key)


def _parse_text(text: str, depth: int) -> Value:
    bare = text.strip()
    if bare in _WORDS:
        return _WORDS[bare]
    if _INT.fullmatch(bare):
        return int(bare)
    if _FLOAT.fullmatch(bare):
        return float(bare)
    if bare[:1] + bare[-1:] in ("[]", "()", "{}") and len(bare) <= MAX_LITERAL:
        try:
            literal = ast.literal_eval(bare)
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return text
        if isinstance(literal, list | tuple | dict):
            return canonical_value(literal, depth + 1)
    if bare[-1:] == ")" and is_namespace(bare):
        settings = parse_namespace(bare)
        return text if settings is None else canonical_value(settings, depth + 1)
    return _ADDRESS.sub("", text) if bare[:1] + bare[-1:] == "<>" else text


def unwrap_wandb(raw: Mapping[str, object]) -> dict[str, object]:
    """W&B's stored configuration without its ``{"value": ..., "desc": ...}`` wrappers and its ``_wandb`` entry.

    Only the outermost level is unwrapped, once: a user's own nested key named ``value`` stays as it is.
    """
    plain: dict[str, object] = {}
    for key, entry in raw.items():
        if key in ("_wandb", "wandb_version"):
            continue
        wrapped = isinstance(entry, Mapping) and "value" in entry and set(entry) <= {"value", "desc"}
        plain[key] = entry["value"] if wrapped and isinstance(entry, Mapping) else entry
    return plain


def canonical_config(raw: Mapping[str, object]) -> dict[str, Value]:
    """A configuration as dotted keys and canonical values.

    Nested mappings are flattened; ``/`` in a key counts as a separator, since MLflow's flattened keys cannot be told
    from it; ``key/list_len`` with ``key/0``, ``key/1`` ... becomes one list. An empty mapping stays a value.
    """
    flat = dict(_flatten({_key_text(key): canonical_value(value) for key, value in raw.items()}))
    _assemble_lists(flat)
    return flat


def _flatten(nested: Mapping[str, Value], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in nested.items():
        name = f"{prefix}{key}".replace("/", ".")
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{name}.")
        else:
            yield cut(name, MAX_NAME), value


def _assemble_lists(flat: dict[str, Value]) -> None:
    lengths = [key for key in flat if key.endswith(".list_len") and key.count(".") <= MAX_DEPTH]
    stems = [key.removesuffix(".list_len") for key in sorted(lengths, key=lambda key: -key.count("."))]
    places = {key: place for place, key in enumerate((*flat, *stems))}
    ordered = sorted(places) if stems else []
    for stem in stems:
        # What begins with "stem." stands together in sorted order, up to the character after the dot.
        below = ordered[bisect_left(ordered, f"{stem}.") : bisect_left(ordered, f"{stem}/")]
        members = [key for key in below if key in flat and key != f"{stem}.list_len"]
        _assemble_list(flat, stem, sorted(members, key=places.__getitem__))


def _assemble_list(flat: dict[str, Value], stem: str, members: list[str]) -> None:
    length = flat.get(f"{stem}.list_len")
    if isinstance(length, bool) or not isinstance(length, int) or length < 0 or length > len(members):
        return
    nested: dict[str, dict[str, Value]] = {}
    for key in members:
        index, dot, rest = key[len(stem) + 1 :].partition(".")
        if dot:
            nested.setdefault(index, {})[rest] = flat[key]
    items: list[Value] = []
    for index in map(str, range(length)):
        if f"{stem}.{index}" in flat:
            items.append(flat[f"{stem}.{index}"])
        elif index in nested:
            items.append(_nest(nested[index]))
        else:
            return
    indices = set(map(str, range(length)))
    for key in [*members, f"{stem}.list_len"]:
        if key.endswith(".list_len") or key[len(stem) + 1 :].split(".", 1)[0] in indices:
            flat.pop(key, None)
    flat[stem] = items


def _nest(flat: Mapping[str, Value]) -> dict[str, Value]:
    nested: dict[str, Value] = {}
    for key, value in flat.items():
        *path, leaf = key.split(".") if key.count(".") <= MAX_DEPTH else [key]
        place = nested
        for part in path:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                inner = place[part] = {}
            place = inner
        place[leaf] = value
    return nested


def value_key(value: Maybe) -> Hashable:
    """A hashable key, equal for two values exactly when `same_value` says that they are the same."""
    if value is MISSING:
        return ("missing",)
    if value is None:
        return ("none",)
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int | float):
        return ("nan",) if value != value else ("number", value)
    if isinstance(value, str):
        return ("text", value)
    if isinstance(value, list):
        return ("list", tuple(value_key(item) for item in value))
    return ("mapping", frozenset((key, value_key(item)) for key, item in value.items()))


def same_value(left: Maybe, right: Maybe) -> bool:
    """Whether two canonical values are the same setting.

    A bool is no int, ``1 == 1.0``, NaN equals NaN, lists and mappings are compared by value, and a missing key is the
    same only as a missing key.
    """
    return value_key(left) == value_key(right)


def all_same(values: Iterable[Maybe]) -> bool:
    """Whether all ``values`` are one setting (true of none at all)."""
    return len({value_key(value) for value in values}) <= 1


def identity_text(value: Maybe) -> str:
    """All of a value as text by which runs are told apart: equal for numbers that are equal, nothing left out."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return cut(value if isinstance(value, str) else repr(value), MAX_LITERAL) if value is not MISSING else "(absent)"


def show_value(value: Maybe, limit: int = 60) -> str:
    """A value as short text for a person: ``(absent)`` where missing, text bare, the middle of long text left out.

    Secrets within it are redacted: values of secret keys of a mapping, passwords in addresses.
    """
    plain = "(absent)" if value is MISSING else without_secrets(value)
    return cut(plain if isinstance(plain, str) else repr(plain), limit)


def cut(text: str, limit: int) -> str:
    """``text`` with its middle left out where it has more than ``limit`` characters."""
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-(limit // 2 - 3) :]}"


def listed(texts: Iterable[str], most: int = 8) -> str:
    """The texts in a row, and how many there are beyond the first ``most``.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    every = list(texts)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def without_secrets(value: Value) -> Value:
    """``value`` without the secrets within it: values of secret keys, and what looks like a secret in text."""
    if isinstance(value, dict):
        return {key: REDACTED if is_secret(key) else without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    return hide_secrets(value) if isinstance(value, str) else value


def to_json_value(value: Any) -> Any:
    """``value`` as strict JSON data: non-finite numbers as text, NumPy as Python, tuples and sets as lists."""
    if isinstance(value, Enum):
        return "missing" if value is MISSING else to_json_value(value.value)
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, np.integer | int):
        return int(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isfinite(number):
            return number
        return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return to_json_value(value.tolist())
    if isinstance(value, frozenset | set):
        return sorted((to_json_value(item) for item in value), key=repr)
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in value]
    return str(value)
