"""One run from plain arrays, examined by the rules of run scope that a test names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pth_tracker.checks import find_rule
from pth_tracker.design.stitch import recognise
from pth_tracker.examine import CURVES, Examination, examine_history
from pth_tracker.model import Finding, Plan
from pth_tracker.runs import History, RunRef, SourceRun
from pth_tracker.vocabulary.load import load_vocabulary

Points = Mapping[str, npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike]]
"""Raw metric name to its values at updates 1, 2, ..., or to ``(steps, values)``."""


def examined(
    points: Points,
    *slugs: str,
    config: Mapping[str, object] | None = None,
    decimals: Mapping[str, int] | None = None,
    markers: Sequence[str] = (),
    stress: str = "",
    age: str = "",
    batch_uses: int = 1,
) -> Examination:
    """The examination of one run with these metrics by these rules."""
    vocabulary = load_vocabulary()
    full = {
        key: value if isinstance(value, tuple) else (np.arange(1, np.size(value) + 1), value)
        for key, value in points.items()
    }
    source = SourceRun(
        RunRef("project", "run-1"),
        "run-1",
        config=dict(config or {}),
        metric_keys=frozenset(full),
        log_markers=tuple(markers),
    )
    rules = [find_rule(slug) for slug in slugs]
    wanted = {name for rule in rules for name in (*rule.names, *rule.reads) if name in vocabulary.quantities}
    plan = Plan(
        rules=slugs,
        quantities=tuple(sorted(wanted | set(CURVES))),
        stress=stress,
        age=age,
        batch_uses=batch_uses,
    )
    return examine_history(recognise(vocabulary, [source]), History.from_points(full, decimals), plan)


def findings(result: Examination, slug: str) -> list[Finding]:
    """The findings of one rule, which has to have been judged."""
    (outcome,) = [one for one in result.outcomes if one.rule == slug]
    assert outcome.met, f"{slug} was not judged: it lacks {outcome.missing}"
    return [one for one in result.findings if one.rule == slug]


def missing(result: Examination, slug: str) -> tuple[str, ...]:
    """What one rule lacks, which must not have been judged."""
    (outcome,) = [one for one in result.outcomes if one.rule == slug]
    assert not outcome.met, f"{slug} was judged by {outcome.met}"
    assert not [one for one in result.findings if one.rule == slug]
    return outcome.missing
