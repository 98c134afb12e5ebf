"""Check 3: what is flagged as a stuck batch or as an age off its design, what is left alone, what is not judged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synthetic
from batch_runs import CAP, Healthy, Metrics, filling_queue, printed, random_healthy, replay
from pth_tracker.engine import Options, audit
from pth_tracker.errors import DesignError
from pth_tracker.examine import Examination
from pth_tracker.model import STUCK_BATCH, Finding, Level
from pth_tracker.probes import BatchLedger
from single_run import Points, examined, findings, missing

ID, AGE = "harness/batch_id", "harness/data_age"
MARKER = "[RolloutSkip()] Successfully load pre-generated data from /tmp/rollout_dump"


def judged(metrics: Metrics, **facts: Any) -> Examination:
    return examined(metrics, "stuck-batch", **facts)


def stuck(metrics: Metrics, **facts: Any) -> list[Finding]:
    return findings(judged(metrics, **facts), "stuck-batch")


def healthy(seed: int = 1, **facts: Any) -> Metrics:
    return Healthy(**{"prompts": 16, "updates": 100, "group": 8, **facts}).sample(np.random.default_rng(seed))


# By identity


def test_a_queue_that_serves_batch_0_until_it_has_filled_is_found_by_identity() -> None:
    ids = 5.0 + filling_queue(100)
    (found,) = stuck({ID: ids})
    assert found.level is Level.FAIL and found.tag == STUCK_BATCH and found.blames == ("run-1",)
    evidence = {"updates": 100, "distinct": 68, "reused": 32, "longest": 33, "first_reuse": 2, "uses_by_design": 1}
    assert found.evidence == {"batch_id": ID, **evidence}
    assert "68 distinct batches in 100 updates" in found.detail and "updates 1 to 33" in found.detail


def test_one_reused_batch_at_any_distance_fails_and_none_passes() -> None:
    ids = np.arange(100.0)
    assert not stuck({ID: ids})
    ids[80] = ids[3]
    (found,) = stuck({ID: ids})
    assert found.level is Level.FAIL and found.evidence["first_reuse"] == 81


def test_the_design_may_allow_that_a_batch_is_used_again() -> None:
    twice = np.repeat(np.arange(50.0), 2)
    assert stuck({ID: twice}) and not stuck({ID: twice}, batch_uses=2)
    epochs = np.tile(np.arange(50.0), 2)  # two epochs in one order, identities of the prompts alone
    (found,) = stuck({ID: epochs})
    assert found.evidence["distance"] == 50 and "a further epoch" in found.detail
    assert not stuck({ID: epochs}, batch_uses=2)
    assert findings(judged({ID: np.tile(np.arange(50.0), 3)}, batch_uses=2), "stuck-batch")


def test_a_batch_logged_at_each_of_its_optimiser_steps_is_used_once() -> None:
    config = {
        "actor_rollout_ref": {
            "actor": {"ppo_epochs": 1, "ppo_mini_batch_size": 16},
            "rollout": {"n": 8},
        },
        "data": {"train_batch_size": 64},
    }
    assert not stuck({ID: np.repeat(np.arange(25.0), 4)}, config=config)
    assert stuck({ID: np.repeat(np.arange(25.0), 5)}, config=config)  # five of four steps
    assert stuck({ID: np.maximum(np.arange(100.0) - 3, 0)}, config=config)  # one batch of four, the others of one
    assert stuck({ID: np.tile(np.repeat(np.arange(25.0), 4), 2)}, config=config)  # once more from the start


def test_identities_that_a_store_rounded_to_float32_collide_by_chance() -> None:
    rng = np.random.default_rng(11)
    ids = np.floor(rng.random(3000) * 2.0**48).astype(np.float32).astype(np.float64)
    assert len(np.unique(ids)) < 3000, "the example has no collision"
    assert not stuck({ID: ids})
    ids[10] = ids[9]
    assert stuck({ID: ids})
    assert stuck({ID: np.concatenate([ids[:100], ids[:100]])})


def test_the_ledgers_two_numbers_are_one_identity() -> None:
    ledger = BatchLedger()
    rows = []
    for update in range(4800):
        ledger.record(update, f"batch of update {update}")
        rows.append(ledger.metrics())
    metrics = {key: np.array([row[key] for row in rows]) for key in (ID, f"{ID}_high")}
    assert len(np.unique(metrics[ID])) < 4800, "24 bits alone have no collision here"
    assert not stuck(metrics)
    result = judged({key: values[filling_queue(100)] for key, values in metrics.items()})
    assert findings(result, "stuck-batch")[0].evidence["distinct"] == 68
    assert result.batches is not None
    assert (result.batches.updates, result.batches.distinct) == (100, 68)
    assert result.batches.lengths.tolist() == [33] + [1] * 67
    many = judged(metrics).batches
    assert many is not None and many.distinct == 4800 and not len(many.ids) and len(many.digest) == 32


# By ordinary metrics


@pytest.mark.parametrize("decimals", [None, 3])
@pytest.mark.parametrize("prompts, group", [(16, 8), (6, 8), (2, 1), (128, 8)])
def test_the_filling_queue_is_found_from_ordinary_metrics(prompts: int, group: int, decimals: int | None) -> None:
    metrics = printed(replay(healthy(prompts=prompts, group=group), filling_queue(100)), decimals)
    (found,) = stuck(metrics, decimals={key: 3 for key in metrics} if decimals else {})
    assert found.level is Level.FAIL and found.tag == STUCK_BATCH
    assert found.evidence["longest"] == 33 and found.evidence["stretch"] == [1, 33]
    assert found.evidence["repeats"] >= 31 and found.evidence["expected_by_chance"] < 0.01  # grad norms may tie at .3f
    assert found.evidence["distinct"] in (67, 68)


@pytest.mark.parametrize("repeats, level", [(1, Level.WARN), (2, Level.WARN), (3, Level.FAIL)])
def test_one_improbable_repeat_warns_and_three_fail(repeats: int, level: Level) -> None:
    source = np.arange(100)
    source[[20, 45, 80][:repeats]] = [3, 11, 7][:repeats]
    (found,) = stuck(replay(healthy(), source))
    assert found.level is level and found.evidence["repeats"] == repeats and found.evidence["first_repeat"] == 21


def test_repeats_that_the_design_allows_do_not_count() -> None:
    metrics = replay(healthy(), np.arange(100) // 2)
    assert stuck(metrics) and not stuck(metrics, batch_uses=2)
    assert stuck(replay(healthy(), np.arange(100) // 3), batch_uses=2)


def test_rows_repeated_with_their_gradient_norm_are_no_repeated_batch() -> None:
    metrics = {key: values[np.arange(100) // 2] for key, values in healthy().items()}
    assert not stuck(metrics)


def test_never_from_one_or_two_quantities() -> None:
    base, other = healthy(1), healthy(2)
    still = replay(base, filling_queue(100))
    for kept in ("prompt_length/", "response_length/", "critic/score/"):
        mixed = {key: other[key] if key.startswith(kept) else values for key, values in still.items()}
        assert not [one for one in stuck(mixed) if one.tag], kept


def test_responses_at_their_limit_for_180_updates_and_a_converged_policy_are_no_repeat() -> None:
    metrics = healthy(updates=400, prompts=2, group=1)
    for key in ("response_length/mean", "response_length/max", "response_length/min"):
        metrics[key][100:280] = CAP
    assert not stuck(metrics)
    rounded = printed(healthy(updates=600, prompts=4, group=1, skill=9.0, end=12.0, collapse=200), 3)
    assert not stuck(rounded, decimals={key: 3 for key in rounded})


@pytest.mark.parametrize("seed", [56, 283, 287, 343, 414, 567])
def test_a_policy_that_collapses_within_a_stretch_is_no_repeat(seed: int) -> None:
    # Few prompts, or prompts of few lengths, come again by chance once all responses are alike.
    rng = np.random.default_rng([5, seed])
    run = random_healthy(rng)
    assert run.collapse is not None
    metrics = run.sample(rng)
    assert not stuck(metrics, decimals={key: 3 for key in metrics} if run.decimals else {})


def test_scores_that_are_all_zero_leave_the_prompts_to_judge_by() -> None:
    metrics = healthy()
    for key in ("critic/score/mean", "critic/score/max", "critic/score/min"):
        metrics[key][:] = 0
    (outcome,) = judged(metrics).outcomes
    assert outcome.met == ("prompts",) and not stuck(metrics)


def test_one_batch_an_epoch_is_legal() -> None:
    metrics = healthy()
    for key in ("prompt_length/mean", "prompt_length/max", "prompt_length/min"):
        metrics[key][:] = metrics[key][0]
    metrics["training/epoch"] = np.arange(100.0)
    assert missing(judged(metrics), "stuck-batch") == ("batch_id",)  # the responses differ; nothing is flagged


def test_a_resumed_run_that_starts_its_data_over_has_no_stuck_batch() -> None:
    metrics, again = healthy(updates=200), healthy(2, updates=200)
    for key in ("prompt_length/mean", "prompt_length/max", "prompt_length/min"):
        metrics[key][120:] = metrics[key][:80]
    for key in ("training/epoch",):
        metrics[key] = again[key]
    assert not stuck(metrics)


def test_a_second_epoch_of_a_deterministic_policy_does_not_count_where_the_loaders_length_is_known() -> None:
    metrics = replay(healthy(updates=300), np.arange(300) % 100)
    metrics["training/epoch"] = np.arange(300) // 100 * 1.0
    assert not stuck(metrics)
    unknown = {key: values for key, values in metrics.items() if key != "training/epoch"}
    (found,) = stuck(unknown)
    assert found.level is Level.WARN and "100 updates back" in found.detail
    config = {
        "actor_rollout_ref": {"actor": {"optim": {"total_training_steps": 300}}, "rollout": {"n": 8}},
        "trainer": {"total_epochs": 3, "total_training_steps": None},
    }
    assert not stuck(unknown, config=config)


def test_repeats_inside_an_epoch_count() -> None:
    metrics = replay(healthy(updates=300), np.arange(300) % 70)
    metrics["training/epoch"] = np.arange(300) // 100 * 1.0
    (found,) = stuck(metrics)
    assert found.level is Level.FAIL


def test_not_judged_without_identity_or_with_two_quantities_only() -> None:
    metrics = healthy()
    for gone in ("prompt_length/", "actor/"):
        rest = {key: values for key, values in metrics.items() if not key.startswith(gone)}
        assert missing(judged(rest), "stuck-batch") == ("batch_id",)
    for gone in ("response_length/", "critic/score/"):
        rest = {key: values for key, values in metrics.items() if not key.startswith(gone)}
        assert judged(rest, config=NO_SWITCH).outcomes[0].met == ("prompts",)
        assert [one.level for one in stuck(replay(rest, filling_queue(100)), config=NO_SWITCH)] == [Level.WARN]
    report = synthetic.audit_of(
        synthetic.without_metrics(synthetic.comparison(), "prompt_length/*"), select=("stuck-batch",)
    )
    (entry,) = report.not_judged
    assert "BatchLedger()" in entry.remedy and "ledger.record(" in entry.remedy


# Prompts alone


def prompts_of(metrics: Metrics, source: np.ndarray) -> Metrics:
    return {key: values[source] if key.startswith("prompt_length/") else values for key, values in metrics.items()}


@pytest.mark.parametrize("length, flagged", [(3, False), (4, True), (20, True)])
def test_prompts_that_stand_still_for_four_updates_warn(length: int, flagged: bool) -> None:
    source = np.arange(100)
    source[30 : 30 + length] = 30
    found = stuck(prompts_of(healthy(), source))
    assert bool(found) is flagged
    if flagged:
        assert found[0].level is Level.WARN and not found[0].tag
        assert found[0].evidence["longest"] == length and found[0].evidence["stretch"] == [31, 30 + length]


def test_prompts_whose_own_ties_predict_a_standstill_do_not_warn() -> None:
    metrics = healthy(updates=400)
    ties = np.random.default_rng(5).integers(0, 4, 400)  # four different tuples in all: long stretches by chance
    for key in ("prompt_length/mean", "prompt_length/max", "prompt_length/min"):
        metrics[key] = metrics[key][ties]
    assert not stuck(metrics)


def test_batches_of_equally_long_prompts_are_no_standstill() -> None:
    metrics = healthy(updates=300)
    ordered = np.repeat(np.arange(40.0, 100.0), 5)  # a data set sorted by length
    for key in ("prompt_length/mean", "prompt_length/max", "prompt_length/min"):
        metrics[key] = ordered
    assert not stuck(metrics)


@pytest.mark.parametrize("epoch, flagged", [(20, False), (10, False), (50, True), (1000, True), (None, False)])
def test_a_period_that_is_not_the_loaders_warns(epoch: int | None, flagged: bool) -> None:
    metrics = prompts_of(healthy(updates=200), np.arange(200) % 20)
    del metrics["training/epoch"]
    if epoch is not None:
        metrics["training/epoch"] = np.arange(200) // epoch * 1.0
    found = stuck(metrics)
    assert bool(found) is flagged
    if flagged:
        assert found[0].level is Level.WARN and found[0].evidence["period"] == 20


def test_a_fraction_of_an_epoch_tells_the_loaders_length() -> None:
    metrics = prompts_of(healthy(updates=200), np.arange(200) % 20)
    metrics["training/epoch"] = np.arange(200) / 20
    assert not stuck(metrics)
    metrics["training/epoch"] = np.arange(200) / 64
    assert stuck(metrics)


# Dumps


SWITCHES = [
    {"actor_rollout_ref": {"actor": {"ppo_epochs": 1}, "rollout": {"skip_rollout": True, "n": 8}}},
    {"actor_rollout_ref": {"actor": {"ppo_epochs": 1}, "rollout": {"skip": {"enable": True}, "n": 8}}},
    {
        "actor_rollout_ref": {"actor": {"ppo_epochs": 1}, "rollout": {"n": 8}},
        "skip": {"async_rollout": {"enable": True}},
    },
]
NO_SWITCH = {"actor_rollout_ref": {"actor": {"ppo_epochs": 1}, "rollout": {"skip_rollout": False, "n": 8}}}


@pytest.mark.parametrize("config", SWITCHES)
def test_a_switch_that_replays_rollouts_confirms_a_run_that_stands_still_throughout(config: dict[str, object]) -> None:
    metrics = replay(healthy(), np.zeros(100, dtype=int))
    (found,) = stuck(metrics, config=config)
    assert found.level is Level.FAIL and found.tag == STUCK_BATCH and found.evidence["longest"] == 100
    assert missing(judged(metrics, config=NO_SWITCH), "stuck-batch") == ("batch_id",)


def test_a_switch_or_a_line_of_the_log_turns_one_repeat_into_a_failure() -> None:
    source = np.arange(100)
    source[50] = 49
    metrics = replay(healthy(), source)
    assert stuck(metrics, config=NO_SWITCH)[0].level is Level.WARN
    assert stuck(metrics, config=SWITCHES[0])[0].level is Level.FAIL
    (found,) = stuck(metrics, markers=[MARKER])
    assert found.level is Level.FAIL and "Successfully load" in found.detail


def test_a_switch_alone_warns_only_where_nothing_else_can_tell() -> None:
    assert not stuck(healthy(), config=SWITCHES[0])
    (found,) = stuck({"actor/grad_norm": np.ones(20)}, config=SWITCHES[0])
    assert found.level is Level.WARN and not found.tag and "skip_rollout" in found.detail
    (found,) = stuck(healthy(), markers=[MARKER])
    assert found.level is Level.WARN and "dump" in found.title


# False alarms


def test_of_200_healthy_runs_none_is_flagged_and_the_planted_ones_are_found() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(200):
        rng = np.random.default_rng([2024, seed])
        run = random_healthy(rng)
        metrics = run.sample(rng)
        decimals = {key: 3 for key in metrics} if run.decimals else {}
        result = judged(metrics, decimals=decimals)
        assert not result.findings, (seed, run, result.findings)
        outcomes["judged"] += bool(result.outcomes[0].met)
        outcomes["whole tuples"] += "metrics" in result.outcomes[0].met
        if seed % 4 == 0:
            (found,) = stuck(replay(metrics, filling_queue(run.updates)), decimals=decimals)
            outcomes[found.level] += 1
    assert outcomes == {"judged": 200, "whole tuples": outcomes["whole tuples"], "fail": 50}
    assert outcomes["whole tuples"] >= 190


def test_public_runs_raise_no_alarm(shared_data: Path) -> None:
    from pth_tracker_files.tracker import FilesTracker

    report = audit(FilesTracker([str(shared_data / "verl")]), Options(select=("stuck-batch", "sampler-diverged")))
    assert not report.findings
    covered = [entry for entry in report.coverage if entry.rule == "stuck-batch" and entry.branches]
    assert {report.label(key) for entry in covered for key in entry.runs} == {
        "grpo_94_steps_taskrunner",
        "ppo_61_steps_main_task",
    }


def test_a_stuck_arm_is_failed_in_an_audit_and_the_clean_one_is_not() -> None:
    runs = synthetic.comparison()
    assert not synthetic.findings(synthetic.audit_of(runs, select=("stuck-batch",)), "stuck-batch")
    arm, clean = sorted({run.name.rsplit("-", 1)[0] for run in runs})[:2]
    spoilt = []
    for run in runs:
        if run.name.startswith(arm):
            values = {key: np.array(points[1]) for key, points in run.points.items() if len(points[1]) > 50}
            moved = replay(values, filling_queue(len(values["actor/grad_norm"])))
            fixed = {k: v.tolist() for k, v in moved.items() if not np.array_equal(v, values[k])}
            (run,) = synthetic.with_metrics([run], "*", fixed)
        spoilt.append(run)
    report = synthetic.audit_of(spoilt, select=("stuck-batch",))
    found = synthetic.only(report, "stuck-batch")
    assert found.level is Level.FAIL and found.arms == (arm,) and len(found.blames) == len(synthetic.SEEDS)


@pytest.mark.parametrize("kind", ["huge", "nan", "infinite", "tiny", "negative", "text-like"])
def test_hostile_metrics_are_no_crash(kind: str) -> None:
    rng = np.random.default_rng(9)
    values = {
        "huge": np.tile([1e308, -1e308, 1e308], 20),
        "nan": np.full(60, np.nan),
        "infinite": np.tile([np.inf, -np.inf, 0.0], 20),
        "tiny": np.tile([5e-324, 0.0, -5e-324], 20),
        "negative": -rng.random(60),
        "text-like": rng.integers(0, 3, 60) * 1.0,
    }[kind]
    names = [key for key in healthy()] + [ID, f"{ID}_high", AGE]
    for one in names:
        metrics = {**healthy(updates=60), ID: np.arange(60.0), AGE: np.zeros(60), one: values}
        examined(metrics, "stuck-batch", "age-off-design", age="update * 10.0 ** 300")
    examined(dict.fromkeys(names, values), "stuck-batch", "age-off-design", age="update")
    examined({one: values[:1] for one in names}, "stuck-batch", "age-off-design", age="10 ** 400")


# age-off-design


def off(ages: Any, design: str, **facts: Any) -> list[Finding]:
    points = {AGE: ages, **facts.pop("points", {})}
    return findings(examined(points, "age-off-design", age=design, **facts), "age-off-design")


def test_an_age_as_designed_passes_and_another_fails_at_its_first_update() -> None:
    designed = np.minimum(np.arange(100.0), 32)
    assert not off(designed, "min(update, 32)")
    logged = designed.copy()
    logged[40:] = 33
    (found,) = off(logged, "min(update, 32)")
    assert found.level is Level.FAIL and found.blames == ("run-1",)
    assert found.evidence["first_off"] == 41 and found.evidence["off"] == 60
    assert "33 logged, 32 designed" in found.detail


def test_updates_count_from_the_first_trained_one() -> None:
    ages = np.minimum(np.arange(50.0), 8)
    assert not off((np.arange(101, 151), ages), "min(update, 8)")  # a resumed run starts over
    # The age is logged from the third trained update on, a score before the first one.
    late: Points = {
        AGE: (np.arange(3, 51), ages[2:]),
        "actor/grad_norm": np.ones(50),
        "val-core/x/acc/mean@1": ([0], [0.5]),
    }
    assert not findings(examined(late, "age-off-design", age="min(update, 8)"), "age-off-design")
    assert off((np.arange(3, 51), ages[2:]), "min(update, 8)")


def test_the_design_may_name_the_runs_own_setting_and_the_trackers_step() -> None:
    ages = np.arange(100.0) % 16
    config = {"trainer": {"sync_interval": 16}}
    assert not off(ages, "update % cfg('trainer.sync_interval')", config=config)
    assert off(ages, "update % cfg('trainer.sync_interval')", config={"trainer": {"sync_interval": 8}})
    assert not off((np.arange(0, 204800, 2048), ages), "step / 2048 % 16")
    result = examined({AGE: ages}, "age-off-design", age="update % cfg('trainer.sync_interval')")
    assert missing(result, "age-off-design") == ("designed_age",)


def test_rounding_is_no_difference() -> None:
    thirds = np.arange(60) / 3
    assert not off(np.round(thirds, 3), "update / 3", decimals={AGE: 3})
    assert off(np.round(thirds, 3) + 0.002, "update / 3", decimals={AGE: 3})
    assert not off(thirds.astype(np.float32).astype(float), "update / 3")
    assert not off(np.round(thirds), "update / 3")  # whole ages only: up to half an update off
    assert off(np.round(thirds) + 1, "update / 3")
    assert off(np.arange(60.0) + 0.4, "update")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_age_that_is_not_finite_is_off(bad: float) -> None:
    ages = np.zeros(30)
    ages[7] = bad
    (found,) = off(ages, "0")
    assert found.evidence["first_off"] == 8 and found.evidence["off"] == 1


def test_ages_are_not_judged_without_a_design_or_a_logged_age() -> None:
    assert missing(examined({AGE: np.zeros(9)}, "age-off-design"), "age-off-design") == ("designed_age",)
    nothing = examined({"actor/grad_norm": np.ones(9)}, "age-off-design", age="0")
    assert missing(nothing, "age-off-design") == ("data_age", "designed_age")


def test_an_age_that_cannot_be_read_is_refused_with_the_design(tmp_path: Path) -> None:
    from pth_tracker.design.load import load_design

    for text in ("min(updat, 3)", "1 / update", "update +", "__import__('os')"):
        path = tmp_path / "design.yaml"
        path.write_text(f'vary: [a]\nage: {{expected: "{text}"}}\n')
        with pytest.raises(DesignError, match=r"design\.yaml:2"):
            load_design(path)


def test_a_design_file_states_ages_and_uses_for_the_audit() -> None:
    runs = synthetic.comparison(metrics={AGE: [min(k, 4) for k in range(synthetic.UPDATES)]})
    for expected, count in (("min(update, 4)", 0), ("min(update, 5)", 1)):
        report = synthetic.audit_of(runs, {"age": {"expected": expected}}, select=("age-off-design",))
        assert bool(synthetic.findings(report, "age-off-design")) is bool(count)
    twice = synthetic.comparison(metrics={ID: [k // 2 for k in range(synthetic.UPDATES)]})
    for design, count in (({}, 1), ({"batches": {"uses": 2}}, 0)):
        report = synthetic.audit_of(twice, design, select=("stuck-batch",))
        assert bool(synthetic.findings(report, "stuck-batch")) is bool(count)
