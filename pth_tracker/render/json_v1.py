"""An audit as JSON, schema ``pth-tracker/audit/1``: strict, complete, and stable for the programs that read it.

The schema is ``schema/audit_v1.json``. Runs are named by their labels, which are unique within an audit; values whose
keys are secrets are redacted; numbers that are not finite are written as ``"NaN"``, ``"Infinity"``, ``"-Infinity"``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from pth_tracker.errors import ExitCode
from pth_tracker.model import Audit, AuditedRun, Coverage, DesignInForce, Finding, NotJudged, WriteBack
from pth_tracker.past import PastFinding, SinceLast
from pth_tracker.render.evidence import plain_json, redacted
from pth_tracker.tracker import without_credentials

SCHEMA: Final = "pth-tracker/audit/1"


def to_json(audit: Audit, status: ExitCode | None = None) -> str:
    """The audit as JSON text in ASCII, ending in a newline; ``status`` is the command's exit status, where known."""
    return json.dumps(to_dict(audit, status), indent=2, allow_nan=False) + "\n"


def to_dict(audit: Audit, status: ExitCode | None = None) -> dict[str, Any]:
    """The audit as plain JSON data."""
    data: dict[str, Any] = plain_json(
        {
            "schema": SCHEMA,
            "version": audit.version,
            "project": audit.project,
            "tracker": {
                "adapter": audit.address.adapter if audit.address else "",
                "locations": [without_credentials(place) for place in audit.address.locations] if audit.address else [],
                "chosen": audit.chosen,
            },
            "audited_at": audit.audited_at.isoformat() if audit.audited_at else None,
            "exit": None if status is None else int(status),
            "counts": audit.counts,
            "findings": [_finding(audit, finding) for finding in audit.findings],
            "coverage": [_coverage(audit, entry) for entry in audit.coverage],
            "runs": [_run(run) for run in audit.runs.values()],
            "design": _design(audit, audit.design),
            "errors": [
                {"run": error.name, "project": error.ref.project, "id": error.ref.run_id, "message": error.message}
                for error in audit.errors
            ],
            "notes": list(audit.notes),
            "not_judged": [_not_judged(audit, entry) for entry in audit.not_judged],
            "write_back": None if audit.write_back is None else _write_back(audit.write_back),
            "since_last": None if audit.since_last is None else _since_last(audit, audit.since_last),
        }
    )
    return data


def _labels(audit: Audit, keys: Iterable[str]) -> list[str]:
    return [audit.label(key) for key in keys]


def _finding(audit: Audit, finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "level": finding.level,
        "title": finding.title,
        "detail": finding.detail,
        "evidence": redacted(finding.evidence),
        "tag": finding.tag,
        "rule": finding.rule,
        "basis": finding.basis,
        "runs": _labels(audit, finding.runs),
        "blames": _labels(audit, finding.blames),
        "arms": list(finding.arms),
        "because_of": finding.because_of,
        "ignored": finding.ignored,
        "remedy": finding.remedy,
    }


def _not_judged(audit: Audit, entry: NotJudged) -> dict[str, Any]:
    return {
        "rule": entry.rule,
        "check": entry.check,
        "subject": entry.subject,
        "missing": list(entry.missing),
        "remedy": entry.remedy,
        "runs": _labels(audit, entry.runs),
    }


def _coverage(audit: Audit, entry: Coverage) -> dict[str, Any]:
    return {
        "rule": entry.rule,
        "check": entry.check,
        "subject": entry.subject,
        "outcome": entry.outcome,
        "runs": _labels(audit, entry.runs),
        "branches": list(entry.branches),
        "unmet": list(entry.unmet),
    }


def _run(run: AuditedRun) -> dict[str, Any]:
    return {
        "label": run.label,
        "id": run.key,
        "name": run.name,
        "parts": [{"project": part.project, "id": part.run_id} for part in run.parts],
        "state": str(run.state),
        "framework": run.framework,
        "framework_version": run.version,
        "arm": run.arm,
        "cell": run.cell,
        "seed": run.seed,
        "last_update": run.last_update,
        "score": run.score,
        "counted": run.counted,
        "why_not": run.why_not,
        "verdict": run.verdict,
        "rules": list(run.rules),
        "url": run.url,
        "notes": list(run.notes),
    }


def _design(audit: Audit, design: DesignInForce) -> dict[str, Any]:
    return {
        "arms": {arm: _labels(audit, keys) for arm, keys in design.arms.items()},
        "baseline": design.baseline,
        "vary": list(design.vary),
        "replicate": list(design.replicate),
        "metric": design.metric,
        "higher_is_better": design.higher_is_better,
        "at": design.at,
        "task": list(design.task),
        "stress": design.stress,
        "tie_margin": design.tie_margin,
        "pairing": design.pairing,
        "ignore": [redacted(entry) for entry in design.ignore],
        "inferred": sorted(design.inferred),
        "source": design.source,
        "notes": list(design.notes),
    }


def _write_back(write_back: WriteBack) -> dict[str, Any]:
    return {
        "applied": write_back.applied,
        "refused": write_back.refused,
        "planned": [
            {
                "run": edit.run,
                "run_id": edit.run_id,
                "set": dict(edit.set),
                "unset": list(edit.unset),
                "add_tags": list(edit.add_tags),
                "remove_tags": list(edit.remove_tags),
            }
            for edit in write_back.planned
        ],
        "errors": list(write_back.errors),
        "skipped": list(write_back.skipped),
        "published": write_back.published,
    }


def _since_last(audit: Audit, news: SinceLast) -> dict[str, Any]:
    return {
        "audited_at": news.audited_at.isoformat() if news.audited_at else None,
        "new": [_brief(one, _labels(audit, one.blames or one.runs)) for one in news.new],
        "still_open": [_brief(one, _labels(audit, one.blames or one.runs)) for one in news.still_open],
        "resolved": [_brief(one, one.labels) for one in news.resolved],
        "unseen": [_brief(one, one.labels) for one in news.unseen],
        "left": [_brief(one, one.labels) for one in news.left],
    }


def _brief(one: Finding | PastFinding, labels: Iterable[str]) -> dict[str, Any]:
    return {
        "rule": one.rule,
        "check": one.check,
        "level": one.level,
        "tag": one.tag,
        "title": one.title,
        "runs": list(labels),
        "arms": list(one.arms),
    }
