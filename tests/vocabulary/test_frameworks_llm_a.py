"""TRL's other trainers, what wraps TRL, OpenRLHF, NeMo-RL, SkyRL and slime: recognised, read and judged."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from llm_runs_a import CASES, CHECK_1, GRPO, OPENRLHF, OPENRLHF_FLAT, UPDATES, Case, printed
from pth_tracker.design.stitch import recognise
from pth_tracker.model import Audit
from pth_tracker.render.json_v1 import to_json
from pth_tracker.runs import History, RunRef, SourceRun
from pth_tracker.values import MISSING, is_secret
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.detect import GENERIC, detect_framework
from pth_tracker.vocabulary.lens import EffectiveSeed
from pth_tracker.vocabulary.load import Vocabulary, load_vocabulary
from synthetic import FakeRun, Values, audit_of, findings, loud, make_run, not_judged, sawtooth


def logged(case: Case, name: str, **other: Values | None) -> dict[str, Values | None]:
    """What a run of this name logs: noise of its own within each metric's range."""
    found: dict[str, Values | None] = {}
    for key, (low, high) in case.metrics.items():
        rng = np.random.default_rng(zlib.crc32(f"{key}{name}".encode()))
        found[key] = low if low == high else list(rng.uniform(low, high, UPDATES))
    return {**found, **other}


def reading(config: Mapping[str, Any], metrics: Mapping[str, Values | None] | None = None) -> Reading:
    own = load_vocabulary()
    points: dict[str, Any] = {}
    for key, values in (metrics or {}).items():
        points[key] = (range(1, 4), list(values)[:3] if isinstance(values, list) else [values] * 3)
    history = History.from_points(points)
    source = SourceRun(RunRef("p", "r"), "r", config=config, metric_keys=frozenset(points))
    return Reading(own, recognise(own, [source]), history)


@pytest.mark.parametrize("name", CASES)
def test_recognised_by_configuration_and_by_metrics_and_by_no_other(name: str) -> None:
    case, own = CASES[name], load_vocabulary()
    config = reading(case.settings()).run.config
    assert detect_framework(own, config, None) == name
    assert detect_framework(own, config, case.metrics) == name
    assert detect_framework(own, {}, case.metrics) == ("trl_grpo" if name in ("trl_rloo", "axolotl_grpo") else name)
    raw = {key.removeprefix("train/") for key in case.metrics}
    if name not in ("openrlhf", "nemo_rl", "slime"):  # these write one form everywhere
        assert detect_framework(own, config, raw) == name
    rest = {other: framework for other, framework in own.frameworks.items() if other != name}
    without = detect_framework(Vocabulary(own.quantities, own.roles, rest, ""), config, case.metrics)
    assert without in (GENERIC, "trl_grpo")  # under what wraps it, it is TRL


@pytest.mark.parametrize(
    ("trl", "correction", "one"),
    [
        ({"use_vllm": True, "async_prefetch": True}, "token_truncate against vLLM", False),
        ({"use_vllm": True, "vllm_importance_sampling_correction": False}, "none", True),
        ({"use_vllm": False}, "none", True),
    ],
)
def test_axolotls_yaml_is_read_with_the_defaults_of_its_trainer(
    trl: dict[str, Any], correction: str, one: bool
) -> None:
    settings = {"num_generations": 8, "num_iterations": 1, **trl}
    read = reading({"micro_batch_size": 4, "gradient_accumulation_steps": 8, "trl": settings})
    assert read.run.framework == "axolotl_grpo"
    assert (read.role("correction"), read.role("ratio_is_one")) == (correction, one)


def test_unsloths_rloo_is_rloo() -> None:
    assert reading(CASES["trl_rloo"].settings(unsloth_num_chunks=-1)).run.framework == "trl_rloo"


@pytest.mark.parametrize("name", CASES)
def test_quantities_and_no_others(name: str) -> None:
    case = CASES[name]
    own = reading(case.settings(), logged(case, "x"))
    held = {quantity: found.key for quantity in own.vocabulary.quantities if (found := own.series(quantity))}
    assert case.quantities.items() <= held.items()
    assert {quantity: held[quantity] for quantity in CHECK_1 if quantity in held} == {
        quantity: key for quantity, key in case.quantities.items() if quantity in CHECK_1
    }


