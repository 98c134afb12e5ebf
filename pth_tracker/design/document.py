"""Strict YAML files against a pydantic model: an error names the file, the line and the key."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from pth_tracker.errors import DesignError

MAX_BYTES: Final = 1_000_000
"""The largest file that is read."""
_FORMS: Final = {
    "model_type": "this has to be a mapping",
    "dict_type": "this has to be a mapping",
    "mapping_type": "this has to be a mapping",
    "tuple_type": "this has to be a list",
    "list_type": "this has to be a list",
}
"""What stands in place of pydantic's words where they name Python's types."""


@dataclass(frozen=True)
class Document:
    """A file that was read, which finds the line of anything in it for errors that show only later."""

    path: Path | None = None
    """None: everything comes from the command line."""
    root: yaml.Node | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """Keys whose value comes from the command line instead, with the option that gave it."""

    def error(self, message: str, *place: str | int) -> DesignError:
        """What is wrong at ``place``: with file and line, or with the option that replaced what the file says."""
        if place and place[0] in self.options:
            return DesignError(message, key=self.options[str(place[0])])
        key = ".".join(str(part) for part in place)
        return DesignError(message, path=self.path, line=line_of(self.root, place), key=key)

    def replaced(self, options: Mapping[str, str]) -> Document:
        """This file, with these keys given by options of the command line."""
        return replace(self, options={**self.options, **options})


def read_text(path: Path, kind: str) -> str:
    """The text of a file of this ``kind`` (``design file``).

    Raises:
        DesignError: it cannot be read.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DesignError(f"a {kind} may have {MAX_BYTES:,} bytes", path=path)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise DesignError(f"this {kind} cannot be read: {reason}", path=path) from error


def parse_mapping(text: str, path: Path, expected: str) -> tuple[dict[str, Any], yaml.Node | None]:
    """The mapping that ``text``, the content of ``path``, holds, and its nodes with their lines.

    Raises:
        DesignError: it is no YAML, uses aliases, gives a key twice, or is no mapping: ``expected`` says of what.
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
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        # PyYAML lets Python's own errors out of values that look like a time or a number and are none.
        raise DesignError(f"it holds a value that cannot be read: {error}", path=path) from error
    if not isinstance(data, dict):
        raise DesignError(expected, path=path, line=1)
    return data, root


def _refuse_bombs(root: yaml.Node | None, path: Path) -> None:
    """Aliases make a small file huge once expanded; none of our files needs any."""
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


def located(
    error: ValidationError,
    root: yaml.Node | None,
    path: Path,
    model: type[BaseModel],
    *,
    tags: Mapping[str, type[BaseModel]] | None = None,
    unwritten: Collection[str] = (),
    hidden: Collection[str] = (),
    forms: Mapping[str, str] | None = None,
) -> DesignError:
    """What pydantic refused, with the place in the file.

    Args:
        error: What pydantic says.
        root: The file's nodes.
        path: The file.
        model: What was to be read.
        tags: The choices within a tagged union, which stand in an error's place and in no file.
        unwritten: Other parts of an error's place that stand in no file.
        hidden: Fields that no file may set.
        forms: Sentences for kinds of error, in place of the general ones.
    """
    # Of a choice between a word and a mapping, what is wrong within the mapping says more than that it is no word.
    # And a misspelt key is often a missing one too: what stands in the file is what helps.
    first = max(
        error.errors(),
        key=lambda one: (bool(set(one["loc"][:-1]) & set(unwritten)), one["type"] == "extra_forbidden"),
    )
    tags = tags or {}
    place = [part for part in first["loc"] if part not in unwritten and part not in tags]
    line = line_of(root, place)
    key = ".".join(str(part) for part in place)
    if first["type"] == "extra_forbidden":
        known = [name for name in _known_keys(model, first["loc"][:-1], tags) if name not in hidden]
        close = difflib.get_close_matches(str(place[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known here are {', '.join(known)}"
        return DesignError(f"unknown key; {hint}", path=path, line=line, key=key)
    said = {**_FORMS, **(forms or {})}
    if first["type"] in said:
        return DesignError(said[first["type"]], path=path, line=line, key=key)
    message = first["msg"].removeprefix("Value error, ")
    return DesignError(f"{message[:1].lower()}{message[1:]}", path=path, line=line, key=key)


def line_of(node: yaml.Node | None, place: Sequence[Any]) -> int | None:
    """The line of the node at ``place``, or of the innermost one on the way there."""
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


def _known_keys(model: Any, place: Sequence[Any], tags: Mapping[str, type[BaseModel]]) -> list[str]:
    for part in place:
        if part in tags:
            model = tags[part]
        if isinstance(part, int) or not (isinstance(model, type) and issubclass(model, BaseModel)):
            continue
        model = _inner_model(model.model_fields[str(part)].annotation) if str(part) in model.model_fields else model
    fields = model.model_fields if isinstance(model, type) and issubclass(model, BaseModel) else {}
    return list(fields)


def _inner_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _inner_model(argument)
        if found is not None:
            return found
    return None
