"""Listing a W&B server's runs, within the budget of requests, and what is passed on of its address."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pth_tracker.errors import ProjectNotFound, UsageError
from pth_tracker.runs import RunRef, RunState, SourceRun
from pth_tracker.tracker import Query, Tracker, open_address
from pth_tracker_wandb import open_tracker
from pth_tracker_wandb.server import ServerTracker
from wandb_server.server import Fault, Request, WandbServer


@pytest.fixture(scope="module")
def tracker(wandb_environment: WandbServer) -> Iterator[ServerTracker]:
    opened = open_tracker(["wandb"])
    assert isinstance(opened, ServerTracker)
    yield opened
    opened.close()


@pytest.fixture
def server(wandb_environment: WandbServer) -> WandbServer:
    return wandb_environment


def listed(tracker: Tracker, project: str, **query: Any) -> list[SourceRun]:
    return list(tracker.runs(Query(project, **query)))


def operations(requests: list[Request]) -> Counter[str]:
    return Counter(request.operation for request in requests)


def test_satisfies_the_protocol_and_shows_the_server(tracker: ServerTracker, server: WandbServer) -> None:
    assert isinstance(tracker, Tracker)
    assert tracker.address.locations == (server.url,)
    assert tracker.has_tags
    assert tracker.read_only == ""


# the listing


def test_every_attribute_of_a_run(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    server.add_run(
        wandb_project,
        "ppo s1",
        {"lr": 1e-6, "data": {"seed": 1, "files": ["a", "b"]}, "clip": None},
        [{"loss": 1.0, "actor/kl": 0.5}, {"loss": 0.5}],
        run_id="x1",
        state="crashed",
        tags=["mine", "pth:fail"],
        created=datetime(2026, 3, 1, 12, tzinfo=UTC),
        group="ppo",
        job_type="train",
        user="grace",
        commit="abc123",
        program="train.py",
        args=["--seed", "1"],
    )
    (run,) = listed(tracker, wandb_project)
    assert run.ref == RunRef(f"team/{wandb_project}", "x1")
    assert (run.name, run.state, run.group, run.job_type) == ("ppo s1", RunState.CRASHED, "ppo", "train")
    assert run.created == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert run.ended is not None and run.ended.tzinfo is not None
    assert run.config == {"lr": 1e-6, "data": {"seed": 1, "files": ["a", "b"]}, "clip": None}
    assert run.metric_keys == frozenset({"loss", "actor/kl"})
    assert run.last_step == 1
    assert run.tags == ("mine",)
    assert (run.user, run.commit, run.program, run.arguments) == ("grace", "abc123", "train.py", ("--seed", "1"))
    assert run.url == f"{server.url}/team/{wandb_project}/runs/x1"


def test_nested_value_keys_survive_here_and_not_in_the_sdk(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    import wandb

    config = {"opt": {"value": 3, "name": "adam"}, "only": {"value": 1}}
    server.add_run(wandb_project, "r", config)
    (run,) = listed(tracker, wandb_project)
    assert run.config == config
    (damaged,) = wandb.Api(timeout=20).runs(f"team/{wandb_project}", lazy=False)
    assert damaged.config == {"opt": 3, "only": 1}


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("running", RunState.RUNNING),
        ("preempting", RunState.RUNNING),
        ("pending", RunState.RUNNING),
        ("preempted", RunState.KILLED),
        ("finished", RunState.FINISHED),
        ("failed", RunState.FAILED),
        ("killed", RunState.KILLED),
        ("something new", RunState.UNKNOWN),
    ],
)
def test_states(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, state: str, expected: RunState
) -> None:
    server.add_run(wandb_project, "r", state=state)
    (run,) = listed(tracker, wandb_project)
    assert run.state is expected
    assert (run.ended is None) == (expected is RunState.RUNNING)


def test_one_request_lists_a_thousand_runs(server: WandbServer, wandb_project: str) -> None:
    for index in range(1003):
        server.add_run(wandb_project, f"r{index}", {"seed": index})
    with server.counting() as seen:
        tracker = open_tracker(["wandb"])
        runs = listed(tracker, wandb_project)
        tracker.close()
    assert [run.config["seed"] for run in runs] == list(range(1003))
    assert operations(seen) == {"Viewer": 1, "GetDefaultEntity": 1, "PthTrackerRuns": 2}


def test_a_project_with_its_entity_needs_no_look_up(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    server.add_run(wandb_project, "r")
    with server.counting() as seen:
        assert [run.name for run in listed(tracker, f"team/{wandb_project}")] == ["r"]
    assert operations(seen) == {"PthTrackerRuns": 1}


def test_the_listing_is_never_stale(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    server.add_run(wandb_project, "first")
    assert len(listed(tracker, wandb_project)) == 1
    server.add_run(wandb_project, "second")
    assert [run.name for run in listed(tracker, wandb_project)] == ["first", "second"]


def test_audit_runs_are_left_out(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    server.add_run(wandb_project, "r")
    server.add_run(wandb_project, "pth-audit", job_type="pth-audit")
    assert [run.name for run in listed(tracker, wandb_project)] == ["r"]


def test_filters_go_to_the_server(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    for day, state, seed in [(1, "finished", 1), (2, "failed", 2), (3, "finished", 3)]:
        moment = datetime(2026, 5, day, tzinfo=UTC)
        server.add_run(wandb_project, f"r{day}", {"seed": seed}, state=state, created=moment)
    finished = listed(tracker, wandb_project, where='{"state": "finished"}')
    assert [run.name for run in finished] == ["r1", "r3"]
    seeds = listed(tracker, wandb_project, where='{"config.seed": {"$in": [2, 3]}}')
    assert [run.name for run in seeds] == ["r2", "r3"]
    with server.counting() as seen:
        since = listed(tracker, wandb_project, where='{"state": "finished"}', since=datetime(2026, 5, 2, tzinfo=UTC))
    assert [run.name for run in since] == ["r3"]
    (request,) = [item for item in seen if item.operation == "PthTrackerRuns"]
    assert json.loads(request.variables["filters"]) == {
        "$and": [{"state": "finished"}, {"createdAt": {"$gte": "2026-05-02T00:00:00Z"}}]
    }


@pytest.mark.parametrize("where", ["state = finished", "[1]", '{"no such field": 1}'])
def test_a_filter_that_cannot_be_used(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, where: str
) -> None:
    server.add_run(wandb_project, "r")
    with pytest.raises(UsageError, match="filter"):
        listed(tracker, wandb_project, where=where)


def test_a_project_that_does_not_exist(tracker: ServerTracker, wandb_project: str) -> None:
    with pytest.raises(ProjectNotFound, match=r"no project team/nowhere .* --project"):
        listed(tracker, "nowhere")


@pytest.mark.parametrize("named", ["{}x", "team/{}x"])
def test_a_misspelt_project_is_told(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, named: str
) -> None:
    server.add_run(wandb_project, "r")
    with pytest.raises(ProjectNotFound, match=f"did you mean '{wandb_project}'"):
        listed(tracker, named.format(wandb_project))
    server.trouble = lambda request: Fault(403) if "projects" in request.operation.lower() else None
    with pytest.raises(ProjectNotFound) as caught:
        listed(tracker, named.format(wandb_project))
    assert "did you mean" not in str(caught.value)


def test_projects_of_the_default_entity(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    server.add_run(wandb_project, "r")
    assert wandb_project in tracker.projects()


def test_a_server_without_launch_arguments(server: WandbServer, wandb_project: str) -> None:
    def refuse(request: Request) -> Fault | None:
        return Fault(400, message='Cannot query field "runInfo" on type "Run".') if "runInfo" in request.query else None

    server.add_run(wandb_project, "r", args=["--seed", "1"])
    server.trouble = refuse
    tracker = open_tracker(["wandb"])
    with server.counting() as seen:
        for _ in range(2):
            (run,) = listed(tracker, f"team/{wandb_project}")
            assert run.arguments is None
    tracker.close()
    assert operations(seen) == {"PthTrackerRuns": 3}


def test_the_revision_follows_evidence_and_not_marks(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    stored = server.add_run(wandb_project, "r", {"lr": 1}, [{"loss": 1.0}])

    def revision() -> str:
        (run,) = listed(tracker, wandb_project)
        return run.revision

    seen = [revision()]
    stored.tags.append("pth:fail")
    stored.summary["pth/verdict"] = "fail"
    stored.heartbeat = server.store.now()
    assert revision() == seen[0]
    stored.rows.append({"_step": 1, "loss": 2.0})
    seen.append(revision())
    stored.rows[1]["loss"] = 3.0
    seen.append(revision())
    stored.config["lr"] = {"value": 2}
    seen.append(revision())
    stored.state = "failed"
    seen.append(revision())
    assert len(set(seen)) == 5


# addresses and credentials


def test_another_process_can_open_the_address(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    server.add_run(wandb_project, "r")
    assert server.api_key not in repr(tracker)
    again = open_address(pickle.loads(pickle.dumps(tracker.address)))
    assert [run.name for run in listed(again, wandb_project)] == ["r"]
    again.close()
    assert len(listed(tracker, wandb_project)) == 1, "closing one tracker leaves the other alone"


def test_the_api_key_is_in_nothing_that_is_passed_on(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    server.add_run(wandb_project, "r", rows=[{"loss": 1.0}])
    runs = listed(tracker, wandb_project)
    answers = list(tracker.histories([(run.ref, None) for run in runs]))
    for item in (runs, answers, tracker.address):
        assert server.api_key.encode() not in pickle.dumps(item)
        assert server.api_key not in repr(item)


def test_an_entity_in_the_address(server: WandbServer, wandb_project: str) -> None:
    server.add_run(wandb_project, "r")
    tracker = open_tracker([f"{server.url}/team"])
    assert tracker.address.locations == (f"{server.url}/team",)
    with server.counting() as seen:
        assert [run.name for run in listed(tracker, wandb_project)] == ["r"]
    assert operations(seen) == {"PthTrackerRuns": 1}
    tracker.close()
