"""The tracker over files: finds the runs under the given paths, reads each once, and writes nothing."""

from __future__ import annotations

import multiprocessing
import os
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Final

from pth_tracker.errors import NothingSelected, ProjectNotFound, UsageError
from pth_tracker.runs import History, RunError, RunRef, SourceRun
from pth_tracker.tracker import Address, EditResult, MarkEdit, Marks, Publication, Query, project_hint
from pth_tracker_files.discover import Discovery, discover, expand, kinds, source_of
from pth_tracker_files.naming import as_text
from pth_tracker_files.sources import LoadedRun, Source, all_sources, read_head, ref_for

READ_ONLY: Final = "log files are only read"
REFUSED: Final = f"{READ_ONLY}: nothing can be written back to them"
COLUMNS: Final = "columns:"
"""Begins a location that names the columns of tables instead of a path: ``columns:step=STEP,seed=SEED``."""
PARALLEL_BYTES: Final = 20 << 20
"""From so many bytes on, files are read by several processes."""


class FilesTracker:
    """Runs in log files, event files and tables; satisfies `pth_tracker.tracker.Tracker`.

    A run that was listed has been read, and its arrays are kept; a tracker opened elsewhere (by a worker) reads only
    the files it is asked for.
    """

    has_tags = False
    holds_histories = True
    """Whether what was listed is in memory, so that forked processes inherit it."""

    def __init__(self, locations: Sequence[str]) -> None:
        self.address = Address("files", tuple(locations))
        self.read_only = READ_ONLY
        self.notes: tuple[str, ...] = ()
        """What was seen and left out, known once the runs have been listed."""
        named = [text.removeprefix(COLUMNS) for text in locations if text.startswith(COLUMNS)]
        self._sources = _sources(",".join(named))
        self._paths = [pair for text in locations if not text.startswith(COLUMNS) for pair in expand(text)]
        self._found: Discovery | None = None
        self._ahead: _Ahead | None = None
        self._loaded: dict[RunRef, LoadedRun | RunError] = {}
        self._listed = False

    def projects(self) -> Sequence[str]:
        """The experiments of MLflow file stores; other files have no projects."""
        self._list()
        return tuple(sorted({ref.project for ref in self._loaded if ref.project}))

    def runs(self, query: Query) -> Iterator[SourceRun]:
        """All runs under the paths, in the order of the paths; those that cannot be read as well, with a note.

        A project is an experiment of an MLflow file store.

        Raises:
            ProjectNotFound: a project was asked for, and there is none of that name.
            UsageError: a filter was given.
            NothingSelected: there is no run.
        """
        if query.where:
            raise UsageError("files have no filter language: leave --where out and choose by paths or --select")
        self._list()
        if query.project and query.project not in (known := self.projects()):
            raise ProjectNotFound(
                f"there is no experiment {query.project!r} in these files; they hold {', '.join(known)}"
                f"{project_hint(query.project, known)}"
                if known
                else f"files have no projects: leave out {query.project!r} and name files or folders"
            )
        named = _with_unique_names(list(self._loaded.values()))
        self._loaded = {_ref(loaded): loaded for loaded in named}
        for loaded in named:
            if query.project and _ref(loaded).project != query.project:
                continue
            run = loaded.run if isinstance(loaded, LoadedRun) else _unread(loaded)
            if query.since is None or _changed_since(run.ref, query.since):
                yield run

    def read_ahead(self) -> None:
        """Begins to read large sets of files in other processes, so that the caller may import what it needs meanwhile.

        Without it, `runs` reads them all the same.
        """
        if self._found is None:
            self._found = discover(self._paths, self._sources)
            self._ahead = _started([(source, path) for source, path in self._found.paths if source.SEPARATE])

    def _list(self) -> None:
        if self._listed:
            return
        self.read_ahead()
        found, ahead = self._found or Discovery(), self._ahead
        self.notes = tuple(found.notes)
        self._found = self._ahead = None
        if not found.groups and not found.errors:
            places = ", ".join(dict.fromkeys(as_text(path) for path, _ in self._paths[:5]))
            seen = f" ({'; '.join(found.notes[:3])})" if found.notes else ""
            raise NothingSelected(f"no run was found in {places}: looked for {kinds()}{seen}")
        self._loaded = {_ref(loaded): loaded for loaded in _load(found, ahead.results() if ahead else {})}
        self._listed = True

    def histories(
        self, requests: Sequence[tuple[RunRef, Collection[str] | None]]
    ) -> Iterator[tuple[RunRef, History | RunError]]:
        """The histories asked for, from what has been read or by reading just these files."""
        self._load_only([ref for ref, _ in requests if ref not in self._loaded])
        for ref, keys in requests:
            loaded = self._loaded.get(ref)
            if loaded is None:
                loaded = RunError(ref, as_text(Path(ref.run_id).stem), f"{as_text(ref.run_id)} is not there any more")
            yield ref, loaded if isinstance(loaded, RunError) else _chosen(loaded.history, keys)

    def _load_only(self, refs: Sequence[RunRef]) -> None:
        whole = False
        for ref in refs:
            path = Path(ref.run_id)
            if not os.path.lexists(path):
                path = Path(ref.run_id.rpartition("#")[0])
            try:
                source = source_of(path, b"" if path.is_dir() else read_head(path), self._sources)
            except OSError as error:
                message = f"{as_text(path)} cannot be read: {error.strerror or error}"
                self._loaded[ref] = RunError(ref, as_text(path.stem), message)
                continue
            if source is not None and source.SEPARATE:
                self._loaded |= {_ref(loaded): loaded for loaded in _load_path(source, [path])}
            else:
                whole = True
        if whole:
            self._list()

    def marks(self, refs: Sequence[RunRef]) -> Mapping[RunRef, Marks]:
        """No marks: files carry none."""
        return {ref: Marks() for ref in refs}

    def apply(self, edits: Sequence[MarkEdit]) -> Iterator[EditResult]:
        """Refuses every edit."""
        return (EditResult(edit, error=REFUSED) for edit in edits)

    def publish(self, publication: Publication) -> str:
        """Refuses.

        Raises:
            UsageError: always.
        """
        raise UsageError(REFUSED)

    def close(self) -> None:
        """Lets go of what has been read, and of the processes that still read."""
        if self._ahead:
            self._ahead.stop()
        self._found = self._ahead = None
        self._loaded, self._listed = {}, False


