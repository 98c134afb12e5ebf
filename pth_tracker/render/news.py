"""What is new since the last audit, as text."""

from __future__ import annotations

from collections.abc import Sequence

from pth_tracker.findings import Finding
from pth_tracker.model import Audit
from pth_tracker.past import PastFinding, SinceLast
from pth_tracker.render.text import compact_names, counted, safe_text


def heading(news: SinceLast) -> str:
    """When the last audit was, and what has changed since, in one line."""
    if news.audited_at is None:
        return f"The first audit of this name: {counted(len(news.new), 'finding')} to start from"
    return f"Since the last audit, {news.audited_at:%Y-%m-%d %H:%M %Z}: {in_short(news)}"


def in_short(news: SinceLast) -> str:
    """How many findings are new, still open and gone: ``2 new, 3 still open, 1 resolved``."""
    told = {
        "new": news.new,
        "still open": news.still_open,
        "resolved": news.resolved,
        "not looked at again": news.unseen,
        "of runs no longer selected": news.left,
    }
    return ", ".join(f"{len(some)} {word}" for word, some in told.items() if some) or "no findings"


def lines(audit: Audit) -> list[str]:
    """What is new and what is resolved, one line each; none where all findings are new, or nothing is."""
    news = audit.since_last
    if news is None or news.audited_at is None:
        return []
    told = [f"new {finding.level}: {named(audit, finding)}: {safe_text(finding.title)}" for finding in news.new]
    told += [f"resolved: {_past(past)}: {safe_text(past.title)}" for past in news.resolved]
    return told + [f"not looked at again: {_past(past)}: {safe_text(past.title)}" for past in news.unseen]


def named(audit: Audit, finding: Finding) -> str:
    """A finding in a few words: the bug or the rule, and the runs or arms."""
    runs = [audit.label(key) for key in finding.blames or finding.runs]
    return _short(finding.tag or finding.rule, runs, finding.arms)


def _past(past: PastFinding) -> str:
    return _short(past.tag or past.rule, past.labels, past.arms)


def _short(what: str, runs: Sequence[str], arms: Sequence[str]) -> str:
    where = compact_names(runs or arms, 4)
    return safe_text(what) + (f" on {where}" if where else "")
