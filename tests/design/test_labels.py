from __future__ import annotations

import pytest

from pth_tracker.design.labels import argument_labels, name_label, read_labels
from pth_tracker.runs import Run, RunRef, SourceRun


@pytest.mark.parametrize(
    ("name", "seed", "stem"),
    [
        ("tis-seed43", "43", "tis"),
        ("tis_seed_43", "43", "tis"),
        ("seed-43", "43", "run"),
        ("SEED43-tis", "43", "tis"),
        ("tis seed=43", "43", "tis"),
        ("tis-seed043", "43", "tis"),
        ("tis-seed43-lr1e-6", "43", "tis-lr1e-6"),
        ("tis-dataseed43", "43", "tis"),
        ("modelseed1-seed2", "2", "modelseed1"),
        ("CartPole-v1__ppo__7__1700000000", "7", "CartPole-v1_ppo"),
        ("tis-seed43-v1.5", "43", "tis-v1.5"),
    ],
)
def test_seeds_in_names(name: str, seed: str, stem: str) -> None:
    label = name_label(name)
    assert label is not None and (label.seed, label.stem) == (seed, stem)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "tis",
        "PPO_x_log_0",
        "tis-s2",
        "tis-43",
        "seeds43",
        "seeded",
        "speed43",
        "seed1.5-vl",
        "Seed-36B-instruct",
        "seed-oss-36b",
        "x__1__2",
        "seed" + "9" * 40,
    ],
)
def test_names_that_say_no_seed(name: str) -> None:
    assert name_label(name) is None


def test_a_name_is_read_in_bounded_time() -> None:
    assert name_label("seed" * 20_000) is None and name_label("a" * 100_000) is None


def runs(*settings: tuple[str, dict[str, object]]) -> list[Run]:
    return [Run((SourceRun(RunRef("p", f"id{n}"), name, config=own),)) for n, (name, own) in enumerate(settings)]


@pytest.mark.parametrize(
    ("settings", "seeds", "found"),
    [
        ([("a-s1", {"seed": 1}), ("a-s2", {"seed": 2})], {"1", "2"}, ["1", "2"]),
        ([("a-s1", {"seed": 1}), ("a-s2", {"seed": 2, "lr": 1})], {"1", "2"}, []),
        ([("a-s1", {"seed": 1, "lr": 1}), ("a-s2", {"seed": 2, "lr": 1.0})], {"1", "2"}, ["1", "2"]),
        ([("a-s1", {"seed": 1}), ("b-s2", {"seed": 2})], {"1", "2"}, []),
        ([("a-s1", {}), ("a-s2", {})], {"41", "42"}, []),
        ([("a-s1", {"dir": "o/a-s1"}), ("a-s2", {"dir": "o/a-s2"})], {"1", "2"}, ["1", "2"]),
        ([("a-s1-seed7", {}), ("a-s2-seed7", {})], {"1", "2"}, ["7", "7"]),
    ],
)
def test_short_labels(settings: list[tuple[str, dict[str, object]]], seeds: set[str], found: list[str]) -> None:
    assert [label.seed for label in read_labels(runs(*settings), seeds).values()] == found


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("data.seed=43",), {"data.seed": "43"}),
        (("+data.seed=43", "++x.seed=1"), {"data.seed": "43", "x.seed": "1"}),
        (("--seed", "43"), {"seed": "43"}),
        (("--seed=43",), {"seed": "43"}),
        (("data.seed=1", "data.seed=2"), {"data.seed": "2"}),
        (("data.seed=1", "data.seed=null"), {}),
        (("data.seed=43.0",), {"data.seed": "43"}),
        (("--seed",), {}),
        (("seeds=1", "--no-seed-x", "4"), {}),
        (("trainer.name=tis-seed43",), {}),
        ((), {}),
    ],
)
def test_seeds_in_launch_arguments(arguments: tuple[str, ...], found: dict[str, str]) -> None:
    assert {key: label.seed for key, label in argument_labels(arguments).items()} == found
