"""Figures of `rbi certify` and `rbi monitor`, from their run folders."""

import math
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from rbi.report import ACCENT, DARK, GREY, LOOK, WARNING


def gain_figure(found: dict[str, Any]) -> Any:
    """Interval of the gain of every candidate against zero; the one that decides is dark."""
    rows = found["candidates"]
    with mpl.rc_context(LOOK):
        figure: Any = Figure(figsize=(5.6, 0.7 + 0.32 * len(rows)), layout="constrained")
        panel = figure.subplots()
        panel.axvline(0, color=DARK, linewidth=0.8)
        for y, row in enumerate(reversed(rows)):
            decides = row["rule"] == found["rule"]
            color = (ACCENT if row["lower"] > 0 else WARNING) if decides else GREY
            low = row["lower"] if math.isfinite(row["lower"]) else row["estimate"]
            panel.plot([low, row["upper"]], [y, y], color=color, linewidth=2.6 if decides else 1.6)
            panel.plot([low], [y], marker="|", markersize=9, color=color)
            panel.plot([row["estimate"]], [y], marker="o", markersize=5 if decides else 4, color=color)
        names = [row["rule"] + (" *" if row["rule"] in found["tested"] else "") for row in reversed(rows)]
        panel.set_yticks(range(len(rows)), names)
        panel.set(xlabel="gain per episode over the behaviour policy (line: 0)", ylim=(-0.6, len(rows) - 0.4))
        panel.set_title(f"{found['verdict']}: {100 * found['confidence']:g}% bounds, * tested", loc="left")
    return figure


def monitor_figure(found: dict[str, Any]) -> Any:
    """The confidence sequence of the gain over the number of live episodes."""
    rows = found["history"]
    x = [row["episodes"] for row in rows]
    with mpl.rc_context(LOOK):
        figure: Any = Figure(figsize=(5.2, 2.6), layout="constrained")
        panel = figure.subplots()
        color = {"better": ACCENT, "worse": WARNING, "continue": DARK}[found["outcome"]]
        panel.fill_between(x, [row["lower"] for row in rows], [row["upper"] for row in rows], color=GREY, alpha=0.6)
        panel.axhline(0, color=DARK, linewidth=0.8)
        panel.plot([x[-1]], [found["estimate"]], marker="o", markersize=5, color=color)
        panel.set(xlabel="live episodes", ylabel="gain per episode", xscale="log" if len(set(x)) > 1 else "linear")
        panel.set_title(f"{found['outcome']}: {100 * found['confidence']:g}% at all times", loc="left")
    return figure
