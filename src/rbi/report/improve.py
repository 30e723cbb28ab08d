"""Tables and figures of `rbi improve`, `rbi certify` and `rbi monitor`, from their run folders."""

import math
from typing import Any, Literal

import numpy as np
from rich.table import Table

from rbi.certification.estimates import Ratios, reroute_total_variation
from rbi.data.episode import Feature, feature_slices
from rbi.report import ACCENT, DARK, GREY, LINES, WARNING, facts_table, name_ticks, numbers_table, styled_figure
from rbi.report.data import action_names, date_text
from rbi.rules.types import Behavior, Reroute, TotalVariation, parse_rule
from rbi.runs import Run

SHOWN_ACTIONS, SHOWN_STEPS = 20, 10
FEW_STEPS = 100
MOSTLY = 0.5  # of the training steps: Q is then that of a small, perhaps special part of the data


def tables(run: Run) -> list[Table]:
    """All tables of a run."""
    found = run.finished()
    features = [feature_table(found)] if found["changes"]["features"] else []
    return [
        diagnostics_table(found),
        change_table(found),
        action_table(found),
        value_table(found),
        *features,
        largest_table(found),
    ]


def diagnostics_table(found: dict[str, Any]) -> Table:
    """How well beta and Q predict the test episodes."""
    values, test, best = found["diagnostics"], found["test"], found["best"]
    validation = found["validation"]
    explained = values["q_explained_variance"]
    rows = {
        "data": f"{found['episodes']:,} episodes, {found['steps']:,} steps, {found['rejected']:,} rejected, "
        f"{found['lost']:,} lost",
        "test set": f"{test['episodes']:,} episodes, {test['steps']:,} steps (validation set: "
        f"{validation['episodes']:,} episodes, {validation['steps']:,} steps)",
        "best checkpoints": (f"beta after {best['beta']['updates']:,} and " if "beta" in best else "")
        + f"Q after {best['q']['updates']:,} of {found['updates']:,} updates",
        "beta: log-likelihood": f"{values['log_likelihood_calibrated']:.4f} calibrated, "
        f"{values['log_likelihood']:.4f} before; {values['log_likelihood_of_frequencies']:.4f} for action frequencies",
        "beta: accuracy": f"{percent(values['accuracy'])}; {percent(values['majority_accuracy'])} for the most "
        "frequent action",
        "beta: temperature": temperature_text(found),
        "Q: RMSE, bias": f"{values['q_rmse']:.4g}, {values['q_bias']:+.3g}",
        "Q: explained variance": "all returns are equal" if explained is None else percent(explained),
    }
    if found["excluded"]:
        rows["excluded from Q"] = f"{percent(found['excluded'])} of the training steps: their returns are truncated"
    return facts_table(f"beta and Q on test episodes of {found['logs']}", rows, show_header=False)


def temperature_text(found: dict[str, Any]) -> str:
    if "beta" not in found["best"]:
        return "none: the probabilities of all actions were logged, so nothing was cloned"
    if found["calibrated"]:
        return f"{found['temperature']:.3f}"
    return f"1: {found['validation']['steps']} validation steps are too few for calibration"


def change_table(found: dict[str, Any]) -> Table:
    """The distance between pi and beta, and the estimated gain."""
    overall = found["changes"]["overall"]
    low, median, high = overall["total_variation_quartiles"]
    rows = {
        "total variation per state": f"{percent(overall['total_variation'])}; median {percent(median)}, quartiles "
        f"{percent(low)} to {percent(high)}",
        "states changed by more than 1%": percent(overall["changed_states"]),
        "value of beta, V(s)": f"{overall['value']:.4g}",
        "gain per step, by test returns": interval_text(overall["observed_gain"]),
        "gain per step, by Q (optimistic)": f"{overall['expected_gain']['mean']:+.4g}",
    }
    if "at_c_min" in overall:
        rows["share of beta at c_min, at c_max"] = f"{percent(overall['at_c_min'])}, {percent(overall['at_c_max'])}"
    caption = "interval: 95%, over test episodes, with beta as given"
    return facts_table(f"changes by {found['rule']}", rows, caption=caption, show_header=False)


