from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from conftest import free_port
from nightly.test_notify import receiving
from pth_tracker.cache import Cache
from pth_tracker.cli.nightly import _one_of_many
from pth_tracker.errors import ExitCode, TrackerError
from pth_tracker.findings import Finding, Level
from pth_tracker.nightly import run as nights
from pth_tracker.nightly.config import load_configuration
from pth_tracker.nightly.run import Done, Settings, highest, only_one, run_night
from pth_tracker.nightly.watch import Health, Log
from pth_tracker.past import PastAudit, PastFinding
from synthetic import PROJECT, FakeRun, MemoryTracker, change, comparison, with_config, with_metrics, without_metrics
from test_cache import revised, spoilt


class Lab:
    """A project in memory that is audited night after night, each time through a tracker of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, runs: Sequence[FakeRun]) -> None:
        self.folder = folder
        self.runs = list(runs)
        self.marks: dict[Any, Any] = {}
        self.tracker = MemoryTracker([])
        self.down = ""
        self.log = io.StringIO()
        monkeypatch.setattr(nights, "find_tracker", self._open)

    def _open(self, project: str, locations: Sequence[str]) -> tuple[MemoryTracker, str]:
        if self.down:
            raise TrackerError(self.down)
        self.tracker = MemoryTracker(self.runs)
        self.tracker.held = self.marks
        return self.tracker, "memory, as named"

    def nights(self, entries: str, **settings: Any) -> list[Done]:
        path = self.folder / "pth-tracker.yaml"
        path.write_text(entries, encoding="utf-8")
        chosen = Settings(**{"cache": self.folder / "cache", **settings})
        log = Log(True, self.log)
        return list(run_night(load_configuration(path).audits, chosen, log, Health(None, log)))

    def night(self, extra: str = "", **settings: Any) -> Done:
        (done,) = self.nights(f"audits:\n  - name: lab\n    project: {PROJECT}\n    {extra}\n", **settings)
        return done

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def past(self) -> list[PastAudit]:
        with Cache(self.folder / "cache", read_only=True) as cache:
            return cache.audits(PROJECT)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch, spoilt())


def told(done: Done) -> dict[str, list[str]]:
    assert done.audit is not None and done.audit.since_last is not None, done.error
    news = done.audit.since_last
    kinds: dict[str, tuple[Finding | PastFinding, ...]] = {"new": news.new, "open": news.still_open}
    kinds |= {"resolved": news.resolved}
    return {kind: sorted({one.rule for one in some}) for kind, some in kinds.items() if some}


def test_a_night_on_which_nothing_changed_reads_the_listing_and_nothing_else(lab: Lab) -> None:
    first = lab.night()
    assert lab.tracker.requests == {"runs": 1, "histories": 1, "marks": 1, "apply": 1, "publish": 1}
    before = dict(lab.marks)
    second = lab.night()
    assert lab.tracker.requests == {"runs": 1} and lab.marks == before
    assert first.audit and second.audit and second.hits == 6 and second.status is ExitCode.CHECK_FAILED
    assert first.audit.findings == second.audit.findings and first.audit.coverage == second.audit.coverage
    assert second.audit.write_back and second.audit.write_back.published == "memory run pth-audit"
    assert told(first)["new"] == told(second)["open"] and "new" not in told(second)


def test_a_changed_run_alone_is_read_and_marked_anew(lab: Lab) -> None:
    lab.night()
    mended = with_config(lab.runs, "tis-seed41", {"data.seed": 41})
    lab.runs = [replace(run, source=replace(run.source, revision=f"{run.source.config == old.source.config}"))
                if run.source.config != old.source.config else run for run, old in zip(mended, lab.runs)]  # fmt: skip
    done = lab.night()
    (changed,) = [run for run in lab.runs if run.name == "tis-seed41"]
    assert list(lab.tracker.wanted) == [changed.source.ref]
    assert done.audit and done.audit.write_back
    assert [edit.run for edit in done.audit.write_back.planned] == ["tis-seed41"]
    assert len(lab.tracker.publications) == 1
    assert told(done)["open"] == ["idle-clip", "lost-seed"]


def test_marks_that_somebody_took_off_are_written_again(lab: Lab) -> None:
    lab.night()
    ref = lab.runs[0].source.ref
    kept = dict(lab.marks)
    del lab.marks[ref]
    done = lab.night()
    assert lab.tracker.requests == {"runs": 1, "marks": 1, "apply": 1, "publish": 1}
    assert done.audit and lab.marks.keys() == kept.keys() and lab.marks[ref].tags == kept[ref].tags


def test_the_audit_run_is_written_once_a_week_even_where_nothing_changes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.night()
    monkeypatch.setattr(nights, "REPUBLISH", timedelta(0))
    lab.night()
    assert lab.tracker.requests == {"runs": 1, "publish": 1}


def test_an_audit_run_that_was_left_half_written_is_written_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> str:
        raise KeyboardInterrupt

    lab.night()
    del lab.marks[lab.runs[0].source.ref]
    with monkeypatch.context() as patch:
        patch.setattr(MemoryTracker, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            lab.night()
    lab.night()
    assert lab.tracker.requests == {"runs": 1, "publish": 1}
    lab.night()
    assert lab.tracker.requests == {"runs": 1}


def test_an_audit_run_that_could_not_be_written_is_written_the_next_night(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise TrackerError("no space left")

    lab.night()
    del lab.marks[lab.runs[0].source.ref]
    with monkeypatch.context() as patch:
        patch.setattr(MemoryTracker, "publish", refuse)
        done = lab.night()
        assert done.status is ExitCode.TRACKER and done.audit and done.audit.write_back
        assert "no space left" in done.audit.write_back.errors[0]
        assert [one["message"] for one in lab.events() if one["event"] == "trouble"] == [
            "lab: the audit run could not be written: no space left"
        ]
    lab.night()
    assert lab.tracker.requests == {"runs": 1, "publish": 1}


def test_without_a_cache_everything_is_read_and_nothing_is_called_new(lab: Lab) -> None:
    for _ in range(2):
        done = lab.night(cache=None)
        assert done.audit and done.audit.since_last is None and lab.tracker.requests["histories"] == 1
    assert not (lab.folder / "cache").exists() and len(lab.tracker.publications) == 1


def test_a_cache_that_cannot_be_used_is_said_and_the_audit_goes_on(lab: Lab) -> None:
    (lab.folder / "cache").write_text("a file")
    done = lab.night()
    assert done.status is ExitCode.CHECK_FAILED and done.audit and done.audit.since_last is None
    assert any(event["event"] == "cache" and "no cache" in event["message"] for event in lab.events())


@pytest.mark.parametrize("kept", [True, False])
def test_where_messages_cannot_be_sent_for_want_of_a_cache_the_log_says_so(lab: Lab, kept: bool) -> None:
    with receiving() as receiver:
        lab.night(f"notify: {receiver.url}", **({} if kept else {"cache": None}))
        said = any("no message is sent" in event["message"] for event in lab.events())
        assert (len(receiver.received), said) == ((1, False) if kept else (0, True))


def test_a_dry_run_writes_sends_and_remembers_nothing(lab: Lab) -> None:
    with receiving() as receiver:
        done = lab.night(f"notify: {receiver.url}", dry_run=True)
        assert done.audit and done.audit.write_back and len(done.audit.write_back.planned) == 6
        assert lab.tracker.requests == {"runs": 1, "histories": 1, "marks": 1} and receiver.received == []
        assert lab.past() == []
        lab.night(f"notify: {receiver.url}")
        assert len(receiver.received) == 1 and lab.tracker.requests["histories"] == 0


@pytest.mark.parametrize(("extra", "settings"), [("write: false", {}), ("", {"no_write": True})])
def test_nothing_is_written_where_that_was_asked_for(lab: Lab, extra: str, settings: dict[str, Any]) -> None:
    done = lab.night(extra, **settings)
    assert set(lab.tracker.requests) == {"runs", "histories"} and done.status is ExitCode.CHECK_FAILED
    assert len(lab.past()) == 1
    lab.night()
    assert lab.tracker.requests == {"runs": 1, "marks": 1, "apply": 1, "publish": 1}


def test_messages_tell_of_new_failures_only_and_link(lab: Lab) -> None:
    clean = [run for run in lab.runs if run.name.startswith("tis")]
    clean = revised(with_config(clean, "*", {}), "1")
    whole = lab.runs
    with receiving() as receiver:
        extra = f'notify: {receiver.url}\n    link: "https://wiki/{{name}}"'
        lab.runs = clean
        assert told(lab.night(extra)) == {"new": ["lost-seed"]}
        assert [one["title"] for one in receiver.received] == [f"pth-tracker: 1 new failure in {PROJECT}"]
        lab.night(extra)
        assert len(receiver.received) == 1
        lab.runs = whole
        done = lab.night(extra)
        assert "idle-clip" in told(done)["new"]
        first, second = (one["message"].split("\n") for one in receiver.received)
        assert first[-1] == second[-1] == "https://wiki/lab"
        assert any(line.startswith("- Idle Clip on grpo-") for line in second)
        assert not any("Lost Seed" in line for line in second if line.startswith("- "))


def test_a_message_that_could_not_be_sent_is_reported_and_sent_the_next_night(lab: Lab) -> None:
    port = free_port()
    done = lab.night(f"notify: json://127.0.0.1:{port}/x")
    assert done.status is ExitCode.CHECK_FAILED and "notify.0 (json) could not be sent" in done.troubles[0]
    assert any(event["event"] == "trouble" and event["level"] == "error" for event in lab.events())
    with receiving() as receiver:
        assert "new" not in told(lab.night(f"notify: {receiver.url}"))
        (got,) = receiver.received
        assert "Idle Clip" in got["message"] and "Lost Seed" in got["message"]
        lab.night(f"notify: {receiver.url}")
        assert len(receiver.received) == 1


def test_of_two_addresses_the_one_that_could_not_be_reached_is_told_the_next_night_and_the_other_not_again(
    lab: Lab,
) -> None:
    with receiving() as good, receiving() as late:
        gone = f"json://127.0.0.1:{free_port()}/x"
        done = lab.night(f'notify: ["{good.url}", "{gone}"]')
        assert len(good.received) == 1 and "notify.1 (json) could not be sent" in "".join(done.troubles)
        for _ in range(2):
            done = lab.night(f'notify: ["{good.url}", "{late.url}"]')
            assert done.troubles == () and (len(good.received), len(late.received)) == (1, 1)
        assert late.received[0]["message"] == good.received[0]["message"].replace("new", "still open")


def test_one_audit_failing_does_not_stop_the_others(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.nights("audits: [{name: good, project: " + PROJECT + "}]")
    assert [event["exit"] for event in lab.events() if event["event"] == "audit-end"] == [1]
    entries = f"""\
