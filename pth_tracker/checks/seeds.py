"""Check 2, seeds: the data seed that a run claims against the one that took effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pth_tracker.design.comparison import Cell, Comparison, Member
from pth_tracker.model import LOST_SEED, Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.lens import seed_text


def claimed_otherwise(member: Member, replicate: Sequence[str]) -> str:
    """How the run's name or arguments contradict the order its data took; ``""``: they do not.

    A seed in the name may be another than the data seed: where a data seed acts, or none can, a name that equals any
    other seed of the configuration, or a declared replicate field, is taken as that one.
    """
    seed, keys = member.seed, member.reading.seed_keys
    known = seed.order is not None or seed.uncontrolled
    if not known:
        return ""
    effective = f"{seed.order!r}" if seed.acts else (seed.order or "no seed")
    reason = f" ({seed.why})" if seed.why else ""
    for key, argument in member.arguments.items():
        if key in keys and argument.seed != seed.order:
            return f"launched with {argument.text}, trained on {effective}{reason}"
    if member.label is None or member.label.seed == seed.order:
        return ""
    others = {
        seed_text(value)
        for key, value in member.run.config.items()
        if key in replicate or ((seed.acts or seed.uncontrolled) and member.reading.is_seed(key))
    }
    if member.label.seed in others:
        return ""
    return f"named {member.label.text}, trained on {effective}{reason}"


def claimed_seed(member: Member, replicate: Sequence[str]) -> str | None:
    """The data seed that the run is said to have; None: nobody says.

    Its arguments and its name say so where they contradict its order, else its configuration, else its name.
    """
    keys = member.reading.seed_keys
    arguments = [argument.seed for key, argument in member.arguments.items() if key in keys]
    if claimed_otherwise(member, replicate):
        wrong = [seed for seed in arguments if seed != member.seed.order]
        return wrong[0] if wrong else member.label.seed if member.label else None
    if member.seed.given is not MISSING and member.seed.given is not None:
        return seed_text(member.seed.given)
    if member.label is None or member.seed.order is not None:
        return member.label.seed if member.label and member.label.seed == member.seed.order else None
    return member.label.seed


def at_fault(members: Sequence[Member], replicate: Sequence[str]) -> list[Member]:
    """Those of the members that share one order whose claim their configuration denies; all where it denies none."""
    claims = {member.key: claimed_seed(member, replicate) for member in members}
    denied = [m for m in members if claims[m.key] is not None and claims[m.key] != m.seed.order]
    return denied or list(members)


def _shared(members: Sequence[Member]) -> dict[str, list[Member]]:
    """The counted members by the data order they share with another one of their cell."""
    found: dict[tuple[object, str], list[Member]] = {}
    for member in members:
        if member.counted and member.seed.order is not None:
            found.setdefault((member.cell, member.seed.order), []).append(member)
    return {order: group for (_, order), group in found.items() if len(group) > 1}


def _acts(members: Sequence[Member]) -> bool | None:
    """Whether the seeds of an arm's counted runs act: True for several orders, False for none, None: mixed or few."""
    counted = [member for member in members if member.counted]
    known = [member for member in counted if member.seed.order is not None]
    if len(known) < 2 or len(known) < len(counted):
        return None
    if all(member.seed.acts for member in known):
        return True if len({member.seed.order for member in known}) > 1 else None
    return False if not any(member.seed.acts for member in known) else None


