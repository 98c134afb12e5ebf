"""``pth-tracker verl``: checks on verl's console logs, with arms made of paths."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pth_tracker.cli import options as opt
from pth_tracker.cli.options import Color, StdoutFormat
from pth_tracker.cli.session import Reporting
from pth_tracker.errors import UsageError

if TYPE_CHECKING:
    from pth_tracker.design.schema import Design
    from pth_tracker.runs import SourceRun

ADAPTER: Final = "files"
STABLE_RANGE: Final = 5
"""The check of scores and lengths over a whole run."""

Logs = Annotated[
    list[str] | None,
    typer.Argument(metavar="LOG", help="verl's console logs, folders of them, or patterns.", show_default=False),
]
Arms = Annotated[
    list[str] | None,
    opt.option("--arm", metavar="NAME=GLOB", help="An arm and the paths of its logs. Repeatable."),
]
Replicate = Annotated[
    list[str] | None,
    opt.option(
        "--replicate",
        metavar="KEY",
        help="A configuration key that tells the runs of an arm apart. Repeatable. Default: the data seed in force.",
    ),
]
KlTolerance = Annotated[
    float | None,
    opt.option(
        "--kl-tol",
        metavar="NATS",
        help="KL of the sampler, in nats per token, above which it counts as lagging. Default: 0.05.",
    ),
]
Metric = Annotated[
    str,
    opt.option("--metric", metavar="KEY", help="The score to compare; without it scores are not judged."),
]


def verl(
    logs: Logs = None,
    arm: Arms = None,
    vary: opt.Vary = None,
    replicate: Replicate = None,
    kl_tol: KlTolerance = None,
    metric: Metric = "",
    design: opt.DesignFile = None,
    select: opt.Select = None,
    ignore: opt.Ignore = None,
    strict: opt.Strict = False,
    exit_zero: opt.ExitZero = False,
    output: opt.Outputs = None,
    format: opt.ReportFormat = StdoutFormat.TEXT,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
    color: opt.ColorChoice = Color.AUTO,
) -> int:
    """Check verl's console logs.

    Runs checks 1 to 4 on each log and across the arms that --arm makes of their paths; with --metric also those of
    scores, as audit does. Nothing is written anywhere.
    """
    reporting = Reporting(tuple(output or ()), format, quiet, verbose, color, strict, exit_zero)
    reporting.check()
    if not (logs or arm):
        raise UsageError("name the logs to check: paths, or --arm NAME=GLOB")
    patterns = _patterns(arm or ())
    matched = {name: [path for glob_ in globs for path in _matches(glob_)] for name, globs in patterns.items()}
    paths = list(dict.fromkeys([*(logs or ()), *(path for found in matched.values() for path in found)]))
    if not paths:
        raise UsageError(f"--arm {_spec(patterns)}: no log matches")
    from pth_tracker.tracker import Query, ReadsAhead, load_adapter

    with closing(load_adapter(ADAPTER).open_tracker(paths)) as tracker:
        if isinstance(tracker, ReadsAhead):
            tracker.read_ahead()
        # The checks are imported while other processes read the logs.
        from pth_tracker import engine
        from pth_tracker.cli.output import Progress
        from pth_tracker.cli.session import report
        from pth_tracker.design.load import load_design

        declared = load_design(design) if design else None
        progress = Progress(quiet)
        try:
            progress("reading logs", 0, 0)
            runs = list(tracker.runs(Query())) if patterns else []
            arms = {name: _runs_of(name, globs, matched[name], runs) for name, globs in patterns.items()}
            declared = _declared(declared, arms, vary or (), replicate or (), metric, kl_tol)
            scored = _scored(declared)
            wanted = engine.Options(
                design=declared if scored else _without_metric(declared),
                select=opt.split_commas(select) or (() if scored else _scoreless_rules()),
                ignore=opt.split_commas(ignore),
            )
            audit = engine.audit(tracker, wanted, chosen=str(tracker.address), progress=progress)
        finally:
            progress.clear()
    if not scored:
        audit.notes.append("scores and collapses are not judged: name the metric with --metric")
    status = engine.exit_code(audit, strict=strict, exit_zero=exit_zero)
    report(audit, reporting, status)
    return status


def _patterns(specs: Sequence[str]) -> dict[str, list[str]]:
    """Arm to its patterns of paths.

    Raises:
        UsageError: one is not of the form NAME=GLOB.
    """
    patterns: dict[str, list[str]] = {}
    for spec in specs:
        name, equals, pattern = spec.partition("=")
        if not (equals and name.strip() and pattern.strip()):
            raise UsageError(f"--arm takes NAME=GLOB, a pattern of paths, and got {spec!r}")
        patterns.setdefault(name.strip(), []).append(os.path.expanduser(pattern.strip()))
    return patterns


def _spec(patterns: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{name}={glob_}" for name, globs in patterns.items() for glob_ in globs)


def _matches(pattern: str) -> list[str]:
    return [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern, recursive=True))


def _path_of(run: SourceRun) -> str:
    path = run.ref.run_id
    return path if os.path.lexists(path) else path.rpartition("#")[0] or path


def _runs_of(arm: str, patterns: Sequence[str], matched: Iterable[str], runs: Sequence[SourceRun]) -> list[str]:
    """Names of the runs whose log matches: a path that a pattern matches or what is below it, or a log's own name.

    Raises:
        UsageError: there is none.
    """
    places = {os.path.realpath(path) for path in matched}

    def held(run: SourceRun) -> bool:
        path = _path_of(run)
        real = os.path.realpath(path)
        if any(real == place or real.startswith(place.rstrip(os.sep) + os.sep) for place in places):
            return True
        return not places and any(
            fnmatch.fnmatch(text, pattern) for pattern in patterns for text in (path, os.path.basename(path))
        )

    names = [run.name for run in runs if held(run)]
    if not names:
        raise UsageError(f"--arm {arm}: no log matches {' or '.join(map(repr, patterns))}")
    return names


def _declared(
    design: Design | None,
    arms: Mapping[str, Sequence[str]],
    vary: Sequence[str],
    replicate: Sequence[str],
    metric: str,
    kl_tol: float | None,
) -> Design | None:
    """The design that the options declare; arms named on the command line are meant to be paired."""
    from pth_tracker.design.load import with_command_line

    specs = [f"{arm}={glob.escape(name)}" for arm, names in arms.items() for name in names]
    declared = with_command_line(design, arms=specs, vary=vary, replicate=replicate, metric=metric, kl_tolerance=kl_tol)
    return declared.model_copy(update={"pairing": "required"}) if declared and arms and not design else declared


def _scored(design: Design | None) -> bool:
    return design is not None and bool(design.metric or design.claims)


def _without_metric(design: Design | None) -> Design:
    """The design with a metric that no run has, so that none is inferred and no score is read."""
    from pth_tracker.design.schema import Design, Metric

    return (design or Design()).model_copy(update={"metric": Metric(key="")})


def _scoreless_rules() -> tuple[str, ...]:
    """The rules that judge runs and configurations without scores and their statistics, which take SciPy."""
    from pth_tracker.checks import all_rules

    return tuple(
        rule.slug
        for rule in all_rules()
        if rule.check != STABLE_RANGE and any(not any("score" in group for group in one.groups) for one in rule.needs)
    )
