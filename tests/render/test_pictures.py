"""Which pictures a report shows, from audits of runs with planted faults: what is drawn, said and left out."""

from __future__ import annotations

import numpy as np
import pytest

from pth_tracker.model import Audit
from pth_tracker.render.bug_pictures import RUNS
from pth_tracker.render.picture import PAIRS, SCORES, Picture, short
from pth_tracker.render.pictures import pictures
from pth_tracker.render.score_pictures import CURVES, PICTURES
from svg_series import Drawn
from synthetic import (
    ARMS,
    K3,
    ONE_STEP,
    SCORE,
    FakeRun,
    audit_of,
    comparison,
    idle,
    make_run,
    prompt_metrics,
    with_config,
    with_metrics,
)

SEEDS = (41, 42, 43)


def by_place(audit: Audit, place: str) -> list[Picture]:
    return [picture for picture in pictures(audit) if picture.place == place]


def one(audit: Audit, place: str) -> tuple[Picture, Drawn]:
    (picture,) = by_place(audit, place)
    return picture, Drawn(picture.svg("p-"))


def names(picture: Picture) -> list[str]:
    return [label for label, _ in picture.legend]


def test_a_clean_comparison_shows_scores_and_differences_alone() -> None:
    audit = audit_of(comparison(seeds=SEEDS))
    assert [picture.place for picture in pictures(audit)] == [SCORES, PAIRS, PAIRS]
    scores, drawn = one(audit, SCORES)
    assert names(scores) == ["clip-higher", "ppo", "tis"] and scores.title == "Scores during training"
    assert drawn.series() == [f"score{place}" for place in range(9)]
    assert "not shown" not in scores.caption and "thinned" not in scores.caption


def test_idle_clips_are_drawn_beside_a_clip_that_acts() -> None:
    runs = comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, (41, 42, 43, 44, 45, 46))
    audit = audit_of(with_metrics(runs, "grpo-*", idle()))
    picture, drawn = one(audit, "Idle Clip")
    assert names(picture) == [*(f"grpo-seed{seed}" for seed in (41, 42, 43, 44)), "tis-seed41"]
    assert picture.title == "The clip never acts, while the sampler drifts away"
    assert "2 more runs not shown." in picture.caption and "tis-seed41 is shown beside them" in picture.caption
    assert "the tolerance, 0.05" in picture.caption
    assert "grpo-seed41: clip fraction 0 to 0, sampler's distance 0.0003 to 2 nats per token" in picture.description
    assert sum(name.startswith("clip") for name in drawn.series()) == RUNS + 1
    assert all(len({y for _, y in drawn.line(f"clip{place}")}) == 1 for place in range(RUNS))
    assert len({y for _, y in drawn.line(f"clip{RUNS}")}) > 10
    assert {"actor/pg_clipfrac", "rollout_corr/k3_kl, nats per token, log axis"} <= set(drawn.texts())


def test_values_that_are_not_finite_are_counted_and_long_curves_thinned() -> None:
    distance = np.where(np.arange(400) % 100 == 99, np.nan, 1.0)
    runs = with_metrics(comparison({"grpo": ONE_STEP, "tis": ARMS["tis"]}, SEEDS, updates=400), "grpo-*", idle())
    audit = audit_of(with_metrics(runs, "grpo-*", {K3: distance}))
    picture, drawn = one(audit, "Idle Clip")
    assert "Curves are thinned, at most to 200 of 400 values." in picture.caption
    assert "not finite and not drawn" in picture.caption
    assert len(drawn.line("clip3")) > 100, "the line of the acting clip keeps its shape"


