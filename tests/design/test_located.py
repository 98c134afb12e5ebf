"""What shows to be wrong with a design only once the runs are known is located as any other error of a design file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pth_tracker.design.load import parse_design, with_command_line
from pth_tracker.design.schema import Design
from pth_tracker.errors import DesignError
from pth_tracker.policy import selected_rules
from synthetic import ARMS, audit_of, comparison

RUNS = comparison({"ppo": ARMS["ppo"], "tis": ARMS["tis"]}, (41, 42))
LATE = {
    "an arm without runs": ("arms:\n  a: {name: '*'}\n  b:\n    name: nobody\n", 3, "arms.b", "no run is in the arm"),
    "a run in two arms": ("arms:\n  a: {name: '*'}\n\n  b: {name: 'ppo-*'}\n", 4, "arms.b", "is in two arms, a and b"),
    "a baseline that is no arm": ("tie_margin: 0.1\nbaseline: grpo\n", 2, "baseline", "none of the inferred arms"),
    "a metric that no run logs": ("tie_margin: 0.1\nmetric:\n  key: nothing/x\n", 2, "metric", "no run logs"),
    "a claim on no arm": (
        "claims:\n  - text: a\n    expect: {stable: ppo}\n  - text: b\n    expect: {stable: grpo}\n",
        5,
        "claims.1.expect",
        "none of the arms ppo, tis",
    ),
    "an ignored rule that is none": (
        "ignore:\n  - arms: ppo\n    rule: idle-clop\n    reason: on purpose\n",
        3,
        "ignore.0.rule",
        "no rule",
    ),
    "a level of no rule": ("rules:\n  levels:\n    idle-clop: warn\n", 3, "rules.levels.idle-clop", "no rule"),
    "a claim on no rule": (
        "claims:\n  - text: a\n    expect:\n      no_finding: idle-clop\n",
        4,
        "claims.0.expect.no_finding",
        "no rule",
    ),
}


@pytest.mark.parametrize("case", LATE)
def test_an_error_that_shows_with_the_runs_names_file_line_and_key(case: str) -> None:
    text, line, key, words = LATE[case]
    design = parse_design(text, Path("designs/stale.yaml"))
    # A setting of the command line on another field leaves the place of this one as it is.
    for declared in (design, with_command_line(design, replicate=["data.seed"])):
        with pytest.raises(DesignError) as caught:
            audit_of(RUNS, declared)
        assert str(caught.value).startswith(f"designs/stale.yaml:{line} at {key}: ") and words in str(caught.value)


@pytest.mark.parametrize("text", ["", "arms: {a: {name: '*'}}\n"])
@pytest.mark.parametrize(
    ("given", "option"), [({"arms": ["b=nobody"]}, "--arm"), ({"metric": "nothing/x"}, "--metric")]
)
def test_what_an_option_gave_is_named_by_the_option(text: str, given: dict[str, Any], option: str) -> None:
    design = parse_design(text, Path("stale.yaml")) if text else None
    with pytest.raises(DesignError) as caught:
        audit_of(RUNS, with_command_line(design, **given))
    assert str(caught.value).startswith(f"{option}: ")


def test_a_design_of_no_file_is_named_by_its_source() -> None:
    with pytest.raises(DesignError, match=r"^mine at rules\.levels\.x: there is no rule 'x'"):
        selected_rules(Design.model_validate({"rules": {"levels": {"x": "warn"}}, "source": "mine"}), (), ())
