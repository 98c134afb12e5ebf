"""How two gradients of one input differ, told from the pattern of their quotients. NumPy only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pth_tracker.losses.kinds import Bools, Context, Diagnosis, Kind
from pth_tracker.losses.patterns import differing_tokens, tokens, whole_sequences
from pth_tracker.runs import Floats


@dataclass(frozen=True)
class _Base:
    """A factor that explains some tokens: ``row`` times the ratio ``name`` to the ``power``."""

    factor: Floats
    """``(batch, length)``."""
    rows: Floats
    """``(batch,)``; NaN: not determined."""
    fits: Bools
    name: str = ""
    power: int = 0

    @property
    def one(self) -> bool:
        """Whether all sequences share the factor."""
        known = self.rows[np.isfinite(self.rows)]
        return bool(len(known) == 0 or np.all(known == known[0]))


def diagnose(implemented: Floats, equation: Floats, context: Context) -> Diagnosis:
    """The kind of difference between two gradients of shape ``(batch, length)``.

    Equal within rtol and atol; else the factor that most tokens share is sought (one for all, one a sequence, a ratio
    of probabilities), and the tokens that it does not explain are told apart: outside the mask, at the ends of
    sequences or whole sequences (mask), on one side of a bound of a ratio (clip region). ``sign`` is a negative factor.
    """
    largest = float(np.abs(equation).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        difference = np.abs(implemented - equation)
    worst = float(difference.max(initial=0.0))
    facts = Diagnosis(
        Kind.UNRELATED,
        max_difference=worst,
        relative=worst / largest if largest else (0.0 if worst == 0 else float("inf")),
        cosine=_cosine(implemented, equation),
    )
    if not np.isfinite(equation).all():
        return replace(facts, kind=Kind.NOT_FINITE, detail="The equation's own gradient is not finite on this input.")
    if not np.isfinite(implemented).all():
        return replace(facts, kind=Kind.NOT_FINITE, detail=_where_not_finite(implemented, context))
    if np.all(difference <= context.rtol * np.abs(equation) + context.atol):
        return replace(facts, kind=Kind.EQUAL, factors=(1.0, 1.0))
    live_equation, live = np.abs(equation) > context.atol, np.abs(implemented) > context.atol
    if not live.any():
        return replace(facts, kind=Kind.NO_GRADIENT, detail="The implemented gradient is 0 everywhere.")
    if not live_equation.any():
        return replace(facts, detail="The equation's gradient is 0 everywhere, the implemented one is not.")
    bases = list(_bases(implemented, equation, live, live_equation, context))
    base = max(bases, key=lambda one: int(one.fits[live | live_equation].sum()))  # ties: the simplest comes first
    differing = ~base.fits & (live | live_equation)
    facts = replace(facts, differing=int(differing.sum()))
    if not differing.any():
        return _explained(facts, base, live_equation, context)
    agreeing = int((base.fits & live & live_equation).sum())
    by_token = _token_signs(implemented, equation, live, live_equation, context)
    if by_token:
        return replace(facts, kind=Kind.SIGN, detail=by_token)
    told = differing_tokens(differing, live, live_equation, context)
    if told and agreeing >= max(2, 0.25 * int(live_equation.sum())):
        kind, detail = told
        if base.power:
            kind, detail = Kind.TOKEN_FACTOR, f"{_ratio_text(base)} Besides: {detail}"
        elif not base.one:
            detail += f" The rest agrees up to a factor per sequence, {_span(base)}."
        elif not np.isclose(base.rows[np.isfinite(base.rows)][0], 1.0, rtol=2 * context.rtol):
            detail += f" The rest agrees up to a factor of {_span(base)}."
        return replace(facts, kind=kind, detail=detail, factors=None if base.power else _range(base))
    most = 2 * agreeing >= int(live_equation.sum())
    if base.power and most:
        detail = f"{_ratio_text(base)} It holds on {agreeing} tokens, and {tokens(differing)} follow no bound seen."
        return replace(facts, kind=Kind.TOKEN_FACTOR, detail=detail)
    if np.array_equal(live, live_equation):
        quotient = implemented[live] / equation[live]
        if (quotient > 0).all() or (quotient < 0).all():
            text = f"Both are 0 on the same tokens; the factor runs from {quotient.min():.4g} to {quotient.max():.4g}."
            more = _by_position(implemented, equation, live, context)
            kind = Kind.TOKEN_FACTOR if quotient[0] > 0 else Kind.SIGN
            return replace(facts, kind=kind, detail=f"{text}{more}")
    shared = f" {agreeing} tokens agree up to a factor of {_span(base)}." if most else ""
    return replace(facts, detail=f"The cosine of the two gradients is {facts.cosine:.4f}.{shared}")


def _cosine(first: Floats, second: Floats) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        norms = float(np.linalg.norm(first) * np.linalg.norm(second))
        return float((first * second).sum()) / norms if norms > 0 else float("nan")


def _where_not_finite(implemented: Floats, context: Context) -> str:
    bad = ~np.isfinite(implemented)
    where = ""
    if context.mask is not None:
        inside = int((bad & context.mask).sum())
        where = f", {inside} of them inside the mask" if inside else ", all of them outside the mask"
    return f"{int(bad.sum())} entries of the implemented gradient are NaN or infinite{where}."


def _bases(
    implemented: Floats, equation: Floats, live: Bools, live_equation: Bools, context: Context
) -> Iterator[_Base]:
    """Factors that may explain the difference, the simplest first."""
    both = live & live_equation
    ratios = [("", 0, np.zeros_like(equation))]
    ratios += [(name, power, values) for name, values in context.log_ratios.items() for power in (1, -1)]
    for name, power, log_ratio in ratios:
        if power and np.ptp(log_ratio[live_equation]) < 1e-9:
            continue
        with np.errstate(over="ignore"):
            weighted = equation * np.exp(power * log_ratio)
        if not np.isfinite(weighted).all():
            continue
        quotient = np.divide(implemented, weighted, out=np.full_like(equation, np.nan), where=both)
        common = _most_common(quotient[both], context.rtol)
        yield _base(implemented, equation, weighted, np.full(len(equation), common), name, power, context)
        own = [_row_factor(*row, common, context.rtol) for row in zip(quotient, both, live_equation)]
        if any(factor != common for factor in own):
            yield _base(implemented, equation, weighted, np.array(own), name, power, context)


def _row_factor(quotient: Floats, both: Bools, live_equation: Bools, common: float, rtol: float) -> float:
    """One sequence's factor: 0 where nothing of its gradient is left, ``common`` where it never had any."""
    if both.any():
        return _most_common(quotient[both], rtol)
    return 0.0 if live_equation.any() else common


