"""A W&B server as a tracker: the listing, exact histories, and the marks of an audit."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from pth_tracker.errors import ProjectNotFound, PthTrackerError
from pth_tracker.runs import History, RunError, RunRef, SourceRun
from pth_tracker.tracker import Address, EditResult, MarkEdit, Marks, Publication, Query, project_hint
from pth_tracker_wandb import write
from pth_tracker_wandb.credentials import parse_location
from pth_tracker_wandb.history import read_history
from pth_tracker_wandb.listing import RUNS_AND_MARKS_QUERY, RUNS_QUERY, pages, server_filter, source_run
from pth_tracker_wandb.session import RequestFailed, Session

CONCURRENCY: Final = 8
"""Runs that are read or written at a time; the SDK allows ten requests."""
AHEAD: Final = 3 * CONCURRENCY
"""Histories that are read before the caller has taken the earlier ones: more would only fill the memory."""


class ServerTracker:
    """One W&B server; projects are named ``PROJECT`` or ``ENTITY/PROJECT``."""

    def __init__(self, location: str) -> None:
        self._session = Session(parse_location(location))
        self._names: dict[RunRef, str] = {}
        self.write_running = False
        """Whether `apply` also edits runs that still run, whose own process may undo it."""

    def __repr__(self) -> str:
        return f"ServerTracker({str(self.address)!r})"

    @property
    def address(self) -> Address:
        """The server, and the entity where one was given."""
        return Address("wandb", (str(self._session.address),))

    @property
    def read_only(self) -> str:
        """Empty: W&B tells at the first write whether the key may write."""
        return ""

    @property
    def has_tags(self) -> bool:
        """True."""
        return True

    def account(self) -> str:
        """The user of the API key, and the entity whose projects are meant where none is named."""
        viewer = self._session.graphql("query Viewer { viewer { username } }", {}).get("viewer") or {}
        return f"{viewer.get('username') or 'an unnamed user'} of {self._session.entity()}"

    def projects(self) -> Sequence[str]:
        """The default entity's projects."""
        try:
            return list(self._projects_of(self._session.entity()))
        except Exception as error:  # the SDK raises anything
            raise self._session.failure(error) from None

    def _projects_of(self, entity: str) -> Iterator[str]:
        for project in self._session.fresh_api().projects(entity, per_page=1000):
            yield project.name

    def _project(self, name: str) -> tuple[str, str]:
        entity, _, project = name.rpartition("/")
        return entity or self._session.entity(), project

    def runs(self, query: Query) -> Iterator[SourceRun]:
        """The project's runs, a request for every thousand.

        Raises:
            ProjectNotFound: W&B shows no such project to this account.
            UsageError: the filter cannot be used.
        """
        filters = server_filter(query)
        entity, project = self._project(query.project)
        app_url = self._session.api._service_api.app_url
        document = RUNS_AND_MARKS_QUERY if query.marks else RUNS_QUERY
        for node in self._pages(document, entity, project, filters):
            try:
                run = source_run(node, entity, project, app_url)
            except (KeyError, TypeError, ValueError, AttributeError):
                raise self._session.not_understood() from None
            if run is not None:
                self._names[run.ref] = run.name
                yield run

    def _pages(self, document: str, entity: str, project: str, filters: Mapping[str, Any]) -> Iterator[Any]:
        try:
            yield from pages(self._session, document, entity, project, filters)
        except ProjectNotFound as error:
            raise ProjectNotFound(f"{error}{project_hint(project, self._projects_of(entity))}") from None

    def histories(
        self, requests: Sequence[tuple[RunRef, Collection[str] | None]]
    ) -> Iterator[tuple[RunRef, History | RunError]]:
        """Exact histories, several runs at a time, in the order in which they arrive.

        Raises:
            TrackerError: the connection is gone or the key is refused, so that no run can be read.
        """
        with (
            tempfile.TemporaryDirectory(prefix="pth-tracker-") as folder,
            ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="wandb-history") as pool,
        ):
            waiting = enumerate(requests)
            running: dict[Future[History], RunRef] = {}

            def start(count: int) -> None:
                for index, (ref, keys) in itertools.islice(waiting, count):
                    wanted = None if keys is None else frozenset(keys)
                    place = Path(folder) / str(index)
                    running[pool.submit(read_history, self._session, ref, wanted, place)] = ref

            try:
                start(AHEAD)
                unreachable = 0
                while running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        ref = running.pop(future)
                        error = future.exception()
                        if isinstance(error, RequestFailed):
                            unreachable = unreachable + 1 if error.unreachable else 0
                            if error.refused or unreachable >= min(CONCURRENCY, len(requests)):
                                raise error
                        else:
                            unreachable = 0
                        start(1)
                        yield ref, self._outcome(ref, future)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _outcome(self, ref: RunRef, future: Future[History]) -> History | RunError:
        try:
            return future.result()
        except PthTrackerError as error:
            return RunError(ref, self._names.get(ref, ref.run_id), str(error))

    def marks(self, refs: Sequence[RunRef]) -> Mapping[RunRef, Marks]:
        """Our own marks as they are now, a request for every thousand runs of a project."""
        return write.read_marks(self._session, refs)

    def apply(self, edits: Sequence[MarkEdit]) -> Iterator[EditResult]:
        """Carries out the edits, each on the run's state as it is a moment before."""
        with ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="wandb-edit") as pool:
            try:
                yield from pool.map(lambda edit: write.apply_edit(self._session, edit, self.write_running), edits)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def publish(self, publication: Publication) -> str:
        """Resumes the project's audit run, adds this audit to it, and returns its page."""
        entity, project = self._project(publication.project)
        return write.publish(self._session, entity, project, publication)

    def close(self) -> None:
        """Lets go of the connection and of the SDK's helper process."""
        self._session.close()
