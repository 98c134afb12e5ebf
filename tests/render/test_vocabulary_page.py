from __future__ import annotations

import re

import pytest

from pth_tracker.render.vocabulary import vocabulary_markdown
from pth_tracker.vocabulary.load import load_vocabulary

VOCABULARY = load_vocabulary()


@pytest.fixture(scope="module")
def page() -> str:
    return vocabulary_markdown(VOCABULARY)


def section(page: str, name: str) -> str:
    return page.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("name", VOCABULARY.frameworks)
def test_every_framework_tells_its_quantities_roles_and_witness(page: str, name: str) -> None:
    own, text = VOCABULARY.frameworks[name], section(page, name)
    assert f"| [`{name}`](#{name}) |" in page and own.about in text
    rows = set(re.findall(r"^\| `([\w]+)` \|", text, re.MULTILINE))
    assert rows == {quantity for quantity, held in own.quantities.items() if held} | set(own.roles)
    front = max((len(prefix) for prefix in own.prefixes), default=0)
    for candidates in own.quantities.values():
        assert all(any(one.key[cut:].replace("|", "\\|") in text for cut in range(front + 1)) for one in candidates)
    assert "- Witness of the batch: " in text and ("none is logged" in text) is not bool(own.witness)
    assert all(f"`{key}`" in text for key in (*own.task, *own.clip_range, *own.detect.config_all))


def test_tables_are_whole(page: str) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block.splitlines()[0]


def test_semantics_are_said_in_words(page: str) -> None:
    rllib = section(page, "rllib")
    first = next(line for line in rllib.splitlines() if "mean_kl_loss" in line and line.startswith("| `learner_kl`"))
    assert "exact, of the distributions; all zeros mean that it was not computed" in first
    assert "Its metrics stand bare or under `ray/tune/`." in rllib and "`ray/tune/learners" not in rllib
    assert "sign reversed" in section(page, "stable_baselines3")
    assert "share outside the range, whatever the advantage's sign" in section(page, "cleanrl")
    assert "rl_games takes the time for a null seed" in section(page, "rl_games")


def test_comments_are_notes_at_what_they_are_about(page: str) -> None:
    notes = section(page, "sample_factory").split("Notes\n", 1)[1]
    assert "- `clip_fraction`: Of the last minibatch of the last epoch alone; the band is" in notes
    assert "- `data_age`: Optimiser steps between" in notes
    assert "- `data_seed`: On several GPUs each adds its rank." in section(page, "rl_games")
