"""Exact histories of W&B runs, within their budget of requests."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pth_tracker.runs import History, RunError, RunRef, RunState
from pth_tracker.tracker import Query
from pth_tracker_wandb import open_tracker
from pth_tracker_wandb.server import ServerTracker
from wandb_server.server import Request, WandbServer


@pytest.fixture(scope="module")
def tracker(wandb_environment: WandbServer) -> Iterator[ServerTracker]:
    opened = open_tracker(["wandb"])
    assert isinstance(opened, ServerTracker)
    yield opened
    opened.close()


@pytest.fixture
def server(wandb_environment: WandbServer) -> WandbServer:
    return wandb_environment


def history(tracker: ServerTracker, project: str, name: str, keys: Collection[str] | None = None) -> History:
    (_, found) = next(iter(tracker.histories([(RunRef(f"team/{project}", name), keys)])))
    assert isinstance(found, History), found
    return found


def operations(requests: list[Request]) -> Counter[str]:
    return Counter(request.operation for request in requests)


ROWS: list[dict[str, Any]] = [
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
    (listing,) = tracker.runs(Query(wandb_project))
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
