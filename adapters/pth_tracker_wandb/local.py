"""Local W&B run folders as a tracker that is only read: ``wandb/run-*`` and ``wandb/offline-run-*``, without a server.

Everything is read from the ``.wandb`` transaction log. Where it is missing or unreadable, the text files of the
folder give the configuration and, in the oldest layout, the history. What is damaged is said in `SourceRun.notes`; a
run whose history is not there at all is listed and refused by name when its history is asked for.

State: a log with an exit record is finished (code 0) or failed; without one, the run counts as running while its log
is younger than `QUIET_AFTER`, else as crashed. W&B's process writes to the log every 15 seconds, and the server itself
gives a silent run up after 5 minutes; a file cannot tell more, and the note says so.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pth_tracker.errors import ProjectNotFound, TrackerError, UsageError
from pth_tracker.runs import History, RunError, RunRef, RunState, SourceRun
from pth_tracker.tracker import (
    AUDIT_RUN_NAME,
    TAG_PREFIX,
    Address,
    EditResult,
    MarkEdit,
    Marks,
    Publication,
    Query,
    project_hint,
)
from pth_tracker_wandb import local_files
from pth_tracker_wandb.local_files import Metadata, read_config, read_metadata, read_text_history, text_file
from pth_tracker_wandb.local_paths import Place, find_places, recognises_path
from pth_tracker_wandb.wandb_records import RunLog, read_head, read_log

__all__ = ["LocalTracker", "QUIET_AFTER", "recognises_path"]

QUIET_AFTER: Final = timedelta(minutes=5)
"""A log without an exit record and without a sign of life for this long counts as a crashed run's."""
_READ_ONLY: Final = (
    "a local W&B folder is only read: to have the verdict in a dashboard, send its runs to a server with `wandb sync` "
    "and audit the project there"
)


@dataclass(frozen=True)
class _Listed:
    """A run whose beginning was read: enough to choose and order."""

    place: Place
    head: RunLog
    metadata: Metadata
    problem: str = ""
    """Why the log cannot be read."""

    @property
    def project(self) -> str:
        return self.head.project or self.metadata.project

    @property
    def created(self) -> datetime | None:
        return self.head.process_started or self.metadata.started or self.head.start_time or self.place.named_time

    def is_of(self, project: str) -> bool:
        return project in (self.project, f"{self.head.entity}/{self.project}")


