from __future__ import annotations

from dataclasses import replace

from example_audits import full_audit, hostile_audit, passed_audit
from pth_tracker.model import Audit
from pth_tracker.past import SinceLast
from pth_tracker.render import news
from pth_tracker.render.terminal import format_audit


def since(audit: Audit) -> SinceLast:
    assert audit.since_last is not None
    return audit.since_last


def test_new_and_resolved_findings_are_named_and_open_ones_counted() -> None:
    audit = full_audit()
    assert news.heading(since(audit)) == (
        "Since the last audit, 2026-02-28 04:30 UTC: 1 new, 1 still open, 1 resolved, 1 not looked at again, "
        "1 of runs no longer selected"
    )
    assert news.lines(audit) == [
        "new fail: Lost Seed on tis-{s42,s43,s44}: one order",
        "resolved: Stuck Batch on replay-s42: 33 updates",
        "not looked at again: Idle Clip on grpo-s45: 0 of 60",
    ]
    text = format_audit(audit, width=200)
    assert all(line in text for line in [news.heading(since(audit)), *news.lines(audit)])


def test_a_first_audit_names_nothing_as_new() -> None:
    audit = full_audit()
    audit.since_last = replace(since(audit), audited_at=None)
    assert (
        news.heading(since(audit)) == "The first audit of this name: 1 finding to start from"
        and news.lines(audit) == []
    )


def test_where_there_is_nothing_that_is_said() -> None:
    assert news.in_short(SinceLast(None)) == "no findings" and news.lines(passed_audit()) == []
    assert "last audit" not in format_audit(passed_audit())


def test_hostile_names_are_harmless() -> None:
    for line in [*news.lines(hostile_audit()), news.heading(since(hostile_audit()))]:
        assert line.isprintable()
