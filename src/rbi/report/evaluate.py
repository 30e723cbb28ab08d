"""The table and the figure of `rbi evaluate`."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rbi.report.style import ACCENT, DARK, GREY, LOOK
from rbi.runs import Run


def score_table(run: Run) -> Table:
    """What the scores say, and under which protocol."""
    found = run.finished()
    low, high = found["interval"]
    rows = {
        "mean": f"{found['mean']:,.1f}   (95% interval {low:,.1f} to {high:,.1f})",
        "median": f"{found['median']:,.1f}",
        "quartiles": "{:,.1f} to {:,.1f}".format(*found["quartiles"]),
        "range": f"{found['least']:,.1f} to {found['most']:,.1f}",
        "human-normalised": human_text(found["human_normalised"]),
        "cut off by time": f"{found['cut_off']} of {found['episodes']}",
    }
    table = Table(box=SIMPLE_HEAD, title=f"{found['env']}, {found['episodes']} episodes", caption=found["told"])
    table.add_column("")
    table.add_column("score")
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def human_text(value: float | None) -> str:
    return "not known for this environment" if value is None else f"{100 * value:,.0f}%"


def score_figure(run: Run) -> Any:
    """The scores of all episodes in order of size, with their mean."""
    found = run.finished()
    scores = np.sort(found["scores"])
    with plt.rc_context(LOOK):
        figure: Any = plt.figure(figsize=(4.6, 2.6), layout="constrained")
        panel = figure.subplots()
        panel.bar(np.arange(1, len(scores) + 1), scores, color=GREY, width=0.9)
        panel.axhline(found["mean"], color=ACCENT, linewidth=1.4)
        panel.axhspan(*found["interval"], color=ACCENT, alpha=0.15, linewidth=0)
        at = (0.02, found["mean"])
        panel.annotate(f" mean {found['mean']:,.1f}", at, xycoords=("axes fraction", "data"), va="bottom", color=DARK)
        panel.set(xlabel="episode, lowest score first", ylabel="score")
        panel.set_title(f"{found['env']}: {found['protocol']} protocol", loc="left")
    plt.close(figure)  # pyplot need not remember it
    return figure
