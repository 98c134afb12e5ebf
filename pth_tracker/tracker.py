"""What an adapter is: the `Tracker` protocol, addresses, edits, and how adapters are found.

An adapter knows its SDK and nothing of quantities or checks. It is a module registered under the entry-point group
``pth_tracker.adapters`` that satisfies `Adapter` and imports no SDK by itself; `Adapter.open_tracker` does. Third
parties add a tracker by registering one, without touching this package.

The contract in short: adapters return raw keys and raw steps; histories are exact or refused, nothing is ever
sampled; a run that cannot be read is a `RunError` and the others go on; what the whole tracker refuses is a
`TrackerError`; a project that does not exist is `ProjectNotFound`; only our own marks are ever written.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import EntryPoint, entry_points
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from pth_tracker.errors import AdapterUnavailable, UsageError
from pth_tracker.runs import History, RunError, RunRef, SourceRun
from pth_tracker.runs import Marks as Marks

ENTRY_POINT_GROUP: Final = "pth_tracker.adapters"
AUDIT_RUN_NAME: Final = "pth-audit"
"""Name (MLflow) or job type (W&B) of the one run per project that holds our own tables; never audited."""
FILES: Final = "files"
"""The adapter of tables."""
MAX_PROJECTS: Final = 5000
"""Of so many projects the nearest name is looked for."""
SHOWN: Final = 3
"""Locations that an address names when shown to people."""
TAG_PREFIX: Final = "pth:"
KEY_PREFIX: Final = "pth/"
MARK_NAMES: Final = ("verdict", "rules", "audited_at", "version")
"""The values an audit leaves on a run, as ``pth/verdict`` (W&B summary) or ``pth.verdict`` (MLflow tag)."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a tracker is, without credentials: any process with the right environment can open it again."""

    adapter: str
    """The entry point's name: ``mlflow``, ``wandb``, ``files``."""
    locations: tuple[str, ...]
    """One URI, or one or several paths."""

    def __str__(self) -> str:
        more = len(self.locations) - SHOWN
        shown = " ".join(self.locations[:SHOWN])
        return f"{self.adapter} at {shown}" + (f" and {more} more" if more > 0 else "")


_USERINFO: Final = re.compile(r"(?<=://)([^/@\s:]*)(:[^/@\s]*)?@")


def without_credentials(uri: str) -> str:
    """``uri`` with any password taken out, the user name kept.

    >>> without_credentials("postgresql://audit:hunter2@db/mlflow")
    'postgresql://audit@db/mlflow'
    """
    return _USERINFO.sub(lambda match: f"{match[1]}@" if match[1] else "", uri)


@dataclass(frozen=True)
class Query:
    """Which runs to list."""

    project: str = ""
    """By name; ``""`` for a source that is no project (paths)."""
    where: str = ""
    """A filter in the tracker's own syntax, handed to the server as it is."""
    since: datetime | None = None
    """Only runs created at or after this moment (aware)."""
    marks: bool = False
    """Whether the runs should come with our own marks where the tracker can list them, even if that costs more."""


@dataclass(frozen=True)
class MarkEdit:
    """The smallest change that brings one run's marks to what an audit says; touches nothing but our names."""

    ref: RunRef
    run_name: str
    set_values: Mapping[str, str] = field(default_factory=dict)
    """By bare name."""
    unset_values: frozenset[str] = frozenset()
    add_tags: frozenset[str] = frozenset()
    remove_tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class EditResult:
    """What became of one edit."""

    edit: MarkEdit
    error: str = ""
    """Why it was refused; ``""``: it was applied."""
    skipped: str = ""
    """Why it was left out on purpose (a run that is still running)."""


