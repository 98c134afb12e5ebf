"""Clean projects over the frameworks set no rule off, and planted faults are found in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_projects import Planted, Project, clean_projects, judge_clean, judge_planted, page, planted, table

PROJECTS = clean_projects()
FAULTS = [fault for project in PROJECTS for fault in planted(project)]
PAGE = Path(__file__).resolve().parent.parent / "docs" / "precision.md"


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len(PROJECTS) >= 30 and len({project.name for project in PROJECTS}) == len(PROJECTS)
    assert len({project.trainer.framework for project in PROJECTS}) >= 18
    assert len({fault.rule for fault in FAULTS}) >= 10


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_a_clean_project_sets_no_rule_off(project: Project) -> None:
    assert judge_clean(project).false == ()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_and_nobody_else_is_blamed(fault: Planted) -> None:
    result = judge_planted(fault)
    assert result.found and result.false == ()


@pytest.mark.slow
def test_the_page_of_the_documentation_is_current() -> None:
    clean = [judge_clean(project) for project in PROJECTS]
    assert PAGE.read_text(encoding="utf-8") == page(clean, [judge_planted(fault) for fault in FAULTS])


def test_the_table_counts_what_is_missed_and_what_is_false() -> None:
    from precision_projects import Result

    shown = table(
        [Result("a: b", "", True, ("warn x", "fail y"))],
        [Result("c", "x", True, ()), Result("d", "x", False, ("warn y",))],
    )
    assert "| x | 2 | 1 | 1 | 1 | 0 |" in shown and "| y | 0 | 0 | 0 | 1 | 1 |" in shown
    assert "| **all** | 2 | 1 | 1 | 2 | 1 |" in shown