@pytest.mark.parametrize("name", CASES)
def test_roles_from_typed_values_and_from_text(name: str) -> None:
    case = CASES[name]
    own = reading(case.settings())
    assert {role: own.role(role) for role in case.roles} == case.roles
    flat = {key.replace(".", "/"): str(value) for key, value in own.run.config.items()}
    text = reading(flat)
    assert text.run.framework == name and {role: text.role(role) for role in case.roles} == case.roles
    for key in own.run.config:
        assert own.is_bookkeeping(key) is (key in case.aside), key
    secrets = {key for key in own.run.config if is_secret(key, own.framework.secrets)}
    assert secrets == {"logger.wandb.key", "wandb_key", "hub_token"} & set(own.run.config)


@pytest.mark.parametrize("name", CASES)
def test_metrics_alone_tell_no_setting(name: str) -> None:
    own = reading({}, logged(CASES[name], "x"))
    assert set(own.roles) <= {"shuffled"} and own.seed.order is None


@pytest.mark.parametrize(
    ("name", "settings", "roles"),
    [
        ("trl_rloo", {"steps_per_generation": 8}, {"ratio_is_one": False, "updates_per_batch": 2}),
        ("trl_rloo", {"num_iterations": 2}, {"ratio_is_one": False}),
        ("trl_rloo", {"beta": 0.0}, {"reward_penalty": "none"}),
        ("trl_ppo", {"num_ppo_epochs": 4}, {"ratio_is_one": False, "updates_per_batch": 4}),
        ("trl_ppo_legacy", {"trl_ppo_trainer_config.ppo_epochs": 4}, {"ratio_is_one": False, "updates_per_batch": 4}),
        ("trl_ppo", {"num_mini_batches": 2}, {"ratio_is_one": False, "updates_per_batch": 2}),
        ("unsloth_grpo", {"use_vllm": False}, {"ratio_is_one": True, "correction": "none"}),
        ("unsloth_grpo", {"vllm_importance_sampling_correction": True}, {"correction": "token_truncate against vLLM"}),
        ("unsloth_grpo", {"num_iterations": 2}, {"ratio_is_one": False}),
        ("ms_swift_grpo", {"sequence_parallel_size": 8}, {"ratio_is_one": False}),
        ("ms_swift_grpo", {"loss_type": "real"}, {"clip_not_testable": "real"}),
        (
            "ms_swift_grpo",
            {"rollout_importance_sampling_mode": "token_mask"},
            {"correction": "token_mask against the rollout"},
        ),
        ("ms_swift_grpo", {"async_generate": True, "dynamic_sample": True}, {"staleness": 1, "filtered_batches": True}),
        (
            "ms_swift_grpo",
            {"kl_in_reward": True, "beta": 0.04},
            {"reward_penalty": "KL to the reference, coefficient 0.04"},
        ),
        ("axolotl_grpo", {"vllm_importance_sampling_correction": False}, {"ratio_is_one": True, "correction": "none"}),
        ("axolotl_grpo", {"context_parallel_size": 2, "steps_per_generation": 8}, {"ratio_is_one": True}),
        ("axolotl_grpo", {"steps_per_generation": 8}, {"ratio_is_one": False}),
        ("axolotl_grpo", {"replay_buffer_size": 16}, {"filtered_batches": True}),
        ("axolotl_grpo", {"async_prefetch": False, "vllm_sync_interval": 1}, {"staleness": 0}),
        (
            "axolotl_grpo",
            {"async_prefetch": False, "vllm_sync_interval": 5},
            {"staleness": 0},
        ),  # read by async_prefetch
        ("axolotl_grpo", {"prefetch_depth": 3, "vllm_sync_interval": 5}, {"staleness": 7}),
        ("openrlhf", {"train.max_epochs": 2}, {"ratio_is_one": False, "updates_per_batch": 2}),
        ("openrlhf", {"train.batch_size": 64}, {"ratio_is_one": False, "updates_per_batch": 2}),
        ("openrlhf", {"train.async_enable": True, "train.async_queue_size": 3}, {"staleness": 3, "asynchronous": True}),
        (
            "openrlhf",
            {"algo.advantage.is_correction_enable": True},
            {"correction": "tis against vLLM", "pi_old": "learner"},
        ),
        (
            "openrlhf",
            {"algo.advantage.is_correction_enable": True, "actor.policy_loss_type": "gspo"},
            {"pi_old": "sampler", "ratio_is_one": False, "normaliser": "seq-mean-token-mean"},
        ),
        ("openrlhf", {"algo.advantage.estimator": "gae"}, {"group_advantage": False}),
        ("openrlhf", {"algo.kl.use_loss": True}, {"reward_penalty": "none"}),
        ("nemo_rl", {"policy.train_global_batch_size": 128}, {"ratio_is_one": False, "updates_per_batch": 4}),
        (
            "nemo_rl",
            {"policy.train_global_batch_size": 128, "loss_fn.force_on_policy_ratio": True},
            {"ratio_is_one": True},
        ),
        ("nemo_rl", {"loss_fn.disable_ppo_ratio": True}, {"clip_not_testable": "policy gradient without a ratio"}),
        (
            "nemo_rl",
            {"grpo.async_grpo.enabled": True, "loss_fn.use_importance_sampling_correction": True},
            {"staleness": 1, "asynchronous": True, "correction": "importance weight"},
        ),
        (
            "nemo_rl",
            {"loss_fn.use_importance_sampling_correction": True, "loss_fn.truncated_importance_sampling_type": "tis"}
            | {"loss_fn.truncated_importance_sampling_ratio": 2.0},
            {"correction": "tis up to 2.0"},
        ),
        ("nemo_rl", {"loss_fn.token_level_loss": False}, {"normaliser": "seq-mean-token-mean"}),
        ("skyrl", {"trainer.policy_mini_batch_size": 16}, {"ratio_is_one": False, "updates_per_batch": 4}),
        ("skyrl", {"trainer.update_epochs_per_batch": 2}, {"ratio_is_one": False, "updates_per_batch": 2}),
        ("skyrl", {"trainer.algorithm.policy_loss_type": "sapo"}, {"clip_not_testable": "sapo"}),
        ("skyrl", {"trainer.algorithm.policy_loss_type": "dppo"}, {"pi_old": "sampler", "ratio_is_one": False}),
        (
            "skyrl",
            {"trainer.algorithm.policy_loss_type": "cispo", "trainer.algorithm.cispo.cispo_anchor": "rollout"},
            {"pi_old": "sampler"},
        ),
        (
            "skyrl",
            {"trainer.fully_async.enabled": True},
            {"staleness": 4, "asynchronous": True, "updates_per_batch": 1},
        ),
        (
            "skyrl",
            {"trainer.algorithm.off_policy_correction.token_mask_is_threshold_high": 2.0},
            {"correction": "none"},  # the mask acts with both bounds alone
        ),
        (
            "skyrl",
            {
                "trainer.algorithm.off_policy_correction.token_mask_is_threshold_high": 2.0,
                "trainer.algorithm.off_policy_correction.token_mask_is_threshold_low": 0.5,
            },
            {"correction": "token_mask_is_threshold"},
        ),
        (
            "skyrl",
            {"trainer.algorithm.off_policy_correction.outlier_token_is_threshold_high": 100.0},
            {"correction": "outlier_token_is_threshold"},
        ),
        (
            "skyrl",
            {"trainer.algorithm.off_policy_correction.tis_ratio_type": "token"},
            {"correction": "tis_ratio_type=token"},
        ),
        ("skyrl", {"trainer.algorithm.use_tis": True}, {"correction": "use_tis"}),
        ("slime", {"num_steps_per_rollout": 2}, {"ratio_is_one": False, "updates_per_batch": 2}),
        ("slime", {"global_batch_size": 64}, {"ratio_is_one": False, "updates_per_batch": 4}),
        ("slime", {"use_rollout_logprobs": True}, {"pi_old": "sampler", "ratio_is_one": False}),
        ("slime", {"keep_old_actor": True}, {"pi_old": "sampler", "ratio_is_one": False}),
        ("slime", {"use_tis": True}, {"correction": "tis up to 2.0"}),
        ("slime", {"use_rs": True}, {"correction": "none"}),
        ("slime", {"use_rs": True, "get_mismatch_metrics": True}, {"correction": "rejection by the custom function"}),
        ("slime", {"update_weights_interval": 3}, {"staleness": 3}),
        ("slime", {"advantage_estimator": "cispo"}, {"clip_not_testable": "cispo"}),
        ("slime", {"calculate_per_token_loss": True}, {"normaliser": "token-mean"}),
    ],
)
def test_settings_that_change_a_role(name: str, settings: dict[str, Any], roles: dict[str, Any]) -> None:
    own = reading(CASES[name].settings(**settings))
    assert own.run.framework == name and {role: own.role(role) for role in roles} == roles


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("trl_rloo", {"data_seed": 9}, EffectiveSeed("42", True, 42, "seed")),
        ("trl_ppo", {}, EffectiveSeed("42", True, 42, "seed")),
        (
            "trl_async_grpo",
            {},
            EffectiveSeed(
                "the data set's own order", False, 42, "seed", "the rollout worker reads the data set in its own order"
            ),
        ),
        ("ms_swift_grpo", {}, EffectiveSeed("42", True, 42, "seed")),
        ("ms_swift_grpo", {"seed": 7}, EffectiveSeed("7", True, 7, "seed")),
        ("ms_swift_grpo", {"data_seed": 7}, EffectiveSeed("7", True, 7, "data_seed")),
        ("ms_swift_grpo", {"seed": 7, "data_seed": 7}, EffectiveSeed("7", True, 7, "seed")),
        ("ms_swift_grpo", {"seed": 7, "data_seed": 8}, EffectiveSeed("7 after data_seed 8", True, 7, "seed")),
        ("nemo_rl", {"grpo.seed": 3}, EffectiveSeed("3", True, 3, "grpo.seed")),
        (
            "nemo_rl",
            {"data.shuffle": False},
            EffectiveSeed("the file's order", False, 42, "grpo.seed", "data.shuffle is False"),
        ),
        ("skyrl", {"trainer.seed": 3}, EffectiveSeed("3", True, 3, "trainer.seed")),
        ("slime", {}, EffectiveSeed("42", True, 42, "rollout_seed")),
        (
            "slime",
            {"rollout_shuffle": False},
            EffectiveSeed("the file's order", False, 42, "rollout_seed", "rollout_shuffle is off"),
        ),
    ],
)
def test_what_orders_the_prompts(name: str, settings: dict[str, Any], expected: EffectiveSeed) -> None:
    assert reading(CASES[name].settings(**settings)).seed == expected


