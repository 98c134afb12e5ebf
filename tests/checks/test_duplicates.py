"""Runs that are one run, and treatments that change nothing: what proves it, and what proves nothing."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pth_tracker.design.stitch import recognise
from pth_tracker.examine import examine_history
from pth_tracker.model import Basis, Level, Plan
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import (
    ACTOR,
    SCORE,
    FakeRun,
    Values,
    audit_of,
    clean_metrics,
    comparison,
    cut,
    findings,
    labels,
    make_run,
    not_judged,
    only,
    outcomes,
    with_metrics,
    without_metrics,
)

DUPLICATE, INERT = "duplicate-run", "inert-treatment"
RULES = (DUPLICATE, INERT)
LEARNER = ("actor/pg_loss", "actor/grad_norm", "actor/entropy")


def copied(name: str, original: FakeRun, seed: int, settings: Mapping[str, Any] | None = None) -> FakeRun:
    """A run of another name and data seed with the metrics of ``original``, its prompts included."""
    return replace(make_run(name, settings, seed), points=original.points)


def test_one_run_under_two_seeds_fails() -> None:
    runs = comparison({"ppo": {}}, (41, 42, 43))
    report = audit_of([*runs, copied("ppo-seed44", runs[2], 44)], select=RULES)
    found = only(report, DUPLICATE)
    assert found.level is Level.FAIL and found.basis is Basis.CONTRADICTION
    assert labels(report, found.runs) == ["ppo-seed43", "ppo-seed44"] and found.blames == found.runs
    assert set(found.evidence["series"]) == {"loss", "grad_norm", "entropy"}
    assert found.evidence["claimed"] == {"ppo-seed43": "43", "ppo-seed44": "44"}


def test_one_run_twice_under_one_seed_warns_and_tags_the_copy() -> None:
    runs = comparison({"ppo": {}}, (41, 42))
    report = audit_of([*runs, copied("ppo-copy-seed42", runs[1], 42)], select=RULES)
    found = only(report, DUPLICATE)
    assert found.level is Level.WARN and len(found.runs) == 2 and len(found.blames) == 1


def test_a_copy_of_three_is_one_finding() -> None:
    runs = comparison({"ppo": {}}, (41, 42))
    report = audit_of([*runs, *(copied(f"ppo-seed{n}", runs[0], n) for n in (51, 52))], select=RULES)
    assert labels(report, only(report, DUPLICATE).runs) == ["ppo-seed41", "ppo-seed51", "ppo-seed52"]


def test_the_same_run_printed_and_in_full_is_one_run() -> None:
    runs = comparison({"ppo": {}}, (41, 42, 43))
    original = runs[2]
    printed = {
        key: (steps, tuple(float(np.round(value, 3)) for value in values))
        for key, (steps, values) in original.points.items()
    }
    console = replace(make_run("ppo-seed44", None, 44), points=printed, decimals=dict.fromkeys(printed, 3))
    report = audit_of([*runs, console], select=RULES)
    assert labels(report, only(report, DUPLICATE).runs) == ["ppo-seed43", "ppo-seed44"]


def test_equal_accuracies_schedules_and_returns_of_zero_prove_nothing() -> None:
    flat: dict[str, Values] = {
        SCORE: {step: 0.5 for step in range(0, 61, 5)},
        "critic/rewards/mean": 0.0,
        "critic/score/mean": 0.0,
        "actor/lr": 1e-6,
    }
    report = audit_of(with_metrics(comparison(), "*", flat), select=RULES)
    assert not findings(report, DUPLICATE) and outcomes(report, DUPLICATE) == {"passed"}


@pytest.mark.parametrize("values, flagged", [(4, False), (5, True)])
def test_a_learner_series_needs_five_distinct_values(values: int, flagged: bool) -> None:
    # Everything else is equal too: a run that never trained logs one gradient norm of 0 for ever.
    steps: dict[str, Values] = dict.fromkeys(LEARNER, (np.arange(60) % values).astype(np.float64))
    runs = with_metrics(comparison({"ppo": {}}, (41,)), "*", steps)
    report = audit_of([*runs, copied("ppo-seed42", runs[0], 42)], select=RULES)
    assert bool(findings(report, DUPLICATE)) is flagged


@pytest.mark.parametrize("key", ["actor/grad_norm", "response_length/mean", "prompt_length/mean", SCORE])
def test_one_quantity_that_differs_makes_two_runs(key: str) -> None:
    runs = comparison({"ppo": {}}, (41, 42))
    twin = copied("ppo-seed43", runs[1], 43)
    steps, values = twin.points[key]
    changed = replace(twin, points={**twin.points, key: (steps, (*values[:-1], values[-1] + 0.01))})
    assert findings(audit_of([*runs, twin]), DUPLICATE)
    assert not findings(audit_of([*runs, changed]), DUPLICATE)


def test_a_difference_in_the_last_float32_digit_is_none() -> None:
    runs = comparison({"ppo": {}}, (41, 42))
    twin = copied("ppo-seed43", runs[1], 43)
    stored = {key: (steps, tuple(float(np.float32(v)) for v in values)) for key, (steps, values) in twin.points.items()}
    assert findings(audit_of([*runs, replace(twin, points=stored)], select=RULES), DUPLICATE)


def test_a_short_attempt_that_was_started_again_is_no_duplicate() -> None:
    runs = comparison({"ppo": {}}, (41, 42))
    aborted = cut(copied("ppo-seed42-first", runs[1], 42), 30)
    assert not findings(audit_of([*runs, aborted], select=RULES), DUPLICATE)


def test_differences_late_in_a_long_run_are_seen() -> None:
    # Beyond the first 1,024 updates blocks have one hash together; a difference there still tells runs apart.
    updates = 1600
    original = make_run("ppo-seed41", None, 41, updates=updates)
    twin = copied("ppo-seed42", original, 42)
    assert findings(audit_of([original, twin], select=RULES), DUPLICATE)
    steps, values = twin.points["response_length/mean"]
    late = (*values[:1500], values[1500] + 1, *values[1501:])
    other = replace(twin, points={**twin.points, "response_length/mean": (steps, late)})
    # Only a quantity that some rule reads is examined.
    assert not findings(audit_of([original, other]), DUPLICATE)


def test_without_a_learner_series_it_is_not_judged() -> None:
    report = audit_of(without_metrics(comparison(), *LEARNER), select=RULES)
    (entry,) = not_judged(report, DUPLICATE)
    assert entry.missing == ("grad_norm|loss|entropy",)


def test_few_pairs_are_looked_at() -> None:
    from pth_tracker.checks.duplicates import duplicate_groups
    from pth_tracker.design.comparison import Member

    class Held:
        def __init__(self, members: tuple[Member, ...]) -> None:
            self.members, self.memo = members, dict[str, Any]()

    members = _members(300)
    held = Held((*members, *members[:100]))
    groups = duplicate_groups(held)  # type: ignore[arg-type]
    assert len(groups) == 100 and held.memo["duplicates_looked"] == 100


def _members(count: int) -> tuple[Any, ...]:
    """Members with a gradient norm of 40 updates and nothing else."""
    from types import SimpleNamespace

    vocabulary = load_vocabulary()
    rng = np.random.default_rng(0)
    found = []
    for number in range(count):
        digest = SimpleNamespace(step=np.arange(40), values=rng.uniform(0.1, 0.6, 40), decimals=None, count=40, first=0)
        empty = np.empty(0)
        result = SimpleNamespace(
            quantities={"grad_norm": digest}, last_update=39, score_step=empty, score_values=empty, score_key=""
        )
        found.append(SimpleNamespace(key=str(number), result=result, reading=SimpleNamespace(vocabulary=vocabulary)))
    return tuple(found)


def test_what_is_kept_of_a_long_run_stays_small() -> None:
    # 10,000 updates of everything that a run of verl logs: 150 KB a run are allowed, nothing grows with its length.
    run = make_run("ppo-seed41", None, 41, updates=10_000)
    vocabulary = load_vocabulary()
    plan = Plan((), tuple(vocabulary.quantities), metric=SCORE)
    result = examine_history(recognise(vocabulary, [run.source]), run.history, plan)
    assert len(result.quantities) > 20
    assert len(pickle.dumps(result)) < 150_000


# inert-treatment

KL_COEF = f"{ACTOR}.kl_loss_coef"
TREATED = {"plain": {}, "kl": {KL_COEF: 0.01}}
ARMS = {"plain": {"name": "plain-*"}, "kl": {"name": "kl-*"}}


def alike(seeds: tuple[int, ...] = (41, 42), treated: Mapping[str, Any] | None = None) -> list[FakeRun]:
    """Two arms that differ in a field and trained alike, seed by seed."""
    runs = []
    for seed in seeds:
        plain = make_run(f"plain-seed{seed}", None, seed, number=seed)
        runs += [plain, copied(f"kl-seed{seed}", plain, seed, TREATED["kl"] if treated is None else treated)]
    return runs


def test_a_treatment_that_changes_nothing_fails_where_it_is_meant_to_vary() -> None:
    report = audit_of(alike(), {"arms": ARMS, "baseline": "plain", "vary": [KL_COEF]}, select=RULES)
    found = only(report, INERT)
    assert found.level is Level.FAIL and found.basis is Basis.DECLARED
    assert labels(report, found.blames) == ["kl-seed41", "kl-seed42"]
    assert "does nothing while actor_rollout_ref.actor.use_kl_loss is off" in found.detail
    assert "0.01 against 0.001" in found.detail and "seeds 41, 42" in found.detail
    assert not findings(report, DUPLICATE), "runs of one seed in two arms are said once"


def test_an_undeclared_difference_that_changes_nothing_warns() -> None:
    found = only(audit_of(alike(), {"arms": ARMS, "baseline": "plain"}, select=RULES), INERT)
    assert found.level is Level.WARN


def test_no_switch_is_named_where_the_field_acts() -> None:
    settings = {KL_COEF: 0.01, f"{ACTOR}.use_kl_loss": True}
    found = only(audit_of(alike(treated=settings), {"arms": ARMS, "baseline": "plain"}, select=RULES), INERT)
    assert found.evidence["switches"] == []


def test_a_clip_range_cannot_act_on_a_ratio_of_one() -> None:
    one_step = {f"{ACTOR}.ppo_mini_batch_size": 64}
    plain = make_run("plain-seed41", one_step, 41)
    wide = copied("kl-seed41", plain, 41, {**one_step, f"{ACTOR}.clip_ratio_high": 0.28})
    found = only(audit_of([plain, wide], {"arms": ARMS, "baseline": "plain"}, select=RULES), INERT)
    assert found.evidence["switches"] == [f"{ACTOR}.clip_ratio_high does nothing while the ratio is 1 by construction"]


def test_one_seed_that_differs_acquits_the_treatment() -> None:
    runs = [*alike((41, 42)), make_run("plain-seed43", None, 43), make_run("kl-seed43", TREATED["kl"], 43)]
    assert not findings(audit_of(runs, {"arms": ARMS, "baseline": "plain"}, select=RULES), INERT)


def test_arms_without_a_common_seed_are_not_judged() -> None:
    runs = [make_run("plain-seed41", None, 41), make_run("kl-seed42", TREATED["kl"], 42)]
    report = audit_of(runs, {"arms": ARMS, "baseline": "plain"}, select=RULES)
    (entry,) = not_judged(report, INERT)
    assert "runs_of_one_seed" in entry.missing


def test_arms_without_a_difference_are_duplicates_instead() -> None:
    report = audit_of(alike(treated={}), {"arms": ARMS, "baseline": "plain"}, select=RULES)
    assert not findings(report, INERT) and len(findings(report, DUPLICATE)) == 2


def test_a_clean_comparison_passes_both() -> None:
    report = audit_of(comparison(), select=RULES)
    assert not findings(report, DUPLICATE) and not findings(report, INERT)
    assert outcomes(report, DUPLICATE) == outcomes(report, INERT) == {"passed"}


def test_metrics_are_made_by_name_so_that_runs_differ() -> None:
    first, second = (clean_metrics(name, 41)["actor/grad_norm"] for name in ("a", "b"))
    assert not np.array_equal(np.asarray(first), np.asarray(second))
