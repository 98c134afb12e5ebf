from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import verl_logs
from pth_tracker import demo
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode

if TYPE_CHECKING:
    from conftest import DemoRuns

Capture = pytest.CaptureFixture[str]
VARY = "algorithm.rollout_correction.rollout_is"


def row(step: int, *, clip: float = 0.0, kl: float = 0.5, seed: int = 0) -> dict[str, float | int]:
    """One update of a run whose sampler lags; what depends on the batch alone follows the seed."""
    metrics = verl_logs.metrics("0.7.1", step, seed)
    growth = min(1.0, step / 20)
    return metrics | {
        "actor/pg_clipfrac": clip,
        "rollout_corr/kl": kl * growth,
        "rollout_corr/k3_kl": kl * growth,
        "critic/advantages/max": 1.7,
        "critic/advantages/min": -1.2,
    }


def log(
    path: str, rows: Mapping[int, Mapping[str, float]] | None = None, seed: int | None = 1, **changes: object
) -> Path:
    """A console log of verl 0.7.1 whose configuration makes the ratio 1 and whose rows are given."""
    release = verl_logs.RELEASES["0.7.1"]
    settings = {
        "data__train_batch_size": 256,
        "data__seed": seed,
        "actor_rollout_ref__rollout__calculate_log_probs": True,
        "trainer__experiment_name": Path(path).stem,
        **changes,
    }
    written = verl_logs.make_log("0.7.1", 0, **settings)  # type: ignore[arg-type]
    for step, metrics in (rows if rows is not None else {n: row(n, seed=seed or 0) for n in range(1, 41)}).items():
        written.lines.append(f"(TaskRunner pid=4711) {verl_logs.step_line(release, step, metrics)}")
    return written.write(Path(path))


def corrected(path: str, seed: int | None) -> Path:
    return log(path, seed=seed, algorithm__rollout_correction__rollout_is="token")


