"""The table of `rbi offline` beside the paper's, its learning curves, and how far beta and Q can be trusted."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rbi.evaluation import comparison
from rbi.evaluation.comparison import game_name
from rbi.report.style import DARK, LINES, LOOK
from rbi.runs import Run

PAPER = {  # final scores of the paper's appendix
    "MsPacman": {"crowd": 3024, "behavior": 1519, "reroute(0.5,1.5)": 1550, "reroute(0.25,1.75)": 1638,
                 "reroute(0,2)": 1565, "tv(0.25)": 1352, "ppo(0.5) by ascent": 1528, "DQfD": 83},
    "Qbert": {"crowd": 3401, "behavior": 8562, "reroute(0.5,1.5)": 12123, "reroute(0.25,1.75)": 13254,
              "reroute(0,2)": 14494, "tv(0.25)": 5089, "ppo(0.5) by ascent": 14089, "DQfD": 1404},
    "MontezumaRevenge": {"crowd": 1436, "behavior": 1761, "reroute(0.5,1.5)": 2379, "reroute(0.25,1.75)": 2431,
                         "reroute(0,2)": 473, "tv(0.25)": 390, "ppo(0.5) by ascent": 388, "DQfD": 1315},
    "SpaceInvaders": {"crowd": 634, "behavior": 678, "reroute(0.5,1.5)": 709, "reroute(0.25,1.75)": 682,
                      "reroute(0,2)": 675, "tv(0.25)": 573, "ppo(0.5) by ascent": 547, "DQfD": 402},
}  # fmt: skip
NAMES = {"behavior": "behaviour, cloned", "crowd": "the crowd itself", "ppo(0.5)": "ppo(0.5), closed form"}
FEW: dict[str, Any] = {"marker": "o", "markersize": 4}  # a line of one point would not be seen
VERDICTS = {"above": "above", "not below": "not below", "below": "below", "open": "open"}


def tables(run: Run) -> list[Table]:
    """Scores, what each rule does to beta, and the diagnosis of beta and Q."""
    return [scores(run), steps(run), trust(run)]


def scores(run: Run) -> Table:
    """The paper's table."""
    found = run.finished()
    of_paper = PAPER.get(game_name(found["env"]), {})
    seeds = len(found["held_out"])
    title = f"{found['env']}, {found['updates']:,} updates, {seeds} seed{'s' if seeds > 1 else ''}"
    table = Table(box=SIMPLE_HEAD, title=title, caption=found["told"])
    columns = ["policy", "mean", "95% interval", "IQM", "median", "quartiles", "P(below)", "verdict"]
    for name in columns + ["paper"] * bool(of_paper):
        table.add_column(name, justify="left" if name in ("policy", "verdict") else "right")
    cut = found["crowd"].get("cut_at")
    if cut:
        table.caption = f"{found['told']}; the crowd too is counted up to {cut:,} steps"
    for row in [found["crowd"] | {"name": "crowd"}, *found["rows"]]:
        cells = [NAMES.get(row["name"], row["name"]), number(row["mean"]), between(row["interval"])]
        cells += [number(row["iqm"]) if "iqm" in row else "", number(row["median"]), between(row["quartiles"])]
        compared = row.get("below") is not None
        cells += [f"{row['below']:.2f}" if compared else "", VERDICTS[row["verdict"]] if compared else ""]
        paper = of_paper.get(row["name"])
        cells += [f"{paper:,}" if paper is not None else ""] * bool(of_paper)
        table.add_row(*cells)
    return table


def steps(run: Run) -> Table:
    """How far each rule goes from beta, in held-out steps: means over seeds."""
    found = run.finished()["steps"]
    table = Table(box=SIMPLE_HEAD, title="what each step does to beta, in held-out states")
    for name in ("rule", "mass moved", "at c_min", "at c_max", "gain that Q expects"):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for rule in found[0]:
        mean = {key: float(np.mean([seed[rule][key] for seed in found])) for key in found[0][rule]}
        bounds = [f"{mean[key]:.0%}" if key in mean else "" for key in ("at_c_min", "at_c_max")]
        table.add_row(rule, f"{mean['moved']:.3f}", *bounds, f"{mean['expected_step']:+.4f}")
    return table


def trust(run: Run) -> Table:
    """How well beta and Q do on episodes that they did not learn from."""
    found = run.finished()
    table = Table(box=SIMPLE_HEAD, title="beta and Q on held-out steps")
    table.add_column("")
    for number_ in range(len(found["held_out"])):
        table.add_column(f"seed {run.config['seed'] + number_}", justify="right")
    for name, key, form in (
        ("steps looked at", "steps", "{:,}"),
        ("log-likelihood of an action", "likelihood", "{:.3f}"),
        ("  at the best temperature", "likelihood_calibrated", "{:.3f}"),
        ("  of mere frequencies", "likelihood_of_frequencies", "{:.3f}"),
        ("best temperature", "temperature", "{:.2f}"),
        ("actions foretold", "accuracy", "{:.1%}"),
        ("  by the commonest", "accuracy_of_the_commonest", "{:.1%}"),
        ("error of Q, root mean square", "q_error", "{:.3f}"),
        ("bias of Q", "q_bias", "{:+.3f}"),
        ("variance of returns explained", "q_explained", "{:.1%}"),
    ):
        table.add_row(name, *("-" if seed[key] is None else form.format(seed[key]) for seed in found["held_out"]))
    left_out = found["crowd"]["cut_off_share"]
    if left_out:
        table.caption = (
            f"{left_out:.1%} of the steps were cut off too near their end for Q; beta learned from them all the same"
        )
    return table


