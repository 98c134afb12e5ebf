"""Which pictures a report shows, and what stands beside them: each carries one argument and says what it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pth_tracker.model import IDLE_CLIP, LOST_SEED, ROGUE_NORMALISER, STUCK_BATCH, Audit, AuditedRun, Finding, Level
from pth_tracker.render import plots
from pth_tracker.render.plots import REFERENCE, Compared, Line, Style, nested_styles, style_of
from pth_tracker.render.svg import draw
from pth_tracker.render.text import counted, safe_text
from pth_tracker.traces import PairTrace, RunTrace, Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS: Final = 4
"""Runs that a picture of runs shows, a run to hold them against apart."""
ARMS: Final = 6
"""Arms that a picture of scores shows."""
CURVES: Final = 18
"""Score curves in one picture."""
PICTURES: Final = 6
"""Pictures of one kind: of comparisons, of settings."""
NESTED: Final = 3
"""Runs whose lines lie on each other in one plane."""
ORDER_UPDATES: Final = 40
"""Updates that the picture of a data order shows: more would hide whether lines agree."""
NAME: Final = 30
"""Characters of a name within a picture."""
SCORES: Final = "scores"
PAIRS: Final = "pairs"
_RATIO_RULES: Final = ("idle-clip", "clip-misses-lag", "sampler-diverged", "sampler-mismatch")
_ORDER_RULES: Final = ("lost-seed", "shared-data-order")


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


def pictures(audit: Audit) -> list[Picture]:
    """The pictures of a report on ``audit``, in the order in which they are shown."""
    makers = (_ratio, _order, _batches, _factors, _scores, _ranges, _pairs)
    return [picture for make in makers for picture in make(audit)]


def short(name: str, most: int = NAME) -> str:
    """A name as it stands within a picture: harmless, on one line, not long."""
    text = safe_text(name)
    return text if len(text) <= most else text[: most - 1] + "…"


def _blamed(audit: Audit, rules: Sequence[str], level: Level = Level.WARN) -> list[str]:
    """Keys of the runs that counted findings of these rules blame, in the order of the findings."""
    found = (one for one in audit.findings if one.counts and one.rule in rules and one.level.rank <= level.rank)
    return list(dict.fromkeys(key for finding in found for key in finding.blames if key in audit.runs))


def _spread(audit: Audit, keys: Iterable[str], most: int) -> list[str]:
    """At most so many of the runs, taken from the arms in turn."""
    arms: dict[str, list[str]] = {}
    for key in keys:
        arms.setdefault(audit.runs[key].arm, []).append(key)
    rounds = (own[place] for place in range(max(map(len, arms.values()), default=0)) for own in arms.values()
              if place < len(own))  # fmt: skip
    return [key for key, _ in zip(rounds, range(most))]


def _left_out(shown: int, of: int, noun: str = "run") -> str:
    return f" {counted(of - shown, f'more {noun}')} not shown." if of > shown else ""


def _thinned(traces: Iterable[Trace | None]) -> str:
    long = [trace for trace in traces if trace is not None and not trace.whole]
    return f" Curves are thinned, at most to {len(long[0].step)} of {long[0].count} values." if long else ""


def _nonfinite(traces: Iterable[Trace]) -> str:
    lost = sum(int(np.count_nonzero(~np.isfinite(trace.values))) for trace in traces)
    return f" {counted(lost, 'value')} not finite and not drawn." if lost else ""


def _line(trace: Trace, style: Style, ended: bool = False) -> Line:
    return Line(trace.step, trace.values, style, ended)


def _extent(trace: Trace) -> str:
    finite = trace.values[np.isfinite(trace.values)]
    return f"{finite.min():.3g} to {finite.max():.3g}" if len(finite) else "not finite"


def _ratio(audit: Audit) -> Iterator[Picture]:
    """The clip fraction beside the sampler's distance, of the runs that check 1 blames, beside one whose clip acts."""
    traces = audit.traces.runs

    def drawable(key: str) -> bool:
        trace = traces.get(key)
        return trace is not None and trace.clip is not None and trace.sampler is not None

    candidates = [key for key in _blamed(audit, _RATIO_RULES) if drawable(key)]
    if not candidates:
        return
    chosen = _spread(audit, candidates, RUNS)
    acting = next((key for key in traces if key not in candidates and drawable(key) and _acts(traces[key])), None)
    series = [(key, style_of(place)) for place, key in enumerate(chosen)]
    series += [(acting, REFERENCE)] if acting is not None else []
    pairs = [(key, style, clip, sampler) for key, style in series
             if (clip := traces[key].clip) is not None and (sampler := traces[key].sampler) is not None]  # fmt: skip
    first = pairs[0]
    names = (short(first[2].key, 44), short(first[3].key, 26))
    tolerance = audit.traces.kl_tolerance or 0.05
    idle = all(not np.any(clip.values[np.isfinite(clip.values)]) for key, _, clip, _ in pairs if key in candidates)
    title = "The clip never acts, while the sampler drifts away" if idle else "The clip beside the sampler's drift"
    held = f" {safe_text(audit.label(acting))} is shown beside them: there the clip acts." if acting else ""
    used = [trace for _, _, clip, sampler in pairs for trace in (clip, sampler)]
    yield Picture(
        IDLE_CLIP,
        title,
        "Above, the clip fraction that a log shows; below, on a log axis, how far the sampler that made the data is "
        f"from the learner; the long dashes are the tolerance, {tolerance:g}.{held}"
        f"{_left_out(len(chosen), len(candidates))}{_thinned(used)}{_nonfinite(used)}",
        "; ".join(
            f"{audit.label(key)}: clip fraction {_extent(clip)}, sampler's distance {_extent(sampler)} nats per token"
            for key, _, clip, sampler in pairs
        ),
        tuple((audit.label(key), style) for key, style, *_ in pairs),
        lambda: plots.ratio_figure(
            [_line(clip, style) for _, style, clip, _ in pairs],
            [_line(sampler, style) for _, style, _, sampler in pairs],
            names,
            tolerance,
        ),
    )


