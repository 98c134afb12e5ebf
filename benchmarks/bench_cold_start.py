"""How long the command takes to start, beside what importing its parser alone takes.

The medians of many starts are compared.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from table import Row

ROUNDS = 21
QUICK_ROUNDS = 2
LIMIT = 1.3
"""Times the import of the parser that a start may take."""


def median_ms(arguments: list[str], rounds: int) -> float:
    """The median duration in milliseconds of running Python with ``arguments``, once warmed up."""
    command = [sys.executable, *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def rows(quick: bool) -> Iterator[Row]:
    """One row an option that needs no work."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    for option in ("--help", "--version"):
        parser = median_ms(["-c", "import typer"], rounds)
        command = median_ms(["-m", "pth_tracker", option], rounds)
        yield Row(f"pth-tracker {option}", "", command, "ms", "import typer", parser, least=1 / LIMIT)