@dataclass(frozen=True)
class Publication:
    """What one audit leaves in the project's audit run: plain data, so that an adapter need not know an audit."""

    project: str
    audited_at: datetime
    columns: tuple[str, ...]
    """Of the findings table."""
    rows: tuple[tuple[str | int | float | None, ...], ...]
    counts: Mapping[str, int]
    """``fail``, ``warn``, ``info``, ``not_judged``, ``runs``: logged as a history, the trend."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Short facts such as the tool's version and the verdict."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """File name to content: reports to attach."""


@runtime_checkable
class Tracker(Protocol):
    """One opened tracker. Every method may raise `TrackerError`; none returns sampled or partial data silently."""

    @property
    def address(self) -> Address:
        """Where it is, without credentials."""
        ...

    @property
    def read_only(self) -> str:
        """Why nothing can be written here, as a sentence; ``""`` where it can."""
        ...

    @property
    def has_tags(self) -> bool:
        """Whether runs carry plain tags (W&B), on which ``pth:...`` tags go."""
        ...

    def projects(self) -> Sequence[str]:
        """The names of the projects or experiments."""
        ...

    def runs(self, query: Query) -> Iterator[SourceRun]:
        """The runs of a project in the order of their creation; ``pth-audit`` runs and deleted ones are left out.

        Raises:
            ProjectNotFound: there is no such project.
        """
        ...

    def histories(
        self, requests: Sequence[tuple[RunRef, Collection[str] | None]]
    ) -> Iterator[tuple[RunRef, History | RunError]]:
        """The exact histories of the named raw metrics (None: all), in any order, one answer a request.

        The adapter chooses batches and requests. A key that the run does not have is simply absent.
        """
        ...

    def marks(self, refs: Sequence[RunRef]) -> Mapping[RunRef, Marks]:
        """Our own marks on these runs as they are now."""
        ...

    def apply(self, edits: Sequence[MarkEdit]) -> Iterator[EditResult]:
        """Carries out the edits, one result each; one that is refused does not stop the others."""
        ...

    def publish(self, publication: Publication) -> str:
        """Brings the project's audit run up to date and says where it is (a URL or a name)."""
        ...

    def close(self) -> None:
        """Lets go of connections and processes; the tracker is not used afterwards."""
        ...


@runtime_checkable
class SparesRunning(Protocol):
    """A `Tracker` that leaves out edits of runs that still run (W&B), since their own process would undo them."""

    write_running: bool
    """Whether `Tracker.apply` edits them all the same."""


@runtime_checkable
class KnowsAccount(Protocol):
    """A `Tracker` that can say as whom it is used."""

    def account(self) -> str:
        """Whose credentials are in use, in words that follow "as" and hold no secret; ``""``: none are.

        Raises:
            TrackerError: it cannot be asked.
        """
        ...


@runtime_checkable
class ReadsAhead(Protocol):
    """A `Tracker` whose runs take long to read, in other processes (large files)."""

    def read_ahead(self) -> None:
        """Begins to read what `Tracker.runs` is going to ask for, and returns at once."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A tracker to try where the user named none."""

    location: str
    why: str
    """Continues "chosen because": ``MLFLOW_TRACKING_URI is set``."""
    order: int
    """0: a local store, taken only if it holds the project; 1: a configured server; 2: stored credentials."""


class Adapter(Protocol):
    """The manifest of an adapter: its module, importing no SDK."""

    SUMMARY: str
    """What it reads, in a few words."""

    def recognises(self, location: str) -> bool:
        """Whether this adapter reads ``location`` (a URI or a path), by looking, without importing an SDK."""
        ...

    def candidates(self) -> Iterable[Candidate]:
        """What the environment and the working folder offer."""
        ...

    def open_tracker(self, locations: Sequence[str]) -> Tracker:
        """Opens the tracker at these locations (usually one).

        Raises:
            UsageError: an address that cannot be one of this adapter's.
            AdapterUnavailable: its SDK is missing or broken.
            TrackerError: it cannot be reached or read.
        """
        ...


def adapters() -> dict[str, EntryPoint]:
    """The registered adapters by name, none of them imported."""
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise UsageError(f"two adapters are installed as {point.name!r} ({other.value}, {point.value}): remove one")
    return found


def load_adapter(name: str) -> Adapter:
    """The manifest of the adapter ``name``.

    Raises:
        UsageError: there is none of this name.
        AdapterUnavailable: importing it failed.
    """
    found = adapters()
    if name not in found:
        raise UsageError(f"there is no adapter {name!r}; installed are {', '.join(found) or 'none'}")
    try:
        module: Adapter = found[name].load()
    except ImportError as error:
        raise AdapterUnavailable(f"the adapter {name!r} cannot be loaded ({error}); reinstall pth-tracker") from error
    return module


def open_address(address: Address) -> Tracker:
    """Opens the tracker at ``address`` with the credentials of this process's environment."""
    return load_adapter(address.adapter).open_tracker(address.locations)


def adapter_for(location: str) -> str:
    """The name of the adapter that reads ``location``.

    Raises:
        UsageError: none does.
    """
    name, _, rest = location.partition(":")
    found = adapters()
    if rest and name in found:
        return name
    for candidate in found:
        if load_adapter(candidate).recognises(location):
            return candidate
    shown = without_credentials(location)
    kinds = "an MLflow address (sqlite:///..., http://...) or a W&B address (wandb, https://...)"
    if "://" in location or os.path.exists(os.path.expanduser(location)):
        raise UsageError(f"nothing here reads {shown!r}: give {kinds}, or a file or folder of runs")
    raise UsageError(f"{shown!r} does not exist: give an existing file or folder, or {kinds}")


