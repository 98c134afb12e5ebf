from __future__ import annotations

import multiprocessing
import os
import pickle
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pth_tracker import cache as kept
from pth_tracker.cache import FILE_NAME, Cache, cache_folder, clear_cache, examination_key
from pth_tracker.engine import Options, audit
from pth_tracker.examine import Examination, Unit, examine_history
from pth_tracker.findings import Level
from pth_tracker.model import Audit, Plan
from pth_tracker.past import PastAudit, PastFinding
from pth_tracker.render.json_v1 import to_json
from pth_tracker.runs import Marks, Run
from pth_tracker.tracker import Address, Tracker, find_tracker
from synthetic import (
    ARMS,
    ONE_STEP,
    PROJECT,
    FakeRun,
    MemoryTracker,
    change,
    comparison,
    cut,
    idle,
    make_run,
    with_config,
    with_metrics,
)
from test_codec import same

ADDRESS = Address("memory", ("memory",))
PLAN = Plan(rules=("idle-clip",), quantities=("clip_fraction", "sampler_k3_kl", "lr"))
WHEN = datetime(2026, 3, 1, 3, tzinfo=UTC)


def revised(runs: Sequence[FakeRun], revision: str = "1") -> list[FakeRun]:
    return [replace(run, source=replace(run.source, revision=revision)) for run in runs]


def spoilt() -> list[FakeRun]:
    runs = with_metrics(comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, (41, 42, 43)), "grpo-*", idle())
    return revised(with_config(runs, "tis-*", {"data.seed": None}))


def unit_of(run: FakeRun, **changes: Any) -> Unit:
    return Unit(Run((replace(run.source, **{"revision": "1", **changes}),), "verl", "0.7.1", run.name), ("a", "b"))


def examined(run: FakeRun) -> Examination:
    return examine_history(unit_of(run).run, run.history, PLAN)


def in_json(report: Audit) -> str:
    report.audited_at = WHEN
    return to_json(report)


def audited(tracker: Tracker, cache: Cache | None, project: str = PROJECT) -> str:
    return in_json(audit(tracker, Options(project=project), cache=cache))


def twice(tracker: Tracker, folder: Path, project: str = PROJECT) -> tuple[str, str, str]:
    """The audit without a cache, with an empty one, and with a full one."""
    without = audited(tracker, None, project)
    results = []
    for _ in range(2):
        with Cache(folder) as cache:
            results.append(audited(tracker, cache, project))
            assert cache.notes == []
    return without, results[0], results[1]


def test_a_hit_gives_exactly_the_same_audit_as_a_miss_and_reads_no_history(tmp_path: Path) -> None:
    tracker = MemoryTracker(spoilt())
    without, missed, hit = twice(tracker, tmp_path)
    assert without == missed == hit
    assert tracker.requests["histories"] == 2


def test_every_examination_comes_back_exactly(tmp_path: Path) -> None:
    runs = spoilt()
    with Cache(tmp_path) as cache:
        for run in runs:
            cache.keep(ADDRESS, unit_of(run), PLAN, examined(run))
    with Cache(tmp_path) as cache:
        found = cache.found(ADDRESS, [unit_of(run) for run in runs], PLAN)
    assert len(found) == len(runs)
    assert all(same(found[run.key], examined(run)) for run in runs)


def test_the_demos_audit_is_the_same_from_the_cache(demo_store: Path, tmp_path: Path) -> None:
    opened, _ = find_tracker("rl-stale-demo", [f"sqlite:///{demo_store}"])
    without, missed, hit = twice(opened, tmp_path / "cache", "rl-stale-demo")
    opened.close()
    assert without == missed == hit
    assert '"Idle Clip"' in hit and '"Stuck Batch"' in hit


def test_only_changed_runs_are_read_again(tmp_path: Path) -> None:
    runs = spoilt()
    with Cache(tmp_path) as cache:
        audited(MemoryTracker(runs), cache)
    longer = [*runs[:-1], replace(runs[-1], source=replace(runs[-1].source, revision="2"))]
    tracker = MemoryTracker(longer)
    with Cache(tmp_path) as cache:
        audited(tracker, cache)
    assert [ref.run_id for ref in tracker.wanted] == [longer[-1].key]


