"""Tables and figures of `rbi improve`, from its run folder."""

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rbi.report.style import ACCENT, DARK, GREY, LINES, LOOK
from rbi.rules.types import Reroute, TotalVariation, parse_rule
from rbi.runs import Run

SHOWN_ACTIONS, SHOWN_STEPS = 20, 10
FEW_STEPS = 100


def tables(run: Run) -> list[Table]:
    """Everything that there is to show."""
    found = run.finished()
    where = [feature_table(found)] if found["changes"]["features"] else []
    return [
        diagnosis_table(found),
        change_table(found),
        action_table(found),
        value_table(found),
        *where,
        largest_table(found),
    ]


def two_columns(title: str, rows: dict[str, str]) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title, show_header=False)
    table.add_column("")
    table.add_column("")
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def diagnosis_table(found: dict[str, Any]) -> Table:
    """How well beta and Q do on episodes that they did not learn from."""
    told, held, best = found["diagnosis"], found["held_out"], found["best"]
    explained = (
        "no return differs" if told["q_explained"] is None else f"{percent(told['q_explained'])} of the variance"
    )
    few = f"1: {found['chosen_by']['steps']} held-out steps are too few to calibrate"
    rows = {
        "data": f"{found['episodes']:,} episodes, {found['steps']:,} steps, {found['set_aside']:,} set aside",
        "held out": f"{held['episodes']:,} episodes, {held['steps']:,} steps, and "
        f"{found['chosen_by']['episodes']:,} to choose moments and temperature",
        "kept": f"beta after {best['beta']['updates']:,} and Q after {best['q']['updates']:,} of {found['updates']:,} "
        "updates: where each did best on episodes held out to choose",
        "beta: log-likelihood": f"{told['likelihood_calibrated']:.4f} calibrated, {told['likelihood']:.4f} before; "
        f"{told['likelihood_of_frequencies']:.4f} from frequencies alone",
        "beta: guesses right": f"{percent(told['accuracy'])}; {percent(told['accuracy_of_the_commonest'])} for the "
        "commonest action",
        "beta: temperature": f"{found['temperature']:.3f}" if found["calibrated"] else few,
        "Q: error, bias": f"{told['q_error']:.4g} (root mean square), {told['q_bias']:+.3g}",
        "Q: explains": explained,
    }
    if found["unfinished"]:
        rows["cut off too early for Q"] = f"{percent(found['unfinished'])} of the steps to learn from"
    return two_columns(f"{found['logs']}: what was learned, on held-out episodes", rows)


def change_table(found: dict[str, Any]) -> Table:
    """How far pi is from beta, and what it should gain."""
    told = found["changes"]["overall"]
    low, middle, high = told["moved_quartiles"]
    rows = {
        "probability moved": f"{percent(told['moved'])} a state; median {percent(middle)}, quartiles {percent(low)} to "
        f"{percent(high)}",
        "states changed by more than 1%": percent(told["changed"]),
        "value of beta, V(s)": f"{told['value']:.4g}",
        "gain of a changed step, by held-out returns": interval_text(told["step_seen"]),
        "the same, by Q, which chose it": f"{told['step']['mean']:+.4g}",
    }
    if "at_c_min" in told:
        rows["actions of beta at c_min, at c_max"] = f"{percent(told['at_c_min'])}, {percent(told['at_c_max'])}"
    table = two_columns(f"what {found['rule']} changes", rows)
    table.caption = "interval: 95%, over which episodes happened to be held out; beta counts as given"
    return table


