"""Secrets in text: which keys hold them, what they look like, and those of this process's own environment.

Only the standard library is imported, since every message passes through here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final
from urllib.parse import quote, unquote

REDACTED: Final = "(redacted)"
MAX_TEXT: Final = 100_000
"""Characters of one value that are looked through; what is shown of a value is far shorter."""
MAX_KEY: Final = 1_000
"""Characters at the end of a key that are looked through: what a key names stands there."""

_SECRET: Final = re.compile(
    r"(?:^|[./-])(?:\w*(?:api|access|private|secret|wandb|hf|auth)[_-]?key(?:_id)?|\w*secret\w*|\w*passw(?:or)?d\w*"
    r"|wandb[./]key|(?:\w+_)?(?:auth|access|api|hf|hub|bearer|refresh|session|wandb|github|gh|gitlab|slack|tracking)"
    r"[_-]?token|token|credentials?|authorization|(?:openai|anthropic)[_-]?key|passphrase|\w*webhook(?:_url)?)$",
    re.IGNORECASE,
)


def is_secret(key: str, extra: Iterable[str] = ()) -> bool:
    """Whether the value of ``key`` must never be shown; ``extra`` are dotted keys a vocabulary names as secret."""
    return bool(_SECRET.search(key[-MAX_KEY:])) or key in set(extra)


_PASSWORD: Final = re.compile(r"(://[^/@\s:]*):[^/@\s]+@")
_PRINTED: Final = re.compile(
    r"\b(?=\w*(?:key|token|secret|passw(?:or)?d))(\w++=)(?:'[^'\n]*'|\"[^\"\n]*\")", re.IGNORECASE
)
_ASSIGNED: Final = re.compile(
    r"(?<![A-Za-z0-9])(?P<head>[\"']?(?P<key>[A-Za-z][\w.-]{0,80})[\"']?\s{0,3}[=:]\s{0,3}[\"']?)"
    r"(?P<value>[^\s\"'&;,)}\]]{4,})"
)
_OPTION: Final = re.compile(
    r"(?P<head>(?<!\S)--?(?P<key>[A-Za-z][\w.-]{0,80})\s{1,3}[\"']?)(?P<value>(?!-)[^\s\"'&;,)}\]]{4,})"
)
_BEARER: Final = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_FORMS: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|wandb_v1_\w{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
)
"""What begins as the keys of well-known services do."""


def hide_secrets(text: str) -> str:
    """``text`` without what looks like a secret in it.

    These are passwords in addresses, what follows a secret's name in a command line, a query or a printed mapping,
    bearer tokens, and keys in the forms of well-known services.

    >>> hide_secrets("train.py --wandb_key abcdef123 --lr 1e-6 https://me:pw@host/x?token=abc123")
    'train.py --wandb_key (redacted) --lr 1e-6 https://me:(redacted)@host/x?token=(redacted)'
    """
    plain = _PASSWORD.sub(rf"\1:{REDACTED}@", text[:MAX_TEXT]) + text[MAX_TEXT:]
    if "amespace(" in plain:
        plain = _PRINTED.sub(rf"\1{REDACTED}", plain)
    plain = _FORMS.sub(REDACTED, _BEARER.sub(rf"\1 {REDACTED}", plain))
    return _OPTION.sub(_assigned, _ASSIGNED.sub(_assigned, plain))


def _assigned(match: re.Match[str]) -> str:
    kept = match["value"].startswith(("(", "Bearer", "Basic")) or not is_secret(match["key"])
    return match[0] if kept else f"{match['head']}{REDACTED}"


_SHORTEST: Final = 8
"""Characters: shorter values of the environment, and plain words, stand in any text."""


def environment_secrets(environment: Mapping[str, str] | None = None) -> list[str]:
    """The secrets that this process's environment holds (or ``environment``), the longest first, as they may be sent.

    These are the values of variables with a secret's name (``WANDB_API_KEY``, ``MLFLOW_TRACKING_PASSWORD``,
    ``HF_TOKEN``, ``PGPASSWORD``) and the passwords in addresses.
    """
    found: set[str] = set()
    for name, value in (os.environ if environment is None else environment).items():
        if is_secret(name) or name.upper().endswith(("_TOKEN", "PASSWORD", "_KEY", "_SECRET")):
            found.add(value)
        found |= {match[1] for match in re.finditer(r"://[^/@\s:]*:([^/@\s]+)@", value)}
    found = {value for value in found if _is_telling(value)}
    spelt = found.union(*({quote(value, safe=""), unquote(value), escape(value)} for value in found))
    return sorted(spelt, key=len, reverse=True)


def _is_telling(value: str) -> bool:
    """Whether a value is a secret rather than a word or the path of a file that holds one."""
    return len(value) >= _SHORTEST and not (value.isalpha() and value.islower()) and not os.path.exists(value)


def without_environment(text: str, secrets: Iterable[str] | None = None) -> str:
    """``text`` without the secrets of this process's environment; for many texts, ``secrets`` are looked up once."""
    for secret in environment_secrets() if secrets is None else secrets:
        text = text.replace(secret, REDACTED)
    return text
