"""Data orders: what is flagged, what is left alone, what cannot be judged, and how few pairs are looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pth_tracker.checks.order_index import Batches, Orders, data_orders
from pth_tracker.design.comparison import Comparison
from pth_tracker.model import Basis, Level
from pth_tracker.runs import Floats, RunState
from pth_tracker.stats.orders import BatchSeries
from synthetic import (
    ABSENT,
    START,
    FakeRun,
    Values,
    audit_of,
    change,
    clean_metrics,
    comparison,
    cut,
    findings,
    labels,
    loud,
    make_run,
    not_judged,
    only,
    outcomes,
    with_config,
    with_metrics,
    without_config,
    without_metrics,
)

if TYPE_CHECKING:
    from conftest import DemoRuns

SHARED, ONE, UNSTABLE, RESUMED = "shared-data-order", "one-data-order", "unstable-data-order", "resume-changes-run"
PROMPTS = ("prompt_length/mean", "prompt_length/max", "prompt_length/min")
ONE_ARM: Mapping[str, Mapping[str, Any]] = {"ppo": {}}


def prompts_of(order: object, updates: int = 60) -> dict[str, Floats]:
    """The witness series of a data order."""
    logged = clean_metrics("anyone", order, updates)
    return {key: np.asarray(logged[key], dtype=np.float64) for key in PROMPTS}


def reading(order: object, **change: Any) -> dict[str, Values]:
    """Metrics that read another order than the run's own seed."""
    return {**prompts_of(order), **change}


# shared-data-order


def test_runs_of_different_seeds_that_read_one_order_are_flagged() -> None:
    runs = with_metrics(comparison(), "tis-seed4[234]", reading(42))
    report = audit_of(runs)
    found = only(report, SHARED)
    assert found.level is Level.FAIL and found.basis is Basis.CONTRADICTION and found.counts
    # The seed 42 of all arms reads that order too; the configuration of none denies its claim.
    assert labels(report, found.runs) == [
        "clip-higher-seed42", "ppo-seed42", "tis-seed42", "tis-seed43", "tis-seed44",
    ]  # fmt: skip
    assert "3 data seeds" in found.title and "agree at 60 of 60 updates" in found.detail


def test_a_seed_that_the_configuration_lost_is_blamed_alone_and_explained() -> None:
    runs = [*comparison(ONE_ARM, (1, 2, 3)), *(make_run(f"tis-seed{n}", {"data.seed": ABSENT}, None) for n in (4, 5))]
    report = audit_of(runs, select=("lost-seed", SHARED))
    found = only(report, SHARED)
    assert labels(report, found.blames) == ["tis-seed4", "tis-seed5"]
    assert found.because_of == "lost-seed" and not found.counts


def test_runs_that_claim_one_seed_are_meant_to_share_it() -> None:
    report = audit_of(comparison())
    assert not findings(report, SHARED) and outcomes(report, SHARED) == {"passed"}


def test_another_prompt_template_shifts_and_hides_nothing() -> None:
    shifted: dict[str, Values] = {key: values + 11 for key, values in prompts_of(41).items()}
    report = audit_of(with_metrics(comparison(ONE_ARM), "ppo-seed45", shifted), select=(SHARED,))
    found = only(report, SHARED)
    assert labels(report, found.runs) == ["ppo-seed41", "ppo-seed45"]
    assert "59 of 60 updates, shifted by" in found.detail and "11" in found.detail


def test_three_printed_decimals_are_enough() -> None:
    runs = comparison(ONE_ARM, (41, 42))
    printed: dict[str, Values] = {key: np.round(values, 3) for key, values in prompts_of(41).items()}
    rounded = with_metrics(runs, "ppo-seed42", printed)
    rounded = [replace(run, decimals=dict.fromkeys(PROMPTS, 3)) if run.name == "ppo-seed42" else run for run in rounded]
    assert findings(audit_of(rounded, select=(SHARED,)), SHARED)


def small(seed: int, size: int, order: object, **metrics: Values) -> FakeRun:
    """A run whose batches of ``size`` prompts are cut from one order of 3,840 prompts."""
    lengths = np.random.default_rng(abs(hash(str(order))) % 1000).integers(60, 180, 3840).reshape(-1, size)
    own: dict[str, Values] = {
        "prompt_length/mean": lengths.mean(axis=1),
        "prompt_length/max": lengths.max(axis=1).astype(np.float64),
        "prompt_length/min": lengths.min(axis=1).astype(np.float64),
    }
    return make_run(f"b{size}-seed{seed}", {"data.train_batch_size": size}, seed, metrics={**own, **metrics})


