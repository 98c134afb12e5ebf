"""The documentation of rules as text for a terminal and as CHECKS.md, both from the rules themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from pth_tracker.model import CHECK_TITLES, Branch, Rule
from pth_tracker.render.text import wrap

_ITEM: Final = re.compile(r"(?:[-*+]|\d+[.)])\s+")
_CODE_INDENT: Final = 4


def format_rule(rule: Rule, width: int = 80) -> str:
    """One rule's documentation, reflowed, with what it needs and how far it goes."""
    title = CHECK_TITLES.get(rule.check, "")
    lines = [rule.slug, *wrap(f"check {rule.check} ({title}); at worst {rule.level}; judges one {rule.scope}", width)]
    lines += [
        "",
        *reflow(plain(rule.doc), width),
        "",
        "Judged from" + (", any one of:" if len(rule.needs) > 1 else ":"),
    ]
    for one in rule.needs:
        lines += wrap(_branch_text(one), width, "    ", "  ")
    if not rule.needs:
        lines.append("  the listing of the runs alone")
    if rule.explains:
        lines += ["", *wrap(f"Explains, where both are found: {', '.join(rule.explains)}.", width)]
    if not rule.blames_runs:
        lines += ["", "It tags no run."]
    return "\n".join(lines) + "\n"


def list_rules(rules: Sequence[Rule], width: int = 80) -> str:
    """All rules by check, one line or two each."""
    longest = max((len(rule.slug) for rule in rules), default=0)
    lines: list[str] = []
    for check, group in _by_check(rules):
        lines += ["", f"{check} {CHECK_TITLES.get(check, '')}"]
        for rule in group:
            start = f"  {rule.slug:<{longest}}  {rule.level:<4}  "
            lines += wrap(plain(first_sentence(rule.doc)), width, " " * len(start), start)
    return "\n".join(lines).lstrip("\n") + "\n"


def checks_markdown(rules: Sequence[Rule]) -> str:
    """The page CHECKS.md: every rule's documentation by check."""
    lines = [
        "# The checks and their rules",
        "",
        "Generated from the rules by `make docs`; `pth-tracker explain RULE` prints the same.",
        "",
    ]
    for check, group in _by_check(rules):
        lines += [f"## {check} {CHECK_TITLES.get(check, '')}", ""]
        for rule in group:
            facts = [f"at worst **{rule.level}**", f"judges one {rule.scope}"]
            facts += [] if rule.blames_runs else ["tags no run"]
            lines += [f"### `{rule.slug}`", "", f"*{', '.join(facts)}*", "", inspect.cleandoc(plain(rule.doc)), ""]
            lines += ["Judged from" + (", any one of:" if len(rule.needs) > 1 else ":"), ""]
            lines += [f"- {_branch_text(one)}" for one in rule.needs] or ["- the listing of the runs alone"]
            if rule.explains:
                lines += ["", f"Explains, where both are found: {', '.join(f'`{slug}`' for slug in rule.explains)}."]
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def plain(doc: str) -> str:
    """A documentation without the double backquotes of reStructuredText."""
    return doc.replace("``", "`")


def first_sentence(doc: str) -> str:
    """The first sentence of a documentation, on one line."""
    paragraph = " ".join(inspect.cleandoc(doc).split("\n\n", 1)[0].split())
    match = re.match(r"(.+?[.!?])(?=\s+[A-Z(]|$)", paragraph)
    return match[1] if match else paragraph


def reflow(doc: str, width: int) -> list[str]:
    """The lines of a documentation filled to ``width``; list items hang, indented blocks stay as they are."""
    lines: list[str] = []
    for block in re.split(r"\n[ \t]*\n", inspect.cleandoc(doc)):
        lines += [""] if lines else []
        lines += _reflow_block(block.split("\n"), width)
    return lines


def _reflow_block(block: Iterable[str], width: int) -> list[str]:
    paragraphs: list[tuple[str, str, list[str]]] = []
    verbatim: list[str] = []
    for line in block:
        text = line.strip()
        indent = line[: len(line) - len(line.lstrip())]
        item = _ITEM.match(text)
        if text.startswith(">>>") or (not paragraphs and len(indent) >= _CODE_INDENT) or verbatim:
            verbatim.append(line)
        elif item:
            paragraphs.append((indent + item[0], " " * len(indent + item[0]), [text[item.end() :]]))
        elif paragraphs:
            paragraphs[-1][2].append(text)
        else:
            paragraphs.append((indent, indent, [text]))
    filled = [line for first, rest, words in paragraphs for line in wrap(" ".join(words), width, rest, first)]
    return filled + verbatim


def _branch_text(branch: Branch) -> str:
    groups = [" or ".join(group) for group in branch.groups]
    return f"{branch.name}: {'; and '.join(groups)}"


def _by_check(rules: Iterable[Rule]) -> Iterable[tuple[int, list[Rule]]]:
    ordered = sorted(rules, key=lambda rule: rule.check)
    return [(check, list(group)) for check, group in groupby(ordered, key=lambda rule: rule.check)]
