"""Check 2, data: the order in which runs read their data, told from the batches and not from the seed they claim."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from pth_tracker.checks.order_index import IDENTITY, data_orders, parted_orders
from pth_tracker.checks.seeds import at_fault, claimed_seed
from pth_tracker.design.comparison import Comparison, Member
from pth_tracker.design.stitch import boundary_changes
from pth_tracker.model import Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.stats.orders import Alignment
from pth_tracker.values import is_secret, listed, show_value, value_key
from pth_tracker.vocabulary.detect import matches_any

SHOWN: Final = 8
"""Runs or fields that a detail names at most."""


def judge_shared_data_order(comparison: Comparison, met: frozenset[str]) -> Iterator[Finding]:
    """Runs that claim different data seeds read the same batches in the same order.

    What it does: compares the batches of all runs, by their logged identities, or by metrics that depend on the batch
    alone (witness series: mean, largest and smallest prompt length).

    Why it matters: replicates that share one data order are no replicates of it; their spread leaves out what the
    order of the data does.

    How it decides: at equal updates, a match is the whole tuple equal, within what was printed, or off by one
    constant per series (another prompt template; the constant costs one match). The evidence of k matches in m
    updates is -log2 P(Bin(m, c) >= k) - log2(hypotheses x comparable pairs) bits, with c the larger tie share of the
    two runs, at least 3 / C(m, 2). One order is 20 bits or more and k/m of 0.8 or more; under dynamic filtering, 0.5
    of the largest and smallest values alone. Resumed runs are compared at other updates too, and batches of a
    multiple of the size as block means. Only runs that share a stretch of 8 updates in an index are compared.
    Asynchronous trainers assemble batches by completion and are not judged; runs that claim one seed are meant to
    share its order.

    Example: ``tis-seed42``, ``tis-seed43`` and ``tis-seed44`` log one series of prompt lengths.

    Remedy: pass the data seed on to the data loader, and run the seeds again.

    Configuration: none.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2; Hanley and Lippman-Hand (1983) for the least c.
    """
    orders = data_orders(comparison)
    replicate = comparison.in_force.replicate
    for keys in orders.groups:
        members = [comparison.by_key[key] for key in keys]
        claims = {member.key: seed for member in members if (seed := claimed_seed(member, replicate)) is not None}
        if len(set(claims.values())) < 2:
            continue
        involved = [member for member in members if member.key in claims]
        evidence = orders.evidence(keys)
        told = _told_by(involved[0], evidence[0][2])
        blamed = at_fault(involved, replicate)
        fields = {key for member in involved for key in member.reading.seed_keys}
        yield Finding(
            2,
            Level.FAIL,
            f"{len(involved)} runs that claim {len(set(claims.values()))} data seeds read one data order",
            f"{listed(f'{member.run.label} (seed {claims[member.key]})' for member in involved)}. {told}.",
            {
                "claimed": {member.run.label: claims[member.key] for member in involved},
                "pairs": [_shown(comparison, a, b, alignment) for a, b, alignment in evidence[:SHOWN]],
            },
            basis=Basis.CONTRADICTION,
            runs=tuple(member.key for member in involved),
            blames=tuple(member.key for member in blamed),
            arms=tuple(dict.fromkeys(member.arm for member in blamed if member.arm)),
            remedy=f"pass {' or '.join(sorted(fields)) or 'the data seed'} on to the data loader, and run the seeds "
            "again",
        )


def _told_by(member: Member, alignment: Alignment) -> str:
    witness = alignment.witness
    own = member.result.quantities if member.result else {}
    names = [own[name].key for name in member.reading.framework.witness if name in own]
    series = ", ".join(names) or own[IDENTITY[0]].key
    apart = [f"{value:g}" for value in alignment.offset]
    shifted = f", shifted by {' / '.join(apart)}" if any(alignment.offset) else ""
    lagged = f", {abs(alignment.lag)} updates apart" if alignment.lag else ""
    return (
        f"{series} agree at {witness.matches} of {witness.updates} updates{shifted}{lagged} "
        f"({witness.bits:.0f} bits of evidence)"
    )


def _shown(comparison: Comparison, a: str, b: str, alignment: Alignment) -> dict[str, object]:
    return {
        "runs": [comparison.by_key[key].run.label for key in (a, b)],
        "matches": alignment.witness.matches,
        "updates": alignment.witness.updates,
        "bits": round(alignment.witness.bits, 1),
        "chance": alignment.witness.chance,
        "lag": alignment.lag,
        "offset": list(alignment.offset),
    }


def judge_one_data_order(comparison: Comparison, met: frozenset[str]) -> Iterator[Finding]:
    """All runs of all arms read one data order, and nobody claimed otherwise.

    What it does: looks at what orders the training data of every run that counts.

    Why it matters: the interval over n such runs covers sampling and initialisation, and nothing of what another
    order of the data would have done.

    How it decides: no run that counts has a data seed that acts, none claims one by its name, its arguments or its
    configuration, all have the same fixed order (or, where the configuration does not tell, the same batches), and a
    cell holds two of them.

    Example: six runs of verl 0.7.1 with ``data.seed: null``.

    Remedy: give the data seed another value in every replicate.

    Configuration: none.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2.
    """
    members = [member for cell in comparison.cells for member in cell.counted]
    replicate = comparison.in_force.replicate
    if not any(len(cell.counted) > 1 for cell in comparison.cells):
        return
    if any(member.seed.acts or claimed_seed(member, replicate) is not None for member in members):
        return
    known = {member.seed.order for member in members}
    if known == {None}:
        orders = data_orders(comparison)
        known = {orders.root(member.key) if member.key in orders.runs else None for member in members}
    if len(known) != 1 or None in known:
        return
    fields = sorted({key for member in members for key in member.reading.seed_keys})
    why = next((member.seed.why for member in members if member.seed.why), "")
    yield Finding(
        2,
        Level.WARN,
        f"all {len(members)} runs read one data order",
        f"No data seed acts{f' ({why})' if why else ''}: what the order of the data does is in no interval over these "
        "runs.",
        {"order": next(iter(known)) if members[0].seed.order else "", "runs": len(members)},
        basis=comparison.basis,
        runs=tuple(member.key for member in members),
        blames=tuple(member.key for member in members),
        arms=tuple(comparison.arms),
        remedy=f"give {' or '.join(fields) or 'the data seed'} another value in every replicate",
    )


def judge_unstable_data_order(comparison: Comparison, met: frozenset[str]) -> Iterator[Finding]:
    """Runs of one data seed read different data orders.

    What it does: compares the batches of runs whose configuration gives them one data order.

    Why it matters: runs are paired by their seed because they then read the same data; here they do not.

    How it decides: among synchronous, unfiltered runs that were not resumed and have one seed, framework, release,
    batch size, data files, length filters, template and tokenizer, the tuple of witness series agrees at less than
    0.8 of at least 8 common updates, although its own ties are no hindrance. Logged identities stand for the tuple
    where two of the runs share some: those that hold the responses differ from run to run. Either the data file, the
    sampler or the order changed without a trace in the configuration. The runs with the rarer order are blamed.

    Example: one of four runs with ``data.seed: 42`` has other prompt lengths from update 1 on.

    Remedy: look for a changed data file, or a data loader that other code seeds.

    Configuration: none.

    References: verl issues 3457 and 5725 (orders that change without a change of the seed).
    """
    orders = data_orders(comparison)
    families: dict[Hashable, list[Member]] = {}
    for member in comparison.members:
        batches = orders.runs.get(member.key)
        if batches is None or batches.filtered or batches.resumed or member.seed.order is None:
            continue
        families.setdefault(_data_identity(member), []).append(member)
    for members in families.values():
        parted = parted_orders(orders, [member.key for member in members])
        if len(parted) < 2:
            continue
        commonest = len(parted[0][0])
        groups = [[comparison.by_key[key] for key in keys] for keys, _ in parted]
        rare = [member for group in groups if len(group) < commonest for member in group]
        blamed = rare or [member for group in groups for member in group]
        involved = [member for group in groups for member in group]
        alignment = parted[1][1]
        start = f" from update {alignment.parting} on" if alignment and alignment.parting is not None else ""
        yield Finding(
            2,
            Level.WARN,
            f"{len(involved)} runs of the data order {members[0].seed.order!r} read {len(parted)} different ones",
            "; ".join(listed(m.run.label for m in group) for group in groups)
            + f": their batches part{start}. The data file, the sampler or the order changed.",
            {
                "order": members[0].seed.order,
                "groups": [[member.run.label for member in group] for group in groups],
                "matches": alignment.witness.matches if alignment else 0,
                "updates": alignment.witness.updates if alignment else 0,
            },
            basis=Basis.CONTRADICTION,
            runs=tuple(member.key for member in involved),
            blames=tuple(member.key for member in blamed),
            arms=tuple(dict.fromkeys(member.arm for member in blamed if member.arm)),
            remedy="look for a changed data file, or a data loader that other code seeds",
        )


def _data_identity(member: Member) -> Hashable:
    """Equal for runs that should read the same batches: everything that decides them, by their configuration.

    Where the vocabulary does not say which keys do, only runs of one cell are taken to.
    """
    run, framework = member.run, member.reading.framework
    keys = sorted(
        key
        for key in run.config
        if matches_any(key, framework.data)
        and not (member.reading.is_bookkeeping(key) or member.reading.is_soft(key) or member.reading.is_seed(key))
    )
    within: Hashable = None if framework.data else member.cell
    values = tuple((key, value_key(run.get(key))) for key in keys)
    return run.framework, run.version, member.seed.order, member.cell.task, values, within


def judge_resume_changes_run(comparison: Comparison, met: frozenset[str]) -> Iterator[Finding]:
    """A resumed run is not the run that it was: other settings, another learning rate, or data read twice.

    What it does: compares the segments of every resumed run where they meet.

    Why it matters: a run that went on with another schedule, or that read its first batches again, is no replicate of
    one that ran through; if it happened in some arms only, it is a difference between them.

    How it decides: a field that is neither bookkeeping, derived nor soft differs between segments; or the learning rate
    differs by more than 5% where segments overlap, or jumps at the boundary by more than 5% and 3 times the changes in
    that direction next to it; or a segment's witness series repeat an earlier one's at another update (20 bits, 0.8 of
    them; not where the data are read in the file's order, which repeats by itself). Histories that overlap from their
    start are a restart, and attempts of their own. A failure where only some of the arms are affected.

    Example: a run resumed at update 100 reads batches 1 to 100 again, as verl up to 0.6.1 does.

    Remedy: run it again without a break, or resume every arm alike and restore the data loader's state.

    Configuration: none.

    References: verl issues 3457, 4156 and 5725; NVIDIA-NeMo/RL 2519; EasyR1 57.
    """
    said: dict[str, dict[str, list[str]]] = {}
    for member in comparison.members:
        changes = _resume_changes(member)
        if changes:
            said.setdefault(member.arm, {})[member.key] = changes
    affected = [arm for arm in said if arm]
    uneven = bool(affected) and len(affected) < len(comparison.arms)
    for arm, runs in said.items():
        labels = [comparison.by_key[key].run.label for key in runs]
        yield Finding(
            2,
            Level.FAIL if uneven and arm else Level.WARN,
            f"{listed(labels)} changed when resumed" + (f", in {arm} alone" if uneven and len(affected) == 1 else ""),
            " ".join(f"{label}: {'; '.join(changes)}." for label, changes in zip(labels, list(runs.values())[:SHOWN])),
            {"changes": dict(zip(labels, runs.values()))},
            basis=comparison.basis,
            runs=tuple(runs),
            blames=tuple(runs),
            arms=(arm,) if arm else (),
            remedy="run it again without a break, or restore optimiser, schedule and data loader alike",
        )


def _resume_changes(member: Member) -> list[str]:
    """What differs between the segments of a resumed run, in words; empty: nothing, or it was not resumed."""
    reading = member.reading
    changes = []
    for key, values in boundary_changes(member.run).items():
        if reading.is_bookkeeping(key) or reading.is_derived(key) or reading.is_soft(key):
            continue
        hidden = is_secret(key, reading.framework.secrets)
        shown = ["(redacted)" if hidden else show_value(value) for value in values]
        changes.append(f"{key} was {', then '.join(shown)}")
    for seam in member.result.seams if member.result else ():
        if seam.lr is not None:
            changes.append(f"the learning rate went from {seam.lr[0]:g} to {seam.lr[1]:g} at update {seam.first}")
        if seam.replay is not None and reading.role("shuffled") is not False:
            changes.append(
                f"from update {seam.first} on it read the batches of {seam.replay_lag} updates earlier again "
                f"({seam.replay.matches} of {seam.replay.updates} agree)"
            )
    return changes[:SHOWN]


_WITNESS: Final = ("prompt_length_mean", "prompt_length_max", "prompt_length_min")
_READS: Final = (*IDENTITY, *_WITNESS)
_BATCHES: Final = (
    branch("identity", IDENTITY[0], "synchronous"),
    branch("witness", _WITNESS, "synchronous"),
)


def _order_facts(comparison: Comparison) -> Iterator[str]:
    """Whether any run has its data loader's batches from start to end, and any identities are those of the data."""
    orders = data_orders(comparison)
    if any(not batches.filtered and not batches.resumed for batches in orders.runs.values()):
        yield "whole_batches"
    if orders.stretches:
        yield "shared_identities"


RULES: Final = (
    Rule(
        "shared-data-order",
        2,
        Level.FAIL,
        Scope.PROJECT,
        tuple(branch(one.name, *one.groups, "seed_label") for one in _BATCHES),
        judge_shared_data_order,
        reads=_READS,
    ),
    Rule(
        "one-data-order",
        2,
        Level.WARN,
        Scope.PROJECT,
        (branch("resolved", "data_seed"), *_BATCHES),
        judge_one_data_order,
        reads=_READS,
    ),
    Rule(
        "unstable-data-order",
        2,
        Level.WARN,
        Scope.PROJECT,
        (
            branch("identity", *_BATCHES[0].groups, "data_seed", "whole_batches", "shared_identities"),
            branch("witness", *_BATCHES[1].groups, "data_seed", "whole_batches"),
        ),
        judge_unstable_data_order,
        reads=_READS,
        facts=_order_facts,
    ),
    Rule(
        "resume-changes-run",
        2,
        Level.FAIL,
        Scope.PROJECT,
        (branch("resolved", "config"), branch("schedule", "lr"), branch("data", _WITNESS)),
        judge_resume_changes_run,
        reads=_READS,
    ),
)
