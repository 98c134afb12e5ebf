"""Audits that have been, as far as later ones need them: what was found, what was published, what is new since."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from pth_tracker.findings import Finding, Level
from pth_tracker.values import to_json_value


@dataclass(frozen=True)
class PastFinding:
    """One finding, fail or warn, of a past audit."""

    rule: str
    check: int
    level: Level
    title: str
    tag: str = ""
    arms: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    """Keys of the runs involved."""
    labels: tuple[str, ...] = ()
    """The names then shown for those that it blames, or for all where it blames none."""
    owed: tuple[str, ...] = ()
    """The targets, as they are called, that a notification of it did not reach."""
    about: str = ""
    """What tells it from others of its rule on the same arms: the claim, the key, the kind of difference."""


@dataclass(frozen=True)
class PastAudit:
    """One past audit."""

    configuration: str
    """Equal for audits of the same runs under one name: name, tracker, project, filters and rules."""
    project: str
    tracker: str
    """The address, without credentials."""
    audited_at: datetime
    name: str = ""
    """What the configuration calls it."""
    selection: str = ""
    """The filters, as shown; ``""``: all runs and rules."""
    version: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    """As `pth_tracker.model.Audit.counts`, with ``new`` and ``resolved``."""
    findings: tuple[PastFinding, ...] = ()
    """Those that count, and those of runs that could not be looked at again."""
    published: str = ""
    """Where the audit run is; ``""``: none was written."""
    published_at: datetime | None = None
    publication: str = ""
    """A hash of what was published."""

    def to_text(self) -> str:
        """This audit as JSON."""
        return json.dumps(to_json_value(asdict(self)), allow_nan=False)

    @classmethod
    def from_text(cls, text: str) -> PastAudit:
        """The audit that `to_text` wrote.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it is no such text.
        """
        data = json.loads(text)
        findings = tuple(_finding(one) for one in data["findings"])
        moments = {
            name: datetime.fromisoformat(data[name]) if data[name] else None for name in ("audited_at", "published_at")
        }
        return cls(**{**data, **moments, "findings": findings})


def _finding(data: Mapping[str, Any]) -> PastFinding:
    lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
    return PastFinding(**{**data, **lists, "level": Level(data["level"])})


@dataclass(frozen=True)
class SinceLast:
    """What an audit finds beside the last one of the same configuration; findings that fail or warn."""

    audited_at: datetime | None
    """When the last one was; None: this is the first, and everything is new."""
    new: tuple[Finding, ...] = ()
    """Not found before, or on more runs, or worse."""
    still_open: tuple[Finding, ...] = ()
    resolved: tuple[PastFinding, ...] = ()
    unseen: tuple[PastFinding, ...] = ()
    """Found before on runs that could not be read this time."""
    left: tuple[PastFinding, ...] = ()
    """Found before on runs that are no longer there or no longer selected."""
