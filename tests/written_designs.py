"""Design files written from runs, and whether an audit with one says what an audit without it said."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pth_tracker.bounds import bounded
from pth_tracker.checks import all_rules
from pth_tracker.design.comparison import Comparison
from pth_tracker.design.infer import infer
from pth_tracker.design.load import parse_design
from pth_tracker.design.schema import Design
from pth_tracker.design.stitch import stitch
from pth_tracker.design.write import design_text
from pth_tracker.model import Audit, Finding
from pth_tracker.vocabulary.load import load_vocabulary
from synthetic import FakeRun

EXPLAINS = {rule.slug: {slug.partition(":")[0] for slug in rule.explains} for rule in all_rules()}


def inferred(runs: Iterable[FakeRun], design: Design | None = None) -> Comparison:
    vocabulary = load_vocabulary()
    return infer(vocabulary, stitch(vocabulary, [bounded(run.source) for run in runs]), design)


def written(runs: Iterable[FakeRun]) -> tuple[str, Design]:
    """The design file of these runs, as text and as it reads back."""
    text = design_text(inferred(runs), "some runs of a project", "pth-tracker audit --design design.yaml")
    return text, parse_design(text, Path("design.yaml"))


def kept(finding: Finding, declared: Audit) -> bool:
    """Whether the audit with the file says the same on the same runs, at no lower level, or a rule that explains it."""
    concerned = set(finding.blames or finding.runs)
    if finding.rule == "undeclared-difference" and set(finding.evidence["fields"]) <= set(declared.design.vary):
        return True  # it is declared now
    for other in declared.findings:
        same = other.rule == finding.rule and concerned <= set(other.blames or other.runs)
        explains = finding.rule in EXPLAINS.get(other.rule, ()) and bool(concerned & set(other.blames))
        if (same or explains) and other.level.rank <= finding.level.rank:
            return True
    return False


def lost(bare: Audit, declared: Audit) -> list[tuple[str, str, str]]:
    """(level, rule, title) of what the audit with the file no longer says."""
    return [(str(one.level), one.rule, one.title) for one in bare.findings if one.counts and not kept(one, declared)]
