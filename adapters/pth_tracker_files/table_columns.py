"""Which column of a table is which, as the user names them."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

from pth_tracker.errors import UsageError


@dataclass(frozen=True)
class TableColumns:
    """Which column is which, by its name in the header; None: told from the names."""

    method: str | None = None
    seed: str | None = None
    value: str | None = None
    step: str | None = None
    task: str | None = None

    @classmethod
    def parse(cls, text: str) -> TableColumns:
        """The columns that ``step=STEP,seed=SEED,arm=METHOD`` names; ``arm`` is another word for ``method``.

        A comma belongs to a name unless a role follows it.

        Raises:
            UsageError: a part names no role or no column, or a role is named twice.
        """
        named: dict[str, str] = {}
        for part in _PARTS.split(text):
            role, equals, name = part.partition("=")
            role = {"arm": "method"}.get(role.strip(), role.strip())
            if role not in ROLES or not equals or not name.strip():
                raise UsageError(f"--columns takes step=NAME, seed=NAME, arm=NAME, task=NAME, value=NAME; got {part!r}")
            if role in named:
                raise UsageError(f"--columns names the column of {role!r} twice: {named[role]!r} and {name.strip()!r}")
            named[role] = name.strip()
        return cls(**named)


ROLES: Final = tuple(field.name for field in fields(TableColumns))
_PARTS: Final = re.compile(rf",(?=\s*(?:arm|{'|'.join(ROLES)})\s*=)")
