"""What a vocabulary file may say, on frameworks made up here: recognition, inheritance, seeds, series, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pth_tracker.design.stitch import recognise
from pth_tracker.errors import UsageError
from pth_tracker.runs import History, RunRef, SourceRun
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.detect import GENERIC
from pth_tracker.vocabulary.load import Frameworks, load_vocabulary
from synthetic import audit_of, make_run, only, sawtooth

BASE: dict[str, Any] = {
    "framework": "base",
    "about": "A trainer.",
    "prefixes": ["train/", ""],
    "detect": {"config_all": ["base_lr"], "metrics_any": ["one", "two"], "metrics_none": ["three"]},
    "quantities": {
        "clip_fraction": [{"key": "clipped", "noise": 0.001}],
        "entropy": [{"key": "minus_entropy", "sign": -1}],
        "is_weight_mean": [{"key": "weight", "not_computed": [-1.0]}],
        "sampler_kl": [{"key": "kl", "zero": "not_computed"}],
    },
    "roles": {
        "group_size": {"keys": ["group"]},
        "ratio_is_one": {"expr": "cfg('updates') == 1"},
        "correction": {"keys": ["correction"], "default": "none"},
        "staleness": {"keys": ["lag"]},
    },
    "aliases": {"group": ["n_samples"], "seed": ["rng_seed"], "updates": ["steps"]},
    "data_seed": {"keys": ["seed"], "uncontrolled_when_null": "a null seed is the time"},
    "other_seeds": ["init_seed"],
    "soft": ["gpus"],
    "remedies": {"entropy": "log it"},
}


def vocabulary(tmp_path: Path, *entries: dict[str, Any]) -> tuple[Path, ...]:
    paths = []
    for number, entry in enumerate((BASE, *entries)):
        path = tmp_path / f"{number}-{entry['framework']}.yaml"
        path.write_text(yaml.safe_dump(entry, sort_keys=False))
        paths.append(path)
    return tuple(paths)


def reading(
    paths: tuple[Path, ...],
    config: dict[str, Any],
    metrics: dict[str, list[float]] | None = None,
    name: str = "run",
) -> Reading:
    own = load_vocabulary(paths)
    points = {key: (range(1, len(values) + 1), values) for key, values in (metrics or {}).items()}
    history = History.from_points(points)
    source = SourceRun(RunRef("p", name), name, config=config, metric_keys=frozenset(points))
    return Reading(own, recognise(own, [source]), history)


def test_every_built_in_file_is_whole_and_says_of_itself_what_its_head_says() -> None:
    own = load_vocabulary()
    assert isinstance(own.frameworks, Frameworks) and len(own.frameworks) == len(own.heads)
    for name, head in own.heads.items():
        framework = own.frameworks[name]
        assert framework.framework == name == head.framework
        assert framework.detect == head.detect and head.extends in ("", *own.heads)
        assert framework.about.endswith(".")


def test_only_what_is_there_is_read() -> None:
    load_vocabulary.cache_clear()
    own = load_vocabulary()
    assert isinstance(own.frameworks, Frameworks) and not own.frameworks._read
    source = SourceRun(RunRef("p", "r"), "r", config={"actor_rollout_ref": {"actor": {"a": 1}, "rollout": {"b": 1}}})
    assert Reading(own, recognise(own, [source])).role("staleness") is MISSING
    assert set(own.frameworks._read) == {"verl"}


@pytest.mark.parametrize(
    ("detect", "config", "metrics", "found"),
    [
        ({"config_any": ["x"]}, {"x": 1}, (), True),
        ({"metrics_any": ["a", "b"]}, {}, ("a",), False),
        ({"metrics_any": ["a", "b"]}, {}, ("a", "b"), True),
        ({"metrics_all": ["a", "b"]}, {}, ("a", "b"), True),
        ({"metrics_all": ["a", "b"]}, {}, ("a", "c"), False),
        ({"metrics_all": ["a"], "metrics_any": ["b", "c"], "metrics_at_least": 1}, {}, ("a", "c"), True),
        ({"metrics_all": ["a"], "metrics_any": ["b", "c"], "metrics_at_least": 1}, {}, ("b", "c"), False),
        ({"all_of": [{"metrics": ["a", "b"]}, {"config": ["x"], "metrics": ["c"]}]}, {}, ("a", "b"), True),
        ({"all_of": [{"metrics": ["a", "b"]}, {"config": ["x"], "metrics": ["c"]}]}, {"x": 1}, ("c",), True),
        ({"all_of": [{"metrics": ["a", "b"]}, {"config": ["x"], "metrics": ["c"]}]}, {"x": 1}, ("a",), False),
        ({"config_any": ["x"], "none_of": [{"metrics": ["a", "b"]}]}, {"x": 1}, ("a",), True),
        ({"config_any": ["x"], "none_of": [{"metrics": ["a", "b"]}]}, {"x": 1}, ("a", "b"), False),
        ({"config_any": ["x"], "metrics_none": ["b*"]}, {"x": 1}, ("bb",), False),
        ({"config_any": ["x"], "when": "cfg('x') == 1"}, {"x": 1}, (), True),
        ({"config_any": ["x"], "when": "cfg('x') == 1"}, {"x": 2}, (), False),
        ({"config_any": ["x"], "when": "cfg('y') > 1"}, {"x": 2}, (), False),
        ({"metrics_all": ["a"], "when": "cfg('x') == 1"}, {}, ("a",), True),
    ],
)
def test_recognition(
    tmp_path: Path, detect: dict[str, Any], config: dict[str, Any], metrics: tuple[str, ...], found: bool
) -> None:
    paths = vocabulary(tmp_path, {"framework": "own", "about": "Mine.", "detect": detect})
    own = reading(paths, config, {key: [1.0] for key in metrics})
    assert own.run.framework == ("own" if found else GENERIC)


def test_what_wraps_another_wins_over_it_and_prefixes_hold_for_recognition(tmp_path: Path) -> None:
    wraps: dict[str, Any] = {
        "framework": "wrap",
        "about": "Wraps.",
        "extends": "base",
        "detect": {"metrics_all": ["four"]},
    }
    paths = vocabulary(tmp_path, wraps)
    assert reading(paths, {"base_lr": 1}, {"train/four": [1.0]}).run.framework == "base"
    wraps["detect"]["priority"] = 1
    paths = vocabulary(tmp_path, {**wraps, "framework": "wrap2", "prefixes": ["train/"]})
    assert reading(paths, {"base_lr": 1}, {"train/four": [1.0]}).run.framework == "wrap2"
    assert reading(paths, {"base_lr": 1}, {"train/three": [1.0]}).run.framework == GENERIC
    assert reading(paths, {}, {"one": [1.0], "train/two": [1.0]}).run.framework == "base"
    third = {"framework": "third", "about": "On top.", "extends": "base", "detect": {"metrics_all": ["five"]}}
    assert reading(vocabulary(tmp_path, third), {}, {"train/five": [1.0]}).run.framework == "third"


def test_a_vocabulary_on_top_of_another(tmp_path: Path) -> None:
    child = {
        "framework": "child",
        "about": "A child.",
        "extends": "base",
        "quantities": {"entropy": None, "clip_fraction": [{"key": "own_clip"}]},
        "roles": {"staleness": {"expr": "group_size * 2"}},
        "data_seed": {"keys": ["order"]},
        "soft": ["nodes", "!gpus", "!never"],
        "remedies": {"sampler_kl": "log that"},
    }
    own = load_vocabulary(vocabulary(tmp_path, child)).frameworks["child"]
    assert set(own.quantities) == {"clip_fraction", "is_weight_mean", "sampler_kl"}
    assert [one.key for one in own.quantities["clip_fraction"]] == ["train/own_clip", "own_clip"]
    assert list(own.roles) == list(BASE["roles"]) and own.roles["staleness"].expr
    assert own.data_seed.keys == ("order",) and not own.data_seed.uncontrolled_when_null
    assert own.soft == ("nodes",) and set(own.remedies) == {"entropy", "sampler_kl"}
    assert not own.detect.config_all


def test_a_users_file_may_build_on_the_built_in_one_that_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("{framework: verl, extends: verl, about: My verl., staleness: [my.lag]}")
    own, known = load_vocabulary((path,)).frameworks["verl"], load_vocabulary().frameworks["verl"]
    assert own.staleness == (*known.staleness, "my.lag") and own.quantities == known.quantities


def test_the_documentations_example_is_a_vocabulary(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "frameworks.md").read_text(encoding="utf-8")
    path = tmp_path / "my_verl.yaml"
    path.write_text(page.split("```yaml\n")[1].split("```")[0])
    config = {"actor_rollout_ref": {"actor": {"a": 1}, "rollout": {"b": 1}}, "my_sampler": {"lag": 4}}
    own = reading((path,), config, {"my_sampler/age": [3.0], "actor/ppo_kl": [0.1]})
    assert own.run.framework == "my_verl" and own.role("staleness") == 4
    age = own.series("data_age")
    assert age is not None and age.values.tolist() == [3.0] and own.series("learner_kl") is None


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([{"framework": "a", "about": "A.", "extends": "none"}], "a.yaml at extends: 'none' is no known framework"),
        ([{"framework": "a", "about": "A.", "extends": "a"}], "a.yaml at extends: 'a' is no known framework"),
        (
            [
                {"framework": "a", "about": "A.", "extends": "b"},
                {"framework": "b", "about": "B.", "extends": "a"},
            ],
            "extends this one in turn",
        ),
        ([{"framework": ["a"], "about": "A."}], "yaml at framework"),
        (
            [{"framework": "a", "about": "A.", "quantities": {"entropy": [{"key": "e", "noise": -1}]}}],
            "entropy.0.noise",
        ),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, entries: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_vocabulary(vocabulary(tmp_path, *entries))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_series_in_their_sign_without_what_was_not_computed(tmp_path: Path) -> None:
    metrics = {"minus_entropy": [-2.0, -1.0], "train/weight": [-1.0, 0.9, -1.0, 1.1], "kl": [0.0, 0.0]}
    own = reading(vocabulary(tmp_path), {"base_lr": 1}, metrics)
    entropy, weight = own.series("entropy"), own.series("is_weight_mean")
    assert entropy is not None and entropy.values.tolist() == [2.0, 1.0]
    assert weight is not None and weight.key == "train/weight"
    assert (weight.step.tolist(), weight.values.tolist()) == ([2, 4], [0.9, 1.1])
    assert own.series("sampler_kl") is None
    probed = reading(vocabulary(tmp_path), {"base_lr": 1}, {"train/harness/sampler_kl": [0.1]}).series("sampler_kl")
    assert probed is not None and probed.meaning.estimator == "k1"


def test_names_that_a_pattern_matches_and_does_not_mean(tmp_path: Path) -> None:
    own = {"framework": "own", "about": "Mine.", "detect": {"config_any": ["x"]}}
    own["quantities"] = {"eval_score": [{"key": "eval/*", "without": ["eval/step", "eval/*_ratio"]}]}
    paths = vocabulary(tmp_path, own)
    logged = {"eval/step": [1.0], "eval/clip_ratio": [0.5], "eval/math": [0.7]}
    held = reading(paths, {"x": 1}, logged)
    assert held.raw_keys("eval_score") == ("eval/math",)
    found = held.series("eval_score")
    assert found is not None and found.key == "eval/math"
    assert reading(paths, {"x": 1}, {"eval/step": [1.0]}).series("eval_score") is None


def test_keys_by_the_names_of_other_releases(tmp_path: Path) -> None:
    own = reading(vocabulary(tmp_path), {"base_lr": 1, "n_samples": 8, "steps": 1, "rng_seed": 3})
    assert (own.role("group_size"), own.role("ratio_is_one")) == (8, True)
    assert (own.seed.order, own.seed.key, own.seed.acts) == ("3", "rng_seed", True)
    assert own.is_seed("rng_seed") and own.is_seed("seed") and own.is_seed("init_seed") and not own.is_seed("group")
    both = reading(vocabulary(tmp_path), {"base_lr": 1, "group": 4, "n_samples": 8, "seed": 5, "rng_seed": 3})
    assert (both.role("group_size"), both.seed.order) == (4, "5")


def test_a_null_seed_may_be_another_order_at_every_launch(tmp_path: Path) -> None:
    paths = vocabulary(tmp_path)
    null = reading(paths, {"base_lr": 1, "seed": None}).seed
    assert (null.order, null.acts, null.uncontrolled, null.why) == (None, False, True, "a null seed is the time")
    absent = reading(paths, {"base_lr": 1}).seed
    assert (absent.order, absent.uncontrolled) == (None, False)


@pytest.mark.parametrize(("seeds", "lost"), [({"seed": None}, True), ({"seed": None, "init_seed": 7}, False)])
def test_a_name_is_held_against_what_no_seed_controls(tmp_path: Path, seeds: dict[str, Any], lost: bool) -> None:
    runs = [make_run("arm-seed7", config={"base_lr": 1, **seeds}, number=1)]
    report = audit_of(runs, vocabularies=vocabulary(tmp_path))
    assert [one.rule for one in report.findings if one.rule == "lost-seed"] == ["lost-seed"] * lost
    if lost:
        assert "trained on no seed (a null seed is the time)" in only(report, "lost-seed").detail


@pytest.mark.parametrize(
    ("updates", "level", "found"), [(1, 0.0, True), (1, 0.0009, True), (1, 0.002, False), (2, 0.0009, False)]
)
def test_what_kernels_clip_is_no_clip_where_the_ratio_is_one(
    tmp_path: Path, updates: int, level: float, found: bool
) -> None:
    config = {"base_lr": 1, "updates": updates, "correction": "none"}
    metrics = dict.fromkeys(make_run("x").points) | {"clipped": level, "harness/sampler_k3_kl": sawtooth(16, 2.0)}
    report = audit_of([make_run("x-seed1", config=config, metrics=metrics)], vocabularies=vocabulary(tmp_path))
    assert bool([one for one in report.findings if one.rule == "idle-clip"]) is found


def test_what_is_wrong_with_a_role_is_said_in_plain_words(tmp_path: Path) -> None:
    wrong = {"framework": "own", "about": "Mine.", "roles": {"group_size": {"keys": ["a"], "expr": "1"}}}
    paths = vocabulary(tmp_path, {**BASE, **wrong})
    with pytest.raises(UsageError, match=r"at roles\.group_size: give exactly one of keys, expr and python"):
        load_vocabulary(paths)
