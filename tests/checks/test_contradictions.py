"""A run against its own launch arguments and its own name: what denies them, and the many things that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pth_tracker.checks.contradictions import denies, last_overrides, named_values
from pth_tracker.model import Basis, Level
from pth_tracker.values import MISSING
from synthetic import (
    ACTOR,
    FakeRun,
    audit_of,
    change,
    comparison,
    findings,
    make_run,
    not_judged,
    only,
    outcomes,
    without_config,
)

LOST, LABEL = "override-lost", "label-contradicts-config"
OPTIMISER = f"{ACTOR}.optim.lr"


def launched(*arguments: str, settings: Mapping[str, Any] | None = None) -> FakeRun:
    return make_run("ppo-seed43", {OPTIMISER: 1e-6, **(settings or {})}, 43, arguments=tuple(arguments))


def lost(*arguments: str, settings: Mapping[str, Any] | None = None) -> list[str]:
    """The fields that did not take their values."""
    report = audit_of([launched(*arguments, settings=settings)], select=(LOST,))
    return [field for one in findings(report, LOST) for field in one.evidence["fields"]]


def test_a_value_that_did_not_arrive_fails_and_is_shown() -> None:
    found = only(audit_of([launched(f"{OPTIMISER}=2e-6")], select=(LOST,)), LOST)
    assert found.level is Level.FAIL and found.basis is Basis.CONTRADICTION and len(found.blames) == 1
    assert found.detail == f"{OPTIMISER} was given as 2e-06 and resolved to 1e-06."


@pytest.mark.parametrize(
    "arguments",
    [
        (f"{OPTIMISER}=2e-6", f"{OPTIMISER}=1e-6"),  # given twice: the last one wins
        (f"{OPTIMISER}=0.000001",),
        (f"{OPTIMISER}='1e-6'", "data.seed=43"),
        (f"+{OPTIMISER}=1E-6",),
        (f"{OPTIMISER}=2e-6", f"~{OPTIMISER}"),
        ("data.train_files=~/data/gsm8k/train.parquet",),
        ("data.val_files=$HOME/test.parquet", "algorithm.gamma=${oc.env:GAMMA}"),
        ("algorithm.nothing_of_the_kind=3",),
        ("trainer.experiment_name=other", "trainer.default_local_dir=/tmp/x"),
        (f"{ACTOR}.ppo_mini_batch_size=16k",),  # a program may parse it
        (f"{ACTOR}.optim.lr=1e-6,2e-6",),  # a sweep
        ("algorithm=grpo", "hydra.run.dir=/tmp", "--config-name=ppo"),
        ("algorithm.rollout_correction.rollout_is=null",),
        (f"{ACTOR}.optim.betas=[0.9,0.999]",),
        ("actor_rollout_ref.model.path=QWEN/Qwen2.5-Math-1.5B",),
    ],
)
def test_what_arrived_or_cannot_be_told_is_no_finding(arguments: Sequence[str]) -> None:
    assert lost(*arguments) == []


@pytest.mark.parametrize(
    "arguments, field",
    [
        ((f"{OPTIMISER}=1e-6", f"{OPTIMISER}=2e-6"), OPTIMISER),  # the last one, and it is lost
        (
            ("algorithm.rollout_correction.rollout_is_threshold=null",),
            "algorithm.rollout_correction.rollout_is_threshold",
        ),
        ((f"{ACTOR}.use_kl_loss=True",), f"{ACTOR}.use_kl_loss"),
        ((f"{ACTOR}.loss_agg_mode=seq-mean-token-sum",), f"{ACTOR}.loss_agg_mode"),
        ((f"{ACTOR}.optim.betas=[0.9,0.95]",), f"{ACTOR}.optim.betas"),
        (("--algorithm.gamma", "0.9"), "algorithm.gamma"),
        (("--algorithm.gamma=0.9",), "algorithm.gamma"),
    ],
)
def test_what_did_not_arrive_is_found(arguments: Sequence[str], field: str) -> None:
    assert lost(*arguments) == [field]


def plain(arguments: Sequence[str], **config: Any) -> list[str]:
    """The same of a trainer with argparse."""
    run = make_run("run-a", config=config, arguments=tuple(arguments))
    report = audit_of([run], select=(LOST,))
    return [field for one in findings(report, LOST) for field in one.evidence["fields"]]


def test_argparse_options_with_dashes_mean_fields_with_underscores() -> None:
    assert plain(["--learning-rate", "3e-4"], learning_rate=1e-4) == ["learning_rate"]
    assert plain(["--learning-rate", "3e-4", "--learning-rate", "1e-4"], learning_rate=1e-4) == []
    assert plain(["--min-reward", "-1", "train"], min_reward=-1) == []
    assert plain(["--offset", "-1.5"], offset=2.0) == ["offset"]


def test_options_without_or_with_several_values_are_not_judged() -> None:
    assert plain(["--anneal", "--layers", "64", "64"], anneal=False, layers=[128, 128]) == []


def test_a_lost_seed_is_marked_and_explained_by_lost_seed() -> None:
    run = make_run("ppo-a", {}, 1, arguments=("data.seed=43", f"{OPTIMISER}=2e-6"))
    report = audit_of([run])
    kinds = {one.evidence["kind"]: one for one in findings(report, LOST)}
    assert kinds["seed"].because_of == "lost-seed" and not kinds["field"].because_of


def test_secrets_are_never_shown() -> None:
    run = make_run("ppo-seed43", {"trainer.api_key": "abc"}, 43, arguments=("trainer.api_key=xyz",))
    report = audit_of([run], select=(LOST,))
    assert findings(report, LOST) == [] and "xyz" not in repr(report) and "abc" not in repr(report)


def test_without_arguments_it_is_not_judged() -> None:
    report = audit_of(comparison(), select=(LOST,))
    (entry,) = not_judged(report, LOST)
    assert entry.missing == ("launch_arguments",)


def test_several_runs_of_an_arm_are_said_once() -> None:
    runs = change(comparison({"ppo": {}}), "*", arguments=(f"{OPTIMISER}=3e-6",))
    assert len(only(audit_of(runs, select=(LOST,)), LOST).blames) == 5


def test_a_launch_is_read_in_bounds() -> None:
    found = last_overrides([f"k{n}={n}" for n in range(5000)])
    assert len(found) == 2000
    assert last_overrides(["a=" + "[" * 20_000, "=", "~", "--", "-", "+", "a.b=", "~c=1"])["a.b"].value == ""


@pytest.mark.parametrize(
    "given, resolved, expected",
    [
        (1, 1.0, False),
        (1, 2, True),
        (True, 1, False),
        (True, False, True),
        (1, None, True),
        (None, 1, True),
        (None, False, False),
        ("a", None, False),
        ("grpo", "AdvantageEstimator.GRPO", False),
        ("grpo", "gae", True),
        ("a/b", "c/d", False),
        ([1, 2], [1, 3], True),
        (["a"], ["b"], False),
        (1, MISSING, False),
        (1e-6, 1.0000000001e-6, False),
    ],
)
def test_only_values_of_one_kind_deny_each_other(given: Any, resolved: Any, expected: bool) -> None:
    assert denies(given, resolved) is expected


# label-contradicts-config


def labelled(name: str, settings: Mapping[str, Any] | None = None, **attributes: Any) -> list[str]:
    """The fields that the label denies."""
    report = audit_of([make_run(name, settings, 43, **attributes)], select=(LABEL,))
    return [field for one in findings(report, LABEL) for field in one.evidence["fields"]]


KL = {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0.04}


@pytest.mark.parametrize(
    "name",
    ["tis-lr1e-6", "tis_lr_1e-6", "tis-lr=1e-6-b", "lr1e-06", "tis/lr1e-6/x", "tis_lr1e-6_beta0.04", "a-lr0.000001"],
)
def test_a_name_with_another_learning_rate_is_a_warning(name: str) -> None:
    assert labelled(name, {OPTIMISER: 2e-6}) == [OPTIMISER]
    assert labelled(name, {OPTIMISER: 1e-6}) == []


def test_the_finding_shows_both() -> None:
    found = only(audit_of([make_run("tis-lr1e-6", {OPTIMISER: 2e-6}, 43)], select=(LABEL,)), LABEL)
    assert found.level is Level.WARN and found.basis is Basis.CONTRADICTION
    assert found.detail == f"the name says lr1e-6, {OPTIMISER} is 2e-06."


@pytest.mark.parametrize("name", ["x-kl_loss_coef0.01", "x-kl_loss_coef=0.01", f"x {ACTOR}.kl_loss_coef=0.01"])
def test_longer_field_names_are_known(name: str) -> None:
    assert labelled(name, KL) == [f"{ACTOR}.kl_loss_coef"]


def test_group_and_tags_are_labels_too() -> None:
    assert labelled("a", group="lr1e-6", settings={OPTIMISER: 2e-6}) == [OPTIMISER]
    assert labelled("a", tags=("baseline", "ppo_epochs=4")) == [f"{ACTOR}.ppo_epochs"]
    assert labelled("a", tags=("use_kl_loss=True",)) == [f"{ACTOR}.use_kl_loss"]


@pytest.mark.parametrize(
    "name",
    [
        "ppo-seed44",  # lost-seed's
        "ppo-s2",  # stage 2
        "ppo_2",
        "grpo-lr_1",  # the first of several
        "ppo-epochs2",
        "grpo-N64",  # one letter
        "qwen2.5-7b-gsm8k-v2.1",
        "llama-3.1-8b-instruct-2026-03-01",
        "run-20260301-120000",
        "ppo-warmup_lr1e-5",  # another learning rate
        "ppo-critic_lr1e-5_min_lr1e-7",
        "ppo_lr=1e-5-2",
        "date=2026-03-01",
        "lr1e-6-vs-lr2e-6",  # one of them is right
        "n=8",  # rollout.n is 8, val_kwargs.n is 1
        "temperature=1.0",
        "beta0_04",
        "lr05",
        "gpus16-nodes24",
        "dropout0.1",
        "lr2.01e-6",  # rounded
        "fluffy-sweep-64",
        "model=llama env=prod device=cuda",
    ],
)
def test_what_says_nothing_of_a_field_is_left_alone(name: str) -> None:
    assert labelled(name, {OPTIMISER: 2e-6}) == []


def test_a_word_that_several_fields_share_is_denied_by_all_or_by_none() -> None:
    both = {OPTIMISER: 2e-6, "critic.optim.lr": 1e-5}
    assert labelled("a-lr1e-5", both) == []
    assert labelled("a-lr5e-5", both) == [OPTIMISER, "critic.optim.lr"]


def test_without_configuration_it_is_not_judged() -> None:
    report = audit_of(without_config([make_run("tis-lr1e-6")]), select=(LABEL,))
    assert outcomes(report, LABEL) == {"not judged"}


def test_a_clean_comparison_denies_no_label() -> None:
    report = audit_of(comparison(), select=(LABEL,))
    assert not findings(report, LABEL) and outcomes(report, LABEL) == {"passed"}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("lr=2e-6", [("lr", 2e-6, True)]),
        ("sync64", [("sync", 64, False)]),
        ("sync_64", [("sync", 64, False)]),
        ("a.b=3 c=4", [("a.b", 3, True), ("c", 4, True)]),
        ("x0.5y z1", []),
        ("", []),
        ("=" * 300, []),
    ],
)
def test_named_values_are_words_with_numbers(text: str, expected: Sequence[tuple[str, float, bool]]) -> None:
    assert [(one.word, one.value, one.explicit) for one in named_values(text)] == expected
