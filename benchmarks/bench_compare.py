"""How long comparing runs takes once all are examined, at 100, 300 and 1,000 runs, with the growth exponent.

Five seeds an arm; all runs of a seed share its data order, which is the most that the index of data orders can have to
join. The whole audit is timed beside it; its histories come from memory. An exponent of 1 is linear, 2 is all pairs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from table import Row

from many_runs import exponent, many_runs, watched
from pth_tracker.design.comparison import Comparison

SIZES = (100, 300, 1000)
QUICK_SIZES = (20, 50)
ROUNDS = 3


def timed(count: int) -> tuple[float, float]:
    """Seconds of the comparison alone and of the whole audit of ``count`` runs: the best of three rounds each."""
    runs = many_runs(count)
    compared: list[float] = []
    whole: list[float] = []

    def watch(compare: Callable[[], Any], comparison: Comparison) -> Any:
        start = time.perf_counter()
        judged = compare()
        compared.append(time.perf_counter() - start)
        return judged

    for _ in range(ROUNDS):
        start = time.perf_counter()
        watched(runs, watch)
        whole.append(time.perf_counter() - start)
    return min(compared), min(whole)


def rows(quick: bool) -> Iterator[Row]:
    """Two rows a size: the comparison alone, and the whole audit."""
    timed(10)  # modules are imported and the vocabulary is read
    sizes = QUICK_SIZES if quick else SIZES
    before: tuple[float, float] | None = None
    for place, count in enumerate(sizes):
        seconds = timed(count)
        for index, what in enumerate(("compare examined runs", "audit of runs in memory")):
            grown = exponent((sizes[place - 1], count), (before[index], seconds[index])) if before else None
            note = "" if grown is None else f"grows as runs to the power of {grown:.2f}"
            yield Row(what, f"{count} runs", seconds[index], note=note)
        before = seconds
