"""``pth-tracker paired``: check 6 on a table of scores, two methods paired by seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from pth_tracker.cli import options as opt
from pth_tracker.cli.options import Color
from pth_tracker.cli.output import note
from pth_tracker.errors import ExitCode, UsageError

File = Annotated[Path, typer.Argument(metavar="FILE", help="A CSV file with the columns method, seed and value.")]
First = Annotated[str, typer.Argument(metavar="A", help="The first method.")]
Second = Annotated[str, typer.Argument(metavar="B", help="The second, which is taken from the first.")]
Scale = Annotated[
    float,
    opt.option("--scale", metavar="FACTOR", help="Multiply differences, by 100 for points.", default=True),
]
MethodColumn = Annotated[str, opt.option("--method", metavar="NAME", help="The methods' column.", default=True)]
SeedColumn = Annotated[str, opt.option("--seed", metavar="NAME", help="The seeds' column.", default=True)]
ValueColumn = Annotated[str, opt.option("--value", metavar="NAME", help="The scores' column.", default=True)]


def paired(
    file: File,
    a: First,
    b: Second,
    scale: Scale = 1.0,
    method: MethodColumn = "method",
    seed: SeedColumn = "seed",
    value: ValueColumn = "value",
    exit_zero: opt.ExitZero = False,
    quiet: opt.Quiet = False,
    color: opt.ColorChoice = Color.AUTO,
) -> int:
    """Compare the scores of two methods, paired by seed.

    Gives the differences seed by seed with the 95% interval of their mean (check 6).
    """
    if not math.isfinite(scale) or not scale:
        raise UsageError(f"--scale is a factor other than 0, not {scale:g}")
    if a == b:
        raise UsageError(f"{a!r} is compared with itself: name two methods")
    from pth_tracker.cli.session import show_report
    from pth_tracker.results import mean_scores, paired_differences, read_scores

    scores = read_scores(file, method, seed, value)
    repeated = [
        f"{name} seed {replicate}"
        for name in dict.fromkeys((a, b))
        for replicate, rows in scores.get(name, {}).items()
        if len(rows) > 1
    ]
    if repeated and not quiet:
        note(f"several rows, which count by their mean: {', '.join(repeated)}")
    results = mean_scores(scores)
    missing = [name for name in (a, b) if name not in results]
    if missing:
        raise UsageError(f"{file} has no results of {missing[0]!r}: its methods are {', '.join(results) or 'none'}")
    found = paired_differences(results, a, b, scale)
    show_report(found, quiet, color)
    return ExitCode.OK if found.ok or exit_zero else ExitCode.CHECK_FAILED
