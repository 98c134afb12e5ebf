"""One night: every configured audit, one after the other, each with what is new and each on its own account."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pth_tracker import engine
from pth_tracker.atomic import check_writable, write_atomically
from pth_tracker.cache import Cache, forget_files
from pth_tracker.design.load import load_design
from pth_tracker.design.schema import Design
from pth_tracker.errors import EXIT_PRIORITY, ExitCode, PthTrackerError, TrackerError, UsageError
from pth_tracker.forked import examine_forked
from pth_tracker.model import Audit, WriteBack
from pth_tracker.moments import parse_since
from pth_tracker.news import remembered, since_last, untold
from pth_tracker.nightly.config import PlannedAudit
from pth_tracker.nightly.notify import check_targets, message, send
from pth_tracker.nightly.watch import Health, Log
from pth_tracker.past import PastAudit
from pth_tracker.redaction import hide_secrets
from pth_tracker.render import attachments, format_of, render
from pth_tracker.tracker import SparesRunning, Tracker, find_tracker, with_columns, without_credentials
from pth_tracker.writeback import publication_digest, write_back

if TYPE_CHECKING:
    from pth_tracker.engine import Examiner

REPUBLISH: Final = timedelta(days=7)
"""Where nothing changes, the project's audit run is written so seldom, so that its time says that audits go on."""


@dataclass(frozen=True)
class Settings:
    """How a night's audits are done, whatever they are."""

    cache: Path | None
    """The folder of the cache; None: nothing is kept, and nothing is told to be new."""
    dry_run: bool = False
    no_write: bool = False
    examiner: Examiner = examine_forked


@dataclass(frozen=True)
class Done:
    """What became of one audit."""

    name: str
    status: ExitCode
    audit: Audit | None = None
    """None: there is none, for the reason in `error`."""
    error: str = ""
    troubles: tuple[str, ...] = ()
    """What went wrong beside the audit: a message that could not be sent, a report that could not be written."""
    hits: int = 0
    """Runs that did not have to be read."""
    seconds: float = 0.0


def highest(reached: Collection[ExitCode]) -> ExitCode:
    """The exit status that wins; 0 of none."""
    return next((code for code in EXIT_PRIORITY if code in reached), ExitCode.OK)