_LOCAL: Final = re.compile(r"(?P<scheme>sqlite(?:\+\w+)?:///|file:(?!//))(?P<path>[^/?][^?]*)(?P<rest>\?.*)?")
"""The address of a local store by a relative path."""


def local_from(folder: Path, location: str) -> str:
    """``location`` as it is meant in a file that lies in ``folder``: a relative path of a store or of files in full.

    >>> local_from(Path("/team"), "sqlite:///runs/mlflow.db"), local_from(Path("/team"), "./wandb")
    ('sqlite:////team/runs/mlflow.db', '/team/wandb')
    >>> local_from(Path("/team"), "wandb"), local_from(Path("/team"), "http://mlflow:5000")
    ('wandb', 'http://mlflow:5000')
    """
    known = adapters()
    name, _, rest = location.partition(":")
    if rest and name in known:
        return f"{name}:{local_from(folder, rest)}"
    local = _LOCAL.fullmatch(location)
    if local:
        return f"{local['scheme']}{folder / local['path']}{local['rest'] or ''}"
    if not location or "://" in location or location.startswith("file:") or location in known:
        return location
    path = folder / Path(location).expanduser()
    # A bare word that is nothing here may be the entity of a W&B server.
    return (
        str(path) if "/" in location or location.startswith("~") or Path(location).suffix or path.exists() else location
    )


def with_columns(tracker: Tracker, columns: Sequence[str]) -> Tracker:
    """``tracker`` opened again so that its tables have these ``columns`` (``ROLE=NAME``); the one given is closed.

    Raises:
        UsageError: it reads no files, or ``columns`` cannot be understood.
    """
    if not columns:
        return tracker
    tracker.close()
    if tracker.address.adapter != FILES:
        raise UsageError(f"--columns names the columns of tables in files, and what is audited is {tracker.address}")
    return load_adapter(FILES).open_tracker([*tracker.address.locations, *(f"columns:{one}" for one in columns)])


def project_hint(wanted: str, projects: Iterable[str]) -> str:
    """What continues the error for a project that is not there: the existing name that ``wanted`` is close to.

    ``""`` where none is close, or where ``projects``, listed on the way, cannot be: the error is that the project is
    not there.

    >>> project_hint("stale-samplr", ["stale-sampler", "rewards"])
    "; did you mean 'stale-sampler'?"
    """
    if not wanted:
        return ""
    try:
        names = list(islice(projects, MAX_PROJECTS))
    except Exception:  # SDKs raise anything, and what is told already is what went wrong
        return ""
    close = difflib.get_close_matches(wanted, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def find_tracker(project: str, locations: Sequence[str]) -> tuple[Tracker, str]:
    """The tracker to audit and a sentence that says why it was chosen.

    ``locations`` come from the user; without any, a local store that holds the project, then a configured server,
    then stored W&B credentials.

    Raises:
        UsageError: the locations belong to different adapters, or nothing is configured.
    """
    if locations:
        names = {location: adapter_for(location) for location in locations}
        if len(set(names.values())) > 1:
            listed = ", ".join(f"{without_credentials(location)} ({name})" for location, name in names.items())
            raise UsageError(f"one audit reads one kind of tracker, these are several: {listed}; audit them one by one")
        name = next(iter(names.values()))
        bare = [location.removeprefix(f"{name}:") for location in locations]
        tracker = load_adapter(name).open_tracker(bare)
        return tracker, f"{tracker.address}, as named"
    offers: list[tuple[int, str, Candidate]] = []
    passed_over: list[str] = []
    for name in adapters():
        offers += [(candidate.order, name, candidate) for candidate in load_adapter(name).candidates()]
    for order, name, candidate in sorted(offers, key=lambda offer: offer[:2]):
        tracker = load_adapter(name).open_tracker([candidate.location])
        if order == 0 and project not in (held := tracker.projects()):
            holds = ", ".join(held[:5]) or "nothing"
            meant = project_hint(project, held)
            passed_over.append(f"; {candidate.location} is here and holds {holds}{meant}")
            tracker.close()
            continue
        return tracker, f"{tracker.address}, chosen because {candidate.why}"
    raise UsageError(
        "no tracker is configured: name one with --tracker (sqlite:///mlflow.db, http://host:5000, wandb), "
        "set MLFLOW_TRACKING_URI or WANDB_API_KEY, or give a path to audit" + "".join(passed_over)
    )
