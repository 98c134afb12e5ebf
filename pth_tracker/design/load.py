"""Design files read from YAML: an error names the file, the line and the key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from pth_tracker.design.expectations import TAGS
from pth_tracker.design.schema import ArmSelector, Design, Metric
from pth_tracker.errors import DesignError

_UNWRITTEN: Final = ("MeanOver", "literal['last','best']")
"""Parts of an error's place that stand in no design file."""
MAX_BYTES: Final = 1_000_000
"""The largest design file that is read."""


def load_design(path: Path) -> Design:
    """The design in the YAML file ``path``.

    Raises:
        DesignError: it cannot be read, or does not fit the schema; names file, line and key.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DesignError(f"a design file may have {MAX_BYTES:,} bytes", path=path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise DesignError(f"this design file cannot be read: {reason}", path=path) from error
    return parse_design(text, path)


def parse_design(text: str, path: Path) -> Design:
    """The design that ``text``, the content of the YAML file ``path``, states.

    Raises:
        DesignError: it does not fit the schema; names file, line and key.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_bombs(root, path)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it is no YAML"
        raise DesignError(f"{problem}", path=path, line=mark.line + 1 if mark else None) from error
    except RecursionError as error:
        raise DesignError("it is nested too deeply", path=path) from error
    if not isinstance(data, dict):
        raise DesignError("a design file is a mapping of arms, metric, vary and so on", path=path, line=1)
    if "source" in data:
        raise DesignError("unknown key; the loader sets it", path=path, line=_line(root, ["source"]), key="source")
    try:
        return Design.model_validate({**data, "source": path.name})
    except ValidationError as error:
        raise _located(error, root, path) from error


def _refuse_bombs(root: yaml.Node | None, path: Path) -> None:
    """Aliases make a small file huge once expanded; a design needs none."""
    seen: set[int] = set()
    stack = [root] if root is not None else []
    while stack:
        node = stack.pop()
        if id(node) in seen and not isinstance(node, yaml.ScalarNode):
            line = node.start_mark.line + 1
            raise DesignError("aliases (*name) are not supported; write the value out", path=path, line=line)
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names: set[str] = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in names:
                    line = key.start_mark.line + 1
                    raise DesignError(f"the key {key.value!r} is given twice", path=path, line=line, key=key.value)
                names.add(key.value)
            stack += [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            stack += node.value


def _located(error: ValidationError, root: yaml.Node | None, path: Path) -> DesignError:
    # Of a choice between a word and a mapping, what is wrong within the mapping says more than that it is no word.
    # And a misspelt key is often a missing one too: what stands in the file is what helps.
    first = max(error.errors(), key=lambda one: ("MeanOver" in one["loc"][:-1], one["type"] == "extra_forbidden"))
    place = [part for part in first["loc"] if part not in _UNWRITTEN and part not in TAGS]
    line = _line(root, place)
    key = ".".join(str(part) for part in place)
    if first["type"] == "extra_forbidden":
        known = _known_keys(first["loc"][:-1])
        close = difflib.get_close_matches(str(place[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here are {', '.join(known)}"
        return DesignError(f"unknown key; {hint}", path=path, line=line, key=key)
    if first["type"] in _FORMS:
        return DesignError(_FORMS[first["type"]], path=path, line=line, key=key)
    message = first["msg"].removeprefix("Value error, ")
    return DesignError(f"{message[:1].lower()}{message[1:]}", path=path, line=line, key=key)


_FORMS: Final = {
    "model_type": 'this has to be a mapping, such as {name: "grpo-*"} for an arm',
    "dict_type": "this has to be a mapping",
    "mapping_type": "this has to be a mapping",
    "tuple_type": "this has to be a list",
    "list_type": "this has to be a list",
}
"""What stands in place of pydantic's words where they name Python's types."""


def _line(node: yaml.Node | None, place: Sequence[Any]) -> int | None:
    line = node.start_mark.line + 1 if node is not None else None
    for part in place:
        if isinstance(node, yaml.MappingNode):
            pair = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if pair is None:
                return line
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _known_keys(place: Sequence[Any]) -> list[str]:
    model: Any = Design
    for part in place:
        if part in TAGS:
            model = TAGS[part]
        if isinstance(part, int) or not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        model = _inner_model(model.model_fields[str(part)].annotation) if str(part) in model.model_fields else model
    fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
    return [name for name in fields if name != "source"]


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None


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
    return base.model_copy(update=changes)
