"""Faults planted one at a time or together in clean comparisons, and traps that look like faults and are none.

Two comparisons of three arms over five seeds, in verl's vocabulary and in CleanRL's. Each `Fault` of a table plants one
rule's fault and says what an audit has to find: the rule, its level and the runs that it blames. A finding that another
one explains (rules.md and `Rule.explains` say which) is none of these. What rules find together by definition, such as
a collapsed baseline and a comparison outside its stable range, is listed together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final

from pth_tracker.losses.kinds import Kind
from pth_tracker.model import Audit
from pth_tracker.runs import RunState
from synthetic import (
    ACTOR,
    ARMS,
    CORRECTION,
    SCORE,
    SEEDS,
    START,
    TEST_ITEMS,
    UPDATES,
    FakeRun,
    Values,
    audit_of,
    change,
    comparison,
    cut,
    make_run,
    prompt_metrics,
    with_config,
    with_metrics,
)

Runs = list[FakeRun]
Found = tuple[str, str, tuple[str, ...]]
"""Level, rule, and the names of the blamed runs, sorted."""

PPO, HIGHER, TIS = (tuple(f"{arm}-seed{seed}" for seed in SEEDS) for arm in ARMS)
CLIP_HIGH: Final = f"{ACTOR}.clip_ratio_high"
WEIGHTS: Final = f"{CORRECTION}.rollout_is"
VERL_DESIGN: Final[Mapping[str, Any]] = {
    "arms": {arm: {"name": f"{arm}-*"} for arm in ARMS},
    "baseline": "ppo",
    "vary": [CLIP_HIGH, WEIGHTS],
    "metric": {"key": SCORE, "higher_is_better": True, "at": "last"},
}


@dataclass(frozen=True)
class Fault:
    """One planted fault and what has to be found of it."""

    name: str
    plant: Callable[[Runs], Runs]
    found: tuple[Found, ...]
    design: Mapping[str, Any] = field(default_factory=dict)
    """On top of the design of the clean comparison: lists are added, everything else is replaced."""
    inferred: bool = False
    """Whether nothing is declared at all."""
    explains: tuple[str, ...] = ()
    """Rules that find something as well, and whose findings what was planted explains."""

    @property
    def rules(self) -> set[str]:
        """The rules that find it."""
        return {rule for _, rule, _ in self.found}


def fail(rule: str, *blamed: str) -> Found:
    """A failure of ``rule`` that blames these runs."""
    return "fail", rule, tuple(sorted(blamed))


def warn(rule: str, *blamed: str) -> Found:
    """A warning of ``rule`` that blames these runs."""
    return "warn", rule, tuple(sorted(blamed))


@dataclass(frozen=True)
class Trap:
    """What looks like a fault and is none: nothing above information may be said."""

    name: str
    runs: Callable[[Runs], Runs]
    design: Mapping[str, Any] | None = field(default_factory=dict)
    """On top of the design of the clean comparison; None: nothing is declared, everything is inferred."""
    says: tuple[str, ...] = ()
    """Rules that have to be among the information."""
    passes: tuple[str, ...] = ()
    """Rules that have to have passed wherever they judged, and to have judged somewhere."""


def merged(design: Mapping[str, Any], *more: Mapping[str, Any]) -> dict[str, Any]:
    """A design with others on top: lists are added, everything else is replaced."""
    result = dict(design)
    for one in more:
        for key, value in one.items():
            held = result.get(key)
            result[key] = [*held, *value] if isinstance(held, list) and isinstance(value, list) else value
    return result


def counted(report: Audit) -> list[Found]:
    """Everything above information that counts, sorted."""
    return sorted(
        (str(one.level), one.rule, tuple(sorted(report.runs[key].name for key in one.blames)))
        for one in report.findings
        if one.counts and one.level != "info"
    )


@cache
def _clean_verl() -> tuple[FakeRun, ...]:
    return tuple(comparison())


def clean_verl() -> Runs:
    """The clean comparison in verl's vocabulary."""
    return list(_clean_verl())


def audit_verl(runs: Runs, *designs: Mapping[str, Any]) -> Audit:
    """The audit of these runs under the clean comparison's design with others on top."""
    return audit_of(runs, merged(VERL_DESIGN, *designs))


# how faults are planted


def metrics(glob: str, values: Mapping[str, Values]) -> Callable[[Runs], Runs]:
    """Other metrics in the runs that match."""
    return lambda runs: with_metrics(runs, glob, values)


def settings(glob: str, values: Mapping[str, Any]) -> Callable[[Runs], Runs]:
    """Other settings in the runs that match."""
    return lambda runs: with_config(runs, glob, values)


def attributes(glob: str, **values: Any) -> Callable[[Runs], Runs]:
    """Other attributes of the listing in the runs that match."""
    return lambda runs: change(runs, glob, **values)


