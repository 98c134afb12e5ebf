"""AReaL, prime-rl, open-instruct, ROLL, rLLM, Tinker, torchforge, EasyR1 and Search-R1 as their loggers log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from llm_configurations import PRIME_ORCHESTRATOR, PRIME_TRAINER
from llm_fixtures import (
    CONFIGS,
    FRAMEWORKS,
    LAG,
    NOTHING,
    UNSEEDED,
    configured,
    prime_orchestrator,
    prime_trainer,
    trained_run,
)
from pth_tracker.design.stitch import recognise
from pth_tracker.runs import History, RunRef, SourceRun
from pth_tracker.values import MISSING, is_secret
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.detect import detect_framework
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import audit_of, findings, labels, loud, make_run, not_judged, only


def reading(config: Mapping[str, Any], metrics: Mapping[str, Any] | None = None) -> Reading:
    points = {
        key: ([1, 2, 3], value if isinstance(value, list) else [value] * 3) for key, value in (metrics or {}).items()
    }
    source = SourceRun(RunRef("p", "a"), "a", config=dict(config), metric_keys=frozenset(points))
    vocabulary = load_vocabulary()
    return Reading(vocabulary, recognise(vocabulary, [source]), History.from_points(points))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_is_recognised_by_its_configuration_and_by_its_metrics(name: str) -> None:
    own = FRAMEWORKS[name]
    metrics = own.metrics("x", 1)
    assert reading(own.config).run.framework == name
    assert reading({}, dict.fromkeys(metrics, 0.5)).run.framework == name
    assert reading(own.config, dict.fromkeys(metrics, 0.5)).run.framework == name
    flat = {key: str(value) for key, value in reading(own.config).run.config.items()}
    assert reading(flat).run.framework == name  # as MLflow holds it


@pytest.mark.parametrize(
    ("config", "metrics"),
    [
        (PRIME_TRAINER, prime_trainer("x", 1)),
        (PRIME_ORCHESTRATOR, prime_orchestrator("x", 1)),
        ({"trainer": {"loss": {"dppo_mask_low": 0.2}}, "orchestrator": {"max_off_policy_steps": 8}}, {}),
        ({"loss": {"ipo_mask_low": 0.2}}, {"mismatch_kl/all/mean": 0.1}),
    ],
)
def test_both_processes_of_prime_rl_are_recognised(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    keys = dict.fromkeys(metrics, 0.5)
    assert reading(config).run.framework == reading(config, keys).run.framework == "prime_rl"
    assert len(keys) < 2 or reading({}, keys).run.framework == "prime_rl"


@pytest.mark.parametrize(
    ("config", "metrics", "framework"),
    [
        # What the frameworks share with the ones they come from
        ({"actor_rollout_ref": {"actor": {"x": 1}, "rollout": {"n_agent": 1}}}, {}, "verl"),
        ({"data": {"rollout_batch_size": 8}}, {}, "generic"),
        ({"seed": 1, "num_substeps": 1, "lora_rank": 8}, {}, "generic"),
        ({"actor_train": {"x": 1}}, {"critic/score/mean": 1.0}, "generic"),
        ({}, {"val/sequence_lengths": 1.0, "val/ratio": 1.0}, "generic"),
        ({}, {"reward/solver/mean": 1.0, "actor/pg_clipfrac": 0.0}, "generic"),
    ],
)
def test_what_only_looks_alike_is_not_taken_for_one(
    config: dict[str, Any], metrics: dict[str, float], framework: str
) -> None:
    assert reading(config, metrics).run.framework == framework


# quantities


@pytest.mark.parametrize(
    ("name", "settings", "logged", "quantity", "key", "value", "meaning"),
    [
        ("areal", {}, {"ppo_actor/update/clip_ratio/avg": 0.1}, "clip_fraction", "ppo_actor/update/clip_ratio/avg", 0.1,
         {"clip": "active_branch"}),
        # Signs that are reversed: new - old
        ("areal", {}, {"ppo_actor/update/approx_kl/avg": -0.1}, "learner_kl", "ppo_actor/update/approx_kl/avg", 0.1,
         {"estimator": "k1"}),
        ("areal", {}, {"ppo_actor/update/behave_approx_kl/avg": -0.2}, "sampler_kl",
         "ppo_actor/update/behave_approx_kl/avg", 0.2, {"estimator": "k1"}),
        ("roll", {}, {"actor/policykl": -0.1}, "learner_kl", "actor/policykl", 0.1, {"estimator": "k1"}),
        ("roll", {}, {"actor/policykl": -0.1, "actor/approxkl": 0.3}, "learner_kl", "actor/approxkl", 0.3,
         {"estimator": "k2"}),
        # pi_old is the rollout's: the update's KL is the sampler's
        ("areal", {"actor.use_decoupled_loss": False, "actor.recompute_logprob": False},
         {"ppo_actor/update/approx_kl/avg": -0.1}, "sampler_kl", "ppo_actor/update/approx_kl/avg", 0.1, {}),
        ("areal", {}, {"ppo_actor/update/approx_kl/avg": -0.1}, "sampler_kl", "", 0.0, {}),
        ("areal", {}, {"ppo_actor/update/compute_logp/kl_div_dual/avg": 0.3}, "sampler_k3_kl",
         "ppo_actor/update/compute_logp/kl_div_dual/avg", 0.3, {"estimator": "k3"}),
        ("areal", {}, {"ppo_actor/seq_len/avg": 500.0}, "response_length_mean", "", 0.0, {}),  # with the prompt
        ("open_instruct", {}, {"objective/kl1_avg": 0.3, "loss/kl_avg": 0.3}, "learner_kl", "", 0.0, {}),  # reference
        ("open_instruct", {}, {"val/rho_weight": 0.0}, "is_weight_mean", "", 0.0, {}),  # a placeholder
        ("open_instruct", {}, {"val/rho_weight": 0.9}, "is_weight_mean", "val/rho_weight", 0.9, {"weights": "post"}),
        ("open_instruct", {}, {"val/tis_ratio": 0.9}, "is_weight_mean", "val/tis_ratio", 0.9, {"weights": "post"}),
        ("open_instruct", {}, {"val/stop_rate": 0.75}, "response_truncated_fraction", "val/stop_rate", 0.25, {}),
        ("open_instruct", {}, {"debug/vllm_vs_local_logprob_diff_mean": 0.1}, "sampler_abs_dlogp",
         "debug/vllm_vs_local_logprob_diff_mean", 0.1, {"estimator": "abs"}),
        ("open_instruct", {}, {"debug/vllm_local_reverse_kl": 0.1}, "sampler_kl", "", 0.0, {}),
        ("roll", {}, {"actor/clipfrac@sum": 0.1}, "clip_fraction", "actor/clipfrac@sum", 0.1,
         {"clip": "active_branch"}),
        ("roll", {}, {"actor/ppo_ratio_clipfrac": 0.1}, "clip_fraction", "actor/ppo_ratio_clipfrac", 0.1,
         {"clip": "outside_band"}),
        ("roll", {}, {"actor/train_infer_diff_token_mean": 0.1}, "sampler_prob_error", "", 0.0, {}),  # signed
        ("roll", {}, {"scheduler/off_policy_ratio": 1.5}, "data_age", "scheduler/off_policy_ratio", 1.5, {}),
        ("roll", {}, {"critic/entropy/mean": 0.3}, "entropy", "critic/entropy/mean", 0.3, {}),
        ("easyr1", {}, {"actor/pg_clipfrac_higher": 0.2, "actor/pg_clipfrac_lower": 0.9}, "clip_fraction",
         "actor/pg_clipfrac_higher", 0.2, {"clip": "active_branch"}),
        ("easyr1", {}, {"actor/pg_clipfrac_lower": 0.0}, "clip_fraction", "", 0.0, {}),  # the dual clip
        ("easyr1", {}, {"response_length/clip_ratio": 0.3}, "response_truncated_fraction",
         "response_length/clip_ratio", 0.3, {}),
        ("rllm", {}, {"offpolicy/kl": 0.0, "offpolicy/k3_kl": 0.0}, "sampler_k3_kl", "", 0.0, {}),  # under bypass_mode
        ("rllm", {}, {"offpolicy/k3_kl": 0.1}, "sampler_k3_kl", "offpolicy/k3_kl", 0.1, {"estimator": "k3"}),
        ("rllm", {}, {"actor/pg_clipfrac": 0.1}, "clip_fraction", "actor/pg_clipfrac", 0.1, {"clip": "active_branch"}),
        # One name, two estimators
        ("rllm", {}, {"train/kl_sample_train_v1": 0.1}, "sampler_abs_dlogp", "train/kl_sample_train_v1", 0.1,
         {"estimator": "abs"}),
        ("tinker_cookbook", {}, {"optim/kl_sample_train_v1": -0.1}, "sampler_kl", "optim/kl_sample_train_v1", -0.1,
         {"estimator": "k1"}),
        ("tinker_cookbook", {}, {"optim/kl_sample_train_v1": -0.1, "optim/kl_sample_train_v2": 0.1}, "sampler_kl",
         "optim/kl_sample_train_v2", 0.1, {"estimator": "k2"}),
        ("tinker_cookbook", {}, {"training_client/step": [5.0, 6.0, 7.0], "sampling_client/step_mean": [3.0, 4.0, 5.0]},
         "data_age", "training_client/step", 2.0, {}),
        ("tinker_cookbook", {}, {"training_client/step": 5.0}, "data_age", "", 0.0, {}),
        ("torchforge", {}, {"rl_trainer/step/avg_kl_divergence": 0.1}, "learner_kl", "", 0.0, {}),  # the reference's
        ("torchforge", {}, {"buffer/sample/avg_sampled_policy_age": 0.5}, "data_age",
         "buffer/sample/avg_sampled_policy_age", 0.5, {}),
        ("prime_rl", {}, {"mismatch_kl/mean": 0.1}, "sampler_k3_kl", "mismatch_kl/mean", 0.1, {"estimator": "k3"}),
        ("prime_rl", {}, {"mismatch_kl/mean": 0.1, "mismatch_kl/all/mean": 0.2}, "sampler_k3_kl",
         "mismatch_kl/all/mean", 0.2, {"estimator": "k3"}),
        ("prime_rl", {}, {"is_masked/mean": 0.0}, "clip_fraction", "is_masked/mean", 0.0, {"clip": "not_testable"}),
        ("prime_rl", {}, {"batch/off_policy_level/mean": 1.0}, "data_age", "batch/off_policy_level/mean", 1.0, {}),
        ("prime_rl", {}, {"train/agg/all/solver/reward/mean": 0.4}, "train_score_mean",
         "train/agg/all/solver/reward/mean", 0.4, {}),
    ],
)  # fmt: skip
def test_a_quantity_means_what_the_framework_logs(
    name: str, settings: dict[str, Any], logged: dict[str, Any], quantity: str, key: str, value: float, meaning: Any
) -> None:
    found = reading(configured(CONFIGS[name], settings), logged).series(quantity)
    if not key:
        assert found is None
        return
    assert found is not None and found.key == key
    assert found.values.tolist() == pytest.approx([value] * 3)
    assert {field: getattr(found.meaning, field) for field in meaning} == meaning


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_fixture_gives_the_quantities_that_checks_need(name: str) -> None:
    own = FRAMEWORKS[name]
    held = reading(own.config, {key: [0.5, 0.4, 0.6] for key in own.metrics("x", 1)})
    wanted = {"lr", "train_score_mean", *({"clip_fraction", "grad_norm", "loss"} if own.clip else ())}
    assert {quantity for quantity in wanted if held.series(quantity) is None} == set()
    assert held.raw_keys("eval_score")[0] == own.score
    assert all(held.series(quantity) is not None for quantity in held.framework.witness)


# roles


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("areal", {}, {"ratio_is_one": False, "updates_per_batch": 4, "pi_old": "learner", "staleness": 2,
                       "correction": "behaviour weights, mask above 5.0", "group_size": 4, "group_advantage": True,
                       "asynchronous": True, "normaliser": "token-mean", "batch_size": 256, "reward_penalty": "none"}),
        ("areal", {"actor.ppo_n_minibatches": 1}, {"ratio_is_one": True}),
        ("areal", {"actor.prox_logp_method": "reuse_train_logp"}, {"ratio_is_one": True}),
        ("areal", {"actor.ppo_n_minibatches": 1, "actor.prox_logp_method": "loglinear"}, {"ratio_is_one": False}),
        ("areal", {"actor.rejection_sampling": None}, {"correction": "none"}),  # since 1.0.4
        ("areal", {"actor.use_decoupled_loss": False}, {"correction": "none", "pi_old": "learner"}),
        ("areal", {"actor.use_decoupled_loss": False, "actor.recompute_logprob": False, "actor.ppo_n_minibatches": 1},
         {"pi_old": "sampler", "ratio_is_one": False}),
        ("areal", {"actor.use_sapo_loss": True}, {"clip_not_testable": "sapo"}),
        ("areal", {"rollout.max_head_offpolicyness": 0}, {"staleness": 0, "asynchronous": False}),
        ("open_instruct", {}, {"ratio_is_one": False, "updates_per_batch": 4, "staleness": 4, "group_size": 8,
                               "correction": "rho clamped and masked against vLLM", "filtered_batches": True,
                               "normaliser": "token-mean", "clip_not_testable": False}),
        ("open_instruct", {"num_mini_batches": 1}, {"ratio_is_one": True}),
        ("open_instruct", {"num_mini_batches": 1, "num_epochs": 2}, {"ratio_is_one": False, "updates_per_batch": 2}),
        ("open_instruct", {"num_mini_batches": 1, "use_vllm_logprobs": True},
         {"ratio_is_one": False, "pi_old": "sampler"}),
        ("open_instruct", {"use_rho_correction": None, "truncated_importance_sampling_ratio_cap": 2.0},
         {"correction": "weights against vLLM truncated at 2.0"}),
        ("open_instruct", {"use_rho_correction": False}, {"correction": "none"}),
        ("open_instruct", {"loss_fn": "GRPOLossType.cispo"}, {"clip_not_testable": "cispo"}),
        ("open_instruct", {"loss_denominator": 4096.0}, {"normaliser": "token sum over 4096.0"}),
        ("open_instruct", {"loss_denominator": None, "masked_mean_axis": 1}, {"normaliser": "seq-mean-token-mean"}),
        # 64 * 8 responses over 4 ranks of 1 * 32
        ("roll", {}, {"updates_per_batch": 4, "ratio_is_one": False, "correction": "token weights up to 1.2",
                      "staleness": 1, "asynchronous": True, "group_size": 8, "normaliser": "seq-mean-token-mean",
                      "filtered_batches": False, "clip_not_testable": False, "rollout_replay": MISSING}),
        ("roll", {"actor_train.device_mapping": "list(range(0,16))"}, {"updates_per_batch": 1, "ratio_is_one": True}),
        ("roll", {"actor_train.device_mapping": None}, {"updates_per_batch": MISSING, "ratio_is_one": MISSING}),
        ("roll", {"actor_train.strategy_args.strategy_config.tensor_model_parallel_size": 2}, {"updates_per_batch": 8}),
        ("roll", {"enable_old_logprobs_recompute": False}, {"updates_per_batch": 1, "ratio_is_one": True}),
        ("roll", {"enable_old_logprobs_recompute": False, "ppo_epochs": 2},
         {"updates_per_batch": 2, "ratio_is_one": False}),
        # Detached at each of four steps
        ("roll", {"force_disable_old_logprobs_recompute": True}, {"updates_per_batch": 4, "ratio_is_one": True}),
        ("roll", {"train_infer_correction.is_weight.enabled": False}, {"correction": "none"}),
        ("roll", {"train_infer_correction.is_weight.enabled": False,
                  "train_infer_correction.filters": [{"enabled": True, "agg_type": "sequence"}]},
         {"correction": "sequence filter"}),
        ("roll", {"use_policy_loss_type": "PG"}, {"clip_not_testable": "PG"}),
        ("roll", {"actor_train.worker_cls": "roll.pipeline.rlvr.actor_pg_worker.ActorPGWorker",
                  "actor_train.pg_variant": "topr"}, {"clip_not_testable": "topr"}),
        ("roll", {"rewards.math.query_filter_config.type": "std_filter"}, {"filtered_batches": True}),
        ("roll", {"rollout_mock": {"enable": True, "mode": "mock"}}, {"rollout_replay": "rollout_mock.enable"}),
        ("roll", {"add_token_level_kl": True, "init_kl_coef": 0.1},
         {"reward_penalty": "0.1 times the KL to the reference"}),
        ("easyr1", {}, {"updates_per_batch": 4, "ratio_is_one": False, "correction": "none", "staleness": 0,
                        "group_size": 5, "group_advantage": True, "normaliser": "token-mean"}),
        ("easyr1", {"worker.actor.global_batch_size": 512}, {"ratio_is_one": True}),
        ("easyr1", {"worker.actor.global_batch_size": 512, "worker.actor.ppo_epochs": 2}, {"updates_per_batch": 2}),
        ("easyr1", {"worker.actor.loss_type": "sapo"}, {"clip_not_testable": "sapo"}),
        ("easyr1", {"algorithm.adv_estimator": "gae"}, {"group_advantage": False}),
        ("easyr1", {"algorithm.use_kl_loss": False}, {"reward_penalty": "0.01 times the KL to the reference"}),
        # 512 prompts five times over mini-batches of 256; ppo_epochs is not read
        ("search_r1", {}, {"updates_per_batch": 10, "ratio_is_one": False, "group_size": 5, "staleness": 0,
                           "normaliser": "token-mean within each micro-batch of 64 responses"}),
        ("search_r1", {"actor_rollout_ref.actor.ppo_epochs": 2, "data.train_batch_size": 256,
                       "actor_rollout_ref.rollout.n_agent": 1}, {"updates_per_batch": 1, "ratio_is_one": True}),
        # use_rollout_log_probs, which verl's own actor takes for pi_old, is not what decides
        ("rllm", {}, {"updates_per_batch": 4, "ratio_is_one": False, "pi_old": "learner", "correction": "none",
                      "staleness": 0, "asynchronous": False, "group_size": 8, "group_advantage": True}),
        ("rllm", {"actor_rollout_ref.actor.ppo_mini_batch_size": 48}, {"updates_per_batch": 1, "ratio_is_one": True}),
        ("rllm", {"rllm.algorithm.rollout_correction.bypass_mode": True}, {"pi_old": "sampler"}),
        ("rllm", {"rllm.algorithm.rollout_correction.bypass_mode": None, "rllm.backend": "tinker"},
         {"pi_old": "sampler"}),
        ("rllm", {"rllm.algorithm.rollout_correction.tis_mode": "token"}, {"correction": "token weights up to 2.0"}),
        ("rllm", {"actor_rollout_ref.actor.tis_imp_ratio_cap": 2.0}, {"correction": "tis_imp_ratio_cap=2.0"}),
        ("rllm", {"actor_rollout_ref.actor.tis_imp_ratio_cap": -1}, {"correction": "none"}),
        ("rllm", {"rllm.async_training.enable": True, "rllm.async_training.staleness_threshold": 0.5,
                  "rllm.async_training.trigger_parameter_sync_step": 4}, {"staleness": 6, "asynchronous": True}),
        ("tinker_cookbook", {}, {"pi_old": "sampler", "ratio_is_one": False, "staleness": 0, "asynchronous": False,
                                 "correction": "importance_sampling against the sampler", "group_size": 4}),
        ("tinker_cookbook", {"async_config": {"max_steps_off_policy": 3}}, {"staleness": 3, "asynchronous": True}),
        ("torchforge", {}, {"ratio_is_one": True, "correction": "none", "staleness": 1, "group_size": 8,
                            "normaliser": "seq-mean-token-mean"}),
        ("prime_rl", {}, {"pi_old": "sampler", "ratio_is_one": False, "staleness": 8, "group_size": 16,
                          "batch_size": 8}),
    ],
)  # fmt: skip
def test_roles_by_the_frameworks_own_rules(name: str, settings: dict[str, Any], expected: dict[str, Any]) -> None:
    own = reading(configured(CONFIGS[name], settings))
    assert {role: own.role(role) for role in expected} == expected


@pytest.mark.parametrize("name", ["areal", "open_instruct", "roll", "easyr1", "rllm", "tinker_cookbook", "search_r1"])
def test_metrics_alone_tell_no_role_that_stands_on_a_setting(name: str) -> None:
    own = reading({}, dict.fromkeys(FRAMEWORKS[name].metrics("x", 1), 0.5))
    told = {"ratio_is_one", "correction", "staleness", "pi_old", "updates_per_batch"} & set(own.roles)
    assert told == set() and own.seed.order is None
    forge = reading({}, dict.fromkeys(FRAMEWORKS["torchforge"].metrics("x", 1), 0.5))  # which its loss fixes
    assert forge.role("ratio_is_one") is True and forge.role("staleness") is MISSING


@pytest.mark.parametrize(
    ("name", "settings", "order", "acts", "uncontrolled"),
    [
        ("areal", {"seed": 7}, "the sampler's default order", False, False),
        ("areal", {"train_dataset.shuffle": False}, "the file's order", False, False),
        ("open_instruct", {"seed": 7, "data_loader_seed": 9}, "7", True, False),
        ("roll", {"seed": 7}, "7", True, False),
        ("easyr1", {"data.seed": 7}, "7", True, False),
        ("easyr1", {"data.shuffle": False}, "the file's order", False, False),
        ("search_r1", {"data.seed": 7}, None, False, True),
        ("search_r1", {"data.shuffle_train_dataloader": False}, "the file's order", False, False),
        ("rllm", {"rllm.data.seed": 7, "data.seed": 9}, "7", True, False),
        ("tinker_cookbook", {"dataset_builder.seed": 7}, "7", True, False),
        ("torchforge", {"seed": 7}, None, False, True),
        ("prime_rl", {"buffer.seed": 7, "seed": 9}, "7", True, False),
        ("prime_rl", {"buffer.seed": None, "seed": 9}, None, False, True),
        # Later releases: samplers of a curriculum, one for each environment
        ("prime_rl", {"buffer": 0, "train": {"source": [{"name": "math"}]}}, "the tasks' own order", False, False),
        ("prime_rl", {"buffer": 0, "train": {"source": [
            {"curriculum": {"sampler": {"type": "difficulty_pool", "seed": 7}}}]}}, "7", True, False),
    ],
)  # fmt: skip
def test_what_orders_the_data(
    name: str, settings: dict[str, Any], order: str | None, acts: bool, uncontrolled: bool
) -> None:
    seed = reading(configured(CONFIGS[name], settings)).seed
    assert (seed.order, seed.acts, seed.uncontrolled) == (order, acts, uncontrolled)
    assert acts or seed.why


@pytest.mark.parametrize(
    ("name", "aside", "kept", "secret"),
    [
        ("areal", ("trial_name", "stats_logger.wandb.mode", "version_info.commit_id"), ("actor.eps_clip",),
         "stats_logger.wandb.wandb_api_key"),
        ("open_instruct", ("run_name", "wandb_project", "hf_entity"), ("clip_higher", "beta"), ""),
        ("roll", ("exp_name", "output_dir", "actor_train.device_mapping"), ("pg_clip", "ppo_epochs"),
         "tracker_kwargs.api_key"),
        ("easyr1", ("trainer.experiment_name", "trainer.logger"), ("worker.actor.optim.lr",), ""),
        ("search_r1", ("trainer.experiment_name",), ("actor_rollout_ref.actor.clip_ratio", "max_turns"), ""),
        ("rllm", ("rllm.trainer.experiment_name", "data.seed"), ("rllm.algorithm.eps_clip",), ""),
        ("tinker_cookbook", ("log_path",), ("loss_fn", "learning_rate"), ""),
        ("torchforge", ("metric_logging.wandb.project",), ("off_by_n",), ""),
        # The orchestrator's seed is read nowhere
        ("prime_rl", ("wandb.name", "output_dir", "seed"), ("rollouts_per_example", "sampling.temperature"), ""),
    ],
)  # fmt: skip
def test_a_configuration_is_reduced_to_what_matters(
    name: str, aside: tuple[str, ...], kept: tuple[str, ...], secret: str
) -> None:
    own = reading(CONFIGS[name])
    assert all(own.is_bookkeeping(key) for key in (*aside, *([secret] if secret else ())))
    assert not any(own.is_bookkeeping(key) or own.is_soft(key) or own.is_derived(key) for key in kept)
    assert not secret or is_secret(secret, own.framework.secrets)


# audits


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_clean_comparison_stays_clean(name: str) -> None:
    key, *values = FRAMEWORKS[name].treatment
    word = "launch" if name in UNSEEDED else "seed"
    runs = [
        trained_run(name, f"{arm}-{word}{seed}", seed, {key: value}, number=3 * place + seed)
        for place, (arm, value) in enumerate(zip(("base", "other"), values))
        for seed in (1, 2, 3)
    ]
    report = audit_of(runs)
    assert {entry.framework for entry in report.runs.values()} == {name}
    assert len(report.design.arms) == 2 and report.design.metric == FRAMEWORKS[name].score
    # One order for all of them: what rules want said of AReaL, and of nobody else
    assert {rule for _, rule, _ in loud(report)} == ({"one-data-order"} if name == "areal" else set())


@pytest.mark.parametrize("name", [name for name, own in FRAMEWORKS.items() if own.idle])
def test_an_idle_clip_is_found_where_nothing_corrects_and_nowhere_else(name: str) -> None:
    own = FRAMEWORKS[name]
    report = audit_of([trained_run(name, "x", 1, own.idle, own.idle_metrics)])
    assert str(only(report, "idle-clip").level) == "fail"
    acting = audit_of([trained_run(name, "x", 1, own.idle, {**own.idle_metrics, own.clip: 0.01})])
    assert findings(acting, "idle-clip") == []
    if own.corrected:
        corrected = audit_of([trained_run(name, "x", 1, {**own.idle, **own.corrected}, own.idle_metrics)])
        assert findings(corrected, "idle-clip") == []


def test_a_clip_that_no_lag_keeps_idle_is_ordinary() -> None:
    for name, settings in (("areal", {"rollout.max_head_offpolicyness": 0}), ("roll", {"async_generation_ratio": 0})):
        own = FRAMEWORKS[name]
        run = trained_run(name, "x", 1, {**own.idle, **settings}, {own.clip: 0.0})
        assert [one.rule for one in audit_of([run]).findings] == ["ratio-one-by-construction"]


@pytest.mark.parametrize("name", UNSEEDED)
def test_a_seed_that_cannot_order_the_data_is_a_lost_seed(name: str) -> None:
    key = {"areal": "seed", "search_r1": "data.seed"}.get(name)
    runs = [trained_run(name, f"grpo-seed{seed}", seed, {key: seed} if key else {}, number=seed) for seed in (1, 2, 3)]
    lost = findings(audit_of(runs), "lost-seed")
    assert [str(one.level) for one in lost] == ["fail"]


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if name not in UNSEEDED])
def test_a_seed_that_one_arm_lost_is_found(name: str) -> None:
    key, *values = FRAMEWORKS[name].treatment
    runs = [
        trained_run(name, f"{arm}-seed{seed}", seed if arm == "base" else 42, {key: value}, number=3 * place + seed)
        for place, (arm, value) in enumerate(zip(("base", "other"), values))
        for seed in (1, 2, 3)
    ]
    report = audit_of(runs)
    assert labels(report, only(report, "lost-seed").blames) == ["other-seed1", "other-seed2", "other-seed3"]


def test_torchforges_clip_is_never_judged_and_its_ratio_is_said_to_be_one() -> None:
    report = audit_of([trained_run("torchforge", "x", 1)])
    assert [one.rule for one in report.findings] == ["ratio-one-by-construction"]
    assert any("has no clip" in entry.remedy for entry in not_judged(report, "idle-clip"))


def test_a_mismatch_under_a_declared_lag_is_no_finding() -> None:
    metrics = {**NOTHING, **prime_trainer("x", 1), "mismatch_kl/mean": LAG, "is_masked/mean": 0.0}
    report = audit_of([make_run("x", config={**PRIME_TRAINER}, metrics=metrics)])
    assert loud(report) == [] and not_judged(report, "idle-clip")


@pytest.mark.parametrize("key", ["max_off_policy_steps", "max_async_level", "trainer.max_async_level"])
def test_a_trainer_of_ones_own_is_not_taken_for_prime_rl_by_one_name(key: str) -> None:
    own = load_vocabulary()
    assert detect_framework(own, {key: 4, "lr": 1e-6, "seed": 1}, ["loss", "clip_fraction"]) == "generic"
    assert detect_framework(own, {key: 4, "model.name": "Qwen/Qwen3-4B"}, None) == "prime_rl"
