"""The value and gradients of a loss on inputs that it cannot spoil. PyTorch is imported on use."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pth_tracker.errors import UsageError
from pth_tracker.runs import Floats

TOLERANCES: Final[Mapping[str, float]] = {"float64": 1e-6, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
"""Relative tolerance by the coarsest type among inputs and result."""


@dataclass(frozen=True)
class Evaluation:
    """One loss on one input."""

    value: float
    gradients: Mapping[str, Floats]
    """By input, in its shape and float64; zero where the loss does not depend on it."""
    reached: frozenset[str]
    """The inputs of ``wrt`` that the result depends on."""
    mutated: tuple[str, ...]
    """The inputs that the loss wrote into."""
    dtype: str
    """The coarsest floating type among the inputs used and the result: ``bfloat16``."""


def import_torch() -> Any:
    """PyTorch, imported on use.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"loss checks need PyTorch, which cannot be imported ({error}): pip install torch") from error
    return torch


def shown_name(loss: Callable[..., Any]) -> str:
    """What to call a loss in a message."""
    return str(getattr(loss, "__name__", type(loss).__name__))


def accepted(loss: Callable[..., Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``inputs`` that ``loss`` takes.

    Raises:
        UsageError: it needs another one.
    """
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return dict(inputs)  # a builtin without a signature gets everything
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        own = dict(inputs)
    else:
        own = {parameter.name: inputs[parameter.name] for parameter in parameters if parameter.name in inputs}
    named = (p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
    lacking = [p.name for p in named if p.default is p.empty and p.name not in own]
    if lacking:
        raise UsageError(f"{shown_name(loss)} needs {', '.join(lacking)}, and the inputs hold {', '.join(inputs)}")
    return own


def evaluate(
    loss: Callable[..., Any], inputs: Mapping[str, Any], wrt: Sequence[str], *, exactly: bool = False
) -> Evaluation:
    """The loss's value and its gradients in ``wrt``, on copies of ``inputs``.

    Args:
        loss: Called with those of ``inputs`` that it takes; may write into them, and need no gradient in some.
        inputs: Tensors, and whatever else it takes.
        wrt: Names of floating tensors among the inputs.
        exactly: Whether floating tensors are taken to float64 before.

    Raises:
        UsageError: ``wrt`` names no such tensor, or the result is no scalar tensor.
    """
    torch = import_torch()
    for key in wrt:
        if key not in inputs:
            raise UsageError(f"wrt names {key!r}, and the inputs hold {', '.join(inputs)}")
        if not (isinstance(inputs[key], torch.Tensor) and inputs[key].is_floating_point()):
            raise UsageError(f"wrt names {key!r}, which is no floating tensor, so that no gradient in it exists")
    own = accepted(loss, inputs)
    leaves, given, before = {}, {}, {}
    for key, value in own.items():
        if not isinstance(value, torch.Tensor):
            given[key] = copy.deepcopy(value)
            continue
        kept = value.detach()
        if exactly and kept.is_floating_point():
            kept = kept.to(torch.float64)
        leaf = leaves[key] = kept.clone().requires_grad_(key in wrt)
        before[key] = kept
        given[key] = leaf.clone()  # no leaf: a loss may write into it
    with torch.enable_grad():
        result = loss(**given)
        _scalar(torch, loss, result)
        used = [key for key in wrt if key in leaves]
        gradients: dict[str, Any] = dict.fromkeys(wrt)
        if result.requires_grad and used:
            found = torch.autograd.grad(result, [leaves[key] for key in used], allow_unused=True)
            gradients |= dict(zip(used, found))
    types = [value.dtype for value in (*before.values(), result) if value.is_floating_point()]
    return Evaluation(
        value=float(result.detach().to(torch.float64)),
        gradients={key: _array(torch, gradients[key], inputs[key].shape) for key in wrt},
        reached=frozenset(key for key in wrt if gradients[key] is not None),
        mutated=tuple(key for key, value in before.items() if not _unchanged(torch, value, given[key])),
        dtype=str(max(types, key=lambda kind: torch.finfo(kind).eps, default=torch.float64)).removeprefix("torch."),
    )


def _scalar(torch: Any, loss: Callable[..., Any], result: Any) -> None:
    name = shown_name(loss)
    if isinstance(result, tuple | list | dict):
        first = repr(next(iter(result), "loss")) if isinstance(result, dict) else "0"
        raise UsageError(
            f"{name} returns a {type(result).__name__}; a loss check needs its loss alone, a scalar tensor, for "
            f"example lambda **inputs: {name}(**inputs)[{first}]"
        )
    if not isinstance(result, torch.Tensor):
        raise UsageError(f"{name} returns a {type(result).__name__}; a loss check needs a scalar tensor")
    if result.numel() != 1:
        raise UsageError(f"{name} returns a tensor of shape {tuple(result.shape)}; a loss check needs a scalar tensor")
    if not result.is_floating_point():
        raise UsageError(f"{name} returns a tensor of type {result.dtype}; a loss check needs a floating one")


def _unchanged(torch: Any, before: Any, after: Any) -> bool:
    now = after.detach()
    if now.shape != before.shape or now.dtype != before.dtype:
        return False
    return bool(((now == before) | ((now != now) & (before != before))).all())


def _array(torch: Any, gradient: Any, shape: Any) -> Floats:
    if gradient is None:
        return np.zeros(tuple(shape))
    array: Floats = gradient.detach().to(device="cpu", dtype=torch.float64).numpy()
    return array
