"""What the tests of faults share: a command in this process, and what has to hold of every end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from faults.table import Row, Written, rows_of
from pth_tracker.cli import main

Marks = Mapping[str, object]
"""Run name to whatever our marks on it are, without the time."""
BROKEN = "ppo-seed41"
"""The run that the faults of one run strike."""


def params(*adapters: str) -> list[Any]:
    """The rows of these adapters as parameters of a test."""
    return [pytest.param(row, marks=[pytest.mark.slow] if row.slow else [], id=row.name) for row in rows_of(*adapters)]


@dataclass(frozen=True)
class Ended:
    """What a command came to."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """All that was said, on one line."""
        return " ".join(f"{self.out} {self.err}".split())


def run(capsys: pytest.CaptureFixture[str], *command: str) -> Ended:
    """Runs the command line in this process."""
    capsys.readouterr()
    status = main(command)
    captured = capsys.readouterr()
    return Ended(status, captured.out, captured.err)


def check(row: Row, ended: Ended) -> None:
    """The exit status and the words are those of the row; what stops an audit is one sentence and never a traceback."""
    assert ended.status == row.status, ended.said
    assert "Traceback" not in ended.said and "internal error" not in ended.said
    for words in row.says:
        assert words in ended.said, f"{words!r} is not said: {ended.said}"
    if not ended.out:
        assert ended.err.count("\n") == 1 and ended.err.startswith("pth-tracker: error: "), ended.err


def check_written(row: Row, now: Marks, published: bool, before: Marks, after: Marks) -> None:
    """Every run has the marks of before or those of after, and which follows from the row; so does the audit run."""
    assert set(now) == set(before) == set(after)
    unread = {BROKEN} if row.written is Written.OTHERS and "'not-judged'" in str(now[BROKEN]) else set()
    whole = {name for name, marks in now.items() if marks in (before[name], after[name])}
    assert whole | unread == set(now), "half-written"
    if row.written in (Written.NOTHING, Written.READ_ONLY):
        assert now == before and not published
    elif row.written in (Written.ALL, Written.MARKS):
        assert now == after and (published or row.written is Written.MARKS)
    elif row.written is Written.OTHERS:
        assert {name: now[name] for name in now if name != BROKEN} == {n: after[n] for n in after if n != BROKEN}
        assert published
    else:
        assert not published
