"""Logical runs from source runs, decided from the listing alone.

Segments of a resumed run are joined, and the runs that the processes of one training log beside each other; what
trains nothing is told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from pth_tracker.design.comparison import differing_keys
from pth_tracker.design.jobs import tell_apart
from pth_tracker.runs import Run, RunState, SourceRun
from pth_tracker.values import MISSING, Maybe, Value
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.detect import detect_framework, infer_version, matches_any
from pth_tracker.vocabulary.load import Vocabulary
from pth_tracker.vocabulary.schema import Part

MAX_CHANGES: Final = 2
"""Fields that may differ between runs of one name that are still one resumed run; with more it is another run."""
SAME_LAUNCH: Final = timedelta(minutes=15)
"""Processes of one training that only their folder tells begin no further apart."""
UNFINISHED: Final = (RunState.CRASHED, RunState.FAILED, RunState.KILLED, RunState.UNKNOWN)


Segments = Sequence[Sequence[SourceRun]]
"""The parts of each launch of one training, in order of time."""


def recognise(vocabulary: Vocabulary, parts: Sequence[SourceRun], label: str = "") -> Run:
    """The logical run of parts that ran one after the other, with its framework and release."""
    return recognise_segments(vocabulary, [[part] for part in parts], label)


def recognise_segments(vocabulary: Vocabulary, segments: Segments, label: str = "", common_name: str = "") -> Run:
    """The logical run of these segments with its framework and release."""
    parts = tuple(part for segment in segments for part in segment)
    sizes = tuple(len(segment) for segment in segments)
    bare = Run(parts, side_by_side=sizes if max(sizes) > 1 else (), common_name=common_name, label=label)
    framework = detect_framework(vocabulary, bare.config, bare.metric_keys)
    version = infer_version(vocabulary.frameworks[framework], bare.config)
    return replace(bare, framework=framework, version=version)


def stitch(vocabulary: Vocabulary, sources: Iterable[SourceRun]) -> list[Run]:
    """The logical runs, in the order of their first parts, each with a label that no other has.

    A later run continues an earlier one of the same name or resume id that did not finish, if it was created after
    the earlier one ended and orders its data by the same seed.
    """
    listed = list(sources)
    chains: dict[object, list[list[SourceRun]]] = defaultdict(list)
    ordered: list[list[SourceRun]] = []
    for source in sorted(
        listed, key=lambda one: (one.created is None, one.created, one.ref) if one.created else (True,)
    ):
        own = (source.ref.project, source.resume_id or source.name or source.ref)
        chain = next((c for c in reversed(chains[own]) if _continues(vocabulary, c[-1], source)), None)
        if chain is None:
            chain = []
            chains[own].append(chain)
            ordered.append(chain)
        chain.append(source)
    place = {source.ref: index for index, source in enumerate(listed)}
    runs = _join(vocabulary, [recognise(vocabulary, chain) for chain in ordered])
    runs.sort(key=lambda run: min(place[ref] for ref in run.refs))
    return label(tell_apart(vocabulary, runs))


def _continues(vocabulary: Vocabulary, earlier: SourceRun, later: SourceRun) -> bool:
    if not (earlier.created and later.created and earlier.ended) or earlier.state not in UNFINISHED:
        return False
    if later.created < earlier.ended:
        return False
    before, after = (Reading(vocabulary, recognise(vocabulary, [part])) for part in (earlier, later))
    if before.run.framework != after.run.framework or before.seed.order != after.seed.order:
        return False
    if earlier.resume_id and earlier.resume_id == later.resume_id:
        return True
    changed = [
        key
        for key in differing_keys([before.run.config, after.run.config])
        if not (after.is_bookkeeping(key) or after.is_soft(key) or after.is_derived(key))
    ]
    return len(changed) <= MAX_CHANGES


@dataclass(frozen=True)
class _Side:
    """One of the runs that the processes of a training log beside each other."""

    part: Part
    stem: str
    """What the names of the others share with its own; else the folder that they share."""
    named: bool
    run: Run


def _join(vocabulary: Vocabulary, runs: Sequence[Run]) -> list[Run]:
    """The runs, those of one training that ran beside each other as one; a process without the others stays alone.

    They share their project and their names up to the process, or else the folder of the training, and ran at the same
    time; of several, the ones that began closest together.
    """
    alone: list[Run] = []
    families: dict[tuple[str, str, bool, str], list[_Side]] = defaultdict(list)
    for run in runs:
        side = _side(vocabulary, run)
        if side is None:
            alone.append(run)
        else:
            families[run.framework, run.last.ref.project, side.named, side.stem].append(side)
    for (framework, *_), sides in families.items():
        alone += _pair_up(vocabulary, vocabulary.frameworks[framework].parts, sides)
    return alone


def _side(vocabulary: Vocabulary, run: Run) -> _Side | None:
    """Which process of its framework logged the run; None: neither its name nor its configuration says one."""
    name = run.last.name
    for part in vocabulary.frameworks[run.framework].parts:
        told = any(matches_any(key, part.config) for key in run.config)
        if (told or not run.config) and name.endswith(part.suffix) and name != part.suffix:
            return _Side(part, name.removesuffix(part.suffix), True, run)
        folder = run.get(part.folder) if part.folder and told else MISSING
        if isinstance(folder, str) and folder.endswith(part.below):
            return _Side(part, folder.removesuffix(part.below), False, run)
    return None


def _pair_up(vocabulary: Vocabulary, parts: Sequence[Part], sides: Sequence[_Side]) -> list[Run]:
    """The trainings of one name or folder: for each run of the last process, those of the others that belong to it."""
    waiting = {part.name: [side.run for side in sides if side.part == part] for part in parts}
    named, stem = sides[0].named, sides[0].stem
    most = timedelta.max if named else SAME_LAUNCH
    joined: list[Run] = []
    for main in waiting.pop(parts[-1].name):
        beside = []
        for others in waiting.values():
            near = [run for run in others if _overlap(run, main) and _apart(run.parts[0], main.parts[0]) <= most]
            closest = min(near, key=lambda run: _apart(run.parts[0], main.parts[0]), default=None)
            if closest is not None:
                others.remove(closest)
                beside.append(closest)
        common = stem if named else ""
        joined.append(recognise_segments(vocabulary, _interleave(beside, main), common_name=common) if beside else main)
    return joined + [run for others in waiting.values() for run in others]


def _overlap(a: Run, b: Run) -> bool:
    """Whether the two ran at one time, as far as the listing tells."""
    begun = [run.parts[0].created for run in (a, b)]
    ended = [run.last.ended for run in (a, b)]
    return not any(start is not None and end is not None and end < start for start, end in zip(begun, reversed(ended)))


def _apart(a: SourceRun, b: SourceRun) -> timedelta:
    return abs(a.created - b.created) if a.created and b.created else timedelta.max


def _interleave(beside: Sequence[Run], main: Run) -> list[list[SourceRun]]:
    """The segments of a training: with each part of the main process, the others' that began closest to it."""
    segments: list[list[SourceRun]] = [[] for _ in main.parts]
    for part in (part for run in beside for part in run.parts):
        segments[min(range(len(main.parts)), key=lambda place: _apart(part, main.parts[place]))].append(part)
    return [[*own, last] for own, last in zip(segments, main.parts)]


