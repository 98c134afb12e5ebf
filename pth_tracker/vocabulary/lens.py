"""A configuration as vocabularies see it, and the seed that takes effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pth_tracker.values import MISSING, Maybe, Value, show_value

MAX_NUMBER: Final = 1e15
"""No setting that is counted with is larger; beyond it, numbers are taken as not given."""


def release(version: str | None) -> tuple[int, ...]:
    """A release as a tuple that compares; an unknown one compares below all."""
    parts = []
    for part in (version or "").split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


@dataclass(frozen=True)
class Lens:
    """A configuration as vocabulary functions see it."""

    config: Mapping[str, Value]
    version: str | None = None
    roles: Mapping[str, Any] = field(default_factory=dict)
    """The roles read so far."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A key to the names it had in other releases, which are looked up where it is absent."""

    def cfg(self, key: str, default: Any = None) -> Any:
        """The value at ``key``, or ``default`` where it is absent or None."""
        value = self.get(key)
        return default if value is None or value is MISSING else value

    def get(self, key: str) -> Maybe:
        """The value at ``key``, or `MISSING`."""
        return next((self.config[name] for name in self.names(key) if name in self.config), MISSING)

    def names(self, key: str) -> tuple[str, ...]:
        """``key`` and the names it had in other releases."""
        return (key, *self.aliases.get(key, ()))

    def has(self, prefix: str) -> bool:
        """Whether any key is ``prefix`` or lies below it."""
        below = f"{prefix}."
        return prefix in self.config or any(key.startswith(below) for key in self.config)

    def number(self, key: str, default: float | None = None) -> float | None:
        """The value at ``key`` where it is a finite number (no bool), else ``default``."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
            return default
        return float(value)

    def at_least(self, version: str) -> bool:
        """Whether the release is known and at least ``version``."""
        own = release(self.version)
        return bool(own) and own >= release(version)


@dataclass(frozen=True)
class EffectiveSeed:
    """What orders one run's training data, as it takes effect."""

    order: str | None = None
    """The order's identity in words (``43``, ``the default order``); None: nothing controls it, or it is unknown."""
    acts: bool = False
    """Whether another seed would have given another order."""
    given: Maybe = MISSING
    """The value of the configuration's data seed."""
    key: str = ""
    """The key that holds it, or would."""
    why: str = ""
    """Why the seed does not act, where it does not."""
    uncontrolled: bool = False
    """Whether it is known that no seed controls the order: it is another one at every launch."""


def seed_text(value: Maybe) -> str:
    """A seed as text: ``43`` for 43 and 43.0 alike."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return show_value(value)
