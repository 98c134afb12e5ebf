"""Reading from a W&B server: the listing and exact histories, within their budgets of requests."""

from __future__ import annotations

import json
import math
import pickle
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pth_tracker.errors import ProjectNotFound, UsageError
from pth_tracker.runs import History, RunError, RunRef, RunState, SourceRun
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


def history(tracker: Tracker, project: str, name: str, keys: Collection[str] | None = None) -> History:
    (_, found) = next(iter(tracker.histories([(RunRef(f"team/{project}", name), keys)])))
    assert isinstance(found, History), found
    return found


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


# histories


ROWS: list[dict[str, object]] = [
    {"_step": 0, "loss": 1, "clip": 0.0, "text": "a", "_timestamp": 1.0},
    {"_step": 10, "loss": math.nan, "actor": {"kl": 0.25}, "flag": True},
    {"_step": 20, "loss": math.inf, "clip": 0.125, "actor": {"kl": -math.inf}},
    {"_step": 30, "hist": {"_type": "histogram", "values": [1, 2], "bins": [0, 1, 2]}},
    {"_step": 40, "loss": 0.1 + 0.2, "global_step": 7, "actor": {"kl": 3}, "flag": False},
]


def check(found: History) -> None:
    """`ROWS` as a history, written out by hand."""
    assert found.step.tolist() == [0, 10, 20, 40]
    np.testing.assert_array_equal(found.values["loss"], [1.0, math.nan, math.inf, 0.30000000000000004])
    np.testing.assert_array_equal(found.values["clip"], [0.0, math.nan, 0.125, math.nan])
    np.testing.assert_array_equal(found.values["actor.kl"], [math.nan, 0.25, -math.inf, 3.0])
    np.testing.assert_array_equal(found.values["flag"], [math.nan, 1.0, math.nan, 0.0])
    np.testing.assert_array_equal(found.values["global_step"], [math.nan, math.nan, math.nan, 7.0])
    assert {key: steps.tolist() for key, steps in found.nonfinite_at.items()} == {"loss": [10, 20], "actor.kl": [20]}
    assert set(found.values) == {"loss", "clip", "actor.kl", "flag", "global_step"}
    assert found.conflicts == 0


@pytest.mark.parametrize(
    ("files", "live_rows", "expected"),
    [
        (1, 0, {"PthTrackerExports": 1, "GET": 1}),
        (3, 0, {"PthTrackerExports": 1, "GET": 3}),
        (1, 2, {"PthTrackerExports": 1, "GET": 1, "PthTrackerLiveRows": 1}),
        (3, 1, {"PthTrackerExports": 1, "GET": 2, "PthTrackerLiveRows": 1}),
        (1, 5, {"PthTrackerExports": 1, "PthTrackerLiveRows": 1}),
    ],
)
def test_a_history_is_exact_and_within_its_budget(
    tracker: ServerTracker,
    server: WandbServer,
    wandb_project: str,
    files: int,
    live_rows: int,
    expected: dict[str, int],
) -> None:
    server.add_run(wandb_project, "r", rows=ROWS, files=files, live_rows=live_rows)
    with server.counting() as seen:
        check(history(tracker, wandb_project, "r"))
    assert operations(seen) == expected
    assert sum(expected.values()) <= 6


@pytest.mark.parametrize("live_rows", [0, 5])
def test_only_the_keys_asked_for(
    tracker: ServerTracker, server: WandbServer, wandb_project: str, live_rows: int
) -> None:
    server.add_run(wandb_project, "r", rows=ROWS, live_rows=live_rows)
    found = history(tracker, wandb_project, "r", {"actor.kl", "clip", "absent"})
    assert set(found.values) == {"actor.kl", "clip"}
    assert found.step.tolist() == [0, 10, 20, 40]


