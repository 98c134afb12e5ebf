"""No secret reaches a report, a log, a mark, the cache, a message or a traceback: planted ones, of every kind known."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from nightly.test_notify import receiving
from pth_tracker.cli import main
from pth_tracker.errors import ExitCode
from pth_tracker.redaction import REDACTED, environment_secrets, hide_secrets, without_environment
from pth_tracker.values import canonical_config, show_value
from synthetic import set_dotted
from trackers.mlflow_proxy import proxy
from trackers.wandb_stored_runs import faulty, put
from wandb_server.server import Fault, WandbServer

Capture = pytest.CaptureFixture[str]


def token(kind: str, length: int = 32) -> str:
    """A planted secret of letters and digits."""
    return hashlib.sha256(kind.encode()).hexdigest()[:length]


@dataclass(frozen=True)
class Planted:
    """One secret in a run's configuration or launch arguments."""

    kind: str
    key: str
    form: str = "{}"
    """The value, with the secret in place of ``{}``."""
    argument: str = ""
    """The launch argument, likewise; ``""``: it is in the configuration."""

    @property
    def secret(self) -> str:
        return token(self.kind)


CONFIGURED = (
    Planted("OpenRLHF's logger as text", "logger", "Namespace(name='wandb', wandb=Namespace(key='{}', org=None))"),
    Planted("OpenRLHF's key", "logger_settings.wandb.key"),
    Planted("slime", "wandb_key"),
    Planted("AReaL", "stats_logger.wandb.wandb_api_key"),
    Planted("ROLL", "tracker_kwargs.api_key"),
    Planted("TRL", "hub_token"),
    Planted("TRL, old", "push_to_hub_token"),
    Planted("ms-swift", "swanlab_token"),
    Planted("W&B in Ray's environment", "ray_init.runtime_env.env_vars.WANDB_API_KEY"),
    Planted("MLflow's password", "environment.MLFLOW_TRACKING_PASSWORD"),
    Planted("MLflow's token", "environment.MLFLOW_TRACKING_TOKEN"),
    Planted("Hugging Face", "environment.HF_TOKEN"),
    Planted("AWS", "environment.AWS_SECRET_ACCESS_KEY"),
    Planted("Slack", "alerts.slack_webhook_url", "https://hooks.example.org/services/{}"),
    Planted("a password in an address", "data.source", "postgresql://reader:{}@db.example.org/prompts"),
    Planted("a token in a query", "reward_model.endpoint", "https://reward.example.org/v1?token={}&n=1"),
    Planted("a header", "reward_model.header", "Authorization: Bearer {}"),
    Planted("a mapping as text", "tracking", "wandb: {{'api_key': '{}'}}"),
    Planted("a command as text", "launcher", "train.py --wandb_key {} --lr 1e-6"),
    Planted("a bare Hugging Face key", "data.reader", "hf_{}"),
    Planted("a bare OpenAI key", "judge.settings", "model=x,sk-{}"),
    Planted("a bare GitHub key", "code.origin", "ghp_{}"),
)
LAUNCHED = (
    Planted("an argument", "wandb_key", argument="--wandb_key={}"),
    Planted("an argument behind a space", "hub_token", argument="--hub_token {}"),
    Planted("a Hydra argument", "tracker_kwargs.api_key", argument="tracker_kwargs.api_key={}"),
    Planted("a header as an argument", "reward_model.header", argument="reward_model.header=Authorization: Bearer {}"),
    Planted("an address as an argument", "data.source", argument="data.source=postgresql://reader:{}@other/prompts"),
)
ENVIRONMENT = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "OPENAI_API_KEY", "PGPASSWORD")
"""Variables whose values stand in the environment of the audit, and in the runs under names that tell nothing."""


def secrets() -> dict[str, str]:
    """Kind to what must be nowhere."""
    found = {f"{one.kind}, {arm}": one.secret + arm for one in CONFIGURED for arm in ("ppo", "tis")}
    found |= {one.kind: one.secret for one in LAUNCHED}
    return found | {name: token(name) for name in ENVIRONMENT}


