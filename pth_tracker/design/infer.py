"""The design in force: what is declared, and a guess, shown as such, of what is not."""

from __future__ import annotations

import difflib
import fnmatch
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final

from pth_tracker.design.comparison import CellKey, Comparison, Member, differing_keys
from pth_tracker.design.labels import SeedLabel, argument_labels, read_labels
from pth_tracker.design.schema import ArmSelector, Design
from pth_tracker.model import DesignInForce
from pth_tracker.runs import Run, RunState
from pth_tracker.values import (
    MISSING,
    REDACTED,
    Maybe,
    identity_text,
    is_secret,
    listed,
    same_value,
    show_value,
    value_key,
)
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.detect import find_keys
from pth_tracker.vocabulary.load import Vocabulary

SEED_IN_NAME: Final = "the seed in the name"
MAX_INFERRED_DIFFERENCES: Final = 3
"""Arms of single runs are compared only where they differ in at most so many fields."""


def infer(vocabulary: Vocabulary, runs: Sequence[Run], design: Design | None) -> Comparison:
    """The comparison of these runs under ``design``, with everything that it leaves out inferred.

    Raises:
        DesignError: a run is in two declared arms, a declared arm has none, or no run logs the declared metric.
    """
    declared = design or Design()
    trained = [run for run in runs if declared.arms or not run.aside]
    readings = {run.key: Reading(vocabulary, run) for run in runs}
    own = [readings[run.key] for run in trained]
    labels = read_labels(runs, _config_seeds(own))
    inferred: set[str] = set()
    notes: list[str] = []

    stress = declared.stress.key if declared.stress else _stress_key(own, declared.replicate)
    if stress and not declared.stress:
        inferred.add("stress")
    task = declared.task or _task_keys(own)
    if task and not declared.task:
        inferred.add("task")
    aside = {*task, stress, *declared.replicate}

    if declared.arms:
        arms = _declared_arms(declared, runs)
    else:
        arms = _inferred_arms(trained, readings, labels, aside)
        inferred.add("arms")
    placed = {key for keys in arms.values() for key in keys}
    in_none = [run.label for run in runs if run.key not in placed and not run.aside]
    if in_none:
        notes.append(f"in no arm: {listed(in_none)}")

    undecided = "" if declared.arms else _undecided(arms, trained, readings, aside)
    baseline = declared.baseline
    if baseline and baseline not in arms:
        raise declared.error(f"the baseline {baseline!r} is none of the inferred arms {listed(list(arms))}", "baseline")
    if not baseline and len(arms) > 1 and not undecided:
        baseline = _baseline(arms, readings)
        inferred.add("baseline")

    _check_claims(declared, arms)
    metric, higher, at = _metric(vocabulary, declared, trained, readings, inferred, notes)
    replicate = tuple(declared.replicate)
    notes += _unknown_names(declared, runs)
    run_seed = "" if replicate or labels else _run_seed(own)
    if not replicate:
        replicate = (run_seed,) if run_seed else _replicate(own, labels)
        inferred.add("replicate")
    in_force = DesignInForce(
        arms={arm: tuple(keys) for arm, keys in arms.items()},
        baseline=baseline,
        vary=tuple(declared.vary),
        replicate=replicate,
        metric=metric,
        higher_is_better=higher,
        at=at,
        task=tuple(task),
        stress=stress,
        tie_margin=declared.tie_margin,
        pairing=declared.pairing,
        ignore=tuple(dict(ignore.model_dump(mode="json")) for ignore in declared.ignore),
        inferred=frozenset(inferred),
        source=declared.source,
        notes=tuple(notes),
    )
    pairing = declared.replicate or ((run_seed,) if run_seed else ())
    arm_of = {key: arm for arm, keys in arms.items() for key in keys}
    members = [
        _member(readings[run.key], arm_of.get(run.key, ""), task, stress, pairing, labels.get(run.key)) for run in runs
    ]
    return Comparison(members, declared, in_force, stress, undecided)


