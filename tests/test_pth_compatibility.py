"""The same inputs given to probe-the-harness 0.1.0 and to us: one answer, or a difference with its reason.

`DIFFERENCES` lists every place where the two disagree on purpose; each entry is run, so that one which no longer holds
is noticed. Everything else has to agree.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pth_tracker as ours
import verl_logs
from pth_tracker.cli import main

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pth as theirs
    from pth import verl as their_verl

NAMES = [name for name in theirs.__all__]
TAGS = {theirs.IDLE_CLIP, theirs.LOST_SEED, theirs.STUCK_BATCH, theirs.ROGUE_NORMALISER}


def tags(report: Any, level: str | None = None) -> list[str]:
    """The named bugs of a report, sorted; of one level where given."""
    return sorted(one.tag for one in report.findings if one.tag and level in (None, one.level))


def levels(report: Any) -> list[str]:
    """How often each check failed or warned."""
    return sorted(f"{one.level} {one.check}" for one in report.findings if one.level != "info")


# --- The interface -----------------------------------------------------------------------------------------------


def test_every_public_name_is_there() -> None:
    assert set(NAMES) <= set(ours.__all__)
    assert {getattr(ours, name) for name in NAMES if name.isupper()} == TAGS


@pytest.mark.parametrize("name", [name for name in NAMES if not name.isupper() and name != "HarnessCheckError"])
def test_arguments_have_the_same_names_order_and_defaults(name: str) -> None:
    def parameters(module: ModuleType) -> list[tuple[str, Any]]:
        found = inspect.signature(getattr(module, name)).parameters.values()
        return [(one.name, one.default) for one in found if one.kind is not one.KEYWORD_ONLY]

    wanted, given_ = parameters(theirs), parameters(ours)
    assert [one for one, _ in given_[: len(wanted)]] == [one for one, _ in wanted]
    for (argument, default), (_, own) in zip(wanted, given_):
        if (
            name != "check_loss"
            and isinstance(default, str | int | float | bool | type(None) | tuple)
            and argument not in ("ignore",)
        ):
            assert own == default, argument
        else:
            assert default is inspect.Parameter.empty or own is not inspect.Parameter.empty, argument


@pytest.mark.parametrize("name", ["Report", "BatchLedger", "Finding"])
def test_methods_are_there_with_the_same_arguments(name: str) -> None:
    for method, function in vars(getattr(theirs, name)).items():
        if method.startswith("_"):
            continue
        own = getattr(getattr(ours, name), method, None)
        if inspect.isfunction(function):
            wanted = list(inspect.signature(function).parameters)
            assert own is not None and list(inspect.signature(own).parameters)[: len(wanted)] == wanted, method


def test_reports_and_findings_are_used_alike() -> None:
    for module in (theirs, ours):
        report = module.Report(subject="s")
        finding = report.add(3, "warn", "title", "detail", module.STUCK_BATCH, extra=1)
        assert (finding.check, finding.level, finding.title, finding.detail) == (3, "warn", "title", "detail")
        assert finding.evidence == {"extra": 1} and finding.tag == "Stuck Batch"
        assert report.ok and report.by_level("warn") == [finding] and report.raise_on_fail() is None
        report.extend(module.Report([module.Finding(1, "fail", "other")], {"n": 1}), prefix="run: ")
        assert report.findings[1].title == "run: other" and report.stats == {"run": {"n": 1}}
        assert not report.ok and "other" in report.format(("fail",)) and "title" not in report.format(["fail"])
        assert "\x1b[" in report.format(color=True) and "\x1b[" not in str(report)
        with pytest.raises(module.HarnessCheckError, match="other"):
            report.raise_on_fail()
        with pytest.raises(AssertionError):
            report.raise_on_fail()
        with pytest.raises(ValueError):
            module.Finding(1, "fatal", "no such level")


# --- Functions on arrays and mappings ----------------------------------------------------------------------------


def same_stats(wanted: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Every statistic of theirs is ours too, with the same value."""
    assert set(wanted) <= set(own)
    for key, value in wanted.items():
        if isinstance(value, Mapping):
            same_stats(value, own[key])
        elif isinstance(value, float) and isinstance(own[key], float):
            assert own[key] == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True), key
        else:
            assert own[key] == value, key


