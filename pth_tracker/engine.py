"""The one pipeline: list, infer, examine, compare, settle. Only this module sees everything."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pth_tracker import __version__
from pth_tracker.bounds import bounded
from pth_tracker.compare import compare, judge_claims
from pth_tracker.depict import depict
from pth_tracker.design.comparison import Comparison, Member
from pth_tracker.design.expectations import OfQuantity
from pth_tracker.design.infer import infer
from pth_tracker.design.jobs import tell_apart
from pth_tracker.design.schema import Design
from pth_tracker.design.stitch import label, recognise_segments, stitch
from pth_tracker.errors import EXIT_PRIORITY, ExitCode, NothingSelected
from pth_tracker.examine import CURVES, Examination, Unit, units_of
from pth_tracker.forked import examine_forked
from pth_tracker.model import Audit, AuditedRun, Coverage, Finding, Level, Outcome, Plan, Rule, Scope, Verdict
from pth_tracker.policy import apply_policy, gather, selected_rules
from pth_tracker.runs import Run, RunError, RunRef
from pth_tracker.tracker import Query, Tracker
from pth_tracker.values import listed
from pth_tracker.vocabulary.detect import GENERIC
from pth_tracker.vocabulary.load import Vocabulary, load_vocabulary

if TYPE_CHECKING:
    from pth_tracker.cache import Cache

PROGRESSED: Final = 0.9
"""The share of its arm's median last update that a run has to reach to count."""
STABLE_RANGE: Final = 5
"""The check whose rules ask for collapses."""
BATCH: Final = 200
"""Runs examined at a time."""
SHOWN: Final = 8
"""Runs that a note names."""

Progress = Callable[[str, int, int], None]
"""``progress(stage, done, total)``."""
Examiner = Callable[[Tracker, Sequence[Unit], Plan], Iterator[Examination | RunError]]
"""Who examines runs: this process, its forks, or workers elsewhere."""


@dataclass(frozen=True)
class Options:
    """What to audit, and how."""

    project: str = ""
    design: Design | None = None
    where: str = ""
    since: datetime | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    vocabularies: tuple[Path, ...] = ()
    list_marks: bool = False
    """Whether the listing should tell our own marks, so that none have to be read for runs that keep theirs."""


def audit(
    tracker: Tracker,
    options: Options,
    *,
    chosen: str = "",
    progress: Progress | None = None,
    cache: Cache | None = None,
    examiner: Examiner = examine_forked,
) -> Audit:
    """Audits one project of ``tracker``; reads only.

    Runs whose examination is in ``cache`` are not read; the others are examined by ``examiner`` and kept there.

    Raises:
        UsageError: a design, rule or vocabulary that cannot be used, or no such project.
        NothingSelected: the project has no run that the query selects.
        TrackerError: the tracker failed as a whole.
    """
    tell = progress or (lambda stage, done, total: None)
    rules = selected_rules(options.design, options.select, options.ignore)
    vocabulary = load_vocabulary(options.vocabularies)
    tell("listing runs", 0, 0)
    listed = tracker.runs(Query(options.project, options.where, options.since, options.list_marks))
    sources = [bounded(run) for run in listed]
    if not sources:
        raise NothingSelected(_nothing(options, tracker))
    runs = stitch(vocabulary, sources)
    comparison = infer(vocabulary, runs, options.design)
    plan = _plan(rules, comparison, options)
    judged = [member.run for member in comparison.members if not member.aside]
    results, errors = _examine_all(tracker, judged, plan, tell, cache, examiner)
    while any(result.restart_at is not None for result in results.values()):
        runs, again = _split_restarts(vocabulary, runs, results)
        results = {key: result for key, result in results.items() if result.restart_at is None}
        comparison = infer(vocabulary, runs, options.design)
        plan = _plan(rules, comparison, options)
        more, more_errors = _examine_all(tracker, again, plan, tell, cache, examiner)
        results |= more
        errors += more_errors
    comparison = _with_results(comparison, results, {error.ref for error in errors})
    tell("comparing", 0, 0)
    report = _settle(tracker, options, chosen, rules, vocabulary, comparison, errors)
    report.listed_marks = {source.ref: source.marks for source in sources if source.marks is not None}
    return report


def _nothing(options: Options, tracker: Tracker) -> str:
    place = f"the project {options.project!r}" if options.project else str(tracker.address)
    narrowed = [name for name, value in (("--where", options.where), ("--since", options.since)) if value]
    return f"{place} has no run" + (f" that {' and '.join(narrowed)} selects: widen it" if narrowed else " to audit")


