"""Check 2 on configurations and data orders in memory, for code that holds them itself.

Values are compared as everywhere here (`pth_tracker.values`): ``"43"``, ``43`` and ``43.0`` are one seed, ``True`` is
not 1, and an absent key is a value of its own.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pth_tracker.errors import UsageError
from pth_tracker.model import LOST_SEED, Level, Report
from pth_tracker.values import MISSING, Maybe, canonical_value, show_value, value_key

DEFAULT_IGNORE: Final = (
    "trainer.experiment_name",
    "trainer.project_name",
    "trainer.default_local_dir",
    "trainer.rollout_data_dir",
    "trainer.validation_data_dir",
    "output_dir",
    "*.output_dir",
    "run_name",
    "*.run_name",
    "wandb*",
    "*.wandb*",
)
"""Patterns of keys that name a run or a place and differ by design."""
MAX_BYTES: Final = 10_000_000
"""The largest configuration file that is read."""

ArmOf = Mapping[str, str] | Callable[[str], str | None]


def flatten(cfg: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; a list stays a value, and so does an empty mapping."""
    flat: dict[str, Any] = {}
    for key, value in cfg.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, name)
        else:
            flat[name] = value
    return flat


def load_config(path: str | Path) -> dict[str, Any]:
    """The resolved configuration in a JSON or YAML file, nested as it stands there.

    Raises:
        UsageError: it cannot be read, or holds no mapping.
    """
    place = Path(path)
    try:
        if place.stat().st_size > MAX_BYTES:
            raise UsageError(f"{place}: a configuration file may have {MAX_BYTES:,} bytes")
        text = place.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{place} is no UTF-8 text: give a configuration in JSON or YAML") from error
    from pth_tracker.plain_yaml import load_yaml

    try:
        data = json.loads(text) if place.suffix == ".json" else load_yaml(text)
    except (ValueError, RecursionError) as error:
        where = " ".join(str(error).split())
        raise UsageError(f"{place} is no {'JSON' if place.suffix == '.json' else 'YAML'}: {where}") from error
    if not isinstance(data, dict):
        raise UsageError(f"{place} holds no mapping of keys to values: give a resolved configuration")
    return data


def check_arms(
    runs: Mapping[str, Mapping[str, Any]],
    arm_of: ArmOf,
    vary: Sequence[str] = (),
    replicate: Sequence[str] = ("data.seed",),
    ignore: Sequence[str] = DEFAULT_IGNORE,
) -> Report:
    """Check 2: what is meant to vary varies, what is meant to be fixed is, and every arm has the same replicates.

    Args:
        runs: Run to its resolved configuration, nested or flat.
        arm_of: Run to its arm.
        vary: Keys that are meant to differ between the arms.
        replicate: Keys that tell the runs of an arm apart, such as the data seed; several are taken together.
        ignore: Patterns of keys that differ by design.

    Returns:
        A report with the stats ``arms`` (arm to its runs) and ``replicates`` (key to arm to the values of its runs).

    Raises:
        KeyError: a run is in no arm.
    """
    report = Report(subject="check 2: the configuration of each arm")
    if not runs:
        report.add(2, Level.WARN, "no runs were given")
        return report
    vary, replicate, ignore = (_names(one) for one in (vary, replicate, ignore))
    flat = {
        name: {key: canonical_value(value) for key, value in flatten(config).items()} for name, config in runs.items()
    }
    arms: dict[str, list[str]] = {}
    for name in sorted(flat):
        arm = arm_of.get(name) if isinstance(arm_of, Mapping) else arm_of(name)
        if arm is None:
            raise KeyError(f"the run {name!r} is in no arm")
        arms.setdefault(arm, []).append(name)
    arms = dict(sorted(arms.items()))
    report.stats["arms"] = {arm: list(names) for arm, names in arms.items()}
    if replicate:
        _judge_replicates(report, arms, flat, replicate)
    for key in vary:
        _judge_varied(report, arms, flat, key)
    skipped = {*vary, *replicate}
    keys = sorted({key for config in flat.values() for key in config} - skipped)
    quiet = True
    for key in keys:
        if not any(fnmatch.fnmatchcase(key, pattern) for pattern in ignore):
            quiet &= not _judge_fixed(report, arms, flat, key)
    if report.ok and quiet:
        report.add(2, Level.INFO, f"{len(flat)} runs in {len(arms)} arms differ in what is declared alone")
    return report


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


Configs = Mapping[str, Mapping[str, Any]]
Arms = Mapping[str, Sequence[str]]


def _values(flat: Configs, names: Iterable[str], key: str) -> list[Maybe]:
    return [flat[name].get(key, MISSING) for name in names]


def _distinct(values: Iterable[Maybe]) -> str:
    """Distinct values as text, in order of appearance."""
    return ", ".join({value_key(value): show_value(value) for value in values}.values())


