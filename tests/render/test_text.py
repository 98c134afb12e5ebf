from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from pth_tracker.errors import ExitCode
from pth_tracker.render.text import EXIT_WORDS, compact_names, counted, natural_key, safe_text, short_exit_words, wrap


@given(st.text(st.characters()))
def test_no_text_keeps_a_character_that_steers(text: str) -> None:
    safe = safe_text(text)
    assert all(unicodedata.category(char) not in ("Zl", "Zp") for char in safe)
    assert all(unicodedata.category(char)[0] != "C" for char in safe)


def test_escapes_are_readable_and_ordinary_text_is_left_alone() -> None:
    assert safe_text("a\tb\x07\x9b\u200f\U000e0001") == r"a\tb\x07\x9b\u200f\U000e0001"
    assert safe_text("größe 学习率 ε [bold]") == "größe 学习率 ε [bold]"
    assert safe_text("a\nb", newlines=True) == "a\nb"


def test_names_are_sorted_as_people_count_and_stems_are_written_once() -> None:
    assert compact_names(["lag-s10", "lag-s9", "lag-s9"]) == "lag-{s9,s10}"
    assert compact_names(["a/b.txt", "solo"]) == "a/b.txt, solo"
    assert compact_names([]) == ""
    assert compact_names(["x\x1b"]) == r"x\x1b"
    assert compact_names([f"r{i}" for i in range(9)]).count(",") == 8
    assert compact_names([f"r{i}" for i in range(10)]).endswith("r7 and 2 more")
    assert "more" not in compact_names([f"r{i}" for i in range(50)], None)


@given(st.lists(st.text()))
def test_natural_order_is_total(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural_key), key=natural_key) == sorted(names, key=natural_key)


def test_wrapping_never_breaks_a_name() -> None:
    name = "actor_rollout_ref.rollout." + "x" * 60
    assert wrap(f"set {name} now", 40, "  ") == ["  set", f"  {name}", "  now"]
    assert wrap("", 40, "  ", "- ") == ["-"]
    assert wrap("one\n\ntwo", 40, "    ", "  ", newlines=True) == ["  one", "", "    two"]


def test_counted() -> None:
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]


def test_every_exit_status_has_words() -> None:
    assert set(EXIT_WORDS) == set(ExitCode)
    assert all(short_exit_words(code) and "(" not in short_exit_words(code) for code in ExitCode)