def test_a_restarted_run_is_the_same_from_the_cache(tmp_path: Path) -> None:
    whole = make_run("a-seed43")
    assert whole.source.created is not None
    ended = whole.source.created + timedelta(minutes=10)
    first = cut(whole, 30, ended=ended)
    first = change([first], first.name, state="crashed")[0]
    again = make_run("a-seed43", run_id="again", created=ended + timedelta(minutes=1), ended=ended + timedelta(hours=1))
    tracker = MemoryTracker(revised([first, again]))
    without, missed, hit = twice(tracker, tmp_path)
    assert without == missed == hit and hit.count('"again"') > 0
    assert tracker.requests["histories"] == 4, "each pass reads the whole run, then its two attempts; the third none"


@pytest.mark.parametrize(
    "change",
    [
        {"revision": "2"}, {"name": "other"}, {"config": {"a": 1}}, {"tags": ("x",)}, {"group": "g"}, {"last_step": 99},
        {"metric_keys": frozenset({"z"})}, {"arguments": ("a=1",)}, {"log_markers": ("skip",)}, {"commit": "abc"},
    ],
)  # fmt: skip
def test_everything_that_examining_reads_is_in_the_key(change: dict[str, Any]) -> None:
    run = make_run("a-seed41")
    assert examination_key(ADDRESS, unit_of(run, **change), PLAN) != examination_key(ADDRESS, unit_of(run), PLAN)


def test_the_key_tells_trackers_plans_parts_and_vocabularies_apart(tmp_path: Path) -> None:
    run = unit_of(make_run("a-seed41"))
    mine = tmp_path / "mine.yaml"
    mine.write_text("framework: mine\nabout: My own trainer.\n")
    two = Unit(replace(run.run, parts=(*run.run.parts, *unit_of(make_run("b-seed41")).run.parts)), run.keys)
    keys = [
        examination_key(ADDRESS, run, PLAN),
        examination_key(Address("memory", ("elsewhere",)), run, PLAN),
        examination_key(ADDRESS, run, replace(PLAN, kl_tolerance=0.06)),
        examination_key(ADDRESS, two, PLAN),
        examination_key(ADDRESS, Unit(run.run, ("a",)), PLAN),
        examination_key(ADDRESS, run, replace(PLAN, vocabularies=(mine,))),
    ]
    assert len(set(keys)) == len(keys)
    same_text = tmp_path / "copy.yaml"
    same_text.write_text(mine.read_text())
    assert keys[-1] == examination_key(ADDRESS, run, replace(PLAN, vocabularies=(same_text,)))


def test_our_own_marks_and_the_time_a_run_ended_are_not_in_the_key() -> None:
    run = make_run("a-seed41")
    marked = unit_of(run, marks=Marks({"verdict": "fail"}), ended=WHEN)
    assert examination_key(ADDRESS, marked, PLAN) == examination_key(ADDRESS, unit_of(run), PLAN)


def test_a_run_whose_revision_is_unknown_is_never_kept(tmp_path: Path) -> None:
    tracker = MemoryTracker(revised(spoilt(), ""))
    without, missed, hit = twice(tracker, tmp_path)
    assert without == missed == hit and tracker.requests["histories"] == 3


def test_an_unreadable_run_is_tried_again(tmp_path: Path) -> None:
    runs = spoilt()
    broken = [replace(runs[0], error="the server answered 500"), *runs[1:]]
    with Cache(tmp_path) as cache:
        assert "the server answered 500" in audited(MemoryTracker(broken), cache)
    with Cache(tmp_path) as cache:
        assert "the server answered 500" not in audited(tracker := MemoryTracker(runs), cache)
    assert [ref.run_id for ref in tracker.wanted] == [runs[0].key]


def past(configuration: str = "c", *, days: int = 0, **changes: Any) -> PastAudit:
    finding = PastFinding(
        "idle-clip", 1, Level.FAIL, "title", "Idle Clip", ("grpo",), ("r1",), ("grpo-s1",), ("notify.0",)
    )
    facts: dict[str, Any] = {"findings": (finding,), "published": "run x", "published_at": WHEN, "publication": "ab"}
    base = PastAudit(configuration, "p", "memory at memory", WHEN + timedelta(days=days), counts={"fail": 1})
    return replace(base, **{**facts, **changes})


