from __future__ import annotations

from collections.abc import Iterator

from pth_tracker.model import Finding, Level, Rule, Scope, branch
from pth_tracker.render.rules import checks_markdown, first_sentence, format_rule, list_rules, reflow


def judge(subject: object, met: frozenset[str]) -> Iterator[Finding]:
    """A batch stands still, e.g. at
    its limit. It says so.

    How it decides:
    - the first ``sign`` is a tuple that repeats at any distance while the norm of the gradient changes
    - the second

        pth-tracker   audit

    The end.
    """
    return iter(())


RULES = (
    Rule("paired", 6, Level.INFO, Scope.PAIR, (), judge, blames_runs=False),
    Rule(
        "stuck", 3, Level.FAIL, Scope.RUN, (branch("ids", "batch_id"), branch("series", ("a", "b"), "c")), judge, ("x",)
    ),
)


def test_a_documentation_is_reflowed_with_its_lists_and_blocks() -> None:
    assert format_rule(RULES[1], 60).split("\n") == [
        "stuck",
        "check 3 (Batches); at worst fail; judges one run",
        "",
        "A batch stands still, e.g. at its limit. It says so.",
        "",
        "How it decides:",
        "- the first `sign` is a tuple that repeats at any distance",
        "  while the norm of the gradient changes",
        "- the second",
        "",
        "    pth-tracker   audit",
        "",
        "The end.",
        "",
        "Judged from, any one of:",
        "  ids: batch_id",
        "  series: a or b; and c",
        "",
        "Explains, where both are found: x.",
        "",
    ]
    assert "the listing of the runs alone" in format_rule(RULES[0]) and "It tags no run." in format_rule(RULES[0])


def test_rules_are_listed_by_check() -> None:
    assert list_rules(RULES).split("\n") == [
        "3 Batches",
        "  stuck   fail  A batch stands still, e.g. at its limit.",
        "",
        "6 Paired by seed",
        "  paired  info  A batch stands still, e.g. at its limit.",
        "",
    ]


def test_the_page_has_every_rule_under_its_check() -> None:
    page = checks_markdown(RULES)
    order = ["# The checks", "## 3 Batches", "### `stuck`", "- series: a or b; and c", "## 6 Paired", "### `paired`"]
    places = [page.index(text) for text in order]
    assert places == sorted(places)
    assert "at worst **info**, judges one pair, tags no run" in page and page.endswith("\n") and "``" not in page


def test_pieces() -> None:
    assert first_sentence("One. Two.") == "One."
    assert first_sentence("No end\nhere\n\nmore") == "No end here"
    assert reflow("", 80) == [""]
