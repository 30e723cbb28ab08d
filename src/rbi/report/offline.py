"""Tables and figures of `rbi offline`, from its run folder."""

import itertools
from typing import Any

import numpy as np
from rich.table import Table

from rbi.evaluation import comparison
from rbi.evaluation.comparison import game_name
from rbi.report import DARK, LINES, label_lines, numbers_table, styled_figure
from rbi.runs import Run

PAPER = {  # final scores of the paper's appendix
    "MsPacman": {"population": 3024, "behavior": 1519, "reroute(0.5,1.5)": 1550, "reroute(0.25,1.75)": 1638,
                 "reroute(0,2)": 1565, "tv(0.25)": 1352, "ppo(0.5) by ascent": 1528, "DQfD": 83},
    "Qbert": {"population": 3401, "behavior": 8562, "reroute(0.5,1.5)": 12123, "reroute(0.25,1.75)": 13254,
              "reroute(0,2)": 14494, "tv(0.25)": 5089, "ppo(0.5) by ascent": 14089, "DQfD": 1404},
    "MontezumaRevenge": {"population": 1436, "behavior": 1761, "reroute(0.5,1.5)": 2379, "reroute(0.25,1.75)": 2431,
                         "reroute(0,2)": 473, "tv(0.25)": 390, "ppo(0.5) by ascent": 388, "DQfD": 1315},
    "SpaceInvaders": {"population": 634, "behavior": 678, "reroute(0.5,1.5)": 709, "reroute(0.25,1.75)": 682,
                      "reroute(0,2)": 675, "tv(0.25)": 573, "ppo(0.5) by ascent": 547, "DQfD": 402},
}  # fmt: skip
NAMES = {
    "behavior": "behaviour policy (cloned)",
    "bcq(1)": "behaviour policy, most probable actions",
    "population": "the population",
    "ppo(0.5)": "ppo(0.5), closed form",
}
FEW: dict[str, Any] = {"marker": "o", "markersize": 4}  # a line of one point is invisible without a marker


def tables(run: Run) -> list[Table]:
    """Scores, what each rule changes, and diagnostics of beta and Q."""
    return [score_table(run), rule_table(run), diagnostics_table(run)]


def score_table(run: Run) -> Table:
    """Final scores of all policies, compared with the behaviour policy.      (paper: table of final scores)"""
    found = run.finished()
    of_paper = PAPER.get(game_name(found["env"]), {})
    seeds = len(found["validation"])
    title = f"{found['env']}, {found['updates']:,} updates, {seeds} seed{'s' if seeds > 1 else ''}"
    columns = ["policy", "mean", "95% interval", "IQM", "median", "quartiles", "P(below)", "verdict"]
    columns += ["paper"] * bool(of_paper)
    optional = ("quartiles", "median", "IQM")
    table = numbers_table(title, columns, texts=("policy", "verdict"), optional=optional, caption=found["protocol"])
    max_steps = found["population"].get("max_steps")
    if max_steps:
        table.caption = f"{found['protocol']}; scores of the data also count up to {max_steps:,} steps"
    for row in [found["population"] | {"name": "population"}, *found["rows"]]:
        cells = [NAMES.get(row["name"], row["name"]), number(row["mean"]), between(row["interval"])]
        cells += [number(row["iqm"]) if "iqm" in row else "", number(row["median"]), between(row["quartiles"])]
        compared = row.get("below") is not None
        cells += [f"{row['below']:.2f}" if compared else "", row["verdict"] if compared else ""]
        paper = of_paper.get(row["name"])
        cells += [f"{paper:,}" if paper is not None else ""] * bool(of_paper)
        table.add_row(*cells)
    return table


