"""Clean projects over the frameworks set no rule off, and planted faults are found in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precision_projects import Planted, Project, clean_projects, judge_clean, judge_planted, page, planted, table
from synthetic import audit_of

PROJECTS = clean_projects()
FAULTS = [fault for project in PROJECTS for fault in planted(project)]
OF_A_LAUNCH: Mapping[str, Mapping[str, str]] = {
    "verl": {"trainer.experiment_name": "{}", "trainer.default_local_dir": "ckpt/{}", "trainer.n_gpus_per_node": "#"},
    "areal": {
        **dict.fromkeys(("trial_name", "actor.trial_name", "rollout.trial_name", "saver.trial_name"), "{}"),
        **dict.fromkeys(("cluster.fileroot", "stats_logger.fileroot", "rollout.fileroot"), "/data/{}"),
        "version_info.commit_id": "{}",
        "sglang.random_seed": "#",
        "actor.mb_spec.max_tokens_per_mb": "#",
    },
    "open_instruct": {
        **dict.fromkeys(("exp_name", "hf_repo_id", "hf_repo_revision", "dataset_config_hash"), "{}"),
        "run_name": "{}__1__1760000000",
        "output_dir": "out/{}",
        "hf_repo_url": "https://{}",
        "checkpoint_state_dir": "state/{}",
        "vllm_num_engines": "#",
    },
    "roll": {
        **dict.fromkeys(("exp_name", "tracker_kwargs.name", "checkpoint_config.output_dir", "system_envs.X"), "{}"),
        **dict.fromkeys(("output_dir", "logging_dir", "actor_train.training_args.output_dir"), "out/{}"),
    },
    "easyr1": {"trainer.experiment_name": "{}", "trainer.save_checkpoint_path": "ckpt/{}", "trainer.nnodes": "#"},
    "search_r1": {"trainer.experiment_name": "{}", "trainer.default_local_dir": "ckpt/{}"},
    "rllm": {
        **dict.fromkeys(("rllm.trainer.experiment_name", "trainer.experiment_name", "rllm.gateway.db_path"), "{}"),
        "rllm.episode_logging.episode_log_dir": "logs/{}",
    },
    "tinker_cookbook": {"log_path": "runs/{}", "wandb_name": "{}", "base_url": "https://{}"},
    "torchforge": {"metric_logging.wandb.group": "{}", "trainer.checkpoint.folder": "ckpt/{}"},
    "prime_rl": {"output_dir": "out/{}", "wandb.id": "{}"},
}
"""Settings that are another at every launch: ``{}`` is its name, ``#`` a number of its own."""
PAGE = Path(__file__).resolve().parent.parent / "docs" / "precision.md"


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len(PROJECTS) >= 30 and len({project.name for project in PROJECTS}) == len(PROJECTS)
    assert len({project.trainer.framework for project in PROJECTS}) >= 18
    assert len({fault.rule for fault in FAULTS}) >= 10


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_a_clean_project_sets_no_rule_off(project: Project) -> None:
    assert judge_clean(project).false == ()


@pytest.mark.parametrize("framework", OF_A_LAUNCH)
def test_names_and_folders_of_every_launch_set_no_arms_apart(framework: str) -> None:
    project = next(one for one in PROJECTS if one.trainer.framework == framework and one.habit.startswith("arms"))

    def settings(place: int, name: str) -> dict[str, Any]:
        given = OF_A_LAUNCH[framework].items()
        return {key: 8 + place if value == "#" else value.format(name) for key, value in given}

    launches = tuple(
        replace(own, settings={**own.settings, **settings(place, own.name)})
        for place, own in enumerate(project.launches)
    )
    result = judge_clean(replace(project, launches=launches))
    assert result.false == ()
    assert len(audit_of(replace(project, launches=launches).runs).design.arms) == 2


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
