"""verl's vocabulary: releases told by their keys, and the facts of `verl_*` functions at each."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import pytest

from pth_tracker.design.stitch import recognise
from pth_tracker.runs import History, Run, RunRef, SourceRun
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.lens import Lens, release
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import ABSENT, ACTOR, CORRECTION, set_dotted, verl_config

BARE: dict[str, Any] = {
    "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 256, "ppo_epochs": 1}, "rollout": {"n": 8}},
    "data": {"train_batch_size": 1024, "train_files": "x.parquet", "shuffle": True},
    "algorithm": {"adv_estimator": "grpo"},
    "trainer": {"nnodes": 1},
}
"""What every release has."""
UP_TO: list[tuple[str, dict[str, Any]]] = [
    ("0.3.0", {}),
    ("0.4.0", {f"{ACTOR}.loss_agg_mode": "token-mean"}),
    ("0.4.1", {"actor_rollout_ref.rollout.calculate_log_probs": False}),
    ("0.5.0", {"trainer.use_legacy_worker_impl": "auto"}),
    ("0.6.0", {"algorithm.rollout_is_threshold": None}),
    (
        "0.6.1",
        {"algorithm.rollout_is_threshold": ABSENT, f"{CORRECTION}.use_policy_gradient": False, "data.seed": None},
    ),
    ("0.7.0", {f"{CORRECTION}.use_policy_gradient": ABSENT, f"{CORRECTION}.loss_type": "ppo_clip"}),
    ("0.7.1", {"reward.num_workers": 8, "sandbox_fusion.url": None}),
    ("0.8.0", {"distillation.enabled": False}),
    ("0.9.0", {"trainer.use_v1": True}),
]
"""Release to the keys by which its configuration differs from the one before."""


def config_of(version: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A small configuration with the keys of one release."""
    config = copy.deepcopy(BARE)
    for name, keys in UP_TO:
        set_dotted(config, keys)
        if name == version:
            break
    set_dotted(config, settings or {})
    return config


def reading(config: Mapping[str, Any], history: History | None = None) -> Reading:
    source = SourceRun(RunRef("p", "a"), "a", config=config)
    vocabulary = load_vocabulary()
    run = recognise(vocabulary, [source])
    return Reading(vocabulary, run, history)


@pytest.mark.parametrize("version", [version for version, _ in UP_TO])
def test_every_release_is_told_by_its_keys(version: str) -> None:
    run = reading(config_of(version)).run
    assert (run.framework, run.version) == ("verl", version)


def test_the_demos_configuration_is_of_0_7_1() -> None:
    assert reading(verl_config()).run.version == "0.7.1"


@pytest.mark.parametrize(
    ("version", "settings", "order", "acts"),
    [
        ("0.3.0", {}, "1", False),
        ("0.6.0", {}, "1", False),
        ("0.6.0", {"data.seed": 7}, "7", True),
        ("0.6.1", {}, "the default order", False),
        ("0.6.1", {"data.seed": ABSENT}, "the default order", False),
        ("0.6.1", {"data.seed": 1}, "1", True),
        ("0.9.0", {"data.seed": None}, "the default order", False),
        ("0.9.0", {"data.seed": 43.0}, "43", True),
        ("0.9.0", {"data.seed": "43"}, "43", True),
        ("0.9.0", {"data.seed": 43, "data.shuffle": False}, "the file's order", False),
        ("0.9.0", {"data.seed": 43, "data.sampler.class_path": "my.py"}, None, False),
        ("0.9.0", {"data.seed": 43, "data.sampler.class_path": None}, "43", True),
        ("0.9.0", {"data": ABSENT}, None, False),
    ],
)
def test_what_orders_the_data(version: str, settings: dict[str, Any], order: str | None, acts: bool) -> None:
    seed = reading(config_of(version, settings)).seed
    assert (seed.order, seed.acts, seed.key) == (order, acts, "data.seed")
    assert bool(seed.why) is not acts


def test_without_a_configuration_no_seed_and_no_role_is_known() -> None:
    source = SourceRun(RunRef("p", "a"), "a", metric_keys=frozenset({"actor/pg_clipfrac"}))
    bare = Reading(load_vocabulary(), Run((source,), "verl"))
    assert bare.seed.order is None and not bare.seed.acts
    assert {"pi_old", "updates_per_batch", "ratio_is_one", "staleness"}.isdisjoint(bare.roles)


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ({}, 4),
        ({"data.train_batch_size": 256}, 1),
        ({"data.train_batch_size": 257}, 2),
        ({f"{ACTOR}.ppo_epochs": 2}, 8),
        ({f"{ACTOR}.ppo_mini_batch_size": 2048}, 1),
        ({f"{ACTOR}.ppo_mini_batch_size": ABSENT}, MISSING),
        ({f"{ACTOR}.ppo_mini_batch_size": 0}, MISSING),
        ({f"{ACTOR}.ppo_mini_batch_size": -1}, MISSING),
        ({f"{ACTOR}.ppo_mini_batch_size": math.inf}, MISSING),
        ({"data.train_batch_size": 0, "async_training.require_batches": 4}, 4),
        ({"data.train_batch_size": 0}, MISSING),
        ({"data.train_batch_size": True}, MISSING),
    ],
)
def test_updates_per_batch(settings: dict[str, Any], updates: Any) -> None:
    own = reading(config_of("0.7.1", settings))
    assert own.role("updates_per_batch") == updates
    assert own.role("ratio_is_one") == (MISSING if updates is MISSING else updates == 1)


