"""Panels of the HTML report for each kind of run, from its config, metrics and result."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rbi.report import bandit, improve, offline, spi, train
from rbi.report import data as data_tables
from rbi.report.panels import (
    Axis,
    IntervalRow,
    Intervals,
    Line,
    Lines,
    Notes,
    PairRow,
    Pairs,
    Panel,
    Reference,
    Table,
    Verdict,
    line_of,
    sentence,
)
from rbi.runs import Run

FRAMES_PER_STATE = 4  # of Atari games
MAX_PAIRS = 20  # actions in one chart

Summary = list[list[str]]


# Training


def training_axes(env: str) -> dict[str, tuple[str, Callable[[dict[str, Any]], float]]]:
    """The x-axes of training curves: label, and value of a metric line."""
    if env.startswith("ALE/"):
        name, label, per_state = "frames", "emulator frames", FRAMES_PER_STATE
    else:
        name, label, per_state = "steps", "environment steps", 1
    return {
        name: (label, lambda line: line["states"] * per_state),
        "updates": ("updates", lambda line: line["updates"]),
        "hours": ("hours of training", lambda line: line["seconds"] / 3600),
    }


def learning_curves(env: str, groups: Mapping[str, Sequence[Run]]) -> Lines:
    """Scores while training. A group of several seeds is a median with quartiles over seeds, a single run the mean of
    its latest episodes with their quartiles."""
    axes = []
    for name, (label, value) in training_axes(env).items():
        lines = [curve(group, of, value) for group, of in groups.items()]
        axes.append(Axis(name, label, [line for line in lines if line is not None]))
    sizes = sorted({len(train.with_scores(of)) or 1 for of in groups.values()})
    single = "mean of the latest episodes of the environments that explore least, with quartiles of these episodes"
    several = f"median over {sizes[-1]} seeds, with their quartiles"
    if sizes == [1]:
        shown = single
    elif 1 not in sizes:
        shown = several
    else:
        shown = f"{several}; or, of one seed, {single}"
    return Lines(f"Learning curve: {env}", "score while training", axes, f"Lines: {shown}.")


def curve(label: str, of: Sequence[Run], value: Callable[[dict[str, Any]], float]) -> Line | None:
    """One learning curve; None before the first finished episode."""
    found = train.score_curve(of, value)
    return None if found is None else line_of(label, *found)


METRIC_PANELS = (
    ("What the rule changes while training", "share", {
        "moved_mass": "moved probability", "at_c_min": "beta at c_min", "at_c_max": "beta at c_max"}),
    ("Losses", "loss", {"q_loss": "Q", "pi_loss": "policy"}),
    ("Q-values", "discounted return", {"q": "mean Q", "td_error": "TD error", "q_acted": "Q of acting states"}),
    ("Entropy", "nats", {"pi_entropy": "pi (acting)", "pi_net_entropy": "policy network"}),
)  # fmt: skip


def train_panels(run: Run) -> tuple[Summary, list[Panel]]:
    env = run.config["settings"]["env"]
    panels: list[Panel] = [learning_curves(env, {train.ALGORITHMS[run.config["settings"]["algo"]]: [run]})]
    for title, unit, names in METRIC_PANELS:
        axes = []
        for axis, (label, value) in training_axes(env).items():
            lines = []
            for key, text in names.items():
                with_key = [line for line in run.metrics if line.get(key) is not None]
                if with_key:
                    lines.append(line_of(text, [value(line) for line in with_key], [line[key] for line in with_key]))
            axes.append(Axis(axis, label, lines))
        if axes[0].lines:
            panels.append(Lines(title, unit, axes))
    last = run.metrics[-1] if run.metrics else {}
    summary = [["environment", env], ["algorithm", train.ALGORITHMS[run.config["settings"]["algo"]]]]
    if last:
        summary += [["updates", f"{last['updates']:,}"], ["time", duration(last["seconds"])]]
        summary += [["score while training", number(last["score"])]] if last["score"] is not None else []
    if run.result is not None:
        evaluation = run.result.get("evaluation")
        if evaluation:
            low, high = evaluation["interval"]
            summary.append(["score of the policy", f"{number(evaluation['mean'])} ({number(low)} to {number(high)})"])
            panels.append(scores_chart(evaluation))
        panels.append(Table.of(train.result_table(run)))
    return summary, panels


def evaluate_panels(run: Run) -> tuple[Summary, list[Panel]]:
    found = run.finished()
    low, high = found["interval"]
    summary = [["environment", found["env"]], ["episodes", f"{found['episodes']:,}"]]
    summary += [["mean score", f"{number(found['mean'])} ({number(low)} to {number(high)})"]]
    return summary, [scores_chart(found), Table.of(train.evaluation_table(run))]


def scores_chart(found: dict[str, Any]) -> Lines:
    """Scores of all episodes in ascending order."""
    scores = sorted(found["scores"])
    line = line_of("episodes", list(range(1, len(scores) + 1)), scores)
    low, high = found["interval"]
    interval = f"95% interval {number(low)} to {number(high)}"
    note = f"Mean {number(found['mean'])}, {interval}; {found['protocol_description']}."
    axes = [Axis("episode", "episode, sorted by score", [line])]
    return Lines("Scores of the evaluated policy", "score", axes, note, [Reference(found["mean"], "mean")])


# Offline learning


def offline_panels(run: Run) -> tuple[Summary, list[Panel]]:
    found = run.finished()
    summary = [["environment", found["env"]], ["data", f"{found['population']['all_episodes']:,} episodes"]]
    summary += [["updates", f"{found['updates']:,}"], ["time", duration(found["seconds"])]]
    advice = offline.overfitting_advice(run)
    panels: list[Panel] = [offline_scores(run), *([Notes("", advice)] if advice else [])]
    differences = [row for row in found["rows"] if row.get("difference_bounds") is not None]
    if differences:
        rows = [
            IntervalRow(
                offline.NAMES.get(row["name"], row["name"]),
                row["difference"],
                row["difference_bounds"][0],
                row["difference_bounds"][1],
                tone={"below": "bad", "not below": "good"}.get(row["verdict"], "plain"),
                text=row["verdict"] or "",
            )
            for row in differences
        ]
        note = f"Margin of the verdicts: {found['margin']:.0%} of the behaviour policy's score."
        title = "Difference to the behaviour policy"
        panels.append(Intervals(title, "difference of mean scores", rows, 0.0, "no difference", note))
    panels += offline_curves(run)
    bins = [each["reliability"] for each in found["validation"]]
    by_seed = {f"seed {seed}": each for seed, each in enumerate(bins, run.config["seed"])}
    panels += [*fits_by_seed(run), reliability(by_seed if len(bins) > 1 else {"Q": bins[0]})]
    said = [line for line in offline.closing(run) if line not in advice]
    return summary, [*panels, *(Table.of(table) for table in offline.tables(run)), Notes("", said)]


def offline_scores(run: Run) -> Intervals:
    """Mean scores of all policies with their intervals."""
    found = run.finished()
    behavior = next((row["mean"] for row in found["rows"] if row["name"] == "behavior"), None)
    rows = [
        IntervalRow(
            offline.NAMES.get(row["name"], row["name"]),
            row["mean"],
            row["interval"][0],
            row["interval"][1],
            tone="strong" if row["name"] == found["saved_policy"] else "plain",
        )
        for row in [found["population"] | {"name": "population"}, *found["rows"]]
    ]
    note = sentence(f"{found['protocol']}.")
    return Intervals("Final scores", "mean score, 95% interval", rows, behavior, "behaviour policy", note)


def offline_curves(run: Run) -> list[Lines]:
    """Learning curves of the rules and of the baselines; none of a single evaluation, which the final scores show."""
    evaluated = [line for line in run.metrics if line.get("kind") == "evaluated"]
    panels = []
    for title, behavior_q in (("Learning curves: rules on beta and Q", True), ("Learning curves: baselines", False)):
        names = [row["name"] for row in run.finished()["rows"] if (row["learner"] == "behavior_q") == behavior_q]
        names = names if behavior_q else ["behavior", *names]
        if len(names) > 1 and len(evaluated) > 1:
            panels.append(offline_curve(run, title, names, evaluated))
    return panels


def offline_curve(run: Run, title: str, names: Sequence[str], evaluated: Sequence[dict[str, Any]]) -> Lines:
    """Median scores over the episodes of all seeds, with quartiles."""
    axes = []
    for axis, label, key, scale in (("updates", "updates", "updates", 1), ("hours", "hours", "seconds", 1 / 3600)):
        x = [line[key] * scale for line in evaluated]
        lines = []
        for name in names:
            scores = [np.concatenate(line["scores"][name]) for line in evaluated]
            low, middle, high = ([float(np.percentile(each, q)) for each in scores] for q in (25, 50, 75))
            lines.append(line_of(offline.NAMES.get(name, name), x, middle, low, high))
        axes.append(Axis(axis, label, lines))
    population = Reference(run.finished()["population"]["median"], "population")
    return Lines(title, "score", axes, "Median over the episodes of all seeds, with quartiles.", [population])


def fits_by_seed(run: Run) -> list[Lines]:
    """Validation and training curves of beta and Q: where they part, a network overfits."""
    validated = [line for line in run.metrics if line.get("kind") == "validated"]
    seeds = dict.fromkeys(line["seed"] for line in validated)
    by_seed = {seed: [line for line in validated if line["seed"] == seed] for seed in seeds}

    def panel(title: str, unit: str, held: Callable[[Any], float], trained: Callable[[Any], float], note: str) -> Lines:
        lines = []
        for seed, of in by_seed.items():
            x = [line["updates"] for line in of]
            lines.append(line_of(f"seed {seed}", x, [held(line["validation"]) for line in of]))
            lines.append(line_of(f"seed {seed}, training", x, [trained(line) for line in of], thin=True))
        return Lines(title, unit, [Axis("updates", "updates", lines)], note)

    note = "{} on the validation set; dotted: on training batches{}."
    return [
        panel(
            "Fit of beta",
            "log-likelihood",
            lambda found: found["log_likelihood_calibrated"],
            lambda line: -line["train"]["beta_loss"],
            note.format("Log-likelihood of calibrated beta", ", without calibration"),
        ),
        panel(
            "Fit of Q",
            "RMSE",
            lambda found: found["q_rmse"],
            offline.training_rmse,
            note.format("Root mean square error of Q", ""),
        ),
    ]


def reliability(bins: dict[str, dict[str, list[float]]]) -> Lines:
    """Predicted Q against the mean return, in bins of equal size, for each name."""
    lines = [line_of(name, each["predicted"], each["observed"]) for name, each in bins.items()]
    ends = [value for each in bins.values() for values in (each["predicted"], each["observed"]) for value in values]
    diagonal = [min(ends), max(ends)]
    lines.append(line_of("perfect", diagonal, diagonal, thin=True))
    note = "Held-out steps in bins of equal size. A reliable Q lies on the dotted line."
    return Lines("Reliability of Q", "mean return", [Axis("predicted", "predicted Q(s, a)", lines)], note)


# Improvement and certification


def improve_panels(run: Run) -> tuple[Summary, list[Panel]]:
    found = run.finished()
    decision, overall = found["decision"], found["changes"]["overall"]
    summary = [["data", f"{found['episodes']:,} episodes, {found['steps']:,} steps"], ["rule", found["rule"]]]
    summary += [["decision", decision.get("verdict", "refused")]]
    summary += [["changed probability per state", f"{overall['total_variation']:.1%}"]]
    panels: list[Panel] = decision_panels(decision)
    names, rows = data_tables.action_names(found["spec"]), improve.shown_actions(found)
    pairs = [PairRow(action_label(names[row["action"]]), row["beta"], row["pi"]) for row in rows]
    left_out = len(found["changes"]["actions"]) - len(pairs)
    note = "Mean probabilities over the test states; the largest increase first."
    note += f" {left_out:,} actions that change less are left out." if left_out else ""
    panels.append(Pairs("What changes, by action", pairs, note))
    panels.append(changes_by_value(found))
    if found["changes"]["features"]:
        panels.append(changes_by_feature(found))
    x = [line["updates"] for line in run.metrics]
    fits = {"beta": ("Fit of beta", "log_likelihood", "log-likelihood"), "q": ("Fit of Q", "q_rmse", "RMSE")}
    for net, (title, key, label) in fits.items():
        if net not in found["best"]:  # a logged beta is not learned
            continue
        lines = [line_of("validation", x, [line[key] for line in run.metrics])]
        lines.append(line_of("training", x, [line[f"train_{key}"] for line in run.metrics], thin=True))
        best = found["best"][net]["updates"]
        note = f"Validation set; dotted: training batches. The best checkpoint is after {best:,} updates."
        panels.append(Lines(title, label, [Axis("updates", "updates", lines)], note))
    panels.append(reliability({"Q": found["diagnostics"]["reliability"]}))
    tables = [improve.diagnostics_table(found), improve.change_table(found), improve.action_table(found)]
    panels += [Table.of(table) for table in [*tables, improve.largest_table(found)]]
    said = [decision.get("headline"), *decision.get("reasons", [])]
    return summary, [*panels, Notes("Also", [line for line in improve.closing(run) if line not in said])]


def changes_by_value(found: dict[str, Any]) -> Table:
    """How much changes in states of low and of high value."""
    rows = [
        [f"{row['value']:.4g}", f"{row['steps']:,}", f"{row['total_variation']:.1%}", f"{row['expected_gain']:+.4g}"]
        for row in found["changes"]["values"]
    ]
    columns = ["mean V(s)", "states", "changed probability", "expected gain, by Q"]
    return Table("What changes, by the value of the state", columns, rows, [True] * 4)


def changes_by_feature(found: dict[str, Any]) -> Intervals:
    """How much changes for low and for high values of each feature: the two ends of a bar."""
    rows = [
        IntervalRow(
            row["name"],
            row["total_variation_high"],
            min(row["total_variation_low"], row["total_variation_high"]),
            max(row["total_variation_low"], row["total_variation_high"]),
            text=f"low ≤ {improve.feature_text(found, row, 'low')}, high ≥ {improve.feature_text(found, row, 'high')}",
        )
        for row in found["changes"]["features"]
    ]
    note = "Dot: states with high values of the feature; other end of the bar: states with low values."
    overall = found["changes"]["overall"]["total_variation"]
    return Intervals("What changes, by feature", "changed probability per state", rows, overall, "all states", note)


def decision_panels(decision: dict[str, Any]) -> list[Panel]:
    """The verdict, and the gain of every candidate with its bounds against zero."""
    if "refused" in decision:
        return [Verdict("refused", "No decision.", [decision["refused"]], [])]
    rows = []
    for row in decision["candidates"]:
        decides = row["rule"] == decision["rule"]
        tone = ("good" if row["lower"] > 0 else "bad") if decides else "plain"
        said = "decides" if decides else "tested" if row["rule"] in decision["tested"] else ""
        rows.append(IntervalRow(row["rule"], row["estimate"], row["lower"], row["upper"], tone, said))
    episodes = f"{decision['episodes']:,} episodes"
    if decision.get("unit") == "player":
        episodes += f" of {decision['evidence']['players']:,} players, each of whom counts once"
    note = (
        f"{100 * decision['confidence']:g}% lower bounds from {episodes}, {decision['status']}; "
        "upper ends are approximate, at the same level. Deploy means that the lower bound of the deciding rule is "
        "above zero."
    )
    title = "Gain over the behaviour policy"
    return [
        Verdict(decision["verdict"], decision["headline"], decision["reasons"], decision["assumptions"]),
        Intervals(title, "gain per episode", rows, 0.0, "no gain", note),
    ]


def certify_panels(run: Run) -> tuple[Summary, list[Panel]]:
    found = run.finished()
    chosen = found["chosen"]
    summary = [["decision", found["verdict"]], ["rule", found["rule"]], ["episodes", f"{found['episodes']:,}"]]
    summary += [["lower bound of the gain", f"{found['lower']:+.4g}"], ["logged value", f"{found['baseline']:.4g}"]]
    estimates = [[name.replace("_", " "), f"{value:+.4g}"] for name, value in chosen["estimates"].items()]
    weights = [[name.replace("_", " "), number(value)] for name, value in chosen["weights"].items()]
    return summary, [
        *decision_panels(found),
        Table(f"Estimates of the gain of {found['rule']}", ["estimator", "gain per episode"], estimates, [False, True]),
        Table("Importance weights", ["", ""], weights, [False, True]),
    ]


def monitor_panels(run: Run) -> tuple[Summary, list[Panel]]:
    found = run.finished()
    rows = found["history"]
    units = f"{found.get('unit', 'episode')}s"
    x, low, high = ([row[key] for row in rows] for key in (units, "lower", "upper"))
    middle = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
    axis = Axis(units, f"live {units}", [line_of("gain", x, middle, low, high)], log=len(set(x)) > 1)
    summary = [["outcome", found["outcome"]], [f"live {units}", f"{found[units]:,}"]]
    note = f"Band: {100 * found['confidence']:g}% bounds that hold at all times together; line: their middle."
    return summary, [
        Notes("", [found["summary"]]),
        Lines("Gain of the deployed policy", "gain per episode", [axis], note, [Reference(0.0, "no gain")]),
    ]


# Bandit, study, rules


def regret_panels(run: Run) -> tuple[Summary, list[Panel]]:
    curves = run.finished()["curves"]
    panels: list[Panel] = []
    for stds in bandit.distinct(curves, "stds"):
        for n in bandit.distinct(curves, "samples"):
            chosen = [c for c in curves if c["stds"] == stds and c["samples"] == n]
            lines = [line_of(c["rule"], c["beta_better"], c["gain"]) for c in chosen]
            title = f"{n:g} samples, standard deviations {stds}"
            axes = [Axis("beta", "beta(better arm)", lines)]
            panels.append(Lines(title, "gain over beta", axes, references=[Reference(0.0, "")]))
    return [], [*panels, Table.of(bandit.regret_table(run))]


def learn_panels(run: Run) -> tuple[Summary, list[Panel]]:
    curves = run.finished()["curves"]
    panels: list[Panel] = []
    for stds in bandit.distinct(curves, "stds"):
        for rate in bandit.distinct(curves, "learning_rate"):
            chosen = [c for c in curves if c["stds"] == stds and c["learning_rate"] == rate]
            lines = [
                line_of(c["rule"], c["times"], c["mean"], *([c["lower"], c["upper"]] if n < bandit.BANDS else []))
                for n, c in enumerate(chosen)
            ]
            axes = [Axis("samples", "samples", lines, log=True)]
            with_band = " and ".join(c["rule"] for c in chosen[: bandit.BANDS])
            note = f"Means over repetitions; bands: quartiles of {with_band}."
            title = f"Standard deviations {stds}, learning rate {rate}"
            panels.append(Lines(title, "expected reward of pi", axes, note))
    return [], [*panels, Table.of(bandit.learning_table(run), folded=True)]


def spi_panels(run: Run) -> tuple[Summary, list[Panel]]:
    panels: list[Panel] = []
    for part in run.finished()["worlds"]:
        first = spi.highlighted(part)
        order = [*first, *(name for name in part["algorithms"] if name not in first)]
        for key, label in (("mean", "mean"), ("cvar", "CVaR of the worst 1%")):
            lines = []
            for name in order:
                j = part["algorithms"].index(name)
                intervals = [[row[j] for row in bound] for bound in part["summary"][f"{key}_interval"]]
                bands = intervals if name == part["compared"][0] else []
                lines.append(line_of(name, part["sizes"], [row[j] for row in part["summary"][key]], *bands))
            title = f"{part['title']}, {part['quality_name']} = {part['quality']:g}: {label}"
            note = f"{part['repetitions']:,} repetitions; band: 95% interval of {order[0]}."
            axes = [Axis("size", f"data size ({part['size_unit']})", lines, log=True)]
            reference = [Reference(part["baseline"], "baseline")]
            panels.append(Lines(title, part["score_label"], axes, note, reference, spi.limits(part)))
    return [], [*panels, *(Table.of(table, folded=True) for table in spi.tables(run, None))]


def rules_panels(run: Run) -> tuple[Summary, list[Panel]]:
    steps, beta = run.finished()["steps"], run.config["settings"]["beta"]
    rows = [
        IntervalRow(step["rule"], step["improvement"], *spread_around(step))
        for step in steps
        if step["improvement"] is not None and math.isfinite(step["improvement"])
    ]
    note = "Bars: plus and minus two standard deviations of the penalty from errors of Q."
    panels: list[Panel] = [Intervals("Improvement step of each rule", "improvement", rows, 0.0, "beta", note)]
    for step in steps:
        pairs = [PairRow(action_label(a), beta[a], step["pi"][a]) for a in range(min(len(beta), MAX_PAIRS))]
        ratios = f"Ratios pi/beta from {step['c_min']:.3g} to {step['c_max']:.3g}."
        panels.append(Pairs(step["rule"], pairs, ratios))
    return [], [*panels, Table.of(bandit.rules_table(run))]


def spread_around(step: dict[str, Any]) -> tuple[float, float]:
    """Two standard deviations of the penalty around the improvement step."""
    reach = 2 * step["penalty_std"]
    return step["improvement"] - reach, step["improvement"] + reach


def info_panels(run: Run) -> tuple[Summary, list[Panel]]:
    found = run.finished()
    env = found["spec"].get("env")
    summary = [["environment", env]] if env else []
    summary += [["episodes", f"{found['episodes']:,}"], ["steps", f"{found['steps']:,}"]]
    charts = [histogram(found, *names) for names in HISTOGRAMS] if found["episodes"] else []
    return summary, [*charts, *(Table.of(table) for table in data_tables.info_tables(found))]


HISTOGRAMS = (("scores", "Scores", "score"), ("lengths", "Lengths", "steps"))


def histogram(found: dict[str, Any], key: str, title: str, unit: str) -> Lines:
    """How many episodes have which score or length, as steps."""
    edges, counts = found[key]["edges"], found[key]["counts"]
    x = [edge for pair in itertools.pairwise(edges) for edge in pair]
    line = line_of("episodes", x, [count for count in counts for _ in range(2)])
    low, middle, high = found[key]["quartiles"]
    note = f"Mean {number(found[key]['mean'])}, median {number(middle)}, quartiles {number(low)} to {number(high)}."
    return Lines(
        f"{title} of the episodes", "episodes", [Axis(key, unit, [line])], note, y_range=(0, 1.06 * max(counts))
    )


def counted_panels(run: Run) -> tuple[Summary, list[Panel]]:
    """Runs whose result is a few numbers: imports and exports."""
    found = {name: value for name, value in run.finished().items() if isinstance(value, int | float | str)}
    return [
        [name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)]
        for name, value in found.items()
    ], []


PANELS: dict[str, Callable[[Run], tuple[Summary, list[Panel]]]] = {
    "train": train_panels,
    "evaluate": evaluate_panels,
    "offline": offline_panels,
    "improve": improve_panels,
    "certify": certify_panels,
    "monitor": monitor_panels,
    "bandit-regret": regret_panels,
    "bandit-learn": learn_panels,
    "spi": spi_panels,
    "rules": rules_panels,
    "data-info": info_panels,
    "data-record": info_panels,
    "data-import": counted_panels,
    "data-export": counted_panels,
    "export": counted_panels,
}


def action_label(name: str | int) -> str:
    """The name of an action, or `action 3` where it has a number only."""
    return f"action {name}" if isinstance(name, int) else name


def number(value: float) -> str:
    """A score with a sensible number of digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def duration(seconds: float) -> str:
    """Seconds in the unit that people would use."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
