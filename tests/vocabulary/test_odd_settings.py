"""Settings of odd kinds: a run whose configuration holds one is read, and takes no other run down with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from llm_configurations import ROLL
from llm_fixtures import CONFIGS, NOTHING, configured, trained_run
from llm_runs_a import CASES
from pth_tracker.design.stitch import recognise
from pth_tracker.runs import RunRef, SourceRun
from pth_tracker.values import canonical_config
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import ABSENT, Values, audit_of, idle, make_run, outcomes

ODD: Final[tuple[Any, ...]] = (
    None,
    "often",
    "",
    math.inf,
    math.nan,
    -1,
    0,
    True,
    [],
    [1, 2],
    {"a": 1},
    1e300,
    2.5,
    10**30,
)
CORRECTED: Final[Mapping[str, Any]] = {
    "train_infer_correction": {"is_weight": {"enabled": True, "upper_bound": 1.2}, "filters": []}
}
CONFIGURATIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    **{name: case.settings() for name, case in CASES.items()},
    **CONFIGS,
    "roll, corrected": configured(ROLL, CORRECTED),
}


def _odd(config: Mapping[str, Any]) -> Iterator[tuple[str, object, dict[str, Any]]]:
    flat = dict(canonical_config(config))
    for key in flat:
        for value in ODD:
            yield key, value, {**flat, key: value}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_roles_seed_and_lag_are_read_whatever_a_setting_holds(name: str) -> None:
    own = load_vocabulary()
    for key, value, config in _odd(CONFIGURATIONS[name]):
        read = Reading(own, recognise(own, [SourceRun(RunRef("p", "r"), "r", config=config)]))
        assert None not in read.roles.values(), (key, value)
        assert read.seed.key is not None
        lag = read.designed_lag()
        assert lag is None or (type(lag) is int and abs(lag) <= 1e15), (key, value)
        assert type(read.designed_lag(key)) in (int, type(None)), (key, value)


@pytest.mark.parametrize("value", ODD)
def test_a_run_with_an_odd_lag_is_judged_beside_the_others(value: object) -> None:
    config = configured(CONFIGS["prime_rl"], {"max_async_level": value, "max_off_policy_steps": ABSENT})
    metrics: dict[str, Values | None] = {**NOTHING, "mismatch_kl/all/mean": [0.01] * 60, "is_masked/mean": 0.0}
    odd = make_run("odd", config=config, metrics=metrics)
    report = audit_of(
        [odd, make_run("grpo-seed43", {"actor_rollout_ref.actor.ppo_mini_batch_size": 64}, metrics=idle())]
    )
    assert len(report.runs) == 2 and not report.errors and "failed" in outcomes(report, "idle-clip")


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize(
    ("framework", "key"), [("easyr1", "data.rollout_batch_size"), ("rllm", "rllm.data.train_batch_size")]
)
def test_data_orders_are_compared_whatever_a_batch_size_is(framework: str, key: str, value: object) -> None:
    runs = [trained_run(framework, f"a-seed{seed}", seed, {key: value} if seed == 1 else {}) for seed in (1, 2)]
    report = audit_of(runs)
    assert {run.framework for run in report.runs.values()} == {framework}
    assert "failed" not in outcomes(report, "shared-data-order") and not report.errors
