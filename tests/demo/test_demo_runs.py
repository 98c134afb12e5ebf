"""What the demo's runs must show, as launched and with the harness mended; the training is real, so bounds are wide."""

import hashlib
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pth_tracker.demo import ACCURACY, MemorySink, resolve, run_demo, train
from pth_tracker.demo.launch import GRPO, PPO_CLIP, REPLAY, REPLAY_DELAY, TIS, Arm, overrides_of
from pth_tracker.demo.metrics import DATA_AGE
from pth_tracker.demo.policy import Rollouts
from pth_tracker.demo.settings import leaves
from pth_tracker.errors import UsageError

DemoRuns = dict[str, tuple[dict[str, Any], dict[int, dict[str, float]]]]
Floats = npt.NDArray[np.float64]

BROKEN = [f"{arm}-seed{seed}" for arm in ("grpo", "tis", "ppo-clip", "replay") for seed in (43, 44, 45)]
MENDED = [f"{arm}-seed{seed}" for arm in ("ppo-clip", "tis", "replay") for seed in (43, 44, 45)]
WITNESS = ("prompt_length/mean", "prompt_length/max", "prompt_length/min")


def series(history: dict[int, dict[str, float]], key: str) -> Floats:
    return np.array([metrics[key] for _, metrics in sorted(history.items()) if key in metrics])


def window_medians(values: Floats) -> Floats:
    return np.array([np.median(values[i : i + 5]) for i in range(len(values) - 4)])


def witness(history: dict[int, dict[str, float]]) -> list[list[float]]:
    return [series(history, key).tolist() for key in WITNESS]


@pytest.fixture(params=["as launched", "repaired"])
def either(request: pytest.FixtureRequest) -> DemoRuns:
    runs: DemoRuns = request.getfixturevalue("demo_runs" if request.param == "as launched" else "repaired_demo_runs")
    return runs


def test_the_runs_are_named_after_arm_and_data_seed(demo_runs: DemoRuns, repaired_demo_runs: DemoRuns) -> None:
    assert list(demo_runs) == BROKEN
    assert list(repaired_demo_runs) == MENDED


def test_every_update_is_logged_and_step_0_holds_the_loss_test_and_the_evaluation(either: DemoRuns) -> None:
    for _, history in either.values():
        assert sorted(history) == list(range(97))
        assert {key.split("/")[0] for key in history[0]} == {"val-core", "val-aux", "harness"}
        assert all(key.startswith("harness/loss_check") for key in history[0] if key.startswith("harness"))
        assert not any(key.startswith("harness") for update in range(1, 97) for key in history[update])
        assert [step for step in sorted(history) if ACCURACY in history[step]] == list(range(0, 97, 6))
        assert {metrics["training/global_step"] for metrics in list(history.values())[1:]} == set(range(1, 97))
        assert {metrics["training/epoch"] for metrics in list(history.values())[1:]} == {0, 1, 2}
        assert all(math.isfinite(value) for metrics in history.values() for value in metrics.values())


def test_every_run_starts_alike_learns_and_does_not_converge_early(either: DemoRuns) -> None:
    starts = set()
    for _, history in either.values():
        accuracy = series(history, ACCURACY)
        starts.add(accuracy[0])
        assert accuracy[-1] - accuracy[0] > 0.15
        assert accuracy[-1] < 0.97
        # No collapse: what was gained is still there at the end.
        assert accuracy[-1] > accuracy.max() - 0.25 * (accuracy.max() - accuracy[0])
    assert len(starts) == 1
    assert 0.1 < starts.pop() < 0.6


