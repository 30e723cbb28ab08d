"""Tables and figures of `rbi data`."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rbi.report.style import ACCENT, GREY, LOOK

SHOWN_ACTIONS = 20


def info_table(found: dict[str, Any]) -> Table:
    """What a data set holds."""
    spec, ends = found["spec"], found["ends"]
    rows = {
        "observations": f"{kind(spec)}, {spec['frame_stack']} to a state",
        "environment": spec["env"] or "not said",
        "episodes": f"{found['episodes']:,}",
        "steps": f"{found['steps']:,}",
        "score": spread_text(found["scores"]),
        "length": spread_text(found["lengths"]),
        "rewards": rewards_text(found),
        "ends": ", ".join(f"{count:,} {name}" for name, count in ends.items() if count) or "none",
        "lives lost": "found by an import only" if found["lives_lost"] is None else f"{found['lives_lost']:,}",
        "players": players_text(found),
        "logging probabilities": "yes" if found["logging_probabilities"] else "no",
        "coverage": coverage_text(found),
        "set aside": f"{found['set_aside']:,}",
    }
    table = Table(box=SIMPLE_HEAD, title=f"{found['path']} ({found['format']})")
    table.add_column("")
    table.add_column("")
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def info_tables(found: dict[str, Any]) -> list[Table]:
    """Everything that there is to show."""
    tables = [info_table(found)]
    if found["episodes"]:
        tables += [action_table(found), *([players] if (players := player_table(found)) else [])]
    return tables + ([problem_table(found["problems"], found["set_aside"])] if found["set_aside"] else [])


def kind(spec: dict[str, Any]) -> str:
    size = " x ".join(str(n) for n in spec["obs_shape"])
    return f"pictures {size}" if len(spec["obs_shape"]) > 1 else f"vectors of {size}"


def spread_text(found: dict[str, Any]) -> str:
    if found["mean"] is None:
        return "none"
    low, middle, high = found["quartiles"]
    return (
        f"mean {found['mean']:,.4g}, median {middle:,.4g}, quartiles {low:,.4g} to {high:,.4g}\n"
        f"{found['least']:,.4g} {bars(found['counts'])} {found['most']:,.4g}"
    )


def bars(counts: Any) -> str:
    """A histogram in one line."""
    counts = np.asarray(counts)
    heights = np.ceil(8 * counts / max(1, counts.max())).astype(int)
    return "".join(" ▁▂▃▄▅▆▇█"[height] for height in heights)


def rewards_text(found: dict[str, Any]) -> str:
    rewards = found["rewards"]
    if not found["steps"]:
        return "none"
    return f"{rewards['least']:,.4g} to {rewards['most']:,.4g}, {100 * rewards['share']:.3g}% of the steps have one"


def players_text(found: dict[str, Any]) -> str:
    count = found["players_in_all"]
    if not count:
        return "none"
    if count == 1 and not found["players"][0]["name"]:
        return "not said"
    return f"{count:,}"


def coverage_text(found: dict[str, Any]) -> str:
    text = (
        f"{len(found['actions'])} of {found['spec']['num_actions']:,} actions taken, as spread as "
        f"{found['actions_effective']:.1f} equal ones"
    )
    seen = found["observations_seen"]
    return text + (f"; {seen['distinct']:,} of {seen['looked_at']:,} observations looked at differ" if seen else "")


def shown_actions(found: dict[str, Any]) -> tuple[list[int], Any, str]:
    """Actions to show, their counts, and what to say if they are not all: then the most frequent ones."""
    taken = {int(action): count for action, count in found["actions"].items()}
    if found["spec"]["num_actions"] <= SHOWN_ACTIONS:
        every = list(range(found["spec"]["num_actions"]))
        return every, np.array([taken.get(action, 0) for action in every]), ""
    most = sorted(taken, key=lambda action: (-taken[action], action))[:SHOWN_ACTIONS]
    told = f"the {len(most)} most frequent of {found['spec']['num_actions']:,}"
    return most, np.array([taken[action] for action in most]), told


def action_table(found: dict[str, Any]) -> Table:
    """How often each action was taken."""
    actions, counts, told = shown_actions(found)
    table = Table(box=SIMPLE_HEAD, title="actions", caption=told or None)
    for name in ("action", "steps", "share"):
        table.add_column(name, justify="right")
    table.add_column("")
    for action, count in zip(actions, counts, strict=True):
        bar = "█" * round(24 * count / max(1, counts.max()))
        table.add_row(str(action), f"{count:,}", f"{100 * count / max(1, found['steps']):.1f}%", bar)
    return table


def player_table(found: dict[str, Any]) -> Table | None:
    """Who played how often and how well; None where nobody is named."""
    if players_text(found) == "not said":
        return None
    table = Table(box=SIMPLE_HEAD, title="players")
    table.add_column("player")
    for name in ("episodes", "mean score"):
        table.add_column(name, justify="right")
    for player in found["players"]:
        table.add_row(player["name"] or "(no name)", f"{player['episodes']:,}", f"{player['mean']:,.4g}")
    if found["players_in_all"] > len(found["players"]):
        table.caption = f"the {len(found['players'])} with the most episodes, of {found['players_in_all']:,}"
    return table


def problem_table(problems: list[dict[str, Any]], count: int) -> Table:
    """What was set aside, one example of each kind."""
    table = Table(box=SIMPLE_HEAD, title=f"set aside: {count:,}")
    table.add_column("the first of each kind", overflow="fold")
    for problem in problems:
        table.add_row(problem["first"])
    return table


def info_figure(found: dict[str, Any]) -> Any:
    """Histograms of scores and lengths, and how often each action was taken."""
    with plt.rc_context(LOOK):
        figure: Any = plt.figure(figsize=(7.2, 2.3), layout="constrained")
        panels = figure.subplots(1, 3)
        for panel, name, label in zip(panels, ("scores", "lengths"), ("score", "steps"), strict=False):
            edges, counts = np.asarray(found[name]["edges"]), np.asarray(found[name]["counts"])
            panel.bar(edges[:-1], counts, np.diff(edges), align="edge", color=GREY, edgecolor="white", linewidth=0.4)
            panel.axvline(found[name]["mean"], color=ACCENT, linewidth=1.4)
            panel.annotate(" mean", (found[name]["mean"], 1), xycoords=("data", "axes fraction"), va="top")
            panel.set(xlabel=label, ylabel="episodes")
        actions, counts, told = shown_actions(found)
        panels[2].bar(np.arange(len(actions)), counts / max(1, found["steps"]), color=GREY)
        panels[2].set_xticks(np.arange(len(actions)), actions, fontsize=6 if len(actions) > 9 else None)
        panels[2].tick_params("x", rotation=90 if told else 0)
        panels[2].set(xlabel="action" + (f", {told}" if told else ""), ylabel="share of steps")
    plt.close(figure)  # pyplot need not remember it
    return figure


def frame_figure(frames: Any) -> Any:
    """Some observations, as pictures."""
    with plt.rc_context(LOOK):
        columns = min(6, len(frames))
        rows = -(-len(frames) // columns)
        figure: Any = plt.figure(figsize=(1.25 * columns, 1.35 * rows), layout="constrained")
        panels = np.atleast_1d(figure.subplots(rows, columns)).ravel()
        for panel, frame in zip(panels, frames, strict=False):
            shown = frame if frame.ndim == 2 or frame.shape[2] == 3 else frame[..., 0]
            panel.imshow(shown, cmap="grey", vmin=0, vmax=255)
        for panel in panels:
            panel.axis("off")
    plt.close(figure)  # pyplot need not remember it
    return figure