def _judge_replicates(report: Report, arms: Arms, flat: Configs, replicate: Sequence[str]) -> None:
    named = " and ".join(replicate)
    tag = LOST_SEED if any("seed" in key.lower() for key in replicate) else ""
    identity = {name: tuple(value_key(flat[name].get(key, MISSING)) for key in replicate) for name in flat}
    for arm, names in arms.items():
        shared: dict[tuple[Hashable, ...], list[str]] = {}
        for name in names:
            shared.setdefault(identity[name], []).append(name)
        groups = [group for group in shared.values() if len(group) > 1]
        if not groups:
            continue
        told = "; ".join(f"{', '.join(group)}: {_shown(flat[group[0]], replicate)}" for group in groups)
        report.add(
            2,
            Level.FAIL,
            f"{sum(map(len, groups))} runs of arm {arm} share {named}",
            f"{told}. They replay one data order, so that their spread is no spread over data orders.",
            tag,
            arm=arm,
            key=named,
        )
    sets = {arm: frozenset(identity[name] for name in names) for arm, names in arms.items()}
    if len(set(sets.values())) > 1:
        told = "; ".join(
            f"{arm}: {', '.join(dict.fromkeys(_shown(flat[name], replicate) for name in names))}"
            for arm, names in arms.items()
        )
        report.add(
            2,
            Level.FAIL,
            f"the arms have different sets of {named}",
            f"{told}. They cannot be paired by {named}.",
            tag,
            key=named,
        )
    for key in replicate:
        values = {
            arm: ["<missing>" if v is MISSING else repr(v) for v in _values(flat, arms[arm], key)] for arm in arms
        }
        report.stats.setdefault("replicates", {})[key] = values


def _shown(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={show_value(config.get(key, MISSING))}" for key in keys)


def _judge_varied(report: Report, arms: Arms, flat: Configs, key: str) -> None:
    held = {arm: _values(flat, names, key) for arm, names in arms.items()}
    kinds = {frozenset(value_key(value) for value in values) for values in held.values()}
    told = "; ".join(f"{arm}: {_distinct(values)}" for arm, values in held.items())
    if len(arms) > 1 and len(kinds) == 1:
        report.add(
            2,
            Level.FAIL,
            f"{key} is meant to vary and is the same in every arm",
            f"{told}. The setting did not reach the runs.",
            key=key,
        )
    else:
        report.add(2, Level.INFO, f"{key} varies as declared", told)


def _judge_fixed(report: Report, arms: Arms, flat: Configs, key: str) -> bool:
    """Reports a key that differs between or within arms without being declared, and yields whether it does."""
    held = {arm: _values(flat, names, key) for arm, names in arms.items()}
    kinds = {arm: frozenset(value_key(value) for value in values) for arm, values in held.items()}
    between = len(set(kinds.values())) > 1
    if between:
        told = "; ".join(f"{arm}: {_distinct(values)}" for arm, values in held.items())
        report.add(2, Level.WARN, f"{key} differs between the arms and is not declared to vary", told, key=key)
    within = [arm for arm, kind in kinds.items() if len(kind) > 1]
    for arm in within:
        report.add(2, Level.WARN, f"{key} differs within arm {arm}", _distinct(held[arm]), key=key, arm=arm)
    return between or bool(within)


def check_data_orders(fingerprints: Mapping[str, str], seeds: Mapping[str, Any] | None = None) -> Report:
    """Check 2: whether runs of different data seeds read their data in different orders.

    Args:
        fingerprints: Run to the fingerprint of its first prompts (`data_order_fingerprint`); None or ``""`` where it
            is not known.
        seeds: Run to the data seed it was launched with, as far as they are known.

    Returns:
        A report with the stats ``runs`` and ``distinct_orders``.
    """
    report = Report(subject="check 2: the data order of each run")
    known = {name: print_ for name, print_ in fingerprints.items() if print_}
    given = {name: canonical_value(seed) for name, seed in (seeds or {}).items() if seed is not None}
    groups: dict[str, list[str]] = {}
    for name in sorted(known):
        groups.setdefault(known[name], []).append(name)
    report.stats |= {"distinct_orders": len(groups), "runs": len(fingerprints)}
    if len(known) < len(fingerprints):
        unknown = sorted(set(fingerprints) - set(known))
        report.add(2, Level.WARN, f"the data order of {', '.join(unknown)} is not known")
    for order, names in groups.items():
        if len(names) > 1:
            _judge_shared_order(report, order, names, given)
    by_seed: dict[Hashable, dict[str, str]] = {}
    for name, order in known.items():
        if name in given:
            by_seed.setdefault(value_key(given[name]), {})[order] = name
    for orders in by_seed.values():
        if len(orders) > 1:
            seed = show_value(given[next(iter(orders.values()))])
            report.add(
                2,
                Level.WARN,
                f"seed {seed} gave {len(orders)} different data orders",
                "The order depends on something else than the seed.",
            )
    if not any(finding.level is not Level.INFO for finding in report.findings):
        report.add(2, Level.INFO, f"{len(known)} runs read their data in {len(groups)} distinct orders")
    return report


def _judge_shared_order(report: Report, order: str, names: Sequence[str], given: Mapping[str, Any]) -> None:
    claimed = {name: given[name] for name in names if name in given}
    title = f"{', '.join(names)} read their data in one order"
    if len({value_key(seed) for seed in claimed.values()}) > 1:
        told = ", ".join(f"{name}: {show_value(seed)}" for name, seed in claimed.items())
        report.add(
            2,
            Level.FAIL,
            title,
            f"They were launched with different seeds ({told}): the seed did not reach all of them.",
            LOST_SEED,
            fingerprint=order,
        )
    elif len(claimed) < len(names):
        report.add(
            2,
            Level.WARN,
            title,
            "If these runs are meant as different seeds, the seed did not reach them.",
            fingerprint=order,
        )