def _acts(trace: RunTrace) -> bool:
    clip = trace.clip
    return clip is not None and bool(np.any(clip.values[np.isfinite(clip.values)] > 0))


def _order(audit: Audit) -> Iterator[Picture]:
    """A witness series of the runs that claim several seeds and share one order, beside an arm whose seeds act."""
    witnesses = {key: trace.witness for key, trace in audit.traces.runs.items() if trace.witness is not None}
    rules = tuple(one for one in _ORDER_RULES if _blamed(audit, (one,)))
    candidates = [key for key in _blamed(audit, rules) if key in witnesses]
    groups = _groups(candidates, lambda key: audit.runs[key].arm)
    if not groups or len(max(groups.values(), key=len)) < 2:
        return
    arm, keys = max(groups.items(), key=lambda item: len(item[1]))
    shown = keys[:NESTED]
    others = _groups(
        (key for key, run in audit.runs.items() if run.arm and run.arm != arm and key in witnesses
         and key not in candidates),
        lambda key: audit.runs[key].arm,
    )  # fmt: skip
    other = next((own for own in others.values() if _differ([witnesses[key] for key in own])), [])[:NESTED]
    panels = [(arm, shown), *([(audit.runs[other[0]].arm, other)] if other else [])]
    titles = [f"{short(name)}: {_orders([witnesses[key] for key in own])}" for name, own in panels]
    styles = [nested_styles(len(own), NESTED * place) for place, (_, own) in enumerate(panels)]
    drawn = [
        (title, [_line(_head(witnesses[key]), style) for key, style in zip(own, looks)])
        for title, (_, own), looks in zip(titles, panels, styles)
    ]
    same = not _differ([witnesses[key] for key in shown])
    title = f"{counted(len(shown), 'run')} of {short(arm)} read {'one data order' if same else 'these data orders'}"
    name = witnesses[shown[0]].key
    rest = sum(len(own) for own in groups.values())
    yield Picture(
        LOST_SEED,
        title,
        f"{safe_text(name)} depends on the batch alone: lines that lie on each other read the same batches. "
        f"The first {ORDER_UPDATES} updates.{_left_out(len(shown), rest)}",
        f"{'. '.join(titles)}. Runs: " + "; ".join(", ".join(audit.label(key) for key in own) for _, own in panels),
        tuple((audit.label(key), style) for (_, own), looks in zip(panels, styles) for key, style in zip(own, looks)),
        lambda: plots.order_figure(drawn, short(name, 40)),
    )