def test_openrlhfs_prompts_are_ordered_by_nothing() -> None:
    own = reading(CASES["openrlhf"].settings())
    assert own.seed.uncontrolled and own.seed.order is None and own.is_seed("train.seed")


def test_openrlhf_before_its_arguments_were_dotted() -> None:
    own = reading(OPENRLHF_FLAT)
    assert own.run.framework == "openrlhf" and own.is_seed("seed") and is_secret("use_wandb", own.framework.secrets)
    expected = {"ratio_is_one": True, "correction": "tis against vLLM", "group_advantage": True, "batch_size": 16}
    assert {role: own.role(role) for role in expected} == expected


def test_openrlhf_whose_arguments_cannot_be_read_is_recognised_and_shows_no_key() -> None:
    broken = {key: printed(value)[:-1] for key, value in OPENRLHF.items()}
    own = reading(broken)
    assert own.run.framework == "openrlhf" and own.role("ratio_is_one") is MISSING
    report = audit_of([make_run("x", config=broken), make_run("y", config=broken)])
    assert "0123456789abcdef" not in to_json(report)


# audits


def runs_of(
    name: str, settings: Mapping[str, Any], metrics: Mapping[str, Values | None] | None = None, arm: str = "a"
) -> list[FakeRun]:
    """Two runs of one arm, named after their seeds."""
    case, nothing = CASES[name], dict.fromkeys(make_run("x").points)
    return [
        make_run(
            f"{arm}-seed{seed}",
            config=case.settings(**{case.seed_key: seed, **settings}),
            metrics={**nothing, **logged(case, f"a{seed}", **(metrics or {}))},
            number=seed,
            updates=UPDATES,
        )
        for seed in (1, 2)
    ]


