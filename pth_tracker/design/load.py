"""Design files read from YAML: an error names the file, the line and the key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from pth_tracker.design.document import Document, line_of, located, parse_mapping, read_text
from pth_tracker.design.expectations import TAGS
from pth_tracker.design.schema import ArmSelector, Design, Metric
from pth_tracker.errors import DesignError

_UNWRITTEN: Final = ("MeanOver", "literal['last','best']")
"""Parts of an error's place that stand in no design file."""
_OPTIONS: Final = {
    "arms": "--arm",
    "vary": "--vary",
    "replicate": "--replicate",
    "metric": "--metric",
    "rules": "--kl-tolerance",
}
"""Field to the option that replaces it."""
_FORMS: Final = {"model_type": 'this has to be a mapping, such as {name: "grpo-*"} for an arm'}


def load_design(path: Path) -> Design:
    """The design in the YAML file ``path``.

    Raises:
        DesignError: it cannot be read, or does not fit the schema; names file, line and key.
    """
    return parse_design(read_text(path, "design file"), path)


def parse_design(text: str, path: Path) -> Design:
    """The design that ``text``, the content of the YAML file ``path``, states.

    Raises:
        DesignError: it does not fit the schema; names file, line and key.
    """
    data, root = parse_mapping(text, path, "a design file is a mapping of arms, metric, vary and so on")
    if "source" in data:
        raise DesignError("unknown key; the loader sets it", path=path, line=line_of(root, ["source"]), key="source")
    try:
        return Design.model_validate({**data, "source": path.name}).located_in(Document(path, root))
    except ValidationError as error:
        told = located(error, root, path, Design, tags=TAGS, unwritten=_UNWRITTEN, hidden=["source"], forms=_FORMS)
        raise told from error


def with_command_line(
    design: Design | None,
    *,
    arms: Sequence[str] = (),
    vary: Sequence[str] = (),
    replicate: Sequence[str] = (),
    metric: str = "",
    kl_tolerance: float | None = None,
) -> Design | None:
    """``design`` with what the command line declares on top; None where neither declares anything.

    ``arms`` are ``NAME=GLOB`` over run names and replace the file's arms; the others replace their field.

    Raises:
        DesignError: an arm is not of that form.
    """
    if not (arms or vary or replicate or metric or kl_tolerance is not None):
        return design
    changes: dict[str, Any] = {}
    patterns: dict[str, list[str]] = {}
    for spec in arms:
        name, equals, glob = spec.partition("=")
        if not (equals and name.strip() and glob.strip()):
            raise DesignError(f"--arm takes NAME=GLOB, a pattern of run names, and got {spec!r}")
        patterns.setdefault(name.strip(), []).append(glob.strip())
    if patterns:
        changes["arms"] = {name: ArmSelector(name=tuple(globs)) for name, globs in patterns.items()}
        if design and design.baseline and design.baseline not in patterns:
            changes["baseline"] = ""
    if vary:
        changes["vary"] = tuple(vary)
    if replicate:
        changes["replicate"] = tuple(replicate)
    if metric:
        old = design.metric if design else None
        changes["metric"] = old.model_copy(update={"key": metric}) if old else Metric(key=metric)
    base = design or Design()
    if kl_tolerance is not None:
        if not 0 < kl_tolerance < math.inf:
            raise DesignError(f"the KL tolerance has to be above 0, finite, and is {kl_tolerance}")
        changes["rules"] = base.rules.model_copy(update={"kl_tolerance": kl_tolerance})
    changes["source"] = f"{base.source} and the command line" if base.source else "command line"
    changed = base.model_copy(update=changes)
    given = {key: option for key, option in _OPTIONS.items() if key in changes}
    return changed.located_in((base.document or Document()).replaced(given))
