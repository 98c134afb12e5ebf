"""An HTML page as a tree, by the standard library's parser, strict about what browsers forgive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "br", "hr", "input", "img"})


@dataclass
class Node:
    """One element with its attributes and what is in it."""

    tag: str
    attrs: dict[str, str] = field(default_factory=dict)
    children: list[Node | str] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        """The element and all elements in it, in the order of the page."""
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def all(self, tag: str, **wanted: str) -> list[Node]:
        """The elements of one tag in it with these attributes; a class is wanted as one of several."""
        return [one for one in self.walk() if one.tag == tag and all(_has(one, k, v) for k, v in wanted.items())]

    def one(self, tag: str, **wanted: str) -> Node:
        """The only such element."""
        (found,) = self.all(tag, **wanted)
        return found

    @property
    def text(self) -> str:
        """All text in it, blanks made one."""
        return " ".join(" ".join(self._texts()).split())

    def _texts(self) -> Iterator[str]:
        for child in self.children:
            if isinstance(child, str):
                yield child
            elif child.tag not in ("script", "style"):
                yield from child._texts()

    def table(self) -> list[list[str]]:
        """The rows of a table in it, each cell's text."""
        return [[cell.text for cell in row.children if isinstance(cell, Node)] for row in self.all("tr")]


def _has(node: Node, name: str, value: str) -> bool:
    name = name.rstrip("_").replace("_", "-")
    own = node.attrs.get(name, "")
    return value in own.split() if name == "class" else own == value


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.stack = [Node("page")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.stack[-1].children.append(node)
        if tag not in VOID:
            self.stack.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.stack[-1].children.append(data)


def read_page(html: str) -> Node:
    """The page as a tree; fails where an element is not closed."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert [node.tag for node in builder.stack] == ["page"], "an element is not closed"
    return builder.stack[0]
