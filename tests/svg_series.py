"""Reading drawn series back out of an SVG: what stands where."""

from __future__ import annotations

import re
from xml.etree import ElementTree

PAIR = re.compile(r"[ML] (-?[\d.]+) (-?[\d.]+)")


class Drawn:
    """One picture, parsed."""

    def __init__(self, svg: str, prefix: str = "p-") -> None:
        self.root = ElementTree.fromstring(svg)
        self.prefix = prefix

    def texts(self) -> list[str]:
        """All text in the picture, title and description apart."""
        return [element.text or "" for element in self.root.iter("text")]

    def series(self) -> list[str]:
        """Names of the drawn series, in the order in which they were drawn."""
        start = f"{self.prefix}series-"
        return [name.removeprefix(start) for e in self.root.iter() if (name := e.get("id", "")).startswith(start)]

    def of(self, name: str) -> ElementTree.Element:
        """The element of one series."""
        return next(e for e in self.root.iter() if e.get("id") == f"{self.prefix}series-{name}")

    def line(self, name: str) -> list[tuple[float, float]]:
        """The corners of a series' line, in the picture's units, y downwards."""
        path = next(iter(self.of(name).iter("path")))
        return [(float(x), float(y)) for x, y in PAIR.findall(path.get("d", ""))]

    def marks(self, name: str) -> list[tuple[float, float]]:
        """Where a series' markers stand."""
        return [(float(e.get("x", "")), float(e.get("y", ""))) for e in self.of(name).iter("use")]

    def look(self, name: str) -> dict[str, str]:
        """The style of a series' line."""
        path = next(iter(self.of(name).iter("path")))
        pairs = (part.split(":", 1) for part in path.get("style", "").split(";") if ":" in part)
        return {key.strip(): value.strip() for key, value in pairs}
