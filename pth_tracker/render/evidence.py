"""Evidence as strict JSON data: finite, valid Unicode, and without the values of secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pth_tracker.values import REDACTED, is_secret, to_json_value


def plain_json(data: Any) -> Any:
    """``data`` as strict JSON data of valid Unicode: non-finite numbers as text, NumPy as Python."""
    if isinstance(data, str) and type(data) is str:
        return data.encode("utf-8", "replace").decode("utf-8")
    if isinstance(data, Mapping):
        return {plain_json(str(key)): plain_json(value) for key, value in data.items()}
    plain = data if isinstance(data, list | tuple) else to_json_value(data)
    return [plain_json(item) for item in plain] if isinstance(plain, list | tuple) else plain


def redacted(evidence: Any, secret: bool = False) -> Any:
    """``evidence`` as strict JSON data in which no text that belongs to a secret key is left.

    A mapping whose ``key`` or ``field`` names a secret loses the texts of its other entries too; numbers stay.
    """
    plain = plain_json(evidence)
    if isinstance(plain, dict):
        named = any(is_secret(str(plain.get(name, ""))) for name in ("key", "field"))
        return {
            key: redacted(value, secret or is_secret(key) or (named and key not in ("key", "field")))
            for key, value in plain.items()
        }
    if isinstance(plain, list):
        return [redacted(item, secret) for item in plain]
    return REDACTED if secret and isinstance(plain, str) else plain
