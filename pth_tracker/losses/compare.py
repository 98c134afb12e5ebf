"""An implemented loss against its written equation: value and gradient on a fixed input."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from pth_tracker.errors import UsageError
from pth_tracker.losses.diagnose import diagnose
from pth_tracker.losses.evaluate import TOLERANCES, Evaluation, accepted, evaluate, shown_name
from pth_tracker.losses.inputs import random_batch
from pth_tracker.losses.kinds import Context, Diagnosis, Kind
from pth_tracker.model import ROGUE_NORMALISER, Finding, Level, Report
from pth_tracker.runs import Floats

PREFIX: Final = "harness/loss_check"
RATIOS: Final = (
    ("pi / pi_old", "logp", "logp_old"),
    ("pi_old / pi_sampler", "logp_old", "logp_sampler"),
    ("pi / pi_sampler", "logp", "logp_sampler"),
)
"""Ratios in which a clip or a weight may act, by the names that `random_batch` gives their two sides."""
REMEDY: Final = "make the loss what its equation says, or change the equation in the claim"


@dataclass
class LossReport(Report):
    """The findings of one loss check."""

    diagnoses: dict[str, Diagnosis] = field(default_factory=dict)
    """How the gradients differ, by input."""
    value_difference: float = 0.0
    """Relative to the loss's scale: the larger of its value and the sum of its gradient's magnitudes."""

    @property
    def worst(self) -> Diagnosis:
        """The diagnosis of the input whose gradients differ most."""
        order = sorted(self.diagnoses.values(), key=lambda one: (one.kind is not Kind.EQUAL, one.relative))
        return order[-1]

    def metrics(self) -> dict[str, float]:
        """What to log, so that an audit sees that this run's loss was checked; numbers by flat name.

        ``harness/loss_check`` is 1 where the check passed, else 0. ``..._kind`` is the kind's number (0 equal, 1 global
        factor, 2 per-sequence factor, 3 per-token factor, 4 sign, 5 clip region, 6 mask, 7 no gradient, 8 not finite,
        9 value only, 10 unrelated), ``..._value_difference`` and ``..._gradient_difference`` are relative to the loss's
        scale and to the largest gradient, and ``..._factor_min`` and ``..._factor_max`` are the smallest and the
        largest factor over the sequences, where factors explain the difference. What is not finite is left out.
        """
        worst = self.worst
        kind = Kind.VALUE if worst.kind is Kind.EQUAL and not self.ok else worst.kind
        found = {
            PREFIX: float(self.ok),
            f"{PREFIX}_kind": float(kind.code),
            f"{PREFIX}_value_difference": self.value_difference,
            f"{PREFIX}_gradient_difference": worst.relative,
        }
        if worst.factors is not None:
            found |= {f"{PREFIX}_factor_min": worst.factors[0], f"{PREFIX}_factor_max": worst.factors[1]}
        return {name: value for name, value in found.items() if math.isfinite(value)}


def check_loss(
    implemented: Callable[..., Any],
    equation: Callable[..., Any],
    inputs: Mapping[str, Any] | None = None,
    wrt: Sequence[str] = ("logp",),
    rtol: float | None = None,
    atol: float | None = None,
    name: str = "loss",
) -> LossReport:
    """Compares an implemented loss with its equation, in value and in gradient, on a fixed input.

    Both are called with those of ``inputs`` that they take, on copies: a loss may write into its inputs. The equation
    is evaluated in float64 on the same numbers, whatever the type of the inputs. Where they differ the report says how:
    by a global factor, a factor per sequence (Rogue Normaliser) or per token, in sign, in the clip region, in the mask,
    or in nothing that could be named.

    Args:
        implemented: The loss as the training code computes it; returns a scalar tensor.
        equation: The loss as it is written, for example one of `pth_tracker.losses.equations`.
        inputs: The fixed input by argument name; by default `random_batch`. Sequences of one length cannot show a wrong
            normaliser, and the report says so.
        wrt: The inputs in which the gradients are compared.
        rtol: Relative tolerance of value and gradients; by default by the coarsest type in use (float64 1e-6, float32
            1e-4, float16 1e-2, bfloat16 5e-2).
        atol: Absolute tolerance; by default ``rtol`` times the largest gradient (for the value: times the loss's
            scale), since a rounding error is one of the terms and not of their sum.
        name: What to call the loss in the report.

    Returns:
        A report whose ``stats`` hold ``value_implemented``, ``value_equation`` and, for each input of ``wrt``,
        ``max_grad_diff[input]`` and ``kind[input]``; `LossReport.metrics` is what to log.

    Raises:
        UsageError: a loss needs an input that is not there, returns no scalar tensor, ``wrt`` names no floating tensor,
            or PyTorch is not installed.
    """
    given = random_batch() if inputs is None else inputs
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
    if not names:
        raise UsageError("wrt names no input; name at least one, such as logp")
    _all_taken(implemented, equation, given)
    ours = evaluate(implemented, given, names)
    theirs = evaluate_equation(equation, given, names)
    relative = TOLERANCES.get(ours.dtype, 1e-6) if rtol is None else rtol
    return compare_losses(ours, theirs, given, relative, atol, name)


def compare_losses(
    ours: Evaluation,
    theirs: Evaluation,
    inputs: Mapping[str, Any],
    rtol: float = 1e-6,
    atol: float | None = None,
    name: str = "loss",
) -> LossReport:
    """The report of `check_loss` on two losses that have been evaluated, by whatever framework.

    Args:
        ours: Value and gradients of the loss as implemented.
        theirs: Those of its equation, in the same inputs.
        inputs: What both were evaluated on, tensors or NumPy arrays by the names of `random_batch`.
        rtol: As for `check_loss`.
        atol: As for `check_loss`.
        name: What to call the loss in the report.
    """
    report = LossReport(subject=f"{name} against its equation")
    report.stats |= {"value_implemented": ours.value, "value_equation": theirs.value, "rtol": rtol}
    for key in theirs.gradients:
        context = context_of(inputs, theirs.gradients[key], rtol, atol)
        found = compare_gradients(ours, theirs, key, context)
        report.diagnoses[key] = found
        report.stats |= {f"max_grad_diff[{key}]": found.max_difference, f"kind[{key}]": str(found.kind)}
        if found.factors is not None:
            report.stats |= {f"factor_min[{key}]": found.factors[0], f"factor_max[{key}]": found.factors[1]}
    _judge(report, name, ours, theirs, rtol, atol)
    report.findings += _weak_input(name, inputs)
    if ours.mutated:
        report.findings.append(_mutating(name, ours.mutated))
    return report


def evaluate_equation(equation: Callable[..., Any], inputs: Mapping[str, Any], wrt: Sequence[str]) -> Evaluation:
    """The equation in float64; in the inputs' own types where it is written for those alone, or the device has none."""
    try:
        return evaluate(equation, inputs, wrt, exactly=True)
    except (RuntimeError, TypeError):
        return evaluate(equation, inputs, wrt)


