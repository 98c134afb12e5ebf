"""How CPU time and memory of an audit grow with runs and with steps, on an MLflow store in a file.

Each audit is a process of its own, so that its peak memory is its own. The exponent is that between two sizes:
1 is linear. Memory is given as its peak and as what each further run, or each further 1,000 steps, added to it.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_mlflow import PROJECT, fill
from table import Row

KEYS = 20
RUNS, STEPS_EACH = (10, 100, 1_000), 60
STEPS, RUNS_EACH = (1_000, 10_000, 100_000), 2
QUICK_RUNS, QUICK_STEPS, QUICK_KEYS = (5, 20), (100, 1_000), 4
AUDIT = f"""
import os, resource, sys
from pth_tracker.engine import Options, audit
from pth_tracker.errors import NothingSelected
from pth_tracker_mlflow import open_tracker
before = sum(os.times()[:4])
tracker = open_tracker(["sqlite:///" + sys.argv[1]])
found = audit(tracker, Options(project={PROJECT!r}))
print(sum(os.times()[:4]) - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, len(found.runs))
"""


def measured(store: Path) -> tuple[float, int, int]:
    """CPU seconds of all its processes, peak memory in KB and runs of one audit."""
    told = subprocess.run([sys.executable, "-c", AUDIT, str(store)], capture_output=True, text=True, check=True).stdout
    seconds, memory, runs = told.split()
    return float(seconds), int(memory), int(runs)


def grow(folder: Path, what: str, sizes: list[tuple[int, int]], keys: int) -> Iterator[Row]:
    """One row a size ``(runs, steps)``."""
    before: tuple[int, float, int] | None = None
    for runs, steps in sizes:
        store = folder / f"{what}-{runs}-{steps}.db"
        fill(store, runs, keys, steps)
        seconds, memory, audited = measured(store)
        assert audited == runs
        store.unlink()
        size = runs if what == "runs" else steps
        note = f"peak {memory / 1024:.0f} MB"
        if before:
            power = math.log(seconds / before[1]) / math.log(size / before[0])
            added = (memory - before[2]) / (size - before[0]) * (1 if what == "runs" else 1_000)
            note += f", exponent {power:.2f}, {added:.0f} KB more {'a run' if what == 'runs' else 'per 1,000 steps'}"
        yield Row(f"audit, growing in {what}", f"{runs} runs x {steps} steps", seconds, "CPU s", note=note)
        before = size, seconds, memory


def rows(quick: bool) -> Iterator[Row]:
    """One row a size, in runs and then in steps."""
    keys = QUICK_KEYS if quick else KEYS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from grow(folder, "runs", [(n, STEPS_EACH) for n in (QUICK_RUNS if quick else RUNS)], keys)
        yield from grow(folder, "steps", [(RUNS_EACH, n) for n in (QUICK_STEPS if quick else STEPS)], keys)
