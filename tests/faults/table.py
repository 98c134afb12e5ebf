"""What every adapter does when something fails: the rows that `test_faults` makes happen and docs/faults.md shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pth_tracker.errors import ExitCode


class Written(StrEnum):
    """What is in the tracker afterwards."""

    NOTHING = "nothing"
    ALL = "everything"
    OTHERS = "the marks of the other runs, and the audit run; the run itself at most as not judged"
    SOME = "of each run all marks or none; not the audit run"
    MARKS = "the marks; the audit run not, or in part"
    READ_ONLY = "nothing: it is only read"


@dataclass(frozen=True)
class Row:
    """One fault at one moment, and what is to come of it."""

    adapter: str
    fault: str
    when: str
    """What the audit is at: ``opening``, ``listing``, ``histories``, ``marks``, ``write``, ``publish``, ..."""
    status: ExitCode
    says: tuple[str, ...]
    """Words of the one sentence on standard error or, where there is a report, in it."""
    written: Written
    slow: bool = False

    @property
    def name(self) -> str:
        """What the test of the row is called."""
        return f"{self.adapter}: {self.fault}, {self.when}"


OK, FAILED, USAGE, NOTHING, TRACKER = (
    ExitCode.OK, ExitCode.CHECK_FAILED, ExitCode.USAGE, ExitCode.NOTHING, ExitCode.TRACKER,
)  # fmt: skip
"""FAILED is how an audit of the tests' runs ends when nothing is wrong but the runs: one arm has an Idle Clip."""

SERVER, DATABASE, POSTGRES = "MLflow server", "MLflow SQLite", "MLflow PostgreSQL"
WANDB, FOLDER, FILES = "W&B server", "W&B folder", "files"
CACHE, OUTPUTS, CLOCK = "cache", "outputs", "clock"

NOT_MLFLOW = ("does not answer as an MLflow server",)
ALIVE = Written.NOTHING

MLFLOW_SERVER = (
    Row(SERVER, "nobody listens", "opening", TRACKER, ("cannot be reached", "Connection refused"), ALIVE),
    Row(SERVER, "time-out", "opening", TRACKER, ("cannot be reached", "timed out"), ALIVE),
    Row(SERVER, "time-out", "listing", TRACKER, ("cannot be reached", "timed out"), ALIVE),
    Row(SERVER, "time-out", "histories", TRACKER, ("cannot be reached", "timed out"), ALIVE),
    Row(SERVER, "time-out", "write", TRACKER, ("cannot be reached", "timed out"), Written.SOME),
    Row(SERVER, "401", "opening", TRACKER, ("asks for credentials (401)", "MLFLOW_TRACKING_USERNAME"), ALIVE),
    Row(SERVER, "401", "histories", TRACKER, ("asks for credentials (401)",), ALIVE),
    Row(SERVER, "403", "listing", TRACKER, ("does not allow this (403)",), ALIVE),
    Row(SERVER, "403", "histories of one run", TRACKER, ("ppo-seed41", "403"), Written.OTHERS),
    Row(SERVER, "403", "write of one run", TRACKER, ("ppo-seed41", "does not allow this (403)"), Written.OTHERS),
    Row(SERVER, "404", "opening", TRACKER, ("it is no MLflow server",), ALIVE),
    Row(SERVER, "404", "histories of one run", TRACKER, ("ppo-seed41", "404"), Written.OTHERS),
    Row(SERVER, "429", "listing", TRACKER, ("failed (429)",), ALIVE),
    Row(SERVER, "429 once", "every request", FAILED, (), Written.ALL),
    Row(SERVER, "500", "listing", TRACKER, ("failed (500)",), ALIVE),
    Row(SERVER, "500", "histories", TRACKER, ("failed (500)",), ALIVE),
    Row(SERVER, "500", "histories of one run", TRACKER, ("ppo-seed41", "failed (500)"), Written.OTHERS),
    Row(SERVER, "500", "write of one run", TRACKER, ("ppo-seed41", "failed (500)"), Written.OTHERS),
    Row(SERVER, "500", "publish", TRACKER, ("the audit run could not be written", "500"), Written.MARKS),
    Row(SERVER, "truncated answer", "listing", TRACKER, ("breaks off its answers",), ALIVE),
    Row(SERVER, "truncated answer", "histories", TRACKER, ("breaks off its answers",), ALIVE),
    Row(SERVER, "truncated answer once", "all but publish", FAILED, (), Written.ALL),
    Row(SERVER, "truncated answer", "publish", TRACKER, ("the audit run could not be written",), Written.MARKS),
    Row(SERVER, "invalid JSON", "listing", TRACKER, NOT_MLFLOW, ALIVE),
    Row(SERVER, "invalid JSON", "histories", TRACKER, NOT_MLFLOW, ALIVE),
    Row(SERVER, "JSON of another shape", "listing", TRACKER, NOT_MLFLOW, ALIVE),
    Row(SERVER, "JSON of another shape", "project", TRACKER, NOT_MLFLOW, ALIVE),
    Row(SERVER, "JSON of another shape", "histories", TRACKER, NOT_MLFLOW, ALIVE),
    Row(SERVER, "slow drip", "listing", TRACKER, ("is too slow",), ALIVE),
    Row(SERVER, "slow drip", "histories", TRACKER, ("is too slow",), ALIVE),
    Row(SERVER, "dies", "listing", TRACKER, ("cannot be reached",), ALIVE),
    Row(SERVER, "dies", "histories", TRACKER, ("cannot be reached",), ALIVE),
    Row(SERVER, "dies", "write", TRACKER, ("cannot be reached",), Written.SOME),
    Row(SERVER, "dies", "publish", TRACKER, ("the audit run could not be written",), Written.MARKS),
    Row(SERVER, "run deleted", "histories", TRACKER, ("ppo-seed41", "active"), Written.OTHERS),
    Row(SERVER, "run removed for good", "histories", TRACKER, ("no longer holds run",), Written.OTHERS),
    Row(SERVER, "run resumed", "histories", FAILED, (), Written.ALL),
)

