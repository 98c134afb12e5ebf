"""What ``pth-tracker doctor`` finds out: what is installed, which trackers answer, what can be judged.

Whatever may hang is asked in a process of its own and given up after a time-out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pth_tracker.errors import ExitCode, NothingSelected, PthTrackerError, TrackerError

if TYPE_CHECKING:
    from pth_tracker.model import Audit

DISTRIBUTION: Final = "pth-tracker"
SDKS: Final = ("mlflow", "wandb")
USER_EXTRAS: Final = {
    "nightly": "nightly --cron",
    "notify": "messages of nightly",
    "dask": "--executor dask://",
    "postgres": "MLflow in PostgreSQL",
}
"""Extra to what a user gets from it; the others are for who develops pth-tracker."""
_REQUIREMENT: Final = re.compile(r"\A\s*([A-Za-z0-9][\w.-]*)")
_EXTRA: Final = re.compile(r"extra\s*==\s*['\"]([\w.-]+)['\"]")


@dataclass(frozen=True)
class Installed:
    """What is installed here."""

    version: str
    python: str
    sdks: dict[str, str]
    """SDK to its release; ``""``: it is missing."""
    extras: dict[str, tuple[str, ...]]
    """Extra to the distributions that it lacks; empty: it is complete."""


@dataclass(frozen=True)
class Answer:
    """What one tracker that the environment or the user names answered."""

    adapter: str
    location: str
    """Without credentials."""
    why: str
    """Continues "because": ``MLFLOW_TRACKING_URI is set``."""
    projects: int | None = None
    """How many it shows; None: it did not answer."""
    account: str = ""
    """Whose credentials it was asked with; ``""``: nobody's."""
    error: str = ""
    exit_code: int = ExitCode.OK


@dataclass(frozen=True)
class Remedy:
    """What would make rules judgeable that are not."""

    text: str
    rules: tuple[str, ...]
    subjects: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class ProjectHealth:
    """What an audit of one project could judge."""

    chosen: str
    runs: int
    frameworks: dict[str, int]
    """Framework and release to its number of runs."""
    unrecognised: int
    """Runs of no known framework, which are read by the names in general use."""
    judged: tuple[str, ...]
    """Rules that were judged on any subject."""
    remedies: tuple[Remedy, ...]
    errors: tuple[str, ...]


@dataclass(frozen=True)
class Health:
    """All that was found out."""

    installed: Installed
    trackers: tuple[Answer, ...] = ()
    project: ProjectHealth | None = None
    problem: str = ""
    """Why the project could not be looked at."""
    exit_code: int = field(default=ExitCode.OK)