def closing(run: Run) -> list[str]:
    """What the table comes to, in words."""
    found = run.finished()
    compared = [row for row in found["rows"] if row.get("below") is not None]
    safe = next((row for row in compared if row["name"] == "reroute(0.5,1.5)"), None)
    lines = []
    if safe is not None:
        low, high = safe["difference_bounds"]
        lines.append(
            f"reroute(0.5,1.5) is {said(safe['verdict'])} the cloned behaviour: {safe['difference']:+,.1f} "
            f"({low:+,.1f} to {high:+,.1f}; margin {found['margin']:.0%})"
        )
    if compared and min(len(seed) for row in compared for seed in row["scores"]) < comparison.MIN_EPISODES:
        return [f"fewer than {comparison.MIN_EPISODES} episodes of each policy and seed: no verdicts"]
    for verdict, told in (("below", "fell below it"), ("open", "not decided by so many episodes")):
        names = [NAMES.get(row["name"], row["name"]) for row in compared if row["verdict"] == verdict]
        if names:
            lines.append(f"{told}: {', '.join(names)}")
    return lines


def said(verdict: str) -> str:
    return {"open": "neither shown to be below nor not below"}.get(verdict, verdict)


def figures(run: Run) -> dict[str, Any]:
    return {"curves": curves(run), "overfitting": overfitting(run), "reliability": reliability(run)}


def curves(run: Run) -> Any:
    """Scores while learning: a panel of the rules on top of beta, one of what is learned otherwise.

    (paper: the figure of section 4)
    """
    found = run.finished()
    played = [line for line in run.metrics if line["kind"] == "played"]
    updates = np.array([line["updates"] for line in played]) / 1000
    with plt.rc_context(LOOK):
        figure: Any = plt.figure(figsize=(7.6, 3.2), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        own = [row["name"] for row in found["rows"] if row["learner"] == "fit" and row["name"] != "behavior"]
        others = [row["name"] for row in found["rows"] if row["learner"] != "fit"]
        for panel, names, title in zip(
            panels, (own, others), ("steps from beta and Q", "learned otherwise"), strict=True
        ):
            for look, name in zip(LINES, ["behavior", *names], strict=False):
                means = np.array([np.mean([np.mean(seed) for seed in line["scores"][name]]) for line in played])
                panel.plot(updates, means, label=NAMES.get(name, name), **look, **FEW if len(updates) < 3 else {})
                low, high = (
                    [np.percentile(np.concatenate(line["scores"][name]), q) for line in played] for q in (25, 75)
                )
                if name == "behavior":
                    panel.fill_between(updates, low, high, color=look["color"], alpha=0.13, linewidth=0)
            panel.axhline(found["crowd"]["mean"], color=DARK, linewidth=0.7, linestyle=(0, (1, 3)))
            panel.annotate("the crowd", (updates[0], found["crowd"]["mean"]), fontsize=6.5, va="bottom")
            panel.set(xlabel="thousand updates")
            panel.set_title(title, loc="left")
            panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=2, fontsize=6.5)
        panels[0].set_ylabel("score")
    plt.close(figure)  # pyplot need not remember it
    return figure


def overfitting(run: Run) -> Any:
    """beta's likelihood and Q's error, on what is learned from and on what is held out."""
    looked = [line for line in run.metrics if line["kind"] == "looked"]
    with plt.rc_context(LOOK):
        figure: Any = plt.figure(figsize=(6.4, 2.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        for look, seed in zip(LINES, dict.fromkeys(line["seed"] for line in looked), strict=False):
            lines = [line for line in looked if line["seed"] == seed]
            updates = [line["updates"] / 1000 for line in lines]
            colour = look["color"]
            left.plot(updates, [-line["learned"]["beta_loss"] for line in lines], color=colour, linestyle=":")
            left.plot(updates, [line["held_out"]["likelihood"] for line in lines], color=colour, label=f"seed {seed}")
            right.plot(updates, [line["learned"]["q_loss"] ** 0.5 for line in lines], color=colour, linestyle=":")
            right.plot(updates, [line["held_out"]["q_error"] for line in lines], color=colour, label=f"seed {seed}")
        left.set(xlabel="thousand updates", ylabel="log-likelihood of an action")
        right.set(xlabel="thousand updates", ylabel="error of Q, root mean square")
        left.set_title("beta: held out", loc="left")
        right.set_title("Q: held out; dotted: while learning", loc="left")
        left.legend(loc="best")
    plt.close(figure)  # pyplot need not remember it
    return figure


def reliability(run: Run) -> Any:
    """Returns that came against values that were foretold, in tenths of the held-out steps."""
    found = run.finished()
    with plt.rc_context(LOOK):
        figure: Any = plt.figure(figsize=(3.4, 3.0), layout="constrained")
        panel = figure.subplots()
        for number_, (look, seed) in enumerate(zip(LINES, found["held_out"], strict=False)):
            binned = seed["reliability"]
            panel.plot(
                binned["predicted"], binned["seen"], marker="o", markersize=3,
                label=f"seed {run.config['seed'] + number_}", **look,
            )  # fmt: skip
        low, high = min(panel.get_xlim()[0], panel.get_ylim()[0]), max(panel.get_xlim()[1], panel.get_ylim()[1])
        panel.plot([low, high], [low, high], color=DARK, linewidth=0.6, linestyle=(0, (1, 3)))
        panel.set(xlabel="Q foretold", ylabel="return that came", xlim=(low, high), ylim=(low, high))
        panel.legend(loc="upper left")
    plt.close(figure)  # pyplot need not remember it
    return figure


def number(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def between(pair: Any) -> str:
    return f"{number(pair[0])} to {number(pair[1])}"
