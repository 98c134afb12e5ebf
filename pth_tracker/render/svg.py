"""Matplotlib figures as SVG to be put into a page: small, the same at each drawing, in the page's own colours.

Colours become CSS variables of the page (``var(--c1, #0072b2)``), so that one picture serves light and dark; text stays
text, in the page's font; ids are prefixed, so that several pictures live in one page.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS: Final[Mapping[str, str]] = {
    "ink": "#1b2127",
    "muted": "#5b6673",
    "grid": "#dfe3e8",
    "fail": "#b3261d",
    "warn": "#8a5b00",
    "pass": "#1d6b3b",
    "c1": "#0067a6",
    "c2": "#b04a00",
    "c3": "#00755a",
    "c4": "#9a3b82",
    "c5": "#6a5d00",
    "c6": "#4b57a8",
}
"""Name of a CSS variable to the colour that stands for it while a figure is drawn, which is also its fallback."""
SERIES: Final = "series-"
"""What the ids of drawn series start with: they stay in the picture, behind its prefix."""
_NAMES: Final = {colour: name for name, colour in COLOURS.items()}
_HEX: Final = re.compile(r"#[0-9a-fA-F]{6}\b")
_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}(?:e-?\d+)?")
_REFERENCE: Final = re.compile(r"url\(#([^)]+)\)")
_FONT: Final = re.compile(r"(?:^|;)\s*font-family:[^;]*")
_DRAWN: Final = frozenset({"d", "x", "y", "points", "transform", "width", "height"})
_DRAWING: Final = threading.Lock()
_SETTINGS: Final[Mapping[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pth-tracker",
    "text.parse_math": False,
    "axes.unicode_minus": False,
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 10.5,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 5,
    "axes.titlecolor": COLOURS["ink"],
    "text.color": COLOURS["ink"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["muted"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "grid.color": COLOURS["grid"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "lines.linewidth": 1.6,
    "path.simplify": True,
}


@contextmanager
def drawing() -> Iterator[None]:
    """The settings under which all pictures are drawn, one at a time; the caller's own are back afterwards."""
    import matplotlib

    with _DRAWING, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        # A name in a script that the bundled font lacks is measured by a substitute; the page shows it in its own font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def draw(figure: Callable[[], Figure], prefix: str, title: str, description: str) -> str:
    """The figure as an ``<svg>`` element whose ids all start with ``prefix``."""
    stream = io.StringIO()
    with drawing():
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure().savefig(stream, format="svg", metadata=metadata)
    root = ElementTree.fromstring(stream.getvalue())
    width, height = (value.removesuffix("pt") for value in (root.attrib["width"], root.attrib["height"]))
    _clean(root, prefix)
    root.attrib.clear()
    root.attrib.update(
        {
            "viewBox": f"0 0 {width} {height}",
            "role": "img",
            "aria-labelledby": f"{prefix}title {prefix}desc",
            "style": "stroke-linejoin: round; stroke-linecap: butt",
        }
    )
    for tag, text in (("desc", description), ("title", title)):
        element = ElementTree.Element(tag, {"id": f"{prefix}{tag}"})
        element.text = text
        root.insert(0, element)
    return ElementTree.tostring(root, encoding="unicode")


def _clean(root: ElementTree.Element, prefix: str) -> None:
    """Takes namespaces, metadata, sheets, blanks and unused ids away, and names colours and ids anew."""
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    used = {name for element in root.iter() for value in element.attrib.values() for name in _REFERENCE.findall(value)}
    used |= {
        value.removeprefix("#") for element in root.iter() for key, value in element.attrib.items() if "href" in key
    }
    for element in root.iter():
        element.tag = _local(element.tag)
        element.tail = None
        if not (element.text or "").strip():
            element.text = None
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            name = _local(key)
            if name == "id":
                if value in used or value.startswith(SERIES):
                    element.attrib["id"] = prefix + value
            elif name == "href":
                element.attrib["href"] = f"#{prefix}{value.removeprefix('#')}"
            elif name not in ("space", "version", "type"):
                element.attrib[name] = _attribute(name, value, prefix)


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _attribute(name: str, value: str, prefix: str) -> str:
    value = _REFERENCE.sub(lambda found: f"url(#{prefix}{found[1]})", value)
    if name in _DRAWN:
        value = " ".join(_NUMBER.sub(lambda found: f"{float(found[0]):.2f}", value).split())
    if name in ("style", "fill", "stroke"):
        value = _FONT.sub("", _HEX.sub(_variable, value)).strip("; ")
    return value


def _variable(found: re.Match[str]) -> str:
    name = _NAMES.get(found[0].lower())
    return f"var(--{name}, {found[0]})" if name else found[0]
