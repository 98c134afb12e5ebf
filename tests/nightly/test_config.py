from __future__ import annotations

from pathlib import Path

import pytest

from pth_tracker.errors import DesignError
from pth_tracker.nightly.config import Configuration, load_configuration

ENVIRONMENT = {"SLACK": "slack://TokenA/TokenB/TokenC/#rl", "PASSWORD": "s3cret", "EMPTY": ""}


def load(folder: Path, text: str) -> Configuration:
    path = folder / "pth-tracker.yaml"
    path.write_text(text, encoding="utf-8")
    return load_configuration(path, ENVIRONMENT)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(DesignError) as caught:
        load(folder, text)
    return str(caught.value).removeprefix(f"{folder}/")


FULL = """\
audits:
  - name: stale
    project: rl-stale
    tracker: http://reader:${PASSWORD}@mlflow:5000
    design: designs/stale.yaml
    vocabularies: [mine.yaml]
    where: "attributes.status = 'FINISHED'"
    since: 30d
    select: idle-clip
    rules: {kl_tolerance: 0.1, levels: {lost-seed: warn}}
    write_running: true
    strict: true
    outputs: [reports/stale.json, reports/stale.txt]
    notify: [json://127.0.0.1:9000/hook]
    link: https://wiki/{name}
  - name: logs
    paths: [logs]
    write: false
notify: "${SLACK}"
link: https://dash/{project}?audit={name}
"""


def test_a_full_file_is_read_with_variables_replaced_and_files_found_beside_it(tmp_path: Path) -> None:
    found = load(tmp_path, FULL)
    stale, logs = found.audits
    assert stale.locations == ("http://reader:s3cret@mlflow:5000",)
    assert stale.design == tmp_path / "designs/stale.yaml" and stale.vocabularies == (tmp_path / "mine.yaml",)
    assert stale.outputs == (tmp_path / "reports/stale.json", tmp_path / "reports/stale.txt")
    assert [target.shown for target in stale.targets] == ["audits.0.notify.0 (json)"]
    assert stale.link == "https://wiki/stale" and stale.entry.select == ("idle-clip",)
    assert stale.entry.rules is not None and stale.entry.rules.kl_tolerance == 0.1
    assert logs.locations == (str(tmp_path / "logs"),) and not logs.entry.write
    assert [(target.url, target.shown) for target in logs.targets] == [(ENVIRONMENT["SLACK"], "notify.0 (slack)")]
    assert logs.link == "https://dash/?audit=logs"


def test_paths_are_those_of_the_files_folder_whatever_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for lab in ("one", "other"):
        (tmp_path / lab).mkdir()
        monkeypatch.chdir(tmp_path / lab)
        Path("lab.yaml").write_text("audits: [{name: a, paths: [wandb, logs], outputs: r.json}]", encoding="utf-8")
        (audit,) = load_configuration(Path("lab.yaml"), {}).audits
        assert audit.locations == (str(tmp_path / lab / "wandb"), str(tmp_path / lab / "logs"))
        assert audit.outputs == (tmp_path / lab / "r.json",)
        found.append(audit.locations)
    assert found[0] != found[1], "two labs share no past"


def test_no_secret_is_in_what_a_configuration_shows_of_itself(tmp_path: Path) -> None:
    shown = repr(load(tmp_path, FULL))
    assert "s3cret" not in shown and "TokenA" not in shown


def entry(extra: str) -> str:
    return f"audits:\n  - name: a\n    project: p\n    {extra}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("audits: []\n", "pth-tracker.yaml:1 at audits: "),
        ("- a\n", "pth-tracker.yaml:1: a configuration file is a mapping of audits, notify and link"),
        (entry("projct: q"), "pth-tracker.yaml:4 at audits.0.projct: unknown key; did you mean 'project'?"),
        (entry("rules: {kl_tolerence: 1}"), "pth-tracker.yaml:4 at audits.0.rules.kl_tolerence: unknown key; did you"),
        (entry("rules: {kl_tolerance: -1}"), "pth-tracker.yaml:4 at audits.0.rules.kl_tolerance: "),
        (entry("since: yesterday"), "pth-tracker.yaml:4 at audits.0.since: since 'yesterday' is no moment"),
        (entry("outputs: [report.doc]"), "pth-tracker.yaml:4 at audits.0.outputs: cannot tell a report format"),
        (entry("paths: x\n    tracker: y"), "pth-tracker.yaml:2 at audits.0: paths are audited instead of a tracker"),
        (entry("strict: 7"), "pth-tracker.yaml:4 at audits.0.strict: "),
        ("audits: [{name: a}]\n", "pth-tracker.yaml:1 at audits.0: name what to audit"),
        ("audits: [{name: '../a', project: p}]\n", "pth-tracker.yaml:1 at audits.0.name: "),
        ("audits: [{name: a, project: p}, {name: a, project: q}]\n", "two audits are named 'a'"),
        (
            entry("select: idle-clp"),
            "pth-tracker.yaml:4 at audits.0.select.0: there is no rule 'idle-clp'; did you mean",
        ),
        (entry("ignore: [lost-seed, lr-differs]"), "pth-tracker.yaml:4 at audits.0.ignore.1: there is no rule"),
        (entry("rules: {levels: {lr-differs: info}}"), "pth-tracker.yaml:4 at audits.0.rules.levels.lr-differs: there"),
        ("x: &a [1]\ny: *a\n", "aliases"),
        ("audits: [\n", "pth-tracker.yaml:2: "),
    ],
)
def test_a_wrong_file_is_refused_with_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DesignError, match="none.yaml: this configuration file cannot be read: No such file"):
        load_configuration(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["ABSENT", "EMPTY"])