def _all_taken(implemented: Callable[..., Any], equation: Callable[..., Any], inputs: Mapping[str, Any]) -> None:
    """Raises where an input that is no part of `random_batch` is taken by neither: it is most likely misspelt."""
    usual = {"logp", "logp_old", "logp_sampler", "logp_ref", "advantages", "mask"}
    taken = {*accepted(implemented, inputs), *accepted(equation, inputs)}
    spare = [key for key in inputs if key not in taken and key not in usual]
    if spare:
        raise UsageError(
            f"neither {shown_name(implemented)} nor {shown_name(equation)} takes the input {spare[0]!r}; leave it out "
            "or mend its name"
        )


def context_of(inputs: Mapping[str, Any], gradient: Floats, rtol: float, atol: float | None) -> Context:
    """What is known of the tokens of ``gradient``, as far as the inputs' names and shapes tell."""
    finite = np.abs(gradient[np.isfinite(gradient)])
    tolerance = rtol * float(finite.max(initial=0.0)) if atol is None else atol
    shape = gradient.shape if gradient.ndim > 1 else (gradient.size, 1)
    mask, advantages = _numbers(inputs, "mask"), _numbers(inputs, "advantages")
    log_ratios = {}
    for name, above, below in RATIOS:
        first, second = _numbers(inputs, above), _numbers(inputs, below)
        if first is not None and second is not None and first.shape == second.shape:
            with np.errstate(invalid="ignore"):
                difference = _as_tokens(first - second, shape)
            if difference is not None and np.isfinite(difference).all():
                log_ratios[name] = difference
    marked, signs = _as_tokens(mask, shape), _as_tokens(advantages, shape)
    return Context(
        rtol=rtol,
        atol=tolerance,
        mask=None if marked is None else marked != 0,
        sign=None if signs is None else np.sign(signs),
        log_ratios=log_ratios,
    )


