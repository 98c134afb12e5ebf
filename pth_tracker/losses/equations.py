"""The written losses of the field as readable references, and the catalogue that `identify_loss` looks in.

Every loss is minimised, returns a scalar, and takes what `pth_tracker.random_batch` yields: log-probabilities in nats
of shape ``(batch, length)`` under the learner (``logp``), the policy below the line of the ratio (``logp_old``), the
sampler (``logp_sampler``) and a reference model (``logp_ref``); one advantage for each sequence, ``(batch,)``; and a
``mask``, ``(batch, length)``, that is 1 on the response's tokens. In the formulas sequence i of G has |o_i| tokens
inside the mask, A_i is its advantage, r_it = pi(o_it) / pi_old(o_it), and sg stops the gradient. Values outside the
mask never matter, whatever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch import Tensor


def probability_ratio(logp: Tensor, logp_other: Tensor, mask: Tensor) -> Tensor:
    """``(batch, length)``, pi / pi_other of each token; 1 outside the mask."""
    return (logp - logp_other).masked_fill(mask == 0, 0.0).exp()


def token_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """The mean over all tokens of the batch: sum_it l_it / sum_i |o_i|. Long sequences weigh more."""
    return (losses * mask).sum() / mask.sum()


def sequence_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """The mean over sequences of each one's token mean: 1/G sum_i 1/|o_i| sum_t l_it. Sequences weigh the same."""
    return ((losses * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def sequence_sum(losses: Tensor, mask: Tensor, constant: float = 1.0) -> Tensor:
    """The mean over sequences of each one's token sum, over a constant: 1/(G C) sum_it l_it."""
    return (losses * mask).sum(1).mean() / constant


def clipped_objective(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """``(batch, length)``, min(r A, clip(r, 1 - low, 1 + high) A), and no less than c A where A < 0.

    Args:
        ratio: ``(batch, length)``.
        advantages: ``(batch,)``.
        clip_low: How far below 1 the ratio may act.
        clip_high: How far above 1.
        dual_clip: c > 1, or None for no second bound.
    """
    advantage = advantages[:, None]
    objective = (ratio * advantage).minimum(ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    if dual_clip is None:
        return objective
    return objective.maximum(dual_clip * advantage).where(advantage < 0, objective)


def k1(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """``(batch, length)``, the estimator log(pi / pi_ref) of KL(pi || pi_ref) on samples of pi, nats per token.

    Unbiased, of high variance, may be negative. J. Schulman, Approximating KL Divergence, 2020.
    """
    return logp - logp_ref


def k2(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """``(batch, length)``, the estimator log(pi / pi_ref)^2 / 2, nats per token: biased, never negative (ibidem)."""
    return (logp - logp_ref).square() / 2


def k3(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """``(batch, length)``, the estimator pi_ref / pi - 1 - log(pi_ref / pi), nats per token.

    Unbiased in its value and never negative (ibidem); GRPO's penalty.
    """
    difference = logp_ref - logp
    return difference.exp() - 1 - difference


KL_ESTIMATORS: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_penalty(
    logp: Tensor, logp_ref: Tensor, mask: Tensor, estimator: str = "k3", by_sequence: bool = False
) -> Tensor:
    """The mean of a KL estimator over tokens, or over sequences of their token means; nats per token.

    Args:
        logp: ``(batch, length)``.
        logp_ref: ``(batch, length)``.
        mask: ``(batch, length)``.
        estimator: ``k1``, ``k2`` or ``k3``.
        by_sequence: Whether the mean is that of `sequence_mean`.
    """
    outside = mask == 0
    per_token = KL_ESTIMATORS[estimator](logp.masked_fill(outside, 0.0), logp_ref.masked_fill(outside, 0.0))
    return (sequence_mean if by_sequence else token_mean)(per_token, mask)


def ppo_clip(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float = 0.2, clip_high: float = 0.2
) -> Tensor:
    """PPO's clipped surrogate: - 1/sum_i|o_i| sum_it min(r_it A_i, clip(r_it, 1 - e, 1 + e) A_i).

    J. Schulman et al., Proximal Policy Optimization Algorithms, arXiv 1707.06347, eq. 7.
    """
    ratio = probability_ratio(logp, logp_old, mask)
    return -token_mean(clipped_objective(ratio, advantages, clip_low, clip_high), mask)


def dual_clip(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    bound: float = 3.0,
) -> Tensor:
    """PPO's surrogate bounded below for negative advantages: max(min(r A, clip(r) A), c A) where A < 0, token mean.

    D. Ye et al., Mastering Complex Control in MOBA Games with Deep Reinforcement Learning, arXiv 1912.09729, eq. 4.
    """
    ratio = probability_ratio(logp, logp_old, mask)
    return -token_mean(clipped_objective(ratio, advantages, clip_low, clip_high, bound), mask)


def grpo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    logp_ref: Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    bound: float | None = None,
    kl_coef: float = 0.0,
) -> Tensor:
    """GRPO: - 1/G sum_i 1/|o_i| sum_t [min(r_it A_i, clip(r_it) A_i) - beta k3(pi, pi_ref)].

    Z. Shao et al., DeepSeekMath, arXiv 2402.03300, eq. 3 and 4. ``kl_coef`` is beta; ``bound`` adds the dual clip that
    some trainers put into every loss.
    """
    ratio = probability_ratio(logp, logp_old, mask)
    loss = -sequence_mean(clipped_objective(ratio, advantages, clip_low, clip_high, bound), mask)
    if kl_coef and logp_ref is not None:
        loss = loss + kl_coef * kl_penalty(logp, logp_ref, mask, "k3", by_sequence=True)
    return loss


def dapo(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float = 0.2, clip_high: float = 0.28
) -> Tensor:
    """DAPO: GRPO's objective as a token mean, 1/sum_i|o_i| sum_it, with a higher upper clip.

    Q. Yu et al., DAPO: An Open-Source LLM Reinforcement Learning System at Scale, arXiv 2503.14476, eq. 8 and 10.
    """
    return ppo_clip(logp, logp_old, advantages, mask, clip_low, clip_high)


def dr_grpo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    constant: float | None = None,
) -> Tensor:
    """Dr. GRPO: - 1/(G C) sum_it min(r_it A_i, clip(r_it) A_i): no length in the normaliser.

    Z. Liu et al., Understanding R1-Zero-Like Training, arXiv 2503.20783, section 3. The paper's formula has C = 1, its
    code the token budget; ``constant`` is C, by default the width of the mask.
    """
    ratio = probability_ratio(logp, logp_old, mask)
    budget = float(mask.shape[1]) if constant is None else constant
    return -sequence_sum(clipped_objective(ratio, advantages, clip_low, clip_high), mask, budget)


def gspo(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float = 3e-4, clip_high: float = 4e-4
) -> Tensor:
    """GSPO: - 1/G sum_i min(s_i A_i, clip(s_i) A_i), s_i = (pi(o_i) / pi_old(o_i))^(1/|o_i|).

    C. Zheng et al., Group Sequence Policy Optimization, arXiv 2507.18071, eq. 5 and 7; the clip ranges are those of its
    section 5.1.
    """
    log_ratio = (logp - logp_old).masked_fill(mask == 0, 0.0)
    ratio = (log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).exp()
    return -clipped_objective(ratio, advantages, clip_low, clip_high).mean()


def cispo(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, clip_low: float = 1.0, clip_high: float = 0.2
) -> Tensor:
    """CISPO: - 1/sum_i|o_i| sum_it sg(clip(r_it, 1 - low, 1 + high)) A_i log pi(o_it). Every token keeps its gradient.

    MiniMax, MiniMax-M1, arXiv 2506.13585, eq. 4 and 5, which sets no lower bound (low = 1) and tunes the upper one.
    """
    weight = probability_ratio(logp, logp_old, mask).clamp(1 - clip_low, 1 + clip_high).detach()
    return -token_mean(weight * advantages[:, None] * logp.masked_fill(mask == 0, 0.0), mask)


def reinforce(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """REINFORCE, and RLOO where the advantages are `leave_one_out`: - 1/G sum_i A_i log pi(o_i).

    R. Williams, Simple Statistical Gradient-Following Algorithms, 1992; A. Ahmadian et al., Back to Basics, arXiv
    2402.14740, eq. 6 and 7.
    """
    return -sequence_sum(advantages[:, None] * logp.masked_fill(mask == 0, 0.0), mask)


def tis(
    logp: Tensor,
    logp_old: Tensor,
    logp_sampler: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    bound: float | None = None,
    threshold: float = 2.0,
) -> Tensor:
    """PPO under truncated importance weights: each token's loss times sg(min(pi_old / pi_sampler, C)), token mean.

    F. Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training, 2025; the truncation is that
    of E. Ionides, Truncated Importance Sampling, 2008.
    """
    weight = probability_ratio(logp_old, logp_sampler, mask).clamp(max=threshold).detach()
    ratio = probability_ratio(logp, logp_old, mask)
    return -token_mean(weight * clipped_objective(ratio, advantages, clip_low, clip_high, bound), mask)


def masked_is(
    logp: Tensor,
    logp_old: Tensor,
    logp_sampler: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    bound: float | None = None,
    lowest: float = 0.5,
    highest: float = 2.0,
) -> Tensor:
    """PPO under masked importance weights: w = pi_old / pi_sampler where lowest <= w <= highest, else 0; token mean.

    The masking of IcePop (Ling Team, Small Leak Can Sink a Great Ship, 2025). Tokens that are masked out still count in
    the normaliser.
    """
    weight = probability_ratio(logp_old, logp_sampler, mask).detach()
    weight = weight * ((weight >= lowest) & (weight <= highest))
    ratio = probability_ratio(logp, logp_old, mask)
    return -token_mean(weight * clipped_objective(ratio, advantages, clip_low, clip_high, bound), mask)


def leave_one_out(scores: Tensor, group: int) -> Tensor:
    """``(batch,)``, RLOO's advantages: each score minus the mean of the other scores of its prompt.

    Args:
        scores: ``(batch,)``, the responses of a prompt side by side.
        group: Responses to a prompt, at least 2.
    """
    table = scores.reshape(-1, group)
    return ((table * group - table.sum(1, keepdim=True)) / (group - 1)).reshape(-1)


@dataclass(frozen=True)
class WrittenLoss:
    """One entry of the catalogue."""

    name: str
    function: Callable[..., Tensor]
    settings: tuple[Mapping[str, Any], ...] = ({},)
    """Settings in use to try, the equation's own defaults (``{}``) first."""

    @property
    def about(self) -> str:
        """Its formula in one line."""
        return (self.function.__doc__ or "").partition("\n")[0]


_RANGES: Final = ((0.2, 0.28), (0.1, 0.1), (0.3, 0.3), (0.2, 0.2))
_CLIPS: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    *({"clip_low": low, "clip_high": high} for low, high in _RANGES),
)
_BOUNDED: Final = (*_CLIPS, *({**clip, "bound": 3.0} for clip in _CLIPS))

CATALOGUE: Final[Mapping[str, WrittenLoss]] = {
    entry.name: entry
    for entry in (
        WrittenLoss("ppo_clip", ppo_clip, _CLIPS),
        WrittenLoss("dual_clip", dual_clip, _CLIPS),
        WrittenLoss("grpo", grpo, _BOUNDED),
        WrittenLoss("dapo", dapo),
        WrittenLoss("dr_grpo", dr_grpo, (*_CLIPS, {"constant": 1.0})),
        WrittenLoss("gspo", gspo, _CLIPS),
        WrittenLoss("cispo", cispo, _CLIPS),
        WrittenLoss("reinforce", reinforce),
        WrittenLoss("tis", tis, _BOUNDED),
        WrittenLoss("masked_is", masked_is, (*_BOUNDED, {"highest": 5.0}, {"highest": 5.0, "bound": 3.0})),
        WrittenLoss("kl_penalty", kl_penalty, tuple({"estimator": name} for name in KL_ESTIMATORS)),
    )
}
"""The written losses by name."""