def rules_of(report: Audit) -> set[str]:
    return {one.rule for one in report.findings if one.level != "info"}


@pytest.mark.parametrize("name", CASES)
def test_a_clean_comparison_stays_clean(name: str) -> None:
    case, nothing, runs = CASES[name], dict.fromkeys(make_run("x").points), []
    key, value = case.treatment
    for number, (arm, changed) in enumerate((("base", {}), ("other", {key: value}))):
        for seed in (1, 2, 3):
            config = case.settings(**{case.seed_key: seed, **changed})
            metrics = {**nothing, **logged(case, f"{arm}{seed}")}
            runs.append(
                make_run(f"{arm}-seed{seed}", config=config, metrics=metrics, number=4 * number + seed, updates=UPDATES)
            )
    report = audit_of(runs)
    assert {entry.framework for entry in report.runs.values()} == {name}
    assert set(report.design.arms) == {"base", "other"}
    assert {rule for _, rule, _ in map(tuple, loud(report))} == case.clean, loud(report)


LAG = sawtooth(16, 2.0, UPDATES)
IDLE = {
    name: {case.quantities["clip_fraction"]: 0.0} for name, case in CASES.items() if "clip_fraction" in case.quantities
}
ROLLOUT_LAG = {"policy/rollout_train_logprobs_abs_diff_mean": LAG}
TRAIN_LAG = {"train/train_rollout_logprob_abs_diff": LAG}
SWIFT_LAG = {"train/rollout_correction/k3_kl": LAG}
PROBE = {"train/harness/sampler_k3_kl": LAG}