def _plan(rules: Sequence[Rule], comparison: Comparison, options: Options) -> Plan:
    known = load_vocabulary(options.vocabularies).quantities
    wanted = {name for rule in rules for name in (*rule.names, *rule.reads) if name in known} | set(CURVES)
    claimed = {one.expect.quantity for one in comparison.design.claims if isinstance(one.expect, OfQuantity)}
    wanted |= claimed.intersection(known)
    for member in comparison.members:
        wanted |= set(member.reading.framework.witness)
    settings = comparison.design.rules
    metric = comparison.design.metric
    at: str | int = "last"
    if metric:
        at = metric.at if isinstance(metric.at, str) else metric.at.mean_over
    return Plan(
        rules=tuple(rule.slug for rule in rules if rule.scope is Scope.RUN),
        quantities=tuple(sorted(wanted)),
        metric=comparison.in_force.metric,
        higher_is_better=comparison.in_force.higher_is_better,
        at=at,
        kl_tolerance=settings.kl_tolerance,
        stress=comparison.design.stress.key if comparison.design.stress else "",
        age=comparison.design.age.expected if comparison.design.age else "",
        batch_uses=comparison.design.batches.uses,
        benchmarks=tuple(comparison.design.benchmarks.items()),
        metrics=tuple(sorted(claimed.difference(known))),
        collapses=any(rule.check == STABLE_RANGE for rule in rules),
        figures=tuple(sorted(claimed.intersection(known).union(*(rule.figures for rule in rules)))),
        vocabularies=options.vocabularies,
    )


def _examine_all(
    tracker: Tracker, runs: Sequence[Run], plan: Plan, tell: Progress, cache: Cache | None, examiner: Examiner
) -> tuple[dict[str, Examination], list[RunError]]:
    units = {unit.run.key: unit for unit in units_of(runs, plan)}
    results = cache.found(tracker.address, list(units.values()), plan) if cache else {}
    errors: list[RunError] = []
    unknown = [unit for key, unit in units.items() if key not in results]
    for start in range(0, len(unknown), BATCH):
        for result in examiner(tracker, unknown[start : start + BATCH], plan):
            if isinstance(result, RunError):
                errors.append(result)
            else:
                results[result.run_key] = result
                if cache:
                    cache.keep(tracker.address, units[result.run_key], plan, result)
            tell("reading histories", len(results) + len(errors), len(units))
    return results, errors


def _split_restarts(
    vocabulary: Vocabulary, runs: Sequence[Run], results: dict[str, Examination]
) -> tuple[list[Run], list[Run]]:
    """All runs, the restarted ones cut in two where they start over, and those that have to be examined again."""
    split: list[Run] = []
    again: set[str] = set()
    for run in runs:
        cut = results[run.key].restart_at if run.key in results else None
        for piece in [run.segments] if cut is None else [run.segments[:cut], run.segments[cut:]]:
            own = recognise_segments(vocabulary, piece, common_name=run.common_name)
            split.append(own)
            if cut is not None:
                again.add(own.key)
    labelled = label(tell_apart(vocabulary, split))
    return labelled, [run for run in labelled if run.key in again]


def _with_results(comparison: Comparison, results: dict[str, Examination], errors: set[RunRef]) -> Comparison:
    """The comparison with each member's examination, and whether the comparisons count it."""
    arms: dict[str, list[int]] = {}
    for member in comparison.members:
        result = results.get(member.key)
        if member.arm and result and result.last_update is not None:
            arms.setdefault(member.arm, []).append(result.last_update)
    medians = {arm: statistics.median(updates) for arm, updates in arms.items()}
    members = []
    for member in comparison.members:
        result = results.get(member.key)
        unreadable = bool(errors.intersection(member.run.refs))
        why = _why_not(comparison, member, result, unreadable, medians.get(member.arm))
        members.append(replace(member, result=result, counted=not why, why_not=why))
    return Comparison(members, comparison.design, comparison.in_force, comparison.stress_key, comparison.undecided)


def _why_not(
    comparison: Comparison, member: Member, result: Examination | None, unreadable: bool, median: float | None
) -> str:
    if member.aside:
        return member.aside
    if result is None:
        return "it could not be read" if unreadable else "it was not examined"
    if result.last_update is None:
        return "it logged nothing"
    if not member.arm:
        return "it is in no arm"
    if median is not None and result.last_update < PROGRESSED * median:
        return f"it stopped at update {result.last_update} (the median of its arm is {median:g})"
    if comparison.in_force.metric and result.score is None:
        return f"it has no {comparison.in_force.metric}"
    return ""


