"""verl's console logs, of every release from 0.1 on, as runs.

One file is one run. A job that was resumed into the same file is one run as well, its segments merged by step (the
later wins); where a later start repeats the run from its first step, only the last attempt counts, and a note says so.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from typing import Final

import numpy as np

from pth_tracker.runs import History, RunError, RunState, SourceRun
from pth_tracker.values import canonical_value, listed, show_value, value_key
from pth_tracker_files.hydra import hydra_files
from pth_tracker_files.naming import as_text
from pth_tracker_files.sources import HEAD_BYTES, LoadedRun, open_regular, ref_for, revision_of
from pth_tracker_files.verl_config import MAX_BYTES, STARTS, flatten, read_config
from pth_tracker_files.verl_lines import LOOK_BACK, LineStarts
from pth_tracker_files.verl_numbers import text_of
from pth_tracker_files.verl_steps import Segment, StepLines
from pth_tracker_files.verl_version import prints_rounded

KIND: Final = "verl console logs"
SEPARATE: Final = True

BLOCK_BYTES: Final = 1 << 18
MAX_LINE: Final = 1 << 23
"""Longer lines (bytes) are passed over: no step line is."""
PROBE_BYTES: Final = 1 << 21
"""How far a file is looked into, at its beginning and at its end, before it is held to be none of verl's."""
TAIL_BYTES: Final = 1 << 20
MAX_CONFIGS: Final = 8
MAX_MARKERS: Final = 8
MIN_FORMS: Final = 8
"""So many values, all with three decimals, are no chance (one in ten is, at full precision)."""

_SIGNS: Final = re.compile(
    rb"\((?:main_task|TaskRunner(?:V1)?|FullyAsync\w+|OneStepTaskRunner) pid=|File \"[^\"\n]*/verl/trainer/"
)
_EASYR1: Final = re.compile(rb"\(Runner pid=\d*[^)\n]*\)[^\n]{0,9} (?:Config|Step \d+)\r?$", re.MULTILINE)
_MARKER: Final = b"[RolloutSkip"
_MARKER_TEXT: Final = "Successfully load pre-generated data"
_OVERRIDES: Final = re.compile(rb"Error executing job with overrides: (\[.{0,100000}\])")
_TRACED: Final = re.compile(rb"^\++ (?:.*/)?(?:python[\d.]*|torchrun) .*?verl\.[\w.]*trainer[\w.]* (.*)$", re.MULTILINE)
_SUMMARY: Final = re.compile(rb"wandb:\s+(\S+)\s+([-+]?[\d.]+(?:e[-+]?\d+)?)\s*$", re.MULTILINE)
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SFT_ROOTS: Final = frozenset({"train", "val"})


@dataclass
class _Log:
    """What one pass over a log collects."""

    steps: StepLines = field(default_factory=StepLines)
    config_starts: list[int] = field(default_factory=list)
    """Where configurations are printed (bytes)."""
    long_lines: int = 0
    size: int = 0


def claims(path: Path, head: bytes) -> bool:
    """Whether the file is a console log of verl: its configuration, a step line, or its tasks' prefix is in it."""
    if not head or b"\0" in head[:4096]:
        return False
    if _is_verl(head):
        return True
    try:
        with open(open_regular(path), "rb") as file:
            more = file.read(PROBE_BYTES)
            if _is_verl(more):
                return True
            size = file.seek(0, 2)
            file.seek(max(0, size - PROBE_BYTES))
            return size > PROBE_BYTES and _is_verl(file.read(PROBE_BYTES).partition(b"\n")[2])
    except OSError:
        return False


def _is_verl(data: bytes) -> bool:
    if _SIGNS.search(data) or _EASYR1.search(data) or next(_config_starts(data, 0), None) is not None:
        return True
    steps = StepLines()
    steps.scan(data, 0, at_end=False)
    return len(steps) > 0


def load(paths: Sequence[Path]) -> Iterator[LoadedRun | RunError]:
    """The run in each log."""
    for path in paths:
        try:
            yield _load_log(path)
        except (OSError, ValueError) as error:
            yield RunError(ref_for(path), as_text(path.stem), f"{path} cannot be read: {error}")


