"""Check 4: the loss that is computed, against its equation, its normaliser and the group that its advantages need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pth_tracker.checks.subjects import RunView
from pth_tracker.design.comparison import Member, Pair, differing_keys, iterate_arms, shown_values
from pth_tracker.losses.kinds import Kind
from pth_tracker.model import ROGUE_NORMALISER, Basis, Finding, Level, Rule, Scope, branch
from pth_tracker.runs import Floats
from pth_tracker.values import MISSING, same_value
from pth_tracker.vocabulary.canonicalise import Series

LEAST_UPDATES: Final = 10
"""Updates with scores that vary, below which advantages are not judged by their range."""
EQUAL_SHARE: Final = 0.95
"""Share of those updates at which the advantages have to range as the scores do."""
SCORE_TOLERANCE: Final = 1e-5
"""Relative: a group of one divides its score by a deviation of 1 + 1e-6."""
DETAILS: Final = (
    "loss_check_value_difference",
    "loss_check_gradient_difference",
    "loss_check_factor_min",
    "loss_check_factor_max",
)


def failed_loss_checks(view: RunView) -> list[dict[str, float]]:
    """The logged loss checks that failed, each as the quantities of its update by name without ``loss_check_``."""
    check = view.series("loss_check")
    if check is None:
        return []
    failed = []
    for step in check.step[check.values != 1]:
        found = {"update": float(step)}
        for name in ("loss_check_kind", *DETAILS):
            series = view.series(name)
            held = series.values[series.step == step] if series is not None else np.empty(0)
            if len(held):
                found[name.removeprefix("loss_check_")] = float(held[0])
        failed.append(found)
    return failed


def rogue_factors(check: Mapping[str, float]) -> tuple[float, float] | None:
    """The smallest and the largest factor per sequence of one failed check; None: it is no rogue normaliser."""
    low, high = check.get("factor_min", 1.0), check.get("factor_max", 1.0)
    return (low, high) if check.get("kind") == Kind.SEQUENCE_FACTOR.code or low != high else None


def judge_rogue_normaliser(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """The implemented loss has another normaliser than its equation.

    What it does: reads the loss checks that the training loop logged, in which the implemented loss met its written
    equation on a fixed input.

    Why it matters: a variant that is said to differ in one term and also divides by something else trains and logs
    normally; its numbers are right and the conclusion is wrong, since long and short responses weigh differently.

    How it decides: a logged check failed, and its gradients agree with the equation's up to a factor that differs
    between sequences (``harness/loss_check_factor_min`` and ``..._max``).

    Example: the equation takes the mean over each response, the code the mean over all tokens of the batch: each
    response is weighted in proportion to its length.

    Remedy: divide by the same number in the code and in the equation, or say in the paper what the code divides by.

    Configuration: none. Two lines log the check::

        report = pth_tracker.check_loss(my_loss, equations.grpo)
        logger.log(report.metrics(), step=0)

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 4; Z. Liu et al., Understanding R1-Zero-Like
    Training, arXiv 2503.20783.
    """
    found = [(check, factors) for check in failed_loss_checks(view) if (factors := rogue_factors(check))]
    if not found:
        return
    check, (low, high) = found[0]
    span = f", {low:.3g} to {high:.3g}" if low != high else ""
    yield Finding(
        4,
        Level.FAIL,
        f"the loss weighs sequences otherwise than its equation: a factor per sequence{span}",
        f"The loss check logged at update {check['update']:g} failed: on a fixed input the gradients are the "
        f"equation's times a factor that differs between sequences: the loss divides by another normaliser."
        + _besides(check),
        dict(check),
        ROGUE_NORMALISER,
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="divide by the same number in the code and in the equation, or say in the paper what the code "
        "divides by",
    )


def _besides(check: Mapping[str, float]) -> str:
    kind = _kind(check)
    return "" if kind in (Kind.SEQUENCE_FACTOR, None) else f" Besides, they differ in the following: {kind}."


def _kind(check: Mapping[str, float]) -> Kind | None:
    code = check.get("kind", -1.0)
    return list(Kind)[int(code)] if code.is_integer() and 0 <= code < len(Kind) else None


def judge_loss_differs(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """The implemented loss is not the one that its equation says.

    What it does: reads the loss checks that the training loop logged, in which the implemented loss met its written
    equation, in value and gradient, on a fixed input.

    Why it matters: a claim about a method is a claim about its equation; what was trained is the code.

    How it decides: a logged check failed (``harness/loss_check`` is not 1), and its difference is no factor per
    sequence, which is a rogue-normaliser. The finding says how: a global factor, a factor per token, the sign, the
    clip region, the mask, no gradient, not finite, the value alone, or nothing that has a name.

    Example: the equation clips the ratio at 1.2, the code at 1.28.

    Remedy: correct the code or the equation. `pth_tracker.identify_loss` names the written loss that the code computes.

    Configuration: none. Two lines log the check::

        report = pth_tracker.check_loss(my_loss, equations.grpo)
        logger.log(report.metrics(), step=0)

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 4.
    """
    failed = [check for check in failed_loss_checks(view) if not rogue_factors(check)]
    if not failed:
        return
    check = failed[0]
    kind = _kind(check)
    sizes = [
        f"{what} by {check[name]:.3g} of its scale"
        for name, what in (("value_difference", "the value"), ("gradient_difference", "the gradient"))
        if name in check
    ]
    factor = check.get("factor_min")
    yield Finding(
        4,
        Level.FAIL,
        f"the loss differs from its equation: {kind or 'of an unknown kind'}"
        + (f", {factor:.4g}" if kind is Kind.GLOBAL_FACTOR and factor is not None else ""),
        f"The loss check logged at update {check['update']:g} failed"
        + (f": it differs in {' and in '.join(sizes)}." if sizes else "."),
        dict(check),
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="correct the code or the equation; pth_tracker.identify_loss(my_loss) names the loss that the code "
        "computes",
    )


def judge_normaliser_differs(pair: Pair, met: frozenset[str]) -> Iterator[Finding]:
    """Two arms divide their losses by different normalisers.

    What it does: tells from each run's configuration and release by what its loss is effectively divided, which is not
    always what the configuration declares, and compares the arms.

    Why it matters: the normaliser decides how much a long response weighs and how large a step is. Arms that differ in
    it as well as in the method compare two things at once.

    How it decides: no run of one arm has an effective normaliser that any run of the other has. Nothing is said where
    the keys that declare the normaliser are in ``vary`` or are all in which the arms differ: it then is the treatment.

    Example: verl 0.6 to 0.9.0 with ``loss_mode=gspo`` takes the mean over each response whatever ``loss_agg_mode``
    says, the other arm honours ``token-mean``; up to 0.7.1 a token mean is taken over each micro-batch, so that arms
    with other micro-batch sizes differ.

    Remedy: divide the loss by the same number in both arms, or declare the difference in ``vary`` and in the claim.

    Configuration: ``vary``.

    References: T. Pan, Probe the Harness, arXiv 2610.02911, check 4; verl-project/verl#906, #3741, #5366, #5625.
    """
    found: dict[str, dict[str, None]] = {}
    sides: dict[str, list[Member]] = {}
    for arm, members in iterate_arms(pair):
        sides[arm] = [member for member in members if member.reading.role("normaliser") is not MISSING]
        found[arm] = {str(member.reading.role("normaliser")): None for member in sides[arm]}
    if not all(found.values()) or set(found[pair.a]) & set(found[pair.b]) or _normaliser_is_treatment(pair, sides):
        return
    concerned = [*sides[pair.a], *sides[pair.b]]
    values = {arm: " or ".join(own) for arm, own in found.items()}
    alike = _declared_alike(pair, sides)
    declared = f" {alike}, and something else decides." if alike else ""
    yield Finding(
        4,
        Level.WARN,
        f"{pair.a} and {pair.b} normalise their losses differently",
        f"{pair.a}: {values[pair.a]}; {pair.b}: {values[pair.b]}.{declared}",
        {"normalisers": {arm: list(own) for arm, own in found.items()}},
        basis=pair.comparison.basis,
        runs=tuple(member.key for member in concerned),
        blames=tuple(member.key for member in sides[pair.a]),
        arms=(pair.a, pair.b),
        remedy="divide the loss by the same number in both arms, or declare the difference with --vary and say so "
        "in the claim",
    )


def _normaliser_keys(members: Sequence[Member]) -> set[str]:
    return {key for member in members for key in member.reading.framework.normaliser}


def _normaliser_is_treatment(pair: Pair, sides: Mapping[str, Sequence[Member]]) -> bool:
    """Whether the arms are meant to differ in the normaliser: it is declared to vary, or nothing else differs."""
    members = [*sides[pair.a], *sides[pair.b]]
    keys = _normaliser_keys(members)
    first = [sides[arm][0] for arm in (pair.a, pair.b)]
    apart = set(differing_keys([member.run.config for member in first]))
    if keys & apart & set(pair.comparison.in_force.vary):
        return True
    fields = {
        key
        for key in pair.comparison.compared_keys(first)
        if key in apart and not first[0].reading.is_seed(key) and key != pair.comparison.stress_key
    }
    return bool(fields) and fields <= keys


def _declared_alike(pair: Pair, sides: Mapping[str, Sequence[Member]]) -> str:
    """A clause where the arms declare one normaliser and have two in effect, else ``""``."""
    members = [*sides[pair.a], *sides[pair.b]]
    for key in sorted(_normaliser_keys(members)):
        held = [member.run.get(key) for member in members]
        if held[0] not in (MISSING, None) and all(same_value(held[0], value) for value in held):
            return f"{key} is {shown_values(members, key)} in both"
    return ""


@lru_cache(maxsize=1)
def varied_scores(view: RunView) -> tuple[int, int]:
    """Updates in which the scores vary, and those of them at which the advantages range exactly as the scores do."""
    names = ("advantage_max", "advantage_min", "train_score_max", "train_score_min")
    series = [one for name in names if (one := view.series(name)) is not None]
    if len(series) < len(names):
        return 0, 0
    common = series[0].step
    for one in series[1:]:
        if not np.array_equal(common, one.step):
            common = np.intersect1d(common, one.step, assume_unique=True)
    top, bottom, best, worst = (one.values[np.searchsorted(one.step, common)] for one in series)
    with np.errstate(invalid="ignore"):
        varied = best - worst > 0
        slack = SCORE_TOLERANCE * np.maximum(np.abs(best), np.abs(worst))
        equal = _near(top, best, slack + _printed(series[0], series[2]))
        equal &= _near(bottom, worst, slack + _printed(series[1], series[3]))
    return int(varied.sum()), int((varied & equal).sum())


def _near(first: Floats, second: Floats, slack: Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(np.abs(first - second) <= slack)


def _printed(*series: Series) -> float:
    """Half a unit of each printed precision."""
    return sum(0.5 * 10.0**-one.decimals for one in series if one.decimals is not None)


def group_facts(view: RunView) -> tuple[str, ...]:
    """``varied_scores`` where enough updates have scores that vary for the advantages to be judged by their range."""
    return ("varied_scores",) if varied_scores(view)[0] >= LEAST_UPDATES else ()


def judge_no_group(view: RunView, met: frozenset[str]) -> Iterator[Finding]:
    """The advantages are formed in a group of one: they are the scores themselves.

    What it does: compares the range of the advantages with that of the scores at each update, and looks for a
    group-relative estimator with one response for each prompt.

    Why it matters: GRPO and RLOO subtract the mean of the other responses to the prompt. In a group of one there is
    none: nothing is subtracted, every response with a positive score is reinforced, and "GRPO" is REINFORCE without a
    baseline.

    How it decides: fail where at 95% of at least 10 updates in which the scores vary the largest and the smallest
    advantage equal the largest and the smallest score (within 1e-5, or the printed precision), and the configuration
    does not name an estimator without groups. Without such metrics it warns where the configuration gives a
    group-relative estimator a group of one; another key may still make the group.

    Example: verl with ``algorithm.adv_estimator=grpo`` and ``actor_rollout_ref.rollout.n=1``, its default: the scores
    are 0 and 1, and so are the advantages.

    Remedy: sample several responses for each prompt, or do not call the method group-relative.

    Configuration: none.

    References: Z. Shao et al., DeepSeekMath, arXiv 2402.03300, section 4.1.
    """
    grouped = view.role("group_advantage")
    size = view.role("group_size")
    if "measured" in met:
        varied, equal = varied_scores(view)
        if grouped is False or equal < EQUAL_SHARE * varied:
            return
        said = "" if size is MISSING else f" The configuration gives {size} for each prompt."
        yield _no_group(
            view,
            Level.FAIL,
            f"the advantages are the scores: no group on {equal} of {varied} updates",
            f"Their largest and smallest values are those of the scores wherever these vary: no baseline is "
            f"subtracted, as with one response for each prompt.{said}",
            {"updates": varied, "equal": equal} | ({} if size is MISSING else {"group_size": size}),
        )
    elif grouped is True and _is_one(size):
        yield _no_group(
            view,
            Level.WARN,
            "a group-relative advantage with one response for each prompt",
            "A group of one has no baseline: its advantage is the score. Another key may make the group; the largest "
            "and smallest advantage and score would tell.",
            {"group_size": size},
        )


def _is_one(size: Any) -> bool:
    return isinstance(size, int | float) and not isinstance(size, bool) and size == 1


def _no_group(view: RunView, level: Level, title: str, detail: str, evidence: dict[str, Any]) -> Finding:
    return Finding(
        4,
        level,
        title,
        detail,
        evidence,
        basis=Basis.CONTRADICTION,
        runs=(view.run.key,),
        blames=(view.run.key,),
        remedy="sample several responses for each prompt, or do not call the method group-relative",
    )


RULES: Final = (
    Rule(
        "rogue-normaliser",
        4,
        Level.FAIL,
        Scope.RUN,
        (branch("checked", "loss_check", "loss_check_kind"),),
        judge_rogue_normaliser,
        explains=("normaliser-differs",),
        reads=DETAILS,
    ),
    Rule(
        "loss-differs",
        4,
        Level.FAIL,
        Scope.RUN,
        (branch("checked", "loss_check"),),
        judge_loss_differs,
        reads=("loss_check_kind", *DETAILS),
    ),
    Rule(
        "normaliser-differs",
        4,
        Level.WARN,
        Scope.PAIR,
        (branch("declared", "config", "normaliser"),),
        judge_normaliser_differs,
    ),
    Rule(
        "no-group",
        4,
        Level.FAIL,
        Scope.RUN,
        (
            branch("measured", "advantage_max", "advantage_min", "train_score_max", "train_score_min", "varied_scores"),
            branch("declared", "group_advantage", "group_size"),
        ),
        judge_no_group,
        facts=group_facts,
    ),
)
