from __future__ import annotations

from pathlib import Path

import pytest

from pth_tracker.errors import UsageError
from pth_tracker.vocabulary.detect import GENERIC, detect_framework, find_keys, mangled, matches_any
from pth_tracker.vocabulary.functions import FUNCTIONS
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import UPDATES, audit_of, make_run, sawtooth

OWN = """
framework: mine
about: A trainer of one's own.
detect: {config_all: ["mine.*"]}
quantities:
  clip_fraction: [{key: my_clip}]
  sampler_k3_kl: [{key: my_kl, estimator: k3}]
roles:
  correction: {keys: [mine.correction], default: none}
data_seed: {keys: [mine.seed]}
"""


@pytest.mark.parametrize(
    ("key", "globs", "hit"),
    [
        ("a.b", ("a.b",), True),
        ("a.b", ("a.*",), True),
        ("a", ("a.*",), False),
        ("axb", ("a.b",), False),
        ("a.b\n", ("a.*",), False),
        ("x.a.b", ("a.b",), False),
        ("a[0]", ("a[0]",), True),
        ("a0", ("a[0]*",), False),
        ("a", (), False),
    ],
)
def test_patterns(key: str, globs: tuple[str, ...], hit: bool) -> None:
    assert matches_any(key, globs) is hit


def test_a_hostile_pattern_is_matched_in_bounded_time() -> None:
    assert matches_any("a" * 2000 + "b", ("*a*a*b",))


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ({"val-core/gsm8k/acc/mean@1"}, ("val-core/gsm8k/acc/mean@1",)),
        ({"val-core/gsm8k/acc/mean_at_1"}, ("val-core/gsm8k/acc/mean_at_1",)),
        ({"val-core/gsm8k/acc/mean_1"}, ("val-core/gsm8k/acc/mean_1",)),
        ({"val-core/gsm8k/acc/mean@16"}, ()),
        (set(), ()),
    ],
)
def test_metric_names_are_found_under_the_names_trackers_give_them(held: set[str], found: tuple[str, ...]) -> None:
    assert find_keys("val-core/gsm8k/acc/mean@1", held) == found


def test_own_names_come_first_and_unknown_names_are_guessed_exactly() -> None:
    assert mangled("a@1") == ("a@1", "a_at_1", "a_1")
    assert find_keys("a@1", None) == ("a@1", "a_at_1", "a_1") and find_keys("a@*", None) == ()
    assert find_keys("a@1", {"a_at_1", "a@1"}) == ("a@1",)
    assert find_keys("a//b (c)", {"a/b _c_"}) == ("a/b _c_",)
    assert find_keys("*/acc", ["z/acc", "a/acc", "acc"]) == ("a/acc", "z/acc")


def test_frameworks_are_told_by_configuration_before_metrics() -> None:
    vocabulary = load_vocabulary()
    verl = {"actor_rollout_ref.actor.x": 1, "actor_rollout_ref.rollout.y": 1}
    assert detect_framework(vocabulary, verl, None) == "verl"
    assert detect_framework(vocabulary, {}, None) == GENERIC
    assert detect_framework(vocabulary, {"rllm.x": 1}, ["actor/pg_clipfrac"]) == GENERIC
    few = ["actor/pg_clipfrac", "actor/ppo_kl"]
    assert detect_framework(vocabulary, {}, few) == GENERIC
    assert detect_framework(vocabulary, {}, [*few, "actor/pg_loss", "critic/score/mean"]) == "verl"


def test_built_in_vocabularies_agree_with_themselves() -> None:
    vocabulary = load_vocabulary()
    assert GENERIC in vocabulary.frameworks and load_vocabulary() is vocabulary
    for name, framework in vocabulary.frameworks.items():
        assert framework.framework == name and framework.about.endswith(".")
        for quantity, candidates in framework.quantities.items():
            assert candidates, (name, quantity)
        assert not framework.version or framework.version in FUNCTIONS
    for known in vocabulary.quantities.values():
        assert known.about and known.remedy


def test_a_users_vocabulary_reads_a_users_trainer(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(OWN)
    metrics = dict.fromkeys(make_run("x").points) | {"my_clip": 0.0, "my_kl": sawtooth(16, 2.0)}
    run = make_run("mine-seed1", config={"mine": {"seed": 1}}, metrics=metrics)
    report = audit_of([run], vocabularies=(path,))
    assert report.runs[run.key].framework == "mine" and report.runs[run.key].seed == "1"
    assert [one.rule for one in report.findings if one.level == "fail"] == ["idle-clip"]
    assert load_vocabulary((path,)).digest != load_vocabulary().digest
    assert audit_of([run]).runs[run.key].framework == "generic"


def test_a_trainer_that_nothing_recognises_is_read_by_general_names_and_the_report_says_so() -> None:
    metrics = dict.fromkeys(make_run("x").points) | {"lr": 1e-3, "policy_loss": 0.5, "reward": [0.1] * UPDATES}
    runs = [make_run(f"mine-{n}", config={"seed": n}, metrics=metrics, number=n) for n in range(10)]
    report = audit_of([*runs, make_run("known")])
    said = [note for note in report.notes if "of no known framework" in note]
    assert len(said) == 1 and "mine-0" in said[0] and "and 2 more" in said[0] and "--vocabulary FILE" in said[0]
    assert "known" not in said[0].split(";")[0].split(": ")[1] and report.design.metric
    assert not any("of no known framework" in note for note in audit_of([make_run("known")]).notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("framework: [", "mine.yaml:1: this vocabulary is no YAML"),
        ("just text", "mine.yaml: a vocabulary is a mapping that names its framework"),
        ("", "mine.yaml"),
        ("- a", "mine.yaml"),
        ("framework: mine", "mine.yaml at about"),
        (OWN + "zzz: 1", "mine.yaml at zzz"),
        (OWN.replace("clip_fraction", "clip_fractoin"), "unknown name 'clip_fractoin'"),
        (OWN.replace("correction: {keys", "corection: {keys"), "unknown name 'corection'"),
        (OWN + "version: no_such_function", "unknown name 'no_such_function'"),
        (OWN.replace("{keys: [mine.correction], default: none}", "{expr: '1', keys: [a]}"), "exactly one of"),
        (OWN.replace("estimator: k3", "estimator: k9"), "mine.yaml at quantities.sampler_k3_kl.0.estimator"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_one_sentence(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_vocabulary((path,))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_vocabulary_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such vocabulary file"):
        load_vocabulary((tmp_path / "none.yaml",))
