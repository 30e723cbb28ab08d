"""Figures and tables of finished runs, and the style of all figures: readable in greyscale and at print size."""

from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files only; needs no display

GREY, DARK, ACCENT, WARNING = "#c8ccd2", "#22303c", "#1f5f99", "#b4462a"

LINES: tuple[dict[str, Any], ...] = (  # distinguishable without colour
    {"color": "#1f5f99", "linestyle": "-", "linewidth": 1.8},
    {"color": "#b4462a", "linestyle": "--", "linewidth": 1.3},
    {"color": "#2b7a4b", "linestyle": "-.", "linewidth": 1.3},
    {"color": "#22303c", "linestyle": ":", "linewidth": 1.5},
    {"color": "#8a5a9e", "linestyle": (0, (6, 1.5, 1, 1.5, 1, 1.5)), "linewidth": 1.3},
    {"color": "#9a7b1d", "linestyle": (0, (2, 1)), "linewidth": 1.1},
    {"color": "#5b6770", "linestyle": "-", "linewidth": 0.9},
    {"color": "#3f8f9b", "linestyle": (0, (8, 3)), "linewidth": 1.1},
)

LOOK: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6b7680",
    "axes.linewidth": 0.7,
    "xtick.color": "#3c464f",
    "ytick.color": "#3c464f",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # embed fonts as TrueType, so that text stays editable
}