def installed() -> Installed:
    """The releases of what is installed, and which extras are complete."""
    import platform
    from importlib.metadata import PackageNotFoundError, metadata, requires, version

    def release(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return ""

    provided = metadata(DISTRIBUTION).get_all("Provides-Extra") or ()
    lacking: dict[str, list[str]] = {extra: [] for extra in USER_EXTRAS if extra in provided}
    for line in requires(DISTRIBUTION) or ():
        requirement, extra = _REQUIREMENT.match(line), _EXTRA.search(line)
        if requirement and extra and extra[1] in lacking and not release(requirement[1]):
            lacking[extra[1]].append(requirement[1])
    extras = {extra: tuple(missing) for extra, missing in lacking.items()}
    return Installed(release(DISTRIBUTION), platform.python_version(), {sdk: release(sdk) for sdk in SDKS}, extras)


def offered(locations: Sequence[str]) -> tuple[list[tuple[str, str, str]], list[Answer]]:
    """(adapter, location, why) of each tracker that the user or, without any, the environment names.

    Beside them those that are named wrongly, which need not be asked.
    """
    from pth_tracker.tracker import adapter_for, adapters, load_adapter, without_credentials

    found: list[tuple[str, str, str]] = []
    wrong: list[Answer] = []
    for location in locations:
        try:
            found.append((adapter_for(location), location, "it was named"))
        except PthTrackerError as error:
            shown = without_credentials(location)
            wrong.append(Answer("nothing", shown, "it was named", error=str(error), exit_code=error.exit_code))
    for name in adapters() if not locations else ():
        try:
            found += [(name, one.location, one.why) for one in load_adapter(name).candidates()]
        except PthTrackerError as error:
            wrong.append(Answer(name, "", "it is configured", error=str(error), exit_code=error.exit_code))
    return found, wrong


def refused(offer: tuple[str, str, str], error: PthTrackerError) -> Answer:
    """What stands for the answer of a tracker that gave none."""
    from pth_tracker.tracker import without_credentials

    adapter, location, why = offer
    return Answer(adapter, without_credentials(location), why, error=str(error), exit_code=error.exit_code)


def ask(adapter: str, location: str, why: str) -> Answer:
    """What the tracker at ``location`` answers."""
    from pth_tracker.tracker import KnowsAccount, load_adapter, without_credentials

    try:
        with closing(load_adapter(adapter).open_tracker([location.removeprefix(f"{adapter}:")])) as tracker:
            account = tracker.account() if isinstance(tracker, KnowsAccount) else ""
            return Answer(adapter, without_credentials(location), why, len(tracker.projects()), account)
    except PthTrackerError as error:
        return refused((adapter, location, why), error)


def look(project: str, paths: Sequence[str], trackers: Sequence[str], vocabularies: Sequence[Path]) -> ProjectHealth:
    """What an audit of the project can judge; reads its runs and histories and writes nothing.

    Raises:
        PthTrackerError: as `pth_tracker.engine.audit` and `find_tracker` do.
    """
    from pth_tracker.cli.audit import open_tracker
    from pth_tracker.engine import Options, audit

    opened, chosen = open_tracker(project, list(paths), list(trackers))
    with closing(opened):
        return health_of(audit(opened, Options(project=project, vocabularies=tuple(vocabularies)), chosen=chosen))


def health_of(audit: Audit) -> ProjectHealth:
    """What an audit says of what could be judged."""
    from pth_tracker.model import Outcome
    from pth_tracker.vocabulary.detect import GENERIC

    judged = {entry.rule for entry in audit.coverage if entry.outcome is not Outcome.NOT_JUDGED}
    told = [f"{run.framework} {run.version or ''}".strip() for run in audit.runs.values()]
    by_text: dict[str, list[Any]] = {}
    for entry in audit.not_judged:
        if entry.rule not in judged:
            by_text.setdefault(entry.remedy, []).append(entry)
    remedies = [
        Remedy(
            text,
            *(tuple(dict.fromkeys(values)) for values in (
                (entry.rule for entry in entries),
                (entry.subject for entry in entries),
                (name for entry in entries for name in entry.missing),
            )),
        )
        for text, entries in by_text.items()
    ]  # fmt: skip
    return ProjectHealth(
        chosen=audit.chosen,
        runs=len(audit.runs),
        frameworks=dict(Counter(told)),
        unrecognised=sum(run.framework == GENERIC for run in audit.runs.values()),
        judged=tuple(sorted(judged)),
        remedies=tuple(sorted(remedies, key=lambda remedy: -len(remedy.rules))),
        errors=tuple(f"{error.name}: {error.message}" for error in audit.errors),
    )


def exit_code_of(health: ProjectHealth) -> ExitCode:
    """The status that a look at a project ends with."""
    if not health.judged:
        return NothingSelected.exit_code
    return TrackerError.exit_code if health.errors else ExitCode.OK


def within(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module yields in a process of its own.

    Raises:
        TrackerError: it took longer than ``seconds``, or its process died.
        PthTrackerError: as the function does.
    """
    (waiting,) = start([(function, arguments)])
    return waiting(seconds)


def start(calls: Iterable[tuple[Callable[..., Any], Sequence[Any]]]) -> list[Callable[[float], Any]]:
    """Starts all ``calls`` at once; each entry waits for one, as `within` says."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")  # forking would copy the threads' locks of an SDK
    started: list[Callable[[float], Any]] = []
    for function, arguments in calls:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_deliver, args=(sending, function, tuple(arguments)), daemon=True)
        process.start()
        sending.close()

        def wait(seconds: float, receiving: Any = receiving, process: Any = process) -> Any:
            try:
                if not receiving.poll(seconds):
                    raise TrackerError(f"no answer within {seconds:g} s: give it longer with --timeout")
                result = receiving.recv()
            except EOFError:
                raise TrackerError("the process that asked it ended without an answer") from None
            finally:
                process.kill()
                process.join()
                receiving.close()
            if isinstance(result, BaseException):
                raise result
            return result

        started.append(wait)
    return started


def _deliver(sending: Any, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    try:
        result: Any = function(*arguments)
    except PthTrackerError as error:
        result = PlainError(str(error), error.exit_code)
    except Exception as error:  # whatever an SDK raises: it must not look like a time-out
        result = PlainError(f"{type(error).__name__}: {error}", ExitCode.TRACKER)
    sending.send(result)
    sending.close()


class PlainError(PthTrackerError):
    """An error as it comes out of another process: its sentence and its exit status."""

    def __init__(self, message: str, exit_code: ExitCode) -> None:
        super().__init__(message, exit_code)
        self.exit_code = exit_code

    def __str__(self) -> str:
        return str(self.args[0])