def test_a_lost_seed_shows_one_order_beside_an_arm_with_several() -> None:
    runs = comparison({"ppo": {}, "tis": ARMS["tis"]}, (41, 42, 43, 44))
    picture, drawn = one(audit_of(with_config(runs, "tis-*", {"data.seed": None})), "Lost Seed")
    assert picture.title == "3 runs of tis read one data order"
    assert names(picture) == [f"{arm}-seed{seed}" for arm in ("tis", "ppo") for seed in SEEDS]
    assert "tis: 3 runs, 1 data order" in drawn.texts() and "ppo: 3 runs, 3 data orders" in drawn.texts()
    assert drawn.line("panel0-0") == drawn.line("panel0-1") == drawn.line("panel0-2")
    assert len({tuple(drawn.line(f"panel1-{place}")) for place in range(3)}) == 3
    assert len(drawn.line("panel0-0")) == 40 and "The first 40 updates." in picture.caption
    assert "1 more run not shown." in picture.caption
    expected = prompt_metrics(None)["prompt_length/mean"]
    heights = np.array([y for _, y in drawn.line("panel0-0")])
    assert np.corrcoef(heights, -np.asarray(expected)[:40])[0, 1] == pytest.approx(1, abs=1e-4)


def test_a_stuck_batch_is_flat_by_its_identity_and_by_what_metrics_tell() -> None:
    ids = [1000.0 + max(0, update - 10) for update in range(60)]
    logged = [make_run(f"a-seed{seed}", seed=seed, metrics={"harness/batch_id": ids}) for seed in SEEDS]
    picture, drawn = one(audit_of([*logged, *comparison({"b": {}}, SEEDS)]), "Stuck Batch")
    assert "told by the logged identity" in picture.caption
    assert "a-seed41: 10 of 60 updates on a batch used before" in picture.description
    assert len(drawn.marks("again0")) == 10 and len({y for _, y in drawn.line("batches0")[:2]}) == 1
    assert drawn.line("batches0") == drawn.line("batches2") and sorted(names(picture)) == [
        f"a-seed{seed}" for seed in SEEDS
    ]


def stuck(run: FakeRun, updates: int) -> FakeRun:
    """The run with its first batch served for so many updates more; what depends on the learner goes on."""
    own = {
        key: [run.points[key][1][0]] * updates + list(run.points[key][1][: 60 - updates])
        for key in run.points
        if key.startswith(("prompt_length", "response_length", "critic/score"))
    }
    return with_metrics([run], "*", own)[0]


def test_batches_told_by_metrics_are_numbered_by_first_use() -> None:
    runs = [stuck(make_run(f"a-seed{seed}", seed=seed), 12) for seed in SEEDS]
    audit = audit_of([*runs, *comparison({"b": {}}, SEEDS)])
    picture, drawn = one(audit, "Stuck Batch")
    assert "told by prompts, response lengths and scores" in picture.caption
    assert len(drawn.marks("again0")) == 12
    trace = next(one for key, one in audit.traces.runs.items() if audit.label(key) == "a-seed41").batches
    assert trace is not None and trace.values.tolist() == [1.0] * 13 + [float(n) for n in range(2, 49)]


def test_a_rogue_normaliser_shows_its_factors() -> None:
    check = {"": 0.0, "_kind": 2.0, "_value_difference": 0.1, "_gradient_difference": 0.2, "_factor_min": 0.8}
    logged = {f"harness/loss_check{end}": {0: value} for end, value in (check | {"_factor_max": 1.25}).items()}
    runs = with_metrics(comparison({"a": {}, "b": ARMS["tis"]}, SEEDS), "a-*", logged)
    audit = audit_of(runs)
    picture, drawn = one(audit, "Rogue Normaliser")
    assert "a-seed41: 0.8 to 1.25" in picture.description
    (equation,) = {x for x, _ in drawn.line("equation")}
    (low, _), (high, _) = drawn.line("factor0")
    assert equation - low == pytest.approx(high - equation, abs=0.05)