def _member(
    reading: Reading, arm: str, task: Sequence[str], stress: str, pairing: Sequence[str], label: SeedLabel | None
) -> Member:
    run = reading.run
    cell = CellKey(
        run.framework,
        tuple(identity_text(run.get(key)) if key in run.config else "" for key in task),
        identity_text(run.get(stress)) if stress else "",
        arm,
    )
    pair_key: str | None
    if pairing:
        values = [run.get(key) for key in pairing]
        pair_key = None if MISSING in values else ", ".join(identity_text(value) for value in values)
    elif reading.seed.order is not None:
        pair_key = reading.seed.order
    else:
        pair_key = label.seed if label else None
    return Member(run, reading, cell, pair_key, label, argument_labels(run.last.arguments or ()))


def _config_seeds(readings: Iterable[Reading]) -> set[str]:
    return {
        identity_text(value)
        for reading in readings
        for key, value in reading.run.config.items()
        if isinstance(value, int) and not isinstance(value, bool) and reading.is_seed(key)
    }


def _run_seed(readings: Sequence[Reading]) -> str:
    """What tells replicates apart where all runs read one fixed order: another seed of several values, or nothing."""
    if any(reading.seed.acts or reading.seed.order is None for reading in readings):
        return ""
    values: dict[str, set[Hashable]] = defaultdict(set)
    for reading in readings:
        for key in (*reading.framework.other_seeds, *reading.usual_seeds):
            if key in reading.run.config:
                values[key].add(value_key(reading.run.config[key]))
    return next((key for key, held in values.items() if len(held) > 1), "")


def _stress_key(readings: Iterable[Reading], replicate: Sequence[str]) -> str:
    values: dict[str, set[Hashable]] = defaultdict(set)
    for reading in readings:
        for key in reading.framework.staleness:
            if key in reading.run.config and key not in replicate:
                values[key].add(value_key(reading.run.config[key]))
    return next((key for key, held in values.items() if len(held) > 1), "")


