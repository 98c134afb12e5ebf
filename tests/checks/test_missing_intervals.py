"""Where there is no interval, every text that would give one says why."""

from __future__ import annotations

import re

import pytest

from pth_tracker.render.html import to_html
from pth_tracker.results import paired_differences
from pth_tracker.stats import MeanInterval, WelchInterval, t_interval, welch_interval
from synthetic import ARMS, SCORE, audit_of, comparison, with_metrics

ONE_SEED = "no interval from one seed"
SAME = "no interval, as the difference is the same on all seeds"


@pytest.mark.parametrize(
    ("interval", "why"),
    [
        (t_interval([0.5]), ONE_SEED),
        (t_interval([0.5, 0.5, 0.5]), SAME),
        (t_interval([0.5, 0.6]), ""),
        (welch_interval([1.0], [1.0, 2.0]), "no interval, as an arm has one run"),
        (welch_interval([1.0, 1.0], [2.0, 2.0]), "no interval, as the runs of each arm score the same"),
        (welch_interval([1.0, 2.0], [2.0, 3.0]), ""),
    ],
)
def test_what_has_no_interval_says_why(interval: MeanInterval | WelchInterval, why: str) -> None:
    assert interval.missing == why and bool(why) == (interval.low is None)


@pytest.mark.parametrize(("seeds", "why"), [((41,), ONE_SEED), ((41, 42, 43), SAME)])
def test_no_text_announces_an_interval_that_is_not_there(seeds: tuple[int, ...], why: str) -> None:
    runs = comparison({"ppo": ARMS["ppo"], "tis": ARMS["tis"]}, seeds)
    for arm, score in (("ppo", 0.5), ("tis", 0.75)):
        runs = with_metrics(runs, f"{arm}-*", {SCORE: {60: score}})
    expect = {"better": "tis", "than": "ppo"}
    design = {
        "arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}},
        "baseline": "ppo",
        "claims": [{"text": "better on average", "expect": expect}],
    }
    report = audit_of(runs, design)
    (paired,) = [one for one in report.findings if one.rule == "paired-difference"]
    assert f", {why}: undecided" in paired.title
    told = " ".join([*(f"{one.title} {one.detail}" for one in report.findings), *map(str, report.not_judged)])
    told += to_html(report)
    assert why in told and not re.search(r"interval:? (there is )?no interval", told)


def test_results_at_hand_say_why_as_well() -> None:
    report = paired_differences({"a": {"1": 0.5}, "b": {"1": 0.25}}, "a", "b")
    assert f"over 1 seed, {ONE_SEED}" in " ".join(report.format().split())
