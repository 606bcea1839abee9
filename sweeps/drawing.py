"""One panel as an SVG to stand in a page: text as text, every curve with its name and command."""

import io
import re
import xml.etree.ElementTree as ET
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from plotting.figures import PRINT, draw_returns, draw_values, finish_x, styles
from plotting.names import in_figure
from plotting.panels import Panel

SVG = "http://www.w3.org/2000/svg"
WIDTH, HEIGHT = 4.6, 2.8  # inches
# Fixed, so that the same runs give the same page. Text is text: it can be found and copied.
SETTINGS: dict[str, Any] = {**PRINT, "svg.fonttype": "none", "svg.hashsalt": "bcq"} | {
    # A phone shows a figure at about its own size.
    f"{part}.{kind}": 10
    for part, kind in [
        ("font", "size"), ("axes", "labelsize"), ("xtick", "labelsize"), ("ytick", "labelsize"),
        ("legend", "fontsize"),
    ]
}  # fmt: skip


def draw(panel: Panel, values: bool, names: dict[str, str], prefix: str) -> str:
    """The panel's curves as one `<svg>`; `names` tells of each label what a reader is told.

    `prefix` keeps the ids of a page's figures apart.
    """
    with mpl.rc_context(SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.subplots()
        looks = styles(list(panel.learners))
        (draw_values if values else draw_returns)(axes, panel, looks, "bootstrap", 0.5)
        curves = [run for seeds in panel.learners.values() for run in seeds]
        axes.set_ylabel("mean Q" if values else "undiscounted return")
        if curves:
            axes.set_xlabel(in_figure(curves[0].x_label))
            finish_x(axes)
        labels = {in_figure(name): text for name, text in names.items()}
        told: dict[str, str] = {}
        for part in figure.axes:
            for line in part.get_lines():
                label = str(line.get_label())
                of = label.removeprefix("_true value of ")
                if of in labels:
                    line.set_gid(f"{prefix}-{len(told)}")
                    true = "true value of " if of != label else ""
                    if true:
                        line.set_label(f"{of}: true value")
                    told[f"{prefix}-{len(told)}"] = true + labels[of]
        handles: dict[str, Any] = {}
        for part in figure.axes:
            for handle, label in zip(*part.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center",
            ncols=2, frameon=False, handlelength=2.6,
        )  # fmt: skip
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(text.getvalue(), prefix, told)


def _inline(svg: str, prefix: str, told: dict[str, str]) -> str:
    """The root element alone, its ids its own, titles and a broad invisible line on each curve."""
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", "http://www.w3.org/1999/xlink")
    # Ids of clips and markers: the same in every figure, but for what they hold.
    svg = re.sub(rf'(\bid="|xlink:href="#|url\(#)(?!{prefix}-)', rf"\g<1>{prefix}_", svg)
    root = ET.fromstring(svg)
    for name in ("width", "height"):
        root.attrib.pop(name, None)
    for unread in root.findall(f"{{{SVG}}}metadata"):
        root.remove(unread)
    for group in root.iter(f"{{{SVG}}}g"):
        words = told.get(group.get("id", ""))
        if words is None:
            continue
        title = ET.Element(f"{{{SVG}}}title")
        title.text = words
        group.insert(0, title)
        group.set("class", "curve")
        group.set("tabindex", "0")
        line = group.find(f"{{{SVG}}}path")
        if line is not None:  # a finger is broader than a curve
            group.append(ET.Element(f"{{{SVG}}}path", {"d": line.get("d", ""), "class": "reach"}))
    return ET.tostring(root, encoding="unicode")
