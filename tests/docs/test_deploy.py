"""The files for cron, systemd, Kubernetes and GitHub Actions are sound as far as a linter can tell."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from pth_tracker.cli import app
from pth_tracker.nightly.config import AuditEntry, load_configuration
from pth_tracker.nightly.schedule import cron_trigger

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
VARIABLES = {"MLFLOW_DB_PASSWORD": "x", "SLACK_URL": "slack://TokenA/TokenB/TokenC"}


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text(name))
    return parser


def cronjob() -> dict[str, Any]:
    found: dict[str, Any] = list(yaml.safe_load_all(text("cronjob.yaml")))[1]
    return found


def workflow() -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(text("github-actions.yml"))
    return found


def commands() -> Iterator[tuple[str, list[str]]]:
    """The words of the command in each file, from the program on."""
    (line,) = [line for line in text("crontab").splitlines() if not line.startswith("#")]
    yield "crontab", shlex.split(line.split("&& ")[-1])
    yield "service", shlex.split(unit("pth-tracker.service")["Service"]["ExecStart"])
    (container,) = cronjob()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    yield "cronjob", container["args"]
    (step,) = [step for step in workflow()["jobs"]["audit"]["steps"] if step.get("name") == "audit"]
    yield "workflow", shlex.split(step["run"].split("||")[0])


@pytest.mark.parametrize(
    ("where", "words"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_commands_exist_with_their_options(where: str, words: list[str]) -> None:
    known: Any = typer.main.get_command(app)
    assert Path(words[0]).name == "pth-tracker"
    context = known.commands[words[1]].make_context(words[1], words[2:])
    assert context.params["config"].name == "pth-tracker.yaml" and not context.params["no_cache"]


def schedules() -> Iterator[tuple[str, str]]:
    (line,) = [line for line in text("crontab").splitlines() if not line.startswith("#")]
    yield " ".join(line.split()[:5]), ""
    yield cronjob()["spec"]["schedule"], cronjob()["spec"]["timeZone"]
    yield workflow()[True]["schedule"][0]["cron"], "UTC"  # YAML reads the key `on` as a boolean
    page = (DEPLOY.parent / "nightly.md").read_text(encoding="utf-8")
    yield from re.findall(r'--cron "(.*?)"(?: --timezone (\S+))?', page)


@pytest.mark.parametrize(("expression", "zone"), list(schedules()))
def test_schedules_fire_once_a_night(expression: str, zone: str) -> None:
    trigger = cron_trigger(expression, zone)
    first = trigger.get_next_fire_time(None, datetime(2026, 6, 1, tzinfo=UTC))
    assert (first.hour, first.minute) == (3, 15)


def test_the_example_configuration_is_sound(tmp_path: Path) -> None:
    found = load_configuration(DEPLOY / "pth-tracker.yaml", VARIABLES)
    assert [(one.name, len(one.targets)) for one in found.audits] == [("stale-sampler", 1), ("reward-models", 0)]
    page = (DEPLOY.parent / "nightly.md").read_text(encoding="utf-8")
    assert f"```yaml\n{text('pth-tracker.yaml')}```" in page
    table = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))))
    assert table == set(AuditEntry.model_fields), "the table of the page names every key"


def test_the_variables_of_the_example_are_given_where_it_runs() -> None:
    named = set(re.findall(r"\$\{(\w+)\}", text("pth-tracker.yaml").partition("\n")[2]))
    assert named == set(VARIABLES)
    (audit,) = [step for step in workflow()["jobs"]["audit"]["steps"] if step.get("name") == "audit"]
    assert named <= audit["env"].keys()
    for name in named:
        assert f"--from-literal={name}=" in text("cronjob.yaml") and name in text("pth-tracker.service")


def test_the_files_of_the_example_are_where_it_runs() -> None:
    """A report goes into a folder that each of them has, and what is read lies beside the configuration."""
    for audit in load_configuration(DEPLOY / "pth-tracker.yaml", VARIABLES).audits:
        for output in audit.outputs:
            service = unit("pth-tracker.service")["Service"]
            assert output.parent == Path("/var/lib", service["StateDirectory"])
            (container,) = cronjob()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
            assert {"name": "reports", "mountPath": str(output.parent)} in container["volumeMounts"]
            steps = workflow()["jobs"]["audit"]["steps"]
            assert any(str(output.parent) in step.get("run", "").split() for step in steps[:-1])
            assert steps[-1]["with"]["path"] == str(output.parent)
        if audit.design:
            assert audit.design.parent == DEPLOY and f"--from-file={audit.design.name}" in text("cronjob.yaml")


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    service, timer = unit("pth-tracker.service"), unit("pth-tracker.timer")
    assert service["Service"]["SuccessExitStatus"].split() == ["1", "130"]
    assert set(timer.sections()) == {"Unit", "Timer", "Install"} and "OnCalendar" in timer["Timer"]
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    content = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text("pth-tracker.service"), flags=re.MULTILINE)
    (tmp_path / "pth-tracker.service").write_text(content)
    shutil.copyfile(DEPLOY / "pth-tracker.timer", tmp_path / "pth-tracker.timer")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "pth-tracker.service", "pth-tracker.timer"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "pth-tracker" in line]
    assert done.returncode == 0 and said == [], done.stderr


def test_the_cronjob_never_overlaps_and_keeps_its_cache() -> None:
    spec = cronjob()["spec"]
    pod = spec["jobTemplate"]["spec"]["template"]["spec"]
    assert spec["concurrencyPolicy"] == "Forbid" and pod["restartPolicy"] == "Never"
    volumes = {volume["name"] for volume in pod["volumes"]}
    (container,) = pod["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounted) == volumes
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert environment["PTH_TRACKER_CACHE"] == mounted["cache"]
    documents = list(yaml.safe_load_all(text("cronjob.yaml")))
    claims = {one["metadata"]["name"] for one in documents if one["kind"] == "PersistentVolumeClaim"}
    assert claims == {
        one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one
    }


def test_the_workflow_keeps_its_cache_and_fails_only_where_the_audit_did() -> None:
    job = workflow()["jobs"]["audit"]
    (kept,) = [step for step in job["steps"] if str(step.get("uses", "")).startswith("actions/cache")]
    (audit,) = [step for step in job["steps"] if step.get("name") == "audit"]
    assert audit["env"]["PTH_TRACKER_CACHE"] == kept["with"]["path"]
    tail = audit["run"].partition("||")[2]
    for status, expected in ((0, 0), (1, 0), (2, 1), (4, 1)):
        done = subprocess.run(["bash", "-c", f"(exit {status}) ||{tail}"], check=False)
        assert done.returncode == expected
