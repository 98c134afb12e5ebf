"""Local W&B runs for tests: ``.wandb`` files by hand, from W&B's own message classes, and short ways to read one."""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pth_tracker.runs import History, RunError, SourceRun
from pth_tracker.tracker import Query
from pth_tracker_wandb.local import LocalTracker

BLOCK = 32768
HEADER = b":W&B" + bytes([0xE1, 0xBE, 0])


def framed(payloads: Iterable[bytes], start: bytes = HEADER) -> bytes:
    """The log of these records: header, then each in fragments that do not cross 32 KiB blocks."""
    log = bytearray(start)
    for payload in payloads:
        rest, first = payload, True
        while first or rest:
            room = BLOCK - len(log) % BLOCK
            if room < 7:
                log += bytes(room)
                room = BLOCK
            piece, rest = rest[: room - 7], rest[room - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            log += struct.pack("<IHB", zlib.crc32(bytes([kind]) + piece), len(piece), kind) + piece
            first = False
    return bytes(log)


def record(**content: Any) -> bytes:
    """One record with this content, by the names of W&B's message."""
    from wandb.proto import wandb_internal_pb2

    made: bytes = wandb_internal_pb2.Record(**content).SerializeToString()  # type: ignore[attr-defined]
    return made


def run_record(run_id: str = "abc", project: str = "p", start: int = 1_700_000_000, **fields: Any) -> bytes:
    config = {"update": [{"key": key, "value_json": text} for key, text in fields.pop("config", {}).items()]}
    return record(
        num=1,
        run={"run_id": run_id, "project": project, "start_time": {"seconds": start}, "config": config, **fields},
    )


def history_record(row: Mapping[str, Any], step: int | None = None, nested: bool = True) -> bytes:
    """A row whose values are written as JSON, each key as it is (``nested``: as a path of one)."""
    items = [
        {("nested_key" if nested else "key"): ([key] if nested else key), "value_json": json.dumps(value)}
        for key, value in row.items()
    ]
    history: dict[str, Any] = {"item": items}
    if step is not None:
        history["step"] = {"num": step}
    return record(history=history)


def exit_record(code: int = 0) -> bytes:
    return record(exit={"exit_code": code})


def write_run(folder: Path, payloads: Iterable[bytes], run_id: str = "abc") -> Path:
    """A run folder in ``folder`` with this log; the folder's path."""
    run = folder / f"offline-run-20240501_120000-{run_id}"
    run.mkdir(parents=True)
    (run / f"run-{run_id}.wandb").write_bytes(framed(payloads))
    return run


def only_run(path: Path) -> SourceRun:
    (run,) = LocalTracker([str(path)]).runs(Query())
    return run


def answer(path: Path, keys: list[str] | None = None) -> History | RunError:
    tracker = LocalTracker([str(path)])
    (run,) = tracker.runs(Query())
    ((ref, history),) = tracker.histories([(run.ref, keys)])
    assert ref == run.ref
    return history


def only_history(path: Path, keys: list[str] | None = None) -> History:
    history = answer(path, keys)
    assert isinstance(history, History), history
    return history


def points(history: History, key: str) -> list[tuple[int, float]]:
    steps, values = history.series(key)
    return list(zip(steps.tolist(), values.tolist()))
