"""Check 2, a run against itself: its launch arguments and its name against its resolved configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pth_tracker.checks.subjects import RunView
from pth_tracker.model import Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.plain_yaml import load_yaml
from pth_tracker.values import MAX_LITERAL, Maybe, Value, canonical_value, is_secret, listed, same_value, show_value
from pth_tracker.vocabulary.canonicalise import Reading

SHOWN: Final = 6
MAX_ARGUMENTS: Final = 2000
"""Arguments of one launch that are read at most."""
MAX_LABEL: Final = 400
"""Characters of a name, group or tag that are read at most."""
MAX_NAMED: Final = 3
"""Fields of one last component above which a word of a name stands for none of them."""
ROUNDING: Final = 0.01
"""The share by which a number in a name may differ from the value: names round."""

_OVERRIDE: Final = re.compile(r"\A(?P<sign>~|\+{0,2})(?P<key>[A-Za-z_][\w.@/-]*)=(?P<value>.*)\Z", re.DOTALL)
_DELETED: Final = re.compile(r"\A~(?P<key>[A-Za-z_][\w.@/-]*)\Z")
_OPTION: Final = re.compile(r"\A--?(?P<key>[A-Za-z_][\w.-]*)(?:=(?P<value>.*))?\Z", re.DOTALL)
_NUMBER: Final = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Override:
    """One setting of a launch command."""

    key: str
    """As written, without dashes and signs."""
    value: Maybe
    """Parsed."""
    text: str
    """As written."""


def last_overrides(arguments: Iterable[str]) -> dict[str, Override]:
    """The settings of a launch command by key: Hydra's ``key=value`` and argparse's ``--key value``; the last wins.

    Options without a value, with several, and positional arguments are left out, as are values that only the program
    or the shell can resolve.
    """
    listed = list(arguments)[:MAX_ARGUMENTS]
    found: dict[str, Override] = {}
    place = 0
    while place < len(listed):
        argument = listed[place]
        place += 1
        override = _OVERRIDE.match(argument)
        if override:
            key, text = override["key"], override["value"]
            found.pop(key, None)
            if override["sign"] != "~":
                found[key] = Override(key, _parsed(text), argument)
            continue
        if deleted := _DELETED.match(argument):
            found.pop(deleted["key"], None)
            continue
        option = _OPTION.match(argument)
        if not option:
            continue
        key = option["key"]
        values: list[str] = []
        if option["value"] is None:
            while place < len(listed) and not _is_option(listed[place]) and not _OVERRIDE.match(listed[place]):
                values.append(listed[place])
                place += 1
        else:
            values.append(option["value"])
        found.pop(key, None)
        if len(values) == 1:
            found[key] = Override(
                key, _parsed(values[0]), " ".join([argument, *values][: 2 if "=" not in argument else 1])
            )
    return found


def _is_option(text: str) -> bool:
    return text.startswith("-") and not _NUMBER.fullmatch(text)


def _parsed(text: str) -> Value:
    """The value that an argument spells; brackets without quotes, as Hydra writes them, are read as YAML."""
    bare = text.strip()
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"":
        return bare[1:-1]
    value = canonical_value(bare)
    if isinstance(value, str) and bare[:1] in ("[", "{") and len(bare) <= MAX_LITERAL:
        try:
            return canonical_value(load_yaml(bare))
        except ValueError:
            return value
    return value


def denies(given: Maybe, resolved: Maybe) -> bool:
    """Whether a resolved value is certainly not the one that was given.

    Only values of one kind are held against each other: a program may well turn ``10k`` into 10000. Texts deny each
    other where neither holds the other, and neither is a path, an interpolation or a list without brackets.
    """
    if same_value(given, resolved):
        return False
    if isinstance(given, bool) or isinstance(resolved, bool):
        return isinstance(given, bool) and isinstance(resolved, bool)
    if isinstance(given, int | float) and isinstance(resolved, int | float):
        return not math.isclose(given, resolved, rel_tol=1e-6, abs_tol=0.0)
    if isinstance(given, str) and isinstance(resolved, str):
        one, other = given.strip().casefold(), resolved.strip().casefold()
        return one not in other and other not in one and not re.search(r"[/\\,~$]", one + other)
    if isinstance(given, int | float) and resolved is None:
        return True
    if given is None and isinstance(resolved, int | float):
        return True
    return isinstance(given, list) and isinstance(resolved, list) and _plain(given) and _plain(resolved)


def _plain(values: Sequence[Value]) -> bool:
    return all(value is None or isinstance(value, bool | int | float) for value in values)


def _field(config: Mapping[str, Value], key: str) -> str | None:
    """The configuration's key that an argument's key stands for: itself, or with underscores for dashes."""
    dotted = key.replace("/", ".")
    return next((one for one in (dotted, dotted.replace("-", "_")) if one in config), None)


def judge_override_lost(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """A value given on the command line is not the one that the run resolved to.

    What it does: parses the launch arguments (``key=value``, ``+key=value``, ``--key value``) and looks each key up in
    the resolved configuration.

    Why it matters: the setting that somebody asked for never reached the code.

    How it decides: the resolved value differs from the last one given, compared after parsing (1e-6 is 1e-06, a key
    given twice is ordinary). Keys that the configuration does not hold, options without a value, bookkeeping and
    derived fields, paths and interpolations are not judged, and values of different kinds neither, since programs
    parse their arguments.

    Example: launched with ``actor_rollout_ref.actor.optim.lr=2e-6``, resolved to 1e-06.

    Remedy: find the script or file that sets the field after the command line was read, and let the command line win.

    Configuration: none.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2.
    """
    lost: dict[str, dict[str, str]] = {"field": {}, "seed": {}}
    reading = view.reading
    for part, config in zip(view.run.parts, view.run.part_configs):
        for override in last_overrides(part.arguments or ()).values():
            key = _field(config, override.key)
            if key is None or reading.is_bookkeeping(key) or reading.is_derived(key):
                continue
            if denies(override.value, config[key]):
                hidden = is_secret(key, reading.framework.secrets)
                given, resolved = (
                    "(redacted)" if hidden else show_value(value) for value in (override.value, config[key])
                )
                kind = "seed" if reading.is_seed(key) else "field"
                lost[kind][key] = f"{key} was given as {given} and resolved to {resolved}"
    for kind, fields in lost.items():
        if not fields:
            continue
        named = listed(fields, 2)
        yield Finding(
            2,
            Level.FAIL,
            f"{named} did not take the value given at launch",
            f"{'; '.join(list(fields.values())[:SHOWN])}.",
            {"kind": kind, "fields": list(fields)},
            basis=Basis.CONTRADICTION,
            runs=(view.run.key,),
            blames=(view.run.key,),
            remedy="find the script or file that sets the field after the command line was read, and let the "
            "command line win",
        )


_WORD: Final = re.compile(
    r"(?P<word>[A-Za-z][A-Za-z_]*?)(?P<joint>=|[-_])?(?P<number>(?:\d+\.\d+|\.\d+|\d+)(?:[eE][-+]?\d+)?)"
    r"(?![A-Za-z0-9.]|_\d)"
)
_SETTING: Final = re.compile(
    r"(?<![\w.])(?P<key>[A-Za-z_][\w.]*)="
    r"(?P<value>[-+]?(?:\d+\.\d+|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![A-Za-z0-9.]|[-_]\d)|[^\s,;=]{1,80})"
)


@dataclass(frozen=True)
class Named:
    """A value that a name, group or tag gives to a field."""

    word: str
    value: Value
    text: str
    explicit: bool
    """Whether it is written ``key=value``."""


def named_values(text: str) -> Iterator[Named]:
    """What a name says of fields: ``lr=2e-6``, ``lr2e-6``, ``beta_0.04``, ``sync64``.

    Numbers of one digit that are not behind an equals sign count runs as often as they set something (``run_2``,
    ``beta2``), and are left out; so are numbers with leading zeros.
    """
    settings = list(_SETTING.finditer(text))
    for setting in settings:
        yield Named(setting["key"], canonical_value(setting["value"]), setting[0], True)
    rest = _SETTING.sub(" ", text)
    for match in _WORD.finditer(rest):
        if match.start() and (rest[match.start() - 1].isalnum() or rest[match.start() - 1] == "."):
            continue
        value = canonical_value(match["number"])
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if isinstance(value, int) and abs(value) < 10:
            continue
        yield Named(match["word"], value, match[0], False)


_QUALIFIERS: Final = frozenset(
    "min max init initial final end start warmup warm decay base target low high ref reference critic value actor "
    "policy eval val test train total per no num adam sgd".split()
)
"""Words before a field's name that make it another field."""


