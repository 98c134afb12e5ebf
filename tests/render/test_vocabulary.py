from __future__ import annotations

import re

from pth_tracker.render.vocabulary import vocabulary_markdown
from pth_tracker.vocabulary.load import load_vocabulary


def test_the_page_has_a_section_of_each_framework_with_what_its_names_mean() -> None:
    own = load_vocabulary()
    page = vocabulary_markdown(own)
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(own.frameworks) <= set(sections) and list(sections)[-1] == "generic"
    for name, framework in own.frameworks.items():
        assert all(f"| `{quantity}` |" in sections[name] for quantity in framework.quantities), name
        assert f"](#{name})" in page
    assert all(f"| `{name}` |" in sections["Quantities"] for name in own.quantities)
    assert all(f"| `{name}` |" in sections["Roles"] for name in own.roles)
    assert "| `entropy` | `train/entropy_loss` | sign reversed |" in sections["stable_baselines3"]
    assert "nothing controls it" in sections["openrlhf"]
    assert (
        "Its metrics stand under `train/` or bare." in sections["trl_rloo"] and "`eval/reward`" in sections["trl_rloo"]
    )


def test_every_row_of_a_table_has_as_many_cells_as_its_head() -> None:
    cells = 0
    for line in vocabulary_markdown(load_vocabulary()).splitlines():
        if line.startswith("|"):
            found = len(re.findall(r"(?<!\\)\|", line))
            cells = found if cells == 0 else cells
            assert found == cells, line
        else:
            cells = 0
