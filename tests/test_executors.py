"""Threads, processes and a real Dask cluster examine as this process does, though a worker be killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import verl_logs
from examinations import by_run
from pth_tracker import executors
from pth_tracker.cli import main
from pth_tracker.design.stitch import stitch
from pth_tracker.errors import ExitCode, TrackerError, UsageError
from pth_tracker.examine import Examination, Unit, examine, units_of
from pth_tracker.model import Plan
from pth_tracker.runs import RunError
from pth_tracker.tracker import Query, Tracker, load_adapter
from pth_tracker.vocabulary.load import load_vocabulary

PLAN = Plan(
    rules=("idle-clip", "sampler-diverged", "stuck-batch"),
    quantities=("clip_fraction", "sampler_k3_kl", "lr", "batch_id"),
)
EXPERIMENT = "rl-stale-demo"


@pytest.fixture
def opened(demo_store: Path) -> Iterator[tuple[Tracker, list[Unit]]]:
    tracker = load_adapter("mlflow").open_tracker([f"sqlite:///{demo_store}"])
    yield tracker, units_of(stitch(load_vocabulary(), tracker.runs(Query(EXPERIMENT))), PLAN)
    tracker.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes that come back when killed, and a client that knows them."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as started,  # type: ignore[no-untyped-call]
        Client(started, set_as_default=False) as client,  # type: ignore[no-untyped-call]
    ):
        client.wait_for_workers(2)
        yield client


def dask(client: Any) -> str:
    return "dask://" + str(client.scheduler.address).removeprefix("tcp://")


def examined(named: str, opened: tuple[Tracker, list[Unit]]) -> Iterator[Examination | RunError]:
    with executors.Workers(named) as workers:
        yield from workers(*opened, PLAN)


def examined_here(opened: tuple[Tracker, list[Unit]]) -> dict[str, Any]:
    tracker, units = opened
    found = by_run(list(examine(tracker, units, PLAN)))
    assert len(found) == len(units) >= 10
    assert any(one["findings"] for one in found.values())
    return found


@pytest.mark.parametrize("named", ["threads:1", "threads:3", "processes:2"])
def test_threads_and_processes_find_the_same(opened: tuple[Tracker, list[Unit]], named: str) -> None:
    assert by_run(list(examined(named, opened))) == examined_here(opened)


def test_a_dask_cluster_finds_the_same(opened: tuple[Tracker, list[Unit]], cluster: Any) -> None:
    assert by_run(list(examined(dask(cluster), opened))) == examined_here(opened)


def test_a_killed_dask_worker_costs_nothing(opened: tuple[Tracker, list[Unit]], cluster: Any) -> None:
    before = cluster.run(os.getpid)
    results: list[Examination | RunError] = []
    for one in examined(dask(cluster), opened):
        if not results:
            os.kill(min(before.values()), signal.SIGKILL)
        results.append(one)
    assert by_run(results) == examined_here(opened)
    assert len(results) == len(opened[1])
    deadline = time.monotonic() + 60
    while set(cluster.run(os.getpid).values()) == set(before.values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(cluster.run(os.getpid).values()) != set(before.values())


def kill_once(flag: str, *arguments: Any) -> list[Examination | RunError]:
    """What a worker does that is killed in the middle of the first share it is given."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return executors.examine_share(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Killer:
    """Picklable: `kill_once` with the file that says whether it has been done."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def __call__(self, *arguments: Any) -> list[Examination | RunError]:
        return kill_once(self.flag, *arguments)


class AlwaysKilled:
    def __call__(self, *arguments: Any) -> list[Examination | RunError]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.slow
def test_a_killed_process_costs_nothing(
    opened: tuple[Tracker, list[Unit]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "examine_share", Killer(str(tmp_path / "killed")))
    results = list(examined("processes:2", opened))
    assert (tmp_path / "killed").exists()
    assert len(results) == len(opened[1]) and by_run(results) == examined_here(opened)


@pytest.mark.slow
def test_workers_that_always_die_are_an_error_and_not_a_silent_gap(
    opened: tuple[Tracker, list[Unit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "examine_share", AlwaysKilled())
    with pytest.raises(TrackerError, match="the workers of processes:2 died 3 times on the same runs"):
        list(examined("processes:2", opened))


def test_a_worker_of_another_version_is_refused(opened: tuple[Tracker, list[Unit]]) -> None:
    tracker, units = opened
    with pytest.raises(TrackerError, match=r"runs pth-tracker \d.*, and this is 9\.9.*install the same version"):
        executors.examine_share("9.9 (examination 1)", tracker.address, units, PLAN)


def test_what_a_worker_cannot_open_names_the_workers(opened: tuple[Tracker, list[Unit]], demo_store: Path) -> None:
    demo_store.unlink()
    with pytest.raises(TrackerError, match=r"a worker of processes:1 cannot open mlflow at .*mlflow\.db"):
        list(examined("processes:1", opened))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("thread:2", "threads:N, processes:N, or dask://HOST:PORT"),
        ("threads:0", "between 1 and 256"),
        ("processes:1000", "between 1 and 256"),
        ("threads:-1", "threads:N"),
        ("dask://host", "dask://HOST:PORT"),
        ("dask://me:secret@host:8786", "dask://HOST:PORT"),
    ],
)
def test_names_of_executors_that_are_none(named: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        executors.check_executor(named)


def test_a_scheduler_that_does_not_answer(opened: tuple[Tracker, list[Unit]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.5)
    with pytest.raises(TrackerError, match="no Dask scheduler answers at 127.0.0.1:9"):
        list(examined("dask://127.0.0.1:9", opened))


def test_without_runs_no_worker_is_asked(opened: tuple[Tracker, list[Unit]]) -> None:
    assert list(examined("dask://127.0.0.1:9", (opened[0], []))) == []


def test_histories_that_are_read_already_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(3):
        verl_logs.make_log("0.7.1", 12, seed=index).write(tmp_path / f"run-{index}.txt")
    tracker = load_adapter("files").open_tracker([str(tmp_path)])
    units = units_of(stitch(load_vocabulary(), tracker.runs(Query())), PLAN)
    monkeypatch.setattr(executors, "examine_batch", None)
    assert len(list(examined("threads:2", (tracker, units)))) == len(units) == 3


def told(store: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """The audit of a demo's store as JSON, without its time."""
    arguments = ["--project", EXPERIMENT, "--tracker", f"sqlite:///{store}", "--no-write", "--format", "json"]
    assert main(["audit", *arguments, *options]) == ExitCode.CHECK_FAILED
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    del data["audited_at"]
    return data


def test_the_report_is_the_same_whoever_examined(
    demo_store: Path, cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    here = told(demo_store, capsys)
    assert {one["tag"] for one in here["findings"]} >= {"Idle Clip", "Lost Seed", "Stuck Batch", "Rogue Normaliser"}
    for named in ("threads:2", dask(cluster)):
        assert told(demo_store, capsys, "--executor", named) == here


@pytest.mark.parametrize("command", [["audit", "--project", "p"], ["nightly"]])
def test_a_wrong_executor_is_told_before_anything_is_done(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--executor", "cluster"]) == ExitCode.USAGE
    assert "--executor 'cluster' is none: give threads:N" in capsys.readouterr().err