def _groups(keys: Iterable[str], group: Callable[[str], str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(group(key), []).append(key)
    return found


def _head(trace: Trace) -> Trace:
    kept = slice(0, ORDER_UPDATES)
    return Trace(trace.key, trace.step[kept], trace.values[kept], trace.count, False)


def _orders(traces: Sequence[Trace]) -> str:
    """How many different lines these are, in words, over the updates that are shown."""
    heads = [_head(trace) for trace in traces]
    distinct = len({(head.step.tobytes(), head.values.astype(np.float32).tobytes()) for head in heads})
    return f"{counted(len(heads), 'run')}, {counted(distinct, 'data order')}"


def _differ(traces: Sequence[Trace]) -> bool:
    return len(traces) > 1 and not _orders(traces).endswith(", 1 data order")


def _batches(audit: Audit) -> Iterator[Picture]:
    """Which batch each update trained on, of the runs that train on one again."""
    held = {key: trace.batches for key, trace in audit.traces.runs.items() if trace.batches is not None}
    candidates = [key for key in _blamed(audit, ("stuck-batch",)) if key in held]
    if not candidates:
        return
    chosen = _spread(audit, candidates, NESTED)
    used, styles = [held[key] for key in chosen], nested_styles(len(chosen))
    repeats = [len(one.values) - len(np.unique(one.values)) for one in used]
    told = "the logged identity" if used[0].key else "prompts, response lengths and scores"
    yield Picture(
        STUCK_BATCH,
        "Updates train again on batches that were used before",
        f"A flat stretch is one batch, served again at every update; the dotted line is a new batch at each. Red marks "
        f"are updates on a batch used before. Batches are told by {told}."
        f"{_left_out(len(chosen), len(candidates))}{_first_ones(used)}",
        "; ".join(
            f"{audit.label(key)}: {repeat} of {len(one.values)} updates on a batch used before"
            for key, one, repeat in zip(chosen, used, repeats)
        ),
        tuple((audit.label(key), style) for key, style in zip(chosen, styles)),
        lambda: plots.batches_figure([_line(one, style) for one, style in zip(used, styles)]),
    )


def _first_ones(traces: Sequence[Trace]) -> str:
    long = max(traces, key=lambda trace: trace.count)
    return "" if long.whole else f" The first {len(long.step)} of {long.count} updates."


def _factors(audit: Audit) -> Iterator[Picture]:
    """The factors by which losses weigh sequences, of the runs blamed for their normaliser."""
    rows: dict[str, tuple[float, float]] = {}
    for finding in audit.findings:
        if finding.counts and finding.tag == ROGUE_NORMALISER:
            for label, evidence in _by_run(audit, finding):
                low, high = evidence.get("factor_min"), evidence.get("factor_max")
                if isinstance(low, float) and isinstance(high, float) and 0 < low < high < plots.LARGEST:
                    rows[label] = (low, high)
    if not rows:
        return
    shown = list(rows.items())[: 2 * RUNS]
    yield Picture(
        ROGUE_NORMALISER,
        "The loss weighs some sequences more than its equation does",
        "Each bar runs from the smallest to the largest factor between the implemented gradient and the equation's, "
        f"on one fixed input; the equation is 1 for every sequence.{_left_out(len(shown), len(rows))}",
        "; ".join(f"{label}: {low:.3g} to {high:.3g}" for label, (low, high) in shown),
        (),
        lambda: plots.factors_figure([(short(label, 18), low, high) for label, (low, high) in shown]),
    )


def _by_run(audit: Audit, finding: Finding) -> Iterator[tuple[str, dict[str, object]]]:
    """A finding's evidence by run label: gathered findings hold one mapping a run."""
    labels = {audit.label(key) for key in finding.runs}
    gathered = {label: own for label, own in finding.evidence.items() if label in labels and isinstance(own, dict)}
    if gathered:
        yield from gathered.items()
    elif len(finding.runs) == 1:
        yield audit.label(finding.runs[0]), dict(finding.evidence)


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


def _scores(audit: Audit) -> Iterator[Picture]:
    """Score curves by arm, a picture for each setting of the stress axis."""
    styles = _arm_styles(audit)
    held = [one for one in _scored(audit, styles) if one[1].counted or one[2].collapsed]
    settings = _groups((key for key, *_ in held), lambda key: audit.traces.runs[key].stress)
    ordered = sorted(settings, key=_number)
    by_key = {key: (run, trace, score) for key, run, trace, score in held}
    for setting in ordered[:PICTURES]:
        keys = _spread(audit, settings[setting], CURVES)
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
            f"{_left_out(len(keys), len(settings[setting]))}{_left_out(0, gone, 'arm') if gone > 0 else ''}"
            f"{_left_out(min(len(ordered), PICTURES), len(ordered), 'setting') if setting == ordered[0] else ''}"
            f"{_thinned(score for *_, score in drawn)}",
            "; ".join(
                f"{audit.label(key)}: from {score.values[0]:.3g} to {score.values[-1]:.3g}"
                f"{', collapsed' if ended else ''}"
                for key, (_, ended, score) in zip(keys, drawn)
            ),
            tuple((arm, styles[arm]) for arm in arms),
            lambda drawn=drawn, stable=stable: plots.scores_figure(  # type: ignore[misc]
                [_line(score, styles[arm], ended) for arm, ended, score in drawn],
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


def _ranges(audit: Audit) -> Iterator[Picture]:
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


def _pairs(audit: Audit) -> Iterator[Picture]:
    """Each comparison of two arms by seed: slopes, differences and the interval of their mean."""
    for place, pair in enumerate(audit.traces.pairs[:PICTURES]):
        left = _left_out(PICTURES, len(audit.traces.pairs), "comparison") if place == 0 else ""
        yield _pair(pair, left)


def _pair(pair: PairTrace, left: str) -> Picture:
    differences = (pair.scores_a - pair.scores_b) * pair.scale
    interval = None if pair.interval is None else (pair.interval[0] * pair.scale, pair.interval[1] * pair.scale)
    mean, unit = pair.mean * pair.scale, f" {pair.unit}" if pair.unit else ""
    said = f"95% interval {interval[0]:+.2f} to {interval[1]:+.2f}" if interval else "no interval"
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