def _sources(named: str) -> tuple[Source, ...]:
    """All sources, that of tables with the columns that the user ``named``, if any."""
    if not named:
        return all_sources()
    from pth_tracker_files import tables
    from pth_tracker_files.table_columns import TableColumns

    source: Source = tables.NamedTables(TableColumns.parse(named))
    return tuple(source if one.KIND == tables.KIND else one for one in all_sources())


def _ref(loaded: LoadedRun | RunError) -> RunRef:
    return loaded.run.ref if isinstance(loaded, LoadedRun) else loaded.ref


def _unread(error: RunError) -> SourceRun:
    return SourceRun(error.ref, error.name, notes=(error.message,))


def _changed_since(ref: RunRef, since: datetime) -> bool:
    """Whether the file was written at or after ``since``: one last written before was not created after it."""
    try:
        path = Path(ref.run_id)
        state = (path if os.path.lexists(path) else Path(ref.run_id.rpartition("#")[0])).stat()
    except OSError:
        return True
    return datetime.fromtimestamp(state.st_mtime, UTC) >= since


def _chosen(history: History, keys: Collection[str] | None) -> History:
    """The history of some metrics, on the union of their own steps."""
    if keys is None or all(key in keys for key in history.values):
        return history
    points = {key: history.series(key) for key in keys if key in history.values}
    return replace(History.from_points(points, history.decimals), conflicts=history.conflicts)