def rule_table(run: Run) -> Table:
    """What each rule changes on the validation set: means over seeds."""
    found = run.finished()["rule_statistics"]
    columns = ("rule", "total variation", "beta at c_min", "beta at c_max", "expected gain, by Q")
    table = numbers_table("changes by each rule, validation set", columns, texts=("rule",))
    table.columns[0].no_wrap = True
    for rule in found[0]:
        mean = {key: float(np.mean([seed[rule][key] for seed in found])) for key in found[0][rule]}
        bounds = [f"{mean[key]:.0%}" if key in mean else "" for key in ("at_c_min", "at_c_max")]
        table.add_row(rule, f"{mean['total_variation']:.3f}", *bounds, f"{mean['expected_gain']:+.4f}")
    return table


def diagnostics_table(run: Run) -> Table:
    """How well beta and Q predict the validation set."""
    found = run.finished()
    seeds = [f"seed {seed}" for seed, _ in enumerate(found["validation"], run.config["seed"])]
    table = numbers_table("beta and Q, validation set", ["", *seeds], texts=("",))
    for name, key, form in (
        ("steps", "steps", "{:,}"),
        ("beta: log-likelihood", "log_likelihood", "{:.3f}"),
        ("  calibrated", "log_likelihood_calibrated", "{:.3f}"),
        ("  of action frequencies", "log_likelihood_of_frequencies", "{:.3f}"),
        ("beta: temperature", "temperature", "{:.2f}"),
        ("beta: accuracy", "accuracy", "{:.1%}"),
        ("  of the most frequent action", "majority_accuracy", "{:.1%}"),
        ("Q: RMSE", "q_rmse", "{:.3f}"),
        ("Q: bias", "q_bias", "{:+.3f}"),
        ("Q: explained variance", "q_explained_variance", "{:.1%}"),
    ):
        table.add_row(name, *("-" if seed[key] is None else form.format(seed[key]) for seed in found["validation"]))
    excluded = found["population"]["excluded"]
    if excluded:
        table.caption = f"{excluded:.1%} of the steps are excluded from Q, not from beta: their returns are truncated"
    return table


def closing(run: Run) -> list[str]:
    """Conclusions of the table."""
    found = run.finished()
    compared = [row for row in found["rows"] if row.get("below") is not None]
    reroute = next((row for row in compared if row["name"] == "reroute(0.5,1.5)"), None)
    lines = overfitting_advice(run)
    if reroute is not None:
        low, high = reroute["difference_bounds"]
        verdict = {"open": "neither shown to be below nor not below"}.get(reroute["verdict"], reroute["verdict"])
        lines.append(
            f"reroute(0.5,1.5) is {verdict} the behaviour policy: {reroute['difference']:+,.1f} "
            f"({low:+,.1f} to {high:+,.1f}; margin {found['margin']:.0%})"
        )
    if compared and min(len(seed) for row in compared for seed in row["scores"]) < comparison.MIN_EPISODES:
        few = f"fewer than {comparison.MIN_EPISODES} episodes of each policy and seed: no verdicts"
        return [*overfitting_advice(run), few]
    for verdict, words in (("below", "below the behaviour policy"), ("open", "undecided with this many episodes")):
        names = [NAMES.get(row["name"], row["name"]) for row in compared if row["verdict"] == verdict]
        if names:
            lines.append(f"{words}: {', '.join(names)}")
    return lines


def overfitting_advice(run: Run) -> list[str]:
    """Which of beta and Q overfits, and what helps; earlier versions did not look."""
    return [one["advice"] for one in run.finished().get("overfitting", [])]


def figures(run: Run) -> dict[str, Any]:
    """All figures, by file name."""
    return {"curves": curves(run), "overfitting": overfitting(run), "reliability": reliability(run)}


