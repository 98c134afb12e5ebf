"""Hundreds of small runs, for what has to stay cheap however many runs there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from pth_tracker import engine
from pth_tracker.design.comparison import Comparison
from pth_tracker.model import Audit
from synthetic import ACTOR, FakeRun, Values, audit_of, clean_metrics, make_run, prompt_metrics

SEEDS: Final = 5
UPDATES: Final = 16
_NONE: Final[dict[str, Values | None]] = dict.fromkeys(clean_metrics("anyone", 1, 2))


def many_runs(count: int, copies: int = 0) -> list[FakeRun]:
    """``count`` runs of verl, five seeds an arm, whose arms differ in the learning rate; ``copies`` are logged twice.

    All runs of a seed read its data order, as they are meant to; a copy has the settings and series of another run.
    ``copies`` is a multiple of the seeds.
    """
    runs = []
    for number in range(count):
        arm, seed = divmod(number, SEEDS)
        source = number - copies if number >= count - copies else number
        draw = np.random.default_rng(source)
        metrics: dict[str, Values | None] = {
            **_NONE,
            **prompt_metrics(seed, UPDATES),
            "actor/grad_norm": draw.uniform(0.1, 0.6, UPDATES),
            "actor/pg_loss": draw.normal(0, 0.05, UPDATES),
            "val-core/openai/gsm8k/acc/mean@1": {UPDATES: round(draw.uniform(0.6, 0.8), 3)},
        }
        settings = {f"{ACTOR}.optim.lr": 1e-6 * (1 + source // SEEDS)}
        runs.append(make_run(f"lr{arm}-seed{seed}", settings, seed, updates=UPDATES, metrics=metrics, number=number))
    return runs


def watched(runs: list[FakeRun], watch: Callable[[Callable[[], Any], Comparison], Any]) -> Audit:
    """The audit of these runs with ``watch(compare, comparison)`` around the comparison of all examinations."""
    real: Callable[..., Any] = vars(engine)["compare"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            engine,
            "compare",
            lambda rules, vocabulary, comparison: watch(lambda: real(rules, vocabulary, comparison), comparison),
        )
        return audit_of(runs)


def exponent(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> float:
    """The growth exponent between the smallest and the largest size: 1 is linear, 2 is all pairs."""
    return math.log(seconds[-1] / seconds[0]) / math.log(sizes[-1] / sizes[0])
