"""``pth-tracker explain``: the documentation of the rules."""

from __future__ import annotations

from typing import Annotated

import typer

from pth_tracker.cli.output import emit, terminal_width
from pth_tracker.errors import ExitCode


def explain(
    slug: Annotated[
        str, typer.Argument(metavar="[RULE]", help="A rule's name, such as idle-clip.", show_default=False)
    ] = "",
) -> int:
    """Explain a rule: what it finds, why that matters, how it decides.

    Without a name, lists all rules by check.
    """
    from pth_tracker import checks
    from pth_tracker.render.rules import format_rule, list_rules

    width = terminal_width()
    emit(format_rule(checks.find_rule(slug), width) if slug else list_rules(checks.all_rules(), width))
    return ExitCode.OK
