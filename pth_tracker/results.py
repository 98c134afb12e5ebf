"""Check 6 on scores in memory or in a table of ``method,seed,value``: differences paired by seed."""

from __future__ import annotations

import csv
import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pth_tracker.errors import UsageError
from pth_tracker.model import Level, Report
from pth_tracker.values import canonical_value, value_key

if TYPE_CHECKING:
    from pth_tracker import stats

LEAST_FOR_INTERVAL: Final = 2
MAX_NAMES: Final = 12


def paired_differences(results: Mapping[str, Mapping[Any, float]], a: str, b: str, scale: float = 1.0) -> Report:
    """Check 6: the differences ``a - b`` seed by seed, with Student's 95% interval of their mean.

    Seeds are paired by value: ``"43"`` and ``43`` are one. A score that is no finite number is left out and said.

    Args:
        results: Method to the final score of each seed.
        a: The first method.
        b: The second, which is taken from the first.
        scale: A factor for the differences, such as 100 for points.

    Returns:
        A report with the stats ``pairs, differences, mean, min, max, a_ahead, b_ahead, pooled_separation`` and
        ``interval`` (None with one pair), ``p`` (of the t test) and ``verdict``.

    Raises:
        KeyError: there are no results of a method.
        UsageError: differences that overflow.
    """
    missing = [method for method in (a, b) if method not in results]
    if missing:
        raise KeyError(f"there are no results of {' and '.join(missing)}; there are {_listed(list(results))}")
    report = Report(subject=f"check 6: {a} minus {b}, paired by seed")
    sides = [_finite(report, method, results[method]) for method in (a, b)]
    shared = sorted((key for key in sides[0] if key in sides[1]), key=lambda key: _order(sides[0][key][0]))
    if not shared:
        seeds = [_listed([seed for seed, _ in side.values()]) for side in sides]
        report.add(
            6,
            Level.FAIL,
            f"{a} and {b} have no seed in common",
            f"{a} has {seeds[0]}, {b} has {seeds[1]}: they cannot be paired. Run both on the same seeds.",
        )
        return report
    differences = {sides[0][key][0]: (sides[0][key][1] - sides[1][key][1]) * scale for key in shared}
    _describe(report, a, b, sides, differences)
    alone = [_listed([side[key][0] for key in side if key not in other]) for side, other in (sides, reversed(sides))]
    if any(len(side) > len(shared) for side in sides):
        report.add(
            6,
            Level.WARN,
            "some seeds ran in one arm only",
            f"Only {a}: {alone[0]}; only {b}: {alone[1]}. They are left out above; a statement that pools them mixes "
            "the seeds' effects with the method's.",
        )
    return report


def _finite(report: Report, method: str, scores: Mapping[Any, float]) -> dict[Hashable, tuple[Any, float]]:
    """Seed's identity to the seed and its score."""
    found = {value_key(canonical_value(seed)): (seed, float(score)) for seed, score in scores.items()}
    odd = [seed for seed, score in found.values() if not math.isfinite(score)]
    if odd:
        named = f"seed{'s' if len(odd) > 1 else ''} {_listed(odd)}"
        report.add(6, Level.WARN, f"the score of {method} is no finite number at {named}", "It is left out.")
    return {key: entry for key, entry in found.items() if math.isfinite(entry[1])}


def _order(seed: Any) -> tuple[int, float, str]:
    value = canonical_value(seed)
    number = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return (0, float(value), "") if number and isinstance(value, int | float) else (1, 0.0, str(seed))


def _listed(items: Sequence[Any]) -> str:
    shown = [str(item) for item in sorted(items, key=_order)[:MAX_NAMES]]
    more = f" and {len(items) - MAX_NAMES} more" if len(items) > MAX_NAMES else ""
    return (", ".join(shown) or "none") + more


