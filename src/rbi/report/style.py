"""How all figures look: readable in grey, in print size, without decoration."""

from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files only: no window, no display needed

GREY, DARK, ACCENT, WARNING = "#c8ccd2", "#22303c", "#1f5f99", "#b4462a"

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
    "pdf.fonttype": 42,  # text stays text
}