def _numbers(inputs: Mapping[str, Any], key: str) -> Floats | None:
    value = inputs.get(key)
    if isinstance(value, np.ndarray):
        return value.astype(np.float64)
    if value is None or not hasattr(value, "detach"):
        return None
    array: Floats = value.detach().to("cpu").double().numpy()
    return array


def _as_tokens(values: Floats | None, shape: tuple[int, ...]) -> Floats | None:
    """``values`` spread over a gradient of ``shape``, as ``(shape[0], rest)``; None where they do not fit it."""
    if values is None or values.ndim == 0 or values.shape != shape[: values.ndim]:
        if values is None or values.ndim != 1 or values.shape[0] != shape[0]:
            return None
    spread = values.reshape(values.shape + (1,) * (len(shape) - values.ndim))
    return np.ascontiguousarray(np.broadcast_to(spread, shape)).reshape(shape[0], -1)


def compare_gradients(ours: Evaluation, theirs: Evaluation, key: str, context: Context) -> Diagnosis:
    """How the gradients in ``key`` differ."""
    flat = [one.gradients[key].reshape(len(np.atleast_1d(one.gradients[key])), -1) for one in (ours, theirs)]
    found = diagnose(flat[0], flat[1], context)
    if found.kind is Kind.NO_GRADIENT and key not in ours.reached:
        return Diagnosis(
            Kind.NO_GRADIENT,
            f"The implemented loss does not depend on {key}: it is detached, or another tensor is used.",
            max_difference=found.max_difference,
            relative=found.relative,
            cosine=found.cosine,
        )
    return found


def value_scale(theirs: Evaluation) -> float:
    """The loss's scale: its value, or the sum of its gradient's magnitudes, which its terms do not cancel in."""
    sums = [float(np.abs(gradient[np.isfinite(gradient)]).sum()) for gradient in theirs.gradients.values()]
    return max([abs(theirs.value) if math.isfinite(theirs.value) else 0.0, *sums])


def same_value(ours: Evaluation, theirs: Evaluation, rtol: float, atol: float | None) -> bool:
    """Whether the values agree within the tolerances."""
    slack = rtol * value_scale(theirs) if atol is None else atol + rtol * abs(theirs.value)
    return abs(ours.value - theirs.value) <= slack  # False where either is not finite


_TITLES: Final[Mapping[Kind, str]] = {
    Kind.GLOBAL_FACTOR: "the gradient in {key} differs by a global factor, {low:.4g}",
    Kind.SEQUENCE_FACTOR: "the gradient in {key} differs by a factor per sequence, {low:.4g} to {high:.4g}",
    Kind.TOKEN_FACTOR: "the gradient in {key} differs by a factor per token",
    Kind.SIGN: "the gradient in {key} differs in sign",
    Kind.CLIP_REGION: "the gradient in {key} differs in the clip region",
    Kind.MASK: "the gradient in {key} differs in the mask",
    Kind.NO_GRADIENT: "no gradient reaches {key}",
    Kind.NOT_FINITE: "the gradient in {key} is not finite",
    Kind.UNRELATED: "the gradient in {key} differs in no way that has a name",
}


