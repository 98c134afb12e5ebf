"""Every remedy tells somebody who does not know the code what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pth_tracker
from pth_tracker.rules import FACTS
from pth_tracker.vocabulary.load import load_vocabulary

CHECKS = Path(pth_tracker.__file__).parent / "checks"
PROBES = {"ratio_report", "BatchLedger", "check_loss", "identify_loss", "LossReport"}


def of_findings() -> Iterator[tuple[str, str]]:
    """The text of every ``remedy=...`` of the rules, what is filled in left out."""
    for path in sorted(CHECKS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                parts = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant) and n.value]
                yield f"{path.stem}:{node.value.lineno}", " ".join(map(str, parts))


def remedies() -> Iterator[tuple[str, str]]:
    vocabulary = load_vocabulary()
    for kind in (vocabulary.quantities, vocabulary.roles):
        yield from ((name, about.remedy) for name, about in kind.items())
    for framework, own in vocabulary.frameworks.items():
        yield from ((f"{framework}.{name}", text) for name, text in own.remedies.items())
    yield from FACTS.items()
    yield from ((where, text) for where, text in of_findings() if text)


REMEDIES = dict(remedies())


@pytest.mark.parametrize("where", REMEDIES)
def test_a_remedy_says_what_to_do(where: str) -> None:
    text = REMEDIES[where]
    named = {word for word in re.findall(r"\w+", text) if word in PROBES}
    assert all(f"pth_tracker.{word}" in text for word in named), "a name of the API without its module"
    assert "ledger." not in text.replace("BatchLedger", "") or "pth_tracker.BatchLedger()" in text, "whose ledger?"
    assert not re.match(r"(nothing|log it|log them|train on)\b(?! can be done)", text), text
    assert not re.search(r"serves as well|log (it|them|one) with|log what \w+\.\w+ yields", text), text


def test_all_kinds_of_remedies_are_read() -> None:
    assert len(list(of_findings())) > 25 and len(REMEDIES) > 300
