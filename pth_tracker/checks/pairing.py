"""Check 6: which runs a paired comparison rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.paired_results import result_of, shown_interval, shown_unit
from pth_tracker.design.comparison import Comparison, Member, Pair, keys_of, side_members
from pth_tracker.model import Finding, Level, Rule, Scope, branch
from pth_tracker.runs import RunState
from pth_tracker.values import listed, value_key
from pth_tracker.vocabulary.detect import find_keys

PROGRESSED: Final = 0.9
NAMED: Final = 6
"""Runs that a detail names at most."""


@dataclass(frozen=True)
class Tally:
    """The runs of one arm in one comparison."""

    launched: tuple[Member, ...]
    """All that have the arm's configuration, in the arm or left out of it; none that is still running."""
    progressed: tuple[Member, ...]
    """Those that reached 90% of the arm's median last update and have a score."""
    counted: tuple[Member, ...]
    omitted: tuple[Member, ...]
    """Progressed runs that have the arm's configuration and are in no arm."""

    @property
    def dropped(self) -> int:
        """How many replicates were launched of which no run counts."""
        return len({_unit(m) for m in self.launched} - {_unit(m) for m in self.counted})

    @property
    def shown(self) -> str:
        """The three counts."""
        return f"{len(self.launched)} launched, {len(self.progressed)} progressed, {len(self.counted)} counted"


def _unit(member: Member) -> tuple[object, ...]:
    """What tells a replicate from another attempt at it; where no seed acts, the seed that its name claims."""
    fixed = member.pair_key == member.seed.order and member.seed.order is not None and not member.seed.acts
    if member.pair_key is not None and not fixed:
        return (member.cell.task, member.pair_key)
    return (member.cell.task, member.label.seed if member.label else member.run.name or member.key)


def _signature(comparison: Comparison, member: Member) -> frozenset[tuple[object, ...]] | None:
    """What makes a run one of its arm: its configuration without seeds, task, stress and bookkeeping."""
    signatures = comparison.memo.setdefault("signatures", {})
    if member.key not in signatures:
        aside = {*comparison.in_force.task, *comparison.in_force.replicate, comparison.stress_key}
        reading = member.reading
        signatures[member.key] = frozenset(
            (key, value_key(value))
            for key, value in member.run.config.items()
            if key not in aside
            and not (reading.is_seed(key) or reading.is_bookkeeping(key) or reading.is_soft(key))
            and not (reading.is_derived(key) or (isinstance(value, str) and value in (member.run.name, member.key)))
        )
    found: frozenset[tuple[object, ...]] = signatures[member.key]
    return found or None


def tally(pair: Pair, first: bool) -> Tally:
    """How many runs of an arm were launched, how far they came, and how many count."""
    comparison = pair.comparison
    own = side_members(pair, 0 if first else 1)
    places = {replace(cells[0].key, arm="") for cells in pair.cells}
    known = {signature for member in own if (signature := _signature(comparison, member))}
    outside = [m for m in comparison.members if not m.arm and m.cell in places]
    outside = [m for m in outside if _signature(comparison, m) in known]
    launched = [m for m in (*own, *outside) if m.run.state is not RunState.RUNNING]
    lasts = [m.result.last_update for m in own if m.result and m.result.last_update is not None]
    enough = PROGRESSED * float(np.median(lasts)) if lasts else math.inf
    progressed = [
        m
        for m in launched
        if m.result and m.result.last_update is not None and m.result.last_update >= enough and m.score is not None
    ]
    counted = [m for m in launched if m.counted]
    omitted = [m for m in progressed if not m.arm]
    return Tally(tuple(launched), tuple(progressed), tuple(counted), tuple(omitted))