@pytest.mark.parametrize(
    ("name", "settings", "metrics", "found", "absent"),
    [
        ("trl_rloo", {}, {**IDLE["trl_rloo"], **PROBE}, "idle-clip", ""),
        ("trl_rloo", {}, PROBE, "", "idle-clip"),
        ("trl_ppo", {}, {**IDLE["trl_ppo"], **PROBE}, "idle-clip", ""),
        ("trl_ppo_legacy", {}, {**IDLE["trl_ppo_legacy"], "harness/sampler_k3_kl": LAG}, "idle-clip", ""),
        # Here kl is the sampler's, and the ratio is against it; in GRPOTrainer's runs it is the reference's.
        (
            "trl_async_grpo",
            {"max_staleness": 1, "weight_sync_steps": 1},
            {**IDLE["trl_async_grpo"], "train/kl": list(np.geomspace(1e-3, 9, 40))},
            "sampler-diverged",
            "idle-clip",
        ),
        ("trl_rloo", {}, {**IDLE["trl_rloo"], "train/kl": LAG}, "", "idle-clip sampler-mismatch sampler-diverged"),
        ("unsloth_grpo", {}, {"train/clip_ratio/region_mean": 0.0005, **PROBE}, "idle-clip", ""),
        ("unsloth_grpo", {"num_iterations": 2}, {"train/clip_ratio/region_mean": 0.0005, **PROBE}, "", "idle-clip"),
        ("unsloth_grpo", {}, {**IDLE["unsloth_grpo"], "train/kl": LAG}, "", "idle-clip sampler-mismatch"),
        ("ms_swift_grpo", {}, {**IDLE["ms_swift_grpo"], **SWIFT_LAG}, "idle-clip", ""),
        (
            "ms_swift_grpo",
            {"rollout_importance_sampling_mode": "token_truncate"},
            {**IDLE["ms_swift_grpo"], **SWIFT_LAG},
            "",
            "idle-clip",
        ),
        ("axolotl_grpo", {"vllm_importance_sampling_correction": False}, IDLE["axolotl_grpo"], "idle-clip", ""),
        ("axolotl_grpo", {}, IDLE["axolotl_grpo"], "", "idle-clip"),
        ("openrlhf", {"train.async_enable": True}, IDLE["openrlhf"], "idle-clip", ""),
        (
            "openrlhf",
            {},
            {**IDLE["openrlhf"], "train/kl": LAG, "train/logprobs_diff": LAG},
            "",
            "idle-clip sampler-mismatch",
        ),
        (
            "openrlhf",
            {"algo.advantage.is_correction_enable": True},
            {**IDLE["openrlhf"], "train/vllm_kl": LAG},
            "",
            "idle-clip",
        ),
        ("nemo_rl", {}, {"train/gen_kl_error": 0.2}, "sampler-mismatch", "idle-clip"),
        ("nemo_rl", {}, {"train/gen_kl_error": LAG, "train/harness/clip_fraction": 0.0}, "idle-clip", ""),
        ("skyrl", {}, {**IDLE["skyrl"], **ROLLOUT_LAG}, "idle-clip", ""),
        ("skyrl", {"trainer.algorithm.policy_loss_type": "sapo"}, {**IDLE["skyrl"], **ROLLOUT_LAG}, "", "idle-clip"),
        (
            "skyrl",
            {"trainer.algorithm.off_policy_correction.tis_ratio_type": "token"},
            {**IDLE["skyrl"], **ROLLOUT_LAG},
            "",
            "idle-clip",
        ),
        ("slime", {}, {**IDLE["slime"], **TRAIN_LAG}, "idle-clip", ""),
        ("slime", {"use_tis": True}, {**IDLE["slime"], **TRAIN_LAG}, "", "idle-clip"),
        ("slime", {"advantage_estimator": "cispo"}, {**IDLE["slime"], **TRAIN_LAG}, "", "idle-clip"),
        ("slime", {"use_rollout_logprobs": True}, {**IDLE["slime"], **TRAIN_LAG}, "", "idle-clip"),
    ],
)
def test_a_clip_that_never_acts_is_found_where_it_must_and_only_there(
    name: str, settings: dict[str, Any], metrics: dict[str, Values | None], found: str, absent: str
) -> None:
    report = audit_of(runs_of(name, settings, metrics))
    assert {entry.framework for entry in report.runs.values()} == {name}
    assert set(found.split()) <= rules_of(report), report.findings
    assert not set(absent.split()) & rules_of(report), report.findings


