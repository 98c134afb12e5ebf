"""``pth-tracker init``: a design file from what is inferred, for its author to edit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pth_tracker.cli import options as opt
from pth_tracker.cli.audit import Paths, open_tracker
from pth_tracker.cli.output import Progress, check_writable, emit, runnable, write_atomically
from pth_tracker.errors import ExitCode, NothingSelected, UsageError

if TYPE_CHECKING:
    from pth_tracker.design.comparison import Comparison

DESIGN_FILE: Final = Path("design.yaml")
SUFFIXES: Final = (".yaml", ".yml")

DesignOutput = Annotated[
    Path,
    opt.option("-o", "--output", metavar="FILE", default=True, help="Where the design file goes."),
]
Force = Annotated[
    bool,
    opt.option("--force", help="Overwrite the file where there is one."),
]


def init(
    paths: Paths = None,
    project: opt.Project = "",
    tracker: opt.Trackers = None,
    where: opt.Where = "",
    since: opt.Since = "",
    vocabulary: opt.Vocabularies = None,
    output: DesignOutput = DESIGN_FILE,
    force: Force = False,
    quiet: opt.Quiet = False,
) -> int:
    """Write a design file for a project, or for files and folders.

    Infers arms, baseline, varied fields, seeds, metric, task and stress axis from the listing of the runs, and writes
    them as a commented design file (YAML) to edit; what is ambiguous or cannot be inferred stands in it as a comment.
    No history is read, and nothing is written into the tracker.
    """
    if output.suffix.lower() not in SUFFIXES:
        raise UsageError(f"a design file is YAML: {str(output)!r} has to end in .yaml")
    if output.exists() and not force:
        raise UsageError(f"{str(output)!r} exists already: name another file with -o, or overwrite it with --force")
    check_writable([output])
    moment = opt.parse_since(since)
    files = opt.vocabulary_files(vocabulary)
    from pth_tracker.bounds import bounded
    from pth_tracker.design.infer import infer
    from pth_tracker.design.stitch import stitch
    from pth_tracker.design.write import design_text
    from pth_tracker.tracker import Query
    from pth_tracker.vocabulary.load import load_vocabulary

    known = load_vocabulary(files)
    opened, chosen = open_tracker(project, paths or [], tracker or [])
    progress = Progress(quiet)
    with closing(opened):
        try:
            progress("listing runs", 0, 0)
            sources = [bounded(run) for run in opened.runs(Query(project, where, moment))]
        finally:
            progress.clear()
        place = f"{project} ({opened.address})" if project else str(opened.address)
    if not sources:
        raise NothingSelected(f"{place} has no run to infer a design from")
    comparison = infer(known, stitch(known, sources), None)
    repeat = _command(paths or [], project, tracker or [], where, files, output)
    count = f"{len(comparison.members)} run{'' if len(comparison.members) == 1 else 's'}"
    write_atomically(output, design_text(comparison, f"{count} of {place}", shlex.join(["pth-tracker", *repeat])))
    if not quiet:
        emit(_summary(comparison, chosen, output, shlex.join([*runnable("pth-tracker"), *repeat])))
    return ExitCode.OK


def _command(
    paths: Sequence[str], project: str, trackers: Sequence[str], where: str, files: Sequence[Path], output: Path
) -> list[str]:
    """The arguments of the command that audits what was listed with the design file, without any password."""
    from pth_tracker.tracker import without_credentials

    words = ["audit", *paths]
    words += ["--project", project] if project else []
    words += [word for tracker in trackers for word in ("--tracker", without_credentials(tracker))]
    words += ["--where", where] if where else []
    words += [word for path in files for word in ("--vocabulary", str(path))]
    return [*words, "--design", str(output)]


def _summary(comparison: Comparison, chosen: str, output: Path, repeat: str) -> str:
    from pth_tracker.render.text import compact_names, counted, safe_text

    arms = comparison.in_force.arms
    guessed = comparison.undecided or f"{counted(len(arms), 'arm')}: {compact_names(arms)}"
    return (
        f"Wrote {safe_text(output)}, guessed from {counted(len(comparison.members), 'run')} of {safe_text(chosen)}.\n"
        f"{safe_text(guessed[:1].upper() + guessed[1:])}.\n"
        f"Read it, mend what is wrong, then: {safe_text(repeat)}\n"
    )