logp = st.floats(-12, 0, allow_nan=False)


@given(
    st.lists(st.tuples(logp, logp, logp, st.booleans()), min_size=1, max_size=20).filter(
        lambda rows: any(row[3] for row in rows)
    ),
    st.sampled_from(["none", "own", "sampler", "old"]),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([np.asarray, np.ndarray.tolist, torch.tensor]),
)
@settings(max_examples=150, deadline=None)
def test_ratio_reports_agree(rows: Any, which: str, shift: float, kind: Callable[[Any], Any]) -> None:
    learner, sampler, old = (np.array([row[place] for row in rows]) for place in range(3))
    mask = np.array([row[3] for row in rows], dtype=float)
    if shift != 0.3:  # small and no lag as well as random ones
        sampler = learner - shift
    pi_old = {"none": None, "own": learner, "sampler": sampler, "old": old}[which]
    # Theirs narrows tensors to float32: given as such, both see the same numbers.
    single = [None if one is None else one.astype(np.float32).astype(np.float64) for one in (learner, sampler, pi_old)]
    give = [None if one is None else kind(one) for one in single]
    wanted = theirs.ratio_report(give[0], give[1], kind(mask), give[2])
    own = ours.ratio_report(give[0], give[1], kind(mask), give[2])
    same_stats(wanted.stats, own.stats)
    assert (tags(own), levels(own)) == (tags(wanted), levels(wanted))


kls = st.floats(0, 20) | st.just(0.0) | st.just(math.inf)