def test_what_trl_calls_kl_is_the_references() -> None:
    case = Case(GRPO, "seed", CASES["trl_rloo"].metrics, {}, {}, ("epsilon", 0.3))
    nothing = dict.fromkeys(make_run("x").points)
    own = {**nothing, **logged(case, "x"), "train/kl": LAG, "train/clip_ratio/region_mean": 0.0}
    report = audit_of([make_run("x-seed1", config={**GRPO, "seed": 1}, metrics=own, updates=UPDATES)])
    assert {entry.framework for entry in report.runs.values()} == {"trl_grpo"}
    assert not rules_of(report) & {"idle-clip", "sampler-mismatch", "sampler-diverged"}


def test_a_mixed_project_is_split_by_framework() -> None:
    report = audit_of([run for name in ("trl_rloo", "openrlhf", "slime") for run in runs_of(name, {}, arm=name)])
    assert (
        sorted(entry.framework for entry in report.runs.values()) == ["openrlhf"] * 2 + ["slime"] * 2 + ["trl_rloo"] * 2
    )


def test_each_gap_is_answered_with_an_option_of_the_framework() -> None:
    own = load_vocabulary()
    for name in CASES:
        for quantity in ("clip_fraction", "sampler_k3_kl", "eval_score", "batch_id", "data_seed"):
            general = own.quantities[quantity].remedy if quantity in own.quantities else own.roles[quantity].remedy
            assert own.remedy(name, quantity) != general, (name, quantity)
    report = audit_of(runs_of("nemo_rl", {}))
    assert any("probs_ratio_min" in one.remedy for one in not_judged(report, "idle-clip"))
    assert not findings(report, "idle-clip")
