"""The command ``pth-tracker``: one file per command; `main` maps errors to exit statuses."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final, TextIO, cast

import typer

from pth_tracker import __version__
from pth_tracker.cli.audit import audit
from pth_tracker.cli.batches import batches
from pth_tracker.cli.cache import cache
from pth_tracker.cli.demo import demo
from pth_tracker.cli.doctor import doctor
from pth_tracker.cli.explain import explain
from pth_tracker.cli.init import init
from pth_tracker.cli.nightly import nightly
from pth_tracker.cli.paired import paired
from pth_tracker.cli.trend import trend
from pth_tracker.cli.untag import untag
from pth_tracker.cli.verl import verl
from pth_tracker.errors import ExitCode, PthTrackerError

PROGRAM: Final = "pth-tracker"
DEBUG_VARIABLE: Final = "PTH_TRACKER_DEBUG"
"""Set to 1, tracebacks are shown."""

CommandLineError: Final = cast(type[Exception], typer.BadParameter.__mro__[2])
"""What the parser raises: the base of all its errors, which Typer does not export under a name of its own."""

_PARSER_WORDS: Final = {
    ": Value error, ": ": ",
    "Input should be a valid integer, unable to parse string as an integer": "it has to be a whole number",
    "Input should be a valid number, unable to parse string as a number": "it has to be a number",
}
"""What the parser hands on from pydantic, and what is said instead."""

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, invoke_without_command=True)
for command in (audit, verl, batches, paired, init, doctor, demo, nightly, trend, cache, untag, explain):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def pth_tracker(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> int:
    """Audit RL comparisons where they are kept.

    Reads runs from W&B, MLflow and log files, runs seven checks on them, says by name what is wrong, and writes the
    verdict back.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        return ExitCode.USAGE
    return ExitCode.OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line ``arguments`` (those of the process where None) and yields the exit status."""
    # Pydantic looks for plugins in every installed package, which takes longer than building our own schemas.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        return _run(arguments)
    finally:
        _let_go(sys.stdout)
        _let_go(sys.stderr)


def _let_go(stream: TextIO) -> None:
    """What a full or vanished ``stream`` never took is dropped: kept, it would change the exit status at the end."""
    try:
        stream.flush()
    except (OSError, ValueError):
        from pth_tracker.cli.output import silence

        with suppress(OSError, ValueError):
            silence(stream)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        status = typer.main.get_command(app).main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
        return _interrupted() if status == ExitCode.INTERRUPTED else int(status or ExitCode.OK)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            return _reader_gone()
        raise
    except PthTrackerError as error:
        return _complain(str(error), error.exit_code)
    except CommandLineError as error:
        return _complain(_parser_message(error), ExitCode.USAGE)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = error.filename or "standard output"
            return _complain(f"{where} cannot be written: {error.strerror}", ExitCode.USAGE)
        from pth_tracker.redaction import hide_secrets

        what = hide_secrets(f"{type(error).__name__}: {error}")
        return _complain(f"internal error, please report it ({what}); {DEBUG_VARIABLE}=1 shows where", ExitCode.USAGE)


def _complain(message: str, status: ExitCode) -> int:
    from pth_tracker.redaction import hide_secrets, without_environment
    from pth_tracker.render.text import safe_text

    with suppress(OSError):
        if os.environ.get(DEBUG_VARIABLE) == "1":
            import traceback

            print(hide_secrets(without_environment(traceback.format_exc())), file=sys.stderr, end="")
        plain = safe_text(without_environment(" ".join(message.split())))
        print(f"{PROGRAM}: error: {plain}", file=sys.stderr)
    return status


def _parser_message(error: Exception) -> str:
    message = str(error.format_message()) if hasattr(error, "format_message") else str(error)
    for theirs, ours in _PARSER_WORDS.items():
        message = message.replace(theirs, ours)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    return f"{message.rstrip('.')} (see '{path} --help')"


def _interrupted() -> int:
    print(f"{PROGRAM}: interrupted", file=sys.stderr)
    return ExitCode.INTERRUPTED


def _reader_gone() -> int:
    from pth_tracker.cli.output import silence

    silence(sys.stdout)
    return ExitCode.OK
