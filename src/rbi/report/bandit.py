"""Figures and tables of `rbi bandit` (the paper's Figures 1 and 2) and `rbi rules`."""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from rbi.report import ACCENT, DARK, GREY, LINES, WARNING, styled_figure, titled_table
from rbi.runs import Run

BANDS = 2  # rules with a quartile band: more would overlap unreadably
COLUMNS = 4  # panels per row of the rules figure
MAX_SHOWN_ACTIONS = 6  # policies with more actions do not fit a terminal; result.json has them


# Gain of one step (Figure 1)


def regret_figure(run: Run) -> Any:
    """Gain of one step over beta by beta(better arm); one row per scenario, one column per batch size (Figure 1)."""
    curves = run.finished()["curves"]
    scenarios, batches = distinct(curves, "stds"), distinct(curves, "samples")
    with styled_figure(2.4 * len(batches), 2.1 * len(scenarios) + 0.7) as figure:
        panels = figure.subplots(len(scenarios), len(batches), sharex=True, sharey="row", squeeze=False)
        for row, stds in zip(panels, scenarios, strict=True):
            for panel, n in zip(row, batches, strict=True):
                chosen = [c for c in curves if c["stds"] == stds and c["samples"] == n]
                for look, c in zip(LINES, chosen, strict=False):
                    panel.plot(c["beta_better"], c["gain"], label=c["rule"], **look)
                panel.axhline(0, color=DARK, linewidth=0.6)
                panel.set_title(f"N = {n:g},  sigma = ({stds})")
            row[0].set_ylabel("expected gain over beta")
        for panel in panels[-1]:
            panel.set_xlabel("beta(better arm)")
        finish(figure, panels, regret_caption(run), len(distinct(curves, "rule")))
    return figure


def regret_table(run: Run) -> Table:
    """Worst and best gain of each rule over all cases, and where the worst occurs."""
    table = titled_table(regret_caption(run))
    for name in ("rule", "worst gain", "at (N, sigma, beta)", "best gain"):
        table.add_column(name, justify="left" if name == "rule" else "right", no_wrap=True)
    curves = run.finished()["curves"]
    for rule in distinct(curves, "rule"):
        points = [
            (gain, (c["samples"], c["stds"], beta))
            for c in curves
            if c["rule"] == rule
            for gain, beta in zip(c["gain"], c["beta_better"], strict=True)
        ]
        (worst, where), best = min(points), max(gain for gain, _ in points)
        place = f"{where[0]:g}, ({where[1]}), {where[2]:.2f}"
        table.add_row(rule, f"{worst:+.3f}", place if worst < -1e-9 else "-", f"{best:+.3f}")
    return table


def regret_caption(run: Run) -> str:
    """What the figure shows, and its settings."""
    means = run.config["settings"]["means"]
    return (
        f"R^beta - R^pi: expected regret of beta minus that of pi after one step from a batch of N samples;"
        f" means ({means[0]:g}, {means[1]:g}).\nThe second arm is the better one; at the ends one arm has no samples."
    )


# Learning curves (Figure 2)


def learning_figure(run: Run) -> Any:
    """Learning curves, mean and quartiles; one row per scenario, one column per learning rate (Figure 2)."""
    curves = run.finished()["curves"]
    scenarios, rates = distinct(curves, "stds"), distinct(curves, "learning_rate")
    with styled_figure(3.6 * len(rates), 2.3 * len(scenarios) + 0.7) as figure:
        panels = figure.subplots(len(scenarios), len(rates), sharex=True, sharey=True, squeeze=False)
        for row, stds in zip(panels, scenarios, strict=True):
            for panel, rate in zip(row, rates, strict=True):
                chosen = [c for c in curves if c["stds"] == stds and c["learning_rate"] == rate]
                for look, c in zip(LINES, chosen, strict=False):
                    panel.plot(c["times"], c["mean"], label=c["rule"], **look)
                for look, c in zip(LINES[:BANDS], chosen, strict=False):
                    panel.fill_between(c["times"], c["lower"], c["upper"], color=look["color"], alpha=0.13, linewidth=0)
                panel.set(xscale="log", title=f"sigma = ({stds}),  learning rate {rate}")
            row[0].set_ylabel("expected reward of pi")
        for panel in panels[-1]:
            panel.set_xlabel("samples")
        finish(figure, panels, learning_caption(run), len(distinct(curves, "rule")))
    return figure


def learning_table(run: Run) -> Table:
    """Mean value of each curve at powers of ten and at the end."""
    curves = run.finished()["curves"]
    times = curves[0]["times"]
    shown = [nearest(times, milestone) for milestone in milestones(times[-1])]
    table = titled_table(learning_caption(run))
    for name in ("sigma", "learning rate", "rule", *(f"t={times[i]:,}" for i in shown)):
        table.add_column(name, justify="right" if name.startswith("t=") else "left", no_wrap=True)
    for c in curves:
        table.add_row(f"({c['stds']})", c["learning_rate"], c["rule"], *(f"{c['mean'][i]:+.3f}" for i in shown))
    return table


def nearest(times: Sequence[int], time: float) -> int:
    """Index of the nearest time."""
    return min(range(len(times)), key=lambda i: abs(times[i] - time))


def milestones(steps: int) -> list[float]:
    """Powers of ten up to the last step, and the last step."""
    return [*(10.0**k for k in range(1, 9) if 10**k < 0.7 * steps), float(steps)]


