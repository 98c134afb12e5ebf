"""Fuzzes the reader of W&B's local files: their framing, and whatever records a whole one may hold."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import harness
import numpy as np


def file_of(data: bytes) -> bytes:
    """The file that an input stands for.

    After a byte that is even, the rest is the file as it is. After an odd one the rest is a sequence of records, each
    behind its length in two bytes, framed with right checksums: no mutation would ever hit those.
    """
    from trackers.wandb_local_runs import framed

    rest = data[1:]
    if not data or data[0] % 2 == 0:
        return rest
    payloads = []
    while len(rest) >= 2:
        length = int.from_bytes(rest[:2], "little")
        payloads.append(rest[2 : 2 + length])
        rest = rest[2 + length :]
    return framed(payloads)


def check(data: bytes) -> None:
    """Reads the file of ``data`` in every way; an AssertionError or an error that is not ours is a find."""
    from pth_tracker.errors import TrackerError
    from pth_tracker.values import canonical_config
    from pth_tracker_wandb.history_rows import HistoryRows
    from pth_tracker_wandb.wandb_records import _Reader, read_head, read_log

    path = harness.scratch("run-x.wandb")
    path.write_bytes(file_of(data))
    try:
        log = read_log(path, None)
    except TrackerError as error:
        assert str(path) in str(error)
        return
    head = read_head(path)
    assert not head.run_id or log.run_id, "what the head tells, the whole log tells"
    assert all(isinstance(key, str) for key in canonical_config(log.config))
    assert all(isinstance(note, str) for note in log.damage.notes())
    history = log.rows.history()
    assert np.all(np.diff(history.step) > 0), "steps increase"
    assert set(history.values) <= log.rows.metric_keys
    slow = HistoryRows(None)
    slow._by_head = _Forgetful()
    other = _Reader(slow).read(path).rows.history()
    _same(history, other, set(history.values) | set(other.values))
    for key in sorted(history.values)[:2]:
        _same(history, read_log(path, [key]).rows.history(), {key})


class _Forgetful(dict):  # type: ignore[type-arg]
    """Never remembers where an item's number stands, so that each item is decoded in full."""

    def __setitem__(self, key: object, value: object) -> None:
        pass


def _same(left: object, right: object, keys: set[str]) -> None:
    from pth_tracker.runs import History

    assert isinstance(left, History) and isinstance(right, History)
    for key in keys:
        (steps, values), (other_steps, other_values) = left.series(key), right.series(key)
        assert np.array_equal(steps, other_steps), (key, steps, other_steps)
        assert np.array_equal(values, other_values, equal_nan=True), (key, values, other_values)


def seeds() -> Iterator[bytes]:
    """Small whole logs as files and as records."""
    from trackers.wandb_local_runs import exit_record, framed, history_record, record, run_record

    start = run_record(config={"lr": "0.5", "deep": '{"a": [1, {"b": null}]}'}, display_name="n", tags=["t"])
    machine = record(environment={"args": ["-x"], "program": "p", "started_at": {"seconds": 1_700_000_000}})
    stats = record(stats={"timestamp": {"seconds": 1_700_000_100}})
    rows = [
        history_record({"loss": step / 4, "_step": step, "_timestamp": 1.7e9 + step}, step=step) for step in range(3)
    ]
    odd = [
        history_record({"loss": {"a": 1, "b": {"c": 2.5}}, "text": "x", "bad": float("nan")}, step=9, nested=False),
        history_record({"table": {"_type": "table-file", "size": 3}, "on": True}, step=10),
        record(config={"update": [{"nested_key": ["a", "b"], "value_json": "3"}], "remove": [{"key": "lr"}]}),
    ]
    for records in ([start, *rows, exit_record()], [start, machine, stats, *rows, *odd, exit_record(1)], [*odd, *rows]):
        yield b"\0" + framed(records)
        yield b"\1" + b"".join(len(one).to_bytes(2, "little") + one for one in records)


def prepare() -> None:
    """Imports the reader."""
    import_module("pth_tracker.values")
    import_module("pth_tracker_wandb.wandb_records")


if __name__ == "__main__":
    harness.fuzz(check, seeds(), prepare)
