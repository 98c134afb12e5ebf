"""How many pairs of runs a comparison of a thousand runs looks at: few, and never all of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from many_runs import SEEDS, many_runs, watched
from pth_tracker.checks import duplicates, order_index
from pth_tracker.design.comparison import Comparison

RUNS = 1000
COPIES = 10


@pytest.mark.slow
def test_a_thousand_runs_are_compared_within_cells_and_where_an_index_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def counting(*args: Any, **named: Any) -> Any:
            looked[name] += 1
            return real(*args, **named)

        monkeypatch.setattr(module, name, counting)

    count(order_index, "align")
    count(duplicates, "_compare_exact")
    cells = 0

    def watch(compare: Callable[[], Any], comparison: Comparison) -> Any:
        nonlocal cells
        looked.clear()
        cells = sum(math.comb(len(cell.members), 2) for cell in comparison.cells)
        return compare()

    report = watched(many_runs(RUNS, COPIES), watch)
    assert len(report.runs) == RUNS and len(report.design.arms) == (RUNS - COPIES) // SEEDS
    # Every run is held against one run of its order, and each copy against the run it copies, series by series.
    orders, copies, series = RUNS - SEEDS, COPIES, 2
    arms = len(report.design.arms)
    assert looked["align"] <= orders + cells
    assert looked["_compare_exact"] <= series * (2 * copies + arms) + cells
    assert looked.total() < math.comb(RUNS, 2) / 100
    found = [one for one in report.findings if one.rule == "duplicate-run"]
    assert len(found) == COPIES and all(len(one.runs) == 2 for one in found)