def test_batches_of_twice_the_size_are_compared_as_block_means() -> None:
    report = audit_of([small(1, 32, "x"), small(2, 64, "x"), small(3, 64, "y")], select=(SHARED,))
    assert labels(report, only(report, SHARED).runs) == ["b32-seed1", "b64-seed2"]


def test_batch_sizes_without_a_whole_ratio_are_not_compared() -> None:
    report = audit_of([small(1, 48, "x"), small(2, 64, "x")], select=(SHARED,))
    assert not findings(report, SHARED)


FILTERING = {"algorithm.filter_groups.enable": True}


def test_under_dynamic_filtering_the_extremes_decide() -> None:
    rng = np.random.default_rng(3)
    base = prompts_of(41)
    lost = rng.random(60) < 0.3
    filtered: dict[str, Values] = {
        PROMPTS[0]: base[PROMPTS[0]] + rng.normal(0, 2, 60),
        PROMPTS[1]: base[PROMPTS[1]] - lost * rng.integers(1, 20, 60),
        PROMPTS[2]: base[PROMPTS[2]],
    }
    runs = with_metrics(comparison(ONE_ARM, (41, 42, 43)), "ppo-seed42", filtered)
    assert not findings(audit_of(runs, select=(SHARED,)), SHARED)
    report = audit_of(with_config(runs, "*", FILTERING), select=(SHARED,))
    assert labels(report, only(report, SHARED).runs) == ["ppo-seed41", "ppo-seed42"]


def test_an_asynchronous_trainer_is_not_judged_and_told_why() -> None:
    runs = with_metrics(comparison(), "tis-*", reading(42))
    report = audit_of(with_config(runs, "*", {"async_training.staleness_threshold": 0.5}), select=(SHARED,))
    assert not findings(report, SHARED)
    (entry,) = not_judged(report, SHARED)
    assert "synchronous" in entry.missing and "assembles batches by completion" in entry.remedy


def test_without_a_witness_a_fingerprint_is_asked_for() -> None:
    report = audit_of(without_metrics(comparison(), "prompt_length/*"), select=(SHARED,))
    (entry,) = not_judged(report, SHARED)
    assert entry.missing == ("batch_id",) and "BatchLedger" in entry.remedy


def fingerprints(order: int) -> Floats:
    return np.random.default_rng(order).integers(0, 2**53, 60).astype(np.float64)


def test_logged_identities_tell_the_order_too() -> None:
    runs = without_metrics(comparison(ONE_ARM, (41, 42, 43)), "prompt_length/*")
    for name, order in {"ppo-seed41": 1, "ppo-seed42": 1, "ppo-seed43": 3}.items():
        runs = with_metrics(runs, name, {"harness/batch_id": fingerprints(order)})
    report = audit_of(runs, select=(SHARED,))
    assert labels(report, only(report, SHARED).runs) == ["ppo-seed41", "ppo-seed42"]


def test_batches_that_are_only_counted_tell_nothing_of_another_run() -> None:
    runs = without_metrics(comparison(ONE_ARM), "prompt_length/*")
    assert not findings(audit_of(with_metrics(runs, "*", {"harness/batch_id": np.arange(60.0)})), SHARED)


def test_a_task_of_one_batch_an_epoch_has_no_order() -> None:
    constant: dict[str, Values] = dict(zip(PROMPTS, (100.0, 150.0, 60.0)))
    assert not findings(audit_of(with_metrics(comparison(), "*", constant)), SHARED)


def test_a_resumed_run_that_begins_again_is_compared_at_a_lag() -> None:
    first, other = make_run("ppo-seed41", None, 41, number=1), make_run("ppo-seed42", None, 42, number=2)
    base = prompts_of(41)
    points = dict(other.points)
    for key in PROMPTS:
        points[key] = (tuple(range(101, 161)), tuple(float(value) for value in base[key]))
    report = audit_of([first, replace(other, points=points)], select=(SHARED,))
    found = only(report, SHARED)
    assert "100 updates apart" in found.detail


def test_aborted_runs_are_evidence_as_well() -> None:
    runs = with_metrics(comparison(ONE_ARM), "ppo-seed45", reading(41))
    runs = [cut(run, 20, state=RunState.CRASHED) if run.name == "ppo-seed45" else run for run in runs]
    assert "ppo-seed45" in labels(*_named(audit_of(runs), SHARED))


def _named(report: Any, rule: str) -> tuple[Any, Sequence[str]]:
    return report, only(report, rule).runs