def _task_keys(readings: Iterable[Reading]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for reading in readings:
        key = next((key for key in reading.framework.task if key in reading.run.config), None)
        if key is not None:
            found[key] = None
    return tuple(found)


def _declared_arms(design: Design, runs: Sequence[Run]) -> dict[str, list[str]]:
    arms: dict[str, list[str]] = {arm: [] for arm in design.arms}
    for run in runs:
        within = [arm for arm, selector in design.arms.items() if selects(selector, run)]
        if len(within) > 1:
            message = f"the run {run.label} is in two arms, {within[0]} and {within[1]}: narrow one of them"
            raise design.error(message, "arms", within[1])
        if within:
            arms[within[0]].append(run.key)
    empty = next((arm for arm, keys in arms.items() if not keys), None)
    if empty is not None:
        names = listed([run.label for run in runs])
        raise design.error(f"no run is in the arm {empty!r}; the runs are {names}", "arms", empty)
    return arms


def selects(selector: ArmSelector, run: Run) -> bool:
    """Whether ``run`` is one of the arm's."""
    last = run.last

    def held(patterns: Sequence[str], *texts: str) -> bool:
        return not patterns or any(fnmatch.fnmatchcase(text, pattern) for text in texts for pattern in patterns)

    return (
        held(selector.name, run.name, run.label)
        and held(selector.group, last.group)
        and held(selector.tag, *last.tags)
        and held(selector.job_type, last.job_type)
        and all(same_value(run.get(key), value) for key, value in selector.values.items())
    )


def _set_aside(reading: Reading, key: str, aside: set[str]) -> bool:
    return (
        key in aside
        or reading.is_seed(key)
        or reading.is_bookkeeping(key)
        or reading.is_soft(key)
        or reading.is_derived(key)
    )


def treatments(runs: Sequence[Run], readings: Mapping[str, Reading], aside: set[str]) -> dict[str, dict[str, Maybe]]:
    """Run key to the fields that set it apart from others of its framework, with their values."""
    found: dict[str, dict[str, Maybe]] = {}
    for framework in dict.fromkeys(run.framework for run in runs):
        family = [run for run in runs if run.framework == framework]
        keys = differing_keys([run.config for run in family])
        kept = [key for key in keys if not _set_aside(readings[family[0].key], key, aside)]
        for run in family:
            own_name = (run.name, run.key)
            found[run.key] = {
                key: run.get(key) for key in kept if not (isinstance(run.get(key), str) and run.get(key) in own_name)
            }
    return found


def _inferred_arms(
    runs: Sequence[Run], readings: Mapping[str, Reading], labels: Mapping[str, SeedLabel], aside: set[str]
) -> dict[str, list[str]]:
    apart = treatments(runs, readings, aside)
    groups: dict[Hashable, list[Run]] = {}
    for run in runs:
        values = frozenset((key, value_key(value)) for key, value in apart[run.key].items())
        # Without any setting in the configuration the name without its seed is all there is to go by.
        own: Hashable = values if _has_settings(readings[run.key], aside) else _stem(run, labels)
        groups.setdefault((run.framework, own), []).append(run)
    names = _arm_names(list(groups.values()), labels, apart)
    return {name: [run.key for run in members] for name, members in sorted(zip(names, groups.values()))}


def _has_settings(reading: Reading, aside: set[str]) -> bool:
    """Whether the configuration holds anything that could set one arm apart from another."""
    return any(not _set_aside(reading, key, aside) for key in reading.run.config)


def _stem(run: Run, labels: Mapping[str, SeedLabel]) -> str:
    return labels[run.key].stem if run.key in labels else run.name


def _arm_names(
    groups: Sequence[Sequence[Run]], labels: Mapping[str, SeedLabel], apart: Mapping[str, Mapping[str, Maybe]]
) -> list[str]:
    stems = [{_stem(run, labels) for run in group} for group in groups]
    holders = Counter(stem for held in stems for stem in held)
    tracker_groups = [{run.last.group for run in group} for group in groups]
    group_holders = Counter(name for held in tracker_groups for name in held)
    values = [apart[group[0].key] for group in groups]
    telling = [key for key in sorted({key for held in values for key in held}) if tells(key, values)]
    names: list[str] = []
    for group, held, own_groups, fields in zip(groups, stems, tracker_groups, values):
        stem, tracker_group = next(iter(held)), next(iter(own_groups))
        if len(held) == 1 and holders[stem] == 1:
            name = stem
        elif len(own_groups) == 1 and tracker_group and group_holders[tracker_group] == 1:
            name = tracker_group
        else:
            shown = [f"{key.rsplit('.', 1)[-1]}={shown_setting(key, fields.get(key, MISSING))}" for key in telling[:3]]
            name = ", ".join(shown) or group[0].name or group[0].key
        names.append(name)
    return [
        name if names.count(name) == 1 else f"{name} #{names[:place].count(name) + 1}"
        for place, name in enumerate(names)
    ]


def shown_setting(key: str, value: Maybe) -> str:
    """A setting's value as short text, redacted where the key is a secret's."""
    return REDACTED if value is not MISSING and is_secret(key) else show_value(value, 24)


def tells(key: str, values: Sequence[Mapping[str, Maybe]]) -> bool:
    """Whether the mappings differ in ``key``."""
    return len({value_key(held.get(key, MISSING)) for held in values}) > 1


def _undecided(
    arms: Mapping[str, Sequence[str]], runs: Sequence[Run], readings: Mapping[str, Reading], aside: set[str]
) -> str:
    """Why the inferred arms are no comparison; ``""`` where they are one."""
    if len(arms) < 2:
        return ""
    replicated = [arm for arm, keys in arms.items() if len(keys) > 1]
    if len(replicated) > 1:
        return ""
    apart = treatments(runs, readings, aside)
    keys = {key for held in apart.values() for key in held}
    differing = [key for key in sorted(keys) if tells(key, list(apart.values()))]
    if len(differing) <= MAX_INFERRED_DIFFERENCES and any(_has_settings(readings[run.key], aside) for run in runs):
        return ""
    return (
        f"no comparison recognised: {len(arms)} different settings, at most one of them with several runs; "
        "name the arms with --arm NAME=GLOB or in a design file"
    )


def _check_claims(design: Design, arms: Mapping[str, Sequence[str]]) -> None:
    for place, claim in enumerate(design.claims):
        unknown = next((arm for arm in claim.expect.named_arms if arm not in arms), None)
        if unknown is not None:
            known = listed(list(arms)) if arms else "none"
            raise design.error(f"the arm {unknown!r} is none of the arms {known}", "claims", place, "expect")


def _baseline(arms: Mapping[str, Sequence[str]], readings: Mapping[str, Reading]) -> str:
    plain = [arm for arm, keys in arms.items() if all(readings[key].role("correction") == "none" for key in keys)]
    return plain[0] if len(plain) == 1 else min(arms)


def _unknown_names(declared: Design, runs: Sequence[Run]) -> list[str]:
    """What a declared metric or pairing field is close to, where no run has it.

    Raises:
        DesignError: no run logs the declared metric, and one that has ended logged others.
    """
    logged = {key for run in runs for key in run.metric_keys or ()}
    held = {key for run in runs for key in run.config}
    notes = []
    # An empty name stands for no metric at all.
    known = all(run.metric_keys is not None for run in runs) and declared.metric and declared.metric.key
    if known and declared.metric and not find_keys(declared.metric.key, frozenset(logged)):
        said = f"no run logs the metric {declared.metric.key}{_near(declared.metric.key, logged, 3)}"
        if any(run.metric_keys and run.state is not RunState.RUNNING for run in runs):
            raise declared.error(said, "metric")
        notes.append(said)
    notes += [f"no run's configuration has {key}{_near(key, held)}" for key in declared.replicate if key not in held]
    return notes


def _near(name: str, names: set[str], most: int = 1) -> str:
    close = difflib.get_close_matches(name, sorted(names), n=most)
    if not close and most > 1:  # a long name is far from its own last component
        close = [one for one in sorted(names) if one.rsplit("/", 1)[-1] == name.rsplit("/", 1)[-1]][:most]
    if not close and most > 1:
        nearest = difflib.get_close_matches(name, sorted(names), n=most, cutoff=0.0)
        return f"; the nearest names are {', '.join(nearest)}" if nearest else ""
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _metric(
    vocabulary: Vocabulary,
    declared: Design,
    runs: Sequence[Run],
    readings: Mapping[str, Reading],
    inferred: set[str],
    notes: list[str],
) -> tuple[str, bool, str]:
    if declared.metric:
        at = declared.metric.at
        shown = at if isinstance(at, str) else f"mean over {at.mean_over} updates"
        return declared.metric.key, declared.metric.higher_is_better, shown
    if declared.benchmarks:
        return f"mean of {', '.join(declared.benchmarks)}", True, "last"
    inferred.add("metric")
    holders: Counter[str] = Counter()
    preference: dict[str, int] = {}
    for run in runs:
        for place, key in enumerate(readings[run.key].raw_keys("eval_score")):
            holders[key] += 1
            preference[key] = min(place, preference.get(key, place))
    if not holders:
        return "", True, "last"
    best = sorted(holders, key=lambda key: (-holders[key], preference[key], key))
    if len(best) > 1:
        others = listed(best[1:], 4)
        notes.append(f"the metric could also be {others}; --metric decides")
    return best[0], True, "last"


def _replicate(readings: Iterable[Reading], labels: Mapping[str, SeedLabel]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for reading in readings:
        if reading.seed.order is not None and reading.seed.key:
            found[reading.seed.key] = None
        elif reading.run.key in labels:
            found[SEED_IN_NAME] = None
    return tuple(found)
