"""The figures of a report, drawn from plain numbers by Matplotlib without its global state.

Every series differs from the others by colour, by dashes and by marker. Numbers are bounded before they are drawn:
what a run logged may lie anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from pth_tracker.render.svg import COLOURS, SERIES
from pth_tracker.runs import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH: Final = 4.8
"""Inches: the page shows a picture at about its own size on a phone, and half as large again on a desk."""
LARGEST: Final = 1e12
"""Larger values are drawn at this one."""
SMALLEST: Final = 1e-12
"""On a log axis, smaller ones at this one."""
MANY: Final = 8
"""More points than this carry no names."""

_FACTORS: Final = (1e-3, 0.01, 0.1, 0.2, 0.5, 0.7, 1.0, 1.4, 2.0, 5.0, 10.0, 100.0, 1000.0)

Dashes: TypeAlias = tuple[float, ...]


@dataclass(frozen=True)
class Style:
    """How one series looks."""

    colour: str
    """A name in `COLOURS`."""
    dashes: Dashes
    """Lengths of strokes and gaps in multiples of the line's width; empty: solid."""
    marker: str
    """Matplotlib's letter; empty: none."""
    breadth: float = 1.6
    """Points."""


STYLES: Final = (
    Style("c1", (), "o"),
    Style("c2", (4.0, 1.6), "s"),
    Style("c3", (1.4, 1.4), "^"),
    Style("c4", (6.0, 1.5, 1.4, 1.5), "D"),
    Style("c5", (2.5, 1.2), "v"),
    Style("c6", (6.0, 1.5, 1.4, 1.5, 1.4, 1.5), "P"),
)
REFERENCE: Final = Style("muted", (2.0, 2.0), "x")
"""What others are held against."""


@dataclass(frozen=True)
class Line:
    """One series to draw."""

    step: Ints
    values: Floats
    style: Style
    ended: bool = False
    """Whether its end is marked with a cross: the run collapsed."""

    @property
    def finite(self) -> tuple[Ints, Floats]:
        """The updates and values that can be drawn."""
        kept = np.isfinite(self.values)
        return self.step[kept], np.clip(self.values[kept], -LARGEST, LARGEST)


def nested_styles(count: int, start: int = 0) -> list[Style]:
    """Solid lines from the broad to the thin, so that all show where they lie on each other."""
    colours = [style_of(start + place).colour for place in range(count)]
    return [Style(colour, (), "", 1.2 + 2.1 * (count - 1 - place)) for place, colour in enumerate(colours)]


def style_of(place: int) -> Style:
    """The style of the series at ``place``; from the seventh on they come again."""
    return STYLES[place % len(STYLES)]


def ratio_figure(clips: Sequence[Line], samplers: Sequence[Line], names: tuple[str, str], tolerance: float) -> Figure:
    """The clip fraction above the sampler's distance, which has a log axis, over the same updates."""
    figure = _figure(3.7)
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1, 1.7], "hspace": 0.34})
    _frame(figure, 3.7, bottom=0.52)
    above.set_title(names[0])
    below.set_title(f"{names[1]}, nats per token, log axis")
    _lines(above, clips, "clip")
    top = max([0.05, *(float(values.max()) for line in clips if len(values := line.finite[1]))])
    above.set_ylim(-0.06 * top, 1.12 * top)
    _few_ticks(above, 3)
    _log_lines(below, samplers)
    below.axhline(
        float(np.clip(tolerance, SMALLEST, LARGEST)),
        color=COLOURS["warn"],
        linewidth=1.2,
        dashes=(9, 3),
        gid=f"{SERIES}limit",
    )
    _over_updates(below)
    return figure


def order_figure(panels: Sequence[tuple[str, Sequence[Line]]], name: str) -> Figure:
    """What each update's batch shows, the runs of a panel drawn on each other: the first broad, the last thin."""
    height = 0.85 + 1.45 * len(panels)
    figure = _figure(height)
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"hspace": 0.36})[:, 0]
    _frame(figure, height, bottom=0.52)
    for place, (axes, (title, lines)) in enumerate(zip(all_axes, panels)):
        axes.set_title(title)
        _nested(axes, lines, f"panel{place}")
        _few_ticks(axes, 4)
    _over_updates(all_axes[-1], f"update (each line: {name})" if name else "update")
    return figure


def batches_figure(lines: Sequence[Line]) -> Figure:
    """The number of each update's batch, in the order of first use, beside one new batch an update."""
    figure = _figure(3.0)
    axes = figure.subplots()
    _frame(figure, 3.0, bottom=0.52)
    axes.set_title("batch, numbered in the order of first use")
    drawn = [line.finite for line in lines]
    first = min((int(step[0]) for step, _ in drawn if len(step)), default=0)
    last = max((int(step[-1]) for step, _ in drawn if len(step)), default=1)
    axes.plot(
        [first, last],
        [1, last - first + 1],
        color=COLOURS["muted"],
        linewidth=1,
        dashes=(2, 2),
        gid=f"{SERIES}reference",
    )
    for place, (line, (step, values)) in enumerate(zip(lines, drawn)):
        breadth = line.style.breadth
        again = np.ones(len(values), dtype=bool)
        again[np.unique(values, return_index=True)[1]] = False
        axes.plot(step, values, color=COLOURS[line.style.colour], linewidth=breadth, gid=f"{SERIES}batches{place}")
        axes.plot(
            step[again],
            values[again],
            linestyle="none",
            marker="|",
            markersize=7 + 2 * breadth,
            color=COLOURS["fail"],
            gid=f"{SERIES}again{place}",
        )
    _over_updates(axes)
    return figure


