"""The pictures of the four bugs, each of runs that a finding blames and of what they are held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from pth_tracker.model import IDLE_CLIP, LOST_SEED, ROGUE_NORMALISER, STUCK_BATCH, Audit, Finding
from pth_tracker.render import plots
from pth_tracker.render.picture import (
    Picture,
    blamed,
    extent,
    grouped,
    left_out,
    line_of,
    nonfinite,
    short,
    spread_over_arms,
    thinned,
)
from pth_tracker.render.plots import REFERENCE, nested_styles, style_of
from pth_tracker.render.text import counted, safe_text
from pth_tracker.traces import RunTrace, Trace

RUNS: Final = 4
"""Runs that a picture of runs shows, a run to hold them against apart."""
NESTED: Final = 3
"""Runs whose lines lie on each other in one plane."""
ORDER_UPDATES: Final = 40
"""Updates that the picture of a data order shows: more would hide whether lines agree."""
_RATIO_RULES: Final = ("idle-clip", "clip-misses-lag", "sampler-diverged", "sampler-mismatch")
_ORDER_RULES: Final = ("lost-seed", "shared-data-order")


def ratio_pictures(audit: Audit) -> Iterator[Picture]:
    """The clip fraction beside the sampler's distance, of the runs that check 1 blames, beside one whose clip acts."""
    traces = audit.traces.runs

    def drawable(key: str) -> bool:
        trace = traces.get(key)
        return trace is not None and trace.clip is not None and trace.sampler is not None

    candidates = [key for key in blamed(audit, _RATIO_RULES) if drawable(key)]
    if not candidates:
        return
    chosen = spread_over_arms(audit, candidates, RUNS)
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
        f"{left_out(len(chosen), len(candidates))}{thinned(used)}{nonfinite(used)}",
        "; ".join(
            f"{audit.label(key)}: clip fraction {extent(clip)}, sampler's distance {extent(sampler)} nats per token"
            for key, _, clip, sampler in pairs
        ),
        tuple((audit.label(key), style) for key, style, *_ in pairs),
        lambda: plots.ratio_figure(
            [line_of(clip, style) for _, style, clip, _ in pairs],
            [line_of(sampler, style) for _, style, _, sampler in pairs],
            names,
            tolerance,
        ),
    )


def _acts(trace: RunTrace) -> bool:
    clip = trace.clip
    return clip is not None and bool(np.any(clip.values[np.isfinite(clip.values)] > 0))


def order_pictures(audit: Audit) -> Iterator[Picture]:
    """A witness series of the runs that claim several seeds and share one order, beside an arm whose seeds act."""
    witnesses = {key: trace.witness for key, trace in audit.traces.runs.items() if trace.witness is not None}
    rules = tuple(one for one in _ORDER_RULES if blamed(audit, (one,)))
    candidates = [key for key in blamed(audit, rules) if key in witnesses]
    groups = grouped(candidates, lambda key: audit.runs[key].arm)
    if not groups or len(max(groups.values(), key=len)) < 2:
        return
    arm, keys = max(groups.items(), key=lambda item: len(item[1]))
    shown = keys[:NESTED]
    others = grouped(
        (key for key, run in audit.runs.items() if run.arm and run.arm != arm and key in witnesses
         and key not in candidates),
        lambda key: audit.runs[key].arm,
    )  # fmt: skip
    other = next((own for own in others.values() if _differ([witnesses[key] for key in own])), [])[:NESTED]
    panels = [(arm, shown), *([(audit.runs[other[0]].arm, other)] if other else [])]
    titles = [f"{short(name)}: {_orders([witnesses[key] for key in own])}" for name, own in panels]
    styles = [nested_styles(len(own), NESTED * place) for place, (_, own) in enumerate(panels)]
    drawn = [
        (title, [line_of(_head(witnesses[key]), style) for key, style in zip(own, looks)])
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
        f"The first {ORDER_UPDATES} updates.{left_out(len(shown), rest)}",
        f"{'. '.join(titles)}. Runs: " + "; ".join(", ".join(audit.label(key) for key in own) for _, own in panels),
        tuple((audit.label(key), style) for (_, own), looks in zip(panels, styles) for key, style in zip(own, looks)),
        lambda: plots.order_figure(drawn, short(name, 40)),
    )


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


def batches_pictures(audit: Audit) -> Iterator[Picture]:
    """Which batch each update trained on, of the runs that train on one again."""
    held = {key: trace.batches for key, trace in audit.traces.runs.items() if trace.batches is not None}
    candidates = [key for key in blamed(audit, ("stuck-batch",)) if key in held]
    if not candidates:
        return
    chosen = spread_over_arms(audit, candidates, NESTED)
    used, styles = [held[key] for key in chosen], nested_styles(len(chosen))
    repeats = [len(one.values) - len(np.unique(one.values)) for one in used]
    told = "the logged identity" if used[0].key else "prompts, response lengths and scores"
    yield Picture(
        STUCK_BATCH,
        "Updates train again on batches that were used before",
        f"A flat stretch is one batch, served again at every update; the dotted line is a new batch at each. Red marks "
        f"are updates on a batch used before. Batches are told by {told}."
        f"{left_out(len(chosen), len(candidates))}{_first_ones(used)}",
        "; ".join(
            f"{audit.label(key)}: {repeat} of {len(one.values)} updates on a batch used before"
            for key, one, repeat in zip(chosen, used, repeats)
        ),
        tuple((audit.label(key), style) for key, style in zip(chosen, styles)),
        lambda: plots.batches_figure([line_of(one, style) for one, style in zip(used, styles)]),
    )


def _first_ones(traces: Sequence[Trace]) -> str:
    long = max(traces, key=lambda trace: trace.count)
    return "" if long.whole else f" The first {len(long.step)} of {long.count} updates."


def factors_pictures(audit: Audit) -> Iterator[Picture]:
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
        f"on one fixed input; the equation is 1 for every sequence.{left_out(len(shown), len(rows))}",
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