def label(runs: Sequence[Run]) -> list[Run]:
    """The runs with labels that no two share: the name, and behind it as much of the id as it takes."""
    names = [run.name or run.key for run in runs]
    labels: list[str] = []
    for run, name in zip(runs, names):
        twins = [other.key for other, other_name in zip(runs, names) if other_name == name]
        if len(twins) == 1:
            labels.append(name)
            continue
        own = run.key
        if len({twin.rpartition("/")[2] for twin in twins}) == len(twins):
            # The id of a run in a file is its path, of which the folders say nothing here.
            twins, own = [twin.rpartition("/")[2] for twin in twins], own.rpartition("/")[2]
        length = next((size for size in range(4, len(own)) if len({twin[:size] for twin in twins}) == len(twins)), None)
        labels.append(f"{name} ({own[:length]})")
    return [replace(run, label=text) for run, text in zip(runs, labels)]


def boundary_changes(run: Run) -> dict[str, tuple[Maybe, ...]]:
    """Configuration keys whose values differ between the segments of a resumed run, with the value of each.

    A key that a segment lacks is `MISSING` there; parts without any configuration, or that logged nothing, have no
    say.
    """
    configs: list[dict[str, Value]] = []
    for segment in run.segments if len(run.parts) > 1 else ():
        telling = [part for part in segment if part.config and part.metric_keys != frozenset()]
        if telling:
            configs.append({key: value for part in telling for key, value in part.canonical.items()})
    return {key: tuple(config.get(key, MISSING) for config in configs) for key in differing_keys(configs)}
