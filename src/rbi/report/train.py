"""Learning curves and score tables of `rbi train`, from its run folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rbi import runs
from rbi.evaluation.comparison import PUBLISHED, game_name
from rbi.online.config import PAPER_GAMES
from rbi.report.style import ACCENT, DARK, GREY, LINES, LOOK
from rbi.runs import Run

NOT_RUN = "not run"
DEATHS = ("workers", "shards", "learners")
NAMES = {"rbi": "RBI", "apex": "Ape-X"}


def learning_curves(of: Sequence[Run]) -> Any:
    """Scores while learning: the mean of the careful players' last episodes, quartiles shadowed; one line a run."""
    with plt.rc_context(LOOK):
        figure: Any = plt.figure(figsize=(5.2, 3.0), layout="constrained")
        panel = figure.subplots()
        atari = of[0].config["settings"]["env"].startswith("ALE/")
        for number, run in enumerate(of):
            lines = [line for line in run.metrics if line["score"] is not None]
            look = LINES[number % len(LINES)]
            x = np.array([line["states"] for line in lines]) * (4e-6 if atari else 1e-3)
            panel.plot(x, [line["score"] for line in lines], label=curve_name(run), **look)
            low, high = ([line[k] for line in lines] for k in ("score_low", "score_high"))
            panel.fill_between(x, low, high, color=look["color"], alpha=0.13, linewidth=0)
        panel.set(xlabel="million frames" if atari else "thousand steps", ylabel="score while learning")
        panel.set_title(of[0].config["settings"]["env"], loc="left")
        panel.legend(loc="upper left")
    plt.close(figure)  # pyplot need not remember it
    return figure


def curve_name(run: Run) -> str:
    settings = run.config["settings"]
    return f"{NAMES[settings['algo']]}, seed {run.config['seed']}"


def result_table(run: Run) -> Table:
    """What one run came to."""
    found, last = run.finished(), run.finished()["last"]
    table = Table(box=SIMPLE_HEAD, title=f"{NAMES[found['algo']]} on {found['env']}")
    table.add_column("")
    table.add_column("")
    table.add_row("updates, states", f"{last['updates']:,}, {last['states']:,}")
    table.add_row("time", f"{found['seconds']:,.0f} s on {found['device']}")
    speed = f"{found['steps_per_second']:,.0f} steps/s, {found['updates_per_second']:,.0f} updates/s"
    table.add_row("speed, all included", speed)
    if last["score"] is not None:
        table.add_row("score while learning", f"{last['score']:,.1f} (least exploring players, last episodes)")
    for name, told in faults(found):
        table.add_row(name, told)
    played = found.get("evaluation")
    if played:
        low, high = played["interval"]
        told = f"{played['mean']:,.1f} ({low:,.1f} to {high:,.1f}), median {played['median']:,.1f}"
        table.add_row(f"score of the policy, {played['episodes']} episodes", told)
        if played["human_normalised"] is not None:
            table.add_row("human-normalised", human_text(played["human_normalised"]))
        table.caption = played["protocol_description"]
    return table


def faults(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What faults have cost a run, where there were any."""
    rows, lost, resumed = [], found.get("lost", {}), found.get("resumed")
    deaths = [f"{lost[name]} {name if lost[name] > 1 else name[:-1]}" for name in DEATHS if lost.get(name)]
    if deaths:
        rows.append(("died and came back", ", ".join(deaths)))
    parts = {"steps in flight": "steps_in_flight", "states of the replay": "replay_states"}
    costs = [f"{lost[key]:,} {name}" for name, key in parts.items() if lost.get(key)]
    if costs:
        rows.append(("lost", ", ".join(costs)))
    again = lost.get("updates", 0) + (resumed["updates_done_again"] if resumed else 0)
    if again:
        rows.append(("done again", f"{again:,} updates"))
    if resumed:
        rows.append(("resumed", f"{resumed['times']} times" if resumed["times"] > 1 else "once"))
    return rows


def read_all(folder: Path) -> list[Run]:
    """The finished runs of a sweep."""
    found = [runs.read(path.parent) for path in sorted(folder.glob("*/config.json"))]
    return [run for run in found if run.result is not None]


def scores(of: Sequence[Run]) -> dict[str, Any]:
    """Final scores of a sweep: one row a run."""
    rows = []
    for run in of:
        found = run.finished()
        played = found.get("evaluation") or {}
        row = {
            "env": found["env"],
            "algo": found["algo"],
            "seed": run.config["seed"],
            "updates": found["last"]["updates"],
        }
        kept = ("mean", "interval", "median", "quartiles", "episodes", "human_normalised", "protocol_description")
        rows.append(row | {k: played.get(k) for k in kept} | {"score_while_learning": found["last"]["score"]})
    return {"rows": rows}


def score_table(found: dict[str, Any], *, paper: bool) -> Table:
    """Mean scores by environment; with `paper` the paper's twelve games beside its columns, missing ones marked."""
    rows = found["rows"]
    environments = [f"ALE/{game}-v5" for game in PAPER_GAMES] if paper else list(dict.fromkeys(r["env"] for r in rows))
    told = next((row["protocol_description"] for row in rows if row["protocol_description"]), None)
    table = Table(box=SIMPLE_HEAD, caption=told)
    columns = ("environment", "random", "human", "Rainbow", "Ape-X, paper", "RBI, paper", "Ape-X, here", "RBI, here")
    for name in columns:
        table.add_column(name, justify="left" if name == "environment" else "right")
    for env in environments:
        known = PUBLISHED.get(game_name(env)) if env.startswith("ALE/") else None
        published = ["-"] * 5
        if known is not None:
            of_paper = (known.random, known.human, known.rainbow, known.paper_apex, known.paper_rbi)
            published = ["-" if value is None else f"{value:,.1f}" for value in of_paper]
        here = [cell([r for r in rows if r["env"] == env and r["algo"] == algo]) for algo in ("apex", "rbi")]
        table.add_row(game_name(env), *published, *here)
    return table


def cell(rows: list[dict[str, Any]]) -> str:
    """The mean over seeds, the spread between them, and after how many updates."""
    means = [row["mean"] if row["mean"] is not None else row["score_while_learning"] for row in rows]
    means = [mean for mean in means if mean is not None]
    if not means:
        return NOT_RUN
    spread = f" ({min(means):,.1f} to {max(means):,.1f})" if len(means) > 1 else ""
    return f"{np.mean(means):,.1f}{spread} at {rows[0]['updates']:,}"


# ---- from rbi.report.evaluate: The table and the figure of `rbi evaluate`.


def evaluate_score_table(run: Run) -> Table:
    """What the scores say, and under which protocol."""
    found = run.finished()
    low, high = found["interval"]
    rows = {
        "mean": f"{found['mean']:,.1f}   (95% interval {low:,.1f} to {high:,.1f})",
        "median": f"{found['median']:,.1f}",
        "quartiles": "{:,.1f} to {:,.1f}".format(*found["quartiles"]),
        "range": f"{found['min']:,.1f} to {found['max']:,.1f}",
        "human-normalised": human_text(found["human_normalised"]),
        "cut off by time": f"{found['truncated']} of {found['episodes']}",
    }
    title = f"{found['env']}, {found['episodes']} episodes"
    table = Table(box=SIMPLE_HEAD, title=title, caption=found["protocol_description"])
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
