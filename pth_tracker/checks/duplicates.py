"""Check 2, runs that are one run: the same logs under two names, and treatments that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from pth_tracker import stats
from pth_tracker.checks.differences import arm_differences, shown_field
from pth_tracker.checks.seeds import at_fault, claimed_seed
from pth_tracker.design.comparison import Comparison, Member, Pair, by_pair_key, keys_of, side_members
from pth_tracker.model import Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.stats.orders import printed_codes, window_keys
from pth_tracker.vocabulary.detect import matches_any

if TYPE_CHECKING:
    from pth_tracker.examine import Digest, Examination

LEAST_DISTINCT: Final = 5
"""Distinct values of a learner series below which its being equal proves nothing."""
LEAST_COMMON: Final = 0.9
"""The share of the longer run that two runs have to have in common to be one."""
SHOWN: Final = 6


def equal_learner_series(a: Member, b: Member) -> tuple[str, ...] | None:
    """The learner series of at least 5 distinct values that two runs share exactly; None: some differ, or none tells.

    Learner series depend on the learner's weights: a loss, a gradient norm. They are compared at their common
    updates, within what was printed.
    """
    if a.result is None or b.result is None:
        return None
    told = []
    for name in a.result.quantities.keys() & b.result.quantities.keys():
        if not a.reading.vocabulary.quantities[name].learner:
            continue
        same, distinct = _compare_exact(a.result.quantities[name], b.result.quantities[name])
        if same is False:
            return None
        if same and distinct >= LEAST_DISTINCT:
            told.append(name)
    return tuple(sorted(told)) or None


def _compare_exact(a: Digest, b: Digest) -> tuple[bool | None, int]:
    """Whether two series are equal at their common updates (None: there are none), and how many values they take."""
    _, left, right = np.intersect1d(a.step, b.step, assume_unique=True, return_indices=True)
    if not len(left):
        return None, 0
    x, y = a.values[left], b.values[right]
    if not stats.equal_series(x, y, decimals_a=a.decimals, decimals_b=b.decimals):
        return False, 0
    return True, min(len(np.unique(x)), len(np.unique(y)))


def equal_logs(a: Member, b: Member) -> tuple[str, ...] | None:
    """The learner series that tell that two runs are one, where no quantity that both logged differs; else None."""
    told = equal_learner_series(a, b)
    if told is None or a.result is None or b.result is None:
        return None
    lengths = sorted(result.last_update or 0 for result in (a.result, b.result))
    if lengths[0] < LEAST_COMMON * lengths[1] or _scores_differ(a.result, b.result):
        return None
    for name in a.result.quantities.keys() & b.result.quantities.keys():
        if _differs(a.result.quantities[name], b.result.quantities[name]):
            return None
    return told


def _scores_differ(a: Examination, b: Examination) -> bool:
    _, left, right = np.intersect1d(a.score_step, b.score_step, assume_unique=True, return_indices=True)
    if not len(left) or a.score_key != b.score_key:
        return False
    # Scores printed to four decimals in one place and in full in another are no two scores.
    return not np.allclose(a.score_values[left], b.score_values[right], rtol=0, atol=5e-4, equal_nan=True)


def _differs(a: Digest, b: Digest) -> bool:
    """Whether two series are told to differ, by their values where these are kept, else by their hashes."""
    if len(a.step) and len(b.step):
        return _compare_exact(a, b)[0] is False
    if a.decimals != b.decimals or a.first != b.first:
        return False
    if a.count == b.count:
        return not np.array_equal(a.blocks, b.blocks)
    common = min(len(a.single_blocks), len(b.single_blocks))
    return not np.array_equal(a.single_blocks[:common], b.single_blocks[:common])


def duplicate_groups(comparison: Comparison) -> list[tuple[list[Member], tuple[str, ...]]]:
    """The runs that are one run, with the learner series that tell it; found through an index, computed once."""
    if "duplicates" not in comparison.memo:
        comparison.memo["duplicates"] = _find_groups(comparison)
    found: list[tuple[list[Member], tuple[str, ...]]] = comparison.memo["duplicates"]
    return found


def _find_groups(comparison: Comparison) -> list[tuple[list[Member], tuple[str, ...]]]:
    members = [member for member in comparison.members if member.result]
    coarsest: dict[str, int] = {}
    for member in members:
        for name, digest in member.result.quantities.items() if member.result else ():
            if digest.decimals is not None:
                coarsest[name] = min(digest.decimals, coarsest.get(name, digest.decimals))
    index: dict[tuple[str, int], set[int]] = {}
    groups: list[tuple[list[Member], tuple[str, ...]]] = []
    looked = 0
    for member in members:
        keys = _index_keys(member, coarsest)
        home = None
        for place in sorted(set().union(*(index.get(key, set()) for key in keys))):
            looked += 1
            told = equal_logs(groups[place][0][0], member)
            if told is not None:
                home = place
                groups[place] = ([*groups[place][0], member], told)
                break
        if home is None:
            home = len(groups)
            groups.append(([member], ()))
        for key in keys:
            index.setdefault(key, set()).add(home)
    comparison.memo["duplicates_looked"] = looked
    return [group for group in groups if len(group[0]) > 1]


def _index_keys(member: Member, coarsest: dict[str, int]) -> set[tuple[str, int]]:
    """Where the run stands in the index: its learner series' stretches of 8 updates, as coarsely as any is printed."""
    found: set[tuple[str, int]] = set()
    for name, digest in member.result.quantities.items() if member.result else ():
        if member.reading.vocabulary.quantities[name].learner and np.isfinite(digest.values).all():
            keys = window_keys(digest.step, printed_codes(digest.values, coarsest.get(name)))
            found |= {(name, key) for _, key in keys}
    return found


