"""The figures of the paper's section 3, from the run folders of `rbi bandit`."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rbi.report.style import ACCENT, DARK, GREY, LINES, LOOK, WARNING
from rbi.runs import Run

BANDS = 2  # quartiles of all rules on top of each other cannot be read


def regret_figure(run: Run) -> Any:
    """Figure 1: what one step gains over beta, against how good beta is; a row a scenario, a column a batch size."""
    settings, curves = run.config["settings"], run.finished()["curves"]
    scenarios, batches = settings["stds"], settings["samples"]
    with plt.rc_context(LOOK):
        size = (2.4 * len(batches), 2.1 * len(scenarios) + 0.7)
        figure: Any = plt.figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(scenarios), len(batches), sharex=True, sharey="row", squeeze=False)
        for row, stds in zip(panels, scenarios, strict=True):
            for panel, n in zip(row, batches, strict=True):
                chosen = [c for c in curves if c["stds"] == stds and c["samples"] == n]
                for look, c in zip(LINES, chosen, strict=False):
                    panel.plot(c["better"], c["gain"], label=c["rule"], **look)
                panel.axhline(0, color=DARK, linewidth=0.6)
                panel.set_title(f"N = {n:g},  sigma = ({stds})")
            row[0].set_ylabel("gain over beta")
        for panel in panels[-1]:
            panel.set_xlabel("beta(better arm)")
        finish(figure, panels, regret_caption(run), len(settings["rules"]))
    return figure


def learning_figure(run: Run) -> Any:
    """Figure 2: learning curves in log time, mean and quartiles; a row a scenario, a column a learning rate."""
    settings, curves = run.config["settings"], run.finished()["curves"]
    scenarios, rates = settings["stds"], settings["rates"]
    with plt.rc_context(LOOK):
        size = (3.6 * len(rates), 2.3 * len(scenarios) + 0.7)
        figure: Any = plt.figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(scenarios), len(rates), sharex=True, sharey=True, squeeze=False)
        for row, stds in zip(panels, scenarios, strict=True):
            for panel, rate in zip(row, rates, strict=True):
                chosen = [c for c in curves if c["stds"] == stds and c["rate"] == rate]
                for look, c in zip(LINES, chosen, strict=False):
                    panel.plot(c["times"], c["mean"], label=c["rule"], **look)
                for look, c in zip(LINES[:BANDS], chosen, strict=False):
                    panel.fill_between(c["times"], c["lower"], c["upper"], color=look["color"], alpha=0.13, linewidth=0)
                panel.set(xscale="log", title=f"sigma = ({stds}),  learning rate {rate}")
            row[0].set_ylabel("value of pi")
        for panel in panels[-1]:
            panel.set_xlabel("samples")
        finish(figure, panels, learning_caption(run), len(settings["rules"]))
    return figure


def finish(figure: Any, panels: Any, caption: str, rules: int) -> None:
    handles, labels = panels[0][0].get_legend_handles_labels()
    columns = rules if rules <= 5 else math.ceil(rules / 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=7.5, handlelength=2.8)
    figure.suptitle(caption, x=0.01, ha="left", fontsize=7.5)
    plt.close(figure)


def regret_table(run: Run) -> Table:
    """Per rule: the worst and the best gain over the whole grid, and where the worst is."""
    table = Table(title=regret_caption(run), title_justify="left", title_style="", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("rule", "worst gain", "at (N, sigma, beta)", "best gain"):
        table.add_column(name, justify="left" if name == "rule" else "right", no_wrap=True)
    curves = run.finished()["curves"]
    for rule in run.config["settings"]["rules"]:
        own = [c for c in curves if c["rule"] == rule]
        worst, where = min((g, (c["samples"], c["stds"], b)) for c in own for g, b in grid(c))
        best = max(g for c in own for g, _ in grid(c))
        place = f"{where[0]:g}, ({where[1]}), {where[2]:.2f}"
        table.add_row(rule, f"{worst:+.3f}", place if worst < -1e-9 else "-", f"{best:+.3f}")
    return table


def grid(curve: dict[str, Any]) -> Sequence[tuple[float, float]]:
    return list(zip(curve["gain"], curve["better"], strict=True))


def learning_table(run: Run) -> Table:
    """Per panel and rule: the mean value early, in the middle and at the end."""
    curves = run.finished()["curves"]
    times = curves[0]["times"]
    shown = [nearest(times, moment) for moment in milestones(times[-1])]
    table = Table(title=learning_caption(run), title_justify="left", title_style="", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("sigma", "rate", "rule", *(f"t={times[i]:,}" for i in shown)):
        table.add_column(name, justify="right" if name.startswith("t=") else "left", no_wrap=True)
    for c in curves:
        table.add_row(f"({c['stds']})", str(c["rate"]), c["rule"], *(f"{c['mean'][i]:+.3f}" for i in shown))
    return table


def nearest(times: Sequence[int], moment: float) -> int:
    """Where in `times` the moment is, or nearly."""
    return min(range(len(times)), key=lambda i: abs(times[i] - moment))


def milestones(steps: int) -> list[float]:
    """Powers of ten up to the end of the run, and the end."""
    return [*(10.0**k for k in range(1, 9) if 10**k < 0.7 * steps), float(steps)]


def regret_caption(run: Run) -> str:
    means = run.config["settings"]["means"]
    return (
        f"Expected regret of beta minus that of pi, one step from a batch of N; means ({means[0]:g}, {means[1]:g}).\n"
        "The second arm is the better one; at the ends one arm has no sample."
    )


def learning_caption(run: Run) -> str:
    s = run.config["settings"]
    means = ", ".join(f"{m:g}" for m in s["means"])
    return (
        f"Means ({means}), {s['repetitions']:,} repetitions, exploration {s['exploration']:g}, floor {s['floor']:g},"
        f" {s['first']} uniform samples first.\nLines: means;"
        f" bands: quartiles of {' and '.join(s['rules'][:BANDS])}." + two_armed_ppo(s)
    )


def two_armed_ppo(settings: dict[str, Any]) -> str:
    """What a reader of the figure must know, or they look for a line that lies under another."""
    shown = any(rule.startswith("ppo") for rule in settings["rules"]) and len(settings["means"]) == 2
    return "\nWith two arms Max-PPO is the greedy step: the two differ by chance only." if shown else ""


# ---- from rbi.report.one_state: The picture and the table of `rbi rules`: what each rule makes of one state.

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
