"""What an audit keeps for the pictures: bounded, whatever the runs logged."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from pth_tracker.depict import POINTS
from pth_tracker.render.json_v1 import to_dict
from synthetic import ARMS, CLIP, SCORE, audit_of, comparison, make_run, prompt_metrics, without_metrics


def test_traces_hold_the_logged_values() -> None:
    runs = comparison({"ppo": {}, "tis": ARMS["tis"]}, (41, 42))
    audit = audit_of(runs)
    logged = {run.name: run.history for run in runs}
    assert sorted(map(audit.label, audit.traces.runs)) == sorted(logged)
    for key, trace in audit.traces.runs.items():
        history = logged[audit.label(key)]
        assert trace.clip is not None and trace.score is not None and trace.sampler is not None
        step, values = history.series(CLIP)
        np.testing.assert_array_equal(trace.clip.step, step)
        np.testing.assert_array_equal(trace.clip.values, values)
        np.testing.assert_array_equal(trace.score.values, history.series(SCORE)[1])
        assert trace.sampler.key == "rollout_corr/k3_kl" and trace.clip.whole and trace.clip.count == 60
        assert trace.batches is not None and trace.batches.values.tolist() == list(range(1, 61))
    assert audit.traces.kl_tolerance == 0.05 and len(audit.traces.pairs) == 1


def test_long_runs_keep_few_points_and_say_of_how_many() -> None:
    audit = audit_of([make_run("a-seed43", updates=5000)])
    (trace,) = audit.traces.runs.values()
    for one in (trace.clip, trace.sampler, trace.score, trace.witness, trace.batches):
        assert one is not None and len(one.step) == len(one.values) == POINTS and not one.whole
    assert trace.clip is not None and (trace.clip.step[0], trace.clip.step[-1]) == (1, 5000)
    assert trace.clip.count == 5000 and trace.score is not None and trace.score.count == 1001
    assert trace.witness is not None and trace.witness.step.tolist() == list(range(1, POINTS + 1))
    expected = np.asarray(prompt_metrics(43, 5000)["prompt_length/mean"])
    np.testing.assert_array_equal(trace.witness.values, expected[:POINTS])
    assert len(pickle.dumps(trace)) < 25_000


@pytest.mark.parametrize("missing", [(CLIP,), ("rollout_corr/k3_kl", "rollout_corr/kl"), (SCORE,)])
def test_what_was_not_logged_is_not_there(missing: tuple[str, ...]) -> None:
    audit = audit_of(without_metrics(comparison({"ppo": {}, "tis": ARMS["tis"]}, (41, 42)), *missing))
    for trace in audit.traces.runs.values():
        held = {CLIP: trace.clip, "rollout_corr/k3_kl": trace.sampler, SCORE: trace.score}
        assert [name for name, one in held.items() if one is None] == [missing[0]]


def test_the_json_report_holds_no_traces() -> None:
    assert "traces" not in to_dict(audit_of(comparison({"ppo": {}}, (41,))))
