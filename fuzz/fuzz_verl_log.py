"""Fuzzes the reader of verl's console logs: nothing but a run or an unreadable one, and blocks leave no seam."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import harness
import numpy as np


def check(data: bytes) -> None:
    """Reads ``data`` as a log, whole and in small blocks; an AssertionError or any other error is a find."""
    from pth_tracker.runs import RunError
    from pth_tracker.values import canonical_config
    from pth_tracker_files import verl_log

    path = harness.scratch("run.log")
    path.write_bytes(data)
    verl_log.claims(path, data[:65536])
    usual = verl_log.BLOCK_BYTES
    answers: list[Any] = []
    for size in (usual, 997):
        verl_log.BLOCK_BYTES = size  # type: ignore[misc]
        try:
            answers += verl_log.load([path])
        finally:
            verl_log.BLOCK_BYTES = usual  # type: ignore[misc]
    assert len(answers) == 2, "one answer a reading"
    if isinstance(answers[0], RunError):
        assert answers[0].message == answers[1].message
        return
    whole, blocks = (answer.history for answer in answers)
    assert np.all(np.diff(whole.step) > 0), "steps increase"
    assert np.array_equal(whole.step, blocks.step), "blocks leave no seam in the steps"
    assert whole.values.keys() == blocks.values.keys()
    for key, column in whole.values.items():
        assert column.shape == whole.step.shape
        assert np.array_equal(column, blocks.values[key], equal_nan=True), key
    assert repr(answers[0].run.config) == repr(answers[1].run.config)
    assert all(isinstance(key, str) for key in canonical_config(answers[0].run.config))


def seeds() -> Iterator[bytes]:
    """One short log of every release, and pieces that only some logs hold."""
    import verl_logs

    for number, release in enumerate(verl_logs.RELEASES):
        style = ("new", "old", "plain", "none")[number % 4]
        yield verl_logs.make_log(release, 3, style=style, seed=number).text().encode()
        yield verl_logs.make_log(release, 4, style="plain", with_config=False, chatter=False).text().encode()
    yield b"wandb: Run summary:\nwandb:   actor/pg_clipfrac 0.00012\nwandb:   actor/lr 1e-06\n"
    yield b"Error executing job with overrides: ['data.seed=1', 'trainer.total_epochs=2']\n"
    yield b'Traceback (most recent call last):\n  File "x/verl/trainer/main_ppo.py", line 1\nKeyboardInterrupt\n'


def prepare() -> None:
    """Imports the reader."""
    import_module("pth_tracker.values")
    import_module("pth_tracker_files.verl_log")


if __name__ == "__main__":
    harness.fuzz(check, seeds(), prepare)
