"""The real packages on tiny problems: recognised, judged, and called what they are, in MLflow and in offline W&B."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from pth_tracker.engine import Options, audit
from pth_tracker.model import Audit
from pth_tracker.tracker import find_tracker
from pth_tracker.vocabulary.canonicalise import Reading
from pth_tracker.vocabulary.load import load_vocabulary

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
TRACKERS = ("mlflow", "wandb")


@dataclass(frozen=True)
class Trained:
    """Where one script's runs are."""

    folder: Path
    project: str

    def audit(self, tracker: str) -> Audit:
        location = str(self.folder / ("mlflow.db" if tracker == "mlflow" else "wandb"))
        project = self.project if tracker == "mlflow" else ""
        opened, chosen = find_tracker(project, [location])
        with closing(opened):
            return audit(opened, Options(project=project), chosen=chosen)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Callable[..., Trained]:
    """What ``train_NAME.py`` trains, once for all tests; skips, saying why, where its packages are not installed."""
    done: dict[str, Trained] = {}

    def train(name: str, *packages: str) -> Trained:
        missing = [package for package in packages if find_spec(package) is None]
        if missing:
            pytest.skip(f"{', '.join(missing)} not installed: pip install 'pth-tracker[real]'")
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            shutil.copyfile(mlflow_template, folder / "mlflow.db")
            project = f"real-{name}"
            environment = {
                **{key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "MLFLOW_"))},
                "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
                "MLFLOW_EXPERIMENT_NAME": project,
                "WANDB_PROJECT": project,
                "WANDB_MODE": "offline",
                "WANDB_DIR": str(folder),
                "WANDB_SILENT": "true",
                "HF_HUB_OFFLINE": "1",
                "HF_HOME": str(folder / "hf"),
                "TOKENIZERS_PARALLELISM": "false",
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONWARNINGS": "ignore",
            }
            script = [sys.executable, str(HERE / f"train_{name}.py"), str(folder), project]
            ended = subprocess.run(script, env=environment, cwd=folder, capture_output=True, text=True, check=False)
            assert ended.returncode == 0, ended.stderr[-3000:]
            done[name] = Trained(folder, project)
        return done[name]

    return train


def arm_of(name: str) -> str:
    return next(arm for arm in ("one", "many", "two") if arm in name.replace("__", "-").split("-"))


def check(report: Audit, framework: str, last: int) -> None:
    """What holds of every script, in both trackers: two arms over two seeds, the ratio of one arm 1, equal steps."""
    assert {run.last_update for run in report.runs.values()} == {last}
    assert {run.framework for run in report.runs.values()} == {framework}
    assert len(report.runs) == 4 and all(run.counted for run in report.runs.values())
    assert sorted(run.seed for run in report.runs.values()) == ["1", "1", "2", "2"]
    assert {frozenset(arm_of(report.label(key)) for key in keys) for keys in report.design.arms.values()} == {
        frozenset({arm_of(run.label)}) for run in report.runs.values()
    }
    ones = [finding for finding in report.findings if finding.rule == "ratio-one-by-construction"]
    blamed = {report.label(key) for finding in ones for key in finding.runs}
    assert {arm_of(label) for label in blamed} == {"one"} and len(blamed) == 2
    assert not [finding for finding in report.findings if finding.rule == "idle-clip"]
    loud = [(finding.rule, finding.title) for finding in report.findings if finding.level == "fail"]
    assert loud == []


def clips(trained: Trained, tracker: str) -> dict[str, float]:
    """Run name to the largest clip fraction it logged."""
    location = str(trained.folder / ("mlflow.db" if tracker == "mlflow" else "wandb"))
    opened, _ = find_tracker(trained.project, [location])
    from pth_tracker.design.stitch import stitch
    from pth_tracker.tracker import Query

    found: dict[str, float] = {}
    with closing(opened):
        runs = stitch(load_vocabulary(), opened.runs(Query(trained.project if tracker == "mlflow" else "")))
        histories = dict(opened.histories([(run.last.ref, None) for run in runs]))
    for run in runs:
        history = histories[run.last.ref]
        series = Reading(load_vocabulary(), run, history).series("clip_fraction")  # type: ignore[arg-type]
        assert series is not None and len(series) > 10, run.name
        found[run.name] = float(series.values.max())
    return found


@pytest.mark.parametrize("tracker", TRACKERS)
def test_stable_baselines3(trained: Callable[..., Trained], tracker: str) -> None:
    own = trained("sb3", "stable_baselines3", "gymnasium", "tensorboard")
    check(own.audit(tracker), "stable_baselines3", last=24 * 64)
    largest = clips(own, tracker)
    assert all((value == 0) == (arm_of(name) == "one") for name, value in largest.items()), largest


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_ppo_under_cleanrls_names(trained: Callable[..., Trained], tracker: str) -> None:
    own = trained("cleanrl", "gymnasium", "tensorboard", "torch")
    check(own.audit(tracker), "cleanrl", last=24 * 64)
    largest = clips(own, tracker)
    assert all((value == 0) == (arm_of(name) == "one") for name, value in largest.items()), largest


@pytest.mark.parametrize("tracker", TRACKERS)
def test_trls_grpo(trained: Callable[..., Trained], tracker: str) -> None:
    own = trained("trl", "trl", "transformers", "datasets", "tokenizers")
    check(own.audit(tracker), "trl_grpo", last=14)
    largest = clips(own, tracker)
    assert all((value == 0) == (arm_of(name) == "one") for name, value in largest.items()), largest
