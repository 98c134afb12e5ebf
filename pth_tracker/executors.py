"""Examination by threads, processes or a Dask cluster.

All go one way: shares of the runs are submitted to a `concurrent.futures.Executor` and taken as they are completed.
Each worker opens the tracker at its address, with the credentials of its own environment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, as_completed
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Self

from pth_tracker import __version__
from pth_tracker.errors import PthTrackerError, TrackerError, UsageError
from pth_tracker.examine import EXAMINE_VERSION, Examination, Unit, examine_batch
from pth_tracker.forked import examine_forked
from pth_tracker.model import Plan
from pth_tracker.runs import RunError
from pth_tracker.tracker import Address, Tracker

SHARE: Final = 50
"""Runs of one share at most: what is done again where a worker dies."""
SHARES: Final = 4
"""Shares for each worker at least, so that none waits long for another."""
ATTEMPTS: Final = 3
"""How often a share is tried on workers that die."""
CONNECT_SECONDS: Final = 20
MOST_WORKERS: Final = 256

_LOCAL: Final = re.compile(r"(threads|processes):(\d+)")
_DASK: Final = re.compile(r"dask://([^/\s@]+:\d+)/?")


def check_executor(named: str) -> None:
    """Makes sure that ``named`` is an executor: ``threads:N``, ``processes:N`` or ``dask://HOST:PORT``.

    Raises:
        UsageError: it is none, or its library is not installed.
    """
    local = _LOCAL.fullmatch(named)
    if local and not 1 <= int(local[2]) <= MOST_WORKERS:
        raise UsageError(f"--executor {named}: give between 1 and {MOST_WORKERS} workers")
    if not local and not _DASK.fullmatch(named):
        raise UsageError(
            f"--executor {named!r} is none: give threads:N, processes:N, or dask://HOST:PORT of a Dask scheduler"
        )
    if named.startswith("dask:"):
        from importlib.util import find_spec

        if find_spec("distributed") is None:
            raise UsageError("--executor dask://... needs Dask: pip install 'pth-tracker[dask]'")


class Workers:
    """The workers of one executor, started when first used; called, examines as `pth_tracker.examine.examine` does.

    Use as a context manager: at its end whatever still waits is cancelled and the workers are let go.
    """

    def __init__(self, named: str) -> None:
        check_executor(named)
        self._named = named
        self._stack = ExitStack()
        self._started: tuple[Executor, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def __call__(self, tracker: Tracker, units: Sequence[Unit], plan: Plan) -> Iterator[Examination | RunError]:
        """One examination, or the reason why there is none, for each unit, in the order of their completion.

        Raises:
            TrackerError: the tracker failed as a whole, or the workers did.
        """
        if getattr(tracker, "holds_histories", False):
            yield from examine_forked(tracker, units, plan)  # it has read them already; others would read them again
            return
        waiting = [units] if units else []
        for _ in range(ATTEMPTS):
            if not waiting:
                return
            executor, workers = self._start()
            size = min(SHARE, max(1, math.ceil(len(units) / (SHARES * workers))))
            shares = [some[start : start + size] for some in waiting for start in range(0, len(some), size)]
            waiting = []
            for share, found in _examined(executor, tracker.address, shares, plan, self._named):
                if found is None:
                    waiting.append(share)
                else:
                    yield from found
            if waiting:
                self._stop()
        if waiting:
            raise TrackerError(
                f"the workers of {self._named} died {ATTEMPTS} times on the same runs, {waiting[0][0].run.label!r} "
                "among them: see their logs (most often they lack memory), or audit without --executor"
            )

    def _start(self) -> tuple[Executor, int]:
        if self._started is None:
            self._started = self._stack.enter_context(_executor(self._named))
        return self._started

    def _stop(self) -> None:
        self._started = None
        self._stack.close()


def _examined(
    executor: Executor, address: Address, shares: Sequence[Sequence[Unit]], plan: Plan, named: str
) -> Iterator[tuple[Sequence[Unit], list[Examination | RunError] | None]]:
    """Each share with its results, or None where its worker died."""
    own = _version()
    futures = {}
    lost: list[Sequence[Unit]] = []
    for share in shares:
        try:
            futures[executor.submit(examine_share, own, address, share, plan)] = share
        except BrokenExecutor:
            lost.append(share)
    for future in as_completed(futures):
        try:
            yield futures[future], future.result()
        except (BrokenExecutor, CancelledError):
            lost.append(futures[future])
        except UsageError as error:
            raise TrackerError(f"a worker of {named} cannot open {address}: {error}") from error
        except PthTrackerError:
            raise
        except Exception as error:
            if type(error).__name__ == "KilledWorker":  # distributed's own, which need not be installed here
                lost.append(futures[future])
                continue
            raise TrackerError(
                f"a worker of {named} failed ({type(error).__name__}: {error}): it needs this version of pth-tracker "
                f"({own}) and its tracker's client"
            ) from error
        finally:
            futures[future] = ()
    for share in lost:
        yield share, None


def examine_share(version: str, address: Address, units: Sequence[Unit], plan: Plan) -> list[Examination | RunError]:
    """What a worker does: the examinations of ``units``, if it is of the version that asks.

    Raises:
        TrackerError: this worker's version is another.
    """
    if version != _version():
        import socket

        raise TrackerError(
            f"the worker on {socket.gethostname()} runs pth-tracker {_version()}, and this is {version}: "
            "install the same version on all workers"
        )
    return examine_batch(address, units, plan)


def _version() -> str:
    return f"{__version__} (examination {EXAMINE_VERSION})"


@contextmanager
def _executor(named: str) -> Iterator[tuple[Executor, int]]:
    """The executor and how many workers it has; all that waits is cancelled at the end."""
    local = _LOCAL.fullmatch(named)
    if local is None:
        with _dask(named.removeprefix("dask://").rstrip("/")) as found:
            yield found
        return
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

    count = int(local[2])
    if local[1] == "threads":
        executor: Executor = ThreadPoolExecutor(count, thread_name_prefix="examine")
    else:
        import multiprocessing

        # Forking a process that has threads (an SDK's, the scheduler's) may deadlock the child.
        executor = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield executor, count
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _dask(address: str) -> Iterator[tuple[Executor, int]]:
    from importlib import import_module

    distributed: Any = import_module("distributed")  # an extra: not there for every type checker
    try:
        client = distributed.Client(f"tcp://{address}", timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise TrackerError(
            f"no Dask scheduler answers at {address} ({error}): start it, or correct --executor"
        ) from None
    with client:
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise TrackerError(f"the Dask scheduler at {address} has no worker: start some")
        executor = client.get_executor(retries=2, pure=False)
        try:
            yield executor, workers
        finally:
            executor.shutdown(wait=False)
