"""Seeds that a run claims in its name or its launch arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pth_tracker.runs import Run
from pth_tracker.values import all_same, canonical_value, identity_text

_WORD: Final = re.compile(
    r"(?<![A-Za-z0-9])(?P<text>[A-Za-z]{0,12}?seed[-_ =]?(?P<seed>\d{1,19}))(?!\d|\.\d|[bB](?![A-Za-z]))",
    re.IGNORECASE,
)
_CLEANRL: Final = re.compile(r"(?P<text>__(?P<seed>\d{1,10})__\d{9,11})\Z")
_SHORT: Final = re.compile(r"(?<![A-Za-z0-9])(?P<text>s(?P<seed>\d{1,10}))(?=[-_./]|\Z)")
_ARGUMENT: Final = re.compile(r"\A[-+]{0,2}(?P<key>[\w./-]*seed)=(?P<value>.*)\Z", re.IGNORECASE)


@dataclass(frozen=True)
class SeedLabel:
    """A seed that a run is said to have."""

    seed: str
    """As text, without leading zeros."""
    text: str
    """What says so: ``seed43``, ``data.seed=43``."""
    stem: str
    """The name without it: runs that share a stem differ in their seed only, by their names."""
    argument: str = ""
    """The key, where a launch argument says so; ``""`` for a name."""


def _plain(digits: str) -> str:
    return str(int(digits))


def name_label(name: str, *, short: bool = False) -> SeedLabel | None:
    """The seed in a run's name: ``seed43``, ``seed_43``, CleanRL's ``__43__1700000000``, with ``short`` also ``-s43``.

    >>> name_label("tis-seed43").seed
    '43'
    """
    patterns = (_WORD, _CLEANRL, _SHORT) if short else (_WORD, _CLEANRL)
    for pattern in patterns:
        found = list(pattern.finditer(name))
        if found:
            match = found[-1]
            stem = f"{name[: match.start('text')]}{name[match.end('text') :]}".strip("-_ ./") or "run"
            return SeedLabel(_plain(match["seed"]), match["text"].strip("_"), re.sub(r"([-_./ ])[-_./ ]+", r"\1", stem))
    return None


def argument_labels(arguments: Iterable[str]) -> dict[str, SeedLabel]:
    """The seeds among launch arguments (``data.seed=43``, ``--seed 43``) by key; the last of a key wins."""
    found: dict[str, SeedLabel] = {}
    previous = ""
    for argument in arguments:
        match = _ARGUMENT.match(argument)
        if match:
            key, value = match["key"], match["value"]
        elif previous.startswith("--") and previous.lower().endswith("seed"):
            key, value = previous.lstrip("-"), argument
        else:
            previous = argument
            continue
        previous = ""
        # Hydra leaves the quotes of a text to its own parser: data.seed='43' is 43.
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        typed = canonical_value(value[1:-1] if quoted else value)
        found.pop(key, None)
        if typed is not None:
            found[key] = SeedLabel(identity_text(typed), f"{key}={value}", "", key)
    return found


def read_labels(runs: Iterable[Run], config_seeds: Iterable[str]) -> dict[str, SeedLabel]:
    """Run key to the seed in its name.

    The short form ``-sN`` counts only where N is a seed in some run's configuration and the runs that share the rest
    of the name are several (``-s2`` is also "stage 2").
    """
    listed = list(runs)
    seeds = set(config_seeds)
    labels: dict[str, SeedLabel] = {}
    short: dict[str, SeedLabel] = {}
    for run in listed:
        label = name_label(run.name)
        if label:
            labels[run.key] = label
            continue
        brief = name_label(run.name, short=True)
        if brief and brief.seed in seeds:
            short[run.key] = brief
    stems = [label.stem for label in short.values()]
    signatures = {run.key: run for run in listed}
    for key, label in short.items():
        family = [signatures[other] for other, one in short.items() if one.stem == label.stem]
        if stems.count(label.stem) > 1 and _differ_in_seed_only(family):
            labels[key] = label
    return labels


def _differ_in_seed_only(family: list[Run]) -> bool:
    keys = {key for run in family for key in run.config if "seed" not in key.lower()}
    named = {run.name for run in family}
    return all(
        all_same(run.get(key) for run in family)
        or all(any(name in str(run.get(key)) for name in named) for run in family)
        for key in keys
    )
