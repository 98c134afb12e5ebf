from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pth_tracker.runs import History, Run, RunRef, RunSet, SourceRun
from pth_tracker.values import MISSING

floats = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf]))
logged = st.lists(st.tuples(st.integers(-3, 12), floats), max_size=25)
metrics = st.dictionaries(st.sampled_from(["a", "b", "c/d"]), logged, max_size=3)


def history(points: dict[str, list[tuple[int, float]]], **options: Any) -> History:
    return History.from_points(
        {key: ([step for step, _ in own], [value for _, value in own]) for key, own in points.items()}, **options
    )


def naive(points: dict[str, list[tuple[int, float]]]) -> tuple[dict[str, dict[int, float]], int]:
    """The same by plain dictionaries: the last value at a step wins; each earlier, different one is a conflict."""
    final = {key: dict(own) for key, own in points.items() if own}
    conflicts = sum(not same(value, final[key][step]) for key, own in points.items() for step, value in own)
    return final, conflicts


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


@given(metrics)
@settings(max_examples=300, deadline=None)
def test_a_history_is_what_was_logged(points: dict[str, list[tuple[int, float]]]) -> None:
    built, (final, conflicts) = history(points), naive(points)
    assert set(built.values) == set(final) and built.conflicts == conflicts
    assert built.step.tolist() == sorted({step for own in final.values() for step in own})
    assert built.step.dtype == np.int64
    for key, own in final.items():
        step, values = built.series(key)
        assert step.tolist() == sorted(own)
        assert all(same(value, own[at]) for at, value in zip(step.tolist(), values.tolist()))
        column = built.values[key]
        assert column.shape == built.step.shape and column.dtype == np.float64
        absent = [at not in own for at in built.step.tolist()]
        assert np.isnan(column[absent]).all()
        bad = sorted(at for at, value in own.items() if not math.isfinite(value))
        assert built.nonfinite_at.get(key, np.empty(0)).tolist() == bad


@given(st.lists(metrics, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_merging_parts_is_logging_them_one_after_the_other(parts: list[dict[str, list[tuple[int, float]]]]) -> None:
    merged = History.merge([history(part) for part in parts])
    whole: dict[str, list[tuple[int, float]]] = {}
    for part in parts:
        for key, points in part.items():
            whole.setdefault(key, []).extend(sorted(dict(points).items()))
    expected = history(whole)
    assert merged.step.tolist() == expected.step.tolist() and set(merged.values) == set(expected.values)
    for key in expected.values:
        np.testing.assert_array_equal(merged.values[key], expected.values[key])
    own = sum(history(part).conflicts for part in parts) if len(parts) > 1 else 0
    assert merged.conflicts == (expected.conflicts + own if len(parts) > 1 else history(parts[0]).conflicts)


def test_decimals_are_the_fewest_of_the_parts() -> None:
    a, b = history({"x": [(1, 0.5)]}, decimals={"x": 3, "gone": 2}), history({"x": [(2, 0.25)], "y": [(2, 1)]})
    assert a.decimals == {"x": 3}
    assert History.merge([b, a]).decimals == {"x": 3}
    assert History.merge([b, b]).decimals == {}


def test_an_empty_history() -> None:
    for empty in (history({}), history({"x": []}), History.merge([history({}), history({})])):
        assert len(empty) == 0 and empty.values == {} and empty.conflicts == 0
        step, values = empty.series("x")
        assert len(step) == len(values) == 0
        assert empty.to_frame().empty


def test_unequal_vectors_are_refused() -> None:
    with pytest.raises(ValueError, match="metric 'x'"):
        History.from_points({"x": ([1, 2], [1.0])})
    with pytest.raises(ValueError, match="metric 'x'"):
        History.from_points({"x": ([[1]], [[1.0]])})


# runs


def part(number: int, config: dict[str, Any] | None = None, **attributes: Any) -> SourceRun:
    return SourceRun(RunRef("p", f"id{number}"), "a", config=config or {}, **attributes)


def test_a_logical_run_speaks_with_its_last_part() -> None:
    run = Run((part(1, {"a": {"x": "1"}, "b": "None"}, revision="r1"), part(2, {"a/x": 2, "c": True}, revision="r2")))
    assert dict(run.config) == {"a.x": 2, "b": None, "c": True}
    assert run.get("b") is None and run.get("zzz") is MISSING
    assert (run.key, run.revision, run.last.ref.run_id) == ("id1", "r1+r2", "id2")
    assert [dict(config) for config in run.part_configs] == [{"a.x": 1, "b": None}, {"a.x": 2, "c": True}]
    with pytest.raises(TypeError):
        run.config["x"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("keys", "known"),
    [
        ((frozenset("a"), frozenset("b")), frozenset("ab")),
        ((frozenset("a"), None), None),
        ((frozenset(), frozenset()), frozenset()),
    ],
)
def test_metric_keys_are_known_where_every_part_tells(keys: tuple[Any, ...], known: frozenset[str] | None) -> None:
    assert Run(tuple(part(n, metric_keys=own) for n, own in enumerate(keys))).metric_keys == known


def test_runs_are_picklable_whatever_was_looked_at() -> None:
    run = Run((part(1, {"a": 1}, metric_keys=frozenset("a")),), "verl", "0.7.1", "a")
    assert run.config and run.part_configs and run.metric_keys
    again = pickle.loads(pickle.dumps(run))
    assert again == run and again.config == run.config
    built = history({"x": [(1, 2.0), (1, math.nan)]})
    assert pickle.loads(pickle.dumps(built)).conflicts == 1


def test_views_for_people() -> None:
    runs = RunSet(
        [Run((part(1, {"a": None}),), label="one"), Run((part(2, {"b": 2}),), label="two")],
        {"id1": history({"x": [(1, 0.5), (2, 0.6)]})},
    )
    assert len(runs) == 2 and runs[0].label == "one" and [run.key for run in runs] == ["id1", "id2"]
    assert runs.runs.loc["two", "id"] == "id2"
    assert runs.configs.loc["one", "a"] is None and runs.configs.loc["two", "b"] == 2
    assert runs.configs.isna().loc["two", "a"]
    assert runs.histories.loc[("one", 2), "x"] == 0.6
    assert RunSet([]).runs.empty and RunSet([]).histories.empty
