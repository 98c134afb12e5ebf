"""The configurations that the installed TRL itself makes, as its callbacks log them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pth_tracker.design.stitch import recognise
from pth_tracker.runs import RunRef, SourceRun
from pth_tracker.values import MISSING
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.load import load_vocabulary

CONFIGS = {
    "trl_grpo": ("trl", "GRPOConfig", {"ratio_is_one": True, "pi_old": "learner", "staleness": 0}),
    "trl_rloo": ("trl", "RLOOConfig", {"ratio_is_one": True, "pi_old": "learner", "staleness": 0}),
    "trl_async_grpo": (
        "trl.experimental.async_grpo",
        "AsyncGRPOConfig",
        {"ratio_is_one": False, "pi_old": "sampler", "staleness": 4},
    ),
}
MEANT = {"learning_rate", "beta", "epsilon", "num_generations", "max_completion_length", "temperature", "max_grad_norm"}


def made(name: str, folder: Path) -> dict[str, Any]:
    """The arguments of that trainer at their defaults."""
    module, kind, _ = CONFIGS[name]
    pytest.importorskip("trl")
    config = getattr(import_module(module), kind)(output_dir=str(folder), report_to=[], bf16=False, use_cpu=True)
    found: dict[str, Any] = config.to_dict()
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of TRL's own imports
@pytest.mark.parametrize("name", CONFIGS)
def test_the_installed_trls_own_arguments_are_read(name: str, tmp_path: Path) -> None:
    arguments, own = made(name, tmp_path), load_vocabulary()
    found = Reading(own, recognise(own, [SourceRun(RunRef("p", "r"), "r", config=arguments)]))
    assert found.run.framework == name
    roles = CONFIGS[name][2]
    assert {role: found.role(role) for role in roles} == roles
    assert found.role("group_size") == arguments["num_generations"] and found.role("normaliser") is not MISSING
    assert found.seed.given == arguments["seed"]
    aside = {
        key for key in found.run.config if found.is_bookkeeping(key) or found.is_soft(key) or found.is_derived(key)
    }
    assert len(aside) > len(found.run.config) / 2 and not aside & MEANT
