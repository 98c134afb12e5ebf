"""What calls and whole commands take: time, and for commands the memory of all their processes together."""

from __future__ import annotations

import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
ROUNDS = 3


@dataclass(frozen=True)
class Measured:
    """What a command took, all its processes together."""

    seconds: float
    """By the clock on the wall."""
    cpu: float
    """Seconds of all processors: what is left to compare on a machine that does other work."""
    peak: float
    """The most memory held at once (MB), sampled, where that was asked for; what processes share counts once."""
    status: int
    output: str
    """What it printed to either stream."""


def timed(call: Callable[..., Result], *arguments: Any) -> tuple[float, Result]:
    """Seconds by the clock on the wall, and the result of ``call``."""
    start = time.perf_counter()
    result = call(*arguments)
    return time.perf_counter() - start, result


def cpu_seconds(read: Callable[[str], Result], paths: Sequence[str]) -> tuple[float, list[Result]]:
    """The least processor seconds that reading all ``paths`` takes in this process, on one core, and what was read."""
    best, results = float("inf"), []
    for _ in range(ROUNDS):
        start = time.process_time()
        results = [read(path) for path in paths]
        best = min(best, time.process_time() - start)
    return best, results


def measured(
    command: Sequence[str],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    memory: bool = False,
) -> Measured:
    """Runs a command that may end with 0 or 1; looking at its ``memory`` slows it.

    Raises:
        RuntimeError: it ended otherwise.
    """
    peak = 0.0
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        with subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment
        ) as process:  # fmt: skip
            while memory and process.poll() is None:
                # Not the peak that the system tells: it holds that of the process from which this one was forked.
                peak = max(peak, _memory_mb(process.pid))
                time.sleep(0.02)
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        output.seek(0)
        told = output.read()
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{command[:4]} ended with {process.returncode}: {told[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(seconds, cpu, peak, process.returncode, told)


def _memory_mb(pid: int) -> float:
    """The proportional share of memory of a process and all its descendants now; 0 where it cannot be read."""
    total, pending = 0.0, [pid]
    while pending:
        one = pending.pop()
        try:
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) / 1024
            for task in Path(f"/proc/{one}/task").iterdir():
                pending += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):
            continue
    return total