def contradicted(reading: Reading, named: Named) -> dict[str, Value]:
    """The fields that a name means and denies, with their values; empty: it means none, or one of them agrees."""
    words = [named.word.casefold()]
    head, _, tail = words[0].rpartition("_")
    if not named.explicit and tail and head.rsplit("_", 1)[-1] not in _QUALIFIERS:
        words.append(tail)
    for word in words:
        fields = _fields_named(reading, word, named)
        if fields:
            agrees = any(not _far(named, value) for value in fields.values())
            return {} if agrees or len(fields) > MAX_NAMED else fields
    return {}


def _fields_named(reading: Reading, word: str, named: Named) -> dict[str, Value]:
    """The fields whose full name, or last component, is ``word``."""
    if len(word) < 2 and not named.explicit:
        return {}
    dotted = "." in word
    return {
        key: value
        for key, value in reading.run.config.items()
        if (key.casefold() == word or (not dotted and key.rsplit(".", 1)[-1].casefold() == word))
        and not (reading.is_bookkeeping(key) or reading.is_derived(key) or reading.is_seed(key))
    }


def _far(named: Named, value: Value) -> bool:
    given = named.value
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if number and isinstance(value, int | float) and not isinstance(value, bool):
        return not math.isclose(given, value, rel_tol=ROUNDING) if isinstance(given, int | float) else False
    if isinstance(given, bool) and isinstance(value, bool):
        return given is not value
    full = named.explicit and "." in named.word
    return full and isinstance(given, str) and isinstance(value, str) and denies(given, value)


