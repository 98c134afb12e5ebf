from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer

from pth_tracker.cli import app
from pth_tracker.cli.options import StdoutFormat, parse_since, split_commas
from pth_tracker.errors import UsageError
from pth_tracker.render import FORMATS

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("", None),
        ("12h", datetime(2026, 3, 10, 0, tzinfo=UTC)),
        ("7d", datetime(2026, 3, 3, 12, tzinfo=UTC)),
        ("2w", datetime(2026, 2, 24, 12, tzinfo=UTC)),
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
        ("2026-03-01T08:00+01:00", datetime(2026, 3, 1, 8, tzinfo=timezone(timedelta(hours=1)))),
    ],
)
def test_since(text: str, moment: datetime | None) -> None:
    found = parse_since(text, NOW)
    assert found == moment
    assert found is None or found.tzinfo is not None


@pytest.mark.parametrize("text", ["yesterday", "7", "-7d", "7m", "999999w", "2026-13-01"])
def test_since_refuses_what_is_no_moment(text: str) -> None:
    with pytest.raises(UsageError, match=f"--since '{text}'"):
        parse_since(text, NOW)


def test_rules_may_be_separated_by_commas() -> None:
    assert split_commas(["idle-clip, lost-seed", "", "stuck-batch,"]) == ("idle-clip", "lost-seed", "stuck-batch")
    assert split_commas(None) == ()


def test_every_option_has_its_environment_variable() -> None:
    group = typer.main.get_command(app)
    seen = set()
    for command in group.commands.values():  # type: ignore[attr-defined]
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.name != "help":
                long = [flag for flag in parameter.opts if flag.startswith("--")][-1]
                expected = "PTH_TRACKER_" + long[2:].replace("-", "_").upper()
                assert parameter.envvar == expected, f"{command.name} {long}"
                seen.add(long)
    assert {"--project", "--tracker", "--design", "--output", "--exit-zero", "--color"} <= seen


def test_formats_on_standard_output_exist() -> None:
    assert {str(one) for one in StdoutFormat} <= {one.name for one in FORMATS}
