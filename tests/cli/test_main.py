from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from pth_tracker import tracker
from pth_tracker.cli import main
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
        ("audit nowhere.txt", "nothing here reads 'nowhere.txt'"),
        ("untag", "name the project whose marks go"),
        ("explain idle-clp", "did you mean idle-clip"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_to_do(arguments: str, words: str, capsys: Capture) -> None:
    assert main(arguments.split()) == ExitCode.USAGE
    captured = capsys.readouterr()
    assert captured.out == "" and words in captured.err and captured.err.count("\n") == 1


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