def test_arms_differ_in_nothing_but_what_they_are_about(demo_runs: DemoRuns, repaired_demo_runs: DemoRuns) -> None:
    def differing(runs: DemoRuns, left: str, right: str) -> set[str]:
        one, two = dict(leaves(runs[left][0])), dict(leaves(runs[right][0]))
        return {key for key in one | two if key not in one or key not in two or one[key] != two[key]}

    correction, bookkeeping = "algorithm.rollout_correction", {"trainer.experiment_name"}
    apart = bookkeeping | {"actor_rollout_ref.rollout.seed"}
    assert differing(demo_runs, "grpo-seed43", "tis-seed43") == apart | {f"{correction}.rollout_is", "data.seed"}
    assert differing(demo_runs, "grpo-seed43", "grpo-seed44") == apart | {"data.seed"}
    assert differing(demo_runs, "tis-seed43", "tis-seed44") == apart
    assert differing(repaired_demo_runs, "tis-seed43", "tis-seed44") == apart | {"data.seed"}
    anchor = {f"{correction}.bypass_mode", "actor_rollout_ref.actor.use_rollout_log_probs"}
    assert differing(repaired_demo_runs, "ppo-clip-seed43", "tis-seed43") == apart | anchor | {
        f"{correction}.rollout_is"
    }
    assert differing(demo_runs, "grpo-seed43", "ppo-clip-seed43") == apart | anchor
    for runs in (demo_runs, repaired_demo_runs):
        assert differing(runs, "ppo-clip-seed43", "replay-seed43") == apart | {"trainer.replay_delay"}


def test_the_sampler_really_lags_and_without_a_queue_its_lag_returns_to_nothing(either: DemoRuns) -> None:
    for config, history in either.values():
        assert config["trainer"]["sync_interval"] == 16
        lag = series(history, "rollout_corr/k3_kl")
        queued = "replay_delay" in config["trainer"]
        fresh = [update for update in range(1, 97) if (update == 1 if queued else (update - 1) % 16 == 0)]
        assert [history[update]["rollout_corr/k3_kl"] for update in fresh] == [0.0] * len(fresh)
        assert all(history[update]["rollout_corr/k3_kl"] > 0 for update in range(1, 97) if update not in fresh)
        medians = window_medians(lag)
        assert medians.max() > (2 if queued else 5) * medians.min()
        # A saw-tooth, not a divergence: the floor of the last quarter is not far above that of the first.
        quarter = len(medians) // 4
        first, last = medians[:quarter].min(), medians[-quarter:].min()
        assert last < 0.01 or last < 10 * max(first, 1e-4)
        assert lag.max() < 5


@pytest.mark.parametrize("seed", [43, 44, 45])
def test_idle_clip_the_clip_never_acts_though_the_sampler_lags(demo_runs: DemoRuns, seed: int) -> None:
    config, history = demo_runs[f"grpo-seed{seed}"]
    assert config["algorithm"]["rollout_correction"]["rollout_is"] is None
    assert series(history, "actor/lr").min() > 0
    assert series(history, "actor/pg_clipfrac").tolist() == [0.0] * 96
    assert series(history, "actor/ppo_kl").tolist() == [0.0] * 96
    assert (series(history, "rollout_corr/k3_kl") > 0.05).mean() > 0.1


def test_lost_seed_three_labels_one_data_order_different_scores(demo_runs: DemoRuns) -> None:
    tis = [demo_runs[f"tis-seed{seed}"] for seed in (43, 44, 45)]
    assert [config["data"]["seed"] for config, _ in tis] == [None, None, None]
    assert witness(tis[0][1]) == witness(tis[1][1]) == witness(tis[2][1])
    scores = [series(history, "critic/score/mean").tolist() for _, history in tis]
    assert scores[0] != scores[1] != scores[2] != scores[0]
    grpo = [demo_runs[f"grpo-seed{seed}"] for seed in (43, 44, 45)]
    assert [config["data"]["seed"] for config, _ in grpo] == [43, 44, 45]
    orders = [witness(history) for _, history in [*grpo, tis[0]]]
    assert all(orders[i] != orders[j] for i in range(4) for j in range(i))


@pytest.mark.parametrize("seed", [43, 44, 45])
def test_stuck_batch_one_batch_trains_17_updates_at_its_designed_age(demo_runs: DemoRuns, seed: int) -> None:
    _, history = demo_runs[f"replay-seed{seed}"]
    assert series(history, DATA_AGE).tolist() == [min(update, REPLAY_DELAY) for update in range(96)]
    keys = [
        f"{what}/{how}"
        for what in ("prompt_length", "response_length", "critic/score")
        for how in ("mean", "max", "min")
    ]
    seen = [tuple(history[update][key] for key in keys) for update in range(1, 97)]
    assert len(set(seen[: REPLAY_DELAY + 1])) == 1
    assert len(set(seen)) == 96 - REPLAY_DELAY
    # It really trains on them: the policy moves on, and with it the gradient.
    assert len(set(series(history, "actor/grad_norm"))) == 96
    # Once it has filled, the queue serves the order of the seed, from the second batch on.
    order = np.array(witness(demo_runs[f"ppo-clip-seed{seed}"][1]))
    assert np.array(witness(history))[:, REPLAY_DELAY:].tolist() == order[:, : 96 - REPLAY_DELAY].tolist()