def curves(run: Run) -> Any:
    """Learning curves: one panel of the rules on top of beta and Q, one of the baselines.

    (paper: the figure of section 4)
    """
    found = run.finished()
    evaluated = [line for line in run.metrics if line["kind"] == "evaluated"]
    updates = np.array([line["updates"] for line in evaluated]) / 1000
    with styled_figure(7.6, 3.2) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        own = [row["name"] for row in found["rows"] if row["learner"] == "behavior_q" and row["name"] != "behavior"]
        others = [row["name"] for row in found["rows"] if row["learner"] != "behavior_q"]
        for panel, names, title in zip(panels, (own, others), ("rules on beta and Q", "baselines"), strict=True):
            for look, name in zip(itertools.cycle(LINES), ["behavior", *names], strict=False):
                means = np.array([np.mean([np.mean(seed) for seed in line["scores"][name]]) for line in evaluated])
                panel.plot(updates, means, label=NAMES.get(name, name), **look, **FEW if len(updates) < 3 else {})
                low, high = (
                    [np.percentile(np.concatenate(line["scores"][name]), q) for line in evaluated] for q in (25, 75)
                )
                if name == "behavior":
                    panel.fill_between(updates, low, high, color=look["color"], alpha=0.13, linewidth=0)
            panel.axhline(found["population"]["mean"], color=DARK, linewidth=0.7, linestyle=(0, (1, 3)))
            panel.annotate("population", (updates[0], found["population"]["mean"]), fontsize=6.5, va="bottom")
            panel.set(xlabel="thousand updates")
            panel.set_title(title, loc="left")
        panels[0].set_ylabel("score")
        for panel in panels:
            label_lines(panel)
    return figure


def training_rmse(line: dict[str, Any]) -> float:
    """RMSE of Q on training batches; earlier versions logged the loss only."""
    train = line["train"]
    return float(train["q_rmse"] if "q_rmse" in train else train["q_loss"] ** 0.5)


def overfitting(run: Run) -> Any:
    """Training and validation curves of beta and Q."""
    validated = [line for line in run.metrics if line["kind"] == "validated"]
    with styled_figure(6.4, 2.6) as figure:
        left, right = figure.subplots(1, 2)
        for look, seed in zip(itertools.cycle(LINES), dict.fromkeys(line["seed"] for line in validated), strict=False):
            lines = [line for line in validated if line["seed"] == seed]
            updates = [line["updates"] / 1000 for line in lines]
            colour = look["color"]
            left.plot(updates, [-line["train"]["beta_loss"] for line in lines], color=colour, linestyle=":")
            left.plot(
                updates, [line["validation"]["log_likelihood"] for line in lines], color=colour, label=f"seed {seed}"
            )
            right.plot(updates, [training_rmse(line) for line in lines], color=colour, linestyle=":")
            right.plot(updates, [line["validation"]["q_rmse"] for line in lines], color=colour, label=f"seed {seed}")
        left.set(xlabel="thousand updates", ylabel="log-likelihood")
        right.set(xlabel="thousand updates", ylabel="RMSE")
        left.set_title("beta: validation", loc="left")
        right.set_title("Q: validation (dotted: training)", loc="left")
        left.legend(loc="best")
    return figure


def reliability(run: Run) -> Any:
    """Reliability diagram: predicted Q against mean return, in bins of equal size."""
    found = run.finished()
    with styled_figure(3.4, 3.0) as figure:
        panel = figure.subplots()
        for number_, (look, seed) in enumerate(zip(itertools.cycle(LINES), found["validation"], strict=False)):
            binned = seed["reliability"]
            panel.plot(
                binned["predicted"], binned["observed"], marker="o", markersize=3,
                label=f"seed {run.config['seed'] + number_}", **look,
            )  # fmt: skip
        low, high = min(panel.get_xlim()[0], panel.get_ylim()[0]), max(panel.get_xlim()[1], panel.get_ylim()[1])
        panel.plot([low, high], [low, high], color=DARK, linewidth=0.6, linestyle=(0, (1, 3)))
        panel.set(xlabel="predicted Q(s, a)", ylabel="mean return", xlim=(low, high), ylim=(low, high))
        panel.legend(loc="upper left")
    return figure


def number(value: float) -> str:
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def between(pair: Any) -> str:
    return f"{number(pair[0])} to {number(pair[1])}"