audits:
  - {{name: no-design, project: {PROJECT}, design: none.yaml}}
  - {{name: no-folder, project: {PROJECT}, outputs: none/report.json}}
  - {{name: no-project, project: other}}
  - {{name: broken, project: {PROJECT}, where: boom}}
  - {{name: good, project: {PROJECT}, outputs: good.json}}
"""
    real = MemoryTracker.runs

    def runs(self: MemoryTracker, query: Any) -> Any:
        if query.where == "boom":
            raise RuntimeError("an adapter's fault")
        return real(self, query)

    monkeypatch.setattr(MemoryTracker, "runs", runs)
    done = lab.nights(entries)
    statuses = {one.name: one.status for one in done}
    assert statuses == {
        "no-design": ExitCode.USAGE,
        "no-folder": ExitCode.USAGE,
        "no-project": ExitCode.USAGE,
        "broken": ExitCode.USAGE,
        "good": ExitCode.CHECK_FAILED,
    }
    errors = {one.name: one.error for one in done}
    assert "none.yaml" in errors["no-design"] and "no folder" in errors["no-folder"]
    assert "there is no project 'other'" in errors["no-project"]
    assert "internal error, please report it (RuntimeError: an adapter's fault)" in errors["broken"]
    assert json.loads((lab.folder / "good.json").read_text())["since_last"]["new"] == []
    assert highest(statuses.values()) is ExitCode.USAGE and highest([]) is ExitCode.OK
    ends = {event["audit"]: event["exit"] for event in lab.events() if event["event"] in ("audit-end", "audit-error")}
    assert ends == {name: int(status) for name, status in statuses.items()}


def test_a_tracker_that_is_down_is_that_audits_error(lab: Lab) -> None:
    lab.night()
    lab.down = "memory cannot be reached"
    done = lab.night()
    assert (done.status, done.error) == (ExitCode.TRACKER, "memory cannot be reached")
    lab.down = ""
    assert "new" not in told(lab.night()) and len(lab.past()) == 2


def test_thresholds_of_the_entry_stand_in_for_those_of_the_design(lab: Lab) -> None:
    (lab.folder / "design.yaml").write_text("rules: {levels: {lost-seed: 'off'}}\n")
    found = told(lab.night("design: design.yaml"))["new"]
    assert "idle-clip" in found and "lost-seed" not in found
    done = lab.night("design: design.yaml\n    rules: {levels: {idle-clip: warn}}")
    levels = {one.rule: one.level for one in done.audit.findings if one.counts} if done.audit else {}
    assert (levels["idle-clip"], levels["lost-seed"]) == (Level.WARN, Level.FAIL)


def test_audits_under_other_filters_are_compared_with_their_own_kind(lab: Lab) -> None:
    assert told(lab.night())["new"]
    assert told(lab.night('where: "tis-*"')) == {"new": ["lost-seed"]}
    assert "new" not in told(lab.night('where: "tis-*"')) and "new" not in told(lab.night())
    assert Counter(one.selection for one in lab.past()) == {"": 2, "where tis-*": 2}


def test_audits_of_one_project_under_other_names_tell_each_its_own_readers_once(lab: Lab) -> None:
    (lab.folder / "design.yaml").write_text("rules: {levels: {lost-seed: 'off'}}\n")
    with receiving() as one, receiving() as other:
        entries = f"""\
