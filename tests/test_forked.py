"""Examining in forked processes yields what examining in one does."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import verl_logs
from examinations import by_run
from pth_tracker import forked
from pth_tracker.design.stitch import stitch
from pth_tracker.examine import Examination, Unit, examine, units_of
from pth_tracker.model import Plan
from pth_tracker.runs import RunError
from pth_tracker.tracker import Query, Tracker, load_adapter
from pth_tracker.vocabulary.load import load_vocabulary

RUNS = 11
PLAN = Plan(rules=("idle-clip", "stuck-batch"), quantities=("clip_fraction", "sampler_k3_kl", "lr"))


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tracker, list[Unit]]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    for index in range(RUNS):
        verl_logs.make_log("0.7.1", 12, seed=index).write(tmp_path / f"run-{index}.txt")
    (tmp_path / "run-3.txt").chmod(0)
    tracker = load_adapter("files").open_tracker([str(tmp_path)])
    return tracker, units_of(stitch(load_vocabulary(), tracker.runs(Query())), PLAN)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_the_results_are_those_of_one_process(opened: tuple[Tracker, list[Unit]]) -> None:
    tracker, units = opened
    alone = by_run(list(examine(tracker, units, PLAN)))
    assert len(alone) == len(units) >= RUNS - 1
    assert by_run(list(forked.examine_forked(tracker, units, PLAN))) == alone


def test_it_stays_in_one_process_where_forking_is_not_safe_or_not_worth_it(
    opened: tuple[Tracker, list[Unit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, units = opened
    expected = by_run(list(examine(tracker, units, PLAN)))

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", refuse)
    few = units[: forked.LEAST_UNITS - 1]
    assert len(list(forked.examine_forked(tracker, few, PLAN))) == len(few)
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert by_run(list(forked.examine_forked(tracker, units, PLAN))) == expected
    finally:
        stop.set()
        thread.join()
    monkeypatch.setattr(type(tracker), "holds_histories", False)
    assert by_run(list(forked.examine_forked(tracker, units, PLAN))) == expected


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.parametrize("doomed", [0, 5])
def test_what_a_process_that_was_ended_leaves_is_examined_here(
    opened: tuple[Tracker, list[Unit]], monkeypatch: pytest.MonkeyPatch, doomed: int
) -> None:
    tracker, units = opened
    expected = by_run(list(examine(tracker, units, PLAN)))

    def killed(own: Tracker, share: Sequence[Unit], plan: Plan) -> Iterator[Examination | RunError]:
        if multiprocessing.parent_process() is not None and units[doomed] in share:
            os._exit(1)
        return examine(own, share, plan)

    monkeypatch.setattr(forked, "examine", killed)
    found = list(forked.examine_forked(tracker, units, PLAN))
    assert len(found) == len(units) and by_run(found) == expected
