"""What a rule of run scope is judged on: one run's readings and the thresholds in force."""

from __future__ import annotations

from functools import cached_property, reduce
from typing import Any

import numpy as np

from pth_tracker.design.labels import name_label
from pth_tracker.model import Plan
from pth_tracker.runs import Floats, History, Ints, Run
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.canonicalise import Reading, Series
from pth_tracker.vocabulary.detect import find_keys


class RunView:
    """One run with its history, as the judges of run scope see it."""

    def __init__(self, reading: Reading, plan: Plan) -> None:
        self.reading = reading
        self.plan = plan

    @property
    def run(self) -> Run:
        """The run."""
        return self.reading.run

    def series(self, quantity: str) -> Series | None:
        """The quantity's series, or None."""
        return self.reading.series(quantity)

    @cached_property
    def score(self) -> tuple[str, Ints, Floats]:
        """The raw name of the metric in force with its ``(n,)`` updates and values; empty where none was logged."""
        history = self.reading.history
        if history is not None and self.plan.benchmarks:
            return self._benchmarks(history)
        if history is not None and self.plan.metric:
            for key in find_keys(self.plan.metric, frozenset(history.values)):
                step, values = history.series(key)
                if len(step):
                    return key, step, values
        return "", np.empty(0, dtype=np.int64), np.empty(0)

    @property
    def own_score(self) -> tuple[str, Ints, Floats]:
        """The score in force, or where the run has none of it the one that its framework prefers, as `score`."""
        if len(self.score[1]) or self.plan.benchmarks:
            return self.score
        series = self.series("eval_score")
        return self.score if series is None else (series.key, series.step, series.values)

    def _benchmarks(self, history: History) -> tuple[str, Ints, Floats]:
        """The mean of all benchmarks, each on its scale, at the updates that hold all of them."""
        found: list[tuple[Ints, Floats]] = []
        for name, _ in self.plan.benchmarks:
            keys = find_keys(name, frozenset(history.values))
            found += [history.series(keys[0])] if keys else []
        if len(found) < len(self.plan.benchmarks):
            return "", np.empty(0, dtype=np.int64), np.empty(0)
        common = reduce(np.intersect1d, [step for step, _ in found])
        columns = [values[np.isin(step, common)] / s for (step, values), (_, s) in zip(found, self.plan.benchmarks)]
        return f"mean of {len(found)} benchmarks", common, np.mean(columns, axis=0)

    @property
    def score_decimals(self) -> int | None:
        """The fixed number of decimals that the score was printed with; None: full precision."""
        return self.reading.history.decimals.get(self.score[0]) if self.reading.history else None

    def role(self, name: str) -> Any:
        """The role's value, or `MISSING`."""
        return self.reading.role(name)

    @cached_property
    def available(self) -> frozenset[str]:
        """Everything that a branch of needs may find here: quantities, roles and facts."""
        found = {name for name in self.plan.quantities if self.series(name) is not None}
        found |= set(self.reading.roles)
        if self.role("asynchronous") is not True:
            found.add("synchronous")
        if len(self.score[1]):
            found.add("score")
        if self.run.config:
            found.add("config")
        if self.reading.seed.order is not None or self.reading.seed.uncontrolled:
            found.add("data_seed")
        if name_label(self.run.name) or self.reading.seed.given is not MISSING:
            found.add("seed_label")
        clip = self.series("clip_fraction")
        if clip is not None and (clip.exact_zeros or np.any(clip.values != 0)):
            found.add("exact_zeros")
        if not self.reading.roles.get("clip_not_testable") and not (clip and clip.meaning.clip == "not_testable"):
            found.add("testable_clip")
        # A setting of another kind, or a value that is no number, tells no lag.
        found.discard("staleness")
        if self.reading.designed_lag(self.plan.stress) is not None:
            found.add("staleness")
        return frozenset(found)
