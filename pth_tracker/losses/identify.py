"""Which written loss an implementation is, or which it is nearest to and how it differs."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from pth_tracker.errors import UsageError
from pth_tracker.losses.compare import (
    compare_gradients,
    context_of,
    evaluate_equation,
    same_value,
    value_scale,
)
from pth_tracker.losses.equations import CATALOGUE, KL_ESTIMATORS, WrittenLoss, kl_penalty
from pth_tracker.losses.evaluate import TOLERANCES, Evaluation, accepted, evaluate
from pth_tracker.losses.inputs import random_batch
from pth_tracker.losses.kinds import Context, Diagnosis, Kind

NEARNESS: Final = (
    Kind.EQUAL,
    Kind.VALUE,
    Kind.GLOBAL_FACTOR,
    Kind.SEQUENCE_FACTOR,
    Kind.SIGN,
    Kind.CLIP_REGION,
    Kind.MASK,
    Kind.TOKEN_FACTOR,
    Kind.UNRELATED,
    Kind.NO_GRADIENT,
    Kind.NOT_FINITE,
)
"""Kinds of difference, the slightest first."""


@dataclass(frozen=True)
class Match:
    """One written loss beside an implementation."""

    name: str
    """Its name in the catalogue."""
    settings: Mapping[str, Any]
    """Settings other than the equation's own."""
    diagnosis: Diagnosis
    """How the gradients differ; its kind is ``value only`` where they agree and the values do not."""
    added: str = ""
    """A term that the implementation adds: ``0.04 times the token mean of k3``."""
    about: str = ""
    """The written loss in one line."""

    @property
    def exact(self) -> bool:
        """Whether value and gradients agree, with nothing added."""
        return self.diagnosis.kind is Kind.EQUAL and not self.added

    def __str__(self) -> str:
        shown = (f"{value:g}" if isinstance(value, float) else f"{value}" for value in self.settings.values())
        settings = ", ".join(f"{key}={value}" for key, value in zip(self.settings, shown))
        called = f"{self.name}({settings})" if settings else self.name
        if self.added:
            return f"{called} plus {self.added}"
        if self.exact:
            return called
        return f"{called}, with another {_DIFFERENCE[self.diagnosis.kind]}: {self.diagnosis.detail}"


_DIFFERENCE: Final[Mapping[Kind, str]] = {
    Kind.VALUE: "value",
    Kind.GLOBAL_FACTOR: "scale",
    Kind.SEQUENCE_FACTOR: "normaliser",
    Kind.SIGN: "sign",
    Kind.CLIP_REGION: "clip",
    Kind.MASK: "mask",
    Kind.TOKEN_FACTOR: "weight for each token",
    Kind.UNRELATED: "gradient",
    Kind.NO_GRADIENT: "gradient",
    Kind.NOT_FINITE: "gradient",
}


@dataclass(frozen=True)
class Identification:
    """What `identify_loss` found."""

    matches: tuple[Match, ...]
    """The written losses that agree in value and gradient, the equations' own settings first."""
    nearest: Match
    """The first match, else the written loss that differs least."""
    ranking: tuple[Match, ...] = field(default=(), repr=False)
    """Every written loss with the settings at which it differs least, the nearest first."""

    @property
    def name(self) -> str:
        """The name of the matching, else of the nearest written loss."""
        return self.nearest.name

    @property
    def exact(self) -> bool:
        """Whether a written loss matches."""
        return bool(self.matches)

    def __str__(self) -> str:
        if self.exact:
            others = [str(match) for match in self.matches[1:]]
            return f"{self.nearest}" + (f" (on this input also {', '.join(others)})" if others else "")
        return f"no written loss; the nearest is {self.nearest}"


def identify_loss(
    implemented: Callable[..., Any],
    inputs: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    rtol: float | None = None,
    wrt: str = "logp",
    candidates: Sequence[str] | None = None,
) -> Identification:
    """Which written loss an implementation is: the one that agrees in value and gradient on a fixed input.

    Where none does, it is told which one is nearest and how it differs: a value, a factor, another normaliser, sign,
    clip or mask; or that it is a written loss plus a KL term.

    Args:
        implemented: Returns a scalar tensor; called with those of ``inputs`` that it takes.
        inputs: By default `random_batch`; the names have to be those.
        settings: Values for the equations' own arguments (``clip_high``, ``threshold``), besides those that are tried:
            the equations' own and clip ranges in general use.
        rtol: Relative tolerance, by default by the type of the inputs, as in `check_loss`.
        wrt: The input in which gradients are compared.
        candidates: Names of `pth_tracker.losses.equations.CATALOGUE`; by default all.

    Raises:
        UsageError: a name is none of the catalogue's, no written loss fits the inputs, or the implementation cannot be
            checked (see `check_loss`).
    """
    given = dict(random_batch() if inputs is None else inputs)
    for name in candidates or ():
        if name not in CATALOGUE:
            raise UsageError(f"no written loss is called {name!r}; the catalogue has {', '.join(CATALOGUE)}")
    ours = evaluate(implemented, given, (wrt,))
    tolerance = TOLERANCES.get(ours.dtype, 1e-6) if rtol is None else rtol
    tries = list(_tries(ours, given, settings or {}, wrt, tolerance, candidates or tuple(CATALOGUE)))
    if not tries:
        raise UsageError(f"no written loss fits the inputs {', '.join(given)}; name them as random_batch does")
    best: dict[str, Match] = {}
    for match, _ in sorted(tries, key=lambda pair: _distance(pair[0])):
        best.setdefault(match.name, match)
    ranking = tuple(best.values())
    exact = sorted((match for match, _ in tries if match.exact), key=lambda match: len(match.settings))
    if exact:
        return Identification(tuple(exact), exact[0], ranking)
    added = _with_kl(ours, given, wrt, tolerance, tries)
    return Identification((), (*added, *ranking)[0], (*added, *ranking))


