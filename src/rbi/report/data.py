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
        "observations": f"{kind(spec)}, {spec['stack']} to a state",
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


def kind(spec: dict[str, Any]) -> str:
    size = " x ".join(str(n) for n in spec["frame"])
    return f"pictures {size}" if len(spec["frame"]) > 1 else f"vectors of {size}"


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
    if count == 1 and not found["players"][0]["name"]:
        return "not said"
    return f"{count:,}"


def coverage_text(found: dict[str, Any]) -> str:
    text = (
        f"{found['actions_tried']} of {len(found['actions'])} actions taken, as spread as "
        f"{found['actions_effective']:.1f} equal ones"
    )
    seen = found["observations_seen"]
    return text + (f"; {seen['distinct']:,} of {seen['looked_at']:,} observations differ" if seen else "")


def action_table(found: dict[str, Any]) -> Table:
    """How often each action was taken."""
    taken = np.asarray(found["actions"])
    shares = taken / max(1, taken.sum())
    most = max(float(shares.max()), 1e-9)
    table = Table(box=SIMPLE_HEAD, title="actions")
    for name in ("action", "steps", "share"):
        table.add_column(name, justify="right")
    table.add_column("")
    order = np.argsort(-taken, kind="stable")[:SHOWN_ACTIONS] if len(taken) > SHOWN_ACTIONS else range(len(taken))
    for action in order:
        bar = "█" * round(24 * shares[action] / most)
        table.add_row(str(action), f"{taken[action]:,}", f"{100 * shares[action]:.1f}%", bar)
    if len(taken) > SHOWN_ACTIONS:
        table.caption = f"the {SHOWN_ACTIONS} most frequent of {len(taken):,}"
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


def problem_table(problems: list[dict[str, Any]], count: int, where: str) -> Table:
    """What was set aside, one example of each kind."""
    table = Table(box=SIMPLE_HEAD, title=f"{count:,} episodes set aside{where}")
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
        taken = np.asarray(found["actions"])
        panels[2].bar(np.arange(len(taken)), taken / max(1, taken.sum()), color=GREY)
        panels[2].set(xlabel="action", ylabel="share of steps")
        panels[2].xaxis.get_major_locator().set_params(integer=True)
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
    return figure
