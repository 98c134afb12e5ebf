from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest

from pth_tracker.cli import output
from pth_tracker.cli.options import Color
from pth_tracker.cli.output import Progress, check_writable, use_color, write_atomically
from pth_tracker.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_command_is_named_as_a_shell_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tool.parent / "python"))
    monkeypatch.setenv("PATH", str(tool.parent))
    assert output.runnable("tool") == ["tool"] and output.runnable("other") == ["other"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert output.runnable("tool") == [str(tool)]


def test_files_are_written_whole_with_ordinary_permissions(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    write_atomically(target, "größe\n")
    assert target.read_bytes() == "größe\n".encode()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask
    target.chmod(0o600)
    write_atomically(target, "2\n")
    assert target.read_text() == "2\n" and stat.S_IMODE(target.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["r.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "latest.txt").symlink_to("real.txt")
    write_atomically(tmp_path / "latest.txt", "x")
    assert (tmp_path / "latest.txt").is_symlink() and (tmp_path / "real.txt").read_text() == "x"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "r.txt"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(target, "\ud800")
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["r.txt"]


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    check_writable([pipe])
    write_atomically(pipe, "hello")
    assert os.read(reader, 10) == b"hello" and pipe.is_fifo()
    os.close(reader)


def test_files_that_cannot_be_written_are_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="it is a folder"):
        check_writable([tmp_path])
    with pytest.raises(UsageError, match="there is no folder .*; make it first"):
        check_writable([tmp_path / "none" / "r.json"])
    with pytest.raises(UsageError, match="there is no folder"):
        check_writable([tmp_path / "file" / "r.json"])
    with pytest.raises(UsageError, match=r"cannot write '/proc/r\.json': "):
        check_writable([Path("/proc/r.json")])
    check_writable([tmp_path / "r.json"])
    assert os.listdir(tmp_path) == ["file"]


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    terminal, pipe = Terminal(), io.StringIO()
    assert use_color(Color.AUTO, terminal) and not use_color(Color.AUTO, pipe)
    assert use_color(Color.ALWAYS, pipe) and not use_color(Color.NEVER, terminal)
    monkeypatch.setenv("TERM", "dumb")
    assert not use_color(Color.AUTO, terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_color(Color.AUTO, terminal) and use_color(Color.ALWAYS, terminal)


def test_progress_is_one_line_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    terminal = Terminal()
    progress = Progress(stream=terminal)
    for done in range(1, 101):
        clock[0] += 0.01
        progress("reading\x1b[2J", done, 100)
    progress.clear()
    drawn = terminal.getvalue().split("\r\x1b[K")
    assert drawn[-1] == "" and drawn[-2] == r"reading\x1b[2J: 100 of 100"
    assert 8 <= len(drawn) <= 13, "drawn ten times a second, not a hundred times"
    for stream, quiet in ((io.StringIO(), False), (Terminal(), True)):
        silent = Progress(quiet, stream)
        silent("reading", 1, 1)
        silent.clear()
        assert stream.getvalue() == ""


def test_a_narrow_encoding_gets_escapes_not_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    output.emit("größe 学\n")
    assert raw.getvalue() == b"gr\\xf6\\xdfe \\u5b66\n"