def factors_figure(rows: Sequence[tuple[str, float, float]]) -> Figure:
    """From the smallest to the largest factor by which a loss weighs sequences, beside 1 for its equation."""
    height = 1.05 + 0.3 * len(rows)
    figure = _figure(height)
    axes = figure.subplots()
    _frame(figure, height, bottom=0.52, left=1.5)
    places = np.arange(len(rows))[::-1]
    low, high = (np.clip([row[at] for row in rows], SMALLEST, LARGEST) for at in (1, 2))
    axes.axvline(1, color=COLOURS["muted"], linewidth=1.2, dashes=(2, 2), gid=f"{SERIES}equation")
    for place, (y, left, right) in enumerate(zip(places, low, high)):
        axes.plot(
            [left, right], [y, y], color=COLOURS["fail"], linewidth=3.5, marker="|", markersize=10,
            gid=f"{SERIES}factor{place}",
        )  # fmt: skip
        for end, at, side in ((left, -6, "right"), (right, 6, "left")):
            axes.annotate(f"{end:.3g}", (end, y), (at, 0), textcoords="offset points", ha=side, va="center")
    axes.set_xscale("log")
    axes.set_xlim(min(0.5, 0.8 * float(low.min())), max(2.0, 1.25 * float(high.max())))
    left_end, right_end = axes.get_xlim()
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.xaxis.set_major_locator(FixedLocator([tick for tick in _FACTORS if left_end <= tick <= right_end]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_yticks(places, [row[0] for row in rows])
    axes.grid(False, axis="y")
    axes.set_title("weight of a sequence")
    axes.set_xlabel("factor on the equation, log axis")
    return figure


def scores_figure(lines: Sequence[Line], name: str, stable: bool | None) -> Figure:
    """Scores over updates; the plane is shaded where the setting lies in the stable range (None: nobody tested)."""
    figure = _figure(3.0)
    axes = figure.subplots()
    _frame(figure, 3.0, bottom=0.52)
    axes.set_title(name)
    _lines(axes, lines, "score", markers=True)
    if stable is not None:
        from matplotlib.patches import Rectangle

        look: dict[str, Any] = {"facecolor": COLOURS["pass"], "linewidth": 0, "alpha": 0.1}
        if not stable:
            look = {"facecolor": "none", "linewidth": 0, "hatch": "//", "edgecolor": COLOURS["fail"], "alpha": 0.55}
        name = "stable" if stable else "unstable"
        axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, zorder=0.5, gid=f"{SERIES}{name}", **look))
    _over_updates(axes)
    return figure


def range_figure(
    settings: Sequence[str], arms: Sequence[tuple[Style, Sequence[tuple[int, float]]]], stable: int, key: str
) -> Figure:
    """Each run's score at the settings of the stress axis, the first ``stable`` of which are shaded."""
    figure = _figure(3.0)
    axes = figure.subplots()
    _frame(figure, 3.0, bottom=0.52)
    axes.set_title("score of each run, by setting")
    if stable:
        axes.axvspan(-0.5, stable - 0.5, facecolor=COLOURS["pass"], alpha=0.1, linewidth=0, gid=f"{SERIES}stable")
    spread = 0.5 / max(len(arms), 1)
    for place, (style, points) in enumerate(arms):
        shift = spread * (place - (len(arms) - 1) / 2)
        kept = [(at, value) for at, value in points if np.isfinite(value)]
        axes.plot(
            [at + shift for at, _ in kept],
            np.clip([value for _, value in kept], -LARGEST, LARGEST),
            linestyle="none",
            marker=style.marker,
            markersize=5,
            markerfacecolor="none",
            color=COLOURS[style.colour],
            gid=f"{SERIES}arm{place}",
        )
    axes.set_xlim(-0.5, len(settings) - 0.5)
    axes.set_xticks(range(len(settings)), list(settings))
    axes.grid(False, axis="x")
    axes.set_xlabel(key)
    return figure


@dataclass(frozen=True)
class Compared:
    """Two arms' scores by seed, and their differences as they are shown."""

    seeds: Sequence[str]
    scores: tuple[Floats, Floats]
    """Of the arm on the left and of that on the right."""
    names: tuple[str, str]
    differences: Floats
    mean: float
    interval: tuple[float, float] | None
    margin: float | None
    unit: str


