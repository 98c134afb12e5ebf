"""The design files of whole projects, as people name and launch them, over many frameworks."""

from __future__ import annotations

import pytest

from precision_projects import clean_projects, planted
from synthetic import FakeRun, audit_of
from written_designs import lost, written

pytestmark = pytest.mark.slow
PROJECTS = {project.name: project for project in clean_projects()}


def lost_of(runs: list[FakeRun]) -> list[tuple[str, str, str]]:
    """What the audit with the written design no longer says."""
    return lost(audit_of(runs), audit_of(runs, written(runs)[1]))


@pytest.mark.parametrize("name", PROJECTS)
def test_a_clean_project_is_audited_alike_with_its_written_design(name: str) -> None:
    assert lost_of(PROJECTS[name].runs) == []


@pytest.mark.parametrize("framework", sorted({project.trainer.framework for project in PROJECTS.values()}))
def test_planted_faults_are_found_again_with_the_written_design(framework: str) -> None:
    project = next(one for one in PROJECTS.values() if one.trainer.framework == framework)
    for fault in planted(project):
        assert lost_of(fault.project.runs) == [], fault.name