def _tries(
    ours: Evaluation,
    inputs: Mapping[str, Any],
    settings: Mapping[str, Any],
    wrt: str,
    rtol: float,
    names: Sequence[str],
) -> Iterator[tuple[Match, Evaluation]]:
    """Every written loss that fits the inputs, at all settings to try."""
    for entry in (CATALOGUE[name] for name in names):
        for tried in _settings(entry, settings):
            own = {**inputs, **tried}
            try:
                accepted(entry.function, own)
            except UsageError:
                break  # it needs an input that is not there
            theirs = evaluate_equation(entry.function, own, (wrt,))
            context = context_of(inputs, theirs.gradients[wrt], rtol, None)
            yield _match(entry, tried, ours, theirs, wrt, context), theirs


def _settings(entry: WrittenLoss, own: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The settings to try of one written loss, each once, with the user's own on top."""
    defaults = {name: one.default for name, one in inspect.signature(entry.function).parameters.items()}
    seen: list[Mapping[str, Any]] = []
    for tried in entry.settings:
        merged = {key: value for key, value in {**tried, **own}.items() if defaults.get(key, value) != value}
        if merged not in seen:
            seen.append(merged)
            yield merged


def _match(
    entry: WrittenLoss, tried: Mapping[str, Any], ours: Evaluation, theirs: Evaluation, wrt: str, context: Context
) -> Match:
    found = compare_gradients(ours, theirs, wrt, context)
    if found.kind is Kind.EQUAL and not same_value(ours, theirs, context.rtol, None):
        detail = f"The gradients agree; the value is {ours.value:.6g} and not {theirs.value:.6g}."
        found = replace(found, kind=Kind.VALUE, detail=detail)
    return Match(entry.name, tried, found, about=entry.about)


def _distance(match: Match) -> tuple[float, ...]:
    found = match.diagnosis
    cosine = abs(found.cosine) if found.kind is Kind.SIGN else found.cosine
    angle = 1 - cosine if np.isfinite(cosine) else 2.0
    return (NEARNESS.index(found.kind), found.differing, round(angle, 9), len(match.settings))


def _with_kl(
    ours: Evaluation, inputs: Mapping[str, Any], wrt: str, rtol: float, tries: Sequence[tuple[Match, Evaluation]]
) -> list[Match]:
    """The written losses to which the implementation adds a multiple of a KL penalty, in value and gradient."""
    if not {"logp", "logp_ref", "mask"} <= set(inputs):
        return []
    found = []
    for by_sequence, estimator in itertools.product((False, True), KL_ESTIMATORS):
        extra = {"estimator": estimator, "by_sequence": by_sequence}
        kl = evaluate_equation(kl_penalty, {**inputs, **extra}, (wrt,))
        for match, theirs in tries:
            coefficient = _multiple(ours, theirs, kl, wrt, rtol)
            if coefficient is not None and match.name != "kl_penalty":
                mean = "sequence mean" if by_sequence else "token mean"
                term = f"{coefficient:.4g} times the {mean} of {estimator} against the reference"
                found.append(replace(match, added=term))
    return sorted(found, key=lambda match: len(match.settings))


def _multiple(ours: Evaluation, theirs: Evaluation, term: Evaluation, wrt: str, rtol: float) -> float | None:
    """The positive c for which value and gradient of ``ours`` are those of ``theirs`` plus c times ``term``."""
    rest, slope = ours.gradients[wrt] - theirs.gradients[wrt], term.gradients[wrt]
    if not (np.isfinite(rest).all() and np.any(slope)):
        return None
    coefficient = float((rest * slope).sum() / (slope * slope).sum())
    left = np.abs(rest - coefficient * slope).max()
    apart = abs(ours.value - theirs.value - coefficient * term.value)
    scale = max(value_scale(theirs), abs(coefficient) * value_scale(term))
    near = left <= 2 * rtol * np.abs(ours.gradients[wrt]).max() and apart <= 2 * rtol * scale
    return coefficient if coefficient > rtol and near else None
