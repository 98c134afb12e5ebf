"""The manifest of the W&B adapter: what it recognises and offers, without the SDK."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pth_tracker_wandb
from pth_tracker.errors import TrackerError, UsageError
from pth_tracker.tracker import adapter_for
from pth_tracker_wandb.credentials import ServerAddress, parse_location, without_secrets


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "location",
    ["wandb", "wandb:my-team", "https://api.wandb.ai", "https://wandb.example.org", "https://x.coreweave.com/t"],
)
def test_recognised(location: str) -> None:
    assert pth_tracker_wandb.recognises(location)
    assert adapter_for(location) == "wandb"


@pytest.mark.parametrize("location", ["https://mlflow.example.org", "sqlite:///mlflow.db", "nowhere", "."])
def test_not_recognised(location: str) -> None:
    assert not pth_tracker_wandb.recognises(location)


def test_the_configured_server_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "https://tracking.example.org")
    assert pth_tracker_wandb.recognises("https://tracking.example.org/team")


def test_a_folder_of_runs_is_recognised(tmp_path: Path) -> None:
    folder = tmp_path / "wandb" / "offline-run-20260101_000000-abc"
    folder.mkdir(parents=True)
    (folder / "run-abc.wandb").write_bytes(b"")
    assert pth_tracker_wandb.recognises("./wandb")


def test_the_bare_word_is_the_server_whatever_lies_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "wandb" / "offline-run-20260101_000000-abc").mkdir(parents=True)
    (tmp_path / "wandb" / "offline-run-20260101_000000-abc" / "run-abc.wandb").write_bytes(b"")
    for folder in ("./wandb", "wandb/", str(tmp_path / "wandb")):
        assert adapter_for(folder) == "wandb"
        assert pth_tracker_wandb.open_tracker([folder]).address.locations == (str(tmp_path / "wandb"),)
    hint = "`wandb` is the server; the folder of that name here is `./wandb`"
    with pytest.raises(TrackerError, match=r"no credentials for W&B .* set WANDB_API_KEY") as raised:
        pth_tracker_wandb.open_tracker(["wandb"])
    assert hint in str(raised.value)
    with pytest.raises(UsageError, match="one W&B server") as refused:
        pth_tracker_wandb.open_tracker(["wandb", "./wandb"])
    assert hint in str(refused.value)


def test_without_such_a_folder_no_hint_is_given() -> None:
    with pytest.raises(TrackerError, match="no credentials for W&B") as raised:
        pth_tracker_wandb.open_tracker(["wandb"])
    assert "./wandb" not in str(raised.value)


@pytest.mark.parametrize(
    ("location", "base", "entity"),
    [
        ("wandb", "", ""),
        ("my-team", "", "my-team"),
        ("wandb:my-team", "", "my-team"),
        ("https://api.wandb.ai", "https://api.wandb.ai", ""),
        ("https://api.wandb.ai/", "https://api.wandb.ai", ""),
        ("https://api.wandb.ai/my-team", "https://api.wandb.ai", "my-team"),
        ("https://wandb.ai/my-team", "https://api.wandb.ai", "my-team"),
        ("http://localhost:8080", "http://localhost:8080", ""),
    ],
)
def test_locations(location: str, base: str, entity: str) -> None:
    address = parse_location(location)
    assert address == ServerAddress(base, entity)
    if base:
        assert parse_location(str(address)) == address


def test_a_configured_server_below_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "https://example.org/wandb/")
    assert parse_location("wandb") == ServerAddress("https://example.org/wandb")
    assert parse_location("https://example.org/wandb/team") == ServerAddress("https://example.org/wandb", "team")


@pytest.mark.parametrize(
    "location", ["ftp://api.wandb.ai", "https://", "https://user:key@api.wandb.ai", "https://wandb.ai/team/project"]
)
def test_no_address(location: str) -> None:
    with pytest.raises(UsageError):
        parse_location(location)


def test_two_servers_are_too_many() -> None:
    with pytest.raises(UsageError, match="one W&B server"):
        pth_tracker_wandb.open_tracker(["https://api.wandb.ai", "https://wandb.example.org"])


def test_no_candidates_without_credentials() -> None:
    assert list(pth_tracker_wandb.candidates()) == []


def test_an_api_key_is_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    (offer,) = pth_tracker_wandb.candidates()
    assert (offer.location, offer.order) == ("wandb", 2)
    monkeypatch.setenv("WANDB_BASE_URL", "https://tracking.example.org/")
    (offer,) = pth_tracker_wandb.candidates()
    assert offer.location == "https://tracking.example.org"


def test_a_netrc_entry_is_a_candidate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password secret-key\n")
    (offer,) = pth_tracker_wandb.candidates()
    assert (offer.location, offer.order) == ("https://api.wandb.ai", 2)
    assert "secret-key" not in offer.why
    monkeypatch.setenv("WANDB_BASE_URL", "https://tracking.example.org")
    assert list(pth_tracker_wandb.candidates()) == []


def test_offline_runs_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    (tmp_path / "wandb" / "offline-run-20260101_000000-abc").mkdir(parents=True)
    assert [(offer.location, offer.order) for offer in pth_tracker_wandb.candidates()] == [("./wandb", 0), ("wandb", 2)]
    (tmp_path / "wandb" / "run-20260101_000000-def").mkdir()
    assert [offer.order for offer in pth_tracker_wandb.candidates()] == [2]


def test_secrets_are_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    text = f"GET https://store.example.org/a.parquet?Signature=abc%3D&x=1 with {'k' * 40}\nand {'j' * 40}"
    cleaned = without_secrets(text, "j" * 40)
    assert cleaned == "GET https://store.example.org/a.parquet with (redacted) and (redacted)"


def test_the_manifest_imports_no_sdk(tmp_path: Path) -> None:
    script = (
        "import sys, pth_tracker_wandb as w; w.recognises('https://api.wandb.ai'); w.recognises('.'); "
        "list(w.candidates()); sys.exit('wandb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False).returncode == 0
