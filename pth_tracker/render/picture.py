"""A picture of a report with its words, and what all pictures share: names, runs to show, what is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pth_tracker.model import Audit, Level
from pth_tracker.render.plots import Line, Style
from pth_tracker.render.svg import draw
from pth_tracker.render.text import counted, safe_text
from pth_tracker.traces import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME: Final = 30
"""Characters of a name within a picture."""
SCORES: Final = "scores"
PAIRS: Final = "pairs"


@dataclass(frozen=True)
class Picture:
    """One picture with its words."""

    place: str
    """Where it belongs: one of the four bug names, `SCORES` or `PAIRS`."""
    title: str
    """What it shows, as a sentence."""
    caption: str
    """How to read it, and what it leaves out."""
    description: str
    """The same for those who cannot see it, with its numbers."""
    legend: tuple[tuple[str, Style], ...]
    """Name and look of each series."""
    draw: Callable[[], Figure]

    def svg(self, prefix: str) -> str:
        """The picture as an ``<svg>`` element; its ids start with ``prefix``."""
        return draw(self.draw, prefix, safe_text(self.title), safe_text(self.description))


def short(name: str, most: int = NAME) -> str:
    """A name as it stands within a picture: harmless, on one line, not long."""
    text = safe_text(name)
    return text if len(text) <= most else text[: most - 1] + "…"


def blamed(audit: Audit, rules: Sequence[str], level: Level = Level.WARN) -> list[str]:
    """Keys of the runs that counted findings of these rules blame, in the order of the findings."""
    found = (one for one in audit.findings if one.counts and one.rule in rules and one.level.rank <= level.rank)
    return list(dict.fromkeys(key for finding in found for key in finding.blames if key in audit.runs))


def spread_over_arms(audit: Audit, keys: Iterable[str], most: int) -> list[str]:
    """At most so many of the runs, taken from the arms in turn."""
    arms: dict[str, list[str]] = {}
    for key in keys:
        arms.setdefault(audit.runs[key].arm, []).append(key)
    rounds = (own[place] for place in range(max(map(len, arms.values()), default=0)) for own in arms.values()
              if place < len(own))  # fmt: skip
    return [key for key, _ in zip(rounds, range(most))]


def left_out(shown: int, of: int, noun: str = "run") -> str:
    """A sentence on what is not shown, behind a blank; ``""``: all is."""
    return f" {counted(of - shown, f'more {noun}')} not shown." if of > shown else ""


def thinned(traces: Iterable[Trace | None]) -> str:
    """A sentence on curves of which not all values are drawn; ``""``: all are."""
    long = [trace for trace in traces if trace is not None and not trace.whole]
    return f" Curves are thinned, at most to {len(long[0].step)} of {long[0].count} values." if long else ""


def nonfinite(traces: Iterable[Trace]) -> str:
    """A sentence on values that cannot be drawn; ``""``: there are none."""
    lost = sum(int(np.count_nonzero(~np.isfinite(trace.values))) for trace in traces)
    return f" {counted(lost, 'value')} not finite and not drawn." if lost else ""


def line_of(trace: Trace, style: Style, ended: bool = False) -> Line:
    """A trace in one look; ``ended``: its run collapsed."""
    return Line(trace.step, trace.values, style, ended)


def extent(trace: Trace) -> str:
    """From the smallest to the largest value, in words."""
    finite = trace.values[np.isfinite(trace.values)]
    return f"{finite.min():.3g} to {finite.max():.3g}" if len(finite) else "not finite"


def grouped(keys: Iterable[str], group: Callable[[str], str]) -> dict[str, list[str]]:
    """The keys by what ``group`` makes of each, in the order of appearance."""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(group(key), []).append(key)
    return found