MLFLOW_DATABASE = (
    Row(DATABASE, "no such file", "opening", USAGE, ("there is no file",), ALIVE),
    Row(DATABASE, "another kind of file", "opening", TRACKER, ("file is not a database",), ALIVE),
    Row(DATABASE, "truncated file", "listing", TRACKER, ("malformed",), ALIVE),
    Row(DATABASE, "file unreadable to the user", "opening", TRACKER, ("unable to open database file",), ALIVE),
    Row(DATABASE, "file that may not be written", "write", FAILED, ("is only read", "not writable"), ALIVE),
    Row(DATABASE, "locked by a writer that stays", "write", TRACKER, ("locked",), Written.SOME, slow=True),
    Row(DATABASE, "full disk", "write", TRACKER, ("could not be written",), Written.SOME),
    Row(DATABASE, "killed", "write", TRACKER, (), Written.SOME),
    Row(DATABASE, "run deleted", "histories", TRACKER, ("ppo-seed41", "active"), Written.OTHERS),
    Row(DATABASE, "run removed for good", "histories", TRACKER, ("no longer holds run",), Written.OTHERS),
    Row(DATABASE, "run resumed", "histories", FAILED, (), Written.ALL),
    Row(POSTGRES, "wrong password", "opening", TRACKER, ("password authentication failed",), ALIVE, slow=True),
    Row(POSTGRES, "nobody listens", "opening", TRACKER, ("cannot be read", "Connection refused"), ALIVE, slow=True),
    Row(POSTGRES, "connection ended", "histories", TRACKER, ("cannot be read",), Written.OTHERS, slow=True),
)

REFUSED = ("refuses the API key", "WANDB_API_KEY")
WANDB_SERVER = (
    Row(WANDB, "nobody listens", "opening", TRACKER, ("could not be reached",), ALIVE),
    Row(WANDB, "time-out", "listing", TRACKER, ("could not be reached",), ALIVE),
    Row(WANDB, "401", "listing", TRACKER, REFUSED, ALIVE),
    Row(WANDB, "401", "histories", TRACKER, REFUSED, ALIVE),
    Row(WANDB, "403", "listing", TRACKER, ("HTTP 403",), ALIVE),
    Row(WANDB, "403", "histories of one run", TRACKER, ("ppo-seed41", "403"), Written.OTHERS),
    Row(WANDB, "403", "write of one run", TRACKER, ("ppo-seed41", "403"), Written.OTHERS),
    Row(WANDB, "404", "histories of one run", TRACKER, ("ppo-seed41", "404"), Written.OTHERS),
    Row(WANDB, "429", "listing", TRACKER, ("limits our requests",), ALIVE),
    Row(WANDB, "500", "listing", TRACKER, ("HTTP 500",), ALIVE),
    Row(WANDB, "500", "histories of one run", TRACKER, ("ppo-seed41", "500"), Written.OTHERS),
    Row(WANDB, "500", "marks", TRACKER, ("500",), ALIVE),
    Row(WANDB, "500", "publish", TRACKER, ("the audit run could not be written",), Written.MARKS),
    Row(WANDB, "truncated answer", "listing", TRACKER, ("W&B at",), ALIVE),
    Row(WANDB, "truncated answer", "histories of one run", TRACKER, ("ppo-seed41",), Written.OTHERS),
    Row(WANDB, "invalid JSON", "listing", TRACKER, ("W&B at",), ALIVE),
    Row(WANDB, "JSON of another shape", "listing", TRACKER, ("does not answer as W&B",), ALIVE),
    Row(WANDB, "slow drip", "listing", TRACKER, ("could not be reached",), ALIVE),
    Row(WANDB, "dies", "histories", TRACKER, ("could not be reached",), ALIVE),
    Row(WANDB, "dies", "write", TRACKER, ("could not be reached",), Written.SOME),
    Row(WANDB, "run deleted", "histories", TRACKER, ("ppo-seed41", "no longer has this run"), Written.OTHERS),
    Row(WANDB, "run deleted", "write", TRACKER, ("ppo-seed41", "no longer has this run"), Written.OTHERS),
    Row(WANDB, "run resumed", "write", FAILED, ("ppo-seed41", "running"), Written.OTHERS),
)