def _settle(
    tracker: Tracker,
    options: Options,
    chosen: str,
    rules: Sequence[Rule],
    vocabulary: Vocabulary,
    comparison: Comparison,
    errors: list[RunError],
) -> Audit:
    trained = comparison.without_aside()
    judged = compare(rules, vocabulary, trained)
    labels = {member.key: member.run.label for member in comparison.members}
    findings = apply_policy(gather(judged.findings, comparison, labels, options.design), comparison, options.design)
    coverage = _outcomes(judged.coverage, findings)
    for entry, untested, claimed in judge_claims(rules, trained, tuple(findings), tuple(coverage)):
        settled = apply_policy(claimed, comparison, options.design)
        findings += settled
        coverage += _outcomes([entry], settled)
        judged.not_judged += [untested] if untested else []
    findings.sort(key=lambda finding: (not finding.counts, finding.level.rank, finding.check, finding.rule))
    return Audit(
        findings=findings,
        stats={},
        subject=f"audit of {options.project or tracker.address}",
        project=options.project,
        address=tracker.address,
        chosen=chosen or str(tracker.address),
        audited_at=datetime.now(UTC),
        version=__version__,
        not_judged=judged.not_judged,
        coverage=coverage,
        runs={member.key: _audited(comparison, member, findings, judged.runs) for member in comparison.members},
        design=comparison.in_force,
        traces=depict(comparison),
        errors=errors,
        notes=_notes(tracker, comparison),
        partial="--select or --ignore left rules out" if options.select or options.ignore else "",
    )


def _notes(tracker: Tracker, comparison: Comparison) -> list[str]:
    notes = [f"nothing is written back: {tracker.read_only}"] if tracker.read_only else []
    notes += getattr(tracker, "notes", ())
    if comparison.undecided:
        notes.append(comparison.undecided)
    strange = [member.run.label for member in comparison.members if member.run.framework == GENERIC]
    if strange:
        shown = listed(strange, SHOWN)
        notes.append(
            f"of no known framework: {shown}; read by the names in general use, whose exact meaning is not known "
            "(--vocabulary FILE teaches them)"
        )
    return notes


def _outcomes(coverage: Sequence[Coverage], findings: Sequence[Finding]) -> list[Coverage]:
    """The coverage with what the findings made of it, the worst first: a rule that found anything did not pass."""
    settled = []
    for entry in coverage:
        found = {
            finding.outcome
            for finding in findings
            if finding.rule == entry.rule and set(finding.runs) & set(entry.runs)
        }
        worst = next((outcome for outcome in Outcome if outcome in found), entry.outcome)
        settled.append(replace(entry, outcome=worst) if entry.outcome is Outcome.PASSED else entry)
    return settled


def _audited(comparison: Comparison, member: Member, findings: Sequence[Finding], judged: set[str]) -> AuditedRun:
    blaming = [finding for finding in findings if finding.counts and member.key in finding.blames]
    levels = {finding.level for finding in blaming}
    # A run whose history could not be read, or is empty, never passes, whatever its configuration let a rule say.
    seen = member.result is not None and member.result.last_update is not None
    verdict = Verdict.PASS if member.key in judged and seen else Verdict.NOT_JUDGED
    if Level.FAIL in levels:
        verdict = Verdict.FAIL
    elif Level.WARN in levels:
        verdict = Verdict.WARN
    run, result = member.run, member.result
    return AuditedRun(
        key=run.key,
        label=run.label,
        name=run.name,
        parts=run.refs,
        state=str(run.state),
        framework=run.framework,
        version=run.version,
        arm=member.arm,
        cell=comparison.describe(member.cell) if member.arm else "",
        seed=member.pair_key or "",
        last_update=result.last_update if result else None,
        score=result.score if result else None,
        counted=member.counted,
        why_not=member.why_not,
        verdict=verdict,
        rules=tuple(dict.fromkeys(finding.rule for finding in blaming)),
        url=run.last.url,
        notes=tuple(note for part in run.parts for note in part.notes),
    )


def exit_code(audit: Audit, *, strict: bool = False, exit_zero: bool = False) -> ExitCode:
    """The exit status that an audit ends with; ``exit_zero`` mutes a failed check only."""
    reached: set[ExitCode] = {ExitCode.OK}
    if not audit.judged:
        reached.add(ExitCode.NOTHING)
    if audit.errors or (audit.write_back and audit.write_back.errors):
        reached.add(ExitCode.TRACKER)
    if not exit_zero and (not audit.ok or (strict and audit.not_judged)):
        reached.add(ExitCode.CHECK_FAILED)
    return next(code for code in EXIT_PRIORITY if code in reached)
