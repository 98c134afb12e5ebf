from __future__ import annotations

import json
import os
import socket
import time
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pth_tracker.cli import main
from pth_tracker.cli.doctor import _installed
from pth_tracker.cli.health import USER_EXTRAS, Installed, PlainError, health_of, installed, start, within
from pth_tracker.errors import ExitCode, TrackerError
from synthetic import audit_of, make_run

if TYPE_CHECKING:
    from conftest import MlflowServer
    from wandb_server.server import WandbServer

Capture = pytest.CaptureFixture[str]
PROJECT = "rl-stale-demo"
TRL = {"num_generations": 8, "num_iterations": 1, "gradient_accumulation_steps": 4, "scale_rewards": "group",
       "epsilon": 0.2, "beta": 0.0, "per_device_train_batch_size": 8, "max_completion_length": 64, "seed": 1,
       "use_vllm": False, "loss_type": "dapo", "steps_per_generation": 4}  # fmt: skip


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def said(capsys: Capture) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_project_that_can_be_audited(demo_store: Path, capsys: Capture) -> None:
    assert main(["doctor", "--project", PROJECT, "--tracker", f"sqlite:///{demo_store}"]) == ExitCode.OK
    text = said(capsys)
    assert f"pth-tracker {metadata.version('pth-tracker')}, Python 3" in text
    assert f"mlflow {metadata.version('mlflow')}, wandb {metadata.version('wandb')}" in text
    assert f"ok mlflow at sqlite:///{demo_store} (it was named): 2 projects" in text
    assert f"{PROJECT}: 12 runs in mlflow at" in text and "trained by verl 0.7.1 (12 runs)" in text
    assert "rules can be judged the others need:" in text
    assert "name the field that is meant to vary with --vary or in a design file for vary-not-applied" in text


def test_as_json(demo_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{demo_store}")
    assert main(["doctor", "--project", PROJECT, "--format", "json"]) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert data["exit_code"] == 0 and data["project"]["frameworks"] == {"verl 0.7.1": 12}
    assert {(one["location"], one["why"], one["error"]) for one in data["trackers"]} == {
        ("sqlite:///mlflow.db", "mlflow.db in this folder holds the project", ""),
        (f"sqlite:///{demo_store}", "MLFLOW_TRACKING_URI is set", ""),
    }
    unjudged = {rule for remedy in data["project"]["remedies"] for rule in remedy["rules"]}
    assert "idle-clip" in data["project"]["judged"] and "vary-not-applied" in unjudged
    assert not unjudged & set(data["project"]["judged"])


def test_where_nothing_is_configured_all_is_well_and_the_way_is_told(capsys: Capture) -> None:
    assert main(["doctor"]) == ExitCode.OK
    text = said(capsys)
    assert "none is configured: name one with --tracker" in text and "Name a project with --project" in text


def test_a_tracker_that_does_not_answer_is_given_up(silent_server: str, capsys: Capture) -> None:
    assert main(["doctor", "--tracker", silent_server, "--timeout", "3"]) == ExitCode.TRACKER
    assert f"FAILED mlflow at {silent_server} (it was named): no answer within 3 s" in said(capsys)
    assert main(["doctor", "--tracker", silent_server, "--project", "p", "--timeout", "3"]) == ExitCode.TRACKER
    assert "p: no answer within 3 s: give it longer with --timeout" in said(capsys)


def test_one_broken_tracker_hides_no_other(demo_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://audit:hunter2@127.0.0.1:9/mlflow")
    assert main(["doctor"]) == ExitCode.TRACKER
    captured = capsys.readouterr()
    text = " ".join(captured.out.split())
    assert "ok mlflow at sqlite:///mlflow.db" in text
    assert "FAILED mlflow at postgresql://audit@127.0.0.1:9/mlflow (MLFLOW_TRACKING_URI is set)" in text
    assert "hunter2" not in captured.out + captured.err


def test_an_address_that_nothing_reads_is_named(capsys: Capture) -> None:
    assert main(["doctor", "--tracker", "gopher://u:hunter2@x"]) == ExitCode.USAGE
    text = said(capsys)
    assert "FAILED nothing at gopher://u@x" in text and "hunter2" not in text


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--project", "none"], ExitCode.USAGE, "none: "),
        (["--project", PROJECT, "--timeout", "0"], ExitCode.USAGE, "--timeout is a number of seconds above 0"),
    ],
)
def test_what_cannot_be_looked_at(
    options: list[str], status: ExitCode, words: str, demo_store: Path, capsys: Capture
) -> None:
    assert main(["doctor", "--tracker", f"sqlite:///{demo_store}", *options]) == status
    captured = capsys.readouterr()
    assert words in captured.out + captured.err