def _with_unique_names(loaded: Sequence[LoadedRun | RunError]) -> list[LoadedRun | RunError]:
    """The same, and where several runs have one name, with as many folders before it as it takes to tell them apart.

    Runs that no folder tells apart keep their name.
    """
    alike: dict[str, list[int]] = {}
    for index, item in enumerate(loaded):
        alike.setdefault(item.run.name if isinstance(item, LoadedRun) else item.name, []).append(index)
    names: dict[int, str] = {}
    for name, indices in alike.items():
        folders = [Path(os.path.abspath(_ref(loaded[index]).run_id)).parts[1:-1] for index in indices]
        longer = [name] * len(indices)
        depth = 0
        while len(set(longer)) < len(longer) and depth < max(map(len, folders)):
            depth += 1
            longer = [as_text("/".join((*above[-depth:], name))) for above in folders]
        names |= dict(zip(indices, longer if len(set(longer)) == len(longer) else [name] * len(indices)))
    return [
        replace(item, run=replace(item.run, name=names[index]))
        if isinstance(item, LoadedRun)
        else replace(item, name=names[index])
        for index, item in enumerate(loaded)
    ]


def _load(found: Discovery, parallel: Mapping[Path, list[LoadedRun | RunError]]) -> Iterator[LoadedRun | RunError]:
    """All runs found, in the order of discovery; ``parallel`` are those that other processes have read."""
    for source, paths in found.groups:
        if not source.SEPARATE:
            yield from _load_path(source, paths)
            continue
        for path in paths:
            yield from parallel[path] if path in parallel else _load_path(source, [path])
    yield from found.errors


def _load_path(source: Source, paths: Sequence[Path]) -> list[LoadedRun | RunError]:
    try:
        return list(source.load(paths))
    except Exception as error:  # A file that breaks its reader is one unreadable run, and the others go on.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{error}" or type(error).__name__
        return [
            RunError(ref_for(path), as_text(path.stem), f"{as_text(path)} cannot be read: {reason}") for path in paths
        ]


def _load_named(module: str, path: Path) -> list[LoadedRun | RunError]:
    source: Source = import_module(module)
    return _load_path(source, [path])


@dataclass(frozen=True)
class _Ahead:
    """Files that several processes read."""

    pool: ProcessPoolExecutor
    futures: Mapping[Path, Future[list[LoadedRun | RunError]]]

    def results(self) -> dict[Path, list[LoadedRun | RunError]]:
        """What was read, by path; where the processes fail, what was read until then."""
        results: dict[Path, list[LoadedRun | RunError]] = {}
        try:
            for path, future in self.futures.items():
                results[path] = future.result()
        except (BrokenProcessPool, OSError):
            return results
        finally:
            self.stop()
        return results

    def stop(self) -> None:
        """Lets the processes end with the files they are at."""
        self.pool.shutdown(wait=True, cancel_futures=True)


def _started(work: Sequence[tuple[Source, Path]]) -> _Ahead | None:
    """The reading of ``work`` by several processes; None where one process does as well, or none can be started."""
    sizes = {path: _size(path) for _, path in work}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    within_worker = multiprocessing.parent_process() is not None or multiprocessing.current_process().daemon
    if cores < 2 or len(work) < 2 or sum(sizes.values()) < PARALLEL_BYTES or within_worker:
        return None
    # Forking costs nothing and is safe where this is the only Python thread; the threads of native libraries idle.
    forks = threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if forks else "spawn")
    pool = ProcessPoolExecutor(min(cores, len(work)), mp_context=context)
    futures: dict[Path, Future[list[LoadedRun | RunError]]] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for source, path in sorted(work, key=lambda item: -sizes[item[1]]):
                futures[path] = pool.submit(_load_named, str(getattr(source, "__name__", "")), path)
    except (BrokenProcessPool, OSError):
        pool.shutdown(wait=True, cancel_futures=True)
        return None
    return _Ahead(pool, futures)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