def orders_in(runs: Sequence[tuple[Floats, int]]) -> Orders:
    """The orders of runs given by their prompt lengths ``(m, 3)`` and batch sizes, through the index alone."""
    from pth_tracker.checks import order_index

    found = Orders()
    for place, (values, size) in enumerate(runs):
        printed = 0.0005 if np.array_equal(values, np.round(values, 3)) else 0.0
        series = BatchSeries(np.arange(1, len(values) + 1), values, (printed,) * 3)
        found.runs[str(place)] = Batches(None, series, ("mean", "max", "min"), size, False, False)
    sizes = sorted({size for _, size in runs})
    index: dict[Any, list[str]] = {}
    for key, batches in found.runs.items():
        for own in set(order_index._keys(batches, sizes, False, False)):
            index.setdefault(own, []).append(key)
    order_index._join(found, index)
    return found


def test_a_thousand_runs_are_not_compared_in_pairs() -> None:
    # 1,000 runs: 250 orders of four runs each, half a million pairs. Every order takes 3 comparisons to join.
    rng = np.random.default_rng(11)
    lengths = np.rint(rng.lognormal(4.6, 0.4, 7473))
    runs: list[tuple[Floats, int]] = []
    for seed in range(250):
        rows = lengths[np.random.default_rng(seed).permutation(7473)[: 32 * 64]].reshape(64, 32)
        values = np.stack([rows.mean(axis=1), rows.max(axis=1), rows.min(axis=1)], axis=1)
        runs += [(values, 32), (values + 3, 32), (np.round(values, 3), 32), (values[:40], 32)]
    found = orders_in(runs)
    assert len(found.groups) == 250 and all(len(group) == 4 for group in found.groups)
    assert found.looked <= 760, "candidates of the index: three for each order, and hardly a chance hit"
    assert math.comb(len(runs), 2) == 499_500


def test_three_hundred_runs_of_one_order_take_as_many_comparisons() -> None:
    values = np.random.default_rng(0).integers(60, 180, (40, 3)).astype(np.float64)
    found = orders_in([(values, 8)] * 300)
    assert len(found.groups) == 1 and found.looked == 299


# one-data-order


def test_arms_without_any_data_seed_share_one_order() -> None:
    runs = [make_run(f"{arm}-{n}", None, None, number=n) for arm in ("a", "b") for n in range(3)]
    runs = with_config(runs, "b-*", {"actor_rollout_ref.actor.clip_ratio_high": 0.28})
    report = audit_of(runs, select=(ONE, SHARED, UNSTABLE))
    found = only(report, ONE)
    assert found.level is Level.WARN and len(found.blames) == 6 and "data.seed is null" in found.detail
    assert not findings(report, SHARED)


@pytest.mark.parametrize("names", ["{arm}-seed{n}", "{arm}-{n}"])
def test_a_claimed_or_an_acting_seed_is_another_rules_business(names: str) -> None:
    claimed = "seed" in names
    runs = [make_run(names.format(arm=arm, n=n), None, None if claimed else n) for arm in "ab" for n in (5, 6)]
    assert not findings(audit_of(runs, {"arms": {"a": {"name": "a-*"}, "b": {"name": "b-*"}}}), ONE)


def test_single_runs_have_no_interval_to_warn_of() -> None:
    runs = [make_run("a-x", None, None), make_run("b-x", {"actor_rollout_ref.actor.clip_ratio_high": 0.3}, None)]
    assert not findings(audit_of(runs), ONE)


# unstable-data-order


def test_one_seed_with_two_orders_is_said() -> None:
    runs = with_metrics(comparison(), "tis-seed42", reading("elsewhere"))
    report = audit_of(runs)
    found = only(report, UNSTABLE)
    assert found.level is Level.WARN and labels(report, found.blames) == ["tis-seed42"]
    assert "part from update 1 on" in found.detail
    assert "data file, the sampler or the order changed" in found.detail


def test_where_orders_part_later_the_update_is_named() -> None:
    base, other = prompts_of(42), prompts_of("elsewhere")
    parted: dict[str, Values] = {key: np.concatenate([base[key][:30], other[key][30:]]) for key in PROMPTS}
    found = only(audit_of(with_metrics(comparison(), "tis-seed42", parted)), UNSTABLE)
    assert "part from update 31 on" in found.detail


