"""Tables and figures of `rbi train` and `rbi evaluate`, from their run folders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rbi import runs
from rbi.evaluation.comparison import PUBLISHED, game_name
from rbi.online.config import PAPER_GAMES
from rbi.online.sweep import as_file_name
from rbi.report import ACCENT, DARK, GREY, LINES, facts_table, label_lines, numbers_table, styled_figure
from rbi.runs import Run
from rbi.statistics import score_text

NOT_RUN = "not run"
GRID = 200  # points at which the curves of several seeds are compared
RESTARTED = ("workers", "shards", "learners")
ALGORITHMS = {"rbi": "RBI", "apex": "Ape-X"}


# Training


def learning_curves(of: Sequence[Run]) -> Any:
    """Scores in training, one line per algorithm: the median over seeds, or the mean of one run's latest episodes in
    its low-epsilon environments; quartiles shaded."""
    with styled_figure(5.2, 3.0) as figure:
        panel = figure.subplots()
        atari = of[0].config["settings"]["env"].startswith("ALE/")
        groups: dict[str, list[Run]] = {}
        for run in of:
            groups.setdefault(run.config["settings"]["algo"], []).append(run)
        for style, (algo, every) in zip(LINES, groups.items(), strict=False):
            seeds = with_scores(every)
            found = score_curve(seeds, lambda line: line["states"] * (4e-6 if atari else 1e-3))
            if found is not None:
                x, middle, low, high = found
                label = f"{ALGORITHMS[algo]}, " + (f"{len(seeds)} seeds" if len(seeds) > 1 else "one seed")
                panel.plot(x, middle, label=label, **style)
                panel.fill_between(x, low, high, color=style["color"], alpha=0.13, linewidth=0)
        panel.set(xlabel="million frames" if atari else "thousand steps", ylabel="score while training")
        panel.set_title(f"{of[0].config['settings']['env']}, quartiles shaded", loc="left")
        label_lines(panel)
    return figure


def score_curve(
    seeds: Sequence[Run], value: Callable[[dict[str, Any]], float]
) -> tuple[list[float], list[float], list[float], list[float]] | None:
    """x, line, lower and upper end of the band of runs that differ in their seed: the median with quartiles over seeds,
    or of one run the mean of its latest episodes with their quartiles. None before the first finished episode."""
    scored = [[line for line in run.metrics if line.get("score") is not None] for run in with_scores(seeds)]
    if not scored:
        return None
    xs = [np.array([value(line) for line in lines], float) for lines in scored]
    if len(scored) == 1:
        line, low, high = ([each[key] for each in scored[0]] for key in ("score", "score_low", "score_high"))
        return xs[0].tolist(), line, low, high
    first = max(x[0] for x in xs)
    grid = np.linspace(first, max(first, min(x[-1] for x in xs)), GRID)
    curves = [np.interp(grid, x, [line["score"] for line in lines]) for x, lines in zip(xs, scored, strict=True)]
    low, middle, high = (each.tolist() for each in np.percentile(curves, [25, 50, 75], axis=0))
    return grid.tolist(), middle, low, high


def with_scores(seeds: Sequence[Run]) -> list[Run]:
    """The runs in which an episode has finished."""
    return [run for run in seeds if any(line.get("score") is not None for line in run.metrics)]


def sweep_figures(of: Sequence[Run]) -> dict[str, Any]:
    """Learning curves of a sweep: one figure per environment."""
    by_env: dict[str, list[Run]] = {}
    for run in of:
        by_env.setdefault(run.config["settings"]["env"], []).append(run)
    return {f"learning-{as_file_name(env)}": learning_curves(found) for env, found in by_env.items()}


def result_table(run: Run) -> Table:
    """The result of one run."""
    found, last = run.finished(), run.finished()["last"]
    rows = {
        "updates, states": f"{last['updates']:,}, {last['states']:,}",
        "time": f"{found['seconds']:,.0f} s on {found['device']}",
        "speed, everything included": f"{found['steps_per_second']:,.0f} steps/s, "
        f"{found['updates_per_second']:,.0f} updates/s",
    }
    if last["score"] is not None:
        rows["score while training"] = f"{score_text(last['score'])} (low-epsilon environments, latest episodes)"
    rows |= fault_rows(found)
    evaluation = found.get("evaluation") or {}
    if evaluation:
        mean, median = score_text(evaluation["mean"]), score_text(evaluation["median"])
        low, high = map(score_text, evaluation["interval"])
        rows[f"score of the policy, {evaluation['episodes']} episodes"] = f"{mean} ({low} to {high}), median {median}"
        if evaluation["human_normalised"] is not None:
            rows["human-normalised"] = human_text(evaluation["human_normalised"])
    title = f"{ALGORITHMS[found['algo']]} on {found['env']}"
    return facts_table(title, rows, caption=evaluation.get("protocol_description"))


def fault_rows(found: dict[str, Any]) -> dict[str, str]:
    """What failures and restarts cost a run, where there were any."""
    rows, faults, resumed = dict[str, str](), found.get("faults", {}), found.get("resumed")
    restarted = [f"{faults[name]} {name if faults[name] > 1 else name[:-1]}" for name in RESTARTED if faults.get(name)]
    if restarted:
        rows["restarted"] = ", ".join(restarted)
    parts = {"steps in flight": "steps_in_flight", "states of the replay": "replay_states"}
    costs = [f"{faults[key]:,} {name}" for name, key in parts.items() if faults.get(key)]
    if costs:
        rows["lost"] = ", ".join(costs)
    repeated = faults.get("updates", 0) + (resumed["repeated_updates"] if resumed else 0)
    if repeated:
        rows["repeated"] = f"{repeated:,} updates"
    if resumed:
        rows["resumed"] = f"{resumed['times']} times" if resumed["times"] > 1 else "once"
    return rows


def read_all(folder: Path) -> list[Run]:
    """The finished runs of a sweep."""
    found = [runs.read(path.parent) for path in sorted(folder.glob("*/config.json"))]
    return [run for run in found if run.result is not None]


def score_table(found: dict[str, Any], *, paper: bool) -> Table:
    """Mean scores of a sweep by environment, next to published ones of Atari games; with `paper` of the paper's twelve
    games."""
    rows = found["rows"]
    environments = [f"ALE/{game}-v5" for game in PAPER_GAMES] if paper else list(dict.fromkeys(r["env"] for r in rows))
    protocol = next((row["protocol_description"] for row in rows if row["protocol_description"]), None)
    known = {env: PUBLISHED.get(game_name(env)) for env in environments if env.startswith("ALE/")}
    published = ("random", "human", "Rainbow", "Ape-X, paper", "RBI, paper") if any(known.values()) else ()
    columns = ("environment", *published, "Ape-X, here", "RBI, here")
    caption = "; ".join(filter(None, ["here: mean score at number of updates", protocol]))
    table = numbers_table(None, columns, texts=("environment",), caption=caption)
    for env in environments:
        scores: list[float | None] = [None] * len(published)
        if (game := known.get(env)) is not None:
            scores = [game.random, game.human, game.rainbow, game.paper_apex, game.paper_rbi]
        here = [mean_over_seeds([r for r in rows if r["env"] == env and r["algo"] == algo]) for algo in ("apex", "rbi")]
        shown = ["-" if score is None else f"{score:,.1f}" for score in scores]
        table.add_row(game_name(env) if env in known else env, *shown, *here)
    return table


def mean_over_seeds(rows: list[dict[str, Any]]) -> str:
    """The mean score over seeds, their range, and the number of updates."""
    means = [row["mean"] if row["mean"] is not None else row["score_while_training"] for row in rows]
    means = [mean for mean in means if mean is not None]
    if not means:
        return NOT_RUN
    spread = f" ({score_text(min(means))} to {score_text(max(means))})" if len(means) > 1 else ""
    return f"{score_text(float(np.mean(means)))}{spread} at {rows[0]['updates']:,}"


# Evaluation


def evaluation_table(run: Run) -> Table:
    """Statistics of the scores, with the protocol."""
    found = run.finished()
    low, high = found["interval"]
    rows = {
        "mean": f"{score_text(found['mean'])}   (95% interval {score_text(low)} to {score_text(high)})",
        "median": score_text(found["median"]),
        "quartiles": " to ".join(map(score_text, found["quartiles"])),
        "range": f"{score_text(found['min'])} to {score_text(found['max'])}",
        "human-normalised": human_text(found["human_normalised"]),
        "truncated by the time limit": f"{found['truncated']} of {found['episodes']}",
    }
    if found.get("outside_range") is not None:
        rows["states far outside the training data"] = f"{100 * found['outside_range']:.1f}%"
    title = f"{found['env']}, {found['episodes']} episodes"
    table = Table(box=SIMPLE_HEAD, title=title, caption=found["protocol_description"])
    table.add_column("")
    table.add_column("score")
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def human_text(value: float | None) -> str:
    """A human-normalised score in percent."""
    return "no published scores" if value is None else f"{100 * value:,.0f}%"


def evaluation_figure(run: Run) -> Any:
    """Scores of all episodes in ascending order, with the mean and its 95% interval."""
    found = run.finished()
    scores = np.sort(found["scores"])
    with styled_figure(4.6, 2.6) as figure:
        panel = figure.subplots()
        panel.bar(np.arange(1, len(scores) + 1), scores, color=GREY, width=0.9)
        panel.axhline(found["mean"], color=ACCENT, linewidth=1.4)
        panel.axhspan(*found["interval"], color=ACCENT, alpha=0.15, linewidth=0)
        at, label = (0.02, found["mean"]), f" mean {score_text(found['mean'])} with 95% interval"
        panel.annotate(label, at, xycoords=("axes fraction", "data"), va="bottom", color=DARK)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set(xlabel="episode, sorted by score", ylabel="score")
        of_atari = found["env"].startswith("ALE/")  # in other environments protocols change nothing
        panel.set_title(found["env"] + (f": {found['protocol']} protocol" if of_atari else ""), loc="left")
    return figure
