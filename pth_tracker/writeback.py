"""The verdict on its way back: the marks a run should bear against those it bears, as minimal edits, then applied."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from pth_tracker.errors import TrackerError
from pth_tracker.model import Audit, AuditedRun, Level, PlannedEdit, Verdict, WriteBack
from pth_tracker.redaction import environment_secrets, without_environment
from pth_tracker.runs import RunRef, RunState
from pth_tracker.tracker import TAG_PREFIX, MarkEdit, Marks, Publication, Query, SparesRunning, Tracker

MAX_TAG: Final = 64
"""Characters that a tag may have."""
TABLE: Final = (
    "level",
    "check",
    "rule",
    "bug",
    "title",
    "runs",
    "blamed",
    "arms",
    "detail",
    "remedy",
    "explained_by",
    "ignored",
    "links",
)
"""Columns of the published findings table."""
MAX_LINKS: Final = 10
"""Pages of runs that one finding links to."""


def wanted_marks(run: AuditedRun, audit: Audit, *, tags: bool) -> Marks:
    """The marks that ``run`` should bear after ``audit``; tags on suspicious runs only."""
    values = {
        "verdict": str(run.verdict),
        "rules": ",".join(run.rules),
        "audited_at": _stamp(audit.audited_at),
        "version": audit.version,
    }
    suspicious = run.verdict in (Verdict.FAIL, Verdict.WARN)
    named = (str(run.verdict), *run.rules) if tags and suspicious else ()
    return Marks(values, frozenset(f"{TAG_PREFIX}{name}"[:MAX_TAG] for name in named))


def _stamp(moment: datetime | None) -> str:
    return moment.isoformat(timespec="seconds") if moment else ""


def plan_edits(audit: Audit, current: Mapping[RunRef, Marks], *, tags: bool) -> list[MarkEdit]:
    """The smallest edits that bring every part of every run to its marks; an unchanged run plans none.

    The time of the audit changes only together with another mark.
    """
    edits: list[MarkEdit] = []
    for run in audit.runs.values():
        wanted = wanted_marks(run, audit, tags=tags)
        for ref in run.parts:
            now = current.get(ref, Marks())
            changed = {name: value for name, value in wanted.values.items() if now.values.get(name) != value}
            add, remove = wanted.tags - now.tags, now.tags - wanted.tags
            if not (changed.keys() - {"audited_at"}) and not add and not remove and "audited_at" in now.values:
                continue
            edits.append(MarkEdit(ref, run.label, changed, frozenset(), add, remove))
    return edits


def write_back(
    tracker: Tracker,
    audit: Audit,
    *,
    dry_run: bool,
    files: Mapping[str, bytes] | Callable[[], Mapping[str, bytes]] | None = None,
    published: str = "",
) -> WriteBack:
    """Writes the audit's verdict into the tracker, or plans it only (``dry_run``): then no mutating request is made.

    The marks come first and the project's audit run last, so that a process killed in between leaves nothing that
    the next audit does not put right. ``files`` are attached to the audit run, and made only where it is written.
    ``published`` is where the audit run is, if it says already what this audit would write: then it is written again
    only where marks change.
    """
    if tracker.read_only:
        return WriteBack(refused=tracker.read_only)
    if audit.partial:
        return WriteBack(refused=f"a run's marks speak for all rules, and {audit.partial}")
    edits = _edits_now(tracker, audit)
    if dry_run:
        running = {ref for run in audit.runs.values() if run.state == RunState.RUNNING for ref in run.parts[-1:]}
        return _dry_run(tracker, edits, running)
    planned, errors, skipped = _apply(tracker, edits)
    if published and not planned:
        return WriteBack(planned, True, "", tuple(errors), tuple(skipped), published)
    published = ""
    try:
        published = tracker.publish(_publication(audit, files() if callable(files) else files or {}))
    except TrackerError as error:
        errors.append(f"the audit run could not be written: {error}")
    return WriteBack(planned, True, "", tuple(errors), tuple(skipped), published)


def _edits_now(tracker: Tracker, audit: Audit) -> list[MarkEdit]:
    """The edits against the marks as they are now; runs that keep those they were listed with are not read again."""
    refs = [ref for run in audit.runs.values() for ref in run.parts]
    if not audit.listed_marks.keys() >= set(refs):
        return plan_edits(audit, tracker.marks(refs), tags=tracker.has_tags)
    stale = [edit.ref for edit in plan_edits(audit, audit.listed_marks, tags=tracker.has_tags)]
    current = {**audit.listed_marks, **{ref: Marks() for ref in stale}}
    return plan_edits(audit, {**current, **tracker.marks(stale)}, tags=tracker.has_tags) if stale else []


def publication_digest(audit: Audit) -> str:
    """A hash of what the project's audit run says after ``audit``, but for the time."""
    told = _publication(audit, {})
    facts = [told.project, told.columns, told.rows, sorted(told.counts.items()), sorted(told.attributes.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _dry_run(tracker: Tracker, edits: Sequence[MarkEdit], running: Container[RunRef]) -> WriteBack:
    """What `_apply` would do, as far as the listing tells which runs still run."""
    spared = isinstance(tracker, SparesRunning) and not tracker.write_running
    left_out = [edit for edit in edits if spared and edit.ref in running]
    planned = tuple(_shown(edit) for edit in edits if edit not in left_out)
    return WriteBack(planned, skipped=tuple(f"{edit.run_name}: it is still running" for edit in left_out))


def _apply(tracker: Tracker, edits: Sequence[MarkEdit]) -> tuple[tuple[PlannedEdit, ...], list[str], list[str]]:
    """The edits that were carried out, and a sentence for each that was refused and each that was left out."""
    done: list[PlannedEdit] = []
    errors: list[str] = []
    skipped: list[str] = []
    for result in tracker.apply(edits) if edits else ():
        if result.error:
            errors.append(f"{result.edit.run_name}: {result.error}")
        elif result.skipped:
            skipped.append(f"{result.edit.run_name}: {result.skipped}")
        else:
            done.append(_shown(result.edit))
    return tuple(done), errors, skipped


def _shown(edit: MarkEdit) -> PlannedEdit:
    return PlannedEdit(
        edit.run_name,
        edit.ref.run_id,
        dict(edit.set_values),
        tuple(sorted(edit.unset_values)),
        tuple(sorted(edit.add_tags)),
        tuple(sorted(edit.remove_tags)),
    )


def _publication(audit: Audit, files: Mapping[str, bytes]) -> Publication:
    assert audit.audited_at is not None, "an audit that is published has been made"
    rows = tuple(
        (
            str(finding.level),
            finding.check,
            finding.rule,
            finding.tag,
            finding.title,
            ", ".join(audit.label(key) for key in finding.runs),
            ", ".join(audit.label(key) for key in finding.blames),
            ", ".join(finding.arms),
            finding.detail,
            finding.remedy,
            finding.because_of,
            finding.ignored,
            _links(audit, finding.blames or finding.runs),
        )
        for finding in audit.findings
    )
    worst = next((level for level in Level if audit.by_level(level)), None)
    attributes = {"version": audit.version, "worst_level": str(worst) if worst else "none"}
    secrets = environment_secrets()
    plain = tuple(
        tuple(without_environment(cell, secrets) if isinstance(cell, str) else cell for cell in row) for row in rows
    )
    return Publication(audit.project, audit.audited_at, TABLE, plain, audit.counts, attributes, files)


def _links(audit: Audit, keys: Sequence[str]) -> str:
    """The pages of these runs, the first few, where the tracker has such pages."""
    urls = [audit.runs[key].url for key in keys if key in audit.runs and audit.runs[key].url]
    more = f" and {len(urls) - MAX_LINKS} more" if len(urls) > MAX_LINKS else ""
    return " ".join(urls[:MAX_LINKS]) + more


def remove_marks(tracker: Tracker, query: Query, *, dry_run: bool) -> WriteBack:
    """Takes all our marks off the runs that ``query`` selects; the project's audit run stays.

    Raises:
        ProjectNotFound: there is no such project.
    """
    if tracker.read_only:
        return WriteBack(refused=tracker.read_only)
    runs = {run.ref: run for run in tracker.runs(query)}
    edits = list(_removals(tracker.marks(list(runs)), {ref: run.name for ref, run in runs.items()}))
    if dry_run:
        return _dry_run(tracker, edits, {ref for ref, run in runs.items() if run.state is RunState.RUNNING})
    planned, errors, skipped = _apply(tracker, edits)
    return WriteBack(planned, True, "", tuple(errors), tuple(skipped))


def _removals(current: Mapping[RunRef, Marks], names: Mapping[RunRef, str]) -> Iterable[MarkEdit]:
    for ref, marks in current.items():
        if marks.values or marks.tags:
            yield MarkEdit(ref, names.get(ref, ref.run_id), {}, frozenset(marks.values), frozenset(), marks.tags)
