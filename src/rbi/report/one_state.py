"""The picture and the table of `rbi rules`: what each rule makes of one state."""

import math
from typing import Any

import matplotlib.pyplot as plt
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rbi.report.style import ACCENT, DARK, GREY, LOOK, WARNING
from rbi.runs import Run

COLUMNS = 4


def table(run: Run) -> Table:
    """One row a rule: the policy, its ratios to beta, the distance, the promise and the risk."""
    table = Table(
        title=caption(run), title_justify="left", title_style="", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True
    )
    steps = run.finished()["steps"]
    shows_pi = len(steps[0]["pi"]) <= 6  # more would push the numbers out of a terminal; result.json has them
    table.add_column("rule", no_wrap=True)
    for name in (*(["pi"] if shows_pi else []), "pi/beta", "TV", "promise", "risk"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in steps:
        policy = [" ".join(f"{p:.2f}" for p in step["pi"])] if shows_pi else []
        ratios = f"{step['c_min']:.2f}..{step['c_max']:.2f}"
        numbers = (step["total_variation"], step["promise"], step["risk"])
        table.add_row(step["rule"], *policy, ratios, *(f"{x:.2f}" for x in numbers))
    return table


def figure(run: Run) -> Any:
    """A panel a rule with beta behind and pi in front; below them what each promises, with its error bar."""
    steps, beta = run.finished()["steps"], run.config["settings"]["beta"]
    rows = math.ceil(len(steps) / COLUMNS)
    height = 1.45 * rows + 0.2 * len(steps) + 1.2
    with plt.rc_context(LOOK):
        figure: Any = plt.figure(figsize=(7.2, height), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.45 * rows, 0.2 * len(steps) + 0.7))
        panels = list(top.subplots(rows, COLUMNS, squeeze=False).flat)
        for panel, step in zip(panels, steps, strict=False):
            draw_policy(panel, step, beta)
        for panel in panels[len(steps) :]:
            panel.axis("off")
        for panel in panels[: len(steps) : COLUMNS]:
            panel.set_ylabel("probability")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper right", ncols=2, fontsize=7, handlelength=1.2)
        draw_promises(bottom.subplots(), steps)
        figure.suptitle(caption(run), x=0.01, ha="left", fontsize=7.5)
        plt.close(figure)
    return figure


def draw_policy(panel: Any, step: dict[str, Any], beta: list[float]) -> None:
    """Wide grey bars for beta, narrow dark ones for pi."""
    actions = range(len(beta))
    panel.bar(actions, beta, width=0.86, color=GREY, label="beta")
    panel.bar(actions, step["pi"], width=0.42, color=ACCENT, label="pi")
    panel.set(ylim=(0, 1.04), xticks=list(actions), yticks=(0, 0.5, 1))
    panel.set_title(f"{step['rule']}\nlargest ratio {step['c_max']:.3g}", fontsize=7.5)


def draw_promises(panel: Any, steps: list[dict[str, Any]]) -> None:
    """One line a rule: the promised step, with two standard deviations of what errors can take from it (or add)."""
    for place, step in enumerate(steps):
        if not math.isfinite(step["promise"]):
            panel.annotate("promise unbounded", (0, place), (6, -3), textcoords="offset points", fontsize=7)
        elif math.isfinite(step["risk"]):
            may_lose = 2 * step["risk"] > step["promise"]
            color = WARNING if may_lose else ACCENT
            marker = "o" if may_lose else "s"  # told apart without colour too
            panel.errorbar(
                step["promise"], place, xerr=2 * step["risk"], fmt=marker, color=color, markersize=3.5, capsize=2
            )
        else:
            panel.plot(step["promise"], place, "o", color=WARNING, markersize=3.5)
            panel.annotate(
                "risk unbounded",
                (step["promise"], place),
                (6, -3),
                textcoords="offset points",
                color=WARNING,
                fontsize=7,
            )
    panel.axvline(0, color=DARK, linewidth=0.7)
    panel.set(yticks=range(len(steps)), yticklabels=[s["rule"] for s in steps], ylim=(len(steps) - 0.5, -0.5))
    panel.set_xlabel("promised improvement step, with two standard deviations of the penalty (round: may lose)")


def caption(run: Run) -> str:
    settings = run.config["settings"]
    advantages = ", ".join(f"{a:g}" for a in settings["advantage"])
    return (
        f"Advantages ({advantages}).\nRisk: standard deviation of the penalty"
        f" ({settings['visits']} visits, returns +- {settings['return_std']:g}, independent errors)."
    )