@pytest.mark.parametrize(
    "settings",
    [
        {"data.train_batch_size": 32},
        {"data.train_files": "math/train.parquet"},
        {"data.max_prompt_length": 256},
        {"actor_rollout_ref.model.path": "Qwen/Qwen3-4B"},
        {"data.shuffle": False},
        FILTERING,
    ],
)
def test_runs_that_should_read_other_batches_are_not_compared(settings: Mapping[str, Any]) -> None:
    runs = with_metrics(comparison(), "tis-seed42", reading("elsewhere"))
    assert findings(audit_of(runs, select=(UNSTABLE,)), UNSTABLE)
    assert not findings(audit_of(with_config(runs, "tis-seed42", settings), select=(UNSTABLE,)), UNSTABLE)


def test_identities_that_hold_the_responses_are_no_data_order() -> None:
    runs = comparison({**ONE_ARM, "tis": {"algorithm.rollout_correction.rollout_is": "token"}}, (41, 42))
    for place, run in enumerate(runs):
        runs = with_metrics(runs, run.name, {"harness/batch_id": fingerprints(place)})
    assert not findings(audit_of(runs), UNSTABLE)
    bare = audit_of(without_metrics(runs, "prompt_length/*"), select=(UNSTABLE,))
    (entry,) = not_judged(bare, UNSTABLE)
    assert "shared_identities" in entry.missing and "holds the responses" in entry.remedy


def test_identities_that_others_of_the_seed_share_tell_the_odd_order() -> None:
    runs = without_metrics(comparison(seeds=(41,)), "prompt_length/*")
    for name, order in {"ppo-seed41": 1, "clip-higher-seed41": 1, "tis-seed41": 2}.items():
        runs = with_metrics(runs, name, {"harness/batch_id": fingerprints(order)})
    report = audit_of(runs, select=(UNSTABLE,))
    assert labels(report, only(report, UNSTABLE).blames) == ["tis-seed41"]


def test_without_any_whole_order_it_is_not_judged() -> None:
    report = audit_of(with_config(comparison(), "*", FILTERING), select=(UNSTABLE,))
    (entry,) = not_judged(report, UNSTABLE)
    assert "whole_batches" in entry.missing


def test_series_without_spread_are_not_told_apart() -> None:
    flat: dict[str, Values] = dict(zip(PROMPTS, (100.0, 150.0, 60.0)))
    other: dict[str, Values] = {**flat, PROMPTS[0]: {step: 100.0 + (step == 50) for step in range(1, 61)}}
    runs = with_metrics(with_metrics(comparison(), "*", flat), "tis-seed42", other)
    assert not findings(audit_of(runs), UNSTABLE)


# resume-changes-run


def resumed(
    name: str,
    seed: int,
    *,
    settings: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Values] | None = None,
    arm: Mapping[str, Any] | None = None,
) -> list[FakeRun]:
    """A run in two segments: crashed at update 30, and on from 31 with other settings and metrics."""
    whole = make_run(name, arm, seed, number=seed)
    first = cut(whole, 30, state=RunState.CRASHED)
    later = START + timedelta(hours=seed, minutes=55)
    source = {
        "created": later,
        "ended": later + timedelta(minutes=20),
        "ref": replace(whole.source.ref, run_id=f"{name}-b"),
    }
    second = cut(whole, 60, 31, **source)
    (second,) = with_config([second], "*", settings or {})
    points = dict(second.points)
    for key, values in (metrics or {}).items():
        listed = [values] * 30 if isinstance(values, float | int) else list(values)
        points[key] = (tuple(range(31, 61)), tuple(float(value) for value in listed))
    return [first, replace(second, points=points)]


def others() -> list[FakeRun]:
    return comparison({"ppo": {}, "tis": {"algorithm.rollout_correction.rollout_is": "token"}}, (41, 42))


def test_a_run_that_goes_on_as_it_was_is_no_finding() -> None:
    runs = [*others(), *resumed("ppo-seed43", 43)]
    report = audit_of(runs)
    assert not findings(report, RESUMED) and outcomes(report, RESUMED) == {"passed"}
    assert len(report.runs) == 5 and len(report.runs["id-ppo-seed43-030303"].parts) == 2


def test_a_setting_that_changed_at_the_boundary_is_named() -> None:
    # A field that changes the data order would keep the segments apart; this one does not.
    runs = [*others(), *resumed("ppo-seed43", 43, settings={"actor_rollout_ref.rollout.temperature": 0.7})]
    found = only(audit_of(runs, {"arms": {"ppo": {"name": "ppo-*"}, "tis": {"name": "tis-*"}}}), RESUMED)
    assert found.level is Level.FAIL and "in ppo alone" in found.title
    assert "actor_rollout_ref.rollout.temperature was 1.0, then 0.7" in found.detail