audits:
  - {{name: inferred, project: {PROJECT}, notify: "{one.url}"}}
  - {{name: designed, project: {PROJECT}, notify: "{other.url}", design: design.yaml}}
"""
        for _ in range(3):
            done = lab.nights(entries)
        assert ["new" in told(each) or "resolved" in told(each) for each in done] == [False, False]
        assert (len(one.received), len(other.received)) == (1, 1)
        assert "Lost Seed" in one.received[0]["message"] and "Lost Seed" not in other.received[0]["message"]
    assert [past.name for past in lab.past()] == ["inferred", "designed"] * 3


def test_strict_counts_what_could_not_be_judged(lab: Lab) -> None:
    lab.runs = revised(comparison())
    assert lab.night().status is ExitCode.OK
    assert lab.night("strict: true").status is ExitCode.CHECK_FAILED


def test_runs_that_logged_nothing_and_runs_that_still_run_do_not_disturb(lab: Lab) -> None:
    lab.runs = revised(without_metrics(with_metrics(lab.runs, "none", {}), "tis-seed41", "*"))
    lab.runs = change(lab.runs, "grpo-seed41", state="running", ended=None)
    first, second = lab.night(), lab.night()
    assert first.audit and second.audit and first.audit.findings == second.audit.findings


def test_one_process_at_a_time_does_a_configuration(tmp_path: Path) -> None:
    one, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    with only_one(one, tmp_path / "cache") as mine:
        assert mine
        with only_one(one, tmp_path / "cache") as again:
            assert not again
        with only_one(other, tmp_path / "cache") as another:
            assert another
    with only_one(one, tmp_path / "cache") as later:
        assert later


def test_the_lock_works_where_the_cache_folder_does_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with only_one(tmp_path / "a.yaml", tmp_path / "file" / "below") as mine:
        assert mine
        with only_one(tmp_path / "a.yaml", tmp_path / "file" / "below") as again:
            assert not again


@pytest.mark.parametrize(
    ("error", "status"), [(TrackerError("down"), ExitCode.TRACKER), (RuntimeError("a fault"), ExitCode.USAGE)]
)
def test_a_scheduled_run_that_fails_is_not_healthy_with_the_exit_status_of_the_one_before(
    tmp_path: Path, error: Exception, status: ExitCode
) -> None:
    def once() -> ExitCode:
        raise error

    log = Log(True, io.StringIO())
    health = Health(tmp_path / "health.json", log)
    health.update(last_exit=0, audit="lab")
    with suppress(RuntimeError):
        _one_of_many(once, log, health)
    told = json.loads((tmp_path / "health.json").read_text())
    assert (told["last_exit"], told["audit"]) == (int(status), None) and told["last_end"]


def test_the_health_file_is_replaced_as_a_whole_and_a_failure_is_said_once(tmp_path: Path) -> None:
    stream = io.StringIO()
    path = tmp_path / "health.json"
    health = Health(path, Log(True, stream))
    health.update(status="auditing", audit="lab")
    told = json.loads(path.read_text())
    assert (told["status"], told["audit"]) == ("auditing", "lab") and set(told) == {
        "pid", "status", "started", "audit", "last_start", "last_end", "last_exit", "next", "at",
    }  # fmt: skip
    health.beat()  # a minute has not passed
    assert json.loads(path.read_text()) == told
    gone = Health(tmp_path / "none" / "health.json", Log(True, stream))
    gone.update(status="x")
    gone.update(status="y")
    assert stream.getvalue().count("the health file") == 1
