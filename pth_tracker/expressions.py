"""The small expression language of vocabularies and design files: arithmetic, comparisons and a few functions.

It stands on simpleeval, which walks the parsed expression and never runs it; names are the values handed in, and the
functions are those of `FUNCTIONS` and of the caller. Powers and long text are bounded.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from pth_tracker.errors import UsageError

MAX_LENGTH: Final = 1000
"""The longest expression that is read, in characters."""

FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
}


class ExpressionError(UsageError):
    """An expression that cannot be read or evaluated."""


@lru_cache(maxsize=512)
def _parsed(expression: str) -> Any:
    if len(expression) > MAX_LENGTH:
        raise ExpressionError(f"an expression may have {MAX_LENGTH} characters, this one has {len(expression)}")
    try:
        statements = ast.parse(expression.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{expression!r} is no expression: {error}") from error
    if len(statements) != 1 or not isinstance(statements[0], ast.Expr):
        raise ExpressionError(f"{expression!r} is no expression: give one value to compute, and no statement")
    return statements[0]


def evaluate(
    expression: str,
    names: Mapping[str, Any],
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> Any:
    """The value of ``expression`` with these names and functions (beside `FUNCTIONS`).

    >>> evaluate("min(update, 32)", {"update": 40})
    32

    Raises:
        ExpressionError: it cannot be parsed, names something unknown, or fails (a division by zero).
    """
    import simpleeval

    parsed = _parsed(expression)
    evaluator = simpleeval.EvalWithCompoundTypes(names=dict(names), functions={**FUNCTIONS, **(functions or {})})
    try:
        return evaluator.eval(expression, previously_parsed=parsed)
    except simpleeval.InvalidExpression as error:
        raise ExpressionError(f"{expression!r}: {error}") from error
    except RecursionError as error:
        raise ExpressionError(f"{expression[:40]!r}... is nested too deeply") from error
    except (ArithmeticError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise ExpressionError(f"{expression!r} cannot be evaluated: {error}") from error