def audit_of(capsys: Capture, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status and the JSON report of ``pth-tracker verl``."""
    status = main(["verl", *arguments, "--format", "json"])
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, data


def named(data: Mapping[str, Any], level: str = "fail") -> dict[str, list[str]]:
    """Rule to the labels of the runs blamed, of the findings that count."""
    return {
        one["rule"]: sorted(one["blames"])
        for one in data["findings"]
        if one["level"] == level and not one["because_of"] and not one["ignored"]
    }


def test_an_idle_clip_is_named_in_a_single_log(capsys: Capture) -> None:
    log("run.txt")
    assert main(["verl", "run.txt", "-q"]) == ExitCode.CHECK_FAILED
    text = capsys.readouterr().out
    assert "FAIL  Idle Clip [idle-clip" in text
    assert "scores and collapses are not judged" not in text
    assert main(["verl", "run.txt"]) == ExitCode.CHECK_FAILED
    assert "name the metric with --metric" in capsys.readouterr().out


def test_a_corrected_log_has_none(capsys: Capture) -> None:
    corrected("run.txt", 1)
    status, data = audit_of(capsys, "run.txt")
    assert status == ExitCode.OK and "idle-clip" not in named(data)


def test_the_tolerance_decides_what_lag_is(capsys: Capture) -> None:
    log("run.txt")
    assert audit_of(capsys, "run.txt", "--kl-tol", "0.6")[0] == ExitCode.OK
    assert audit_of(capsys, "run.txt", "--kl-tol", "0.4")[0] == ExitCode.CHECK_FAILED


@pytest.fixture
def arms() -> None:
    for seed in (1, 2, 3):
        log(f"logs/grpo-{seed}.txt", {n: row(n, clip=0.001, kl=1e-3, seed=seed) for n in range(1, 41)}, seed)
        log(
            f"logs/tis-{seed}.txt",
            {n: row(n, clip=0.001, kl=1e-3, seed=1) for n in range(1, 41)},
            None,
            algorithm__rollout_correction__rollout_is="token",
        )


ARMS = ["--arm", "grpo=logs/grpo-*.txt", "--arm", "tis=logs/tis-*.txt", "--vary", VARY]


@pytest.mark.usefixtures("arms")
def test_a_lost_seed_is_named_across_arms(capsys: Capture) -> None:
    status, data = audit_of(capsys, *ARMS)
    assert status == ExitCode.CHECK_FAILED
    assert named(data)["lost-seed"] == ["tis-1", "tis-2", "tis-3"]
    assert {arm: len(keys) for arm, keys in data["design"]["arms"].items()} == {"grpo": 3, "tis": 3}


@pytest.mark.usefixtures("arms")
def test_arms_match_paths_names_and_folders_alike(capsys: Capture) -> None:
    shutil.copytree("logs", "more")
    spellings = [
        ["logs", "--arm", "grpo=grpo-*", "--arm", "tis=tis-*"],
        ["--arm", f"grpo={Path('logs').resolve()}/grpo-*.txt", "--arm", "tis=./logs/tis-[123].txt"],
        ["logs", "--arm", "grpo=logs/grpo-1.txt", "--arm", "grpo=logs/grpo-[23].txt", "--arm", "tis=l*/tis-?.txt"],
    ]
    for arguments in spellings:
        data = audit_of(capsys, *arguments)[1]
        assert {arm: len(keys) for arm, keys in data["design"]["arms"].items()} == {"grpo": 3, "tis": 3}
    data = audit_of(capsys, "--arm", "a=logs", "--arm", "b=more")[1]
    assert {arm: len(keys) for arm, keys in data["design"]["arms"].items()} == {"a": 6, "b": 6}


def test_a_name_with_magic_characters_is_taken_as_it_is(capsys: Capture) -> None:
    log("a[1].txt")
    log("a1.txt", seed=2)
    data = audit_of(capsys, "--arm", "odd=a[1].txt", "--arm", "plain=a1.txt")[1]
    assert data["design"]["arms"] == {"odd": ["a[1]"], "plain": ["a1"]}


def test_a_field_that_should_vary_and_does_not_fails(capsys: Capture) -> None:
    for arm in "ab":
        for seed in (1, 2):
            log(f"{arm}-{seed}.txt", {n: row(n, clip=0.1, seed=seed) for n in range(1, 30)}, seed)
    status, data = audit_of(capsys, "--arm", "a=a-*", "--arm", "b=b-*", "--vary", VARY)
    assert status == ExitCode.CHECK_FAILED and "vary-not-applied" in named(data)


def test_arms_without_a_common_seed_fail_without_any_score(capsys: Capture) -> None:
    for arm, seeds in (("a", (1, 2)), ("b", (3, 4))):
        for seed in seeds:
            log(f"{arm}-{seed}.txt", {n: row(n, clip=0.1, seed=seed) for n in range(1, 30)}, seed, lr__x=arm)
    status, data = audit_of(capsys, "--arm", "a=a-*", "--arm", "b=b-*")
    assert status == ExitCode.CHECK_FAILED and "no-common-seed" in named(data)
    log("b-1.txt", {n: row(n, clip=0.1, seed=1) for n in range(1, 30)}, 1, lr__x="b")
    status, data = audit_of(capsys, "--arm", "a=a-*", "--arm", "b=b-*")
    assert "no-common-seed" not in named(data) and "unpaired-runs" in named(data, "warn")


def test_a_replicate_of_ones_own_tells_runs_apart(capsys: Capture) -> None:
    for arm in "ab":
        for replicate in (1, 2):
            rows = {n: row(n, clip=0.1, seed=replicate) for n in range(1, 30)}
            log(f"{arm}-{replicate}.txt", rows, 7, trainer__fold=replicate, lr__x=arm)
    arguments = ["--arm", "a=a-*", "--arm", "b=b-*"]
    assert "lost-seed" in named(audit_of(capsys, *arguments)[1])
    data = audit_of(capsys, *arguments, "--replicate", "trainer.fold")[1]
    assert "lost-seed" not in named(data)
    assert data["design"]["replicate"] == ["trainer.fold"]


def test_scores_are_compared_where_a_metric_is_named(capsys: Capture) -> None:
    key = "val-core/gsm8k/acc/mean@1"
    for arm, gain in (("a", 0.1), ("b", 0.0)):
        for seed in (1, 2, 3):
            rows = {n: {**row(n, clip=0.1, seed=seed), key: 0.5 + gain + seed / 100} for n in range(1, 30)}
            log(f"{arm}-{seed}.txt", rows, seed, lr__x=arm)
    arguments = ["--arm", "a=a-*", "--arm", "b=b-*"]
    rules = {one["rule"] for one in audit_of(capsys, *arguments)[1]["findings"]}
    assert "paired-difference" not in rules
    data = audit_of(capsys, *arguments, "--metric", key)[1]
    (found,) = [one for one in data["findings"] if one["rule"] == "paired-difference"]
    assert found["evidence"]["mean"] == pytest.approx(0.1 if found["arms"][0] == "a" else -0.1)


def test_a_design_file_is_in_force(capsys: Capture) -> None:
    log("run.txt")
    Path("design.yaml").write_text("ignore: [{rule: idle-clip, runs: [run], reason: wanted so}]\n")
    assert audit_of(capsys, "run.txt", "--design", "design.yaml")[0] == ExitCode.OK


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], ExitCode.USAGE, "name the logs to check"),
        (["missing.txt"], ExitCode.USAGE, "there is no file or folder 'missing.txt'"),
        (["--arm", "a=none-*"], ExitCode.USAGE, "no log matches"),
        (["run.txt", "--arm", "a=none-*"], ExitCode.USAGE, "--arm a: no log matches 'none-*'"),
        (["run.txt", "--arm", "grpo"], ExitCode.USAGE, "--arm takes NAME=GLOB"),
        (["run.txt", "--arm", "=x"], ExitCode.USAGE, "--arm takes NAME=GLOB"),
        (["--arm", "a=run.txt", "--arm", "b=*.txt"], ExitCode.USAGE, "a and b"),
        (["run.txt", "--kl-tol", "0"], ExitCode.USAGE, "has to be above 0"),
        (["run.txt", "--kl-tol", "small"], ExitCode.USAGE, "'--kl-tol'"),
        (["run.txt", "--select", "no-such-rule"], ExitCode.USAGE, "no-such-rule"),
        (["run.txt", "-q", "-v"], ExitCode.USAGE, "-q prints less"),
        (["empty"], ExitCode.NOTHING, "no run was found in empty"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    arguments: list[str], status: ExitCode, said: str, capsys: Capture
) -> None:
    log("run.txt")
    Path("empty").mkdir()
    assert main(["verl", *arguments]) == status
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_file_that_is_no_log_is_reported_and_the_others_are_checked(capsys: Capture) -> None:
    log("run.txt")
    Path("notes.txt").write_text("nothing of verl's\n")
    status, data = audit_of(capsys, "run.txt", "notes.txt")
    assert status == ExitCode.TRACKER and "idle-clip" in named(data)
    assert [error["run"] for error in data["errors"]] == ["notes"]


def test_a_log_that_tells_nothing_is_not_judged(capsys: Capture) -> None:
    log("crashed.txt", {})
    status, data = audit_of(capsys, "crashed.txt", "--select", "idle-clip")
    assert status == ExitCode.NOTHING
    assert [entry["rule"] for entry in data["not_judged"]] == ["idle-clip"]


def test_an_exit_status_can_be_muted_and_a_report_written(capsys: Capture) -> None:
    log("run.txt")
    assert main(["verl", "run.txt", "--exit-zero", "-o", "report.json"]) == ExitCode.OK
    capsys.readouterr()
    assert named(json.loads(Path("report.json").read_text())) == named(audit_of(capsys, "run.txt")[1])


@pytest.mark.usefixtures("arms")
def test_it_loads_neither_pandas_nor_scipy() -> None:
    code = (
        f"import sys; from pth_tracker.cli import main; main(['verl', '-q', *{ARMS!r}]);"
        "print({n.partition('.')[0] for n in sys.modules} & {'pandas', 'scipy', 'statsmodels', 'matplotlib', 'rich'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Lost Seed" in done.stdout and done.stdout.splitlines()[-1] == "set()"


def test_the_demos_console_logs_have_the_bugs_of_its_store(
    demo_runs: DemoRuns, demo_store: Path, capsys: Capture
) -> None:
    for name, (config, history) in demo_runs.items():
        sink = demo.ConsoleSink(Path("logs") / f"{name}.txt")
        Path("logs").mkdir(exist_ok=True)
        sink.start(name, config)
        for step, metrics in history.items():
            sink.log(step, metrics)
        sink.finish()
    where = ["--project", "rl-stale-demo", "--tracker", f"sqlite:///{demo_store}"]
    assert main(["audit", *where, "--no-write", "--format", "json"]) == ExitCode.CHECK_FAILED
    stored = json.loads(capsys.readouterr().out)
    expected = named(stored)
    assert set(expected) == {"idle-clip", "lost-seed", "stuck-batch", "rogue-normaliser"}
    arms = ["--arm", "grpo=logs/grpo-*", "--arm", "tis=logs/tis-*", "--vary", VARY]
    of_two_arms = {rule: expected[rule] for rule in ("idle-clip", "lost-seed")}
    for arguments, found in ((["logs"], expected), (arms, of_two_arms)):
        status, data = audit_of(capsys, *arguments)
        assert status == ExitCode.CHECK_FAILED
        assert named(data) == found


def test_the_demo_writes_console_logs() -> None:
    assert (
        "--console-log"
        in subprocess.run(
            [sys.executable, "-m", "pth_tracker", "demo", "--help"], capture_output=True, text=True, check=True
        ).stdout
    )


def test_that_nothing_is_written_back_is_said_once(tmp_path: Path, capsys: Capture) -> None:
    main(["verl", str(log(str(tmp_path / "a.log")))])
    text = " ".join(capsys.readouterr().out.split())
    assert "nothing is written back: log files are only read" in text
    assert text.count("written back") == 1
