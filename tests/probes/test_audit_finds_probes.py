"""From a training loop through a tracker to the audit: what the probes log is what the checks need."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pth_tracker import engine, probes
from pth_tracker.fingerprints import batch_numbers
from pth_tracker.model import Audit, Level
from pth_tracker.runs import History
from pth_tracker.tracker import Address, Query, Tracker, open_address

README = Path(__file__).resolve().parents[2] / "README.md"
PROJECT = "loop"
UPDATES = 40
REFRESH = 8
QUEUE = 12
PROMPTS, LENGTH = 16, 12


class Queue:
    """A replay queue; where it is broken, it serves its first batch until it has filled."""

    def __init__(self, broken: bool, rng: np.random.Generator) -> None:
        self.broken, self.rng, self.held, self.update = broken, rng, [], 0  # type: ignore[var-annotated]

    def next(self) -> tuple[dict[str, Any], int]:
        self.held.append({"input_ids": self.rng.integers(0, 50_000, (PROMPTS, LENGTH))})
        update, self.update = self.update, self.update + 1
        place = max(0, update - QUEUE + 1) if self.broken else update
        return self.held[place], update - place


def train(run_name: str, uri: str, *, pi_old: str, weighted: bool = False, broken_queue: bool = False) -> list[str]:
    """A loop whose sampler gets the weights at every 8th update; yields the fingerprints of its batches.

    ``pi_old``: ``learner`` (recomputed before the one step of each batch) or ``sampler``.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(PROJECT)
    experiment = found.experiment_id if found else client.create_experiment(PROJECT)
    run_id = client.create_run(experiment, run_name=run_name).info.run_id
    client.log_param(run_id, "lr", 1e-6)
    rng = np.random.default_rng(len(run_name))
    ledger, queue, prints = probes.BatchLedger(), Queue(broken_queue, rng), []
    logged: list[Metric] = []
    drift = 0.0
    for update in range(UPDATES):
        if update % REFRESH == 0:
            drift = 0.0
        batch, age = queue.next()
        prints.append(ledger.record(update, batch["input_ids"], age=age))
        logp_sampler = rng.normal(-2.0, 0.5, (PROMPTS, LENGTH))
        logp_learner = logp_sampler + rng.normal(0.0, 1e-3 + drift, (PROMPTS, LENGTH))
        mask = np.arange(LENGTH) < rng.integers(4, LENGTH, (PROMPTS, 1))
        logp_old = logp_learner if pi_old == "learner" else logp_sampler
        report = probes.ratio_report(logp_learner, logp_sampler, mask, logp_old, is_weighted=weighted)
        metrics = report.metrics() | ledger.metrics() | {"loss": float(rng.normal())}
        logged += [Metric(key, value, 0, update) for key, value in metrics.items()]
        drift += 0.15
    client.log_batch(run_id, logged)
    client.set_terminated(run_id)
    return prints


@pytest.fixture(scope="module")
def loops(
    demo_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tracker, dict[str, list[str]]]]:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("MLFLOW_"):
                patch.delenv(name)
        store = tmp_path_factory.mktemp("loops") / "mlflow.db"
        shutil.copyfile(demo_template, store)  # a store with its tables, which MLflow takes seconds to make
        uri = f"sqlite:///{store}"
        prints = {
            "idle": train("idle", uri, pi_old="learner"),
            "weighted": train("weighted", uri, pi_old="learner", weighted=True),
            "corrected": train("corrected", uri, pi_old="sampler"),
            "stuck": train("stuck", uri, pi_old="sampler", broken_queue=True),
        }
        tracker = open_address(Address("mlflow", (uri,)))
        yield tracker, prints
        tracker.close()


@pytest.fixture(scope="module")
def audit(loops: tuple[Tracker, dict[str, list[str]]]) -> Audit:
    return engine.audit(loops[0], engine.Options(project=PROJECT))


def blamed(audit: Audit, rule: str) -> dict[str, Level]:
    """The labels of the runs that a rule blames, with the level."""
    return {audit.label(key): one.level for one in audit.findings if one.rule == rule for key in one.blames}


def test_the_idle_clip_is_found_from_the_probes_alone(audit: Audit) -> None:
    # Whether a generic loop corrects otherwise is not known: a warning, not a failure.
    assert blamed(audit, "idle-clip") == {"idle": Level.WARN}
    (finding,) = [one for one in audit.findings if one.rule == "idle-clip"]
    assert finding.tag == "Idle Clip"
    assert "harness/clip_fraction is exactly 0 on all 40 updates" in finding.detail
    assert "harness/sampler_k3_kl" in finding.detail


def test_the_stuck_batch_is_found_from_the_ledger(audit: Audit) -> None:
    assert blamed(audit, "stuck-batch") == {"stuck": Level.FAIL}


def test_what_the_audit_reads_is_the_batches_identity(loops: tuple[Tracker, dict[str, list[str]]]) -> None:
    from pth_tracker.runs import Run
    from pth_tracker.vocabulary.canonicalise import Reading
    from pth_tracker.vocabulary.load import load_vocabulary

    tracker, prints = loops
    for source in tracker.runs(Query(PROJECT)):
        run = Run((source,), "generic")
        listed = Reading(load_vocabulary(), run)
        assert listed.raw_keys("batch_id") == ("harness/batch_id", "harness/batch_id_high")
        ((_, history),) = tracker.histories([(source.ref, listed.raw_keys("batch_id"))])
        assert isinstance(history, History)
        series = Reading(load_vocabulary(), run, history).series("batch_id")
        assert series is not None and series.step.tolist() == list(range(UPDATES))
        numbers = [batch_numbers(print_) for print_ in prints[source.name]]
        assert series.values.tolist() == [high * 2**24 + low for low, high in numbers]
        assert len(set(series.values.tolist())) == len(set(prints[source.name]))


def test_ages_are_read(audit: Audit) -> None:
    judged = {entry.rule for entry in audit.coverage if entry.outcome != "not judged"}
    assert {"idle-clip", "stuck-batch"} <= judged
    missing = [entry for entry in audit.not_judged if entry.rule == "age-off-design"]
    assert all("data_age" not in entry.missing for entry in missing)


def test_the_loop_in_the_readme_runs() -> None:
    found = re.search(r"<!-- run by the tests -->\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    logged: dict[int, dict[str, float]] = {}
    names = {
        "updates": 3,
        "queue": Queue(False, np.random.default_rng(0)),
        "logp_learner": np.full((2, 3), -1.0),
        "logp_sampler": np.full((2, 3), -1.5),
        "mask": np.ones((2, 3)),
        "logp_old": np.full((2, 3), -1.0),
        "log": lambda metrics, step: logged.update({step: metrics}),
    }
    exec(found[1], names)
    assert sorted(logged) == [0, 1, 2]
    for metrics in logged.values():
        assert {"harness/batch_id", "harness/data_age", "harness/clip_fraction"} <= set(metrics)
