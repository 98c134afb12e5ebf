from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pth_tracker.findings import Finding, Level
from pth_tracker.model import Audit, AuditedRun
from pth_tracker.news import remembered, since_last, untold
from pth_tracker.past import PastAudit, PastFinding, SinceLast
from pth_tracker.runs import RunError, RunRef

WHEN = datetime(2026, 3, 1, tzinfo=UTC)
ALL = ("r1", "r2", "r3", "r4")


def finding(
    rule: str = "idle-clip", runs: tuple[str, ...] = ("r1", "r2"), level: Level = Level.FAIL, **facts: Any
) -> Finding:
    return Finding(1, level, facts.pop("title", "t"), rule=rule, runs=runs, blames=runs, **facts)


def audit(*findings: Finding, runs: tuple[str, ...] = ALL, unread: tuple[str, ...] = ()) -> Audit:
    listed = {key: AuditedRun(key, f"run-{key}", key, (RunRef("p", key),), "finished", "verl") for key in runs}
    errors = [RunError(RunRef("p", key), key, "gone") for key in unread]
    return Audit(findings=list(findings), runs=listed, errors=errors, audited_at=WHEN)


def past(*findings: Finding, last: PastAudit | None = None, missed: tuple[str, ...] = ()) -> PastAudit:
    before = audit(*findings)
    news = since_last(before, last)
    return PastAudit("c", "p", "t", WHEN, findings=remembered(before, news, last, missed))


def names(news: SinceLast) -> dict[str, list[str]]:
    kinds: dict[str, tuple[Finding | PastFinding, ...]] = {"new": news.new, "open": news.still_open}
    kinds |= {"resolved": news.resolved, "unseen": news.unseen, "left": news.left}
    return {kind: [one.rule for one in some] for kind, some in kinds.items() if some}


def told(before: tuple[Finding, ...], now: Audit) -> dict[str, list[str]]:
    return names(since_last(now, past(*before)))


def test_at_first_everything_is_new_but_information_and_what_does_not_count() -> None:
    news = since_last(
        audit(
            finding(), finding("a", level=Level.INFO), finding("b", because_of="idle-clip"), finding("c", ignored="x")
        ),
        None,
    )
    assert names(news) == {"new": ["idle-clip"]} and news.audited_at is None


def test_the_same_finding_in_other_words_or_on_fewer_runs_is_still_open() -> None:
    assert told((finding(),), audit(finding(title="33 of 100"))) == {"open": ["idle-clip"]}
    assert told((finding(),), audit(finding(runs=("r2",)))) == {"open": ["idle-clip"]}
    assert told((finding(runs=("r1", "r2"), arms=("a",)),), audit(finding(runs=("r2", "r1"), arms=("b",)))) == {
        "open": ["idle-clip"]
    }


def test_another_rule_bug_or_run_is_new_and_what_is_gone_is_resolved() -> None:
    both = {"new": ["idle-clip"], "resolved": ["idle-clip"]}
    assert told((finding(),), audit(finding("lost-seed"))) == {"new": ["lost-seed"], "resolved": ["idle-clip"]}
    assert told((finding(),), audit(finding(tag="Idle Clip"))) == both
    assert told((finding(),), audit(finding(runs=("r3",)))) == both
    assert told((finding(),), audit()) == {"resolved": ["idle-clip"]}


def test_a_finding_that_reaches_another_run_is_new_and_nothing_is_resolved() -> None:
    assert told((finding(),), audit(finding(runs=("r1", "r2", "r3")))) == {"new": ["idle-clip"]}


def test_a_comparison_of_arms_is_the_same_however_many_runs_join() -> None:
    before = finding("paired", ("r1", "r2"), Level.WARN, arms=("a", "b"))
    assert told((before,), audit(finding("paired", ALL, Level.WARN, arms=("b", "a")))) == {"open": ["paired"]}
    assert told((before,), audit(finding("paired", ALL, Level.WARN, arms=("a", "c")))) == {
        "new": ["paired"], "resolved": ["paired"]
    }  # fmt: skip