def _load_log(path: Path) -> LoadedRun:
    revision = revision_of(path)
    log = _read(path)
    segments, notes = _last_attempt(log)
    before = segments[-1].offset if segments else log.size
    config, config_notes = _configuration(path, [start for start in log.config_starts if start < before])
    begin, tail = _region(path, 0, HEAD_BYTES), _tail(path, log)
    if not len(log.steps) and not config and _EASYR1.search(begin + tail):
        raise ValueError(
            "EasyR1 prints its metrics rounded and nested; audit the experiment_log.jsonl it writes instead"
        )
    hydra = hydra_files(path)
    notes += config_notes
    if not config and hydra.config:
        config = hydra.config
        notes.append("the log prints no configuration: it is taken from .hydra/config.yaml beside it")
    history = log.steps.history(
        rounded=any(_is_rounded(segment, config) for segment in segments),
        since=segments[0].number if segments else 0,
    )
    history = _with_summary(history, tail)
    run = SourceRun(
        ref_for(path),
        as_text(path.stem),
        state=_state(tail),
        config=config,
        metric_keys=frozenset(history.values),
        last_step=int(history.step[-1]) if len(history) else None,
        revision="+".join((revision, *(revision_of(other) for other in hydra.paths))),
        arguments=hydra.overrides if hydra.overrides is not None else _arguments(begin, tail),
        notes=(*notes, *_other_notes(log, config, history), *hydra.notes),
        log_markers=_markers(path, config),
    )
    return LoadedRun(run, history)


def _read(path: Path) -> _Log:
    """One pass over the whole file, in blocks of whole lines."""
    log, size = _Log(), BLOCK_BYTES
    with open(open_regular(path), "rb", buffering=0) as file:
        while data := _at(file, log.size, size):
            end = data.rfind(b"\n") + 1
            if end:
                _scan(log, data[:end], at_end=False)
                size = BLOCK_BYTES
            elif len(data) < size:
                _scan(log, data, at_end=True)
                break
            elif size <= MAX_LINE:
                size = min(2 * size, MAX_LINE + 1)
            else:
                log.long_lines += 1
                log.size = _next_line(file, log.size + size)
                size = BLOCK_BYTES
    return log


def _at(file: FileIO, position: int, size: int) -> bytes:
    """The ``size`` bytes from ``position`` on; fewer at the end of the file."""
    file.seek(position)
    return file.read(size)


def _next_line(file: FileIO, position: int) -> int:
    """Where the first line after ``position`` begins, or the file ends."""
    while data := _at(file, position, BLOCK_BYTES):
        end = data.find(b"\n") + 1
        if end:
            return position + end
        position += len(data)
    return position


def _scan(log: _Log, block: bytes, at_end: bool) -> None:
    log.steps.scan(block, log.size, at_end)
    log.config_starts += [log.size + start for start in _config_starts(block, log.size)]
    log.size += len(block)


def _markers(path: Path, config: Mapping[str, object]) -> tuple[str, ...]:
    """The distinct lines that tell of replayed rollouts; looked for where the configuration allows such lines."""
    if config and not any("skip" in key and value for key, value in flatten(config)):
        return ()
    markers: dict[str, None] = {}
    with open(open_regular(path), "rb") as file:
        while block := file.read(BLOCK_BYTES):
            block += file.readline(MAX_LINE)
            position = block.find(_MARKER)
            while position >= 0 and len(markers) < MAX_MARKERS:
                line = block[position : position + 500].partition(b"\n")[0]
                text = _ANSI.sub("", line.decode("utf-8", "replace")).strip()
                if _MARKER_TEXT in text:
                    markers.setdefault(text)
                position = block.find(_MARKER, position + 1)
    return tuple(markers)


def _config_starts(block: bytes, offset: int) -> Iterator[int]:
    """Where in ``block`` a configuration is printed; the rarer beginnings only near the beginning of the file."""
    lines = LineStarts()
    found = []
    for start in STARTS if offset == 0 else STARTS[:1]:
        position = block.find(start)
        while position >= 0:
            if lines.tag(block, position) is not None:
                found.append(position)
            position = block.find(start, position + 1)
    yield from sorted(found)


def _region(path: Path, start: int, length: int) -> bytes:
    with open(open_regular(path), "rb") as file:
        file.seek(start)
        return file.read(length)


def _tail(path: Path, log: _Log) -> bytes:
    """What follows the last step line, at most the last `TAIL_BYTES` of it."""
    start = max(log.steps.last_end, log.size - TAIL_BYTES)
    return _region(path, start, log.size - start)


def _last_attempt(log: _Log) -> tuple[list[Segment], list[str]]:
    """The segments of the last attempt in the file, and notes on resumed and on earlier ones.

    A later start is told by another process of the same name, or by a configuration printed in between: where steps
    merely fall back (asynchronous trainers log several lines a step), nothing has been restarted.
    """
    attempt: list[Segment] = []
    notes: list[str] = []
    for segment in log.steps.segments:
        same = [other for other in attempt if other.task == segment.task]
        anew = bool(same) and (
            all(other.tag != segment.tag for other in same)
            or any(same[-1].offset < start < segment.offset for start in log.config_starts)
        )
        if anew and segment.first <= min(other.first for other in same):
            reached = max(other.last for other in attempt)
            notes.append(
                f"the file holds an earlier attempt that reached step {reached} before the run was started again at "
                f"step {segment.first}: only the last attempt is read"
            )
            attempt = []
        elif anew:
            reached = max(other.last for other in same)
            notes.append(f"resumed at step {segment.first} after step {reached}: of steps run twice the later counts")
        attempt.append(segment)
    return attempt, notes


