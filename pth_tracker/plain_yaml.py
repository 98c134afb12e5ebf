"""YAML that somebody else wrote, as plain data within bounds: no tags, no bombs, no nesting without end."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

MOST_VALUES: Final = 200_000
"""Values that a document may spell once its aliases are written out."""
_MOST_OPENED: Final = 5_000
"""Beyond so many brackets, or in a long row of dashes, the loader in C may take gigabytes for the depth alone."""
_SHORT: Final = 100_000
"""Characters up to which the slow loader is tried as well."""

_OPENED: Final = re.compile(r"[\[{]")
_DASHES: Final = re.compile(r"(?:[-?:][ \t]+){500}")
_Fast: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(text: str | bytes, *, most: int = MOST_VALUES) -> Any:
    """The plain data that one YAML document holds.

    Raises:
        ValueError: it is no YAML, spells more than ``most`` values or itself (aliases, merges), or is nested too
            deeply; the message is one line.
    """
    plain = text.decode("utf-8", errors="replace") if isinstance(text, bytes) else text
    try:
        try:
            return _loaded(plain, _loader_for(plain), most)
        except yaml.YAMLError:
            if len(plain) > _SHORT:
                raise
            return _loaded(plain, yaml.SafeLoader, most)  # which names the line more closely
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, AttributeError, TypeError, OverflowError) as error:
        # Values that look like a time or a number and are none let errors of Python's own out of PyYAML.
        raise ValueError(" ".join(str(error).split())[:300] or type(error).__name__) from error


def _loaded(text: str, loader_class: Any, most: int) -> Any:
    loader = loader_class(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, most)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _loader_for(text: str) -> Any:
    opened = sum(1 for _ in zip(_OPENED.finditer(text), range(_MOST_OPENED)))
    return yaml.SafeLoader if opened >= _MOST_OPENED or _DASHES.search(text) else _Fast


def _check_size(root: yaml.Node, most: int) -> None:
    """Adds up what every node spells, before anything is constructed: merging multiplies there already."""
    sizes: dict[int, int] = {}
    entered: set[int] = set()
    waiting = [(root, False)]
    while waiting:
        node, is_done = waiting.pop()
        if id(node) in sizes:
            continue
        inner = _children(node)
        if is_done:
            sizes[id(node)] = total = 1 + sum(sizes[id(child)] for child in inner)
            if total > most:
                raise ValueError(f"it spells more than {most:,} values once its aliases are written out")
            continue
        if id(node) in entered:
            raise ValueError("an alias holds itself")
        entered.add(id(node))
        waiting.append((node, True))
        waiting += [(child, False) for child in inner]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