@contextmanager
def only_one(configuration: Path, folder: Path) -> Iterator[bool]:
    """Whether no other process runs this configuration; until the end of the block, none will.

    The lock ends with its process, however that ends.
    """
    from filelock import FileLock, Timeout

    name = f"nightly-{hashlib.sha256(str(configuration.resolve()).encode()).hexdigest()[:16]}.lock"
    place = folder
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(place, os.W_OK):
            raise OSError
    except OSError:
        place = Path(tempfile.gettempdir(), f"pth-tracker-{os.getuid()}")
        place.mkdir(exist_ok=True, mode=0o700)
        if place.is_symlink() or place.stat().st_uid != os.getuid():
            raise UsageError(f"{str(place)!r} belongs to somebody else: name another folder with --cache") from None
    lock = FileLock(place / name, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    except (OSError, NotImplementedError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "no locks"
        raise UsageError(
            f"the file {str(place / name)!r}, which keeps two processes from doing the same audits, cannot be locked "
            f"({reason}): name a folder on a disk of this machine with --cache"
        ) from error
    try:
        yield True
    finally:
        lock.release()


def run_night(planned: Sequence[PlannedAudit], settings: Settings, log: Log, health: Health) -> Iterator[Done]:
    """Does the audits in their order and yields what became of each; none stops the others."""
    forget_files()
    cache = Cache(settings.cache) if settings.cache is not None else None
    try:
        for note in cache.notes if cache else ():
            log("cache", note, level="warning")
        if not (cache and cache.usable) and any(one.targets for one in planned) and not settings.dry_run:
            log("cache", "without a cache nothing is known to be new, and no message is sent", level="warning")
        for one in planned:
            health.update(status="auditing", audit=one.name)
            log("audit-start", f"{one.name}: auditing {one.entry.project or 'files'}", facts={"audit": one.name})
            started = time.monotonic()
            done = replace(_guarded(one, settings, cache, health.beat), seconds=time.monotonic() - started)
            _tell(done, log)
            yield done
    finally:
        if cache:
            before = len(cache.notes)
            cache.close()
            for note in cache.notes[before:]:
                log("cache", note, level="warning")


def _tell(done: Done, log: Log) -> None:
    refused = done.audit.write_back.errors if done.audit and done.audit.write_back else ()
    unread = [f"{error.name} could not be read: {error.message}" for error in done.audit.errors] if done.audit else []
    for trouble in (*unread, *refused, *done.troubles):
        log("trouble", f"{done.name}: {trouble}", level="error", facts={"audit": done.name})
    if done.audit is None:
        log(
            "audit-error",
            f"{done.name}: {done.error}",
            level="error",
            facts={"audit": done.name, "exit": int(done.status)},
        )
        return
    news = done.audit.since_last
    counts = dict(done.audit.counts)
    unchanged = f", {done.hits} unchanged and not read again" if done.hits else ""
    words = f"{counts['runs']} runs{unchanged}: {counts['fail']} failed, {counts['warn']} warned"
    if news:
        counts |= {"new": len(news.new), "still_open": len(news.still_open), "resolved": len(news.resolved)}
        words += f", {counts['new']} new, {counts['resolved']} resolved"
    log(
        "audit-end",
        f"{done.name}: {words}; {done.seconds:.1f} s, exit status {int(done.status)}",
        facts={"audit": done.name, "exit": int(done.status), "seconds": round(done.seconds, 3), "kept": done.hits}
        | counts,
    )


def _guarded(planned: PlannedAudit, settings: Settings, cache: Cache | None, beat: Callable[[], None]) -> Done:
    try:
        return _audit(planned, settings, cache, beat)
    except PthTrackerError as error:
        return Done(planned.name, error.exit_code, error=str(error))
    except Exception as error:  # the others have to go on
        if os.environ.get("PTH_TRACKER_DEBUG") == "1":
            raise
        told = hide_secrets(f"{type(error).__name__}: {error}")
        what = f"internal error, please report it ({told}); PTH_TRACKER_DEBUG=1 shows where"
        return Done(planned.name, ExitCode.USAGE, error=what)


def _audit(planned: PlannedAudit, settings: Settings, cache: Cache | None, beat: Callable[[], None]) -> Done:
    entry = planned.entry
    check_writable(planned.outputs, touch=not settings.dry_run)
    check_targets(planned.targets)
    options = engine.Options(
        project=entry.project,
        design=_design(planned),
        where=entry.where,
        since=parse_since(entry.since),
        select=entry.select,
        ignore=entry.ignore,
        vocabularies=planned.vocabularies,
        list_marks=True,
    )
    hits_before = cache.hits if cache else 0
    tracker, chosen = find_tracker(entry.project, planned.locations)
    tracker = with_columns(tracker, entry.columns)
    with closing(tracker):
        audit = engine.audit(
            tracker, options, chosen=chosen, progress=lambda *_: beat(), cache=cache, examiner=settings.examiner
        )
        configuration = _configuration(planned, tracker)
        last = cache.last_audit(configuration) if cache else None
        if cache and cache.usable:
            audit.since_last = since_last(audit, last)
        digest = publication_digest(audit)

        def files() -> dict[str, bytes]:
            if cache:  # made just before the audit run is written: a process killed meanwhile leaves half of it
                cache.forget_publication(configuration)
            return attachments(audit)

        audit.write_back = _write(planned, settings, tracker, audit, files, _still_published(last, digest))
    troubles, missed = _notify(planned, settings, audit, last)
    if cache and audit.since_last and not settings.dry_run:
        cache.flush()
        cache.add_audit(_remembered(planned, configuration, audit, last, digest, missed))
    status = engine.exit_code(audit, strict=entry.strict)
    for path in planned.outputs:
        try:
            write_atomically(path, render(audit, format_of(path), status))
        except PthTrackerError as error:
            troubles.append(str(error))
            status = highest([status, error.exit_code])
    return Done(entry.name, status, audit, "", tuple(troubles), (cache.hits if cache else 0) - hits_before)


def _design(planned: PlannedAudit) -> Design | None:
    design = load_design(planned.design) if planned.design else None
    if planned.entry.rules is None:
        return design
    return (design or Design()).model_copy(update={"rules": planned.entry.rules})


def _configuration(planned: PlannedAudit, tracker: Tracker) -> str:
    """What two audits have to have in common for one to tell what is new since the other."""
    entry, address = planned.entry, tracker.address
    told = [address.adapter, address.locations, entry.project, entry.where, entry.since, entry.select, entry.ignore]
    told += [entry.columns] if entry.columns else []
    told.append(entry.name)  # another design, or others to be told: what is new for one is not for the other
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def _still_published(last: PastAudit | None, digest: str) -> str:
    """Where the audit run is, if it says already what an audit of this digest would write."""
    if last is None or last.publication != digest or last.published_at is None:
        return ""
    # A clock that was ahead once must not keep the audit run as it is until that time has come.
    return last.published if abs(datetime.now(UTC) - last.published_at) < REPUBLISH else ""


def _write(
    planned: PlannedAudit,
    settings: Settings,
    tracker: Tracker,
    audit: Audit,
    files: Callable[[], dict[str, bytes]],
    published: str,
) -> WriteBack:
    if settings.no_write or not planned.entry.write:
        return WriteBack(refused="--no-write was given" if settings.no_write else "the configuration says write: false")
    if isinstance(tracker, SparesRunning):
        tracker.write_running = planned.entry.write_running
    try:
        return write_back(tracker, audit, dry_run=settings.dry_run, files=files, published=published)
    except TrackerError as error:
        return WriteBack(errors=(str(error),))


def _notify(
    planned: PlannedAudit, settings: Settings, audit: Audit, last: PastAudit | None
) -> tuple[list[str], list[str]]:
    """What could not be sent, and the targets that it did not reach."""
    news = audit.since_last
    if news is None or settings.dry_run:
        return [], []
    troubles: list[str] = []
    missed: list[str] = []
    link = planned.link or (audit.write_back.published if audit.write_back else "")
    for target in planned.targets:
        due = untold(news, last, target.shown)
        failed = send([target], message(audit, planned.name, due, link)) if due else []
        troubles += failed
        missed += [target.shown] if failed else []
    return troubles, missed


def _remembered(
    planned: PlannedAudit, configuration: str, audit: Audit, last: PastAudit | None, digest: str, missed: list[str]
) -> PastAudit:
    news, entry, address = audit.since_last, planned.entry, audit.address
    assert news is not None and audit.audited_at is not None and address is not None
    narrowed = {"where": entry.where, "since": entry.since}
    narrowed |= {"select": ", ".join(entry.select), "ignore": ", ".join(entry.ignore)}
    written = audit.write_back
    attempted = written is not None and written.applied and bool(written.planned or not _still_published(last, digest))
    published = written.published if written and attempted else ""
    return PastAudit(
        configuration=configuration,
        project=entry.project,
        tracker=f"{address.adapter} at {' '.join(map(without_credentials, address.locations))}",
        audited_at=audit.audited_at,
        name=entry.name,
        selection="; ".join(f"{name} {value}" for name, value in narrowed.items() if value),
        version=audit.version,
        counts={**audit.counts, "new": len(news.new), "resolved": len(news.resolved)},
        findings=remembered(audit, news, last, missed),
        published=published or (last.published if last else ""),
        published_at=audit.audited_at if published else last.published_at if last else None,
        publication=digest if published else last.publication if last and not attempted else "",
    )
