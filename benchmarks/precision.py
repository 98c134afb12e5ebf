"""Precision: clean synthetic projects over the frameworks and planted faults, as a confusion table.

Prints the table and writes docs/precision.md; fails where a clean project sets a rule off, or a fault is missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from precision_projects import clean_projects, judge_clean, judge_planted, page, planted, table  # noqa: E402

PAGE = ROOT / "docs" / "precision.md"


def main() -> int:
    """Measures, prints, and yields the exit status."""
    projects = clean_projects()
    clean = [judge_clean(project) for project in projects]
    faults = [judge_planted(fault) for project in projects for fault in planted(project)]
    print(table(clean, faults))
    PAGE.write_text(page(clean, faults), encoding="utf-8")
    wrong = [f"{result.name}: {', '.join(result.false) or 'missed'}" for result in (*clean, *faults)
             if result.false or not result.found]  # fmt: skip
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