@given(
    st.dictionaries(st.integers(0, 30), st.floats(0, 1) | st.just(0.0), max_size=12),
    st.dictionaries(st.integers(0, 30), kls, max_size=12),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_scans_of_logged_series_agree(clip: dict[int, float], kl: dict[int, float], weighted: bool) -> None:
    with np.errstate(all="ignore"):
        wanted = theirs.scan_clip_vs_kl(clip, kl, is_weighted=weighted)
    own = ours.scan_clip_vs_kl(clip, kl, is_weighted=weighted)
    infinite = any(math.isinf(value) for value in kl.values())
    same_stats({key: value for key, value in wanted.stats.items() if not (infinite and key == "kl_growth")}, own.stats)
    assert (tags(own), levels(own)) == (tags(wanted), levels(wanted))


@given(st.lists(st.sampled_from("abcd") | st.integers(5, 9), min_size=1, max_size=12), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_batch_checks_agree(ids: list[Any], unique: bool, aged: bool) -> None:
    arguments: dict[str, Any] = {"expect_unique": unique, "updates": [3 + 2 * n for n in range(len(ids))]}
    if aged:
        arguments |= {"ages": [(n + 1) % 4 or None for n in range(len(ids))], "expected_age": lambda update: 2}
    wanted, own = (module.check_batch_ids(ids, **arguments) for module in (theirs, ours))
    same_stats(wanted.stats, own.stats)
    assert (tags(own), levels(own)) == (tags(wanted), levels(wanted))


def test_ledgers_agree() -> None:
    reports = []
    for module in (theirs, ours):
        ledger = module.BatchLedger()
        for update in range(40):
            print_ = ledger.record(update, np.arange(8) + max(0, update - 10), age=min(update, 10))
            assert isinstance(print_, str) and len(print_) == 16
            assert ledger.rows[-1] == {"update": update, "batch": print_, "age": min(update, 10)}
        reports.append(ledger.report(expected_age=lambda update: min(update, 10)))
    same_stats(reports[0].stats, reports[1].stats)
    assert tags(reports[0]) == tags(reports[1]) == [ours.STUCK_BATCH]


words = st.sampled_from(["x", "y", None, True, 0.5, 3, [1, 2]])
configs = st.fixed_dictionaries(
    {"data": st.fixed_dictionaries({"seed": st.sampled_from([1, 2, 3, None])}), "lr": words},
    optional={"trainer": st.fixed_dictionaries({"experiment_name": words}), "vary": words, "other": words},
)


@given(st.lists(st.tuples(st.sampled_from("ab"), configs), min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_checks_of_arms_agree(entries: list[tuple[str, dict[str, Any]]]) -> None:
    runs = {f"{arm}{index}": config for index, (arm, config) in enumerate(entries)}
    wanted, own = (module.check_arms(runs, lambda name: name[0], vary=["vary"]) for module in (theirs, ours))
    same_stats(wanted.stats, own.stats)
    assert (tags(own), levels(own)) == (tags(wanted), levels(wanted))


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["o1", "o2", "o3"]), min_size=1),
    st.none() | st.fixed_dictionaries({name: st.sampled_from([1, 2, 3]) for name in "abcdef"}),
)
@settings(max_examples=150, deadline=None)
def test_checks_of_data_orders_agree(orders: dict[str, str], seeds: dict[str, int] | None) -> None:
    wanted, own = (module.check_data_orders(orders, seeds) for module in (theirs, ours))
    same_stats(wanted.stats, own.stats)
    assert (tags(own), levels(own)) == (tags(wanted), levels(wanted))


scores = st.dictionaries(st.integers(1, 6), st.floats(0, 1), min_size=1)


@given(scores, scores, st.sampled_from([1.0, 100.0]))
@settings(max_examples=60, deadline=None)
def test_paired_differences_agree(a: dict[int, float], b: dict[int, float], scale: float) -> None:
    wanted, own = (module.paired_differences({"a": a, "b": b}, "a", "b", scale) for module in (theirs, ours))
    same_stats(wanted.stats, own.stats)
    assert own.ok == wanted.ok
    # Ours also warns of few seeds and of orderings that mix seeds with methods: never fewer warnings.
    assert len(own.by_level("warn")) >= len(wanted.by_level("warn"))


def test_tables_and_configurations_are_read_alike(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    table.write_text("method,seed,value\na,1,.5\na,2,.75\nb,1,.25\n")
    assert ours.read_results_csv(str(table)) == theirs.read_results_csv(str(table))
    nested = {"data": {"seed": 1, "files": ["x", "y"]}, "lr": 1e-6}
    (tmp_path / "c.json").write_text(json.dumps(nested))
    (tmp_path / "c.yaml").write_text("data: {seed: 1, files: [x, y]}\nlr: 1.0e-06\n")
    for name in ("c.json", "c.yaml"):
        path = str(tmp_path / name)
        assert ours.load_config(path) == theirs.load_config(path) == nested
    assert ours.flatten(nested) == theirs.flatten(nested)


def test_missing_methods_and_runs_in_no_arm_are_the_same_errors() -> None:
    for module in (theirs, ours):
        with pytest.raises(KeyError, match="ppo"):
            module.paired_differences({"a": {1: 0.5}}, "a", "ppo")
        with pytest.raises(KeyError, match="run7"):
            module.check_arms({"run7": {}}, {})


# --- Whole logs --------------------------------------------------------------------------------------------------


def our_bugs(paths: Sequence[Path], arms: Mapping[str, str] | None = None) -> set[str]:
    """What ``pth-tracker verl`` names."""
    specs = [option for name, glob in (arms or {}).items() for option in ("--arm", f"{name}={glob}")]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        main(["verl", *map(str, paths), *specs, "--format", "json"])
    text = out.getvalue()
    findings = json.loads(text)["findings"] if text else []
    return {one["tag"] for one in findings if one["tag"] and one["level"] != "info" and not one["because_of"]}


def their_bugs(paths: Sequence[Path], arms: Mapping[str, str] | None = None) -> set[str]:
    """What ``pth verl`` names."""
    found = {tag for path in paths for tag in tags(their_verl.check_log(str(path)))}
    if arms:
        arm_of = {path.name: arm for arm, glob in arms.items() for path in paths if path.match(glob)}
        read = {path.name: their_verl.read_config(str(path)) for path in paths if path.name in arm_of}
        held = {name: config for name, config in read.items() if config is not None}
        found |= set(tags(theirs.check_arms(held, arm_of)))
    return found


@pytest.mark.parametrize(
    "name", ["grpo_94_steps_taskrunner", "ppo_61_steps_main_task", "config_only_crashed", "crash_before_step_1"]
)
def test_real_logs_have_the_same_bugs(shared_data: Path, name: str) -> None:
    paths = [shared_data / "verl" / f"{name}.log"]
    assert our_bugs(paths) == their_bugs(paths)


@pytest.mark.parametrize("release", verl_logs.RELEASES)
def test_generated_logs_of_each_release_have_the_same_bugs(tmp_path: Path, release: str) -> None:
    path = verl_logs.make_log(release, 30).write(tmp_path / "run.txt")
    assert our_bugs([path]) == their_bugs([path]) == set()


def lagging_log(
    path: Path,
    *,
    release: str = "0.7.1",
    updates: int = 24,
    lag: float = 2.0,
    clip: float = 0.0,
    seed: int | None = 1,
    weighted: bool = False,
    style: str = "new",
    values: Callable[[int], Mapping[str, float]] = lambda step: {},
    **changes: object,
) -> Path:
    """A log whose configuration makes the ratio 1 and whose sampler's KL grows to ``lag`` nats per token."""
    kind = verl_logs.RELEASES[release]
    options: dict[str, Any] = {
        "data__train_batch_size": 256,
        "data__seed": seed,
        "actor_rollout_ref__rollout__calculate_log_probs": True,
        "algorithm__rollout_correction": {"rollout_is": "token" if weighted else None, "rollout_is_threshold": 2.0},
        **changes,
    }
    log = verl_logs.make_log(release, 0, style=style, chatter=style != "none", **options)
    for step in range(1, updates + 1):
        kl = lag * step / updates
        row: dict[str, float] = dict(verl_logs.metrics(release, step, seed or 0))
        row |= {"actor/pg_clipfrac": clip, "rollout_corr/kl": kl, "rollout_corr/k3_kl": kl}
        row |= {"critic/advantages/max": 1.5, "critic/advantages/min": -1.5}
        if weighted:
            row["rollout_corr/rollout_is_mean"] = 0.9
        log.lines.append(
            verl_logs.prefix(kind.task, 4711, style) + verl_logs.step_line(kind, step, {**row, **values(step)})
        )
    return log.write(path)


@given(
    release=st.sampled_from(["0.6.1", "0.7.1", "0.8.0"]),
    lag=st.sampled_from([0.0, 0.004, 0.5, 8.0]),
    clip=st.sampled_from([0.0, 0.01]),
    weighted=st.booleans(),
    updates=st.integers(20, 40),
    style=st.sampled_from(["new", "old", "plain", "none"]),
    noise=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from([*verl_logs.CHATTER, "step:x - y", "}", "step:3 -", "\x1b[0m"])),
        max_size=6,
    ),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_logs_of_any_make_have_the_same_bugs(
    tmp_path: Path,
    release: str,
    lag: float,
    clip: float,
    weighted: bool,
    updates: int,
    style: str,
    noise: list[tuple[float, str]],
) -> None:
    path = lagging_log(
        tmp_path / "run.txt", release=release, lag=lag, clip=clip, weighted=weighted, updates=updates, style=style
    )
    lines = path.read_text().split("\n")
    if style != "none":  # a configuration without a prefix cannot be told from lines of other processes
        for place, text in noise:
            lines.insert(int(place * len(lines)), text)
    path.write_text("\n".join(lines))
    expected = {ours.IDLE_CLIP} if lag > 0.4 and clip == 0 and not weighted else set()
    assert our_bugs([path]) == expected
    assert their_bugs([path]) == expected


@given(
    st.lists(st.sampled_from([1, 2, 3, None]), min_size=2, max_size=3),
    st.lists(st.sampled_from([1, 2, 3]), min_size=2, max_size=3, unique=True),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_seeds_lost_in_an_arm_are_named_by_both(tmp_path: Path, seeds: list[int | None], others: list[int]) -> None:
    paths = [
        lagging_log(tmp_path / f"{arm}-{index}.txt", lag=0.0, clip=0.1, seed=seed, lr__x=arm)
        for arm, given_ in (("a", seeds), ("b", others))
        for index, seed in enumerate(given_)
    ]
    stale = [path for path in tmp_path.glob("*.txt") if path not in paths]
    for path in stale:
        path.unlink()
    arms = {"a": str(tmp_path / "a-*.txt"), "b": str(tmp_path / "b-*.txt")}
    own, wanted = our_bugs(paths, arms), their_bugs(paths, arms)
    assert (ours.LOST_SEED in own) == (len(set(seeds)) < len(seeds))
    # Theirs also calls it a lost seed where the arms merely ran different seeds: see DIFFERENCES.
    assert own <= wanted


# --- Where the two differ, and why ours is right -----------------------------------------------------------------

Pair = tuple[Any, Any]
DIFFERENCES: dict[str, tuple[Any, str, Callable[[Path], Pair]]] = {}


def difference(expected: Any, reason: str) -> Callable[[Callable[[Path], Pair]], Callable[[Path], Pair]]:
    """Lists a function that gives (theirs, ours), with what ours is and the reason why that is right."""

    def listed(function: Callable[[Path], Pair]) -> Callable[[Path], Pair]:
        DIFFERENCES[function.__name__] = (expected, reason, function)
        return function

    return listed


def both(call: Callable[[ModuleType], Any]) -> Pair:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(theirs), call(ours)


@difference(["Idle Clip"], "a KL of NaN is not known to be small: a sampler whose KL cannot be computed is not close")
def nan_kl_counts_as_close(tmp_path: Path) -> Pair:
    return both(lambda m: tags(m.scan_clip_vs_kl(dict.fromkeys(range(9), 0.0), dict.fromkeys(range(9), math.nan))))


@difference(["Idle Clip"], "a signed estimate (k1) far below 0 measures a large divergence")
def a_negative_estimate_counts_as_close(tmp_path: Path) -> Pair:
    return both(lambda m: tags(m.scan_clip_vs_kl(dict.fromkeys(range(9), 0.0), dict.fromkeys(range(9), -3.0))))


@difference(
    ["Idle Clip"], "a clip fraction of NaN at one update is no sign that the clip acts: theirs compares NaN with 0"
)
def one_nan_clip_fraction_hides_an_idle_clip(tmp_path: Path) -> Pair:
    clip = {0: math.nan, **dict.fromkeys(range(1, 9), 0.0)}
    return both(lambda m: tags(m.scan_clip_vs_kl(clip, dict.fromkeys(range(9), 3.0))))


@difference(["warn 1"], "log-probabilities that are NaN are said; theirs reports that sampler and learner are close")
def nan_log_probabilities_pass(tmp_path: Path) -> Pair:
    learner = np.array([-1.0, -2.0])
    return both(lambda m: levels(m.ratio_report(learner, np.array([-1.0, np.nan]), logp_old=learner)))


@difference(
    "reports", "a probe must not end a training run: what cannot be measured is a warning and a line in the log"
)
def an_empty_mask_ends_the_training_run(tmp_path: Path) -> Pair:
    def call(module: ModuleType) -> str:
        try:
            return "reports" if module.ratio_report([[-1.0]], [[-1.0]], [[0]]).findings else "silent"
        except ValueError:
            return "raises"

    return both(call)


@difference([], "float64 tensors keep their precision: float32 at 20 nats is coarser than the tolerance of 1e-6")
def double_tensors_are_narrowed(tmp_path: Path) -> Pair:
    learner = torch.tensor([-20.0, -21.0], dtype=torch.float64)
    return both(lambda m: tags(m.ratio_report(learner, learner - 1, logp_old=learner - 5e-7, one_tol=1e-7)))


@difference("fingerprint", "bfloat16 is what policies are trained in; NumPy has no such type, and theirs raises")
def bfloat16_batches_raise(tmp_path: Path) -> Pair:
    def call(module: ModuleType) -> str:
        try:
            return "fingerprint" if module.batch_fingerprint(torch.ones(2, dtype=torch.bfloat16)) else "nothing"
        except TypeError:
            return "raises"

    return both(call)


@difference(False, "a large array inside a mapping or list is printed with its middle left out: theirs finds repeats")
def batches_that_differ_in_the_middle_are_one(tmp_path: Path) -> Pair:
    one, other = np.arange(5000), np.arange(5000)
    other[2500] = 0

    def call(module: ModuleType) -> bool:
        return bool(module.batch_fingerprint({"ids": one}) == module.batch_fingerprint({"ids": other}))

    return both(call)


@difference(1, "the same token ids as int32, as int64 or as a list are the same batch")
def the_same_ids_in_another_type_are_another_batch(tmp_path: Path) -> Pair:
    kinds = (np.arange(4), np.arange(4, dtype=np.int32), [0, 1, 2, 3])
    return both(lambda m: len({m.batch_fingerprint(one) for one in kinds}))


@difference(True, "prompt ids from a NumPy array are the same prompts as those from a list")
def the_same_prompts_in_another_type_are_another_order(tmp_path: Path) -> Pair:
    return both(lambda m: m.data_order_fingerprint([3, 1]) == m.data_order_fingerprint(list(np.array([3, 1]))))


@difference([], "an id that was not recorded is no batch: two of them are no repeat")
def ids_that_are_missing_are_a_repeat(tmp_path: Path) -> Pair:
    return both(lambda m: tags(m.check_batch_ids(["a", None, "b", None])))


@difference(["Stuck Batch"], "7 and 7.0 are one batch: tracker columns turn integers to floats")
def ids_of_another_type_are_other_batches(tmp_path: Path) -> Pair:
    return both(lambda m: tags(m.check_batch_ids([7, 7.0])))


@difference(["warn 3"], "an age that was never logged follows no design: theirs passes it on every update")
def ages_that_are_missing_follow_the_design(tmp_path: Path) -> Pair:
    return both(lambda m: levels(m.check_batch_ids("ab", ages=[None, None], expected_age=lambda update: 2)))


@difference([], "a seed of 43 from YAML and of '43' from a command line are one seed")
def seeds_are_compared_by_their_repr(tmp_path: Path) -> Pair:
    runs: dict[str, Any] = {"a1": {"data": {"seed": 43}}, "b1": {"data": {"seed": "43"}}}
    return both(lambda m: tags(m.check_arms(runs, lambda name: name[0])))


@difference([], "1e-6 in YAML 1.1 is text, and 1 and 1.0 are one setting: theirs warns of differences that are none")
def settings_are_compared_by_their_repr(tmp_path: Path) -> Pair:
    runs: dict[str, Any] = {
        "a1": {"data": {"seed": 1}, "lr": "1e-6", "n": 1, "nothing": "None"},
        "b1": {"data": {"seed": 1}, "lr": 1e-6, "n": 1.0, "nothing": None},
    }
    return both(lambda m: levels(m.check_arms(runs, lambda name: name[0])))


@difference([], "NaN equals NaN as a setting, in whatever spelling")
def nan_settings_differ_from_themselves(tmp_path: Path) -> Pair:
    runs: dict[str, Any] = {"a1": {"data": {"seed": 1}, "x": math.nan}, "b1": {"data": {"seed": 1}, "x": "nan"}}
    return both(lambda m: levels(m.check_arms(runs, lambda name: name[0])))


@difference(["warn 2"], "an empty mapping is a setting: one arm has it, the other lacks it")
def an_empty_mapping_vanishes(tmp_path: Path) -> Pair:
    runs: dict[str, Any] = {"a1": {"data": {"seed": 1}, "kwargs": {}}, "b1": {"data": {"seed": 1}}}
    return both(lambda m: levels(m.check_arms(runs, lambda name: name[0])))


@difference(True, "one key as text is one key: theirs takes it letter by letter and finds none of them")
def a_replicate_given_as_text_is_split(tmp_path: Path) -> Pair:
    runs: dict[str, Any] = {"a1": {"fold": 1}, "a2": {"fold": 2}}
    return both(lambda m: m.check_arms(runs, lambda name: name[0], replicate="fold").ok)


@difference([], "replicates are told apart by all their fields together: a grid of two seeds repeats neither pair")
def a_grid_of_two_seeds_is_a_lost_seed(tmp_path: Path) -> Pair:
    runs = {f"a{i}{j}": {"data": {"seed": i}, "seed": j} for i in (1, 2) for j in (1, 2)}
    return both(lambda m: tags(m.check_arms(runs, lambda name: name[0], replicate=("data.seed", "seed"))))


@difference([], "names at the top of a flat configuration (Hugging Face's) differ by design too")
def run_names_at_the_top_are_differences(tmp_path: Path) -> Pair:
    runs: dict[str, Any] = {name: {"data.seed": 1, "output_dir": name, "run_name": name} for name in ("a1", "b1")}
    return both(lambda m: levels(m.check_arms(runs, lambda name: name[0])))


@difference([], "a run whose seed is not known contradicts nobody's")
def an_unknown_seed_is_another_seed(tmp_path: Path) -> Pair:
    return both(lambda m: tags(m.check_data_orders({"a": "o", "b": "o"}, {"a": 1})))


@difference([], "43 and '43' are one seed, and one seed gives one order")
def seeds_of_another_type_are_other_seeds(tmp_path: Path) -> Pair:
    return both(lambda m: tags(m.check_data_orders({"a": "o", "b": "o"}, {"a": 43, "b": "43"})))


@difference(2, "seeds are paired by value: theirs pairs nothing, and fails")
def seeds_of_another_type_are_no_pairs(tmp_path: Path) -> Pair:
    results: dict[str, dict[Any, float]] = {"a": {43: 0.5, 44: 0.6}, "b": {"43": 0.4, "44": 0.5}}
    return both(lambda m: m.paired_differences(results, "a", "b").stats.get("pairs", 0))


@difference("0.25", "one score of NaN leaves its own seed out, not the whole comparison")
def one_nan_score_spoils_the_mean(tmp_path: Path) -> Pair:
    results = {"a": {1: 0.5, 2: math.nan, 3: 0.75}, "b": {1: 0.25, 2: 0.5, 3: 0.5}}
    return both(lambda m: str(m.paired_differences(results, "a", "b").stats["mean"]))


@difference(
    {"a": {"1": 0.625}}, "several rows of one seed count by their mean: theirs keeps the last, whichever that is"
)
def the_last_row_of_a_seed_wins(tmp_path: Path) -> Pair:
    path = tmp_path / "results.csv"
    path.write_text("method,seed,value\na,1,0.5\na,1,0.75\n")
    return both(lambda m: m.read_results_csv(str(path)))


@difference("{'a': {'1': 0.5}}", "spreadsheets put a byte-order mark before the first column")
def a_byte_order_mark_hides_a_column(tmp_path: Path) -> Pair:
    path = tmp_path / "results.csv"
    path.write_text("\ufeffmethod,seed,value\na,1,0.5\n", encoding="utf-8")

    def call(module: ModuleType) -> str:
        try:
            return str(module.read_results_csv(str(path)))
        except KeyError:
            return "raises"

    return both(call)


def logs(paths: Sequence[Path], arms: Mapping[str, str] | None = None) -> Pair:
    return their_bugs(paths, arms), our_bugs(paths, arms)


@difference(
    set(), "inf is no Python literal: theirs loses the whole configuration, and with it the correction in force"
)
def inf_in_a_configuration_loses_it(tmp_path: Path) -> Pair:
    path = lagging_log(tmp_path / "a.txt", weighted=True, x__limit=math.inf, values=lambda step: {})
    text = path.read_text().replace("rollout_corr/rollout_is_mean", "rollout_corr/other")
    path.write_text(text)
    return logs([path])


@difference({"Idle Clip"}, "NumPy 2 prints np.float64(0.0) from release 0.9 on, which is a number")
def numpy_scalars_are_not_read(tmp_path: Path) -> Pair:
    return logs([lagging_log(tmp_path / "a.txt", release="0.9.1")])


@difference(set(), "a 0.000 of a release that prints three decimals is no exact zero: the clip may act on few tokens")
def a_rounded_zero_is_called_exact(tmp_path: Path) -> Pair:
    return logs([lagging_log(tmp_path / "a.txt", release="0.4.1")])


@difference({"Idle Clip"}, "a KL of NaN throughout is a sampler that cannot be compared, not one that is close")
def a_log_with_nan_kl_passes(tmp_path: Path) -> Pair:
    def values(step: int) -> Mapping[str, float]:
        odd = math.nan if step > 4 else step * 1e-3
        return {"rollout_corr/kl": odd, "rollout_corr/k3_kl": odd}

    return logs([lagging_log(tmp_path / "a.txt", values=values)])


@difference(set(), "two updates above the tolerance in hundreds are outliers, no lag")
def two_outliers_are_a_lag(tmp_path: Path) -> Pair:
    def values(step: int) -> Mapping[str, float]:
        kl = 0.2 if step in (50, 120) else 1e-4
        return {"rollout_corr/kl": kl, "rollout_corr/k3_kl": kl}

    return logs([lagging_log(tmp_path / "a.txt", updates=200, values=values)])


@difference(
    set(), "a KL that neither grows nor is designed is the engines' mismatch (sampler-mismatch): no clip is at fault"
)
def a_steady_mismatch_is_an_idle_clip(tmp_path: Path) -> Pair:
    level = {"rollout_corr/kl": 0.08, "rollout_corr/k3_kl": 0.08}
    return logs([lagging_log(tmp_path / "a.txt", updates=60, values=lambda step: level)])


@difference(set(), "GPG has no clip: verl logs a constant 0 for it")
def a_loss_without_a_clip_is_an_idle_clip(tmp_path: Path) -> Pair:
    changes = {"actor_rollout_ref__actor__policy_loss": {"loss_mode": "gpg"}}
    return logs([lagging_log(tmp_path / "a.txt", **changes)])  # type: ignore[arg-type]


@difference(set(), "arms that ran other seeds lost none: they cannot be paired (no-common-seed), which fails too")
def other_seeds_are_lost_seeds(tmp_path: Path) -> Pair:
    paths = [
        lagging_log(tmp_path / f"{arm}-{seed}.txt", lag=0.0, clip=0.1, seed=seed, lr__x=arm)
        for arm, seeds in (("a", (1, 2)), ("b", (3, 4)))
        for seed in seeds
    ]
    return logs(paths, {"a": str(tmp_path / "a-*.txt"), "b": str(tmp_path / "b-*.txt")})


@difference(
    {"Lost Seed"},
    "a seed that every run of both arms leaves null is one fixed order: said of a single run in each arm too",
)
def a_seed_of_a_single_run_is_never_lost(tmp_path: Path) -> Pair:
    paths = [
        lagging_log(tmp_path / f"{name}.txt", lag=0.0, clip=0.1, seed=None, lr__x=name)
        for name in ("a-seed1", "b-seed2")
    ]
    return logs(paths, {"a": str(tmp_path / "a-*.txt"), "b": str(tmp_path / "b-*.txt")})


@difference(
    {"Stuck Batch"},
    "a batch that stands still shows in prompt and response lengths and scores: theirs reads no such metric",
)
def a_stuck_batch_is_not_looked_for_in_logs(tmp_path: Path) -> Pair:
    def values(step: int) -> Mapping[str, float]:
        row = verl_logs.metrics("0.7.1", step if step > 20 else 1, 5)
        return {key: row[key] for key in row if key.startswith(("prompt_length", "response_length", "critic/"))}

    return logs([lagging_log(tmp_path / "a.txt", lag=0.0, clip=0.1, updates=60, values=values)])


@pytest.mark.parametrize("name", DIFFERENCES)
def test_where_the_two_differ_there_is_a_reason(name: str, tmp_path: Path) -> None:
    expected, reason, function = DIFFERENCES[name]
    wanted, own = function(tmp_path)
    assert own == expected, reason
    assert wanted != own, f"they agree by now: {reason}"
