"""The tracker protocol, addresses and how a tracker is found; and that the tracker in memory keeps the contract."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from datetime import timedelta
from importlib.metadata import EntryPoint
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pth_tracker import tracker
from pth_tracker.errors import AdapterUnavailable, ProjectNotFound, TrackerError, UsageError
from pth_tracker.runs import History, RunError, RunState
from pth_tracker.tracker import Address, Candidate, MarkEdit, Marks, Query, Tracker, without_credentials
from synthetic import CLIP, PROJECT, START, MemoryTracker, make_run, unreadable


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("postgresql://audit:hunter2@db/mlflow", "postgresql://audit@db/mlflow"),
        ("http://:hunter2@db", "http://db"),
        ("http://audit@db", "http://audit@db"),
        ("https://h:80/a@b", "https://h:80/a@b"),
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
        ("mysql+pymysql://u:p%40ss@h/db?x=1", "mysql+pymysql://u@h/db?x=1"),
    ],
)
def test_passwords_are_taken_out(uri: str, shown: str) -> None:
    assert without_credentials(uri) == shown


@pytest.mark.parametrize(
    "location", ["nowhere", "nowhere.db", "./mlruns", "~/no/where", "x" * 5000, "no:where", "a\0b"]
)
def test_a_path_that_does_not_exist_is_said_not_to(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="does not exist: give an existing file or folder") as caught:
        tracker.adapter_for(location)
    assert "nothing here reads" not in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "there", "hint"),
    [
        ("stale-samplr", ["rewards", "stale-sampler"], "; did you mean 'stale-sampler'?"),
        ("Rewards", ["rewards"], "; did you mean 'rewards'?"),
        ("rewards", ["something-else"], ""),
        ("", ["rewards"], ""),
        ("rewards", [], ""),
    ],
)
def test_a_misspelt_project_is_told_from_one_that_is_not_there(wanted: str, there: list[str], hint: str) -> None:
    assert tracker.project_hint(wanted, there) == hint


@pytest.mark.parametrize("error", [TrackerError("down"), OSError("gone"), KeyError("x")])
def test_projects_that_cannot_be_listed_give_no_hint_and_no_error(error: Exception) -> None:
    def failing() -> Iterator[str]:
        yield "rewards"
        raise error

    assert tracker.project_hint("reward", failing()) == ""


def test_endless_projects_give_a_hint_all_the_same() -> None:
    assert tracker.project_hint("reward-77", (f"reward-{n}" for n in count(76))) == "; did you mean 'reward-77'?"


def test_addresses_travel() -> None:
    address = Address("mlflow", ("sqlite:///a.db",))
    assert pickle.loads(pickle.dumps(address)) == address and str(address) == "mlflow at sqlite:///a.db"


def test_the_built_in_adapters_import_no_sdk() -> None:
    assert set(tracker.adapters()) == {"files", "mlflow", "wandb"}
    for name in tracker.adapters():
        assert tracker.load_adapter(name).SUMMARY
    with pytest.raises(UsageError, match="there is no adapter 'comet'; installed are files, mlflow, wandb"):
        tracker.load_adapter("comet")
    with pytest.raises(UsageError, match="nothing here reads"):
        tracker.adapter_for("gopher://x")


@pytest.mark.parametrize(
    "locations",
    [
        ["oracle://u:hunter2@h/db"],
        ["postgresql://u:hunter2@h/db", "postgresql://u:hunter2@h2/db"],
        ["postgresql://u:hunter2@h/db", "wandb"],
        ["https://u:hunter2@wandb.ai"],
        ["https://u:hunter2@wandb.ai", "https://wandb.example.org"],
    ],
)
def test_an_address_that_cannot_be_used_is_named_without_its_password(locations: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        tracker.find_tracker("p", locations)
    assert "hunter2" not in str(caught.value) and "u@" in str(caught.value)


@pytest.mark.parametrize("location", ["https://tracking.example.org", "https://tracking.example.org/my-team/"])
def test_the_users_own_wandb_server_is_no_mlflow_server(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "https://tracking.example.org")
    assert tracker.adapter_for(location) == "wandb"
    assert tracker.adapter_for("https://tracking.example.org.uk") == "mlflow"
    assert tracker.adapter_for("https://tracking.example.org:5000") == "mlflow"


class Manifest:
    """An adapter of a third party."""

    SUMMARY = "memory"

    def __init__(self, prefix: str, projects: Sequence[str] = (), offers: Sequence[Candidate] = ()) -> None:
        self.prefix, self.projects, self.offers = prefix, projects, offers
        self.opened: list[MemoryTracker] = []

    def recognises(self, location: str) -> bool:
        return location.startswith(self.prefix)

    def candidates(self) -> Sequence[Candidate]:
        return self.offers

    def open_tracker(self, locations: Sequence[str]) -> Tracker:
        self.opened.append(MemoryTracker([make_run("a", project=name) for name in self.projects]))
        return self.opened[-1]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The adapters that are installed, by name."""
    found: dict[str, Any] = {}
    points = lambda: {name: SimpleNamespace(load=lambda own=own: own) for name, own in found.items()}  # noqa: E731
    monkeypatch.setattr(tracker, "adapters", points)
    return found


