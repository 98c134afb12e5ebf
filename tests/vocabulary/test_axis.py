"""Runs in trackers that count rows, where the trainer counts steps: they are read by the trainer's own count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pth_tracker.runs import History
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import FakeRun, Values, audit_of, findings, make_run

UPDATES = 40
CLEANRL: dict[str, Any] = {
    "exp_name": "ppo", "torch_deterministic": True, "wandb_project_name": "cleanRL", "env_id": "CartPole-v1",
    "num_envs": 4, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True, "clip_coef": 0.2,
}  # fmt: skip


def test_a_history_against_another_count() -> None:
    own = History.from_points(
        {
            "count": ([0, 1, 3, 4], [0, 1, 1, 2]),
            "loss": ([1, 4], [0.5, float("nan")]),
            "reward": ([2, 3], [7, 8]),  # row 2 has no count of its own: it belongs to row 1's
        },
        {"loss": 3},
    )
    moved = own.on_axis("count")
    assert moved.step.tolist() == [0, 1, 2]
    assert [one.tolist() for one in moved.series("reward")] == [[1], [8]]
    steps, values = moved.series("loss")
    assert steps.tolist() == [1, 2] and values[0] == 0.5 and np.isnan(values[1])
    assert moved.nonfinite_at["loss"].tolist() == [2] and moved.decimals == {"loss": 3}
    assert moved.conflicts == 1  # the rewards of one step


def test_rows_before_the_first_count_belong_to_it() -> None:
    moved = History.from_points({"count": ([5, 6], [10, 20]), "loss": ([1, 6], [1, 2])}).on_axis("count")
    assert [one.tolist() for one in moved.series("loss")] == [[10, 20], [1, 2]]


@pytest.mark.parametrize(
    "counts",
    [
        [0.5, 1.0],
        [float("nan"), float("nan")],
        [float("inf"), float("nan")],
        [1, 1e300],
        [-(2.0**63), 1],
        [2.0**53, 2.0**54],
    ],
)
def test_what_counts_nothing_is_no_axis(counts: list[float]) -> None:
    own = History.from_points({"count": ([0, 1], counts), "loss": ([0, 1], [1, 2])})
    assert own.on_axis("count") is own and own.on_axis("absent") is own


def test_a_count_that_most_rows_lack_is_no_axis() -> None:
    own = History.from_points({"count": ([9], [512]), "loss": (range(10), [1 / (1 + row) for row in range(10)])})
    assert own.on_axis("count") is own
    half = History.from_points({"count": ([0, 2], [5, 6]), "loss": (range(4), [4, 3, 2, 1])})
    assert half.on_axis("count").step.tolist() == [5, 6]


def rows_of(label: str, seed: int, norm_adv: bool, episodes: int, counted: bool = True) -> FakeRun:
    """A run of CleanRL's PPO in W&B: each finished episode is a row, so that rows say nothing of the training."""
    generator = np.random.default_rng(seed + 10 * norm_adv)
    points: dict[str, dict[int, float]] = {}
    row = 0
    for update in range(1, UPDATES + 1):
        for _ in range(episodes):
            points.setdefault("charts/episodic_return", {})[row] = 20 + 4 * update + generator.normal(0, 3)
            points.setdefault("global_step", {})[row] = 512 * update - 100
            row += 1
        values = {
            "charts/learning_rate": 1e-3 * (1 - (update - 1) / UPDATES),
            "losses/clipfrac": generator.uniform(0.05, 0.2),
            "losses/policy_loss": generator.normal(0, 0.01),
            "losses/approx_kl": generator.uniform(0.005, 0.02),
            "global_step": 512.0 * update,
        }
        for key, value in values.items():
            points.setdefault(key, {})[row] = value
        row += 1
    if not counted:
        del points["global_step"]
    nothing: dict[str, Values | None] = dict.fromkeys(make_run("x").points)
    config = {**CLEANRL, "norm_adv": norm_adv, "seed": seed}
    return make_run(label, config=config, metrics={**nothing, **points}, number=seed + 10 * norm_adv)


def project(counted: bool) -> list[FakeRun]:
    """Two arms of one schedule, of which the second one ends thrice as many episodes."""
    return [
        rows_of(f"{arm}-seed{seed}", seed, norm_adv, episodes, counted)
        for arm, norm_adv, episodes in (("base", True, 1), ("other", False, 3))
        for seed in (1, 2)
    ]


def test_rows_of_episodes_are_no_other_schedule() -> None:
    report = audit_of(project(counted=True))
    assert findings(report, "schedule-differs") == [] and findings(report, "unequal-budget") == []
    assert {run.last_update for run in report.runs.values()} == {512 * UPDATES}
    assert all(run.counted for run in report.runs.values())
    # Without the count, the rows are all there is, and the arms' schedules look different.
    assert findings(audit_of(project(counted=False)), "schedule-differs")


def test_the_count_is_asked_for_and_is_no_score() -> None:
    from synthetic import MemoryTracker

    tracker = MemoryTracker(project(counted=True))
    report = audit_of(tracker)
    assert all("global_step" in (keys or ()) for keys in tracker.wanted.values())
    assert report.design.metric == "charts/episodic_return"


@pytest.mark.parametrize(
    ("framework", "axis"),
    [
        ("cleanrl", "global_step"), ("stable_baselines3", "global_step"), ("skrl", "global_step"),
        ("sample_factory", "global_step"), ("trl_grpo", "train/global_step"), ("trl_rloo", "train/global_step"),
        ("unsloth_grpo", "train/global_step"), ("ms_swift_grpo", "train/global_step"),
        ("openrlhf", "train/global_step"), ("open_instruct", "training_step"), ("prime_rl", "step"),
        # Its global_step counts frames, epochs or seconds, as the writer of each metric likes.
        ("rl_games", None),
        ("verl", None),
    ],
)  # fmt: skip
def test_the_frameworks_whose_rows_are_counted_apart(framework: str, axis: str | None) -> None:
    assert load_vocabulary().frameworks[framework].axis == ((axis,) if axis else ())
