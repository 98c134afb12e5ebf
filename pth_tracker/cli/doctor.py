"""``pth-tracker doctor``: what is installed, which trackers answer, and what an audit of a project could judge."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

from pth_tracker.cli import options as opt
from pth_tracker.cli.audit import Paths
from pth_tracker.cli.options import StdoutFormat
from pth_tracker.cli.output import emit, terminal_width
from pth_tracker.errors import EXIT_PRIORITY, ExitCode, PthTrackerError, UsageError

if TYPE_CHECKING:
    from pth_tracker.cli.health import Answer, Health, Installed, ProjectHealth

TIMEOUT: Final = 60.0

Timeout = Annotated[
    float,
    opt.option("--timeout", metavar="SECONDS", default=True, help="How long each tracker, and the project, may take."),
]


def doctor(
    paths: Paths = None,
    project: opt.Project = "",
    tracker: opt.Trackers = None,
    vocabulary: opt.Vocabularies = None,
    timeout: Timeout = TIMEOUT,
    format: opt.ReportFormat = StdoutFormat.TEXT,
) -> int:
    """Say what works here, and what an audit could judge.

    Tells what is installed, which trackers answer and as whom, and with --project or paths which framework trained
    the runs, which rules can be judged, and for each that cannot the option of that framework to switch on. Nothing is
    written. Ends with 0 where all is well, 4 where a configured tracker does not answer, 3 where nothing can be judged.
    """
    if not 0 < timeout < 1e6:
        raise UsageError(f"--timeout is a number of seconds above 0, and is {timeout:g}")
    files = opt.vocabulary_files(vocabulary)
    from pth_tracker.cli import health

    asked: list[Answer] = []
    if not paths:
        offers, asked = health.offered(tracker or [])
        for offer, wait in zip(offers, health.start((health.ask, offer) for offer in offers)):
            try:
                asked.append(wait(timeout))
            except PthTrackerError as error:
                asked.append(health.refused(offer, error))
    found: ProjectHealth | None = None
    problem = ""
    codes = {ExitCode(answer.exit_code) for answer in asked}
    if project or paths:
        try:
            found = health.within(timeout, health.look, project, paths or (), tracker or (), files)
            codes.add(health.exit_code_of(found))
        except PthTrackerError as error:
            problem = str(error)
            codes.add(ExitCode(error.exit_code))
    status = next(code for code in EXIT_PRIORITY if code in {*codes, ExitCode.OK})
    result = health.Health(health.installed(), tuple(asked), found, problem, int(status))
    if format is StdoutFormat.JSON:
        import json

        from pth_tracker.values import to_json_value

        emit(json.dumps(to_json_value(asdict(result)), indent=2, allow_nan=False) + "\n")
    else:
        emit("\n".join(shown(result, project or " ".join(paths or ()), terminal_width())) + "\n")
    return status


def shown(health: Health, subject: str, width: int) -> list[str]:
    """The findings as lines for people."""
    lines = [*_installed(health.installed, width), "", "Trackers", *_trackers(health, width)]
    if health.problem or health.project:
        lines += ["", *_project(health, subject, width)]
    else:
        lines += ["", "Name a project with --project, or a path, to see what could be judged there."]
    return lines


def _installed(found: Installed, width: int) -> list[str]:
    from pth_tracker.cli.health import USER_EXTRAS
    from pth_tracker.render.text import wrap

    sdks = ", ".join(
        f"{name} {release or '(missing: pip install ' + name + ')'}" for name, release in found.sdks.items()
    )
    complete = [extra for extra, missing in found.extras.items() if not missing]
    lines = [f"pth-tracker {found.version}, Python {found.python}, {sdks}"]
    if complete:
        lines += wrap(f"extras installed: {', '.join(complete)}", width, "  ")
    lacking = [extra for extra, missing in found.extras.items() if missing]
    if lacking:
        told = ", ".join(f"{extra} (for {USER_EXTRAS[extra]})" for extra in lacking)
        command = f"pip install 'pth-tracker[{','.join(lacking)}]'"
        lines += wrap(f"extras not installed: {told}; where you need them: {command}", width, "  ")
    return lines


def _trackers(health: Health, width: int) -> list[str]:
    from pth_tracker.render.text import counted, wrap

    if not health.trackers:
        none = (
            "none is configured: name one with --tracker, set MLFLOW_TRACKING_URI or WANDB_API_KEY, or keep a store "
            "mlflow.db in this folder"
        )
        return wrap(none if health.project is None else "files are read, no tracker is asked", width, "  ")
    lines: list[str] = []
    for answer in health.trackers:
        place = f"{answer.adapter} at {answer.location} ({answer.why})"
        if answer.error:
            text = f"FAILED {place}: {answer.error}"
        else:
            account = f", as {answer.account}" if answer.account else ""
            text = f"ok {place}{account}: {counted(answer.projects or 0, 'project')}"
        lines += wrap(text, width, "    ", "  ")
    return lines


def _project(health: Health, subject: str, width: int) -> list[str]:
    from pth_tracker.checks import all_rules
    from pth_tracker.render.text import compact_names, counted, wrap

    if health.project is None:
        return wrap(f"{subject}: {health.problem}", width, "  ", "")
    found = health.project
    trained = ", ".join(f"{name} ({counted(runs, 'run')})" for name, runs in found.frameworks.items())
    lines = wrap(f"{subject}: {counted(found.runs, 'run')} in {found.chosen}", width, "  ", "")
    lines += wrap(f"trained by {trained}", width, "    ", "  ")
    if found.unrecognised:
        lines += wrap(
            f"the framework of {counted(found.unrecognised, 'run')} is not known: they are read by the names in "
            "general use; teach them with --vocabulary FILE",
            width, "    ", "  ",
        )  # fmt: skip
    for error in found.errors:
        lines += wrap(f"cannot be read: {error}", width, "    ", "  ")
    total = len(all_rules())
    lines += wrap(f"{len(found.judged)} of {total} rules can be judged", width, "    ", "  ")
    if found.remedies:
        lines += ["  the others need:"]
    for remedy in found.remedies:
        lines += wrap(f"{remedy.text or 'more than is logged'}", width, "      ", "    - ")
        where = f" ({compact_names(remedy.subjects, 4)})" if len(found.frameworks) > 1 else ""
        lines += wrap(f"for {compact_names(remedy.rules, None)}{where}", width, "        ", "      ")
    return lines