def _describe(
    report: Report,
    a: str,
    b: str,
    sides: Sequence[Mapping[Hashable, tuple[Any, float]]],
    differences: Mapping[Any, float],
) -> None:
    from pth_tracker import stats

    values = np.array(list(differences.values()))
    if not np.abs(values).max() < 1e150:
        raise UsageError(f"the differences of {a} and {b} are too large to work with: give a smaller scale")
    interval = stats.t_interval(values)
    first, second = ([score for _, score in side.values()] for side in sides)
    above = a if min(first) > max(second) else b if min(second) > max(first) else None
    report.stats |= {
        "pairs": len(values),
        "differences": {repr(seed): float(value) for seed, value in differences.items()},
        "mean": float(values.mean()),
        "min": float(values.min()),
        "max": float(values.max()),
        "a_ahead": int((values > 0).sum()),
        "b_ahead": int((values < 0).sum()),
        "pooled_separation": above,
        "interval": None if interval.low is None or interval.high is None else (interval.low, interval.high),
        "p": interval.p,
        "verdict": str(stats.verdict(interval.p, None)),
    }
    each = ", ".join(f"{seed}: {value:+.3g}" for seed, value in differences.items())
    report.add(
        6,
        Level.INFO,
        f"mean {values.mean():+.3g} over {len(values)} seed{'s' if len(values) > 1 else ''}, {_interval(interval)}",
        f"{each}. {a} is ahead on {report.stats['a_ahead']}, {b} on {report.stats['b_ahead']}.",
    )
    if len(values) <= LEAST_FOR_INTERVAL:
        only = "one common seed gives no interval" if len(values) == 1 else "two give one degree of freedom"
        report.add(6, Level.WARN, f"{len(values)} common seed{'s' if len(values) > 1 else ''}", f"{only.capitalize()}.")
    if above and interval.low is not None and interval.high is not None and interval.low <= 0 <= interval.high:
        report.add(
            6,
            Level.WARN,
            f"every run of {above} is above every run of the other, and the paired interval holds 0",
            "An ordering of all runs is no evidence of a difference: it mixes the seeds' effects with the method's.",
        )


def _interval(interval: stats.MeanInterval) -> str:
    if interval.low is None or interval.high is None:
        return interval.missing
    return f"95% interval {interval.low:+.3g} to {interval.high:+.3g}"


def read_results_csv(
    path: str | Path, method: str = "method", seed: str = "seed", value: str = "value"
) -> dict[str, dict[str, float]]:
    """Method to seed to score, from a CSV file with these columns; several rows of one seed count by their mean.

    Raises:
        UsageError: it cannot be read, lacks a column, or a value is no number; names the line.
    """
    return mean_scores(read_scores(path, method, seed, value))


def mean_scores(scores: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    """Method to seed to the mean of its scores; NaN where several are not all finite."""
    return {
        method: {seed: values[0] if len(values) == 1 else _mean(values) for seed, values in by_seed.items()}
        for method, by_seed in scores.items()
    }


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(score / len(scores) for score in scores) if all(map(math.isfinite, scores)) else math.nan


def read_scores(path: str | Path, method: str, seed: str, value: str) -> dict[str, dict[str, list[float]]]:
    """Method to seed to all its scores, from a CSV file with these columns.

    Raises:
        UsageError: as for `read_results_csv`.
    """
    found: dict[str, dict[str, list[float]]] = {}
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, skipinitialspace=True)
            header = [name.strip() for name in next(rows, [])]
            lacking = [name for name in (method, seed, value) if name not in header]
            if lacking:
                raise UsageError(f"{path} has no column {lacking[0]!r}: its columns are {_listed(header)}")
            places = [header.index(name) for name in (method, seed, value)]
            for row in rows:
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) <= max(places):
                    raise UsageError(f"{path}:{rows.line_num}: this row has {len(row)} of {len(header)} columns")
                name, replicate, text = (row[place].strip() for place in places)
                try:
                    score = float(text)
                except ValueError:
                    raise UsageError(f"{path}:{rows.line_num}: {text!r} is no number, as {value} has to be") from None
                found.setdefault(name, {}).setdefault(replicate, []).append(score)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is no CSV file in UTF-8 ({error})") from error
    return found