def judge_label_contradicts_config(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """A run's name, group or tag names a value of a field that its configuration denies.

    What it does: looks in the name, the group and the tags for ``key=value`` and for words like ``lr1e-6`` and
    ``beta_0.04`` that are a field's name with a number.

    Why it matters: results are read by their names; a name that is wrong moves a result to another arm.

    How it decides: the word is the name, or the last component of the name, of one to three fields, and the values
    of all of them are other numbers (names may round by 1%). Seeds belong to lost-seed. Single letters, single digits
    and numbers with leading zeros count only behind an equals sign.

    Example: the run ``tis-lr1e-6`` with ``actor.optim.lr`` 2e-06.

    Remedy: rename the run, or find the override that was lost and run it again.

    Configuration: none.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 2.
    """
    last = view.run.last
    found: dict[str, str] = {}
    for kind, texts in (("name", (view.run.name,)), ("group", (last.group,)), ("tag", last.tags)):
        for text in texts:
            for named, fields in _contradictions(view.reading, text[:MAX_LABEL]):
                for key, value in fields.items():
                    hidden = is_secret(key, view.reading.framework.secrets)
                    found.setdefault(key, f"the {kind} says {named.text}, {key} is {_show(hidden, value)}")
    if not found:
        return
    named_fields = listed(found, 2)
    yield Finding(
        2,
        Level.WARN,
        f"the label denies the configuration's {named_fields}",
        f"{'; '.join(list(found.values())[:SHOWN])}.",
        {"fields": list(found)},
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="rename the run, or find the override that was lost and run it again",
    )


def _contradictions(reading: Reading, text: str) -> Iterator[tuple[Named, dict[str, Value]]]:
    """What a label denies; a word that it gives several values (``lr1e-6-vs-lr2e-6``) only where all are denied."""
    words: dict[str, list[tuple[Named, dict[str, Value]]]] = {}
    for named in named_values(text):
        words.setdefault(named.word.casefold(), []).append((named, contradicted(reading, named)))
    for given in words.values():
        if all(fields for _, fields in given):
            yield given[0]


def _show(hidden: bool, value: Value) -> str:
    return "(redacted)" if hidden else show_value(value)


def _argument_facts(view: RunView) -> tuple[str, ...]:
    return ("launch_arguments",) if any(part.arguments for part in view.run.parts) else ()


RULES: Final = (
    Rule(
        "override-lost",
        2,
        Level.FAIL,
        Scope.RUN,
        (branch("launched", "launch_arguments", "config"),),
        judge_override_lost,
        facts=_argument_facts,
    ),
    Rule(
        "label-contradicts-config",
        2,
        Level.WARN,
        Scope.RUN,
        (branch("resolved", "config"),),
        judge_label_contradicts_config,
    ),
)
