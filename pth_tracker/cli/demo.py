"""``pth-tracker demo``: trains a small comparison with bugs in it, audits it, and says how to repeat the audit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from pth_tracker.cli import options as opt
from pth_tracker.cli.options import Color, StdoutFormat
from pth_tracker.cli.output import note, runnable
from pth_tracker.cli.session import Reporting, Writing, audit_and_report
from pth_tracker.errors import UsageError

if TYPE_CHECKING:
    from pth_tracker.demo import Sink

FOLDER: Final = Path("pth-demo")

Repaired = Annotated[
    bool,
    opt.option("--repaired", help="Train the comparison with its bugs mended."),
]
Folder = Annotated[
    Path,
    opt.option(
        "--folder",
        metavar="DIR",
        default=True,
        help="Where the MLflow store of the demo is made; an earlier demo in it is replaced.",
    ),
]
ConsoleLogs = Annotated[
    Path | None,
    opt.option("--console-log", metavar="DIR", help="Also write each run's console log, as verl prints it, to DIR."),
]


def demo(
    repaired: Repaired = False,
    folder: Folder = FOLDER,
    console_log: ConsoleLogs = None,
    no_write: opt.NoWrite = False,
    exit_zero: opt.ExitZero = False,
    output: opt.Outputs = None,
    format: opt.ReportFormat = StdoutFormat.TEXT,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    color: opt.ColorChoice = Color.AUTO,
) -> int:
    """Train a small comparison with bugs in it, and audit it.

    Trains twelve small policies on this machine, in about a minute, into an MLflow store in --folder; all four bugs are
    in the harness around them. The audit finds them by name and marks the runs; the command ends with the audit's
    exit status, 1.
    """
    reporting = Reporting(tuple(output or ()), format, quiet, verbose, color, exit_zero=exit_zero)
    reporting.check()
    if console_log is not None:
        _make_folder(console_log)
    from pth_tracker import demo as training
    from pth_tracker.engine import Options
    from pth_tracker.render.text import short_exit_words
    from pth_tracker.tracker import find_tracker

    uri = training.embedded_store(folder, repaired=repaired)
    project = training.experiment_name(repaired)
    if not quiet:
        note(f"training the demo into {uri}, experiment {project}")

    def make_sink() -> Sink:
        store = training.MlflowSink(uri, project)
        return store if console_log is None else _Both(store, _ConsoleLogs(console_log))

    training.run_demo(make_sink, repaired=repaired, progress=None if quiet else lambda line: note(f"  {line}"))
    opened, chosen = find_tracker(project, [uri])
    with closing(opened):
        status = audit_and_report(opened, Options(project=project), chosen, reporting, Writing(no_write=no_write))
    repeat = shlex.join([*runnable("pth-tracker"), "audit", "--project", project, "--tracker", uri])
    note(f"\nThe audit ended with exit status {int(status)}: {short_exit_words(status)}.")
    note(f"To repeat it:\n  {repeat}")
    note(f"To see the marks in the dashboard:\n  {shlex.join([*runnable('mlflow'), 'ui', '--backend-store-uri', uri])}")
    return status


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--console-log: cannot make the folder {str(path)!r}: {error.strerror}") from error


class _ConsoleLogs:
    """A sink that writes one run's console log to a file in a folder, named after the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sink: Sink | None = None

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        from pth_tracker.demo import ConsoleSink

        self._sink = ConsoleSink(self._folder / f"{name}.txt")
        self._sink.start(name, config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._sink is not None:
            self._sink.log(step, metrics)

    def finish(self, *, failed: bool = False) -> None:
        if self._sink is not None:
            self._sink.finish(failed=failed)


class _Both:
    """A sink that hands everything to several sinks."""

    def __init__(self, *sinks: Sink) -> None:
        self._sinks = sinks

    def start(self, name: str, config: Mapping[str, Any]) -> None:
        for sink in self._sinks:
            sink.start(name, config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for sink in self._sinks:
            sink.log(step, metrics)

    def finish(self, *, failed: bool = False) -> None:
        for sink in self._sinks:
            sink.finish(failed=failed)