def _configuration(path: Path, starts: Sequence[int]) -> tuple[Mapping[str, object], list[str]]:
    """The last configuration printed before the steps, and notes on others that differ."""
    notes: list[str] = []
    chosen: dict[str, object] = {}
    cut = False
    for start in reversed(starts[-MAX_CONFIGS:]):
        begin = max(0, start - LOOK_BACK)
        near = _region(path, begin, MAX_BYTES >> 3)
        config = read_config(near, start - begin)
        if config is None and len(near) == MAX_BYTES >> 3:
            config = read_config(_region(path, begin, MAX_BYTES), start - begin)
        if config is None:
            cut = cut or not chosen
        elif not chosen:
            chosen = config
        else:
            ours, theirs = (
                {key: value_key(canonical_value(value)) for key, value in flatten(c)} for c in (chosen, config)
            )
            keys = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
            if keys:
                shown = listed(keys, 5)
                notes.append(
                    f"the log prints several configurations, the last before the steps counts; differing: {shown}"
                )
    if cut:
        notes.append(
            "a printed configuration is cut short and was not read" + (": an earlier one counts" if chosen else "")
        )
    return chosen, notes


def _is_rounded(segment: Segment, config: Mapping[str, object]) -> bool:
    """Whether the values are printed with three decimals: by their form, and by the release where few were logged."""
    if segment.other or not segment.fixed:
        return False
    if segment.fixed >= MIN_FORMS:
        return True
    release = prints_rounded(config)
    return True if release is None else release


def _with_summary(history: History, tail: bytes) -> History:
    """The history in which a rounded zero of the last step gives way to the value in W&B's table at the end of the run.

    That table has five significant digits where old releases print three decimals; only a value that rounds to the
    printed one is taken.
    """
    begin = tail.find(b"Run summary:")
    if begin < 0 or not history.decimals:
        return history
    values = dict(history.values)
    for match in _SUMMARY.finditer(tail, begin):
        key = text_of(match[1])
        try:
            exact = float(match[2])
        except ValueError:
            continue
        if key in history.decimals and values[key][-1] == 0 and exact != 0 and abs(exact) <= 0.0005:
            values[key] = np.append(values[key][:-1], exact)
    return replace(history, values=values)


def _state(tail: bytes) -> RunState:
    """How the run ended, as far as the log tells."""
    end = tail[-(1 << 16) :]
    if b"Final validation metrics" in tail or b"Training Progress: 100%" in tail:
        return RunState.FINISHED
    if end.rstrip().endswith(b"^C") or b"KeyboardInterrupt" in end or b"CANCELLED AT" in end:
        return RunState.KILLED
    if b"Error executing job with overrides" in tail or b"Traceback (most recent call last)" in end:
        return RunState.CRASHED
    return RunState.UNKNOWN


def _arguments(begin: bytes, tail: bytes) -> tuple[str, ...] | None:
    """The overrides of the command line, as Hydra names them in an error or the shell in its trace (``set -x``)."""
    named = _OVERRIDES.findall(tail)
    if named:
        try:
            overrides = ast.literal_eval(named[-1].decode("utf-8", "replace"))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        return tuple(str(override) for override in overrides)
    traced = _TRACED.search(begin) if begin.startswith(b"+") or b"\n+" in begin else None
    if traced is None:
        return None
    try:
        words = shlex.split(traced[1].decode("utf-8", "replace"))
    except ValueError:
        return None
    return tuple(word for word in words if re.match(r"[+~]{0,2}[A-Za-z_][\w./@]*(?:=|$)", word))


def _other_notes(log: _Log, config: Mapping[str, object], history: History) -> Iterator[str]:
    if not len(history):
        logger = config.get("trainer")
        logger = logger.get("logger") if isinstance(logger, Mapping) else None
        named = isinstance(logger, list | str) and "console" not in logger
        yield (
            f"the log holds no step lines: trainer.logger is {show_value(canonical_value(logger))}, without 'console'"
            if named
            else "the log holds no step lines"
        )
    if "actor_rollout_ref" not in config and "train" in log.steps.roots and log.steps.roots <= _SFT_ROOTS:
        yield "this is a log of supervised fine-tuning (SFT), no reinforcement learning"
    if "do_search" in config or "retriever" in config:
        yield "this is a log of Search-R1, a fork of verl"
    if log.steps.foreign:
        yield f"{log.steps.foreign} lines look like step lines and hold no metric of verl's: left out"
    if log.steps.cut:
        yield f"the file ends within a line: its last value, of {log.steps.cut}, is left out"
    if log.long_lines:
        yield f"{log.long_lines} lines longer than {MAX_LINE >> 20} MB were passed over"
