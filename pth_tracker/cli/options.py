"""The options that commands share, each defined once, with its environment variable ``PTH_TRACKER_<OPTION>``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from pth_tracker.moments import parse_since as parse_since
from pth_tracker.render import FORMATS

ENV_PREFIX: Final = "PTH_TRACKER_"
SUFFIXES: Final = ", ".join(one.suffix for one in FORMATS)


class Color(StrEnum):
    """When to colour: ``auto`` on a terminal, unless ``NO_COLOR`` is set."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class StdoutFormat(StrEnum):
    """The formats that go to standard output."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    MARKDOWN = "markdown"
    JUNIT = "junit"


def option(*flags: str, help: str, metavar: str | None = None, default: bool = False) -> Any:
    """A Typer option with the environment variable of its last flag; ``default``: whether help shows the default."""
    variable = ENV_PREFIX + flags[-1].removeprefix("--").replace("-", "_").upper()
    return typer.Option(*flags, help=help, metavar=metavar, envvar=variable, show_envvar=False, show_default=default)


Project = Annotated[
    str,
    option(
        "--project",
        metavar="NAME",
        help="The W&B project (or entity/project) or MLflow experiment.",
    ),
]
Trackers = Annotated[
    list[str] | None,
    option(
        "--tracker",
        metavar="WHERE",
        help="Where the runs are: sqlite:///mlflow.db, http://host:5000, wandb (the server; ./wandb is the folder), "
        "or a path. Repeatable. "
        "Default: a local store that holds the project, then MLFLOW_TRACKING_URI, then W&B credentials.",
    ),
]
DesignFile = Annotated[
    Path | None,
    option(
        "--design",
        metavar="FILE",
        help="A design file (YAML): arms, varied fields, seeds, metric, claims.",
    ),
]
Vocabularies = Annotated[
    list[Path] | None,
    option(
        "--vocabulary",
        metavar="FILE",
        help="A vocabulary file (YAML) of a framework of your own, in the schema of the built-in ones. Repeatable.",
    ),
]
Arms = Annotated[
    list[str] | None,
    option(
        "--arm",
        metavar="NAME=GLOB",
        help="An arm and the names of its runs. Repeatable.",
    ),
]
Vary = Annotated[
    list[str] | None,
    option(
        "--vary",
        metavar="KEY",
        help="A configuration key that is meant to differ between arms. Repeatable.",
    ),
]
Replicate = Annotated[
    list[str] | None,
    option(
        "--replicate",
        metavar="KEY",
        help="A configuration key whose values pair the runs, such as data.seed. Repeatable.",
    ),
]
Metric = Annotated[
    str,
    option(
        "--metric",
        metavar="KEY",
        help="The score that is compared.",
    ),
]
Columns = Annotated[
    list[str] | None,
    option(
        "--columns",
        metavar="ROLE=NAME",
        help="Which column of a table is which, where its name does not tell: step=STEP,seed=SEED,arm=METHOD,"
        "task=TASK,value=SCORE. Repeatable.",
    ),
]
KlTolerance = Annotated[
    float | None,
    option(
        "--kl-tolerance",
        metavar="NATS",
        help="KL of the sampler, in nats per token, above which it counts as lagging. Default: 0.05.",
    ),
]
Where = Annotated[
    str,
    option(
        "--where",
        metavar="FILTER",
        help="A filter on runs in the tracker's own syntax, handed to it as it is.",
    ),
]
Since = Annotated[
    str,
    option(
        "--since",
        metavar="WHEN",
        help="Only runs created since: 7d, 12h, 2026-03-01, 2026-03-01T08:00+01:00 (UTC where no zone is given).",
    ),
]
Select = Annotated[
    list[str] | None,
    option(
        "--select",
        metavar="RULE",
        help="Judge only this rule. Repeatable, or separated by commas.",
    ),
]
Ignore = Annotated[
    list[str] | None,
    option(
        "--ignore",
        metavar="RULE",
        help="Do not judge this rule. Repeatable, or separated by commas.",
    ),
]
DryRun = Annotated[
    bool,
    option(
        "--dry-run",
        help="Show what would be written into the tracker, and write nothing.",
    ),
]
NoWrite = Annotated[
    bool,
    option(
        "--no-write",
        help="Leave the tracker as it is.",
    ),
]
WriteRunning = Annotated[
    bool,
    option(
        "--write-running",
        help="Also write to W&B runs that are still running, though their own process may undo it.",
    ),
]
ExecutorName = Annotated[
    str,
    option(
        "--executor",
        metavar="WHERE",
        help="Who examines the runs: threads:N, processes:N, or dask://HOST:PORT (a scheduler). "
        "Default: this process, and its cores where that pays.",
    ),
]
Strict = Annotated[
    bool,
    option(
        "--strict",
        help="Exit 1 also where a rule could not be judged.",
    ),
]
ExitZero = Annotated[
    bool,
    option(
        "--exit-zero",
        help="Exit 0 where a check failed; errors keep their exit status.",
    ),
]
Outputs = Annotated[
    list[Path] | None,
    option(
        "-o",
        "--output",
        metavar="FILE",
        help=f"Also write the report to FILE, in the format of its suffix ({SUFFIXES}). Repeatable.",
    ),
]
ReportFormat = Annotated[
    StdoutFormat,
    option(
        "--format",
        help="The format on standard output.",
        default=True,
    ),
]
Quiet = Annotated[
    bool,
    option(
        "-q",
        "--quiet",
        help="Print only what failed or warned, and the last line.",
    ),
]
Verbose = Annotated[
    bool,
    option(
        "-v",
        "--verbose",
        help="Print every run and rule by name, and the evidence.",
    ),
]
CacheFolder = Annotated[
    Path | None,
    option(
        "--cache",
        metavar="DIR",
        help="The folder of what is kept between nights. Default: pth-tracker's own below the user's cache folder.",
    ),
]
ColorChoice = Annotated[
    Color,
    option(
        "--color",
        help="When to colour the report; auto honours NO_COLOR.",
        default=True,
    ),
]


def split_commas(values: list[str] | None) -> tuple[str, ...]:
    """Every word of a repeatable option whose values may be separated by commas."""
    return tuple(word for value in values or () for word in (part.strip() for part in value.split(",")) if word)


def vocabulary_files(paths: list[Path] | None) -> tuple[Path, ...]:
    """The files of ``--vocabulary``, found sound before any tracker is asked.

    Raises:
        UsageError: one cannot be read or does not fit the schema; names file and key.
    """
    files = tuple(path.expanduser() for path in paths or ())
    if files:
        from pth_tracker.vocabulary.load import load_vocabulary

        load_vocabulary(files)
    return files