def test_scores_by_setting_are_shaded_where_the_baseline_is_stable() -> None:
    rising = {step: 0.4 + 0.4 * step / 60 for step in range(0, 61, 5)}
    falling = {step: 0.4 + 0.4 * step / 30 if step <= 30 else 0.05 for step in range(0, 61, 5)}
    runs = []
    for interval in (16, 64, 96):
        for arm in ("ppo", "tis"):
            for seed in SEEDS:
                curve = falling if (arm, interval) == ("ppo", 96) else rising
                name = f"{arm}-n{interval}-seed{seed}"
                runs.append(make_run(name, {**ARMS[arm], "lag": interval}, seed, metrics={SCORE: curve}))
    design = {
        "arms": {arm: {"name": f"{arm}-*"} for arm in ("ppo", "tis")},
        "baseline": "ppo",
        "stress": {"key": "lag"},
        "metric": {"key": SCORE},
    }
    audit = audit_of(runs, design)
    shown = by_place(audit, SCORES)
    titles = [picture.title for picture in shown]
    assert titles == [*(f"Scores during training at lag = {value}" for value in (16, 64, 96)), "ppo is stable up to 64"]
    drawn = [Drawn(picture.svg("p-")) for picture in shown]
    assert ["stable" in d.series() for d in drawn] == [True, True, False, True]
    assert "unstable" in drawn[2].series() and len([n for n in drawn[2].series() if n.startswith("collapsed")]) == 3
    assert "outside the baseline's stable range" in shown[2].caption and "3 runs that collapsed" in shown[2].caption
    assert "16: 0 of 3 collapsed, 64: 0 of 3 collapsed, 96: 3 of 3 collapsed" in shown[3].caption
    assert len(drawn[3].marks("arm0")) == 9 and len(drawn[3].marks("arm1")) == 9
    (found,) = audit.traces.ranges
    assert (found.settings, found.collapsed, found.runs, found.stable) == (("16", "64", "96"), (0, 0, 3), (3, 3, 3), 2)


def test_comparisons_show_the_findings_own_numbers() -> None:
    runs = [make_run(f"ppo-seed{seed}", {}, seed, score=0.7) for seed in SEEDS]
    runs += [make_run(f"tis-seed{s}", ARMS["tis"], s, score=0.7 + d) for s, d in zip(SEEDS, (0.02, 0.007, 0.031))]
    audit = audit_of(runs, {"baseline": "ppo", "arms": {a: {"name": f"{a}-*"} for a in ("ppo", "tis")},
                            "tie_margin": 0.01, "metric": {"key": SCORE}})  # fmt: skip
    picture, drawn = one(audit, PAIRS)
    # By hand: the mean of 2.0, 0.7 and 3.1 is 1.933, s = 1.2014, t(.975, 2) = 4.3027, so +- 2.984.
    assert picture.title == "tis against ppo: +1.93 points, 95% interval -1.05 to +4.92"
    assert picture.description == "Differences by seed: 41 +2.00, 42 +0.70, 43 +3.10"
    assert "the margin within which a difference is a tie" in picture.caption and "margin" in drawn.series()
    assert names(picture) == ["41", "42", "43"]


def test_what_is_left_out_is_said() -> None:
    arms = {f"arm{n}": {"algorithm.gamma": 1 - 0.01 * n} for n in range(9)}
    audit = audit_of(comparison(arms, (41, 42, 43, 44)), {"arms": {a: {"name": f"{a}-*"} for a in arms},
                                                           "baseline": "arm0", "metric": {"key": SCORE}})  # fmt: skip
    pairs = by_place(audit, PAIRS)
    assert len(pairs) == PICTURES and "2 more comparisons not shown." in pairs[0].caption
    (scores,) = by_place(audit, SCORES)
    assert "3 more arms not shown." in scores.caption and "6 more runs not shown." in scores.caption
    assert len(Drawn(scores.svg("p-")).series()) == CURVES


def test_names_are_harmless_within_pictures() -> None:
    assert short("a\x1b[2J\u202eb") == "a\\x1b[2J\\u202eb"
    assert short("x" * 50) == "x" * 29 + "…" and len(short("x" * 50)) == 30
    evil = "<script>alert(1)</script>$x$\x1b[31m"
    runs = [make_run(f"{evil}-seed{seed}", seed=seed) for seed in SEEDS] + comparison({"b": ARMS["tis"]}, SEEDS)
    audit = audit_of(runs)
    for place, picture in enumerate(pictures(audit)):
        svg = picture.svg(f"p{place}-")
        assert "<script" not in svg and "\x1b" not in svg
        Drawn(svg)
