"""How long the command takes to start, beside what importing its parser alone takes.

Prints the medians in milliseconds and their ratio, and fails where the ratio is above the limit.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 21
LIMIT = 1.3


def median_ms(arguments: list[str]) -> float:
    """The median duration in milliseconds of running Python with ``arguments``, once warmed up."""
    command = [sys.executable, *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> int:
    """Measures, prints, and yields the exit status."""
    parser = median_ms(["-c", "import typer"])
    command = median_ms(["-m", "pth_tracker", "--help"])
    print(
        f"import typer {parser:.0f} ms, pth-tracker --help {command:.0f} ms, ratio {command / parser:.2f} (<= {LIMIT})"
    )
    return int(command > LIMIT * parser)


if __name__ == "__main__":
    sys.exit(main())