def test_a_warning_that_fails_is_new_and_a_failure_that_warns_is_open() -> None:
    warned = finding(level=Level.WARN)
    assert told((warned,), audit(finding())) == {"new": ["idle-clip"]}
    assert told((finding(),), audit(warned)) == {"open": ["idle-clip"]}


def test_two_findings_of_one_rule_on_one_arm_are_told_apart_by_their_runs() -> None:
    one, other = finding(runs=("r1",), arms=("a",)), finding(runs=("r2",), arms=("a",))
    assert told((one,), audit(one, other)) == {"new": ["idle-clip"], "open": ["idle-clip"]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"claim": "TIS is stable"}, {"claim": "TIS is better"}),
        ({"kind": "seed"}, {"kind": "field"}),
        ({"key": "clip_low"}, {"key": "clip_high"}),
    ],
)
def test_two_findings_of_one_rule_on_the_same_arms_are_told_apart_by_what_they_are_about(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    first, second = (finding("r", arms=("a", "b"), evidence=evidence) for evidence in (one, other))
    assert told((first,), audit(first, second)) == {"new": ["r"], "open": ["r"]}
    assert told((first, second), audit(second)) == {"open": ["r"], "resolved": ["r"]}
    last = past(first)
    (due,) = untold(since_last(audit(first, second), last), last, "slack")
    assert due is second


def test_a_claim_on_one_arm_is_another_than_the_claim_beside_it_and_its_numbers_do_not_matter() -> None:
    first, second = (finding("c", arms=("a",), evidence={"claim": text, "drop": 0.1}) for text in ("x", "y"))
    assert told((first,), audit(second)) == {"new": ["c"], "resolved": ["c"]}
    assert told((first,), audit(finding("c", arms=("a",), evidence={"claim": "x", "drop": 0.2}))) == {"open": ["c"]}


def test_a_comparison_of_the_same_arms_on_other_runs_is_another_one() -> None:
    at_64, at_96 = finding("p", ("r1", "r2"), arms=("a", "b")), finding("p", ("r3", "r4"), arms=("a", "b"))
    assert told((at_64,), audit(at_64, at_96)) == {"new": ["p"], "open": ["p"]}


def test_a_finding_on_runs_is_the_same_whether_its_evidence_is_of_one_run_or_gathered_from_several() -> None:
    alone = finding("u", ("r1",), arms=("a",), evidence={"kind": "field"})
    gathered = finding("u", ("r1", "r2"), arms=("a",), evidence={"run-r1": {"kind": "field"}, "run-r2": {}})
    assert told((gathered,), audit(alone)) == {"open": ["u"]}


def test_what_is_ignored_or_explained_now_is_not_called_resolved() -> None:
    assert told((finding(),), audit(finding(ignored="on purpose"))) == {}
    assert told((finding(),), audit(finding(because_of="lost-seed"))) == {}


def test_runs_that_cannot_be_read_resolve_nothing_and_are_remembered() -> None:
    last = past(finding())
    today = audit(unread=("r1",))
    news = since_last(today, last)
    assert names(news) == {"unseen": ["idle-clip"]}
    kept = PastAudit("c", "p", "t", WHEN, findings=remembered(today, news, last))
    assert names(since_last(audit(finding()), kept)) == {"open": ["idle-clip"]}


def test_runs_that_left_resolve_nothing() -> None:
    assert told((finding(),), audit(runs=("r3",))) == {"left": ["idle-clip"]}


def test_only_new_failures_are_due_and_those_whose_message_failed() -> None:
    one, other = finding(), finding("lost-seed", level=Level.WARN)
    first = since_last(audit(one, other), None)
    assert [due.rule for due in untold(first, None, "slack")] == ["idle-clip"]
    quiet = past(one, other, missed=("slack",))
    again = since_last(audit(one, other), quiet)
    assert again.new == () and [due.rule for due in untold(again, quiet, "slack")] == ["idle-clip"]
    assert untold(again, quiet, "mail") == (), "it was reached"
    sent = past(one, other, last=quiet)
    assert untold(since_last(audit(one, other), sent), sent, "slack") == ()
    assert [one.labels for one in sent.findings] == [("run-r1", "run-r2")] * 2