def test_past_audits_come_back_exactly_the_latest_of_a_configuration_first(tmp_path: Path) -> None:
    first, second, other = past(), past(days=1, findings=(), published_at=None), past("d", project="q")
    with Cache(tmp_path) as cache:
        for one in (first, second, other):
            cache.add_audit(one)
    with Cache(tmp_path, read_only=True) as cache:
        assert cache.last_audit("c") == second and cache.last_audit("d") == other and cache.last_audit("x") is None
        assert cache.audits("p") == [first, second] and cache.projects() == ["p", "q"]


def test_past_audits_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_AUDITS", 3)
    with Cache(tmp_path) as cache:
        cache.add_audit(past("other"))
        for day in range(5):
            cache.add_audit(past(days=day))
        assert [one.audited_at.day for one in cache.audits("p")] == [1, 3, 4, 5]


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = spoilt()
    units = [unit_of(run) for run in runs]
    for place, run in enumerate(runs):
        monkeypatch.setattr(time, "time", lambda place=place: 1e9 + place)
        with Cache(tmp_path) as cache:
            cache.keep(ADDRESS, units[place], PLAN, examined(run))
    monkeypatch.setattr(time, "time", lambda: 1e9 + 99)
    with Cache(tmp_path) as cache:
        assert len(cache.found(ADDRESS, units[:1], PLAN)) == 1
    size = sqlite3.connect(tmp_path / FILE_NAME).execute("SELECT sum(size) FROM examinations").fetchone()[0]
    monkeypatch.setattr(kept, "MAX_BYTES", size * 0.6)
    with Cache(tmp_path):
        pass
    with Cache(tmp_path) as cache:
        left = set(cache.found(ADDRESS, units, PLAN))
        assert runs[0].key in left and runs[-1].key in left and runs[1].key not in left and 2 <= len(left) <= 4
    monkeypatch.setattr(time, "time", lambda: 1e9 + 200 * 86_400)
    with Cache(tmp_path):
        pass
    with Cache(tmp_path) as cache:
        assert cache.info().examinations == 0
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,), "the file itself shrinks"