def test_locations_of_one_kind_are_opened_as_named(installed: dict[str, Any]) -> None:
    installed.update(one=Manifest("one:"), two=Manifest("two:"))
    opened, why = tracker.find_tracker("p", ["one:a", "one:b"])
    assert opened is installed["one"].opened[0] and why.endswith("as named")
    with pytest.raises(UsageError, match=r"several: one:a \(one\), two:b \(two\); audit them one by one"):
        tracker.find_tracker("p", ["one:a", "two:b"])


def test_a_local_store_is_taken_only_where_it_holds_the_project(installed: dict[str, Any]) -> None:
    local = Manifest("l:", ["other"], [Candidate("l:x", "it is here", 0)])
    server = Manifest("s:", ["p"], [Candidate("s:x", "S_URI is set", 1)])
    account = Manifest("w:", ["p"], [Candidate("w:x", "credentials are stored", 2)])
    installed.update(a=account, l=local, s=server)
    opened, why = tracker.find_tracker("p", [])
    assert opened is server.opened[0] and why.endswith("chosen because S_URI is set")
    assert local.opened[0].closed and not account.opened
    local.projects = ["p"]
    opened, why = tracker.find_tracker("p", [])
    assert opened is local.opened[1] and "it is here" in why


def test_a_local_store_passed_over_tells_what_was_meant(installed: dict[str, Any]) -> None:
    installed.update(l=Manifest("l:", ["rewards", "stale"], [Candidate("l:x", "it is here", 0)]))
    with pytest.raises(UsageError, match="l:x is here and holds rewards, stale; did you mean 'stale'?"):
        tracker.find_tracker("stael", [])


def test_without_any_tracker_the_ways_to_name_one_are_told(installed: dict[str, Any]) -> None:
    installed.update(a=Manifest("a:"))
    with pytest.raises(UsageError, match="--tracker .*MLFLOW_TRACKING_URI"):
        tracker.find_tracker("p", [])


def test_two_adapters_of_one_name_and_one_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    group = tracker.ENTRY_POINT_GROUP
    points = [EntryPoint("x", "no_such_module_a", group), EntryPoint("x", "no_such_module_b", group)]
    monkeypatch.setattr(tracker, "entry_points", lambda group: points)
    with pytest.raises(UsageError, match="two adapters are installed as 'x'"):
        tracker.adapters()
    monkeypatch.setattr(tracker, "entry_points", lambda group: points[:1])
    with pytest.raises(AdapterUnavailable, match="'x' cannot be loaded"):
        tracker.load_adapter("x")


# the contract, on the tracker in memory


def test_the_tracker_in_memory_keeps_the_contract() -> None:
    good, bad = make_run("a", number=2), unreadable(make_run("b", number=1))
    running = make_run("c", number=3, state=RunState.RUNNING, ended=None)
    memory = MemoryTracker([good, bad, running, make_run("d", project="other")], refused=[bad.key])
    protocol: Tracker = memory
    assert isinstance(protocol, Tracker)
    assert memory.projects() == ["other", PROJECT]
    assert [run.name for run in memory.runs(Query(PROJECT))] == ["b", "a", "c"]
    assert [run.name for run in memory.runs(Query(PROJECT, "a*"))] == ["a"]
    assert [run.name for run in memory.runs(Query(PROJECT, since=START + timedelta(hours=2)))] == ["a", "c"]
    with pytest.raises(ProjectNotFound):
        list(memory.runs(Query("none")))
    got = dict(memory.histories([(good.source.ref, [CLIP, "absent"]), (bad.source.ref, None)]))
    history = got[good.source.ref]
    assert isinstance(history, History) and set(history.values) == {CLIP}
    assert isinstance(got[bad.source.ref], RunError)
    refs = [run.source.ref for run in (good, bad, running)]
    edits = [MarkEdit(ref, "x", {"verdict": "pass", "rules": ""}, add_tags=frozenset({"pth:pass"})) for ref in refs]
    results = list(memory.apply(edits))
    assert [(bool(one.error), bool(one.skipped)) for one in results] == [(False, False), (True, False), (False, True)]
    assert memory.marks(refs)[refs[0]] == Marks({"verdict": "pass", "rules": ""}, frozenset({"pth:pass"}))
    undo = MarkEdit(refs[0], "x", {}, frozenset({"rules"}), frozenset(), frozenset({"pth:pass"}))
    list(memory.apply([undo]))
    assert memory.marks(refs)[refs[0]] == Marks({"verdict": "pass"}) and memory.marks(refs)[refs[1]] == Marks()
    memory.down = "gone"
    with pytest.raises(TrackerError, match="gone"):
        memory.projects()
    memory.close()
    with pytest.raises(AssertionError):
        memory.projects()
