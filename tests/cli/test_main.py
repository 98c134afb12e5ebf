from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, get_args

import pytest
import typer

from pth_tracker import tracker
from pth_tracker.cli import app, main
from pth_tracker.errors import (
    AdapterUnavailable,
    DesignError,
    ExitCode,
    NothingSelected,
    ProjectNotFound,
    PthTrackerError,
    TrackerError,
    UsageError,
)

Capture = pytest.CaptureFixture[str]


class Parameter(NamedTuple):
    """An option or argument, and the type of its values."""

    kind: Any
    flag: str


def failing(error: BaseException) -> Callable[..., object]:
    def find_tracker(project: str, locations: list[str]) -> object:
        raise error

    return find_tracker


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("u"), 2),
        (DesignError("d", path="design.yaml", line=3, key="arms"), 2),
        (ProjectNotFound("p"), 2),
        (NothingSelected("n"), 3),
        (TrackerError("t"), 4),
        (AdapterUnavailable("a"), 4),
        (PthTrackerError("b"), 2),
        (KeyError("k"), 2),
    ],
)
def test_every_error_is_one_line_and_its_exit_status(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(tracker, "find_tracker", failing(error))
    assert main(["audit", "--project", "p"]) == status
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("pth-tracker: error: ") and captured.err.count("\n") == 1
    assert str(error) in captured.err and "Traceback" not in captured.err


def test_an_error_is_harmless_text(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(tracker, "find_tracker", failing(TrackerError("said:\n  \x1b[31mno\u202e")))
    assert main(["audit", "--project", "p"]) == ExitCode.TRACKER
    assert capsys.readouterr().err == "pth-tracker: error: said: \\x1b[31mno\\u202e\n"


def test_interrupting_ends_with_130(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(tracker, "find_tracker", failing(KeyboardInterrupt()))
    assert main(["audit", "--project", "p"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err == "pth-tracker: interrupted\n"


def test_debugging_shows_where_it_happened(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("PTH_TRACKER_DEBUG", "1")
    monkeypatch.setattr(tracker, "find_tracker", failing(TrackerError("t")))
    assert main(["audit", "--project", "p"]) == ExitCode.TRACKER
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setattr(tracker, "find_tracker", failing(KeyError("k")))
    assert main(["audit", "--project", "p"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "Traceback" in said and "KeyError: 'k'" in said and "in find_tracker" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("audit --projct p", "No such option: --projct"),
        ("audt", "No such command 'audt'"),
        ("audit --color red", "'red'"),
        ("audit", "name what to audit: --project NAME"),
        ("audit --project p -q -v", "-q prints less and -v prints more"),
        ("audit --project p --dry-run --no-write", "--dry-run shows what would be written"),
        ("audit --project p --since soon", "--since 'soon' is no moment"),
        ("audit --project p -o report.docx", "cannot tell a report format from the name 'report.docx'"),
        ("audit --project p -o none/report.json", "there is no folder 'none'"),
        ("audit --project p --design none.yaml", "none.yaml"),
        ("audit --project p --arm grpo", "--arm takes NAME=GLOB"),
        ("audit --project p --tracker ftp://x", "nothing here reads 'ftp://x'"),
        ("audit --project p", "no tracker is configured"),
        ("audit nowhere.txt", "'nowhere.txt' does not exist"),
        ("untag", "name the project whose marks go"),
        ("explain idle-clp", "did you mean idle-clip"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_to_do(arguments: str, words: str, capsys: Capture) -> None:
    assert main(arguments.split()) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and captured.err.count("\n") == 1


def options_of(kind: type) -> list[tuple[str, Parameter]]:
    """(command, option) of all whose values are of this type."""
    commands: Any = typer.main.get_command(app)
    found = []
    for name, command in commands.commands.items():
        own = inspect.signature(command.callback, eval_str=True).parameters
        for parameter in command.params:
            declared = own.get(parameter.name)
            annotation = declared.annotation if declared else None
            while hasattr(annotation, "__origin__") and annotation is not None:
                annotation = get_args(annotation)[0]
            if isinstance(annotation, type) and issubclass(annotation, kind) and annotation is not bool:
                found.append((name, Parameter(annotation, parameter.opts[0])))
    return found


CHOICES = options_of(StrEnum)
NUMBERS = [*options_of(int), *options_of(float)]


@pytest.mark.parametrize(("command", "option"), CHOICES, ids=[f"{name} {one.flag}" for name, one in CHOICES])
def test_a_choice_that_is_none_is_told_with_those_there_are(command: str, option: Parameter, capsys: Capture) -> None:
    given = [option.flag, "htm"] if option.flag.startswith("-") else ["htm"]
    assert main([command, *given]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "Value error" not in said and said.count("\n") == 1
    allowed = ", ".join(repr(str(one.value)) for one in option.kind)
    assert f"'htm' is not one of {allowed} (see 'pth-tracker {command} --help')" in said


def test_there_are_choices_and_numbers_to_try() -> None:
    assert len(CHOICES) > 8 and len(NUMBERS) > 0


@pytest.mark.parametrize(("command", "option"), NUMBERS, ids=[f"{name} {one.flag}" for name, one in NUMBERS])
def test_a_number_that_is_none_is_told_plainly(command: str, option: Parameter, capsys: Capture) -> None:
    assert main([command, option.flag, "x"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "it has to be a" in said and "Input should" not in said and option.flag in said


def test_without_a_command_the_help_is_shown(capsys: Capture) -> None:
    assert main([]) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and "Commands:" in captured.err
    assert main(["--help"]) == ExitCode.OK
    assert "Commands:" in capsys.readouterr().out
    assert main(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("pth-tracker 0.")


@pytest.mark.parametrize("arguments", [["--help"], ["explain"], ["explain", "idle-clip"]])
def test_a_reader_that_goes_away_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pth_tracker", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_explain_lists_and_explains(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from pth_tracker.checks import all_rules

    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain"]) == ExitCode.OK
    listed = capsys.readouterr().out
    for rule in all_rules():
        assert f"\n  {rule.slug} " in listed
        assert main(["explain", rule.slug]) == ExitCode.OK
        text = capsys.readouterr().out
        assert text.startswith(f"{rule.slug}\ncheck {rule.check} (") and "Judged from" in text
        blocks = [line for line in inspect.cleandoc(rule.doc).split("\n") if line.startswith("    ")]
        assert [line for line in text.split("\n") if len(line) > 80 and line not in blocks] == []