def test_inferred_arms_and_one_arm_alone_warn() -> None:
    runs = [*comparison(ONE_ARM, (41, 42)), *resumed("ppo-seed43", 43, metrics={"actor/lr": 1e-6})]
    found = only(audit_of(runs), RESUMED)
    assert found.level is Level.WARN and "from 2e-06 to 1e-06 at update 31" in found.detail
    assert found.blames == ("id-ppo-seed43-030303",)


def test_batches_read_again_are_named_with_their_lag() -> None:
    again: dict[str, Values] = {key: values[:30] for key, values in prompts_of(43).items()}
    found = only(audit_of([*others(), *resumed("ppo-seed43", 43, metrics=again)]), RESUMED)
    assert "from update 31 on it read the batches of 30 updates earlier again (30 of 30 agree)" in found.detail


def test_in_the_files_order_batches_come_again_by_themselves() -> None:
    again: dict[str, Values] = {key: values[:30] for key, values in prompts_of(43).items()}
    runs = with_config([*others(), *resumed("ppo-seed43", 43, metrics=again)], "*", {"data.shuffle": False})
    assert not findings(audit_of(runs), RESUMED)


def test_a_setting_that_only_one_segment_holds_changed_too() -> None:
    runs = [*comparison(ONE_ARM, (41, 42)), *resumed("ppo-seed43", 43, settings={"actor_rollout_ref.rollout.added": 1})]
    found = only(audit_of(runs), RESUMED)
    assert "actor_rollout_ref.rollout.added was (absent), then 1" in found.detail


def test_bookkeeping_may_change_when_resumed() -> None:
    settings = {"trainer.experiment_name": "again", "trainer.resume_mode": "auto", "trainer.n_gpus_per_node": 4}
    assert not findings(audit_of([*others(), *resumed("ppo-seed43", 43, settings=settings)]), RESUMED)


def test_a_restart_is_two_attempts_and_no_resume() -> None:
    whole = make_run("ppo-seed43", None, 43, number=43)
    first = cut(whole, 30, state=RunState.CRASHED)
    later = START + timedelta(hours=44)
    restarted = cut(whole, 60, 0, created=later, ended=later, ref=replace(whole.source.ref, run_id="again"))
    changed = with_config([restarted], "*", {"actor_rollout_ref.rollout.temperature": 0.7})
    assert not findings(audit_of([*others(), first, *changed]), RESUMED)


# whole projects


def test_the_demos_lost_seed_explains_its_shared_order(demo_runs: DemoRuns) -> None:
    runs = []
    for name, (config, history) in demo_runs.items():
        if name.startswith(("tis-", "grpo-")):
            logged = {key for metrics in history.values() for key in metrics}
            series = {key: {step: m[key] for step, m in history.items() if key in m} for key in logged}
            absent: dict[str, Values | None] = dict.fromkeys(clean_metrics("anyone", 1))
            runs.append(make_run(name, config=config, metrics={**absent, **series}))
    report = audit_of(runs)
    found = only(report, SHARED)
    assert found.because_of == "lost-seed" and {report.label(key)[:4] for key in found.blames} == {"tis-"}
    counted = {rule for _, rule, _ in loud(report)}
    assert {"idle-clip", "lost-seed"} <= counted
    assert counted.isdisjoint({SHARED, ONE, UNSTABLE, RESUMED, "duplicate-run", "inert-treatment", "override-lost"})


def test_a_clean_comparison_has_all_four_passed() -> None:
    report = audit_of(comparison())
    for rule in (SHARED, ONE, UNSTABLE, RESUMED):
        assert outcomes(report, rule) == {"passed"} and not findings(report, rule)


def test_runs_without_configuration_are_still_compared() -> None:
    # verl logs without a config: the seeds in the names claim what the prompts deny.
    runs = without_config(with_metrics(comparison(ONE_ARM), "ppo-seed45", reading(41)))
    report = audit_of(runs, select=(SHARED,))
    assert labels(report, only(report, SHARED).runs) == ["ppo-seed41", "ppo-seed45"]


def test_the_index_is_made_once_for_all_rules() -> None:
    held = SimpleNamespace(memo={}, members=())
    assert data_orders(held) is data_orders(held)  # type: ignore[arg-type]
    assert isinstance(held.memo["data_orders"], Orders) and Comparison is not None


def test_the_order_of_other_series_does_not_matter() -> None:
    twin = with_metrics(change(comparison(ONE_ARM), "ppo-seed45", tags=("x",)), "ppo-seed45", reading(41))
    assert findings(audit_of(list(reversed(twin))), SHARED)
