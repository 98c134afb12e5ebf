"""Text that Python prints for a namespace, ``namespace(a=1, b=namespace(c='x'))``, as the settings it spells.

OpenRLHF logs its configuration this way. The text is hostile: it is parsed, never run, and everything in it that is
no literal stays text.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

MAX_TEXT: Final = 100_000
"""Longer text (characters) is not parsed."""
_NAMESPACE: Final = re.compile(r"\s*(?:types\.SimpleNamespace|SimpleNamespace|[nN]amespace)\(.*\)\s*\Z", re.DOTALL)
_TEXT_OR_OBJECT: Final = re.compile(
    r"(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|<(?:[^<>'\"]|'[^'\n]{0,200}'){1,300}>", re.DOTALL
)
"""Quoted text, or what Python prints for an object without a literal: ``<class 'int'>``, ``<LossType.PPO: 1>``."""
_NAMES: Final = frozenset({"namespace", "Namespace", "SimpleNamespace"})


def is_namespace(text: str) -> bool:
    """Whether ``text`` looks like a printed namespace."""
    return bool(_NAMESPACE.match(text))


def parse_namespace(text: str) -> dict[str, Any] | None:
    """The settings that a printed namespace spells, nested ones as mappings; None where it is none.

    >>> parse_namespace("namespace(lr=1e-06, vllm=namespace(tp=2), betas=(0.9, 0.95))")
    {'lr': 1e-06, 'vllm': {'tp': 2}, 'betas': (0.9, 0.95)}
    """
    if len(text) > MAX_TEXT or not is_namespace(text):
        return None
    try:
        quoted = _TEXT_OR_OBJECT.sub(lambda match: match["text"] or repr(match[0]), text.strip())
        tree = ast.parse(quoted, mode="eval")
        read = _value(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return None
    return read if isinstance(read, dict) else None


def _value(node: ast.expr) -> Any:
    """The value of a parsed literal or namespace.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name not in _NAMES or node.args:
            return ast.unparse(node)
        return {keyword.arg: _value(keyword.value) for keyword in node.keywords if keyword.arg}
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return {ast.literal_eval(key): _value(item) for key, item in zip(node.keys, node.values) if key is not None}
    if isinstance(node, ast.Name):
        return {"inf": float("inf"), "nan": float("nan")}.get(node.id, node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
