"""An SVG file as part of a page: no ids that clash, the page's own inks and font, a description for those who listen.

It is taken apart as XML and put together again, so that whatever a label says stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree as Xml

from ctxeval.report.canvas import BLIND, HATCH, INK, PAPER, RATIO, RECALL, RULE, SERIES, SOFT

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
#: Inks of a picture → the page's variables, which differ between light and dark.
THEME: Mapping[str, str] = {
    INK: "ink",
    SOFT: "soft",
    RULE: "rule",
    HATCH: "hatch",
    PAPER: "paper",
    RECALL: "recall",
    RATIO: "ratio",
    BLIND: "blind",
    **{code: f"series-{index}" for index, code in enumerate(SERIES) if code not in (RECALL, RATIO)},
}
#: A page draws at this many pixels an inch, and may shrink to so many; where even that is too wide, it scrolls.
WIDE, LEAST = 115, 69


def inline_svg(data: bytes, name: str, alt: str) -> str:
    """Return an `<svg>` element for a page. `name` is put before its ids; `alt` describes it in words."""
    root = Xml.fromstring(data)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    used = {match for one in root.iter() for value in one.attrib.values() for match in re.findall(r"#([\w-]+)", value)}
    for one in root.iter():
        _rewrite(one, name, used)
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    root.attrib.clear()
    # matplotlib writes points, 72 to an inch.
    size = f"width:{width / 72 * WIDE:.0f}px;max-width:100%;min-width:{width / 72 * LEAST:.0f}px"
    root.attrib.update({"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": alt, "style": size})
    for one in root.iter():
        one.tag = one.tag.removeprefix(f"{{{SVG}}}")
    return Xml.tostring(root, encoding="unicode", short_empty_elements=True)


def _rewrite(one: Xml.Element, name: str, used: set[str]) -> None:
    one.tail = one.tail.strip() if one.tail and not one.tail.strip() else one.tail
    identifier = one.attrib.pop("id", None)
    if identifier in used:
        one.attrib["id"] = f"{name}-{identifier}"
    link = one.attrib.pop(f"{{{XLINK}}}href", None)
    if link is not None:
        one.attrib["href"] = f"#{name}-{link.removeprefix('#')}"
    for key in ("style", "fill", "stroke", "clip-path"):
        if key in one.attrib:
            one.attrib[key] = _themed(one.attrib[key].replace("url(#", f"url(#{name}-"))
    # The page's own font, at the size that was drawn.
    if "style" in one.attrib and "font" in one.attrib["style"]:
        one.attrib["style"] = re.sub(r"font: (?:[\w-]+ )*?([\d.]+px)[^;]*", r"font-size: \1", one.attrib["style"])


def _themed(style: str) -> str:
    return re.sub(
        r"#[0-9a-f]{6}\b", lambda found: f"var(--{THEME[found[0]]})" if found[0] in THEME else found[0], style
    )
