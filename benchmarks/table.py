"""All benchmarks as one table: what we take, what a named alternative takes in the same run, and their ratio.

A ratio says how many times the alternative's time ours is; where a least ratio is asked for and missed, the exit status
is 1. With ``--quick`` everything is small, to see that it runs. Names of benchmarks pick some of them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

BENCHMARKS: Final = (
    "cold_start", "verl", "tensorboard", "mlflow", "wandb", "bootstrap", "compare", "growth",
)  # fmt: skip
"""Each is the module ``bench_NAME``, whose ``rows(quick)`` yields its rows."""


@dataclass(frozen=True)
class Row:
    """One measurement."""

    what: str
    size: str
    ours: float
    unit: str = "s"
    against: str = ""
    """The alternative; empty where there is none."""
    theirs: float = 0.0
    """What the alternative takes, in the same unit."""
    least: float | None = None
    """The least ratio asked for."""
    most: float | None = None
    """The most that ours may be."""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times ours the alternative takes; None without one."""
        return self.theirs / self.ours if self.against else None

    @property
    def missed(self) -> bool:
        """Whether it falls short of what is asked for."""
        short = self.least is not None and self.ratio is not None and self.ratio < self.least
        return short or (self.most is not None and self.ours > self.most)


HEAD: Final = (
    f"{'what':42} {'size':32} {'ours':>10} {'unit':12} {'against':24} {'theirs':>9} {'ratio':>6}  asked for"
)  # fmt: skip


def line(row: Row) -> str:
    """A row of the table."""
    theirs = f"{row.theirs:9.2f} {row.ratio:5.1f}x" if row.against else " " * 16
    asked = [f">= {row.least:.2g}x"] if row.least is not None else []
    asked += [f"<= {row.most:g} {row.unit}"] if row.most is not None else []
    asked += ["MISSED"] if row.missed else []
    asked += [row.note] if row.note else []
    told = f"{row.what:42} {row.size:32} {row.ours:10.2f} {row.unit:12} {row.against:24} {theirs}  {', '.join(asked)}"
    return told.rstrip()


def main(arguments: list[str]) -> int:
    """Measures, prints each row as it comes, and yields the exit status."""
    quick = "--quick" in arguments
    picked = [name for name in arguments if name != "--quick"] or list(BENCHMARKS)
    unknown = sorted(set(picked) - set(BENCHMARKS))
    if unknown:
        print(f"there is no benchmark {', '.join(unknown)}: choose among {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    print(HEAD, flush=True)
    missed = 0
    for name in picked:
        rows: Iterator[Row] = importlib.import_module(f"bench_{name}").rows(quick)
        for row in rows:
            print(line(row), flush=True)
            missed += row.missed
    return int(bool(missed) and not quick)


if __name__ == "__main__":
    from table import main as run  # so that the benchmarks' rows are of the one class

    sys.exit(run(sys.argv[1:]))
