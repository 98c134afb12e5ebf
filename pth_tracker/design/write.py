"""A design file written from an inferred comparison, for its author to edit.

Only what changes no finding but its level is written as declared: each part is held against what the inference used
(an arm's selector has to select exactly its runs, the replicate's field the seeds that took effect, the stress key the
lag that the configuration tells), and stands as a comment where it would mean something else.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from pth_tracker.design.comparison import Comparison, Member
from pth_tracker.design.infer import SEED_IN_NAME, selects, shown_setting, tells, treatments
from pth_tracker.design.schema import ArmSelector
from pth_tracker.runs import Run
from pth_tracker.values import MISSING, Maybe, identity_text, is_secret, listed, same_value

LISTED: Final = 8
"""Names that a comment lists at most."""
MAX_SELECTOR_KEYS: Final = 5
"""Settings by which an arm is selected at most; with more, its runs are named."""
MAX_CENTRES: Final = 50
"""Arms among which the one is looked for from which all others differ in a single setting."""
LONGEST_KEY: Final = 1000
"""Longer keys (characters, as written) need YAML's explicit form."""
WIDTH: Final = 116

LEFT_OUT: Final = """\
# What cannot be inferred. Take away the `# ` of what you mean.
#
# pairing: required          # arms without a common seed fail; by default (sensible) they are a warning
# tie_margin: 0.01           # a difference within it is a tie, in the metric's unit
# batches: {uses: 1}         # updates that may train on one batch, above 1 where batches are reused on purpose
# age: {expected: "0"}       # the designed age of each update's data: an expression over update, step and cfg(key)
# claims:                    # each sentence of the paper and what it means for the runs
#   - {text: "ours is better than the baseline", expect: {better: OURS, than: BASELINE}}
# ignore:                    # findings that you know of and accept; the reason is shown with them
#   - {rule: idle-clip, arms: [BASELINE], reason: "an uncorrected baseline, on purpose"}
# rules: {kl_tolerance: 0.05, levels: {too-few-seeds: info}}
"""