FILE_SOURCES = (
    Row(FOLDER, "truncated file", "histories", FAILED, ("ppo-seed41",), Written.READ_ONLY),
    Row(FOLDER, "another kind of file", "listing", TRACKER, ("id0", "Could not be read"), Written.READ_ONLY),
    Row(FOLDER, "run deleted", "histories", TRACKER, ("ppo-seed41",), Written.READ_ONLY),
    Row(FILES, "truncated file", "listing", FAILED, (), Written.READ_ONLY),
    Row(FILES, "another kind of file", "listing", FAILED, ("hold no runs: ppo-seed41.log",), Written.READ_ONLY),
    Row(FILES, "file unreadable to the user", "listing", TRACKER, ("ppo-seed41", "Permission denied"),
        Written.READ_ONLY),
    Row(FILES, "run deleted", "histories", FAILED, (), Written.READ_ONLY),
    Row(FILES, "nothing there", "listing", USAGE, ("does not exist",), Written.READ_ONLY),
)  # fmt: skip

KEPT = (
    Row(CACHE, "full disk", "nightly --no-write", FAILED, ("no cache",), Written.NOTHING),
    Row(CACHE, "read-only folder", "nightly --no-write", FAILED, ("no cache",), Written.NOTHING, slow=True),
    Row(CACHE, "folder that cannot be made", "nightly", FAILED, ("no cache",), Written.ALL),
    Row(CACHE, "truncated file", "nightly", FAILED, ("damaged",), Written.ALL),
    Row(CACHE, "another kind of file", "nightly", FAILED, ("damaged", "begun anew"), Written.ALL),
)

RESULTS = (
    Row(OUTPUTS, "full disk", "a file of -o", USAGE, ("cannot write", "File too large"), Written.ALL,
        slow=True),
    Row(OUTPUTS, "full device", "a file of -o", USAGE, ("cannot write 'full.json'", "No space left"), Written.ALL),
    Row(OUTPUTS, "full device", "standard output", USAGE, ("standard output", "No space left"), Written.ALL),
    Row(OUTPUTS, "full device", "standard error", FAILED, (), Written.NOTHING),
    Row(OUTPUTS, "full device", "the log of nightly", FAILED, (), Written.ALL, slow=True),
    Row(OUTPUTS, "reader gone", "standard output", FAILED, (), Written.ALL, slow=True),
    Row(OUTPUTS, "folder removed", "a file of -o", USAGE, ("cannot write",), Written.ALL),
    Row(OUTPUTS, "folder that may not be written", "a file of -o", USAGE, ("cannot write",), Written.NOTHING),
)  # fmt: skip

CLOCKS = (
    Row(CLOCK, "an hour back", "second audit", FAILED, ("Nothing to write",), Written.ALL),
    Row(CLOCK, "ten years ahead", "second audit", FAILED, ("Nothing to write",), Written.ALL),
    Row(CLOCK, "ten years ahead, then right", "nightly", FAILED, (), Written.ALL),
    Row(CLOCK, "before every run", "--since 7d", FAILED, (), Written.ALL),
)

ROWS: tuple[Row, ...] = (
    *MLFLOW_SERVER, *MLFLOW_DATABASE, *WANDB_SERVER, *FILE_SOURCES, *KEPT, *RESULTS, *CLOCKS,
)  # fmt: skip


def rows_of(*adapters: str) -> list[Row]:
    """The rows of these adapters, in order."""
    return [row for row in ROWS if row.adapter in adapters]


def as_markdown(rows: Iterable[Row] = ROWS) -> str:
    """The table in Markdown, a section for each adapter."""
    sections: dict[str, list[str]] = {}
    for row in rows:
        told = ", ".join(f'"{words}"' for words in row.says) or "nothing: it is mended by itself"
        line = f"| {row.fault} | {row.when} | {int(row.status)} | {told} | {row.written} |"
        sections.setdefault(row.adapter, []).append(line.replace("`", "'"))
    head = ["| fault | while | exit status | says | written |", "| --- | --- | ---: | --- | --- |"]
    return "\n\n".join("\n".join([f"## {name}", "", *head, *lines]) for name, lines in sections.items())
