"""The figures: what is drawn stands where its numbers say, in a form that a page can hold."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from pth_tracker.render import plots
from pth_tracker.render.plots import REFERENCE, Compared, Line, nested_styles, style_of
from pth_tracker.render.svg import COLOURS, draw
from svg_series import Drawn

UPDATES = np.arange(1, 6, dtype=np.int64)


def line(values: list[float], place: int = 0, ended: bool = False) -> Line:
    return Line(np.arange(1, len(values) + 1, dtype=np.int64), np.array(values), style_of(place), ended)


def compared(**changes: object) -> Compared:
    facts: dict[str, object] = {
        "seeds": ["43", "44", "45"],
        "scores": (np.array([0.5, 0.6, 0.7]), np.array([0.6, 0.6, 0.6])),
        "names": ("grpo", "tis"),
        "differences": np.array([10.0, 0.0, -10.0]),
        "mean": 1.0,
        "interval": (-3.0, 5.0),
        "margin": None,
        "unit": "points",
    }
    return Compared(**{**facts, **changes})  # type: ignore[arg-type]


def ratio(tolerance: float = 0.05) -> str:
    clips, samplers = [line([0.0] * 5), line([0.0, 0.1, 0.2, 0.1, 0.0], 1)], [line([1e-4, 1e-3, 1e-2, 1e-1, 1.0])]
    return draw(lambda: plots.ratio_figure(clips, samplers, ("clip", "kl"), tolerance), "p-", "Title", "Words")


def test_a_picture_is_accessible_in_the_pages_colours_and_font_and_always_the_same() -> None:
    svg = ratio()
    root = ElementTree.fromstring(svg)
    assert svg == ratio()
    assert root.tag == "svg" and root.get("role") == "img" and root.get("aria-labelledby") == "p-title p-desc"
    assert [(e.tag, e.get("id"), e.text) for e in list(root)[:2]] == [
        ("title", "p-title", "Title"),
        ("desc", "p-desc", "Words"),
    ]
    used = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert used <= set(COLOURS.values()) and svg.count("var(--c1, #0067a6)") >= 2
    assert all(f"var(--{name}, {colour})" in svg or colour not in svg for name, colour in COLOURS.items())
    assert "font-family" not in svg and "<style" not in svg and "metadata" not in svg and "xmlns" not in svg
    assert "http" not in svg and "\n" not in svg


def test_ids_of_two_pictures_never_meet_and_every_reference_has_its_target() -> None:
    ids: list[str] = []
    for prefix in ("a-", "b-"):
        svg = draw(lambda: plots.pair_figure(compared()), prefix, "t", "d")
        own = re.findall(r' id="([^"]+)"', svg)
        referred = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
        assert referred and {one or two for one, two in referred} <= set(own)
        ids += own
    assert len(ids) == len(set(ids)) and all(name.startswith(("a-", "b-")) for name in ids)


def test_the_callers_own_matplotlib_is_left_alone() -> None:
    with matplotlib.rc_context({"font.size": 31, "axes.grid": False, "svg.fonttype": "path"}):
        svg = ratio()
        assert matplotlib.rcParams["font.size"] == 31 and matplotlib.rcParams["svg.fonttype"] == "path"
    assert svg == ratio()


def test_the_clip_lies_flat_at_zero_above_a_distance_on_a_log_axis() -> None:
    drawn = Drawn(ratio())
    assert drawn.series() == ["clip0", "clip1", "sampler0", "limit"]
    assert len({y for _, y in drawn.line("clip0")}) == 1
    assert drawn.line("clip1")[2][1] < drawn.line("clip0")[0][1] == drawn.line("clip1")[0][1]
    heights = [y for _, y in drawn.line("sampler0")]
    np.testing.assert_allclose(np.diff(heights), np.diff(heights)[0], atol=0.05), "powers of ten stand equally apart"
    (limit,) = {y for _, y in drawn.line("limit")}
    share = (heights[0] - limit) / (heights[-1] - limit - (heights[0] - limit)) * -1
    assert share == pytest.approx(np.log10(0.05 / 1e-4) / 4, abs=0.01)
    assert "kl, nats per token, log axis" in drawn.texts() and "0.001" in drawn.texts()
    assert drawn.look("clip0").get("stroke-dasharray") is None and drawn.look("clip1")["stroke-dasharray"]


def test_signed_distances_are_drawn_by_their_size_and_zeros_left_out() -> None:
    samplers = [line([-0.1, 0.0, 0.1, float("nan"), 0.1])]
    svg = draw(lambda: plots.ratio_figure([line([0.0] * 5)], samplers, ("c", "k"), 0.05), "p-", "t", "d")
    places = Drawn(svg).line("sampler0")
    assert len(places) == 3 and len({y for _, y in places}) == 1


def test_equal_orders_lie_on_each_other_from_broad_to_thin() -> None:
    styles = nested_styles(3)
    values = np.array([7.0, 8.0, 6.5, 7.5, 8.5])
    same = [Line(UPDATES, values, style) for style in styles]
    other = [Line(UPDATES, values[::-1].copy(), nested_styles(1, 3)[0])]
    svg = draw(lambda: plots.order_figure([("tis: $x$", same), ("grpo", other)], "prompt"), "p-", "t", "d")
    drawn = Drawn(svg)
    assert (
        drawn.line("panel0-0") == drawn.line("panel0-1") == drawn.line("panel0-2") and len(drawn.line("panel0-0")) == 5
    )
    widths = [float(drawn.look(f"panel0-{place}")["stroke-width"]) for place in range(3)]
    assert widths == sorted(widths, reverse=True) and len(set(widths)) == 3
    assert drawn.line("panel1-0")[0][1] != drawn.line("panel0-0")[0][1]
    assert "tis: $x$" in drawn.texts() and "update (each line: prompt)" in drawn.texts()
    assert len({drawn.look(name)["stroke"] for name in drawn.series()}) == 4


def test_updates_on_a_batch_used_before_are_marked_and_a_stuck_stretch_is_flat() -> None:
    numbers = line([1.0, 1.0, 1.0, 2.0, 3.0, 2.0])
    drawn = Drawn(draw(lambda: plots.batches_figure([numbers]), "p-", "t", "d"))
    corners = drawn.line("batches0")
    assert len({y for _, y in drawn.marks("again0")[:2]}) == 1
    marked = [x for x, _ in drawn.marks("again0")]
    start, end = corners[0][0], corners[-1][0]
    updates = [round(1 + 5 * (x - start) / (end - start)) for x in marked]
    assert updates == [2, 3, 6]
    assert drawn.line("reference")[0] == pytest.approx(corners[0]), "both begin with batch 1 at the first update"
    assert drawn.line("reference")[1][1] < corners[-1][1], "a new batch at each update would stand higher by now"


def test_factors_run_from_the_smallest_to_the_largest_about_one() -> None:
    drawn = Drawn(draw(lambda: plots.factors_figure([("a", 0.5, 2.0), ("b", 0.9, 1.1)]), "p-", "t", "d"))
    (equation,) = {x for x, _ in drawn.line("equation")}
    (low, _), (high, _) = drawn.line("factor0")
    assert equation - low == pytest.approx(high - equation, abs=0.05), "on a log axis 1/2 and 2 are equally far"
    assert drawn.line("factor0")[0][1] < drawn.line("factor1")[0][1], "the first row stands on top"
    assert {"a", "b", "0.5", "2", "0.9", "1.1", "1"} <= set(drawn.texts())


@pytest.mark.parametrize(("stable", "name"), [(True, "stable"), (False, "unstable"), (None, "")])
def test_scores_are_shaded_by_the_stable_range_and_collapsed_runs_crossed(stable: bool | None, name: str) -> None:
    lines = [line([0.1, 0.5, 0.9]), line([0.1, 0.7, 0.0], 1, ended=True)]
    drawn = Drawn(draw(lambda: plots.scores_figure(lines, "acc", stable), "p-", "t", "d"))
    assert drawn.series() == [*([name] if name else []), "score0", "score1", "collapsed1"], "the shade lies below"
    assert drawn.marks("collapsed1") == [pytest.approx(drawn.line("score1")[-1], abs=0.01)]
    if stable is not None:
        svg = ElementTree.tostring(drawn.root, "unicode")
        look = ElementTree.tostring(drawn.of(name), "unicode")
        assert ("--pass" in look and "<pattern" not in svg) if stable else ("url(#p-" in look and "<pattern" in svg)
        edges, scores = [x for x, _ in drawn.line(name)], [x for x, _ in drawn.line("score0")]
        assert min(edges) < scores[0] < scores[-1] < max(edges) and scores[-1] - scores[0] > 0.9 * (
            max(edges) - min(edges)
        )


def test_the_stable_settings_are_shaded_from_the_mildest_on() -> None:
    arms = [(style_of(0), [(0, 0.7), (1, 0.7), (2, 0.1)])]
    drawn = Drawn(draw(lambda: plots.range_figure(["16", "64", "96"], arms, 2, "lag"), "p-", "t", "d"))
    edges = [x for x, _ in drawn.line("stable")]
    first, second, third = (x for x, _ in drawn.marks("arm0"))
    assert min(edges) < first < second < max(edges) < third
    assert max(edges) == pytest.approx((second + third) / 2, abs=0.05)
    assert {"16", "64", "96", "lag"} <= set(drawn.texts())


def test_slopes_and_the_interval_of_the_difference() -> None:
    drawn = Drawn(draw(lambda: plots.pair_figure(compared(margin=2.0)), "p-", "t", "d"))
    (x0, y0), (x1, y1) = drawn.line("seed0")
    assert x0 < x1 and y0 > y1, "seed 43 rises from .5 to .6"
    assert drawn.line("seed1")[0][1] == drawn.line("seed1")[1][1], "seed 44 is level"
    assert drawn.line("seed2")[0][1] < drawn.line("seed2")[1][1], "seed 45 falls"
    (low, _), (high, _) = drawn.line("interval")
    (zero,) = {x for x, _ in drawn.line("zero")}
    unit = (high - low) / 8
    assert (zero - low) / unit == pytest.approx(3, abs=0.02), "from -3 to +5"
    ((mean, height),) = drawn.marks("mean")
    assert mean == pytest.approx(zero + unit, abs=0.02) and height == pytest.approx(drawn.line("interval")[0][1])
    assert [round((drawn.marks(f"difference{n}")[0][0] - zero) / unit, 1) for n in range(3)] == [10.0, 0.0, -10.0]
    band = [x for x, _ in drawn.line("margin")]
    assert (max(band) - min(band)) / unit == pytest.approx(4, abs=0.02)
    assert {"43", "44", "45", "mean", "grpo", "tis", "difference, points"} <= set(drawn.texts())


def test_one_seed_has_no_interval_and_many_have_no_names() -> None:
    one = compared(
        seeds=["43"], scores=(np.array([0.5]), np.array([0.6])), differences=np.array([10.0]), mean=10.0, interval=None
    )
    assert "interval" not in Drawn(draw(lambda: plots.pair_figure(one), "p-", "t", "d")).series()
    many = compared(
        seeds=[f"s{n}" for n in range(20)],
        scores=(np.linspace(0, 1, 20), np.linspace(1, 0, 20)),
        differences=np.linspace(-5, 5, 20),
    )
    drawn = Drawn(draw(lambda: plots.pair_figure(many), "p-", "t", "d"))
    assert sum(name.startswith("difference") for name in drawn.series()) == 20 and "s3" not in drawn.texts()


ANY = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=1, max_size=8)


@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@example([0.0], [1.05], 3.8e293)
@example([1e308, -1e308], [float("inf"), float("nan"), 5e-324], 1e-300)
@given(ANY, ANY, st.floats(min_value=1e-300, max_value=1e300))
def test_numbers_of_any_size_can_be_drawn(clip: list[float], sampler: list[float], tolerance: float) -> None:
    lines = [line(clip), line(sampler, 1, ended=True)]
    draw(lambda: plots.ratio_figure([lines[0]], [lines[1]], ("c", "k"), tolerance), "p-", "t", "d")
    draw(lambda: plots.scores_figure(lines, "acc", None), "p-", "t", "d")
    draw(lambda: plots.order_figure([("a", lines)], "k"), "p-", "t", "d")
    finite = [value for value in clip if np.isfinite(value)] or [0.0]
    scores = np.array(finite)
    pair = compared(
        seeds=["s"] * len(finite),
        scores=(scores, -scores),
        differences=2 * np.clip(scores, -1e307, 1e307),
        mean=finite[0],
        interval=(min(finite), max(finite)),
        margin=tolerance,
    )
    draw(lambda: plots.pair_figure(pair), "p-", "t", "d")


def test_names_in_any_script_and_formulas_stay_text() -> None:
    evil = "$\\frac{1}{0$ <b>&amp; 数据 \U0001f600"
    drawn = Drawn(draw(lambda: plots.scores_figure([line([1.0, 2.0])], evil, None), "p-", evil, evil))
    assert evil in drawn.texts()
    assert [e.text for e in list(drawn.root)[:2]] == [evil, evil]


def test_every_style_differs_from_the_others_in_more_than_colour() -> None:
    looks = [(style.dashes, style.marker) for style in (*plots.STYLES, REFERENCE)]
    assert len(set(looks)) == len(looks) and len({style.colour for style in plots.STYLES}) == len(plots.STYLES)
    assert style_of(len(plots.STYLES)) == style_of(0)