@pytest.mark.parametrize("damage", [b"no database at all" * 99, b"SQLite format 3\0" + bytes(4000)])
def test_a_damaged_file_is_moved_aside_and_begun_anew(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(damage)
    run = make_run("a-seed41")
    with Cache(tmp_path) as cache:
        (note,) = cache.notes
        assert "was damaged" in note and "begun anew" in note
        cache.keep(ADDRESS, unit_of(run), PLAN, examined(run))
    with Cache(tmp_path) as cache:
        assert cache.notes == [] and len(cache.found(ADDRESS, [unit_of(run)], PLAN)) == 1
    (aside,) = tmp_path.glob("*.damaged-*")
    assert aside.read_bytes() == damage
    assert clear_cache(tmp_path) > 0 and not list(tmp_path.iterdir())


def test_a_database_of_another_make_is_moved_aside(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("CREATE TABLE examinations (other TEXT, used REAL)")
    connection.close()
    tracker = MemoryTracker(spoilt())
    with Cache(tmp_path) as cache:
        expected = audited(tracker, cache)
        assert any("begun anew" in note for note in cache.notes)
    with Cache(tmp_path) as cache:
        assert audited(tracker, cache) == expected and cache.notes == []
    assert tracker.requests["histories"] <= 2


def test_an_examination_that_cannot_be_kept_is_read_again(tmp_path: Path) -> None:
    run = make_run("a-seed41")
    odd = replace(examined(run), notes=(object(),))  # type: ignore[arg-type]
    with Cache(tmp_path) as cache:
        cache.keep(ADDRESS, unit_of(run), PLAN, odd)
        assert cache.notes == ["an examination of a-seed41 cannot be kept: object is not kept"]
    with Cache(tmp_path) as cache:
        assert cache.found(ADDRESS, [unit_of(run)], PLAN) == {}


def test_a_process_that_stays_sees_edited_vocabularies(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    plan = replace(PLAN, vocabularies=(mine,))
    keys = []
    for about in ("One.", "Another."):
        mine.write_text(f"framework: mine\nabout: {about}\n")
        kept.forget_files()
        keys.append(examination_key(ADDRESS, unit_of(make_run("a-seed41")), plan))
    assert keys[0] != keys[1]


def test_pages_damaged_in_the_middle_never_stop_an_audit(tmp_path: Path) -> None:
    tracker = MemoryTracker(spoilt())
    with Cache(tmp_path) as cache:
        expected = audited(tracker, cache)
    path = tmp_path / FILE_NAME
    content = bytearray(path.read_bytes())
    content[4096:-4096] = os.urandom(len(content) - 8192)
    path.write_bytes(content)
    with Cache(tmp_path) as cache:
        assert audited(tracker, cache) == expected
        assert any("damaged" in note for note in cache.notes)
    with Cache(tmp_path) as cache:
        assert audited(tracker, cache) == expected and cache.notes == []


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("exploded"),))


def test_what_another_wrote_into_the_file_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tracker = MemoryTracker(spoilt())
    with Cache(tmp_path) as cache:
        expected = audited(tracker, cache)
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("UPDATE examinations SET body = ?", (pickle.dumps(Bomb()),))
    connection.close()
    with Cache(tmp_path) as cache:
        assert audited(tracker, cache) == expected
        assert cache.notes == ["6 kept examinations were damaged and are made again"]
    assert not (tmp_path / "exploded").exists()


def test_an_examination_of_another_run_is_no_hit(tmp_path: Path) -> None:
    one, other = make_run("a-seed41"), make_run("b-seed42")
    with Cache(tmp_path) as cache:
        cache.keep(ADDRESS, unit_of(one), PLAN, examined(other))
        cache.flush()
        assert cache.found(ADDRESS, [unit_of(one)], PLAN) == {}


def test_a_folder_that_cannot_be_made_means_no_cache_and_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Cache(tmp_path / "file" / "below") as cache:
        (note,) = cache.notes
        assert note.startswith("no cache: ") and "PTH_TRACKER_CACHE" in note and not cache.usable
        assert audited(MemoryTracker(spoilt()), cache) == audited(MemoryTracker(spoilt()), None)
        assert cache.last_audit("c") is None and cache.info().examinations == 0
        cache.add_audit(past())


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_is_only_readable(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.add_audit(past())
    tmp_path.chmod(0o500)
    try:
        with Cache(tmp_path) as cache:
            assert "no cache" in cache.notes[0]
        with Cache(tmp_path, read_only=True) as cache:
            assert cache.last_audit("c") == past() and cache.notes == []
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_is_only_readable_is_read_as_one_that_nobody_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path) as cache:
        cache.add_audit(past())
    monkeypatch.setattr(os, "access", lambda *_: False)
    with Cache(tmp_path, read_only=True) as cache:
        assert cache.last_audit("c") == past() and cache.notes == []
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]


def test_reading_makes_no_file_and_writes_nothing(tmp_path: Path) -> None:
    with Cache(tmp_path / "none", read_only=True) as cache:
        assert cache.last_audit("c") is None and cache.notes == []
    assert not (tmp_path / "none").exists()
    with Cache(tmp_path) as cache:
        cache.add_audit(past())
    before = (tmp_path / FILE_NAME).read_bytes()
    run = make_run("a-seed41")
    with Cache(tmp_path, read_only=True) as cache:
        cache.keep(ADDRESS, unit_of(run), PLAN, examined(run))
        cache.add_audit(past(days=1))
        assert cache.info().audits == 1
    assert (tmp_path / FILE_NAME).read_bytes() == before


def write_some(folder: str, first: int) -> int:
    with Cache(Path(folder)) as cache:
        for number in range(first, first + 20):
            run = make_run(f"r-seed{number}")
            cache.keep(ADDRESS, unit_of(run), PLAN, examined(run))
            cache.flush()
            cache.add_audit(past(f"c{first}", days=number))
        return len(cache.notes)


def test_two_processes_write_at_once_and_lose_nothing(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.starmap(write_some, [(str(tmp_path), 0), (str(tmp_path), 100)]) == [0, 0]
    with Cache(tmp_path) as cache:
        info = cache.info()
        assert (info.examinations, info.audits) == (40, 40) and info.size > 0


def test_the_folder_is_the_users_cache_folder_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PTH_TRACKER_CACHE", raising=False)
    assert cache_folder().name == "pth-tracker"
    monkeypatch.setenv("PTH_TRACKER_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path and cache_folder(tmp_path / "x") == tmp_path / "x"


def test_others_cannot_read_the_file(tmp_path: Path) -> None:
    with Cache(tmp_path / "new"):
        pass
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0
    assert (tmp_path / "new" / FILE_NAME).stat().st_mode & 0o077 == 0
