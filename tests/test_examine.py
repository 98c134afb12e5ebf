from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from pth_tracker.checks import all_rules
from pth_tracker.design.stitch import recognise
from pth_tracker.examine import (
    WITNESS_POINTS,
    Examination,
    Unit,
    block_hashes,
    examine,
    examine_history,
    units_of,
)
from pth_tracker.model import Plan, Scope
from pth_tracker.runs import Run, RunError
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import CLIP, SCORE, FakeRun, MemoryTracker, make_run, unreadable, without_metrics

QUANTITIES = tuple(sorted(load_vocabulary().quantities))


def plan(**options: Any) -> Plan:
    rules = tuple(rule.slug for rule in all_rules() if rule.scope is Scope.RUN)
    return Plan(rules, QUANTITIES, **{"metric": SCORE, **options})


def logical(run: FakeRun) -> Run:
    return recognise(load_vocabulary(), [run.source], run.name)


def examined(run: FakeRun, **options: Any) -> Examination:
    return examine_history(logical(run), run.history, plan(**options))


def test_a_long_run_is_kept_small_and_travels() -> None:
    run = make_run("long-seed43", updates=20_000)
    result = examined(run)
    size = len(pickle.dumps(result))
    assert size <= 150_000, size
    assert result.last_update == 20_000 and len(result.score_step) == len(result.score_values) < 4001
    assert result.score_step[0] == 0 and result.score_step[-1] == 20_000
    witness = result.quantities["prompt_length_mean"]
    assert witness.count == 20_000 and len(witness.values) == WITNESS_POINTS
    np.testing.assert_array_equal(witness.values, run.history.values["prompt_length/mean"][1 : WITNESS_POINTS + 1])
    assert pickle.loads(pickle.dumps(plan())) == plan()


@pytest.mark.parametrize(
    ("at", "higher", "score"),
    [("last", True, 0.2), ("best", True, 0.9), ("best", False, 0.1), (10, True, 0.25), (1, True, 0.2), (99, True, 0.4)],
)
def test_reductions_of_the_score(at: str | int, higher: bool, score: float) -> None:
    run = make_run("a", metrics={SCORE: {0: 0.1, 20: 0.9, 40: 0.5, 51: 0.3, 60: 0.2}})
    assert examined(run, at=at, higher_is_better=higher).score == pytest.approx(score)


def test_every_rule_of_run_scope_has_an_outcome_whatever_was_logged() -> None:
    for run in (make_run("a"), *without_metrics([make_run("b")], "*"), make_run("c", config={})):
        slugs = [outcome.rule for outcome in examined(run).outcomes]
        assert slugs == [rule.slug for rule in all_rules() if rule.scope is Scope.RUN]
        assert all(bool(one.met) != bool(one.missing) for one in examined(run).outcomes)


def test_only_wanted_metrics_are_asked_for() -> None:
    (unit,) = units_of([logical(make_run("a"))], Plan((), ("clip_fraction",), SCORE))
    assert unit.keys == (CLIP, SCORE)
    (bare,) = units_of([logical(make_run("a"))], Plan((), ("clip_fraction",)))
    assert bare.keys == (CLIP,)


def test_one_answer_a_unit_and_errors_stay_with_their_run() -> None:
    runs = [make_run("a", number=1), unreadable(make_run("b", number=2)), make_run("c", number=3)]
    tracker = MemoryTracker(runs, silent=[runs[2].key])
    units = [Unit(logical(run), None) for run in runs]
    got = list(examine(tracker, units, plan()))
    kinds = {(one.name if isinstance(one, RunError) else one.run_key): type(one).__name__ for one in got}
    assert kinds == {runs[0].key: "Examination", "b": "RunError", "c": "RunError"}


def test_equal_stretches_have_equal_hashes_as_they_are_printed() -> None:
    values = np.random.default_rng(0).normal(size=64)
    assert len(block_hashes(values)) == 8 and len(block_hashes(values[:0])) == 0
    np.testing.assert_array_equal(block_hashes(values), block_hashes(values.astype(np.float32).astype(np.float64)))
    np.testing.assert_array_equal(block_hashes(values, 3), block_hashes(np.round(values, 3), 3))
    changed = values.copy()
    changed[17] += 0.5
    assert (block_hashes(values) != block_hashes(changed)).nonzero()[0].tolist() == [2]
    np.testing.assert_array_equal(block_hashes(np.zeros(8), 2), block_hashes(np.full(8, -0.001), 2))


def test_figures_are_kept_of_what_claims_and_rules_want_alone() -> None:
    assert set(examined(make_run("a"), figures=("clip_fraction",)).reduced) == {"clip_fraction"}
    assert examined(make_run("a")).reduced == {}


def test_blocks_of_the_same_values_in_another_order_have_other_hashes() -> None:
    values = np.arange(32.0)
    hashes = {int(block_hashes(np.roll(values[:8], turn))[0]) for turn in range(8)}
    assert len(hashes) == 8
    assert len(set(block_hashes(np.random.default_rng(1).random(1024)).tolist())) == 128
