"""Design files written from the inference: they read back, and an audit with them finds what one without them found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pth_tracker.design.load import parse_design
from pth_tracker.design.write import LEFT_OUT, scalar
from pth_tracker.model import Audit
from pth_tracker.runs import RunState
from synthetic import (
    ABSENT,
    ACTOR,
    ARMS,
    CORRECTION,
    ONE_STEP,
    SCORE,
    FakeRun,
    Values,
    audit_of,
    change,
    comparison,
    cut,
    idle,
    make_run,
    with_config,
    with_metrics,
    without_config,
)
from written_designs import inferred, lost, written

NOTHING = dict.fromkeys(make_run("x").points)


def check_round_trip(runs: Sequence[FakeRun]) -> tuple[Audit, Audit]:
    text, design = written(runs)
    bare, declared = audit_of(runs), audit_of(runs, design)
    assert lost(bare, declared) == [], text
    assert {arm: set(keys) for arm, keys in bare.design.arms.items()} == {
        arm: set(keys) for arm, keys in declared.design.arms.items()
    }
    for part in ("baseline", "metric", "higher_is_better", "at", "task", "stress", "replicate"):
        assert getattr(bare.design, part) == getattr(declared.design, part), part
    assert {key: run.score for key, run in bare.runs.items()} == {key: run.score for key, run in declared.runs.items()}
    return bare, declared


def small(name: str, config: Mapping[str, Any], metrics: Mapping[str, Values], number: int, **facts: Any) -> FakeRun:
    return make_run(name, config=config, metrics={**NOTHING, **metrics}, number=number, **facts)


def of_framework(config: Mapping[str, Any], metrics: Sequence[str], key: str, values: Sequence[Any]) -> list[FakeRun]:
    """Two arms over three seeds that lose their seed in the second one."""
    runs: list[FakeRun] = []
    for arm, value in zip(("base", "other"), values):
        for seed in (1, 2, 3):
            own = {**config, key: value, "seed": seed if arm == "base" else 7}
            series: dict[str, Values] = {
                one: [0.1 + (step * (seed + 3) % 17) / 100 + len(arm) / 50 for step in range(60)] for one in metrics
            }
            runs.append(small(f"{arm}-seed{seed}", own, series, len(runs)))
    return runs


TRL = {"num_generations": 8, "num_iterations": 1, "gradient_accumulation_steps": 4, "steps_per_generation": 4,
       "scale_rewards": "group", "epsilon": 0.2, "beta": 0.0, "per_device_train_batch_size": 8,
       "max_completion_length": 256, "loss_type": "dapo", "use_vllm": False}  # fmt: skip
SB3 = {"algo": "PPO", "policy_class": "ActorCriticPolicy", "env_id": "CartPole-v1", "n_steps": 128, "n_envs": 4,
       "batch_size": 512, "n_epochs": 1, "gamma": 0.99, "clip_range": 0.2}  # fmt: skip
CLEANRL = {"exp_name": "ppo", "torch_deterministic": True, "wandb_project_name": "cleanRL", "env_id": "CartPole-v1",
           "num_envs": 4, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4, "norm_adv": True,
           "clip_coef": 0.2}  # fmt: skip
HUGE = {f"group.option{place}": place for place in range(8)}

PROJECTS: dict[str, list[FakeRun]] = {
    "clean": comparison(),
    "idle clip": with_metrics(comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}), "grpo-*", idle()),
    "lost seed": with_config(comparison(), "tis-*", {"data.seed": None}),
    "seed absent": with_config(comparison(), "tis-*", {"data.seed": ABSENT}),
    "shuffling off": with_config(comparison(), "tis-*", {"data.shuffle": False}),
    "drift": with_config(comparison(), "tis-seed43", {f"{ACTOR}.optim.lr": 5e-6}),
    "attempts": [*comparison(), make_run("tis-seed43", ARMS["tis"], 43, number=99)],
    "other seeds": [*comparison({"a": {}}, (1, 2, 3)), *comparison({"b": {f"{ACTOR}.clip_ratio": 0.1}}, (4, 5, 6))],
    "stale": [
        make_run(f"{arm}-every{n}-seed{seed}", {**own, "trainer.sync_interval": n}, seed, number=10 * n + seed)
        for arm, own in (("grpo", ONE_STEP), ("tis", ARMS["tis"]))
        for n in (1, 32)
        for seed in (1, 2)
    ],
    "half stale": [
        make_run(f"{arm}-{n}-seed{seed}", {**own, **ONE_STEP, "async_training.staleness_threshold": n}, seed,
                 metrics=idle() if arm == "grpo" else {}, number=seed)
        for arm, own in (("grpo", {}), ("tis", ARMS["tis"]))
        for n in (0.5, 0.75)
        for seed in (1, 2)
    ],
    "no comparison": [make_run(f"try{n}", {key: n for key in HUGE}, n, number=n) for n in range(4)],
    "single runs": [make_run(f"lr{lr}", {f"{ACTOR}.optim.lr": lr}, 1, number=n) for n, lr in enumerate((1e-6, 2e-6))],
    "one run": [make_run("alone")],
    "no configuration": without_config(comparison()),
    "one name": change(comparison(), "*", name="run"),
    "no names": change(comparison(), "*", name=""),
    "groups": [
        *change(comparison({"x": {}}), "*", group="control"),
        *change(comparison({"y": {f"{ACTOR}.clip_ratio": 0.1}}), "*", group="narrow"),
    ],
    "tasks": [
        make_run(f"{arm}-{task}-seed{seed}", {**own, "data.train_files": task}, seed, number=seed)
        for arm, own in ARMS.items() for task in ("gsm8k.parquet", "math.parquet") for seed in (1, 2)
    ],
    "a resumed run": [
        *comparison({"a": {}, "b": {f"{ACTOR}.clip_ratio": 0.1}}, (1, 2)),
        cut(make_run("a-seed3", {}, 3, number=50), 30, state=RunState.CRASHED),
        cut(make_run("a-seed3", {}, 3, number=60, run_id="later"), 60, 31),
    ],
    "a restarted run": [
        *comparison({"a": {}, "b": {f"{ACTOR}.clip_ratio": 0.1}}, (1, 2)),
        cut(make_run("a-seed3", {}, 3, number=50, run_id="first"), 30, state=RunState.CRASHED),
        make_run("a-seed3", {}, 3, number=60, run_id="second"),
    ],
    "generic": [
        small(f"{arm}_{seed}", {"lr": lr, "seed": seed}, {"reward": [seed / 9 + n / 99 for n in range(40)]}, seed)
        for arm, lr in (("slow", 1e-4), ("fast", 1e-3)) for seed in (1, 2, 3)
    ],
    "trl": of_framework(
        TRL, ["train/reward", "train/loss", "train/grad_norm", "train/completions/mean_length"], "scale_rewards",
        ("group", "none"),
    ),
    "sb3": of_framework(
        SB3, ["train/clip_fraction", "train/approx_kl", "rollout/ep_rew_mean"], "clip_range", (0.2, 0.3)
    ),
    "cleanrl": of_framework(
        CLEANRL, ["losses/clipfrac", "losses/policy_loss", "charts/episodic_return"], "norm_adv", (True, False)
    ),
}  # fmt: skip


@pytest.mark.parametrize("project", PROJECTS)
def test_an_audit_with_the_written_file_finds_what_one_without_it_found(project: str) -> None:
    check_round_trip(PROJECTS[project])


def test_the_demo_is_found_again_at_declared_level(demo_runs: Mapping[str, tuple[dict[str, Any], Any]]) -> None:
    runs = []
    for number, (name, (config, history)) in enumerate(demo_runs.items()):
        points: dict[str, Mapping[int, float]] = {}
        for step, metrics in history.items():
            for key, value in metrics.items():
                points.setdefault(key, {})[step] = value  # type: ignore[index]
        runs.append(make_run(name, config=config, metrics={**NOTHING, **points}, number=number))
    bare, declared = check_round_trip(runs)
    assert {one.tag for one in bare.by_level("fail")} <= {one.tag for one in declared.by_level("fail")}
    assert "arms" in bare.design.inferred and "arms" not in declared.design.inferred


def test_declared_arms_raise_what_rested_on_guessed_ones() -> None:
    runs = with_config(comparison(), "tis-seed43", {f"{ACTOR}.optim.lr": 5e-6})
    runs = [run for run in runs if run.name != "tis-seed43"] + [
        make_run("tis-seed99", ARMS["tis"], 44, number=77, metrics={SCORE: {step: 0.5 for step in range(0, 61, 5)}})
    ]
    bare, declared = check_round_trip(runs)
    assert declared.design.source == "design.yaml" and "arms" in bare.design.inferred


# what the file says


def test_arms_are_selected_by_the_shortest_thing_that_selects_just_them() -> None:
    def selectors(runs: Sequence[FakeRun]) -> dict[str, Any]:
        data: dict[str, Any] = yaml.safe_load(written(runs)[0])["arms"]
        return data

    assert selectors(comparison())["tis"] == {"name": "tis-seed*"}
    assert selectors(PROJECTS["groups"]) == {"x": {"name": "x-seed*"}, "y": {"name": "y-seed*"}}
    grouped = change(change(PROJECTS["groups"], "x-*", name="one"), "y-*", name="one")
    assert selectors(grouped) == {"control": {"group": "control"}, "narrow": {"group": "narrow"}}
    same = selectors(change(comparison({"a": {}, "b": {f"{CORRECTION}.rollout_is": "token"}}), "*", name="run"))
    assert {"config": {f"{CORRECTION}.rollout_is": "token"}} in same.values()
    numbered = [
        replace(run, source=replace(run.source, name=f"run{place}"))
        for place, run in enumerate(comparison({"a": {}, "b": ONE_STEP}, (1, 2)))
    ]
    assert {"config": {f"{ACTOR}.ppo_mini_batch_size": 64}} in selectors(numbered).values()
    single = selectors(PROJECTS["single runs"])
    assert sorted(one["name"] for one in single.values()) == ["lr1e-06", "lr2e-06"]
    assert selectors([make_run("grpo-seed43"), make_run("b", ONE_STEP)])["grpo"] == {"name": "grpo-seed*"}


def test_a_setting_that_alone_sets_arms_apart_is_meant_to_vary() -> None:
    text, design = written(comparison())
    assert design.vary == (f"{ACTOR}.clip_ratio_high", f"{CORRECTION}.rollout_is") and design.baseline == "clip-higher"
    assert "From ppo every other arm differs in one setting alone." in " ".join(text.replace("#", "").split())
    text, design = written(comparison({"a": {}, "b": {f"{ACTOR}.clip_ratio": 0.1, f"{ACTOR}.optim.lr": 5e-6}}))
    assert design.vary == ()
    assert f"# vary: [{ACTOR}.clip_ratio, {ACTOR}.optim.lr]" in text
    assert f"# b differs from a in {ACTOR}.clip_ratio," in text


def test_only_a_seed_that_takes_effect_is_declared_to_pair_the_runs() -> None:
    assert written(comparison())[1].replicate == ("data.seed",)
    text, design = written(PROJECTS["lost seed"])
    assert design.replicate == () and "# replicate: [data.seed]" in text
    text, design = written(PROJECTS["no configuration"])
    assert design.replicate == () and "the seed in the runs' names" in text


def test_a_stress_key_is_declared_where_it_means_the_same_lag() -> None:
    design = written(PROJECTS["stale"])[1]
    assert design.stress is not None and design.stress.key == "trainer.sync_interval"
    design = written(PROJECTS["half stale"])[1]  # a threshold of 0.5 is a lag of 1 update, as the vocabulary knows
    assert design.stress is not None and design.stress.key == "async_training.staleness_threshold"


def test_where_no_comparison_is_recognised_arms_are_left_open() -> None:
    text, design = written(PROJECTS["no comparison"])
    assert design.arms == {} and "no comparison recognised" in text and "# arms:" in text


def test_other_possibilities_stand_beside_what_was_chosen() -> None:
    runs = change(comparison(), "*-seed41", group="first")
    runs = [run if run.source.group else replace(run, source=replace(run.source, group="rest")) for run in runs]
    runs = with_metrics(runs, "*", {"val-core/math/acc/mean@1": {0: 0.1, 60: 0.3}})
    text = " ".join(written(runs)[0].replace("#", "").split())
    assert "By group they would be: first (3 runs), rest (12 runs)." in text
    assert "It could also be val-core/" in text and "it could also be ppo, tis" in text


def test_what_is_left_out_can_be_uncommented() -> None:
    text, _ = written(comparison())
    assert LEFT_OUT in text
    options = re.sub(r"(?m)^# ?", "", LEFT_OUT.split("#\n", 1)[1])
    options = options.replace("OURS", "tis").replace("BASELINE", "ppo")
    design = parse_design(text.replace(LEFT_OUT, options), Path("design.yaml"))
    assert design.pairing == "required" and design.tie_margin and design.claims and design.ignore and design.age
    audit_of(comparison(), design)


def test_secrets_stay_out_of_the_file() -> None:
    runs = [
        make_run(f"run{n}", {"api_key": f"hunter{n}", f"{ACTOR}.clip_ratio": 0.1 * (1 + n % 2)}, n, number=n)
        for n in range(4)
    ]
    text, design = written(runs)
    assert "hunter" not in text and len(design.arms) == 2


# hostile text

HOSTILE = [
    'say "hi": {a: [b]}', "line\nbreak: x", "[ab]*-seed1", "a*b?c", "# no comment", "tab\there", "\x1b[2J\x85\u2028end",
    "\u202egnp.exe", "- item", "*alias", "&anchor", "!!python/object:os.system", "%TAG", "'", '"', "\\", "true", "1e3",
    "~", " spaced ", "key: value # c", "é漢😀", "x" * 3000, "a: b\n---\narms: {}\n", "{{ 7 * 7 }}", "a[",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_groups_and_values_survive(name: str) -> None:
    runs = [
        make_run(f"{name}{place}", {f"{ACTOR}.clip_ratio": 0.1, "note": name}, place, number=place, group=name)
        for place in range(2)
    ]
    runs += [make_run(f"{name}", {"note": "plain"}, place, number=10 + place) for place in range(2)]
    runs += [
        make_run(f"plain{place}", {"note": "other", name or "k": name}, place, number=20 + place) for place in (1, 2)
    ]
    text, design = written(runs)
    assert all(len(line) < 2000 or name[:9] in line for line in text.split("\n"))
    check_round_trip(runs)
    assert len(design.arms) == 3


@given(st.lists(st.text(max_size=30), min_size=4, max_size=4), st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_any_names_survive(names: list[str], value: str) -> None:
    runs = [
        make_run(name, {f"{ACTOR}.clip_ratio": 0.1 * (1 + place % 2), "text": value}, place // 2, updates=3,
                 number=place, run_id=f"id{place}")
        for place, name in enumerate(names)
    ]  # fmt: skip
    bare = inferred(runs)
    text, design = written(runs)
    again = inferred(runs, design)
    assert again.in_force.arms.keys() == bare.in_force.arms.keys()
    assert {arm: set(keys) for arm, keys in again.in_force.arms.items()} == {
        arm: set(keys) for arm, keys in bare.in_force.arms.items()
    }, text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()), st.lists, max_leaves=5
    )
)
@settings(max_examples=200, deadline=None)
def test_a_value_reads_back_from_one_line(value: Any) -> None:
    from pth_tracker.values import canonical_value, same_value

    line = scalar(value)
    assert "\n" not in line
    for text in (f"key: {line}", f"{{key: {line}}}"):
        assert same_value(canonical_value(yaml.safe_load(text)["key"]), canonical_value(value))