class LocalTracker:
    """The runs in local W&B folders.

    Args:
        locations: ``wandb`` folders, folders that contain one, run folders, or ``.wandb`` files.

    Raises:
        UsageError: a location holds no W&B run.
    """

    def __init__(self, locations: Sequence[str]) -> None:
        absolute = [os.path.abspath(os.path.expanduser(location)) for location in locations]
        self._address = Address("wandb", tuple(absolute))
        self._places = {str(place.path): place for place in find_places(absolute)}

    @property
    def address(self) -> Address:
        """The locations as absolute paths."""
        return self._address

    @property
    def read_only(self) -> str:
        """That a local folder is only read, and the way to a server."""
        return _READ_ONLY

    @property
    def has_tags(self) -> bool:
        """False: no tag of ours is ever put on a local run."""
        return False

    def projects(self) -> Sequence[str]:
        """The names of the projects that the runs belong to, without their entities."""
        return sorted({listed.project for listed in self._listed()} - {""})

    def runs(self, query: Query) -> Iterator[SourceRun]:
        """The runs in the order in which they began.

        A run that does not tell its project (its log is empty, or lost) is listed in every project: it may belong
        to the one that is audited, and its notes say what is wrong with it.

        Raises:
            UsageError: ``query.where`` is set; there is no server to evaluate it.
            ProjectNotFound: no run belongs to ``query.project``.
        """
        if query.where.strip():
            raise UsageError(
                f"--where {query.where!r} is evaluated by a W&B server, and {self._address} is a local folder: "
                "choose runs with --select or --since"
            )
        listed = self._listed()
        if query.project:
            if not any(one.is_of(query.project) for one in listed):
                names = sorted({one.project for one in listed} - {""})
                known = ", ".join(names) or "none that can be told"
                meant = project_hint(query.project.rpartition("/")[2], names)
                raise ProjectNotFound(
                    f"no run in {self._address} belongs to {query.project!r}; its projects: {known}{meant}"
                )
            listed = [one for one in listed if not one.project or one.is_of(query.project)]
        if query.since is not None:
            since = query.since
            listed = [one for one in listed if one.created is None or one.created >= since]
        latest = datetime.max.replace(tzinfo=UTC)
        for one in sorted(listed, key=lambda one: (one.created or latest, str(one.place.path))):
            if one.head.job_type != AUDIT_RUN_NAME:
                yield _source_run(one)

    def histories(
        self, requests: Sequence[tuple[RunRef, Collection[str] | None]]
    ) -> Iterator[tuple[RunRef, History | RunError]]:
        """The exact histories, one file after the other; only the named metrics are converted."""
        for ref, keys in requests:
            place = self._places.get(ref.run_id)
            try:
                if place is None:
                    raise TrackerError(f"{ref.run_id} is none of the runs in {self._address}: list them again")
                yield ref, _history(place, keys)
            except TrackerError as error:
                yield ref, RunError(ref, place.path.name if place else ref.run_id, str(error))

    def marks(self, refs: Sequence[RunRef]) -> Mapping[RunRef, Marks]:
        """No mark on any run: none is ever written to a folder."""
        return {ref: Marks() for ref in refs}

    def apply(self, edits: Sequence[MarkEdit]) -> Iterator[EditResult]:
        """Refuses every edit."""
        return (EditResult(edit, error=_READ_ONLY) for edit in edits)

    def publish(self, publication: Publication) -> str:
        """Refuses.

        Raises:
            UsageError: always; a local folder is only read.
        """
        raise UsageError(_READ_ONLY)

    def close(self) -> None:
        """Does nothing; no file is kept open."""

    def _listed(self) -> list[_Listed]:
        return [_look_at(place) for place in self._places.values()]


def _look_at(place: Place) -> _Listed:
    metadata = read_metadata(place.folder) if place.folder else Metadata()
    if place.log is None:
        return _Listed(place, RunLog(), metadata, f"{place.path.name} has no .wandb file")
    try:
        return _Listed(place, read_head(place.log), metadata)
    except TrackerError as error:
        return _Listed(place, RunLog(), metadata, str(error))


def _source_run(listed: _Listed) -> SourceRun:
    place, metadata = listed.place, listed.metadata
    revision = _revision(place)
    log, problem = RunLog(), listed.problem
    if place.log is not None and not problem:
        try:
            log = read_log(place.log)
        except TrackerError as error:
            problem = str(error)
    if problem:
        return _from_text(listed, problem, revision)
    state, state_notes = _state(place.log, log)
    notes = [*log.damage.notes(), *state_notes, *metadata.notes]
    config = log.config
    if not log.run_id:
        text = _config_beside(place)
        config = text.config or {}
        if text.config is not None or not log.damage.empty:
            found = "unknown" if text.config is None else "read from config.yaml"
            notes.append(f"the log has no run record: the configuration is {found}")
        notes += text.notes
    return SourceRun(
        ref=RunRef(listed.project, str(place.path)),
        name=log.name or log.run_id or place.run_id or place.path.name,
        state=state,
        created=listed.created,
        ended=None if state is RunState.RUNNING else log.last_time or _modified(place.log),
        config=config,
        metric_keys=log.rows.metric_keys,
        last_step=log.rows.last_step,
        # A silent log changes its meaning without a change of the file.
        revision=revision if log.exit_code is not None else f"{revision},{state}",
        group=log.group,
        job_type=log.job_type,
        tags=tuple(tag for tag in log.tags if not tag.startswith(TAG_PREFIX)),
        user=log.user or metadata.user,
        host=log.host or metadata.host,
        program=log.program or metadata.program,
        arguments=metadata.arguments if log.arguments is None else log.arguments,
        commit=log.commit or metadata.commit,
        resume_id=log.run_id or place.run_id,
        notes=tuple(notes),
    )