def learning_caption(run: Run) -> str:
    """What the figure shows, and its settings."""
    s = run.config["settings"]
    means = ", ".join(f"{m:g}" for m in s["means"])
    caption = (
        f"Means ({means}), {s['repetitions']:,} repetitions, exploration {s['exploration']:g}, floor {s['floor']:g},"
        f" {s['initial_samples']} initial uniform samples.\n"
        "Expected reward of pi after t samples: mean over repetitions; bands in the figure: quartiles of "
        f"{' and '.join(s['rules'][:BANDS])}."
    )
    if any(rule.startswith("ppo") for rule in s["rules"]) and len(s["means"]) == 2:
        caption += "\nWith two arms Max-PPO is the greedy step: the two curves differ by chance only."
    return caption


def finish(figure: Any, panels: Any, caption: str, rules: int) -> None:
    """Add legend and caption."""
    handles, labels = panels[0][0].get_legend_handles_labels()
    columns = rules if rules <= 5 else math.ceil(rules / 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=7.5, handlelength=2.8)
    figure.suptitle(caption, x=0.01, ha="left", fontsize=7.5)


def distinct(curves: Sequence[dict[str, Any]], key: str) -> list[Any]:
    """Distinct values of a key, in order of appearance."""
    return list(dict.fromkeys(curve[key] for curve in curves))


# Rules on one state


def rules_table(run: Run) -> Table:
    """One row per rule: the policy, its ratios to beta, its distance, improvement step and penalty."""
    table = titled_table(rules_caption(run))
    steps = run.finished()["steps"]
    shows_pi = len(steps[0]["pi"]) <= MAX_SHOWN_ACTIONS
    table.add_column("rule", no_wrap=True)
    for name in (*(["pi"] if shows_pi else []), "pi/beta", "TV", "improvement", "penalty std"):
        table.add_column(name, justify="right", no_wrap=name != "pi")  # in a narrow terminal pi takes two lines
    for step in steps:
        policy = [" ".join(f"{p:.2f}" for p in step["pi"])] if shows_pi else []
        ratios = f"{step['c_min']:.2f}..{step['c_max']:.2f}"
        numbers = f"{step['total_variation']:.2f}", f"{step['improvement']:.3g}", f"{step['penalty_std']:.3g}"
        table.add_row(step["rule"], *policy, ratios, *numbers)
    return table


def rules_figure(run: Run) -> Any:
    """One panel per rule with beta and pi; below them each improvement step with its error bar."""
    steps, beta = run.finished()["steps"], run.config["settings"]["beta"]
    rows = math.ceil(len(steps) / COLUMNS)
    height = 1.45 * rows + 0.2 * len(steps) + 1.2
    with styled_figure(7.2, height) as figure:
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
        draw_improvements(bottom.subplots(), steps)
        figure.suptitle(rules_caption(run), x=0.01, ha="left", fontsize=7.5)
    return figure


def draw_policy(panel: Any, step: dict[str, Any], beta: list[float]) -> None:
    """Wide grey bars for beta, narrow dark ones for pi."""
    actions = range(len(beta))
    panel.bar(actions, beta, width=0.86, color=GREY, label="beta")
    panel.bar(actions, step["pi"], width=0.42, color=ACCENT, label="pi")
    panel.set(ylim=(0, 1.04), xticks=list(actions), yticks=(0, 0.5, 1), xlabel="action")
    panel.set_title(f"{step['rule']}\nmax pi/beta {step['c_max']:.3g}", fontsize=7.5)


def draw_improvements(panel: Any, steps: list[dict[str, Any]]) -> None:
    """Improvement step of each rule, with an error bar of two standard deviations of the penalty."""
    for place, step in enumerate(steps):
        improvement, std = step["improvement"], step["penalty_std"]
        if improvement is None or not math.isfinite(improvement):
            panel.annotate("improvement unbounded", (0, place), (6, -3), textcoords="offset points", fontsize=7)
        elif math.isfinite(std):
            may_lose = 2 * std > improvement
            color = WARNING if may_lose else ACCENT
            marker = "o" if may_lose else "s"  # distinguishable without colour
            panel.errorbar(improvement, place, xerr=2 * std, fmt=marker, color=color, markersize=3.5, capsize=2)
        else:
            panel.plot(improvement, place, "o", color=WARNING, markersize=3.5)
            at, style = (improvement, place), {"color": WARNING, "fontsize": 7}
            panel.annotate("penalty unbounded", at, (6, -3), textcoords="offset points", **style)
    panel.axvline(0, color=DARK, linewidth=0.7)
    panel.set(yticks=range(len(steps)), yticklabels=[s["rule"] for s in steps], ylim=(len(steps) - 0.5, -0.5))
    panel.set_xlabel("improvement step +- 2 standard deviations of the penalty (circle: may be a loss)")


def rules_caption(run: Run) -> str:
    """Advantages, and how the penalty is computed."""
    settings = run.config["settings"]
    advantages = ", ".join(f"{a:g}" for a in settings["advantage"])
    return (
        f"Advantages ({advantages}).\nPenalty std: standard deviation of the improvement penalty"
        f" ({settings['visits']} visits, standard deviation of returns {settings['return_std']:g}, independent errors)."
    )