def interval_text(told: dict[str, Any]) -> str:
    if told["interval"] is None:
        return f"{told['mean']:+.4g} (one episode: no interval)"
    low, high = told["interval"]
    return f"{told['mean']:+.4g} ({low:+.4g} to {high:+.4g})"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def shown_actions(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The actions whose probability changed most, the one that gained most first."""
    rows = found["changes"]["actions"]
    most = sorted(rows, key=lambda row: -abs(row["change"]))[:SHOWN_ACTIONS]
    return sorted(most, key=lambda row: -row["change"])


def action_table(found: dict[str, Any]) -> Table:
    """Which actions gain and lose."""
    table = Table(box=SIMPLE_HEAD, title="actions, mean probabilities")
    for name in ("action", "taken", "beta", "pi", "change", "gains in", "loses in"):
        table.add_column(name, justify="right")
    for row in shown_actions(found):
        shares = [percent(row[name]) for name in ("taken", "beta", "pi")]
        often = [percent(row[name]) for name in ("gained", "lost")]
        table.add_row(str(row["action"]), *shares, f"{100 * row['change']:+.1f}%", *often)
    if found["spec"]["actions"] > SHOWN_ACTIONS:
        table.caption = f"the {SHOWN_ACTIONS} that changed most of {found['spec']['actions']:,}"
    return table


def value_table(found: dict[str, Any]) -> Table:
    """Where it changes, by how good states are."""
    table = Table(box=SIMPLE_HEAD, title="where: quarters of the states, by V(s)")
    for name in ("mean V(s)", "probability moved", "improvement step, by Q"):
        table.add_column(name, justify="right")
    for row in found["changes"]["values"]:
        table.add_row(f"{row['value']:.4g}", percent(row["moved"]), f"{row['step']:+.4g}")
    return table


def feature_table(found: dict[str, Any]) -> Table:
    """Where it changes, by what is seen."""
    table = Table(box=SIMPLE_HEAD, title="where: what is seen low and high, and the probability moved there")
    table.add_column("feature")
    for name in ("low: up to", "moved", "high: from", "moved"):
        table.add_column(name, justify="right")
    for row in found["changes"]["features"]:
        low, high = percent(row["moved_low"]), percent(row["moved_high"])
        table.add_row(row["name"], f"{row['low']:.4g}", low, f"{row['high']:.4g}", high)
    return table


def largest_table(found: dict[str, Any]) -> Table:
    """The steps with the largest improvement step."""
    table = Table(box=SIMPLE_HEAD, title="held-out steps of which Q expects most")
    table.add_column("where", overflow="fold")
    for name in ("step", "taken", "return", "gain, by Q"):
        table.add_column(name, justify="right")
    table.add_column("action: beta to pi")
    for row in found["changes"]["largest"][:SHOWN_STEPS]:
        line = f", line {row['line']}" if row["line"] else ""
        told = ", ".join(f"{a['action']}: {percent(a['beta'])} to {percent(a['pi'])}" for a in row["actions"])
        at = f"{row['source'] or 'episode ' + str(row['episode'])}{line}"
        table.add_row(at, str(row["step"]), str(row["taken"]), f"{row['return']:.4g}", f"{row['gain']:+.4g}", told)
    return table


def closing(run: Run) -> list[str]:
    """What the numbers do not say by themselves."""
    found = run.finished()
    told, step, seen = found["diagnosis"], found["changes"]["overall"]["step"], found["changes"]["overall"]["step_seen"]
    lines = []
    low, high = seen["interval"] or (0.0, 0.0)
    if high < 0:
        lines.append("The held-out returns speak against the change: take beta instead.")
    elif low > 0:
        gain = f"{seen['mean']:+.4g} a step ({low:+.4g} to {high:+.4g})"
        lines.append(f"The held-out returns speak for the change: {gain}.")
    elif step["mean"] > 0:
        lines.append("The held-out returns alone do not tell the change from none.")
        if told["q_explained"] is not None and told["q_explained"] <= 0:
            lines.append("Nor does Q foretell them: which action it prefers may be noise.")
    if told["likelihood_calibrated"] <= told["likelihood_of_frequencies"]:
        lines.append(
            "beta foretells held-out actions no better than plain frequencies; held-out returns are weighed by it."
        )
    if found["held_out"]["steps"] < FEW_STEPS:
        told_few = f"{found['held_out']['steps']} held-out steps say little"
        lines.append(f"{told_few}: hold out more (--held-out 0.4), or log more.")
    if not found["apart"]:
        lines.append("One episode was held out to choose and to tell: its numbers may flatter.")
    bound = bound_text(found["rule"])
    return [*lines, f"The improvement is what Q expects: an estimate, not a certificate. {bound}"]


def bound_text(text: str) -> str:
    """How far wrong a step can go, by its rule alone."""
    rule = parse_rule(text)
    if isinstance(rule, Reroute):
        moved = most_moved(rule)
        ratio = f"no action becomes more than {rule.c_max:g} or less than {rule.c_min:g} times as likely as in beta"
        return (
            f"If Q is wrong, {text} limits the damage: {ratio}, so no state moves more than {percent(moved)} of its "
            f"probability, and a step costs at most {percent(moved)} of the gap between its best and its worst action."
        )
    if isinstance(rule, TotalVariation):
        return (
            f"If Q is wrong, {text} limits the damage of a step to {percent(rule.delta)} of the gap between its best "
            "and its worst action, but may give that much to an action that beta never took."
        )
    return f"If Q is wrong, {text} does not hold the policy to beta as reroute does."


def most_moved(rule: Reroute) -> float:
    """The largest total variation that the bounds allow: what can be lost equals what can be gained.

    >>> most_moved(Reroute(0.5, 1.5))
    0.25
    """
    lost, gained = 1 - rule.c_min, rule.c_max - 1
    if not lost or not gained:
        return 0.0
    return lost if np.isinf(gained) else lost * gained / (lost + gained)


def figures(run: Run) -> dict[str, Any]:
    """By the names of their files."""
    return {
        "actions": action_figure(run.finished()),
        "reliability": reliability_figure(run.finished()),
        "overfitting": overfitting_figure(run),
    }


def action_figure(found: dict[str, Any]) -> Any:
    """Probabilities before and after, by action."""
    rows = shown_actions(found)
    x = np.arange(len(rows))
    with mpl.rc_context(LOOK):
        figure: Any = Figure(figsize=(5.2, 2.6), layout="constrained")
        panel = figure.subplots()
        panel.bar(x - 0.2, [row["beta"] for row in rows], 0.4, color=GREY, label="beta, as logged")
        panel.bar(x + 0.2, [row["pi"] for row in rows], 0.4, color=ACCENT, label="pi, improved")
        panel.set_xticks(x, [row["action"] for row in rows], fontsize=6 if len(rows) > 12 else None)
        panel.set(xlabel="action, the one that gains most first", ylabel="mean probability")
        panel.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        panel.set_title(found["rule"], loc="left")
    return figure


def reliability_figure(found: dict[str, Any]) -> Any:
    """What Q predicted against what came, in bins of as many held-out steps each."""
    told = found["diagnosis"]["reliability"]
    with mpl.rc_context(LOOK):
        figure: Any = Figure(figsize=(3.2, 3.0), layout="constrained")
        panel = figure.subplots()
        low = min(*told["predicted"], *told["seen"])
        high = max(*told["predicted"], *told["seen"])
        panel.plot([low, high], [low, high], color=GREY, linewidth=1.2)
        panel.plot(told["predicted"], told["seen"], color=ACCENT, marker="o", markersize=4, linewidth=1.2)
        panel.set(xlabel="Q of the action taken", ylabel="mean return seen")
        panel.set_title("held-out steps, in bins of equal size", loc="left")
    return figure


def overfitting_figure(run: Run) -> Any:
    """How beta and Q did while they learned, on what they learned from and on what was held out."""
    best, lines = run.finished()["best"], run.metrics
    x = [line["updates"] for line in lines]
    with mpl.rc_context(LOOK):
        figure: Any = Figure(figsize=(7.2, 2.6), layout="constrained")
        for panel, net, name, label in zip(
            figure.subplots(1, 2), ("beta", "q"), ("likelihood", "q_error"), ("log-likelihood", "error"), strict=True
        ):
            marker = "o" if len(x) == 1 else None
            panel.plot(x, [line[name] for line in lines], label="held out", marker=marker, **LINES[0])
            panel.plot(x, [line[f"{name}_learning"] for line in lines], label="learned from", marker=marker, **LINES[1])
            panel.axvline(best[net]["updates"], color=DARK, linewidth=0.8)
            panel.annotate(" kept", (best[net]["updates"], 0), xycoords=("data", "axes fraction"), va="bottom")
            panel.set(xlabel="updates", ylabel=f"{label} of {'Q' if net == 'q' else net}")
        panel.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    return figure