def _judge(
    report: LossReport, name: str, ours: Evaluation, theirs: Evaluation, rtol: float, atol: float | None
) -> None:
    scale = value_scale(theirs)
    apart = abs(ours.value - theirs.value)
    report.value_difference = apart / scale if scale else (0.0 if apart == 0 else math.inf)
    values = f"value {ours.value:.8g}, the equation's {theirs.value:.8g}"
    for key, found in report.diagnoses.items():
        if found.kind is Kind.EQUAL:
            continue
        low, high = found.factors or (math.nan, math.nan)
        title = _TITLES[found.kind].format(key=key, low=low, high=high)
        evidence = {"kind": str(found.kind), "max_difference": found.max_difference, "cosine": found.cosine}
        if found.factors:
            evidence |= {"factor_min": low, "factor_max": high}
        rogue = found.kind is Kind.SEQUENCE_FACTOR
        detail = f"{found.detail} Largest difference {found.max_difference:.3g}; {values}."
        report.findings.append(_finding(f"{name}: {title}", detail, rogue, evidence))
        if found.rogue_normaliser and not rogue:
            besides = f"{name}: besides, a factor per sequence in the gradient in {key}, {low:.4g} to {high:.4g}"
            report.findings.append(_finding(besides, "The normalisers differ.", True, evidence))
    if any(found.kind is not Kind.EQUAL for found in report.diagnoses.values()):
        return
    keys = ", ".join(report.diagnoses)
    if same_value(ours, theirs, rtol, atol):
        title = f"{name}: value and gradient agree with the equation"
        report.findings.append(Finding(4, Level.INFO, title, f"{values}; gradients in {keys}.", rule="loss-differs"))
        return
    detail = f"{values}; the gradients in {keys} agree, so that what is trained is the same and what is logged is not."
    evidence = {"kind": str(Kind.VALUE), "relative": report.value_difference}
    report.findings.append(_finding(f"{name}: the value differs from the equation's", detail, False, evidence))


def _finding(title: str, detail: str, rogue: bool, evidence: Mapping[str, Any]) -> Finding:
    rule, tag = ("rogue-normaliser", ROGUE_NORMALISER) if rogue else ("loss-differs", "")
    return Finding(4, Level.FAIL, title, detail, dict(evidence), tag, rule=rule, remedy=REMEDY)


def _mutating(name: str, mutated: Sequence[str]) -> Finding:
    return Finding(
        4,
        Level.WARN,
        f"{name}: the loss writes into its input {', '.join(mutated)}",
        "What is computed from it afterwards, metrics included, sees the changed values.",
        {"mutated": list(mutated)},
        rule="loss-differs",
        remedy="let the loss work on a copy",
    )


def _weak_input(name: str, inputs: Mapping[str, Any]) -> list[Finding]:
    """A finding that names the faults which this input cannot show."""
    mask, advantages = _numbers(inputs, "mask"), _numbers(inputs, "advantages")
    blind = []
    if mask is not None and mask.ndim == 2:
        lengths = mask.sum(axis=1)
        if np.all(lengths == lengths[0]):
            blind.append("a wrong normaliser (all sequences are of one length)")
        if np.all(mask != 0):
            blind.append("a lost mask (no token lies outside it)")
    if advantages is not None and advantages.size and not (np.any(advantages > 0) and np.any(advantages < 0)):
        blind.append("a one-sided clip (the advantages have one sign)")
    old, new = _numbers(inputs, "logp_old"), _numbers(inputs, "logp")
    if old is not None and new is not None and old.shape == new.shape and np.array_equal(old, new):
        blind.append("the clip at all (every ratio is 1)")
    if not blind:
        return []
    title = f"{name}: this input cannot show {'; '.join(blind)}"
    return [Finding(4, Level.INFO, title, "", {"cannot_show": blind}, rule="loss-differs", remedy="use random_batch()")]
