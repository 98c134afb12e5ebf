"""The manifest: which locations are MLflow's, what the environment offers, and that credentials stay inside."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import pth_tracker_mlflow
from pth_tracker.errors import AdapterUnavailable, TrackerError, UsageError
from pth_tracker.tracker import Address, Candidate, open_address
from pth_tracker_mlflow.address import parse


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http://localhost:5000", True),
        ("https://mlflow.example.org/prefix", True),
        ("sqlite:///mlflow.db", True),
        ("postgresql://u@h/db", True),
        ("postgresql+psycopg2://u:p@h/db", True),
        ("mysql+pymysql://u@h/db", True),
        ("mssql+pyodbc://u@h/db", True),
        ("https://api.wandb.ai", False),
        ("https://team.wandb.io/x", False),
        ("https://api.forge.coreweave.com", False),
        ("wandb", False),
        ("file:///tmp/mlruns", False),
        ("mlruns", False),
        ("http://", False),
        ("", False),
    ],
)
def test_recognises_addresses(location: str, expected: bool) -> None:
    assert pth_tracker_mlflow.recognises(location) is expected


def test_recognises_a_database_file_by_its_tables(mlflow_sqlite: Path, tmp_path: Path) -> None:
    import sqlite3

    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE runs (a)")
    connection.commit()
    connection.close()
    (tmp_path / "text.db").write_text("not a database")
    assert pth_tracker_mlflow.recognises(str(mlflow_sqlite))
    assert not pth_tracker_mlflow.recognises(str(other))
    assert not pth_tracker_mlflow.recognises(str(tmp_path / "text.db"))
    assert not pth_tracker_mlflow.recognises(str(tmp_path))
    assert not pth_tracker_mlflow.recognises(str(tmp_path / "absent.db"))


def test_candidates_are_the_local_store_and_the_configured_one(
    mlflow_sqlite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mlflow_sqlite.parent)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://audit:hunter2@db/mlflow")
    local, configured = pth_tracker_mlflow.candidates()
    assert (local.location, local.order) == ("sqlite:///mlflow.db", 0)
    assert configured == Candidate("postgresql://audit@db/mlflow", "MLFLOW_TRACKING_URI is set", 1)


def test_no_candidate_where_nothing_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert list(pth_tracker_mlflow.candidates()) == []


@pytest.mark.parametrize("uri", ["file:///tmp/mlruns", "./mlruns", "databricks", "databricks://u:hunter2@profile"])
def test_a_configured_address_that_is_not_ours_is_refused_and_never_passed_over(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (candidate,) = pth_tracker_mlflow.candidates()
    assert candidate.order == 1 and "hunter2" not in candidate.location
    with pytest.raises(UsageError, match="databricks|mlruns"):
        pth_tracker_mlflow.open_tracker([candidate.location])


def test_a_password_is_used_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for uri in (
        "postgresql://audit:hunter2@127.0.0.1:1/mlflow",
        "postgresql://audit:hun%2Fter2@127.0.0.1:1/mlflow?password=hunter2",
        "http://audit:hunter2@127.0.0.1:1/",
    ):
        store = parse(uri)
        assert "hun" not in f"{store}{store!r}{store.address}{store.public}"
        assert "hun" not in repr(pickle.loads(pickle.dumps(store.address)))
        assert "hunter2" not in store.scrub(f"failed: {uri} (password=hunter2)")
        with pytest.raises(TrackerError) as caught:
            pth_tracker_mlflow.open_tracker([uri])
        assert "hunter2" not in str(caught.value) and "127.0.0.1" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_password_left_out_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://audit:hunter2@db/mlflow")
    assert parse("postgresql://audit@db/mlflow").uri.endswith("://audit:hunter2@db/mlflow")
    assert parse("postgresql://audit@db/other").uri.endswith("://audit@db/other")
    assert parse("postgresql://audit:own@db/mlflow").uri.endswith("://audit:own@db/mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://u:pw@ml.example.org/")
    assert parse("https://u@ml.example.org").uri == "https://u:pw@ml.example.org"


def test_an_unescaped_at_sign_in_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match="%40") as caught:
        parse("postgresql://audit:p@ss@db/mlflow")
    assert "ss" not in str(caught.value).replace("password", "").replace("address", "")


def test_wrong_locations_are_usage_errors(tmp_path: Path) -> None:
    for location in (
        str(tmp_path / "absent.db"),
        f"sqlite:///{tmp_path}/absent.db",
        str(tmp_path),
        "sqlite://",
        "ftp://x",
    ):
        with pytest.raises(UsageError) as caught:
            pth_tracker_mlflow.open_tracker([location])
        assert str(caught.value).count("\n") == 0
    assert not (tmp_path / "absent.db").exists()
    with pytest.raises(UsageError, match="2"):
        pth_tracker_mlflow.open_tracker(["http://a", "http://b"])


def test_a_missing_driver_is_named_with_its_pip_line() -> None:
    with pytest.raises(AdapterUnavailable, match="pip install 'pyodbc'"):
        pth_tracker_mlflow.open_tracker(["mssql+pyodbc://u@127.0.0.1:1/db?driver=x"])


def test_reading_a_database_imports_no_mlflow(mlflow_sqlite: Path) -> None:
    script = (
        "import sys, pth_tracker_mlflow as m\n"
        "from pth_tracker.tracker import Query\n"
        "assert 'sqlalchemy' not in sys.modules\n"
        f"t = m.open_tracker([{str(mlflow_sqlite)!r}])\n"
        "runs = list(t.runs(Query('Default')))\n"
        "list(t.histories([(r.ref, None) for r in runs])); t.marks([r.ref for r in runs]); t.read_only\n"
        "print('mlflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_broken_sdk_is_unavailable_with_the_pip_line(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").write_text("raise RuntimeError('half installed')")
    script = (
        "import pth_tracker_mlflow as m\n"
        "from pth_tracker.errors import AdapterUnavailable\n"
        "try:\n    m.open_tracker(['http://127.0.0.1:1'])\n"
        "except AdapterUnavailable as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert "half installed" in done.stdout and "pip install" in done.stdout


def test_an_address_opens_again(mlflow_sqlite: Path) -> None:
    tracker = pth_tracker_mlflow.open_tracker([str(mlflow_sqlite)])
    assert tracker.address == Address("mlflow", (f"sqlite:///{mlflow_sqlite}",))
    again = open_address(pickle.loads(pickle.dumps(tracker.address)))
    assert again.projects() == ["Default"]