@pytest.mark.parametrize(
    ("version", "settings", "source"),
    [
        ("0.3.0", {}, "learner"),
        ("0.7.1", {}, "learner"),
        ("0.7.1", {f"{CORRECTION}.bypass_mode": True}, "sampler"),
        ("0.7.1", {f"{ACTOR}.use_rollout_log_probs": True}, "sampler"),
        ("0.6.0", {f"{ACTOR}.use_rollout_log_probs": True}, "learner"),
        ("0.8.0", {f"{ACTOR}.use_rollout_log_probs": True}, "learner"),
        ("0.9.0", {f"{CORRECTION}.bypass_mode": True}, "sampler"),
        ("0.9.0", {"trainer.v1.trainer_mode": "separate_async"}, "learner at the start of a cycle"),
    ],
)
def test_where_pi_old_comes_from(version: str, settings: dict[str, Any], source: str) -> None:
    assert reading(config_of(version, settings)).role("pi_old") == source


@pytest.mark.parametrize(
    ("settings", "lag"),
    [
        ({}, MISSING),
        ({"trainer.sync_interval": 16}, 16),
        ({"trainer.sync_interval": 1}, 0),
        ({"trainer.sync_interval": 0}, 0),
        ({"trainer.sync_interval": "16"}, 16),
        ({"trainer.sync_interval": math.inf}, MISSING),
        ({"trainer.sync_interval": math.nan}, MISSING),
        ({"trainer.v1.trainer_mode": "separate_async"}, 8),
        ({"trainer.v1.trainer_mode": "sync"}, MISSING),
        ({"async_training.staleness_threshold": 0.5}, 1),
        ({"async_training.staleness_threshold": 0, "async_training.trigger_parameter_sync_step": 4}, 4),
        ({"async_training.staleness_threshold": 0}, 0),
    ],
)
def test_the_designed_lag(settings: dict[str, Any], lag: Any) -> None:
    assert reading(config_of("0.9.0", settings)).role("staleness") == lag


@pytest.mark.parametrize(
    ("settings", "corrected"),
    [
        ({}, False),
        ({f"{CORRECTION}.rollout_is": "token"}, True),
        ({f"{CORRECTION}.rollout_rs": "seq_mean_k1"}, True),
        ({f"{CORRECTION}.rollout_is": False}, False),
        ({f"{CORRECTION}.rollout_is": ""}, False),
        ({f"{CORRECTION}.rollout_is": "token", "actor_rollout_ref.rollout.calculate_log_probs": False}, False),
        ({f"{CORRECTION}.rollout_is": "token", "actor_rollout_ref.rollout.calculate_log_probs": ABSENT}, True),
    ],
)
def test_corrections(settings: dict[str, Any], corrected: bool) -> None:
    recorded = {"actor_rollout_ref.rollout.calculate_log_probs": True}
    correction = reading(config_of("0.7.1", {**recorded, **settings})).role("correction")
    assert (correction != "none") is corrected
    for value in settings.values():
        assert not corrected or value is ABSENT or str(value) in correction


@pytest.mark.parametrize(
    ("text", "parts"),
    [("0.6.1", (0, 6, 1)), ("0.10", (0, 10)), ("0.6.1.post1", (0, 6, 1)), ("git", ()), ("", ()), (None, ())],
)
def test_releases_compare_as_numbers(text: str | None, parts: tuple[int, ...]) -> None:
    assert release(text) == parts
    assert Lens({}, "0.10.0").at_least("0.9.0") and not Lens({}, None).at_least("0.1")


# series


def history(**metrics: Any) -> History:
    return History.from_points({key.replace("__", "/"): ([1, 2, 3], values) for key, values in metrics.items()})


def test_the_first_candidate_with_a_logged_value_holds_a_quantity() -> None:
    both = history(rollout_corr__k3_kl=[0.1, 0.2, 0.3], mismatch__mismatch_k3_kl=[1, 2, 3])
    assert reading(config_of("0.7.1"), both).series("sampler_k3_kl").key == "rollout_corr/k3_kl"  # type: ignore[union-attr]
    nothing = history(rollout_corr__k3_kl=[math.nan] * 3)
    series = reading(config_of("0.7.1"), nothing).series("sampler_k3_kl")
    assert series is not None and len(series) == 3  # logged NaN is evidence, unlike absence
    assert reading(config_of("0.7.1"), history(x=[1, 2, 3])).series("sampler_k3_kl") is None


def test_the_probes_own_names_come_first() -> None:
    both = history(rollout_corr__k3_kl=[0.1, 0.2, 0.3], harness__sampler_k3_kl=[1, 2, 3])
    assert reading(config_of("0.7.1"), both).series("sampler_k3_kl").key == "harness/sampler_k3_kl"  # type: ignore[union-attr]


def test_the_updates_own_kl_is_the_samplers_only_under_bypass() -> None:
    kl = history(actor__ppo_kl=[0.1, 0.2, 0.3])
    assert reading(config_of("0.7.1"), kl).series("sampler_kl") is None
    bypass = reading(config_of("0.7.1", {f"{CORRECTION}.bypass_mode": True}), kl).series("sampler_kl")
    assert bypass is not None and bypass.key == "actor/ppo_kl" and bypass.meaning.estimator == "k1"