def test_repaired_the_queue_serves_every_batch_once_at_the_same_age(repaired_demo_runs: DemoRuns) -> None:
    for seed in (43, 44, 45):
        history = repaired_demo_runs[f"replay-seed{seed}"][1]
        assert series(history, DATA_AGE).tolist() == [min(update, REPLAY_DELAY) for update in range(96)]
        assert series(history, "rollout_corr/k3_kl")[1:].min() > 0
    assert all(DATA_AGE not in repaired_demo_runs[name][1][1] for name in MENDED if "replay" not in name)


def test_rogue_normaliser_one_arm_fails_its_loss_test_alone(demo_runs: DemoRuns, repaired_demo_runs: DemoRuns) -> None:
    for runs in (demo_runs, repaired_demo_runs):
        for name, (config, history) in runs.items():
            rogue = runs is demo_runs and name.startswith("ppo-clip")
            assert config["actor_rollout_ref"]["actor"]["loss_agg_mode"] == "token-mean"
            assert history[0]["harness/loss_check"] == float(not rogue)
            assert history[0]["harness/loss_check_kind"] == (2.0 if rogue else 0.0)
    for seed in (43, 44, 45):
        launched, mended = (runs[f"ppo-clip-seed{seed}"][1] for runs in (demo_runs, repaired_demo_runs))
        assert launched[1]["actor/grad_norm"] != mended[1]["actor/grad_norm"]


def test_repaired_every_seed_is_an_order_of_its_own_that_the_arms_share(repaired_demo_runs: DemoRuns) -> None:
    orders = {name: witness(history) for name, (_, history) in repaired_demo_runs.items()}
    arms = ("ppo-clip", "tis", "replay")
    for seed in (43, 44, 45):
        assert orders[f"ppo-clip-seed{seed}"] == orders[f"tis-seed{seed}"] == orders[f"replay-seed{seed}"]
        assert {repaired_demo_runs[f"{arm}-seed{seed}"][0]["data"]["seed"] for arm in arms} == {seed}
    assert orders["tis-seed43"] != orders["tis-seed44"] != orders["tis-seed45"] != orders["tis-seed43"]


def test_repaired_the_clip_acts_while_the_sampler_lags(repaired_demo_runs: DemoRuns) -> None:
    for seed in (43, 44, 45):
        _, history = repaired_demo_runs[f"ppo-clip-seed{seed}"]
        clipped, lag = series(history, "actor/pg_clipfrac"), series(history, "rollout_corr/k3_kl")
        assert clipped[lag == 0].tolist() == [0.0] * 6
        assert (clipped[lag > 0.001] > 0).mean() > 0.9
        # pi_old is the sampler's, so PPO's own estimate is the k1 estimate of the same divergence.
        assert series(history, "actor/ppo_kl") == pytest.approx(series(history, "rollout_corr/kl"), abs=1e-12)


def test_bypass_mode_logs_what_verl_logs_there(repaired_demo_runs: DemoRuns) -> None:
    bypass = set(repaired_demo_runs["ppo-clip-seed43"][1][6])
    decoupled = set(repaired_demo_runs["tis-seed43"][1][6])
    assert {key for key in decoupled - bypass if "rollout_is_" not in key} == {
        "actor/entropy",
        "training/rollout_actor_probs_pearson_corr",
        *(f"training/rollout_probs_diff_{what}" for what in ("valid", "max", "mean", "std")),
    }
    assert bypass < decoupled
    assert "rollout_corr/rollout_is_eff_sample_size" in decoupled