def _base(
    implemented: Floats, equation: Floats, weighted: Floats, rows: Floats, name: str, power: int, context: Context
) -> _Base:
    # Twice the tolerance: the factor is itself read off gradients that are known within it.
    expected = rows[:, None] * weighted
    slack = 2 * (context.rtol * np.abs(expected) + context.atol * np.maximum(1.0, np.abs(rows))[:, None])
    shared = _merged(rows, 2 * context.rtol)
    factor = np.divide(expected, equation, out=np.zeros_like(equation), where=equation != 0)
    return _Base(factor, shared, np.abs(implemented - expected) <= slack, name, power)


def _merged(rows: Floats, rtol: float) -> Floats:
    """The factors with those that agree within ``rtol`` made equal, so that a common one is seen as such."""
    middle = float(np.sort(rows)[len(rows) // 2])
    return np.full_like(rows, middle) if np.allclose(rows, middle, rtol=rtol, atol=0) else rows


def _most_common(values: Floats, rtol: float) -> float:
    """The middle of the largest cluster of values within ``4 rtol`` of each other; 0 where there are none."""
    if not len(values):
        return 0.0
    ordered = np.sort(values)
    upper = ordered + 4 * rtol * np.abs(ordered)
    counts = np.searchsorted(ordered, upper, side="right") - np.arange(len(ordered))
    start = int(counts.argmax())
    return float(ordered[start + counts[start] // 2])


def _range(base: _Base) -> tuple[float, float]:
    known = base.rows[np.isfinite(base.rows)]
    return float(known.min()), float(known.max())


def _span(base: _Base) -> str:
    low, high = _range(base)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _ratio_text(base: _Base) -> str:
    share = "" if base.one and np.isclose(base.rows[0], 1.0, rtol=1e-3) else f" times {_span(base)}"
    return f"The factor is {base.name}{' inverted' if base.power < 0 else ''}{share}."


def _explained(facts: Diagnosis, base: _Base, live: Bools, context: Context) -> Diagnosis:
    """The diagnosis where one factor, or one a sequence, explains every token."""
    if base.power:
        return replace(facts, kind=Kind.TOKEN_FACTOR, detail=_ratio_text(base))
    concerned: Bools = np.asarray(live.any(axis=1))
    rows = base.rows[concerned]
    low, high = float(rows.min()), float(rows.max())
    facts = replace(facts, factors=(low, high))
    if base.one or low == high:
        if low < 0:
            scale = "" if np.isclose(low, -1, rtol=2 * context.rtol) else f", and the factor is {low:.6g}"
            return replace(facts, kind=Kind.SIGN, detail=f"The gradients point in opposite directions{scale}.")
        return replace(facts, kind=Kind.GLOBAL_FACTOR, detail=f"The gradients differ by one factor, {low:.6g}.")
    idle = np.abs(rows) <= context.rtol * np.abs(rows).max()
    if idle.any():
        dropped = np.zeros(len(live), dtype=bool)
        dropped[concerned] = idle
        kind, detail = whole_sequences(dropped, "contribute no gradient", context)
        left = rows[~idle]
        return replace(facts, kind=kind, detail=detail, factors=(float(left.min()), float(left.max())))
    if np.all(live.sum(axis=1) <= 1):
        return replace(facts, kind=Kind.TOKEN_FACTOR, detail=f"The factor runs from {low:.4g} to {high:.4g}.")
    if rows.min() < 0:
        where = ""
        if context.sign is not None:
            signs = context.sign[concerned, 0]
            if np.array_equal(rows < 0, signs < 0):
                where = ", those with a negative advantage"
        count = int((rows < 0).sum())
        whole = np.isclose(low, high, rtol=2 * context.rtol) or np.allclose(
            np.abs(rows), abs(low), rtol=2 * context.rtol
        )
        detail = f"The gradients of {count} of {len(rows)} sequences point in opposite directions{where}."
        more = "" if whole else f" The factor per sequence runs from {low:.4g} to {high:.4g}."
        return replace(facts, kind=Kind.SIGN, detail=detail + more, factors=None if whole else (low, high))
    detail = f"Within every sequence the gradients are parallel; the factor runs from {low:.4g} to {high:.4g}"
    return replace(facts, kind=Kind.SEQUENCE_FACTOR, detail=f"{detail}{_by_length(rows, concerned, context)}.")


def _by_length(rows: Floats, concerned: Bools, context: Context) -> str:
    """What the factors have to do with the sequences' lengths, in words."""
    if context.mask is None:
        return ""
    lengths = context.mask.sum(axis=1)[concerned].astype(float)
    if np.allclose(rows / lengths, (rows / lengths)[0], rtol=4 * context.rtol):
        return ", in proportion to the sequence's length"
    if np.allclose(rows * lengths, (rows * lengths)[0], rtol=4 * context.rtol):
        return ", in inverse proportion to the sequence's length"
    return ""


def _by_position(implemented: Floats, equation: Floats, live: Bools, context: Context) -> str:
    quotient = np.divide(implemented, equation, out=np.full_like(equation, np.nan), where=live)
    columns = [column[np.isfinite(column)] for column in quotient.T]
    several = [column for column in columns if len(column) > 1]
    same = [np.allclose(column, column[0], rtol=4 * context.rtol) for column in several]
    return " It depends on the token's position alone." if len(several) > 1 and all(same) else ""


def _token_signs(implemented: Floats, equation: Floats, live: Bools, live_equation: Bools, context: Context) -> str:
    """A sentence where the gradients differ in nothing but the sign of some tokens, else ``""``."""
    if not np.array_equal(live, live_equation):
        return ""
    quotient = implemented[live] / equation[live]
    if not np.allclose(np.abs(quotient), np.median(np.abs(quotient)), rtol=4 * context.rtol):
        return ""
    return f"{int((quotient < 0).sum())} of {len(quotient)} tokens have the opposite sign."