def test_the_logging_of_the_sdk_reads_back_exactly(tracker: ServerTracker, wandb_project: str, tmp_path: Path) -> None:
    import wandb

    values = [0.1 * index for index in range(30)]
    with wandb.init(project=wandb_project, id="logged", config={"opt": {"value": 3}}, dir=tmp_path) as run:
        for index, value in enumerate(values):
            run.log({"loss": value, "kl": math.nan if index == 3 else float(index)}, step=5 * index)
    (listing,) = listed(tracker, wandb_project)
    assert listing.config == {"opt": {"value": 3}}
    assert listing.state is RunState.FINISHED
    found = history(tracker, wandb_project, "logged")
    assert found.step.tolist() == [5 * index for index in range(30)]
    assert found.values["loss"].tolist() == values
    assert found.nonfinite_at["kl"].tolist() == [15]


def test_a_run_never_exported_and_without_live_steps(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    stored = server.add_run(wandb_project, "r", rows=ROWS, exported=False)

    def hide(request: Request) -> None:
        stored.hide_live_steps = request.operation == "PthTrackerExports"

    server.before = hide
    with server.counting() as seen:
        check(history(tracker, wandb_project, "r"))
    assert operations(seen) == {"PthTrackerExports": 1, "PthTrackerLiveRows": 1}


def test_a_run_without_history_costs_one_request(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    server.add_run(wandb_project, "r")
    with server.counting() as seen:
        assert len(history(tracker, wandb_project, "r")) == 0
    assert operations(seen) == {"PthTrackerExports": 1}


def test_live_rows_are_exact_even_where_the_server_caps_a_page(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    rows = [{"_step": 1000 * index, "loss": float(index)} for index in range(100)]
    server.add_run(wandb_project, "r", rows=rows, exported=False, history_cap=40)
    found = history(tracker, wandb_project, "r")
    assert found.step.tolist() == [1000 * index for index in range(100)]
    assert found.values["loss"].tolist() == [float(index) for index in range(100)]


def test_rows_exported_while_the_run_is_read(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    stored = server.add_run(wandb_project, "r", rows=ROWS, live_rows=2)

    def export(request: Request) -> None:
        if request.operation == "PthTrackerLiveRows":
            stored.export()

    server.before = export
    check(history(tracker, wandb_project, "r"))


def test_the_last_value_at_a_step_wins_across_exports(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    rows = [{"_step": 0, "a": 1.0}, {"_step": 1, "a": 2.0}, {"_step": 1, "a": 3.0}]
    server.add_run(wandb_project, "r", rows=rows, files=3)
    found = history(tracker, wandb_project, "r")
    assert found.values["a"].tolist() == [1.0, 3.0]
    assert found.conflicts == 1


def test_many_runs_at_two_requests_each(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    for index in range(40):
        server.add_run(wandb_project, f"r{index}", rows=[{"loss": float(index + step)} for step in range(5)])
    refs = [RunRef(f"team/{wandb_project}", f"r{index}") for index in range(40)]
    with server.counting() as seen:
        found = dict(tracker.histories([(ref, ["loss"]) for ref in refs]))
    for index, ref in enumerate(refs):
        answer = found[ref]
        assert isinstance(answer, History)
        assert answer.values["loss"].tolist() == [float(index + step) for step in range(5)]
    assert operations(seen) == {"PthTrackerExports": 40, "GET": 40}


def test_nothing_is_left_in_a_cache(tracker: ServerTracker, server: WandbServer, wandb_project: str) -> None:
    import os

    server.add_run(wandb_project, "r", rows=ROWS, live_rows=1)
    history(tracker, wandb_project, "r")
    assert not list(Path(os.environ["WANDB_CACHE_DIR"]).rglob("*.parquet"))


def test_a_run_that_is_gone_is_an_error_and_the_others_go_on(
    tracker: ServerTracker, server: WandbServer, wandb_project: str
) -> None:
    server.add_run(wandb_project, "here", rows=ROWS)
    gone, here = RunRef(f"team/{wandb_project}", "gone"), RunRef(f"team/{wandb_project}", "here")
    found = dict(tracker.histories([(gone, None), (here, None)]))
    assert isinstance(found[gone], RunError)
    assert isinstance(found[here], History)


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
    server.add_run(wandb_project, "r", rows=ROWS)
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