def pair_figure(pair: Compared) -> Figure:
    """The slope of each seed from one arm to the other, and beside it the differences with the mean's interval."""
    named = len(pair.seeds) <= MANY
    height = max(2.0, 1.1 + 0.26 * (len(pair.seeds) if named else 1))
    figure = _figure(height)
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.55], "wspace": 0.55})
    _frame(figure, height, bottom=0.3)
    for place, (one, two) in enumerate(zip(*pair.scores)):
        style = style_of(place)
        left.plot(
            [0, 1], np.clip([one, two], -LARGEST, LARGEST), color=COLOURS[style.colour], linestyle=_strokes(style),
            marker=style.marker, markersize=4.5, gid=f"{SERIES}seed{place}",
        )  # fmt: skip
    left.set_xlim(-0.25, 1.25)
    left.set_xticks([0, 1], list(pair.names))
    left.grid(False, axis="x")
    left.set_title("score")
    _few_ticks(left, 4)
    _differences(right, pair, named)
    return figure


def _differences(axes: Axes, pair: Compared, named: bool) -> None:
    """The differences by seed from the top down, and the mean with its interval below them."""
    count = len(pair.seeds) if named else 1
    values = np.clip(pair.differences, -LARGEST, LARGEST)
    if pair.margin is not None:
        margin = min(pair.margin, LARGEST)
        axes.axvspan(-margin, margin, facecolor=COLOURS["muted"], alpha=0.15, linewidth=0, gid=f"{SERIES}margin")
    axes.axvline(0, color=COLOURS["muted"], linewidth=1.2, dashes=(2, 2), gid=f"{SERIES}zero")
    for place, value in enumerate(values.tolist()):
        style = style_of(place)
        axes.plot(
            [value], [count - place if named else 1], linestyle="none", marker=style.marker, markersize=5,
            color=COLOURS[style.colour], gid=f"{SERIES}difference{place}",
        )  # fmt: skip
    if pair.interval is not None:
        low, high = np.clip(pair.interval, -LARGEST, LARGEST)
        axes.plot(
            [low, high], [0, 0], color=COLOURS["ink"], linewidth=2, marker="|", markersize=9, gid=f"{SERIES}interval"
        )
    mean = float(np.clip(pair.mean, -LARGEST, LARGEST))
    axes.plot([mean], [0], linestyle="none", marker="d", markersize=7, color=COLOURS["ink"], gid=f"{SERIES}mean")
    axes.set_ylim(-0.6, count + 0.6)
    labels = list(pair.seeds) if named else ["seeds"]
    axes.set_yticks([*range(count, 0, -1), 0], [*labels, "mean"])
    axes.grid(False, axis="y")
    axes.set_title(f"difference{f', {pair.unit}' if pair.unit else ''}")
    _few_ticks(axes, 5, of_x=True)


def _figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height))


def _frame(figure: Figure, height: float, bottom: float, left: float = 0.62) -> None:
    """Margins in inches, so that pictures line up whatever their height."""
    figure.subplots_adjust(left=left / WIDTH, right=1 - 0.12 / WIDTH, bottom=bottom / height, top=1 - 0.28 / height)


def _strokes(style: Style) -> str | tuple[float, Dashes]:
    return (0, style.dashes) if style.dashes else "-"


def _few_ticks(axes: Axes, most: int, *, of_x: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator

    (axes.xaxis if of_x else axes.yaxis).set_major_locator(MaxNLocator(most))


def _over_updates(axes: Axes, words: str = "update") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel(words)


def _lines(axes: Axes, lines: Sequence[Line], name: str, *, markers: bool = False) -> None:
    for place, line in enumerate(lines):
        step, values = line.finite
        axes.plot(
            step,
            values,
            color=COLOURS[line.style.colour],
            linestyle=_strokes(line.style),
            marker=line.style.marker if markers or len(step) == 1 else "",
            markersize=3.5,
            markevery=max(1, len(step) // 10),
            gid=f"{SERIES}{name}{place}",
        )
        if line.ended and len(step):
            axes.plot(
                step[-1:], values[-1:], marker="x", markersize=8, markeredgewidth=2, color=COLOURS["fail"],
                gid=f"{SERIES}collapsed{place}",
            )  # fmt: skip


def _log_lines(axes: Axes, lines: Sequence[Line]) -> None:
    """Distances by their size on a log axis; values of 0 are left out."""
    kept = []
    for line in lines:
        step, values = line.finite
        size = np.abs(values)
        kept.append(Line(step[size > 0], np.maximum(size[size > 0], SMALLEST), line.style))
    _lines(axes, kept, "sampler")
    axes.set_yscale("log")
    _plain_log(axes.yaxis, 5)


def _plain_log(axis: object, most: int) -> None:
    """Ticks as plain numbers: the log axis's own labels are formulas."""
    from matplotlib.axis import Axis
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    assert isinstance(axis, Axis)
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0), numticks=most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _nested(axes: Axes, lines: Sequence[Line], name: str) -> None:
    for place, line in enumerate(lines):
        step, values = line.finite
        axes.plot(
            step,
            values,
            color=COLOURS[line.style.colour],
            linewidth=line.style.breadth,
            alpha=0.55 if place < len(lines) - 1 else 1,
            gid=f"{SERIES}{name}-{place}",
        )
