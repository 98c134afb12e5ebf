"""How time and memory of an audit grow with runs and with steps, on an MLflow store in a file.

Runs of verl in arms of five seeds, of which every metric is read. Each audit is a process of its own. Time is that of
all processors, without that of imports. The exponent is that between two sizes: 1 is linear. Memory is the peak of all
processes, and what each further run, or each further 1,000 steps of all runs together, added to it.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_mlflow import PROJECT, fill
from measuring import measured
from scale import METRICS, parameters, values
from table import Row

RUNS, STEPS_EACH = (10, 100, 1_000), 60
STEPS, RUNS_EACH = (1_000, 10_000, 100_000), 5
QUICK_RUNS, QUICK_STEPS = (5, 20), (100, 1_000)
KB_A_RUN = 150
AUDIT = """
import os, sys
from pth_tracker.engine import Options, audit
from pth_tracker_mlflow import open_tracker
before = sum(os.times()[:4])
tracker = open_tracker(["sqlite:///" + sys.argv[1]])
found = audit(tracker, Options(project=sys.argv[2]))
print("AUDITED", sum(os.times()[:4]) - before, len(found.runs))
"""


def grow(folder: Path, what: str, sizes: list[tuple[int, int]]) -> Iterator[Row]:
    """Rows for each size ``(runs, steps)``."""
    before: tuple[float, float, float] | None = None
    for runs, steps in sizes:
        store = folder / f"{what}-{runs}-{steps}.db"
        fill(store, runs, steps, METRICS, values, parameters)
        done = measured([sys.executable, "-c", AUDIT, str(store), PROJECT], folder, memory=True)
        seconds, audited = done.output.rpartition("AUDITED")[2].split()
        if int(audited) != runs:
            raise RuntimeError(f"{audited} of {runs} runs were audited: {done.output[-2000:]}")
        store.unlink()
        size = f"{runs} runs x {len(METRICS)} metrics x {steps} steps"
        now = float(runs if what == "runs" else runs * steps / 1_000), float(seconds), done.peak
        note = ""
        if before:
            note = f"exponent {math.log(now[1] / before[1]) / math.log(now[0] / before[0]):.2f}"
        yield Row(f"audit, growing in {what}", size, now[1], "CPU s", note=note)
        yield Row(f"audit, growing in {what}: peak memory", size, done.peak, "MB")
        if before:
            added = 1024 * (now[2] - before[2]) / (now[0] - before[0])
            unit = "KB a run" if what == "runs" else "KB / 1k steps"
            # Between small sizes, what is loaded once counts.
            most = KB_A_RUN if what == "runs" and (runs, steps) == sizes[-1] else None
            yield Row(f"audit, growing in {what}: memory added", size, added, unit, most=most)
        before = now


def rows(quick: bool) -> Iterator[Row]:
    """Rows for each size, in runs and then in steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from grow(folder, "runs", [(n, STEPS_EACH) for n in (QUICK_RUNS if quick else RUNS)])
        yield from grow(folder, "steps", [(RUNS_EACH, n) for n in (QUICK_STEPS if quick else STEPS)])
