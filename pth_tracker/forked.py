"""Examination by several processes, where the tracker already holds the histories in memory."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import numpy.ma  # noqa: F401  # NumPy loads it at the first unique values, otherwise anew in each forked process

from pth_tracker.examine import Examination, Unit, examine
from pth_tracker.model import Plan
from pth_tracker.runs import RunError
from pth_tracker.tracker import Tracker

LEAST_UNITS: Final = 8
"""Runs below which starting processes costs more than it saves."""
SHARES: Final = 4
"""Shares of the work for each process, so that none waits long for another."""

_inherited: tuple[Tracker, Sequence[Unit], Plan] | None = None
"""What the forked processes work on: inherited, so that no history is copied."""


def examine_forked(tracker: Tracker, units: Sequence[Unit], plan: Plan) -> Iterator[Examination | RunError]:
    """As `pth_tracker.examine.examine`, by all cores where the tracker ``holds_histories`` and forking is safe."""
    global _inherited
    count = min(_cores(), len(units))
    if count < 2 or len(units) < LEAST_UNITS or not getattr(tracker, "holds_histories", False) or not _may_fork():
        yield from examine(tracker, units, plan)
        return
    import multiprocessing
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    _inherited = (tracker, units, plan)
    shares = SHARES * count
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("fork"))
    lost: list[int] = []
    try:
        waiting: list[Future[list[Examination | RunError]]] = []
        with warnings.catch_warnings(), suppress(BrokenProcessPool):
            warnings.simplefilter("ignore", DeprecationWarning)
            for start in range(shares):
                waiting.append(pool.submit(_examine_share, start, shares))
        lost += range(len(waiting), shares)
        for start, future in enumerate(waiting):
            try:
                found = future.result()
            except BrokenProcessPool:
                lost.append(start)
            else:
                yield from found
    finally:
        _inherited = None
        pool.shutdown(wait=True, cancel_futures=True)
    for start in lost:  # a process was ended, most often for want of memory: one alone takes less
        yield from examine(tracker, units[start::shares], plan)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _may_fork() -> bool:
    """Whether this is the only Python thread, of a process that is no worker itself, where forking exists."""
    import multiprocessing

    within_worker = multiprocessing.parent_process() is not None or multiprocessing.current_process().daemon
    return threading.active_count() == 1 and "fork" in multiprocessing.get_all_start_methods() and not within_worker


def _examine_share(start: int, step: int) -> list[Examination | RunError]:
    if _inherited is None:
        raise RuntimeError("nothing was inherited to examine")
    tracker, units, plan = _inherited
    return list(examine(tracker, units[start::step], plan))