def judge_lost_seed(comparison: Comparison, met: frozenset[str]) -> Iterator[Finding]:
    """A data seed never reached the arm that claims it.

    What it does: holds the seeds that names, launch arguments and arms claim against the seed that orders the data in
    the resolved configuration, by the framework's own rules (a null seed that is a fixed order, shuffling switched
    off, a key that does not reach the loader).

    Why it matters: replicates that replay one data order are no replicates. Their spread is too small, their pairing
    with other arms is false, and their labels hide it.

    How it decides: (a) a name or a launch argument names a seed and the data were ordered by another or by none;
    (b) in a declared arm two runs that count share one order within a cell, unless the design pairs by another
    field; (c) seeds order the data in one arm and not in another.

    Example: runs ``tis-seed43``, ``tis-seed44`` and ``tis-seed45`` whose ``data.seed`` is null in all three.

    Remedy: pass the data seed on in that arm's launch and run it again.

    Configuration: ``replicate`` in the design, where the runs are paired by another field than the data seed.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2.
    """
    replicate = comparison.design.replicate
    acting = {arm: _acts(members) for arm, members in comparison.arms.items()}
    for arm, members in [*comparison.arms.items(), ("", tuple(m for m in comparison.members if not m.arm))]:
        said: list[str] = []
        blamed: dict[str, None] = {}
        claims = {member.key: claimed_otherwise(member, replicate) for member in members}
        wrong = [member for member in members if claims[member.key]]
        said += [f"{member.run.label}: {claims[member.key]}" for member in wrong]
        blamed |= dict.fromkeys(member.key for member in wrong)
        basis = Basis.CONTRADICTION
        keys = {key for member in members for key in member.reading.seed_keys}
        if arm and comparison.arms_declared and (not replicate or keys & set(replicate)):
            for order, group in _shared(members).items():
                said.append(f"{_names(group)} share one data order, {order}")
                blamed |= dict.fromkeys(member.key for member in group)
                basis = basis if wrong else Basis.DECLARED
        others = [other for other, acts in acting.items() if acts and other != arm]
        if arm and acting[arm] is False and others and not blamed:
            why = next((member.seed.why for member in members if member.seed.why), "")
            said.append(f"no seed orders the data of {arm} ({why}), while seeds do in {', '.join(others)}")
            blamed |= dict.fromkeys(member.key for member in members if member.counted)
            basis = comparison.basis
        if not blamed:
            continue
        given = [comparison.by_key[key].seed.given for key in blamed]
        yield Finding(
            2,
            Level.FAIL,
            f"the data seed did not reach {arm or 'these runs'}",
            "; ".join(said) + ".",
            {
                "orders": {comparison.by_key[key].run.label: comparison.by_key[key].seed.order for key in blamed},
                "given": ["absent" if value is MISSING else value for value in given],
            },
            LOST_SEED,
            basis=basis,
            runs=tuple(blamed),
            blames=tuple(blamed),
            arms=(arm,) if arm else (),
            remedy=f"pass {' or '.join(sorted(keys)) or 'the data seed'} on in this arm's launch, and run it again",
        )


def judge_repeated_attempts(cell: Cell, met: frozenset[str]) -> Iterator[Finding]:
    """Several runs of one cell have one seed, so that it has to be said which of them counts.

    What it does: counts the runs that progressed for each replicate of a cell.

    Why it matters: the better of two attempts is worth half a standard deviation; which attempt counts must be said
    before the scores are known.

    How it decides: two or more runs that reached 90% of their arm's median last update have the same data seed in
    one cell. Attempts that broke off early are listed with the runs and not counted here. Their mean is used until
    the design says otherwise.

    Example: two finished runs named ``grpo-seed43``.

    Remedy: say which run counts by a pattern of the arm that only that run matches, or delete the other.

    Configuration: ``arms`` and ``replicate`` in the design.

    References: check 6 of the same report.
    """
    groups: dict[str, list[Member]] = {}
    for member in cell.counted:
        if member.pair_key is not None and (member.seed.acts or member.seed.order is None):
            groups.setdefault(member.pair_key, []).append(member)
    for replicate, group in groups.items():
        if len(group) < 2:
            continue
        yield Finding(
            2,
            Level.WARN,
            f"{len(group)} runs of {cell.subject} have the seed {replicate}",
            f"{_names(group)}. Their mean stands for the seed until the design says which of them counts.",
            {"seed": replicate, "scores": {member.run.label: member.score for member in group}},
            basis=cell.comparison.basis,
            runs=tuple(member.key for member in group),
            blames=tuple(member.key for member in group),
            arms=(cell.key.arm,),
            remedy="say which run counts: with --arm NAME=GLOB or in a design file, by a pattern that only that run "
            "matches",
        )


def _names(members: Sequence[Member]) -> str:
    return ", ".join(member.run.label for member in members)


RULES: Final = (
    Rule(
        "lost-seed",
        2,
        Level.FAIL,
        Scope.PROJECT,
        (branch("claimed", "seed_label", "data_seed"), branch("resolved", "config", "data_seed")),
        judge_lost_seed,
        explains=(
            "label-contradicts-config",
            "override-lost:seed",
            "no-common-seed",
            "too-few-seeds",
            "unpaired-runs",
            "shared-data-order",
            "one-data-order",
            "repeated-attempts",
            "duplicate-run",
            "drift-within-arm:seed",
            "undeclared-difference:seed",
            "pooled-ordering",
        ),
    ),
    Rule(
        "repeated-attempts",
        2,
        Level.WARN,
        Scope.CELL,
        (branch("counted", "two_runs", "replicate"),),
        judge_repeated_attempts,
    ),
)
