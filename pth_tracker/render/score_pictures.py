"""The pictures of scores and comparisons: curves by setting, the stable range, differences by seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pth_tracker.model import Audit, AuditedRun
from pth_tracker.render import plots
from pth_tracker.render.picture import (
    PAIRS,
    SCORES,
    Picture,
    grouped,
    left_out,
    line_of,
    short,
    spread_over_arms,
    thinned,
)
from pth_tracker.render.plots import Compared, Style, style_of
from pth_tracker.render.text import counted, safe_text
from pth_tracker.traces import PairTrace, RunTrace, Trace

ARMS: Final = 6
"""Arms that a picture of scores shows."""
CURVES: Final = 18
"""Score curves in one picture."""
PICTURES: Final = 6
"""Pictures of one kind: of comparisons, of settings."""


def _arm_styles(audit: Audit) -> dict[str, Style]:
    baseline = audit.design.baseline
    names = [*([baseline] if baseline in audit.design.arms else []), *(a for a in audit.design.arms if a != baseline)]
    return {arm: style_of(place) for place, arm in enumerate(names[:ARMS])}


def _scored(audit: Audit, arms: Iterable[str]) -> Iterator[tuple[str, AuditedRun, RunTrace, Trace]]:
    wanted = set(arms)
    for key, trace in audit.traces.runs.items():
        run = audit.runs.get(key)
        if run is not None and run.arm in wanted and trace.score is not None:
            yield key, run, trace, trace.score


def scores_pictures(audit: Audit) -> Iterator[Picture]:
    """Score curves by arm, a picture for each setting of the stress axis."""
    styles = _arm_styles(audit)
    held = [one for one in _scored(audit, styles) if one[1].counted or one[2].collapsed]
    settings = grouped((key for key, *_ in held), lambda key: audit.traces.runs[key].stress)
    ordered = sorted(settings, key=_number)
    by_key = {key: (run, trace, score) for key, run, trace, score in held}
    for setting in ordered[:PICTURES]:
        keys = spread_over_arms(audit, settings[setting], CURVES)
        drawn = [(audit.runs[key].arm, by_key[key][1].collapsed, by_key[key][2]) for key in keys]
        if not any(len(score.step) > 1 for *_, score in drawn):
            continue
        arms = [arm for arm in styles if any(own == arm for own, *_ in drawn)]
        stable = _is_stable(audit, setting)
        where = f" at {safe_text(audit.design.stress)} = {safe_text(setting)}" if setting else ""
        collapsed = sum(1 for _, ended, _ in drawn if ended)
        says = "" if stable is None else (
            " The plane is shaded: the setting lies in the baseline's stable range." if stable else
            " The plane is hatched: the setting lies outside the baseline's stable range."
        )  # fmt: skip
        crossed = f" A cross marks {counted(collapsed, 'run')} that collapsed." if collapsed else ""
        gone = len(audit.design.arms) - len(styles)
        yield Picture(
            SCORES,
            f"Scores during training{where}",
            f"One curve a run; runs of an arm look alike.{crossed}{says}"
            f"{left_out(len(keys), len(settings[setting]))}{left_out(0, gone, 'arm') if gone > 0 else ''}"
            f"{left_out(min(len(ordered), PICTURES), len(ordered), 'setting') if setting == ordered[0] else ''}"
            f"{thinned(score for *_, score in drawn)}",
            "; ".join(
                f"{audit.label(key)}: from {score.values[0]:.3g} to {score.values[-1]:.3g}"
                f"{', collapsed' if ended else ''}"
                for key, (_, ended, score) in zip(keys, drawn)
            ),
            tuple((arm, styles[arm]) for arm in arms),
            lambda drawn=drawn, stable=stable: plots.scores_figure(  # type: ignore[misc]
                [line_of(score, styles[arm], ended) for arm, ended, score in drawn],
                short(drawn[0][2].key, 60),
                stable,
            ),
        )


def _number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _is_stable(audit: Audit, setting: str) -> bool | None:
    """Whether every arm that others are compared with is stable there; None: nobody tested."""
    tested = [one for one in audit.traces.ranges if setting in one.settings]
    return all(one.settings.index(setting) < one.stable for one in tested) if tested else None


def ranges_pictures(audit: Audit) -> Iterator[Picture]:
    """The final scores by setting of the stress axis, with the range over which the baseline is stable."""
    styles = _arm_styles(audit)
    for found in audit.traces.ranges[:1]:
        if len(found.settings) > 2 * PICTURES:
            continue
        place = {setting: at for at, setting in enumerate(found.settings)}
        points: dict[str, list[tuple[int, float]]] = {}
        for key, run, trace, _ in _scored(audit, styles):
            if run.score is not None and trace.stress in place and (run.counted or trace.collapsed):
                points.setdefault(audit.runs[key].arm, []).append((place[trace.stress], run.score))
        arms = [(arm, style) for arm, style in styles.items() if arm in points]
        limit = f"stable up to {found.settings[found.stable - 1]}" if found.stable else "stable at no tested setting"
        counts = ", ".join(
            f"{safe_text(setting)}: {gone} of {runs} collapsed"
            for setting, gone, runs in zip(found.settings, found.collapsed, found.runs)
        )
        yield Picture(
            SCORES,
            f"{safe_text(found.arm)} is {safe_text(limit)}",
            f"Final score of each run by {safe_text(audit.design.stress)}; the shaded settings are those at which no "
            f"run of {safe_text(found.arm)} collapsed, from the mildest on. By setting, {counts}.",
            f"{found.arm}: {counts}",
            tuple(arms),
            lambda found=found, arms=arms, points=points: plots.range_figure(  # type: ignore[misc]
                [short(setting, 10) for setting in found.settings],
                [(style, points[arm]) for arm, style in arms],
                found.stable,
                short(audit.design.stress, 60),
            ),
        )


def pairs_pictures(audit: Audit) -> Iterator[Picture]:
    """Each comparison of two arms by seed: slopes, differences and the interval of their mean."""
    for place, pair in enumerate(audit.traces.pairs[:PICTURES]):
        left = left_out(PICTURES, len(audit.traces.pairs), "comparison") if place == 0 else ""
        yield _pair(pair, left)


def _pair(pair: PairTrace, left: str) -> Picture:
    differences = (pair.scores_a - pair.scores_b) * pair.scale
    interval = None if pair.interval is None else (pair.interval[0] * pair.scale, pair.interval[1] * pair.scale)
    mean, unit = pair.mean * pair.scale, f" {pair.unit}" if pair.unit else ""
    said = f"95% interval {interval[0]:+.2f} to {interval[1]:+.2f}" if interval else pair.no_interval
    compared = Compared(
        [short(seed, 10) for seed in pair.seeds],
        (pair.scores_b, pair.scores_a),
        (short(pair.b, 10), short(pair.a, 10)),
        differences,
        mean,
        interval,
        None if pair.margin is None else pair.margin * pair.scale,
        pair.unit,
    )
    band = " The grey band is the margin within which a difference is a tie." if pair.margin is not None else ""
    return Picture(
        PAIRS,
        f"{safe_text(pair.subject)}: {mean:+.2f}{unit}, {said}",
        f"Left, one line a seed from {safe_text(pair.b)} to {safe_text(pair.a)}; right, {safe_text(pair.a)} minus "
        f"{safe_text(pair.b)} by seed, and their mean with its 95% interval.{band}{left}",
        f"Differences by seed: {', '.join(f'{s} {d:+.2f}' for s, d in zip(pair.seeds, differences.tolist()))}",
        () if len(pair.seeds) > plots.MANY else tuple((s, style_of(place)) for place, s in enumerate(pair.seeds)),
        lambda: plots.pair_figure(compared),
    )