def judge_runs_dropped(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """One arm of a comparison lost or left out more of its runs than the other.

    What it does: counts for each arm how many runs were launched, how many came to their end, and how many count.

    Why it matters: the best 3 of 5 runs are worth 0.55 standard deviations, the better of two attempts 0.56; a seed
    that crashed in one arm alone may be the one that diverged.

    How it decides: launched are the runs of the arm and those in no arm with the arm's configuration, apart from
    seeds; a replicate is dropped where none of its runs counts (an attempt that was repeated is not). A warning where
    the share of dropped replicates differs between the arms, or a run that came to its end was left out of one; a
    failure where that arm is one that a claim names. Runs that are still running are left aside.

    An arm whose runs all log another metric lost none.

    Example: five ``ours`` runs were launched, the design's arm names three of them; of ``tis``, three of three.

    Remedy: count every run that finished, and run the missing seeds again in both arms.

    Configuration: ``arms`` and ``claims`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 6.
    """
    tallies = {pair.a: tally(pair, True), pair.b: tally(pair, False)}
    shares = {arm: one.dropped / max(1, len({_unit(m) for m in one.launched})) for arm, one in tallies.items()}
    omitted = {arm: one.omitted for arm, one in tallies.items() if one.omitted}
    if not omitted and (
        math.isclose(shares[pair.a], shares[pair.b]) or any(_other_score(pair, one) for one in tallies.values())
    ):
        return
    claimed = {arm for claim in pair.comparison.design.claims for arm in claim.expect.named_arms}
    worst = max(shares, key=lambda arm: shares[arm])
    if omitted:
        title = f"{', '.join(omitted)} leaves out {sum(map(len, omitted.values()))} of its runs that came to their end"
    else:
        title = f"{tallies[worst].dropped} of {worst}'s seeds dropped out, and another share of the other arm's"
    lost = [m for one in tallies.values() for m in one.launched if not m.counted]
    detail = "; ".join(f"{arm}: {one.shown}" for arm, one in tallies.items())
    yield Finding(
        6,
        Level.FAIL if claimed.intersection(omitted) else Level.WARN,
        f"{pair.subject}: {title}",
        f"{detail}. Not counted: {_named(lost)}.",
        {
            arm: {"launched": len(t.launched), "progressed": len(t.progressed), "counted": len(t.counted)}
            for arm, t in tallies.items()
        }
        | {"omitted": {arm: [m.run.label for m in members] for arm, members in omitted.items()}},
        basis=pair.comparison.basis,
        runs=tuple(dict.fromkeys(keys_of((*pair.members, *lost)))),
        arms=(pair.a, pair.b),
        remedy="count every run that finished, and run the missing seeds again",
    )


def _other_score(pair: Pair, one: Tally) -> bool:
    """Whether all runs of the arm logged metrics and none the one in force: their score is another, none is lost."""
    metric = pair.comparison.in_force.metric
    keys = [m.run.metric_keys for m in one.launched]
    return bool(metric and keys) and all(held and not find_keys(metric, held) for held in keys)


def _named(members: Sequence[Member]) -> str:
    labels = [m.run.label + (f" ({m.why_not})" if m.why_not else "") for m in members]
    return listed(labels, NAMED)


def judge_pooled_ordering(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """All runs of one arm lie above all runs of the other, and the paired difference still holds 0.

    What it does: looks for orderings of whole arms that pairing by seed does not bear out.

    Why it matters: "all 9 runs above all 6" mixes the seeds' effects with the method's, most of all where some runs
    have no partner.

    How it decides: every counted run of one arm scores above every one of the other, the t interval of the paired
    differences holds 0 (no interval excludes nothing), and either a claim says that this arm is the better one, or
    runs without a partner are among those pooled.

    Example: nine runs above six, three common seeds, interval -0.5 to +4.1 points.

    Remedy: report the paired difference, and run the missing seeds.

    Configuration: ``claims`` in the design.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 6.
    """
    result = result_of(pair)
    if result is None or not result.interval.holds_zero:
        return
    sides = [[s for m in pair.side(f) if (s := m.score) is not None and math.isfinite(s)] for f in (True, False)]
    order = stats.pooled_order(*sides)
    if order == 0:
        return
    above, under = (pair.a, pair.b) if order > 0 else (pair.b, pair.a)
    counts = (len(sides[0]), len(sides[1])) if order > 0 else (len(sides[1]), len(sides[0]))
    ahead = (above, under) if pair.comparison.in_force.higher_is_better else (under, above)
    claimed = ahead in pair.comparison.claimed
    alone = len(result.only_a) + len(result.only_b)
    if not claimed and not alone:
        return
    scale, unit = shown_unit(pair)
    low, high = result.interval.low, result.interval.high
    span = shown_interval(result.interval, scale) + (unit if low is not None else "")
    why = ["a claim says that it is better"] if claimed else []
    why += [f"{alone} seed{'s' if alone > 1 else ''} of one arm alone {'are' if alone > 1 else 'is'} among them"] * (
        alone > 0
    )
    yield Finding(
        6,
        Level.WARN,
        f"{pair.subject}: all {counts[0]} runs of {above} lie above all {counts[1]} of {under}, and the paired "
        "difference may be 0",
        f"Paired over {len(result.seeds)} seeds: {span}; {' and '.join(why)}.",
        {
            "above": above,
            "runs": {above: counts[0], under: counts[1]},
            "seeds": len(result.seeds),
            "interval": [low, high],
            "claimed": claimed,
            "unpaired_seeds": [*result.only_a, *result.only_b],
        },
        basis=pair.comparison.basis,
        runs=keys_of((*pair.side(True), *pair.side(False))),
        arms=(pair.a, pair.b),
        remedy="report the paired difference, and run the missing seeds",
    )


def _common_facts(pair: Pair) -> tuple[str, ...]:
    return ("common_seed",) if result_of(pair) else ()


def _launch_facts(pair: Pair) -> tuple[str, ...]:
    return ("launched_arms",) if any(m.counted for m in pair.members) else ()


RULES: Final = (
    Rule(
        "runs-dropped-unevenly",
        6,
        Level.FAIL,
        Scope.PAIR,
        (branch("counted", "launched_arms"),),
        judge_runs_dropped,
        blames_runs=False,
        facts=_launch_facts,
    ),
    Rule(
        "pooled-ordering",
        6,
        Level.WARN,
        Scope.PAIR,
        (branch("paired", "score", "replicate", "common_seed"),),
        judge_pooled_ordering,
        blames_runs=False,
        facts=_common_facts,
    ),
)