def test_runs_about_which_nothing_can_be_judged(capsys: Capture) -> None:
    Path("metrics.csv").write_text("step,colour\n1,2\n2,3\n")
    status = main(["doctor", "metrics.csv"])
    text = said(capsys)
    assert "the framework of 1 run is not known" in text and "--vocabulary FILE" in text
    assert status == (ExitCode.NOTHING if " 0 of " in text else ExitCode.OK)


def test_whose_key_is_used_is_told_and_never_the_key(
    wandb_server: WandbServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    for name, value in wandb_server.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    wandb_server.add_run("doctor-project", "a", rows=[{"loss": 1.0}])
    assert main(["doctor"]) == ExitCode.OK
    captured = capsys.readouterr()
    text = " ".join(captured.out.split())
    assert f"ok wandb at {wandb_server.url} (WANDB_API_KEY is set), as ada of {wandb_server.entity}: " in text
    assert wandb_server.api_key not in captured.out + captured.err
    monkeypatch.setenv("WANDB_API_KEY", "f" * 40)
    assert main(["doctor"]) == ExitCode.TRACKER
    captured = capsys.readouterr()
    assert "refuses the API key" in " ".join(captured.out.split()) and "f" * 40 not in captured.out + captured.err


def test_a_server_asked_with_a_users_name(
    mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    assert main(["doctor"]) == ExitCode.OK
    text = said(capsys)
    assert "(MLFLOW_TRACKING_URI is set), as ada: " in text and "hunter2" not in text


# what could be judged


def test_the_frameworks_own_option_is_named() -> None:
    runs = [
        make_run(f"a-seed{seed}", config={**TRL, "seed": seed}, number=seed, metrics={
            **dict.fromkeys(make_run("x").points), "train/clip_ratio/region_mean": 0.0, "train/reward": 0.5,
            "train/loss": [0.1 / step for step in range(1, 61)],
        })
        for seed in (1, 2)
    ]  # fmt: skip
    found = health_of(audit_of(runs))
    assert found.frameworks == {"trl_grpo": 2} and found.unrecognised == 0
    (remedy,) = [one for one in found.remedies if "sampler-mismatch" in one.rules]
    assert "vllm_importance_sampling_correction=True" in remedy.text
    assert "ratio-one-by-construction" in found.judged


def test_a_missing_extra_is_named_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name in ("apprise", "wandb"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    before = installed()
    assert before.extras["notify"] == () and "test" not in before.extras and before.sdks["wandb"]
    monkeypatch.setattr(metadata, "version", version)
    found = installed()
    assert found.extras["notify"] == ("apprise",) and found.sdks["wandb"] == "" and found.extras["nightly"] == ()


def test_only_extras_for_users_are_told_and_each_with_what_it_is_for() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = set(declared["optional-dependencies"])
    # An extra that is added is for users or for developers: one of these lists has to say which.
    assert set(USER_EXTRAS) | {"docs", "fuzz", "notebooks", "real", "test"} == extras
    assert set(installed().extras) <= set(USER_EXTRAS)
    lacking = Installed("1", "3", {}, {"nightly": ("apscheduler",), "notify": ("apprise",), "dask": ()})
    text = " ".join(line.strip() for line in _installed(lacking, 200))
    assert "extras installed: dask" in text
    assert "not installed: nightly (for nightly --cron), notify (for messages of nightly)" in text
    assert "pip install 'pth-tracker[nightly,notify]'" in text


# asking in another process


def test_errors_come_out_of_the_other_process_as_they_are() -> None:
    assert within(60, sorted, [2, 1]) == [1, 2]
    with pytest.raises(TrackerError, match=r"no answer within 0\.2 s"):
        within(0.2, time.sleep, 60)
    with pytest.raises(PlainError, match="ValueError: invalid literal") as raised:
        within(60, int, "x")
    assert raised.value.exit_code is ExitCode.TRACKER
    ends, answers = start([(os._exit, (3,)), (len, ("four",))])
    with pytest.raises(TrackerError, match="ended without an answer"):
        ends(60)
    assert answers(60) == 4
