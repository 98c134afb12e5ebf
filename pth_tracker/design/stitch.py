"""Logical runs from source runs: resumed segments joined, decided from the listing alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from pth_tracker.design.comparison import differing_keys
from pth_tracker.runs import Run, RunState, SourceRun
from pth_tracker.values import MISSING, Maybe, canonical_config
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.detect import detect_framework, infer_version
from pth_tracker.vocabulary.load import Vocabulary

MAX_CHANGES: Final = 2
"""Fields that may differ between runs of one name that are still one resumed run; with more it is another run."""
UNFINISHED: Final = (RunState.CRASHED, RunState.FAILED, RunState.KILLED, RunState.UNKNOWN)


def recognise(vocabulary: Vocabulary, parts: Sequence[SourceRun], label: str = "") -> Run:
    """The logical run of these parts with its framework and release."""
    bare = Run(tuple(parts))
    framework = detect_framework(vocabulary, bare.config, bare.metric_keys)
    version = infer_version(vocabulary.frameworks[framework], bare.config)
    return Run(tuple(parts), framework, version, label)


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
    ordered.sort(key=lambda chain: place[chain[0].ref])
    return label([recognise(vocabulary, chain) for chain in ordered])


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


def label(runs: Sequence[Run]) -> list[Run]:
    """The runs with labels that no two share: the name, and behind it as much of the id as it takes."""
    names = [run.name or run.key for run in runs]
    labels: list[str] = []
    for run, name in zip(runs, names):
        twins = [other.key for other, other_name in zip(runs, names) if other_name == name]
        if len(twins) == 1:
            labels.append(name)
            continue
        length = next(
            (size for size in range(4, len(run.key)) if len({twin[:size] for twin in twins}) == len(twins)), None
        )
        labels.append(f"{name} ({run.key[:length]})")
    return [Run(run.parts, run.framework, run.version, text) for run, text in zip(runs, labels)]


def boundary_changes(run: Run) -> dict[str, tuple[Maybe, ...]]:
    """Configuration keys whose values differ between the parts of a stitched run, with the value of each part.

    A key that a part lacks is `MISSING` there; parts without any configuration, or that logged nothing, have no say.
    """
    configs = [canonical_config(part.config) for part in run.parts if part.config and part.metric_keys != frozenset()]
    return {key: tuple(config.get(key, MISSING) for config in configs) for key in differing_keys(configs)}