def judge_duplicate_run(comparison: Comparison, met: frozenset[str]) -> Iterator[Finding]:
    """Two runs are one run: everything that both logged is equal.

    What it does: compares the logs of all runs, those that depend on the learner's weights above all.

    Why it matters: one run counted twice halves an interval for nothing; one run under two seeds is no second seed.

    How it decides: at least one learner series (loss, gradient norm, entropy) of 5 distinct values is equal at all
    common updates, no quantity that both logged differs, and the shorter run has 90% of the longer one's updates.
    Equal is within half a unit of what was printed, or two float32 ulp. Schedules, returns that are all zero and equal
    accuracies prove nothing. A failure where the runs are said to have different seeds, else a warning. Runs of one
    seed in two arms are left to inert-treatment.

    Example: ``grpo-seed43`` and ``grpo-seed44`` log one gradient norm to the last digit.

    Remedy: delete the copy, or find out why the seed changed nothing, and run the seeds again.

    Configuration: none.

    References: huggingface/trl 2824 and 7040 (runs of different seeds that are alike to the byte).
    """
    replicate = comparison.in_force.replicate
    inert = {arm for pair in comparison.pairs if inert_seeds(pair) for arm in (pair.a, pair.b)}
    for group, told in duplicate_groups(comparison):
        claims = {member.key: seed for member in group if (seed := claimed_seed(member, replicate)) is not None}
        several = len(set(claims.values())) > 1
        families = [group]
        if not several and inert.issuperset(member.arm for member in group):
            arms = dict.fromkeys(member.arm for member in group)
            families = [[member for member in group if member.arm == arm] for arm in arms]
        for members in families:
            if len(members) < 2:
                continue
            own = members[0].result.quantities if members[0].result else {}
            series = ", ".join(own[name].key for name in told)
            blamed = at_fault(members, replicate) if several else members[1:]
            labelled = f", said to have the seeds {', '.join(dict.fromkeys(claims.values()))}" if several else ""
            yield Finding(
                2,
                Level.FAIL if several else Level.WARN,
                f"{len(members)} runs logged one and the same run{labelled}",
                f"{', '.join(member.run.label for member in members)}: {series} and everything else that they logged "
                "is equal.",
                {
                    "runs": [member.run.label for member in members],
                    "series": list(told),
                    "claimed": {comparison.by_key[key].run.label: seed for key, seed in claims.items()},
                },
                basis=Basis.CONTRADICTION,
                runs=tuple(member.key for member in members),
                blames=tuple(member.key for member in blamed),
                arms=tuple(dict.fromkeys(member.arm for member in members if member.arm)),
                remedy="find out why the seed changed nothing, and run the seeds again"
                if several
                else "delete the copy, or leave it out",
            )