def plant(server: WandbServer, project: str) -> None:
    """The runs of two arms that differ in every secret, resumed and launched with others."""
    runs = faulty()
    for run in runs:
        arm = run.name.partition("-")[0]
        config = run.source.config
        assert isinstance(config, dict)
        set_dotted(config, {one.key: one.form.format(one.secret + arm) for one in CONFIGURED})
        set_dotted(config, {f"innocent.{name.lower()[:4]}": f"{arm} {token(name)}" for name in ENVIRONMENT})
    for stored in put(server, project, runs).values():
        stored.args = [word for one in LAUNCHED for word in [one.argument.format(one.secret)]]
        stored.args = [part for word in stored.args for part in (word.split(" ") if "hub_token " in word else [word])]
        stored.program = "train.py"


@pytest.fixture(scope="module")
def said(wandb_environment: WandbServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything that an audit and a night say, write and send, by place."""
    server, project, folder = wandb_environment, "secrets", tmp_path_factory.mktemp("secrets")
    plant(server, project)
    found: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch, receiving() as receiver, (folder / "said.txt").open("w+") as stream:
        for name in list(os.environ):
            if name.startswith(("PTH_TRACKER_", "MLFLOW_")):
                patch.delenv(name)
        for name in ENVIRONMENT:
            patch.setenv(name, token(name))
        patch.chdir(folder)
        patch.setattr("sys.stdout", stream)
        patch.setattr("sys.stderr", stream)
        reports = [f"report{suffix}" for suffix in (".txt", ".json", ".html", ".md", ".xml")]
        options = [word for name in reports for word in ("-o", name)]
        command = ["--tracker", "wandb", "--project", f"team/{project}"]
        assert main(["audit", *command, "-v", "--vary", "wandb_key", *options]) == ExitCode.CHECK_FAILED
        assert main(["init", *command, "-o", "design.yaml"]) == ExitCode.OK
        Path("pth-tracker.yaml").write_text(
            f"notify: '{receiver.url}'\naudits: [{{name: lab, project: team/{project}, tracker: wandb}}]\n"
        )
        assert main(["nightly", "-v", "--log-format", "json", "--cache", "cache"]) == ExitCode.CHECK_FAILED
        found["the notification"] = json.dumps(receiver.received)
        assert main(["doctor", *command]) == ExitCode.OK
    for path in folder.rglob("*"):
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes().decode("utf-8", "replace")
    assert {"said.txt", "design.yaml", "the notification", *reports} <= set(found)
    assert "lab" in found["the notification"] or project in found["the notification"]
    assert any(name.startswith("cache/") for name in found)
    for run in server.store.projects["team", project].values():
        found[f"marks of {run.display_name}"] = json.dumps(
            [run.tags, {k: v for k, v in run.summary.items() if "/" in k}]
        )
    ours = server.run(project, "pth-audit")
    kept = [
        ours.config,
        ours.rows,
        ours.summary,
        ours.args,
        *(content.decode("utf-8", "replace") for content in ours.files.values()),
    ]
    kept += [str(one.files) + str(one.manifest) for one in server.store.artifacts if one.run is ours]
    found["the audit run"] = json.dumps(kept, default=str)
    return found


def test_what_was_planted_was_looked_at(said: dict[str, str]) -> None:
    """Otherwise nothing could leak: the fields are compared and named, and redacted where their values are shown."""
    for name in ("report.txt", "report.json", "report.md"):
        assert REDACTED in said[name]
    for key in ("wandb_key", "reward_model.endpoint", "data.source"):
        assert key in said["report.json"], key


@pytest.mark.parametrize("kind", sorted(secrets()))
def test_a_planted_secret_is_nowhere(said: dict[str, str], kind: str) -> None:
    secret = secrets()[kind]
    parts = (secret, secret[:24], secret[-24:])
    assert not [place for place, text in said.items() if any(part in text for part in parts)]


# messages and tracebacks


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize("variable", ["MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"])
@pytest.mark.parametrize("status", [401, 403, 500])
def test_what_an_mlflow_server_says_of_our_credentials_is_not_repeated(
    status: int, variable: str, debug: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv(variable, token(variable))
    monkeypatch.setenv("PTH_TRACKER_DEBUG", debug)
    with proxy("") as between:
        told = json.dumps({"error_code": "DENIED", "message": f"ada may not enter with {token(variable)}"})
        between.rule = lambda path, body: (status, told.encode())
        assert main(["audit", "--project", "p", "--tracker", between.uri]) == ExitCode.TRACKER
    said = capsys.readouterr().err
    assert token(variable) not in said and str(status) in said
    assert ("Traceback" in said) == bool(debug)


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize(
    "address",
    [
        "http://ada:{}@127.0.0.1:9",
        "postgresql://ada:{}@127.0.0.1:9/mlflow",
        "postgresql://127.0.0.1:9/mlflow?user=ada&password={}",
        "mysql://ada:{}@127.0.0.1:9/mlflow",
        "sqlite://ada:{}@host/x",
        "ftp://ada:{}@host/x",
    ],
)
@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_password_in_an_address_is_not_repeated(
    by: str, address: str, debug: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("PTH_TRACKER_DEBUG", debug)
    named = address.format(token("address"))
    if by == "environment":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", named)
    assert main(["audit", "--project", "p", *(["--tracker", named] if by == "option" else [])]) in (2, 4)
    captured = capsys.readouterr()
    assert token("address") not in captured.err + captured.out
    assert captured.err.splitlines()[-1].startswith("pth-tracker: error: ")


@pytest.mark.parametrize("debug", ["", "1"])
def test_what_a_wandb_server_says_of_our_key_is_not_repeated(
    wandb_environment: WandbServer, wandb_project: str, debug: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    server = wandb_environment
    monkeypatch.setenv("PTH_TRACKER_DEBUG", debug)
    server.trouble = lambda request: (
        Fault(403, message=f"{server.api_key} may not") if "Runs" in request.operation else None
    )
    assert main(["audit", "--project", f"team/{wandb_project}", "--tracker", "wandb"]) == ExitCode.TRACKER
    said = capsys.readouterr().err
    assert server.api_key not in said and "may not" in said


def test_an_error_of_our_own_shows_no_secret_either(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    from pth_tracker import tracker

    def broken(*_: object) -> object:
        raise KeyError(f"postgresql://ada:{token('inside')}@db, {token('HF_TOKEN')}")

    monkeypatch.setattr(tracker, "find_tracker", broken)
    monkeypatch.setenv("HF_TOKEN", token("HF_TOKEN"))
    for debug in ("", "1"):
        monkeypatch.setenv("PTH_TRACKER_DEBUG", debug)
        assert main(["audit", "--project", "p"]) == ExitCode.USAGE
        said = capsys.readouterr().err
        assert token("inside") not in said and token("HF_TOKEN") not in said and "KeyError" in said


# what is taken for a secret, and what is not


@pytest.mark.parametrize(
    "harmless",
    [
        "the token was refused",
        "algorithm.rollout_correction.rollout_is: token against None",
        "tokenizer=gpt2-large",
        "max_tokens=4096",
        "loss_agg_mode: token-mean",
        "https://example.org/x?seed=12345",
        "sk-learn",
        "step:1 - actor/pg_loss:0.125",
        "s3://bucket/key/with-a-long-name",
    ],
)
def test_ordinary_text_stays(harmless: str) -> None:
    assert hide_secrets(harmless) == harmless


def test_values_are_shown_without_what_is_secret_in_them() -> None:
    config = canonical_config(
        {"a": {"headers": {"Authorization": "Bearer abcdefgh12345678", "n": 1}}, "b": ["hf_" + "a" * 20]}
    )
    assert show_value(config["a.headers.n"]) == "1" and show_value(config["b"]) == f"['{REDACTED}']"
    assert show_value({"authorization": "x", "n": 1}) == f"{{'authorization': '{REDACTED}', 'n': 1}}"


def test_words_and_paths_of_the_environment_are_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "PGPASSWORD": "postgres",
        "WANDB_API_KEY": token("k"),
        "MLFLOW_TRACKING_URI": "http://ada:s3cret%2Fw0rd@host",
        "TLS_KEY": str(tmp_path),
        "HF_TOKEN": "short",
        "LANG": "C.UTF-8 and more",
    }
    assert set(environment_secrets(environment)) == {
        token("k"), "s3cret%2Fw0rd", "s3cret/w0rd", "s3cret%252Fw0rd"
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert without_environment(f"x {token('k')} s3cret/w0rd postgres") == f"x {REDACTED} {REDACTED} postgres"
