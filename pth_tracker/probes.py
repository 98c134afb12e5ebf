"""What a training loop calls: the deciding quantities, measured where they arise and logged for the nightly audit.

::

    from pth_tracker import probes

    ledger = probes.BatchLedger()
    for update in range(updates):
        batch = queue.next()
        ledger.record(update, batch["input_ids"], age=batch_age)
        report = probes.ratio_report(logp_learner, logp_sampler, mask, logp_old)
        wandb.log({**report.metrics(), **ledger.metrics()}, step=update)

A probe never breaks training: what goes wrong in one is logged once, by `logging`, and the loop goes on. It imports
NumPy alone, and keeps a constant amount of memory for each update (a `BatchLedger` about 150 bytes, the others none).
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from pth_tracker.fingerprints import batch_numbers, data_order_fingerprint, fingerprint, under_mask
from pth_tracker.model import IDLE_CLIP, Level, Report
from pth_tracker.runs import Floats
from pth_tracker.series import KL_TOLERANCE, check_batch_ids, scan_clip_vs_kl

__all__ = [
    "BatchLedger",
    "RatioReport",
    "batch_fingerprint",
    "check_batch_ids",
    "data_order_fingerprint",
    "ratio_metrics",
    "ratio_report",
    "scan_clip_vs_kl",
]

PREFIX: Final = "harness/"
"""Under this prefix the audit finds quantities by their canonical names, whatever the framework."""
QUANTILES: Final = (0.01, 0.1, 0.5, 0.9, 0.99)
MAX_LOG_RATIO: Final = 20.0
"""Log-ratios are cut to this magnitude before they are exponentiated, so that one token cannot overflow."""
NO_AGE: Final = math.nan

_log: Final = logging.getLogger(__name__)
_told: Final[set[str]] = set()


def _tell_once(probe: str, error: Exception) -> None:
    """Logs that a probe failed: the first time only, since it would fail at every update."""
    if probe not in _told:
        _told.add(probe)
        _log.warning("%s could not measure (%s: %s); training goes on", probe, type(error).__name__, error)


class RatioReport(Report):
    """The report of `ratio_report`."""

    def metrics(self) -> dict[str, float]:
        """Its quantities under their canonical names, to hand to ``wandb.log`` or ``mlflow.log_metrics``."""
        return ratio_metrics(self)


def ratio_report(
    logp_learner: Any,
    logp_sampler: Any,
    mask: Any = None,
    logp_old: Any = None,
    clip_eps: float = 0.2,
    kl_tol: float = KL_TOLERANCE,
    one_tol: float = 1e-6,
    *,
    is_weighted: bool = False,
) -> RatioReport:
    """Check 1 inside the loss: the ratio that it uses beside the ratio against the sampler.

    The arrays may be NumPy's, lists or torch tensors of any floating type, on any device. Whatever goes wrong becomes
    a warning in the report, whose numbers are then NaN; nothing is raised.

    Args:
        logp_learner: ``(batch, length)`` log-probabilities, in nats, of the sampled tokens by the policy in training.
        logp_sampler: Those that the sampler recorded for the same tokens.
        mask: 1 for a token of a response, 0 for padding.
        logp_old: The pi_old of the loss, where it is not the sampler's.
        clip_eps: The clip range of the loss.
        kl_tol: KL of the sampler against pi_old (against the learner without one), in nats per token by the k3
            estimator (Schulman 2020), above which the sampler counts as lagging.
        one_tol: The largest difference of log-probabilities that counts as a ratio of 1.
        is_weighted: Whether the loss is weighted by importance against the sampler, which then is the correction.

    Returns:
        A report with the stats ``tokens, nonfinite_tokens, kl_sampler_to_old, mean_log_q_minus_log_old,
        ratio_to_sampler`` and, with ``logp_old``, ``ratio_to_old``; its ``metrics()`` are for the tracker.
    """
    report = RatioReport(subject="check 1: the policy in the PPO ratio")
    try:
        with np.errstate(all="ignore"):
            learner, sampler = under_mask(logp_learner, mask), under_mask(logp_sampler, mask)
            old = None if logp_old is None else under_mask(logp_old, mask)
            _measure(report, learner, sampler, old, float(clip_eps))
            if is_weighted:
                report.stats["is_weight_mean"] = _mean(np.exp(_cut(learner - sampler)))
            _judge_ratio(report, clip_eps, kl_tol, one_tol, is_weighted)
    except Exception as error:  # A probe never breaks training.
        _tell_once("ratio_report", error)
        report.findings.clear()
        report.stats |= {"tokens": 0, "nonfinite_tokens": 0, "failed": str(error)}
        nothing = np.full(1, np.nan)
        report.stats |= {"kl_sampler_to_old": math.nan, "mean_log_q_minus_log_old": math.nan}
        names = ("ratio_to_sampler",) if logp_old is None else ("ratio_to_sampler", "ratio_to_old")
        report.stats |= {name: _summary(nothing, 0.2) for name in names}
        report.add(1, Level.WARN, "the ratio could not be measured", f"{error}.")
    return report


def _cut(log_ratio: Floats) -> Floats:
    return np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan


def _k3(log_ratio: Floats) -> float:
    """KL of the sampler against another policy from ``(k,)`` log-ratios (other minus sampler) of its own tokens.

    The k3 estimator, mean(exp(d) - d - 1), is unbiased and never negative (J. Schulman, "Approximating KL divergence",
    2020).
    """
    cut = _cut(log_ratio)
    return _mean(np.expm1(cut) - cut)


def _summary(log_ratio: Floats, clip_eps: float) -> dict[str, float]:
    """Quantiles of a ratio, of those of its ``(k,)`` logarithms that are numbers; NaN where none is."""
    measured = log_ratio[~np.isnan(log_ratio)]
    if not len(measured):
        keys = [f"p{round(100 * quantile):02}" for quantile in QUANTILES]
        return dict.fromkeys([*keys, "min", "max", "outside_clip_range", "max_abs_log_ratio"], math.nan)
    ratio = np.exp(_cut(measured))
    values = np.quantile(ratio, QUANTILES)
    outside = (ratio < 1 - clip_eps) | (ratio > 1 + clip_eps)
    return {
        **{f"p{round(100 * quantile):02}": float(value) for quantile, value in zip(QUANTILES, values)},
        "min": float(ratio.min()),
        "max": float(ratio.max()),
        "outside_clip_range": float(outside.mean()),
        "max_abs_log_ratio": float(np.abs(measured).max()),
    }


def _measure(report: Report, learner: Floats, sampler: Floats, old: Floats | None, clip_eps: float) -> None:
    if not len(learner):
        raise ValueError("no token of a response is under the mask")
    reference = learner if old is None else old
    if not len(learner) == len(sampler) == len(reference):
        raise ValueError("the log-probabilities differ in shape")
    to_sampler, lag = learner - sampler, reference - sampler
    to_old = None if old is None else learner - old
    odd = np.isnan(to_sampler) | np.isnan(lag)
    report.stats |= {
        "tokens": len(learner),
        "nonfinite_tokens": int(odd.sum()),
        "kl_sampler_to_old": _k3(lag),
        "mean_log_q_minus_log_old": _mean(-lag),
        "kl_of_measured_tokens": _k3(lag[~np.isnan(lag)]),
        "kl_sampler_to_learner": _k3(to_sampler),
        "mean_log_q_minus_log_learner": _mean(-to_sampler),
        "mean_abs_log_ratio": _mean(np.abs(to_sampler)),
        "ratio_to_sampler": _summary(to_sampler, clip_eps),
    }
    if to_old is not None:
        report.stats["ratio_to_old"] = _summary(to_old, clip_eps)


def _judge_ratio(report: Report, clip_eps: float, kl_tol: float, one_tol: float, is_weighted: bool) -> None:
    stats = report.stats
    kl, outside = stats["kl_of_measured_tokens"], stats["ratio_to_sampler"]["outside_clip_range"]
    to_old = stats.get("ratio_to_old")
    lagging = kl > kl_tol
    if stats["nonfinite_tokens"]:
        report.add(
            1,
            Level.WARN,
            f"{stats['nonfinite_tokens']} of {stats['tokens']} tokens have a log-probability that is no number",
            "The KL of this batch is not known, which is no small KL; the other numbers leave these tokens out.",
        )
    reach = f"KL of the sampler against {'pi_old' if to_old else 'the learner'} {kl:.3g} nats per token"
    share = f"{outside:.1%} of the tokens lie outside 1 +- {clip_eps:g} against the sampler"
    if math.isnan(kl):
        return
    if to_old is None:
        more = "Give logp_old to compare with the ratio that the loss uses." if lagging else ""
        report.add(1, Level.WARN if lagging else Level.INFO, f"{reach}; {share}", more)
    elif lagging and to_old["max_abs_log_ratio"] <= one_tol and is_weighted:
        report.add(1, Level.INFO, f"the PPO ratio is 1; an importance weight corrects for the lag ({reach})", share)
    elif lagging and to_old["max_abs_log_ratio"] <= one_tol:
        report.add(
            1,
            Level.FAIL,
            "the PPO ratio is 1 on every token while the sampler lags",
            f"{reach}; pi_theta and pi_old differ by {to_old['max_abs_log_ratio']:.2g} at most. pi_old is the "
            f"learner's own recomputed policy, so that the clip cannot act, while {share}. Take pi_old from the "
            "sampler's recorded log-probabilities, or weight by importance against them.",
            IDLE_CLIP,
            kl=kl,
        )
    elif lagging and to_old["outside_clip_range"] < 0.1 * outside:
        report.add(
            1,
            Level.WARN,
            "the clip sees little of the sampler's lag",
            f"{to_old['outside_clip_range']:.2%} of the tokens lie outside the clip range against pi_old, "
            f"{outside:.2%} against the sampler. Look up where pi_old comes from.",
        )
    else:
        report.add(1, Level.INFO, f"{reach}; {share}, {to_old['outside_clip_range']:.1%} against pi_old")


def ratio_metrics(report: Report) -> dict[str, float]:
    """The quantities of a `ratio_report` under their canonical names, as a flat dict for any tracker.

    ``harness/clip_fraction``, only with ``logp_old``, is the share of tokens outside the clip range against pi_old,
    of which the clipped branch is at most all. Nothing is given where nothing was measured.
    """
    stats: Mapping[str, Any] = report.stats
    if not stats.get("tokens"):
        return {}
    found = {
        "sampler_k3_kl": stats["kl_sampler_to_learner"],
        "sampler_kl": stats["mean_log_q_minus_log_learner"],
        "sampler_abs_dlogp": stats["mean_abs_log_ratio"],
        "outside_sampler_range": stats["ratio_to_sampler"]["outside_clip_range"],
    }
    if "ratio_to_old" in stats:
        found["clip_fraction"] = stats["ratio_to_old"]["outside_clip_range"]
    if "is_weight_mean" in stats:
        found["is_weight_mean"] = stats["is_weight_mean"]
    return {f"{PREFIX}{name}": float(value) for name, value in found.items()}


def batch_fingerprint(*parts: Any) -> str:
    """16 hexadecimal digits that are equal exactly for equal batches; ``""`` where the content cannot be told.

    Args:
        parts: What identifies a batch: token ids, prompt ids, or the batch itself, as arrays, tensors, text, or lists
            and mappings of them. Numbers are equal by value, in whatever type or on whatever device.
    """
    try:
        return fingerprint(*parts)
    except Exception as error:  # A probe never breaks training.
        _tell_once("batch_fingerprint", error)
        return ""


class BatchLedger:
    """Which batch each update trained on, and how old it was (check 3)."""

    def __init__(self, expect_unique: bool = True) -> None:
        self.expect_unique = expect_unique
        """Whether the design gives every update a batch of its own."""
        self._updates = array("q")
        self._batches = array("q")
        self._ages = array("d")
        self._numbers: dict[str, int] = {}
        self._last = ""

    def record(self, update: int, batch: Any, age: float | None = None) -> str:
        """Takes down one update and yields the batch's fingerprint.

        Args:
            update: The update's number.
            batch: A fingerprint or an id as text, or the batch's content (see `batch_fingerprint`).
            age: How many updates old the batch is.
        """
        try:
            number = int(update)
            old = NO_AGE if age is None else float(age)
        except Exception as error:  # A probe never breaks training.
            _tell_once("BatchLedger.record", error)
            return ""
        name = batch if isinstance(batch, str) else batch_fingerprint(batch)
        self._updates.append(number)
        self._batches.append(self._numbers.setdefault(name, len(self._numbers)))
        self._ages.append(old)
        self._last = name
        return name

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One mapping for each update: ``update``, ``batch`` (its fingerprint) and ``age`` (None: not given)."""
        names = list(self._numbers)
        return [
            {"update": update, "batch": names[batch], "age": _age(age)}
            for update, batch, age in zip(self._updates, self._batches, self._ages)
        ]

    def metrics(self) -> dict[str, float]:
        """The identity and age of the last recorded batch under their canonical names, for any tracker.

        The identity is two integers below 2^24, ``harness/batch_id`` and ``harness/batch_id_high``, 48 bits together:
        a store that keeps float32 keeps both exactly. An update whose batch is not known has none.
        """
        if not self._updates:
            return {}
        found: dict[str, float] = {}
        if self._last:
            found["batch_id"], found["batch_id_high"] = batch_numbers(self._last)
        if not math.isnan(self._ages[-1]):
            found["data_age"] = self._ages[-1]
        return {f"{PREFIX}{key}": value for key, value in found.items()}

    def report(self, expected_age: Callable[[int], float] | None = None) -> Report:
        """Check 3 on what was recorded (see `check_batch_ids`).

        Args:
            expected_age: The designed age of the data at an update.
        """
        names = list(self._numbers)
        ages = [_age(age) for age in self._ages]
        try:
            return check_batch_ids(
                [names[batch] for batch in self._batches],
                updates=self._updates,
                ages=ages if any(age is not None for age in ages) else None,
                expect_unique=self.expect_unique,
                expected_age=expected_age,
            )
        except Exception as error:  # A probe never breaks training.
            _tell_once("BatchLedger.report", error)
            report = Report(subject="check 3: the batch of each update")
            report.add(3, Level.WARN, "the batches could not be judged", f"{error}.")
            return report


def _age(age: float) -> float | None:
    return None if math.isnan(age) else int(age) if age.is_integer() else age