def together(*plants: Callable[[Runs], Runs]) -> Callable[[Runs], Runs]:
    """Several plants one after the other."""

    def plant(runs: Runs) -> Runs:
        for one in plants:
            runs = one(runs)
        return runs

    return plant


def without(*globs: str) -> Callable[[Runs], Runs]:
    """All runs but those that match."""
    return lambda runs: [run for run in runs if not any(fnmatchcase(run.name, glob) for glob in globs)]


def also(*more: FakeRun) -> Callable[[Runs], Runs]:
    """Further runs."""
    return lambda runs: [*runs, *more]


def copied(source: str, target: str, *keys: str) -> Callable[[Runs], Runs]:
    """The run ``target`` with the metrics of ``source`` that match (by default all)."""

    def plant(runs: Runs) -> Runs:
        (held,) = [run for run in runs if run.name == source]
        taken = {key: dict(zip(*one)) for key, one in held.points.items() if _any(key, keys or ("*",))}
        return with_metrics(runs, target, taken)

    return plant


def _any(key: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(key, glob) for glob in globs)


def frozen(name: str, first: int, length: int, *globs: str) -> Callable[[Runs], Runs]:
    """The run ``name`` whose matching metrics stand still for ``length`` updates from ``first`` on."""

    def plant(runs: Runs) -> Runs:
        (run,) = [run for run in runs if run.name == name]
        still: dict[str, Values] = {}
        for key, (steps, values) in run.points.items():
            if _any(key, globs):
                at = dict(zip(steps, values))
                still[key] = {step: at[first] if first <= step < first + length else at[step] for step in steps}
        return with_metrics(runs, name, still)

    return plant


def score_curve(run: FakeRun, key: str = SCORE) -> dict[int, float]:
    """The run's logged scores by update."""
    steps, values = run.points[key]
    return dict(zip(steps, values))


def ending_at(last: Mapping[str, float], items: int = TEST_ITEMS) -> Callable[[Runs], Runs]:
    """Runs by name with another last score: their curves rise in proportion from the score at update 0."""

    def plant(runs: Runs) -> Runs:
        for run in [run for run in runs if run.name in last]:
            curve = score_curve(run)
            start, end = curve[min(curve)], curve[max(curve)]
            factor = (last[run.name] - start) / (end - start)
            risen = {step: round((start + (value - start) * factor) * items) / items for step, value in curve.items()}
            runs = with_metrics(runs, run.name, {SCORE: risen})
        return runs

    return plant


def read_order(glob: str, order: object) -> Callable[[Runs], Runs]:
    """Runs that match and that read the data order of another seed."""
    return metrics(glob, prompt_metrics(order))


def lengthened(glob: str, updates: int, score: Callable[[int], float]) -> Callable[[Runs], Runs]:
    """Runs that match, made anew with more ``updates`` and with ``score(update)`` as their curve."""

    def plant(runs: Runs) -> Runs:
        longer = []
        for run in runs:
            if not fnmatchcase(run.name, glob):
                longer.append(run)
                continue
            config: Mapping[str, Any] = run.source.config
            seed = config["data"]["seed"]
            curve: Values = {
                step: round((score(step) + 0.002 * ((seed + step) % 3)) * TEST_ITEMS) / TEST_ITEMS
                for step in range(0, updates + 1, 5)
            }
            longer.append(
                make_run(run.name, seed=seed, config=config, updates=updates, metrics={SCORE: curve}, number=seed)
            )
        return longer

    return plant


def resumed(name: str, at: int, later: Mapping[str, Any]) -> Callable[[Runs], Runs]:
    """The run ``name`` in two segments, the second under other settings."""

    def plant(runs: Runs) -> Runs:
        (run,) = [run for run in runs if run.name == name]
        created = run.source.created or START
        first = cut(run, at, state=RunState.CRASHED)
        again = created + timedelta(minutes=55)
        source = {"created": again, "ended": again + timedelta(minutes=20)}
        second = cut(run, UPDATES, at + 1, ref=replace(run.source.ref, run_id=f"{run.key}-b"), **source)
        return [*(one for one in runs if one.name != name), first, *with_config([second], "*", later)]

    return plant


def loss_check(kind: Kind, low: float, high: float) -> dict[str, Values]:
    """What a failed loss check logs before the first update."""
    return {
        "harness/loss_check": {0: 0.0},
        "harness/loss_check_kind": {0: float(kind.code)},
        "harness/loss_check_factor_min": {0: low},
        "harness/loss_check_factor_max": {0: high},
    }


def each_claim(text: str, **expect: Any) -> dict[str, Any]:
    """A design that claims one thing."""
    return {"claims": [{"text": text, "expect": expect}]}