def design_text(comparison: Comparison, subject: str, command: str) -> str:
    """The design file of an inferred ``comparison``: YAML with comments that say what was guessed, and from what.

    ``subject`` says what was read, ``command`` how to audit with the file; both go into its heading.
    """
    sections = [
        _heading(subject, command),
        _arms(comparison),
        _baseline(comparison),
        _vary(comparison),
        _replicate(comparison),
        _metric(comparison),
        _task(comparison),
        _stress(comparison),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n\n" + LEFT_OUT


def _heading(subject: str, command: str) -> list[str]:
    return [
        *_comment(f"The design of a comparison, guessed from {subject}."),
        *_comment("Read it, mend what is wrong, and audit with it:"),
        f"#   {_printable(command)}",
        *_comment("What is written here counts as declared: findings that rest on it may then fail instead of warn."),
    ]


# arms


def _arms(comparison: Comparison) -> list[str]:
    arms = comparison.arms
    if comparison.undecided:
        named = listed([f"{arm} ({_counted(members)})" for arm, members in arms.items()])
        return [
            *_comment(f"arms: {comparison.undecided}."),
            *_comment(f"Equal settings would make these arms: {named}."),
            *_alternatives(comparison),
            *_comment("For example:"),
            "# arms:",
            '#   ours: {name: "ours-*"}',
            "#   theirs: {config: {some.key: some value}}",
        ]
    apart = _settings(comparison)
    lines = [
        *_comment(
            "arms: which runs belong together, here those whose settings are equal beside seeds, task and bookkeeping. "
            "Select them by name, group, tag, job_type (patterns take *) or config (key: value)."
        ),
        *_alternatives(comparison),
        "arms:",
    ]
    for arm, members in arms.items():
        own = apart[members[0].key]
        lines += _comment(f"{_counted(members)}: {listed([member.run.label for member in members])}", "  ")
        others = [field for field in own if tells(field, [apart[m[0].key] for m in arms.values()])]
        if others:
            lines += _comment("; ".join(f"{key}: {shown_setting(key, own[key])}" for key in others[:LISTED]), "  ")
        lines += _entry(arm, _selector(comparison, arm, own), "  ")
    return lines


def _settings(comparison: Comparison) -> Mapping[str, Mapping[str, Maybe]]:
    """Run key to the fields that set its arm apart, as the inference saw them."""
    if "settings" in comparison.memo:
        known: Mapping[str, Mapping[str, Maybe]] = comparison.memo["settings"]
        return known
    runs = [member.run for member in comparison.members]
    readings = {member.key: member.reading for member in comparison.members}
    aside = {*comparison.in_force.task, *comparison.in_force.replicate, comparison.stress_key}
    found = comparison.memo["settings"] = treatments(runs, readings, aside)
    return found


def _selector(comparison: Comparison, arm: str, settings: Mapping[str, Maybe]) -> dict[str, Any]:
    """What selects exactly the arm's runs: a pattern of names, a group, settings, else the runs' own names."""
    runs = [member.run for member in comparison.members]
    wanted = {member.key for member in comparison.arms[arm]}
    inside = [member.run for member in comparison.arms[arm]]
    for fields in _possible(comparison, arm, inside, settings):
        selector = ArmSelector.model_validate(fields)
        if {run.key for run in runs if selects(selector, run)} == wanted:
            return fields
    return {"name": [_literal(run.label) for run in inside]}


def _possible(
    comparison: Comparison, arm: str, runs: Sequence[Run], settings: Mapping[str, Maybe]
) -> Iterator[dict[str, Any]]:
    pattern = _common_pattern(comparison, arm)
    if pattern:
        yield {"name": pattern}
    groups = {run.last.group for run in runs}
    if len(groups) == 1 and "" not in groups:
        yield {"group": _literal(groups.pop())}
    every = [_settings_of(member, settings) for members in comparison.arms.values() for member in members]
    telling = [key for key in settings if tells(key, every)]
    shown = [key for key in telling if settings[key] is not MISSING and not is_secret(key)]
    if shown and len(shown) <= MAX_SELECTOR_KEYS:
        yield {"config": {key: settings[key] for key in shown}}
    if len({run.name for run in runs}) == len(runs):
        yield {"name": [_literal(run.name) for run in runs]}


def _settings_of(member: Member, keys: Iterable[str]) -> dict[str, Maybe]:
    return {key: member.run.get(key) for key in keys}


def _common_pattern(comparison: Comparison, arm: str) -> str:
    """One pattern of the names of the arm's runs, a seed or number in them left open; ``""``: they share nothing."""
    members = comparison.arms[arm]
    names = [member.run.name for member in members]
    if len(set(names)) == 1:
        label = members[0].label
        head, found, tail = names[0].rpartition(label.text) if label else ("", "", "")
        if label and found:
            return f"{_literal(head)}{_literal(found.replace(label.seed, '*', 1)).replace('[*]', '*')}{_literal(tail)}"
        return _literal(names[0])
    head = re.sub(r"\d+\Z", "", os.path.commonprefix(names))
    rests = [name[len(head) :][::-1] for name in names]
    tail = re.sub(r"\A\d+", "", os.path.commonprefix(rests)[::-1])
    return f"{_literal(head)}*{_literal(tail)}" if head or tail else ""


def _literal(text: str) -> str:
    """A pattern that matches ``text`` alone."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _alternatives(comparison: Comparison) -> list[str]:
    """Other ways to make arms of the runs, where the tracker's groups or job types make others."""
    inferred = {frozenset(member.key for member in members) for members in comparison.arms.values()}
    lines: list[str] = []
    for attribute in ("group", "job_type"):
        found: dict[str, list[Member]] = {}
        for member in comparison.members:
            found.setdefault(getattr(member.run.last, attribute), []).append(member)
        if (
            "" in found
            or len(found) < 2
            or {frozenset(m.key for m in members) for members in found.values()} == inferred
        ):
            continue
        named = listed([f"{value} ({_counted(members)})" for value, members in found.items()])
        lines += _comment(f"By {attribute} they would be: {named}.")
    return lines


# the other parts


def _baseline(comparison: Comparison) -> list[str]:
    baseline = comparison.in_force.baseline
    if not baseline:
        why = "there is one arm only" if not comparison.undecided else "name the arms first"
        return _comment(f"baseline: the arm that the others are held against; {why}.")
    plain = [
        arm
        for arm, members in comparison.arms.items()
        if all(member.reading.role("correction") == "none" for member in members)
    ]
    why = (
        "the only arm without an importance correction against the sampler"
        if plain == [baseline]
        else "the first by name, for want of a better reason"
    )
    others = [arm for arm in comparison.arms if arm != baseline]
    centre = _centre(comparison)
    hint = f" From {centre} every other arm differs in one setting alone." if centre not in ("", baseline) else ""
    return [
        *_comment(f"baseline: {why}; it could also be {listed(others)}.{hint}"),
        *_entry("baseline", baseline),
    ]


def _vary(comparison: Comparison) -> list[str]:
    meaning = "vary: the settings that are meant to differ between the arms"
    if comparison.undecided or not comparison.in_force.baseline:
        return [*_comment(f"{meaning}."), "# vary: [some.key]"]
    base = comparison.in_force.baseline
    centre = _centre(comparison)
    keys = list(dict.fromkeys(key for keys in _differences(comparison, centre or base).values() for key in keys))
    if centre:
        return [*_comment(f"{meaning}; any other difference is a warning."), *_entry("vary", sorted(keys))]
    lines = _comment(f"{meaning}; with it, any other difference is a warning. Say which of these are meant:")
    for arm, differing in _differences(comparison, base).items():
        lines += _comment(f"{arm} differs from {base} in {listed(differing, 20)}.") if differing else []
    return [*lines, *_commented_out("vary", keys[:20] or ["some.key"])]


def _differences(comparison: Comparison, centre: str) -> dict[str, list[str]]:
    """Arm to the settings in which it differs from the arm ``centre``, sorted."""
    apart = _settings(comparison)
    own = {arm: apart[members[0].key] for arm, members in comparison.arms.items()}
    base = own[centre]
    return {arm: [key for key in sorted({*held, *base}) if tells(key, [held, base])] for arm, held in own.items()}


def _centre(comparison: Comparison) -> str:
    """The arm from which every other one differs in a single setting, the baseline before others; else ``""``."""
    order = [comparison.in_force.baseline, *comparison.arms] if len(comparison.arms) <= MAX_CENTRES else []
    for arm in order:
        differing = [keys for other, keys in _differences(comparison, arm).items() if other != arm]
        if all(len(keys) == 1 for keys in differing):
            return arm
    return ""


def _replicate(comparison: Comparison) -> list[str]:
    found = comparison.in_force.replicate
    meaning = "replicate: the settings whose values pair the runs of the arms"
    if len(found) == 1 and all(_seed_in_force(member, found[0]) for member in comparison.members):
        return [*_comment(f"{meaning}, here the data seed."), *_entry("replicate", list(found))]
    if not found:
        return [*_comment(f"{meaning}; no seed was found in a configuration or a name."), "# replicate: [some.seed]"]
    if SEED_IN_NAME in found:
        why = "the seed in the runs' names pairs them, as long as no setting is given"
        return [*_comment(f"{meaning}; {why}."), "# replicate: [some.seed]"]
    why = "left out, the seed that takes effect pairs them, which is not the given one in every run here"
    return [*_comment(f"{meaning}; {why}."), *_commented_out("replicate", list(found))]


def _seed_in_force(member: Member, key: str) -> bool:
    seed = member.seed
    return seed.acts and seed.key == key and identity_text(member.run.get(key)) == seed.order


def _metric(comparison: Comparison) -> list[str]:
    metric = comparison.in_force.metric
    if not metric:
        return [*_comment("metric: the score that is compared; no run logs one that is known."), *_METRIC_EXAMPLE]
    others: dict[str, None] = {}
    for member in comparison.members:
        others |= dict.fromkeys(member.reading.raw_keys("eval_score"))
    others.pop(metric, None)
    also = f" It could also be {listed(list(others))}." if others else ""
    lines = _comment(
        f"metric: the score that is compared; at: last, best, or {{mean_over: 20}} for a mean over updates.{also}"
    )
    fields = {"key": metric, "higher_is_better": True, "at": "last"}
    return [*lines, *(_commented_out("metric", fields) if "*" in metric else _entry("metric", fields))]


_METRIC_EXAMPLE: Final = ["# metric: {key: some/score, higher_is_better: true, at: last}"]


def _task(comparison: Comparison) -> list[str]:
    task = list(comparison.in_force.task)
    lines = _comment("task: the settings that say what is trained; runs are compared where they are equal only.")
    return [*lines, *_entry("task", task)] if task else [*lines, "# task: [some.key]"]


def _stress(comparison: Comparison) -> list[str]:
    key = comparison.stress_key
    lines = _comment("stress: the setting along which the comparison is made harder, such as the sampler's lag.")
    if not key:
        known = dict.fromkeys(name for m in comparison.members for name in m.reading.framework.staleness)
        own = [name for name in known if any(name in member.run.config for member in comparison.members)]
        return [*lines, *_commented_out("stress", {"key": own[0] if own else "some.key"})]
    if all(member.reading.designed_lag(key) == member.reading.designed_lag() for member in comparison.members):
        return [*lines, *_entry("stress", {"key": key})]
    lines += _comment("Left out, it is this one, with the lag that the whole configuration tells.")
    return [*lines, *_commented_out("stress", {"key": key})]


# text


def _entry(key: str, value: Any, indent: str = "") -> list[str]:
    """``key: value`` on one line, in YAML's explicit form where the key is too long for that."""
    written = scalar(key)
    if len(written) > LONGEST_KEY:
        return [f"{indent}? {written}", f"{indent}: {scalar(value)}"]
    return [f"{indent}{written}: {scalar(value)}"]


def _commented_out(key: str, value: Any) -> list[str]:
    return [f"# {_printable(line)}" for line in _entry(key, value)]


def scalar(value: Any) -> str:
    """``value`` as one line of YAML that reads back as the same value, whatever text is in it."""
    options: dict[str, Any] = {"default_flow_style": True, "width": math.inf, "sort_keys": False}
    text: str = yaml.safe_dump([value], allow_unicode=True, **options)[1:-2]
    if "\n" in text or not text.isprintable() or not same_value(_loaded(text), value):
        text = yaml.safe_dump([value], default_style='"', **options)[1:-2]
    return text


def _loaded(text: str) -> Any:
    try:
        return yaml.safe_load(f"[{text}]")[0]
    except yaml.YAMLError:
        return MISSING


def _comment(text: str, indent: str = "") -> list[str]:
    """``text`` as comment lines of at most 120 columns, without any character that could end or reorder a line."""
    import textwrap

    lines = textwrap.wrap(_printable(text), WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    return [f"{indent}# {line}" for line in lines]


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _counted(members: Sequence[Member]) -> str:
    return f"{len(members)} run{'' if len(members) == 1 else 's'}"
