"""An MLflow server read over REST: the same as its database, exactly, in few requests, and clear when it fails."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

import pth_tracker_mlflow
from pth_tracker.errors import ProjectNotFound, TrackerError, UsageError
from pth_tracker.runs import History, RunError, RunRef
from pth_tracker.tracker import Query, Tracker
from pth_tracker_mlflow import rest
from pth_tracker_mlflow.http import Server
from trackers.mlflow_proxy import Answer, Proxy, proxy
from trackers.mlflow_runs import START, Written, write_experiment

if TYPE_CHECKING:
    from conftest import MlflowServer


@pytest.fixture(scope="module")
def written(mlflow_server: MlflowServer) -> Written:
    return write_experiment(MlflowClient(mlflow_server.uri), f"rl-{uuid.uuid4().hex}")


@pytest.fixture
def through_proxy(mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, Tracker]]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with proxy(mlflow_server.uri) as state:
        tracker = pth_tracker_mlflow.open_tracker([state.uri])
        yield state, tracker
        tracker.close()


@pytest.fixture
def server(mlflow_server: MlflowServer) -> Iterator[Tracker]:
    tracker = pth_tracker_mlflow.open_tracker([mlflow_server.uri])
    yield tracker
    tracker.close()


@pytest.fixture
def database(mlflow_server: MlflowServer) -> Iterator[Tracker]:
    tracker = pth_tracker_mlflow.open_tracker([mlflow_server.store_uri])
    yield tracker
    tracker.close()


def assert_same(left: History | RunError, right: History | RunError) -> None:
    assert isinstance(left, History) and isinstance(right, History)
    np.testing.assert_array_equal(left.step, right.step)
    assert set(left.values) == set(right.values)
    for key, values in left.values.items():
        np.testing.assert_array_equal(values, right.values[key])
    assert left.conflicts == right.conflicts
    assert {k: v.tolist() for k, v in left.nonfinite_at.items()} == {
        k: v.tolist() for k, v in right.nonfinite_at.items()
    }


def test_the_server_gives_what_its_database_gives(server: Tracker, database: Tracker, written: Written) -> None:
    over_rest = list(server.runs(Query(written.experiment)))
    by_sql = list(database.runs(Query(written.experiment)))
    assert [replace(run, url="") for run in over_rest] == by_sql
    assert len(by_sql) == 5 and all(run.revision for run in by_sql)
    assert server.projects() == database.projects()
    requests = [(run.ref, None) for run in by_sql]
    left, right = dict(server.histories(requests)), dict(database.histories(requests))
    assert set(left) == set(right) == {run.ref for run in by_sql}
    for ref, answer in left.items():
        assert_same(answer, right[ref])
    refs = [run.ref for run in by_sql]
    assert server.marks(refs) == database.marks(refs)
    assert server.marks([RunRef(written.experiment, written.ids["child"])]).popitem()[1].values["verdict"] == "fail"  # type: ignore[attr-defined]


def test_a_run_links_to_its_page(server: Tracker, mlflow_server: MlflowServer, written: Written) -> None:
    run = next(iter(server.runs(Query(written.experiment))))
    assert run.url == f"{mlflow_server.uri}/#/experiments/{written.number}/runs/{run.ref.run_id}"


def test_since_where_and_absent_projects(server: Tracker, written: Written) -> None:
    def names(**chosen: object) -> list[str]:
        return [run.name for run in server.runs(Query(written.experiment, **chosen))]  # type: ignore[arg-type]

    since = datetime.fromtimestamp((START + 2000) / 1000, UTC)
    assert names(since=since) == ["grpo-seed1", "long", "child", "pth-audit"]
    assert names(since=since, where="attributes.status = 'KILLED'") == ["child"]
    with pytest.raises(UsageError, match="--where"):
        names(where="params.lr = 1 or true")
    with pytest.raises(ProjectNotFound, match=f"did you mean '{written.experiment}'"):
        list(server.runs(Query(written.experiment[:-1])))


def test_experiments_that_cannot_be_listed_leave_the_error_as_it_is(
    server: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Server.post

    def refusing(self: Server, path: str, *arguments: Any, **options: Any) -> Any:
        if path == "/experiments/search":
            raise TrackerError("the listing is refused")
        return post(self, path, *arguments, **options)

    monkeypatch.setattr(Server, "post", refusing)
    with pytest.raises(ProjectNotFound, match="there is no experiment 'nowhere' in .*: check --project"):
        list(server.runs(Query("nowhere")))
    with pytest.raises(TrackerError, match="the listing is refused"):
        list(server.runs(Query("")))


def test_a_deleted_experiment_is_absent_and_said_to_be_deleted(server: Tracker, mlflow_server: MlflowServer) -> None:
    client, name = MlflowClient(mlflow_server.uri), f"gone-{uuid.uuid4().hex}"
    client.delete_experiment(client.create_experiment(name))
    with pytest.raises(ProjectNotFound, match="is deleted"):
        list(server.runs(Query(name)))
    assert name not in server.projects()


def test_what_a_limit_cuts_off_is_asked_again(
    through_proxy: tuple[Proxy, Tracker], written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, tracker = through_proxy
    ref = RunRef(written.experiment, written.ids["long"])
    [(_, answer)] = tracker.histories([(ref, {"loss"})])
    assert isinstance(answer, History)
    np.testing.assert_array_equal(answer.values["loss"], np.sin(np.arange(3000)))
    assert state.count("get-history-bulk") == 1 and state.count("get-history") == 0
    # With 700 points an answer, the long run needs five pages of its own.
    monkeypatch.setattr(rest, "POINTS_PER_REQUEST", 700)
    [(_, answer)] = tracker.histories([(ref, {"loss"})])
    assert isinstance(answer, History)
    np.testing.assert_array_equal(answer.values["loss"], np.sin(np.arange(3000)))
    assert state.count("get-history") == 5


def test_runs_of_different_length_share_requests_and_stay_whole(
    through_proxy: tuple[Proxy, Tracker], mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(mlflow_server.uri)
    number = client.create_experiment(name := f"many-{uuid.uuid4().hex}")
    lengths: dict[RunRef, int] = {}
    for length in (1, 40, 0, 60, 100, 99, 2, 250):
        run_id = client.create_run(number).info.run_id
        # Steps far apart, as an environment's step counter is.
        points = [Metric("loss", float(index), START + index, 10_000 * index) for index in range(length)]
        client.log_batch(run_id, metrics=points)
        lengths[RunRef(name, run_id)] = length
    monkeypatch.setattr(rest, "POINTS_PER_REQUEST", 100)
    state, tracker = through_proxy
    answers = dict(tracker.histories([(ref, {"loss", "absent"}) for ref in lengths]))
    for ref, length in lengths.items():
        answer = answers[ref]
        assert isinstance(answer, History)
        steps, values = answer.series("loss")
        np.testing.assert_array_equal(values, np.arange(length, dtype=float))
        np.testing.assert_array_equal(steps, 10_000 * np.arange(length))


def test_requests_do_not_grow_with_the_runs(through_proxy: tuple[Proxy, Tracker], written: Written) -> None:
    state, tracker = through_proxy
    runs = list(tracker.runs(Query(written.experiment)))
    assert state.count("runs/search") == 1
    keys = {"loss", "mixed", "actor/loss"}
    with_points = [run for run in runs if run.metric_keys]
    list(tracker.histories([(run.ref, keys) for run in with_points]))
    assert state.count("get-history-bulk") == len(keys)
    tracker.marks([run.ref for run in runs])
    assert state.count("runs/search") == 2


def test_a_server_without_the_bulk_endpoint_is_read_run_by_run(
    through_proxy: tuple[Proxy, Tracker], database: Tracker, written: Written
) -> None:
    state, tracker = through_proxy
    state.rule = lambda path, body: (404, b"<html>Not Found</html>") if "/ajax-api/" in path else None
    requests = [(run.ref, run.metric_keys) for run in database.runs(Query(written.experiment))]
    left, right = dict(tracker.histories(requests)), dict(database.histories(requests))
    for ref, answer in left.items():
        assert_same(answer, right[ref])
    assert state.count("get-history-bulk") <= rest.THREADS and state.count("get-history") > 0


def test_a_run_the_server_cannot_answer_for_is_an_error_and_the_others_go_on(
    through_proxy: tuple[Proxy, Tracker], written: Written
) -> None:
    state, tracker = through_proxy
    bad = written.ids["odd"]

    def rule(path: str, body: str) -> Answer | None:
        failed = {"error_code": "INTERNAL_ERROR", "message": "row is broken\n\x1b[31m"}
        return (500, json.dumps(failed).encode()) if "get-history" in path and bad in path else None

    state.rule = rule
    refs = [RunRef(written.experiment, run_id) for run_id in (bad, written.ids["grpo-seed1"], written.ids["long"])]
    absent = RunRef(written.experiment, "f" * 32)
    keys = {"loss", "actor/loss", "mixed"}
    answers = dict(tracker.histories([(ref, keys) for ref in [*refs, absent]]))
    broken, gone = answers[refs[0]], answers[absent]
    assert isinstance(broken, RunError) and "row is broken" in broken.message
    assert "\x1b" not in broken.message and "\n" not in broken.message
    assert isinstance(gone, RunError) and "no longer" in gone.message
    for ref, length in zip(refs[1:], (10, 3000)):
        answer = answers[ref]
        assert isinstance(answer, History) and len(answer) == length


def test_a_server_that_fails_for_every_run_is_given_up(through_proxy: tuple[Proxy, Tracker]) -> None:
    state, tracker = through_proxy
    state.rule = lambda path, body: (503, b"") if "get-history" in path else None
    refs = [RunRef("any", f"{number:032x}") for number in range(100)]
    with pytest.raises(TrackerError, match="503"):
        list(tracker.histories([(ref, {"loss"}) for ref in refs]))
    assert len(state.requests) < 10


def test_a_page_that_comes_again_is_refused_not_counted_twice(
    through_proxy: tuple[Proxy, Tracker], written: Written
) -> None:
    state, tracker = through_proxy

    def rule(path: str, body: str) -> Answer | None:
        if "/ajax-api/" in path:
            return 404, b""
        return (200, b'{"metrics": [], "next_page_token": "again"}') if "get-history" in path else None

    state.rule = rule
    ref = RunRef(written.experiment, written.ids["long"])
    [(_, answer)] = tracker.histories([(ref, {"loss"})])
    assert isinstance(answer, RunError) and "exact" in answer.message


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (401, "no", "401.*MLFLOW_TRACKING_USERNAME"),
        (403, "Invalid Host header - possible DNS rebinding attack detected", "403.*Invalid Host header"),
        (404, "<html>nginx</html>", "404.*no MLflow server"),
        (500, '{"error_code": "INTERNAL_ERROR", "message": "disk full"}', "500.*disk full"),
        (200, "<html>Please sign in</html>", "does not answer as an MLflow server"),
        (200, "[]", "does not answer as an MLflow server"),
    ],
)
def test_refusals_are_one_sentence(status: int, body: str, told: str) -> None:
    with proxy("") as state:
        state.rule = lambda path, text: (status, body.encode())
        with pytest.raises(TrackerError, match=told) as caught:
            pth_tracker_mlflow.open_tracker([state.uri])
    assert state.uri in str(caught.value) and "\n" not in str(caught.value) and "html" not in str(caught.value)
    assert len(state.requests) <= 2


def test_a_server_that_is_away_is_told_quickly_with_its_address() -> None:
    with proxy("") as state:
        address = state.uri
    with pytest.raises(TrackerError, match=r"cannot be reached: Connection refused") as caught:
        pth_tracker_mlflow.open_tracker([address])
    assert address in str(caught.value)
    with pytest.raises(TrackerError, match="cannot be reached"):
        pth_tracker_mlflow.open_tracker(["http://no-such-host.invalid:5000"])
