"""Moments as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from pth_tracker.errors import UsageError

_AGO: Final = re.compile(r"(\d{1,6})\s*([wdh])")
_HOURS: Final = {"w": 7 * 24, "d": 24, "h": 1}


def parse_since(text: str, now: datetime | None = None, *, key: str = "--since") -> datetime | None:
    """The moment that the option or entry ``key`` names, aware; None where it is empty.

    Raises:
        UsageError: it is neither a span such as ``7d`` or ``12h`` nor an ISO date or time.
    """
    if not text:
        return None
    span = _AGO.fullmatch(text.strip())
    try:
        if span:
            return (now or datetime.now(UTC)) - timedelta(hours=int(span[1]) * _HOURS[span[2]])
        moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        raise UsageError(
            f"{key} {text!r} is no moment: give a span (7d, 12h, 2w) or an ISO date or time (2026-03-01)"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
