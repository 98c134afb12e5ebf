"""What the tokens have in common that no common factor explains: where a mask, a clip or a weight acted."""

from __future__ import annotations

import numpy as np

from pth_tracker.losses.kinds import Bools, Context, Kind
from pth_tracker.runs import Floats


def differing_tokens(differing: Bools, live: Bools, live_equation: Bools, context: Context) -> tuple[Kind, str] | None:
    """What the tokens that the common factor leaves over have in common, with a sentence; None: nothing seen."""
    mask = context.mask if context.mask is not None else np.ones_like(differing)
    outside = differing & ~mask & live
    if outside.any():
        return Kind.MASK, f"{tokens(outside)} outside the mask {_verb(outside)} gradient."
    scope = (live | live_equation) & mask
    band = _clip_band(differing, scope, live, live_equation, context)
    ends = _sequence_ends(differing, mask)
    if ends:
        return Kind.MASK, ends
    if band:
        return Kind.CLIP_REGION, band
    for ours, theirs, words in (
        (live, live_equation, "contribute no gradient"),
        (live_equation, live, "carry gradient where the equation has none"),
    ):
        whole = np.asarray(theirs.any(axis=1) & ~ours.any(axis=1))
        if whole.any() and np.array_equal(differing.any(axis=1), whole):
            return whole_sequences(whole, words, context)
    return None


def whole_sequences(which: Bools, words: str, context: Context) -> tuple[Kind, str]:
    """The kind of whole sequences that only one of the losses leaves out: by a clip of the sequence's ratio or a mask.

    It is a clip where they are two or more, and all those that a clip of the geometric mean of their tokens' ratios can
    take: above 1 where the advantage is positive, below 1 where it is negative.
    """
    detail = f"{int(which.sum())} of {len(which)} sequences {words}."
    name, log_ratio = next(iter(context.log_ratios.items()), ("", np.zeros((0, 0))))
    if which.sum() > 1 and name and context.sign is not None and context.mask is not None:
        means = np.where(context.mask, log_ratio, 0).sum(axis=1) / np.maximum(context.mask.sum(axis=1), 1)
        outward = means * context.sign[:, 0]
        if outward[which].min() > max(0.0, float(outward[~which].max(initial=0.0))):
            span = _stretch(np.exp(means[which]))
            return Kind.CLIP_REGION, f"{detail} The geometric means of their {name} are {span}: a clip takes them."
    return Kind.MASK, detail


def _sequence_ends(differing: Bools, mask: Bools) -> str:
    """A sentence where the differing tokens are the first, or the last, of the sequences' tokens, else ``""``."""
    several = mask.sum(axis=1) > 1
    if several.sum() < 2:
        return ""
    width = mask.shape[1]
    first = mask.argmax(axis=1)
    last = width - 1 - mask[:, ::-1].argmax(axis=1)
    for word, column in (("first", first), ("last", last)):
        end = np.zeros_like(mask)
        end[np.arange(len(mask)), column] = mask.any(axis=1)
        # A token whose gradient is 0 either way cannot differ: two rows and nothing but ends is what tells.
        if not (differing & ~end).any() and differing.any(axis=1).sum() >= max(2, 0.5 * several.sum()):
            return f"The {word} token of {int(differing.any(axis=1).sum())} sequences is treated as outside the mask."
    return ""


def _clip_band(differing: Bools, scope: Bools, live: Bools, live_equation: Bools, context: Context) -> str:
    """A sentence where a bound of some ratio tells the differing tokens from the others, else ``""``."""
    for name, log_ratio in context.log_ratios.items():
        sign = context.sign if context.sign is not None else np.zeros_like(log_ratio)
        if not _separated(differing, scope, log_ratio, sign):
            continue
        ratios = np.exp(log_ratio[differing])
        below, above = ratios[ratios < 1], ratios[ratios > 1]
        spans = [_stretch(side) for side in (below, above) if len(side)]
        idle = int((differing & ~live & live_equation).sum())
        extra = int((differing & live & ~live_equation).sum())
        parts = [f"{idle} clipped that the equation keeps"] if idle else []
        parts += [f"{extra} kept that the equation clips"] if extra else []
        rest = int(differing.sum()) - idle - extra
        parts += [f"{rest} weighted differently"] if rest else []
        where = f"where {name} is {' and '.join(spans)}"
        return f"{tokens(differing)} {'differs' if differing.sum() == 1 else 'differ'}, {where}: {', '.join(parts)}."
    return ""


def tokens(which: Bools) -> str:
    """How many tokens, in words."""
    count = int(which.sum())
    return "1 token" if count == 1 else f"{count} tokens"


def _verb(which: Bools) -> str:
    return "carries" if which.sum() == 1 else "carry"


def _stretch(ratios: Floats) -> str:
    low, high = f"{ratios.min():.3g}", f"{ratios.max():.3g}"
    return low if low == high else f"{low} to {high}"


def _separated(differing: Bools, scope: Bools, log_ratio: Floats, sign: Floats) -> bool:
    """Whether, for each sign of the advantage and each side of 1, the differing tokens are one stretch of the ratio.

    One token is a stretch by chance: such a stretch has to be the outermost of its side.
    """
    if np.any(np.abs(log_ratio[differing]) < 1e-6):
        return False
    telling = 0
    for one in np.unique(sign[scope]):
        for side in (1, -1):
            group = scope & (sign == one) & (np.sign(log_ratio) == side)
            inside = np.abs(log_ratio[group & differing])
            if not len(inside):
                continue
            others = np.abs(log_ratio[group & ~differing])
            if np.any((others >= inside.min()) & (others <= inside.max())):
                return False
            outermost = len(others) > 0 and bool(inside.min() > others.max())
            if len(inside) == 1 and len(others) and not outermost:
                return False
            telling += len(inside) > 1 or outermost
    return telling > 0