def inert_seeds(pair: Pair) -> tuple[str, ...]:
    """The common seeds of two arms that differ in a field and yet trained alike; empty: some seed's runs differ."""
    memo = pair.comparison.memo.setdefault("inert", {})
    key = (pair.a, pair.b, pair.stress)
    if key not in memo:
        memo[key] = _inert_seeds(pair)
    found: tuple[str, ...] = memo[key]
    return found


def _inert_seeds(pair: Pair) -> tuple[str, ...]:
    if not arm_differences(pair)[0]:
        return ()
    seeds: list[str] = []
    for seed, first, second in _same_seed(pair):
        if equal_learner_series(first, second) is None:
            return ()
        seeds.append(seed)
    return tuple(dict.fromkeys(seeds))


def _same_seed(pair: Pair) -> Iterator[tuple[str, Member, Member]]:
    """One run of each arm for each task and seed that both have."""
    for left, right in pair.cells:
        a, b = (by_pair_key([m for m in cell.members if m.result]) for cell in (left, right))
        for seed in a:
            if seed in b:
                yield seed, a[seed][0], b[seed][0]


def judge_inert_treatment(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms differ in a field of the configuration, and trained alike.

    What it does: compares the losses and gradient norms of the arms' runs of one seed.

    Why it matters: a treatment that changes nothing makes the arms one, and their difference noise.

    How it decides: the arms differ in a field, and no learner series differs between their runs of any common seed,
    at least one of which takes 5 distinct values. A failure where the field is meant to vary, else a warning. Where
    the vocabulary knows the switch that makes the field inactive, it is named.

    Example: ``kl_loss_coef`` 0.001 against 0.01 under ``use_kl_loss: false``.

    Remedy: turn the field's switch on, or take the field out of the comparison.

    Configuration: ``vary`` in the design, ``--vary``.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2; verl 4272 (settings that do not reach the actor).
    """
    seeds = inert_seeds(pair)
    if not seeds:
        return
    fields = arm_differences(pair)[0]
    meant = [key for key in fields if key in pair.comparison.in_force.vary]
    told = sorted({name for _, a, b in _same_seed(pair) for name in equal_learner_series(a, b) or ()})
    switches = [f"{key} {why}" for key in meant or fields for why in _switched_off(pair, key)]
    named = ", ".join((meant or fields)[:2]) + (f" and {len(fields) - 2} more" if len(fields) > 2 else "")
    shown = [
        f"{key}: {shown_field(key, side_members(pair, 0))} against {shown_field(key, side_members(pair, 1))}"
        for key in fields[:SHOWN]
    ]
    yield Finding(
        2,
        Level.FAIL if meant else Level.WARN,
        f"{pair.a} and {pair.b} differ in {named} and trained alike",
        f"{'; '.join(shown)}. {', '.join(told)} are equal for seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        + (f"; {'; '.join(switches)}." if switches else "."),
        {"fields": fields, "seeds": list(seeds), "series": told, "switches": switches},
        basis=Basis.DECLARED if meant else pair.comparison.basis,
        runs=keys_of(pair.members),
        blames=keys_of(side_members(pair, 0)),
        arms=(pair.a, pair.b),
        remedy="turn on the setting that makes the field act, or take the field out of the comparison",
    )


def _switched_off(pair: Pair, key: str) -> Iterator[str]:
    """Why the field does nothing in either arm, as far as the vocabulary knows."""
    members = [member for cells in pair.cells for cell in cells for member in cell.members[:1]]
    for switch in members[0].reading.framework.switches:
        if matches_any(key, switch.keys) and all(member.reading.holds(switch.when) for member in members):
            yield switch.why


def _inert_facts(pair: Pair) -> tuple[str, ...]:
    return ("runs_of_one_seed",) if any(True for _ in _same_seed(pair)) else ()


_LEARNER: Final = ("grad_norm", "loss", "entropy")

RULES: Final = (
    Rule(
        "duplicate-run",
        2,
        Level.FAIL,
        Scope.PROJECT,
        (branch("logged", _LEARNER),),
        judge_duplicate_run,
        reads=_LEARNER,
    ),
    Rule(
        "inert-treatment",
        2,
        Level.FAIL,
        Scope.PAIR,
        (branch("logged", "config", _LEARNER, "runs_of_one_seed"),),
        judge_inert_treatment,
        reads=_LEARNER,
        facts=_inert_facts,
    ),
)