@pytest.mark.parametrize("key", ["notify", "tracker", "link"])
def test_a_variable_that_is_not_set_is_named(tmp_path: Path, name: str, key: str) -> None:
    message = refused(tmp_path, entry(f"{key}: 'https://x/${{{name}}}'"))
    place = f"audits.0.{key}" + ("" if key == "link" else ".0")
    assert message == f"pth-tracker.yaml:4 at {place}: the environment variable {name} is not set, or is empty"


@pytest.mark.parametrize(
    "url",
    [
        "slack://TokenA/TokenB/TokenC", "discord://1234/abcd", "tgram://bottoken/1", "https://hooks.slack.com/services/x",
        "mailto://me:hunter2@example.com", "json://user:hunter2@host/x", "json://host/x?+api_key=abc",
        "jsons://host/?token=abc", "ntfy://topic",
    ],
)  # fmt: skip
def test_a_secret_in_the_file_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    message = refused(tmp_path, entry(f'notify: ["{url}"]'))
    assert message == (
        "pth-tracker.yaml:4 at audits.0.notify.0: this address may hold a secret: put it, or the secret part, into an "
        "environment variable and write ${NAME} here"
    )


def test_a_password_of_a_tracker_stands_in_the_environment(tmp_path: Path) -> None:
    message = refused(tmp_path, entry("tracker: postgresql://audit:hunter2@db/mlflow"))
    assert "audits.0.tracker.0: this address may hold a secret" in message and "hunter2" not in message
    assert load(tmp_path, entry("tracker: postgresql://audit@db/mlflow")).audits[0].locations


@pytest.mark.parametrize("url", ["json://127.0.0.1:9/x", "mailto://example.com?to=a@b.org", "syslog://"])
def test_addresses_without_a_secret_may_stand_in_the_file(tmp_path: Path, url: str) -> None:
    assert load(tmp_path, entry(f'notify: "{url}"')).audits[0].targets[0].url == url


def test_what_is_no_address_is_refused(tmp_path: Path) -> None:
    assert "is no notification address" in refused(tmp_path, entry("notify: somebody"))


LOCAL = {
    "sqlite:///runs/mlflow.db": "sqlite:///{folder}/runs/mlflow.db",
    "sqlite:///mlflow.db": "sqlite:///{folder}/mlflow.db",
    "sqlite+pysqlite:///mlflow.db?timeout=5": "sqlite+pysqlite:///{folder}/mlflow.db?timeout=5",
    "mlflow:sqlite:///mlflow.db": "mlflow:sqlite:///{folder}/mlflow.db",
    "./mlruns": "{folder}/mlruns",
    "mlruns": "{folder}/mlruns",
    "../elsewhere": "{folder}/../elsewhere",
    "mlflow.db": "{folder}/mlflow.db",
    "./wandb": "{folder}/wandb",
    "file:./mlruns": "file:{folder}/mlruns",
    "files:logs/run.jsonl": "files:{folder}/logs/run.jsonl",
}
"""A relative store to what it is in full."""
AS_WRITTEN = (
    "sqlite:////var/lib/mlflow.db", "/var/lib/mlruns", "http://mlflow:5000", "https://api.wandb.ai/my-team", "wandb",
    "my-team", "postgresql://audit@db/mlflow", "file:///var/lib/mlruns", "databricks",
)  # fmt: skip


@pytest.mark.parametrize("text", LOCAL)
def test_a_relative_store_is_found_from_the_files_folder(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, elsewhere = tmp_path / "lab", tmp_path / "other"
    lab.mkdir()
    elsewhere.mkdir()
    (lab / "mlruns").mkdir()
    monkeypatch.chdir(elsewhere)
    assert load(lab, entry(f"tracker: {text}")).audits[0].locations == (LOCAL[text].format(folder=lab),)
    monkeypatch.chdir(tmp_path)
    (audit,) = load_configuration(Path("lab/pth-tracker.yaml"), {}).audits
    assert audit.locations == (LOCAL[text].format(folder=lab),)


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_what_is_no_relative_store_stays_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "wandb").mkdir()
    assert load(tmp_path, entry(f"tracker: '{text}'")).audits[0].locations == (text,)


@pytest.mark.parametrize("touch", [True, False])
@pytest.mark.parametrize(
    ("output", "words"), [("none/r.json", "there is no folder"), ("folder.json", "it is a folder; name a file")]
)
def test_reports_that_cannot_be_written_are_told_with_file_line_and_key(
    tmp_path: Path, touch: bool, output: str, words: str
) -> None:
    (tmp_path / "folder.json").mkdir()
    found = load(tmp_path, FULL.replace("reports/stale.json, reports/stale.txt", f"ok.json, {output}"))
    with pytest.raises(DesignError) as caught:
        found.check_outputs(found.audits, touch=touch)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/pth-tracker.yaml:13 at audits.0.outputs.1: cannot write") and words in said
    found.check_outputs(found.audits[1:], touch=touch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.json", "pth-tracker.yaml"]