def _from_text(listed: _Listed, problem: str, revision: str) -> SourceRun:
    place, metadata = listed.place, listed.metadata
    notes = [problem]
    text = _config_beside(place)
    keys, last_step = None, None
    history = text_file(place.folder, local_files.HISTORY) if place.folder else None
    if history is not None:
        try:
            read = read_text_history(history)
            keys, last_step = read.rows.metric_keys, read.rows.last_step
            notes += [f"its history is read from {history.name}", *read.notes]
        except TrackerError as error:
            notes.append(str(error))
    elif place.folder is not None:
        keys = local_files.read_summary_keys(place.folder) or None
        notes.append("its history is not in the folder")
    if text.config is None:
        notes.append("its configuration is not in the folder")
    known = {str(state): state for state in RunState}
    return SourceRun(
        ref=RunRef(listed.project, str(place.path)),
        name=place.run_id or place.path.name,
        state=known.get(metadata.state, RunState.UNKNOWN),
        created=listed.created,
        config=text.config or {},
        metric_keys=keys,
        last_step=last_step,
        revision=revision,
        user=metadata.user,
        host=metadata.host,
        program=metadata.program,
        arguments=metadata.arguments,
        commit=metadata.commit,
        resume_id=place.run_id,
        notes=(*notes, *text.notes, *metadata.notes),
    )


def _config_beside(place: Place) -> local_files.TextConfig:
    return read_config(place.folder) if place.folder else local_files.TextConfig()


def _history(place: Place, keys: Collection[str] | None) -> History:
    problem = f"{place.path} has no .wandb file"
    if place.log is not None:
        try:
            return read_log(place.log, keys).rows.history()
        except TrackerError as error:
            problem = str(error)
    path = text_file(place.folder, local_files.HISTORY) if place.folder else None
    if path is None:
        raise TrackerError(
            f"{problem}, and the folder holds no other history: copy the folder anew from the machine that ran it, "
            "or audit the run on its server"
        )
    return read_text_history(path, keys).rows.history()


def _state(path: Path | None, log: RunLog) -> tuple[RunState, tuple[str, ...]]:
    if log.exit_code == 0:
        return RunState.FINISHED, ()
    if log.exit_code is not None:
        return RunState.FAILED, (f"the process ended with exit code {log.exit_code}",)
    if log.preempting:
        return RunState.KILLED, ("the run said that it was being preempted, and wrote no exit record",)
    last = log.last_time or _modified(path)
    silence = datetime.now(UTC) - last if last else None
    if silence is not None and abs(silence) < QUIET_AFTER:
        return RunState.RUNNING, ("the log has no exit record and is being written: the run is read as far as it is",)
    when = f"{last:%Y-%m-%d %H:%M} UTC" if last else "an unknown time"
    return RunState.CRASHED, (f"the log has no exit record and is silent since {when}: the run is taken as crashed",)


def _modified(path: Path | None) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC) if path else None
    except (OSError, OverflowError, ValueError):
        return None


def _revision(place: Place) -> str:
    """Size, time of change and inode of each file that is read."""
    names = (local_files.CONFIG, local_files.METADATA, local_files.SUMMARY, local_files.HISTORY)
    beside = [text_file(place.folder, name) for name in names] if place.folder else []
    parts = []
    for path in (place.log, *beside):
        try:
            told = path.stat() if path else None
        except OSError:
            continue
        if told:
            parts.append(f"{told.st_size}-{told.st_mtime_ns}-{told.st_ino}")
    return ",".join(parts)
