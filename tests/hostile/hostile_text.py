"""What a tracker may hold when somebody means it: the names, values and metric keys of the hostile-input tests."""

from __future__ import annotations

import math
from typing import Any, Final

MEGABYTE: Final = 1 << 20
NAMES: Final[dict[str, str]] = {
    "control": "\x00\x07\x1b[2J\x1b]0;owned\x07\x9b31m\r\n\x7f",
    "bidi": "safe\u202egnp.exe\u2066\u200f\u061c",
    "separators": "a\u2028b\u2029c\x85d\x0be\x0cf",
    "surrogates": "\ud800x\udfff\udc80",
    "noncharacters": "\ufffe\uffff\U0010ffff\ue000",
    "markup": "[red]x[/red] <script>alert(1)</script> {{ 7*7 }} ]]> &lt; ${x}",
    "formula": '=HYPERLINK("https://evil.example";"x")',
    "megabyte": "m" * MEGABYTE,
    "word": "key_token" * 20_000,
    "zalgo": "a" + "\u0301" * 5_000,
    "digits": "9" * 5_000,
    "spaces": " \t " * 1_000,
    "empty": "",
}
"""By what is wrong with them."""


def nested(depth: int, *, of_lists: bool = False) -> Any:
    """A value nested ``depth`` deep."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if of_lists else {"a": value}
    return value


def doubled(levels: int) -> Any:
    """A list that holds one list twice, which holds one twice: 2**levels values in little memory."""
    value: Any = ["x"]
    for _ in range(levels):
        value = [value, value]
    return value


VALUES: Final[dict[str, Any]] = {
    "deep mapping": nested(10_000),
    "deep list": nested(10_000, of_lists=True),
    "deep text": "[" * 4_000 + "]" * 4_000,
    "deep signs": "[" + "-" * 9_000 + "1]",
    "deep namespace": "Namespace(" + "a=Namespace(" * 800 + ")" * 801,
    "huge integer": 1 << 20_000,
    "huge integer as text": "9" * 5_000,
    "huge hexadecimal in a list": "[0x" + "f" * 9_000 + "]",
    "huge key": {1 << 20_000: 1},
    "number as text": "0.10",
    "boolean": True,
    "NaN": math.nan,
    "infinity": -math.inf,
    "NaN key": {math.nan: 1, "nan": 2, None: 3},
    "one key twice": {"a.b": 1, "a": {"b": 2}, "a/b": 3},
    "megabyte": "v" * MEGABYTE,
    "many in a list": list(range(20_000)),
    "lists by their lengths": {f"k{number}": {"list_len": 0} for number in range(5_000)},
    "one list in pieces": {"list_len": 5_000, **{str(number): number for number in range(5_000)}},
    "deep list in pieces": {"list_len": 1, "0/" + "a/" * 20_000 + "x": 1},
    "secret word": "Namespace(" + "key" * 20_000,
    "YAML bomb": "[&a0 [x], " + ", ".join(f"&a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(20)) + "]",
    "surrogates": "\ud800",
    "bytes": b"\xff\x00",
    "object": object(),
}  # fmt: skip
"""Configuration values by what is wrong with them."""