def interval_text(gain: dict[str, Any]) -> str:
    if gain["interval"] is None:
        return f"{gain['mean']:+.4g} (too few episodes for an interval)"
    low, high = gain["interval"]
    return f"{gain['mean']:+.4g} ({low:+.4g} to {high:+.4g})"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def shown_actions(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The actions whose probability changes most, the largest increase first."""
    rows = found["changes"]["actions"]
    most = sorted(rows, key=lambda row: -abs(row["change"]))[:SHOWN_ACTIONS]
    return sorted(most, key=lambda row: -row["change"])


def action_table(found: dict[str, Any]) -> Table:
    """Mean probabilities of the actions under beta and pi."""
    title = "actions: mean probabilities, and share of states where they change"
    table = numbers_table(title, ("action", "taken", "beta", "pi", "change", "increased", "decreased"))
    names = action_names(found["spec"])
    for row in shown_actions(found):
        shares = [percent(row[name]) for name in ("taken", "beta", "pi")]
        often = [percent(row[name]) for name in ("increased", "decreased")]
        table.add_row(str(names[row["action"]]), *shares, f"{100 * row['change']:+.1f}%", *often)
    if len(found["changes"]["actions"]) > SHOWN_ACTIONS:
        table.caption = f"the {SHOWN_ACTIONS} that change most of {len(names):,}"
    return table


def value_table(found: dict[str, Any]) -> Table:
    """Changes by the value of states."""
    columns = ("mean V(s)", "total variation", "expected gain, by Q")
    table = numbers_table("changes by V(s), quarters of the states", columns)
    for row in found["changes"]["values"]:
        table.add_row(f"{row['value']:.4g}", percent(row["total_variation"]), f"{row['expected_gain']:+.4g}")
    return table


def feature_table(found: dict[str, Any]) -> Table:
    """Changes by the values of features."""
    columns = ("feature", "low: up to", "changes", "high: from", "changes")
    table = numbers_table("changes by feature: total variation for low and high values", columns, texts=("feature",))
    for row in found["changes"]["features"]:
        low, high = percent(row["total_variation_low"]), percent(row["total_variation_high"])
        table.add_row(row["name"], feature_text(found, row, "low"), low, feature_text(found, row, "high"), high)
    return table


def feature_text(found: dict[str, Any], row: dict[str, Any], end: Literal["low", "high"]) -> str:
    """The value of a feature up to which it counts as low, or from which it counts as high: a number or a date."""
    features = feature_slices(Feature.from_json(found["spec"].get("features", ())))
    is_date = any(feature.is_date and part.start == row["feature"] for feature, part in features)
    return date_text(row[end]) if is_date else f"{row[end]:.4g}"


def largest_table(found: dict[str, Any]) -> Table:
    """The test steps with the largest expected gain; of several in the same state the first one."""
    counts = [row.get("count", 1) for row in found["changes"]["largest"]]
    repeated, several = any(count > 1 for count in counts), found["steps"] > found["episodes"]
    numbers = ("taken", "return", *(["steps in this state"] if repeated else []), "gain, by Q")
    columns = ("source", *(["step"] if several else []), *numbers, "action: beta to pi")
    title = "test steps with the largest expected gain"
    table = numbers_table(title, columns, texts=(columns[0], columns[-1]), optional=("steps in this state", "return"))
    names = action_names(found["spec"])
    for row, count in zip(found["changes"]["largest"][:SHOWN_STEPS], counts, strict=False):
        line = f", line {row['line']}" if row["line"] else ""
        changes = ",\n".join(
            f"{names[a['action']]}: {percent(a['beta'])} to {percent(a['pi'])}" for a in row["actions"]
        )
        source = f"{row['source'] or 'episode ' + str(row['episode'])}{line}"
        cells = [source, *([str(row["step"])] if several else []), str(names[row["taken"]]), f"{row['return']:.4g}"]
        cells += [f"{count:,}"] if repeated else []
        table.add_row(*cells, f"{row['gain']:+.4g}", changes)
    return table


def closing(run: Run) -> list[str]:
    """Conclusions and caveats."""
    found = run.finished()
    values, overall = found["diagnostics"], found["changes"]["overall"]
    decision = found["decision"]
    lines = [decision["headline"], *decision["reasons"]] if "headline" in decision else []
    lines += [f"No decision: {decision['refused']}."] if "refused" in decision else []
    if found["excluded"] > MOSTLY:
        lines.append(
            f"Q learned from {percent(1 - found['excluded'])} of the training steps: the others are too close to a "
            "time limit for their returns to be known. If episodes really end there, use returns as they are "
            "(--max-missing-return 1); otherwise, a lower --gamma looks less far ahead."
        )
    if overall["observed_gain"]["interval"] is None:
        episodes = found["test"]["episodes"]
        lines.append(f"{episodes} test episodes are too few for an interval of the gain: hold out more or log more.")
    if values["q_explained_variance"] is not None and values["q_explained_variance"] <= 0:
        lines.append("Q does not explain the test returns: the actions that it prefers may be noise.")
    if "clone" in values and decision.get("verdict") != "deploy":  # whose reasons have it
        clone = values["clone"]
        lines.append(
            f"Compared with the logged probabilities, the clone of beta is off by {clone['mean_absolute_error']:.3f} "
            f"on average and by a factor of {clone['largest_ratio']:.3g} at most."
        )
    exact = found["spec"]["has_behavior_probs"]
    no_better = values["log_likelihood_calibrated"] <= values["log_likelihood_of_frequencies"]
    if "clone" not in values and not exact and no_better:
        lines.append(
            "beta predicts the test actions no better than action frequencies, so the gain by test returns, which is "
            "weighted by beta, is unreliable."
        )
    if found["test"]["steps"] < FEW_STEPS:
        lines.append(
            f"The test set has only {found['test']['steps']} steps: hold out more (--holdout-fraction 0.4) or log more."
        )
    if values.get("outside_range"):
        lines.append(
            f"{percent(values['outside_range'])} of the test states are far outside the range of the training data."
        )
    if not found["separate_test_set"]:
        lines.append("The only held-out episode served for validation and testing: its numbers may be optimistic.")
    return [*lines, f"The gain by Q is an estimate, not a certificate. {bound_text(found['rule'], exact=exact)}"]


def bound_text(text: str, *, exact: bool) -> str:
    """The largest possible damage of a step by its rule alone. `exact`: beta is logged, not cloned."""
    rule = parse_rule(text, counts=True)
    beta = "the logged beta" if exact else "the clone of beta, which may differ from beta itself"
    if isinstance(rule, Reroute):
        bound = percent(reroute_total_variation(Ratios(rule.c_min, rule.c_max)))
        ratio = (
            f"no action becomes more than {rule.c_max:g} or less than {rule.c_min:g} times as likely as under {beta}"
        )
        return (
            f"If Q is wrong, {text} limits the damage: {ratio}, so the total variation of a state is at most {bound}, "
            f"and a step costs at most {bound} of the gap between its best and its worst action."
        )
    if isinstance(rule, TotalVariation):
        return (
            f"If Q is wrong, {text} limits the damage of a step to {percent(rule.delta)} of the gap between its best "
            "and its worst action, but may give that much to an action that beta never took."
        )
    if isinstance(rule, Behavior):
        return f"The policy is {beta}: it does not depend on Q."
    return f"If Q is wrong, {text} does not bound the distance to beta as reroute does."


def figures(run: Run) -> dict[str, Any]:
    """All figures, by file name."""
    return {
        "actions": action_figure(run.finished()),
        "reliability": reliability_figure(run.finished()),
        "overfitting": overfitting_figure(run),
    }


def action_figure(found: dict[str, Any]) -> Any:
    """Mean probabilities of actions under beta and pi."""
    rows = shown_actions(found)
    x = np.arange(len(rows))
    with styled_figure(5.2, 2.6) as figure:
        panel = figure.subplots()
        panel.bar(x - 0.2, [row["beta"] for row in rows], 0.4, color=GREY, label="beta (behaviour)")
        panel.bar(x + 0.2, [row["pi"] for row in rows], 0.4, color=ACCENT, label="pi (improved)")
        names = action_names(found["spec"])
        name_ticks(panel, [str(names[row["action"]]) for row in rows], max_letters=48)
        panel.set(xlabel="action, largest increase first", ylabel="mean probability")
        panel.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        panel.set_title(found["rule"], loc="left")
    return figure


def reliability_figure(found: dict[str, Any]) -> Any:
    """Reliability diagram: predicted Q against mean return, in bins of equal size."""
    bins = found["diagnostics"]["reliability"]
    with styled_figure(3.2, 3.0) as figure:
        panel = figure.subplots()
        low = min(*bins["predicted"], *bins["observed"])
        high = max(*bins["predicted"], *bins["observed"])
        panel.plot([low, high], [low, high], color=GREY, linewidth=1.2)
        panel.plot(bins["predicted"], bins["observed"], color=ACCENT, marker="o", markersize=4, linewidth=1.2)
        panel.set(xlabel="predicted Q(s, a)", ylabel="mean return")
        panel.set_title("test steps, in bins of equal size", loc="left")
    return figure


def overfitting_figure(run: Run) -> Any:
    """Training and validation curves of beta and Q."""
    best, lines = run.finished()["best"], run.metrics
    x = [line["updates"] for line in lines]
    with styled_figure(7.2, 2.6) as figure:
        curves = [("beta", "log_likelihood", "log-likelihood"), ("q", "q_rmse", "RMSE")]
        shown = [curve for curve in curves if curve[0] in best]  # a logged beta is not learned
        for panel, (net, name, label) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            marker = "o" if len(x) == 1 else None
            panel.plot(x, [line[name] for line in lines], label="validation", marker=marker, **LINES[0])
            panel.plot(x, [line[f"train_{name}"] for line in lines], label="training", marker=marker, **LINES[1])
            panel.axvline(best[net]["updates"], color=DARK, linewidth=0.8)
            panel.annotate(" best", (best[net]["updates"], 0), xycoords=("data", "axes fraction"), va="bottom")
            panel.set(xlabel="updates", ylabel=f"{label} of {'Q' if net == 'q' else net}")
        panel.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    return figure


# Decisions


def gain_figure(found: dict[str, Any]) -> Any:
    """Interval of the gain of every candidate against zero; the one that decides is dark."""
    rows = found["candidates"]
    with styled_figure(5.6, 0.7 + 0.32 * len(rows)) as figure:
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
        bounds = f"ticks are {100 * found['confidence']:g}% lower bounds"
        panel.set_title(f"{found['verdict']}: {bounds}, * tested", loc="left")
    return figure


def monitor_figure(found: dict[str, Any]) -> Any:
    """The confidence sequence of the gain over the number of live episodes."""
    rows = found["history"]
    units = f"{found.get('unit', 'episode')}s"
    x = [row[units] for row in rows]
    with styled_figure(5.2, 2.6) as figure:
        panel = figure.subplots()
        color = {"better": ACCENT, "worse": WARNING, "continue": DARK}[found["outcome"]]
        panel.fill_between(x, [row["lower"] for row in rows], [row["upper"] for row in rows], color=GREY, alpha=0.6)
        panel.axhline(0, color=DARK, linewidth=0.8)
        panel.plot([x[-1]], [found["estimate"]], marker="o", markersize=5, color=color)
        panel.set(xlabel=f"live {units}", ylabel="gain per episode", xscale="log" if len(set(x)) > 1 else "linear")
        panel.set_title(f"{found['outcome']}: {100 * found['confidence']:g}% at all times", loc="left")
    return figure
