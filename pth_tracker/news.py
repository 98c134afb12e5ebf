"""What is new since the last audit: findings are matched by rule, bug, arms and runs, never by their words."""

from __future__ import annotations

from collections.abc import Sequence

from pth_tracker.findings import Finding, Level
from pth_tracker.model import Audit
from pth_tracker.past import PastAudit, PastFinding, SinceLast


def since_last(audit: Audit, last: PastAudit | None) -> SinceLast:
    """The findings of ``audit`` that fail or warn, sorted by whether ``last`` had them, and those that are gone.

    A finding is an earlier one again if rule and bug are the same, any of the runs, and, where it compares arms, these
    and the claim or key that it is about. On more runs than before, unless it compares arms, or where it failed and
    only warned before, it is new all the same.
    """
    now = [finding for finding in audit.findings if finding.counts and finding.level is not Level.INFO]
    if last is None:
        return SinceLast(None, tuple(now))
    unread = {error.ref.run_id for error in audit.errors}
    unread |= {key for key, run in audit.runs.items() if any(part.run_id in unread for part in run.parts)}
    new: list[Finding] = []
    still_open: list[Finding] = []
    for finding in now:
        before = [past for past in last.findings if _is_again(finding, past)]
        known = {key for past in before for key in past.runs}
        worse = all(past.level.rank > finding.level.rank for past in before)
        grown = not _compares_arms(finding.arms) and not known.issuperset(finding.blames or finding.runs)
        (new if worse or grown else still_open).append(finding)
    gone = [past for past in last.findings if not any(_is_again(finding, past) for finding in audit.findings)]
    unseen = [past for past in gone if unread.intersection(past.runs)]
    left = [past for past in gone if past.runs and past not in unseen and audit.runs.keys().isdisjoint(past.runs)]
    resolved = [past for past in gone if past not in unseen and past not in left]
    return SinceLast(last.audited_at, tuple(new), tuple(still_open), tuple(resolved), tuple(unseen), tuple(left))


def _compares_arms(arms: Sequence[str]) -> bool:
    return len(arms) > 1


def _is_again(finding: Finding, past: PastFinding) -> bool:
    if (finding.rule, finding.tag) != (past.rule, past.tag):
        return False
    arms = sorted(finding.arms) == sorted(past.arms)
    if about_of(finding) != past.about or ((_compares_arms(finding.arms) or _compares_arms(past.arms)) and not arms):
        return False
    if finding.runs and past.runs:
        return not set(finding.runs).isdisjoint(past.runs)
    return not finding.runs and not past.runs and arms


def about_of(finding: Finding) -> str:
    """What a finding is about beside its runs and arms: a claim's text; the key or kind of a difference of arms.

    On single runs it is ``""``: such findings are gathered, and their evidence with them.
    """
    told = finding.evidence.get("claim", "")
    if not told and _compares_arms(finding.arms):
        told = " ".join(str(finding.evidence[name]) for name in ("kind", "key") if name in finding.evidence)
    return str(told)


def untold(news: SinceLast, last: PastAudit | None, target: str) -> tuple[Finding, ...]:
    """The failures of which ``target`` has not been told: new ones, and those whose notification did not reach it."""
    missed = [past for past in last.findings if target in past.owed] if last else []
    late = [finding for finding in news.still_open if any(_is_again(finding, past) for past in missed)]
    return tuple(finding for finding in (*news.new, *late) if finding.level is Level.FAIL)


def remembered(
    audit: Audit, news: SinceLast, last: PastAudit | None, missed: Sequence[str] = ()
) -> tuple[PastFinding, ...]:
    """What the next audit has to know of this one's findings; ``missed``: the targets that could not be reached."""
    due = {target: untold(news, last, target) for target in missed}
    kept = tuple(
        PastFinding(
            finding.rule,
            finding.check,
            finding.level,
            finding.title,
            finding.tag,
            finding.arms,
            finding.runs,
            tuple(audit.label(key) for key in finding.blames or finding.runs),
            tuple(target for target, findings in due.items() if finding in findings),
            about_of(finding),
        )
        for finding in (*news.new, *news.still_open)
    )
    return (*kept, *news.unseen)