def test_prompts_and_responses_vary_in_length_and_no_cap_binds(either: DemoRuns) -> None:
    for _, history in either.values():
        assert len(set(series(history, "prompt_length/mean"))) > 30
        assert len(set(series(history, "response_length/mean"))) > 60
        assert series(history, "response_length/clip_ratio").max() < 0.01
        assert series(history, "prompt_length/clip_ratio").max() == 0


def test_the_same_configuration_gives_the_same_numbers_in_another_process(demo_runs: DemoRuns) -> None:
    config, history = demo_runs["tis-seed44"]
    program = (
        "import hashlib, json, sys; from pth_tracker.demo import MemorySink, train; s = MemorySink();"
        "train(json.load(sys.stdin), s); print(hashlib.sha256(json.dumps(s.history).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(config), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == hashlib.sha256(json.dumps(history).encode()).hexdigest()


def test_bypass_mode_alone_changes_nothing_in_verl_0_7_1_s_only_step() -> None:
    short = {"trainer.total_training_steps": 3, "data.train_max_samples": 128}
    clipped = {}
    for own in (False, True):
        sink = MemorySink()
        extra = {"+actor_rollout_ref.actor.use_rollout_log_probs": True} if own else {}
        train(resolve(short | {"algorithm.rollout_correction.bypass_mode": True} | extra), sink)
        clipped[own] = series(sink.history, "actor/pg_clipfrac").max()
    assert clipped[False] == 0.0
    assert clipped[True] > 0.0


def test_only_the_arm_with_a_correction_loses_its_seed() -> None:
    arms = (GRPO, TIS, PPO_CLIP, REPLAY)
    lost = {arm.name: overrides_of(arm, 44, 1001, repaired=False)["data.seed"] for arm in arms}
    assert lost == {"grpo": 44, "tis": None, "ppo-clip": 44, "replay": 44}
    kept = {arm.name: overrides_of(arm, 44, 1001, repaired=True)["data.seed"] for arm in arms}
    assert set(kept.values()) == {44}


def test_arms_seeds_and_budget_can_be_chosen_and_progress_is_told() -> None:
    told: list[str] = []
    sinks: list[MemorySink] = []

    def make_sink() -> MemorySink:
        sinks.append(MemorySink())
        return sinks[-1]

    slow = Arm("slow", overrides={"actor_rollout_ref.actor.optim.lr": 0.001})
    names = run_demo(make_sink, arms=[slow], seeds=[7, 8], updates=2, progress=told.append)
    assert names == ["slow-seed7", "slow-seed8"] == [sink.name for sink in sinks]
    assert [line.split(":")[0] for line in told] == names
    assert all("2 updates" in line for line in told)
    assert all(sink.finished and max(sink.history) == 2 for sink in sinks)


def test_a_wrong_setting_is_refused_before_anything_is_trained() -> None:
    sinks: list[MemorySink] = []

    def make_sink() -> MemorySink:
        sinks.append(MemorySink())
        return sinks[-1]

    wrong = Arm("wrong", overrides={"trainer.sync_interval": 0})
    with pytest.raises(UsageError, match="sync_interval"):
        run_demo(make_sink, arms=[GRPO, wrong])
    assert not sinks


def test_a_run_that_breaks_off_is_closed_as_failed() -> None:
    class Full(MemorySink):
        failed = False

        def log(self, step: int, metrics: Any) -> None:
            if step == 2:
                raise OSError("disk full")

        def finish(self, *, failed: bool = False) -> None:
            self.failed = failed

    sink = Full()
    with pytest.raises(OSError, match="disk full"):
        train(resolve({"trainer.total_training_steps": 3}), sink)
    assert sink.failed


def test_a_batch_source_chooses_what_is_trained_on() -> None:
    def stuck(stream: Any, delay: int) -> Any:
        first: Rollouts = next(stream)
        while True:
            yield first

    sink = MemorySink()
    train(resolve({"trainer.total_training_steps": 4}), sink, source=stuck)
    assert len({tuple(row) for row in zip(*witness(sink.history), strict=True)}) == 1
    assert len(set(series(sink.history, "critic/score/mean"))) == 1
    assert len(set(series(sink.history, "actor/grad_norm"))) == 4
