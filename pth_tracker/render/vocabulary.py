"""The documentation's page of vocabularies: what each framework's file says, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Final

from pth_tracker.vocabulary.detect import GENERIC
from pth_tracker.vocabulary.functions import FUNCTIONS
from pth_tracker.vocabulary.load import Vocabulary
from pth_tracker.vocabulary.schema import Candidate, Detect, Framework, Role

CLIPS: Final[Mapping[str, str]] = {
    "active_branch": "share on which the clipped branch is the one in force",
    "sign_aware": "share outside the range on the side where the advantage's sign lets the clip act",
    "outside_band": "share outside the range, whatever the advantage's sign",
    "not_testable": "no clip that could be tested for zero",
}
ESTIMATORS: Final[Mapping[str, str]] = {
    "k1": "k1, signed",
    "k2": "k2",
    "k3": "k3",
    "exact": "exact, of the distributions",
    "abs": "mean absolute difference",
}
ZEROS: Final[Mapping[str, str]] = {
    "rounded": "a 0 may be rounded",
    "not_computed": "all zeros mean that it was not computed",
}
ENTRY_INDENT: Final = 2
"""How far the entries of a section are indented in a vocabulary file."""
_KEY: Final = re.compile(r"( *)([A-Za-z_][\w-]*):")
_COMMENT: Final = re.compile(r"( *)# ?(.*)")


def vocabulary_markdown(vocabulary: Vocabulary, intro: str = "") -> str:
    """The page: how each framework is recognised, which metric is which quantity, what its settings mean."""
    names = sorted(vocabulary.frameworks, key=lambda name: (name == GENERIC, name))
    listed = [f"| [`{name}`](#{name}) | {_cell(vocabulary.frameworks[name].about)} |" for name in names]
    parts = [
        "# Vocabulary",
        *([intro] if intro else []),
        "Made from the files in `pth_tracker/vocabulary/`. A file of your own, given with "
        "`--vocabulary FILE`, has the same schema; with `extends: NAME` it builds on one of these.",
        "What pth-tracker knows of each framework, from its file in `frameworks/`: how a run of "
        "it is recognised, which logged metric is which quantity and what its value means, and which setting plays "
        "which role. `*` stands for any text. Metrics are tried in order; the first one that a run logged is taken.",
        "\n".join(["| framework | |", "| --- | --- |", *listed]),
        "## Quantities",
        "What checks judge. A probe logs each as `harness/NAME`, which every framework's vocabulary reads first.",
        "\n".join(_quantities_known(vocabulary)),
        "## Roles",
        "What checks read from a configuration.",
        "\n".join(_roles_known(vocabulary)),
        *(_framework(vocabulary, name) for name in names),
    ]
    return "\n\n".join(parts) + "\n"


def _quantities_known(vocabulary: Vocabulary) -> Iterator[str]:
    yield "| quantity | unit | what it is |"
    yield "| --- | --- | --- |"
    for name, quantity in vocabulary.quantities.items():
        yield f"| `{name}` | {quantity.unit} | {_cell(quantity.about)} |"


def _roles_known(vocabulary: Vocabulary) -> Iterator[str]:
    yield "| role | what it is |"
    yield "| --- | --- |"
    for name, role in vocabulary.roles.items():
        yield f"| `{name}` | {_cell(role.about)} |"


def _framework(vocabulary: Vocabulary, name: str) -> str:
    own = vocabulary.frameworks[name]
    parts = [f"## {name}", own.about]
    if own.extends:
        parts.append(f"Extends [`{own.extends}`](#{own.extends}); what it takes over is listed here too.")
    recognised = list(_recognised(own.detect))
    if recognised:
        parts.append("Recognised by\n\n" + "\n".join(f"- {line}" for line in recognised))
    if own.quantities:
        parts.append("\n".join(_quantities(own)))
    if own.prefixes:
        places = [f"under `{prefix}`" if prefix else "bare" for prefix in own.prefixes]
        parts.append(f"Its metrics stand {' or '.join(places)}.")
    if own.roles:
        parts.append("\n".join(_roles(own.roles)))
    parts.append("\n".join(_facts(own)))
    notes = list(_notes(name))
    if notes:
        parts.append("Notes\n\n" + "\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts)


def _recognised(detect: Detect) -> Iterator[str]:
    if detect.config_all or detect.config_any:
        told = [f"all of {_codes(detect.config_all)}"] if detect.config_all else []
        told += [f"any of {_codes(detect.config_any)}"] if detect.config_any else []
        yield f"its configuration: {', and '.join(told)}"
    for names in detect.all_of:
        told = [f"settings {_codes(names.config)}"] if names.config else []
        told += [f"metrics {_codes(names.metrics)}"] if names.metrics else []
        yield f"{' and '.join(told)} together"
    if detect.metrics_all or detect.metrics_any:
        told = [f"all of {_codes(detect.metrics_all)}"] if detect.metrics_all else []
        told += [f"{detect.metrics_at_least} of {_codes(detect.metrics_any)}"] if detect.metrics_any else []
        yield f"its metrics: {', and '.join(told)}"
    without = [*detect.config_none, *detect.metrics_none]
    if without:
        yield f"none of {_codes(without)}"
    for names in detect.none_of:
        yield f"not {_codes((*names.config, *names.metrics))} together"
    if detect.when:
        yield f"a configuration in which `{_spaced(detect.when)}`"


def _quantities(own: Framework) -> Iterator[str]:
    forms, front = max(1, len(own.prefixes)), len(own.prefixes[0]) if own.prefixes else 0
    yield "| quantity | metric | what it means |"
    yield "| --- | --- | --- |"
    for name, candidates in own.quantities.items():
        for place, one in enumerate(candidates[::forms]):
            shown = f"`{name}`" if place == 0 else ""
            yield f"| {shown} | `{_cell(one.key[front:])}` | {_cell('; '.join(_meaning(one)))} |"


def _meaning(one: Candidate) -> Iterator[str]:
    if one.estimator:
        yield ESTIMATORS[one.estimator]
    if one.clip:
        yield CLIPS[one.clip]
    if one.weights:
        yield "before truncation" if one.weights == "pre" else "after truncation"
    if one.minus:
        yield f"less `{one.minus}`"
    if one.sign < 0:
        yield "sign reversed" if not one.offset else f"{one.offset:g} less it"
    if one.zero != "exact":
        yield ZEROS[one.zero]
    if one.not_computed:
        yield f"{', '.join(f'{value:g}' for value in one.not_computed)} means that it was not computed"
    if one.noise:
        yield f"up to {one.noise:g} is noise where the ratio is 1"
    if one.without:
        yield f"not {_codes(one.without)}"
    if one.versions:
        yield f"releases {one.versions}"
    if one.when:
        yield f"where `{_spaced(one.when)}`"


def _roles(roles: Mapping[str, Role]) -> Iterator[str]:
    yield "| role | is told by |"
    yield "| --- | --- |"
    for name, role in roles.items():
        yield f"| `{name}` | {_cell(_told(role))} |"


def _told(role: Role) -> str:
    if role.python:
        words = (FUNCTIONS[role.python].__doc__ or "").strip().split("\n\n")[0]
        return " ".join(words.split())
    if role.expr:
        return f"`{_spaced(role.expr)}`"
    default = "" if role.default is None else f", else `{role.default}`"
    return f"{_codes(role.keys)}{default}"


def _facts(own: Framework) -> Iterator[str]:
    seed = own.data_seed
    if seed.python:
        words = " ".join((FUNCTIONS[seed.python].__doc__ or "").strip().split("\n\n")[0].split())
        yield f"- Data order: {words}"
    elif seed.uncontrolled:
        yield f"- Data order: nothing controls it: {seed.uncontrolled}."
    else:
        told = [f"by {_codes(seed.keys)}"] if seed.keys else ["by no setting"]
        told += [f"`{seed.default}` where it is absent"] if seed.default is not None else []
        told += [f"{seed.absent} where it is absent or null"] if seed.absent else []
        told += [seed.uncontrolled_when_null] if seed.uncontrolled_when_null else []
        told += [f"{one.why}: {one.order or 'nothing controls it then'}" for one in seed.inert]
        yield f"- Data order: {'; '.join(told)}."
    if own.axis:
        yield f"- Step: the value of {_codes(own.axis)} where it is logged, else the tracker's own step."
    yield f"- Witness of the batch: {_codes(own.witness) if own.witness else 'none is logged'}."
    for title, keys in (
        ("Task", own.task),
        ("Clip range", own.clip_range),
        ("Staleness", own.staleness),
        ("Bookkeeping, which changes no result", own.bookkeeping),
        ("Soft, which changes speed only", own.soft),
        ("Secret", own.secrets),
    ):
        if keys:
            yield f"- {title}: {_codes(keys)}."


def _notes(name: str) -> Iterator[str]:
    """The comments of a framework's file, each with the entry it stands at."""
    text = (resources.files("pth_tracker.vocabulary") / "frameworks" / f"{name}.yaml").read_text(encoding="utf-8")
    lines = text.splitlines()
    section = entry = ""
    place = 0
    while place < len(lines):
        comment, key = _COMMENT.fullmatch(lines[place]), _KEY.match(lines[place])
        if key and not key[1]:
            section, entry = key[2], ""
        elif key and len(key[1]) == ENTRY_INDENT:
            entry = key[2]
        if not comment:
            place += 1
            continue
        words = []
        while place < len(lines) and (more := _COMMENT.fullmatch(lines[place])):
            words.append(more[2])
            place += 1
        following = _KEY.match(lines[place]) if place < len(lines) else None
        own = following[2] if following and len(comment[1]) <= ENTRY_INDENT else entry
        where = own if section in ("quantities", "roles", "remedies") else section
        yield f"`{where or own}`: {_cell(' '.join(words))}"


def _codes(names: Sequence[str]) -> str:
    return ", ".join(f"`{_cell(name)}`" for name in names)


def _spaced(expression: str) -> str:
    return " ".join(expression.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")
