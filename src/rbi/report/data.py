"""Tables and figures of `rbi data`."""

import datetime
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from rbi import envs
from rbi.report import ACCENT, GREY, facts_table, name_ticks, numbers_table, styled_figure

SHOWN_ACTIONS = 20


def info_table(found: dict[str, Any]) -> Table:
    """The statistics of a dataset."""
    spec, ends = found["spec"], found["ends"]
    all_probs = spec.get("has_behavior_probs", False)
    rows = {
        "observations": f"{kind(spec)}, {spec['frame_stack']} per state",
        "environment": spec["env"] or "unknown",
        "episodes": f"{found['episodes']:,}",
        "steps": f"{found['steps']:,}",
        "score": spread_text(found["scores"]),
        "length": spread_text(found["lengths"]),
        "rewards": rewards_text(found),
        "ends": ", ".join(f"{count:,} {name}" for name, count in ends.items() if count) or "none",
        "lives lost": "only found by an import" if found["lives_lost"] is None else f"{found['lives_lost']:,}",
        "players": players_text(found),
        "logged probabilities": "of all actions" if all_probs else "yes" if found["has_action_probs"] else "no",
        "action masks": "yes" if found["spec"].get("has_action_masks") else "no",
        "coverage": coverage_text(found),
        "rejected": f"{found['rejected']:,}",
        "lost": f"{found['lost']:,}",
    }
    return facts_table(f"episodes of {found['path']} ({found['format']})", rows)


def info_tables(found: dict[str, Any]) -> list[Table]:
    """All tables of a dataset."""
    tables = [info_table(found)]
    if found["episodes"]:
        tables += [action_table(found), *([players] if (players := player_table(found)) else [])]
    return tables + ([rejected_table(found["rejected_examples"], found["rejected"])] if found["rejected"] else [])


def kind(spec: dict[str, Any]) -> str:
    size = " x ".join(str(n) for n in spec["obs_shape"])
    return f"images {size}" if len(spec["obs_shape"]) > 1 else f"vectors of {size}"


def spread_text(found: dict[str, Any]) -> str:
    if found["mean"] is None:
        return "none"
    low, middle, high = found["quartiles"]
    return (
        f"mean {found['mean']:,.4g}, median {middle:,.4g}, quartiles {low:,.4g} to {high:,.4g}\n"
        f"{found['min']:,.4g} {bars(found['counts'])} {found['max']:,.4g}"
    )


def bars(counts: Any) -> str:
    """A histogram in one line."""
    counts = np.asarray(counts)
    heights = np.ceil(8 * counts / max(1, counts.max())).astype(int)
    return "".join(" ▁▂▃▄▅▆▇█"[height] for height in heights)


def rewards_text(found: dict[str, Any]) -> str:
    if not found["steps"]:
        return "none"
    least, most, share = (found["rewards"][key] for key in ("min", "max", "nonzero_share"))
    return f"{least:,.4g} to {most:,.4g}, nonzero in {100 * share:.3g}% of the steps"


def players_text(found: dict[str, Any]) -> str:
    count = found["num_players"]
    if not count:
        return "none"
    if count == 1 and not found["players"][0]["name"]:
        return "unknown"
    return f"{count:,}"


def coverage_text(found: dict[str, Any]) -> str:
    text = (
        f"{len(found['actions'])} of {found['spec']['num_actions']:,} actions taken, effectively "
        f"{found['effective_actions']:.1f} (exp of the entropy)"
    )
    sampled = found["sampled_observations"]
    return text + (
        f"; {sampled['distinct']:,} of {sampled['total']:,} sampled observations are distinct" if sampled else ""
    )


def shown_actions(found: dict[str, Any]) -> tuple[list[int], Any, str]:
    """Actions to show (all, or the most frequent ones), their counts, and a caption."""
    taken = {int(action): count for action, count in found["actions"].items()}
    if found["spec"]["num_actions"] <= SHOWN_ACTIONS:
        every = list(range(found["spec"]["num_actions"]))
        return every, np.array([taken.get(action, 0) for action in every]), ""
    most = sorted(taken, key=lambda action: (-taken[action], action))[:SHOWN_ACTIONS]
    caption = f"the {len(most)} most frequent of {found['spec']['num_actions']:,}"
    return most, np.array([taken[action] for action in most]), caption


def action_names(spec: dict[str, Any]) -> Sequence[Any]:
    """What the data or the Atari game calls each action: its name, or its number."""
    count = spec["num_actions"]
    return spec.get("action_names") or envs.action_names(spec.get("env") or "", count) or range(count)


def date_text(days: float) -> str:
    """The date that lies `days` after 1970-01-01; the nearest one of the calendar.

    >>> date_text(20_000.5)
    '2024-10-04'
    """
    number = math.floor(days) + datetime.date(1970, 1, 1).toordinal()
    return datetime.date.fromordinal(min(max(number, 1), datetime.date.max.toordinal())).isoformat()


def action_table(found: dict[str, Any]) -> Table:
    """How often each action was taken."""
    actions, counts, caption = shown_actions(found)
    names = action_names(found["spec"])
    table = numbers_table("actions", ("action", "steps", "share", ""), texts=("",), caption=caption or None)
    for action, count in zip(actions, counts, strict=True):
        bar = "█" * round(24 * count / max(1, counts.max()))
        table.add_row(str(names[action]), f"{count:,}", f"{100 * count / max(1, found['steps']):.1f}%", bar)
    return table


def player_table(found: dict[str, Any]) -> Table | None:
    """Episodes and mean score of each player; None if no player is named."""
    if players_text(found) == "unknown":
        return None
    table = numbers_table("players", ("player", "episodes", "mean score"), texts=("player",))
    for player in found["players"]:
        table.add_row(player["name"] or "(no name)", f"{player['episodes']:,}", f"{player['mean']:,.4g}")
    if found["num_players"] > len(found["players"]):
        table.caption = f"the {len(found['players'])} with the most episodes, of {found['num_players']:,}"
    return table


def rejected_table(examples: list[dict[str, Any]], count: int) -> Table:
    """Rejected episodes, one example of each kind."""
    table = Table(box=SIMPLE_HEAD, title=f"rejected: {count:,}")
    table.add_column("the first of each kind", overflow="fold")
    for example in examples:
        table.add_row(example["first"])
    return table


def info_figure(found: dict[str, Any]) -> Any:
    """Histograms of scores and lengths, and how often each action was taken."""
    with styled_figure(7.2, 2.3) as figure:
        panels = figure.subplots(1, 3)
        for panel, name, label in zip(panels, ("scores", "lengths"), ("score", "length, steps"), strict=False):
            edges, counts = np.asarray(found[name]["edges"]), np.asarray(found[name]["counts"])
            panel.bar(edges[:-1], counts, np.diff(edges), align="edge", color=GREY, edgecolor="white", linewidth=0.4)
            panel.axvline(found[name]["mean"], color=ACCENT, linewidth=1.4)
            panel.annotate(" mean", (found[name]["mean"], 1), xycoords=("data", "axes fraction"), va="top")
            panel.set(xlabel=label, ylabel="episodes")
            panel.yaxis.get_major_locator().set_params(integer=True)
        actions, counts, caption = shown_actions(found)
        panels[2].bar(np.arange(len(actions)), counts / max(1, found["steps"]), color=GREY)
        names = action_names(found["spec"])
        name_ticks(panels[2], [str(names[action]) for action in actions], max_letters=18)
        panels[2].set(xlabel="action" + (f", {caption}" if caption else ""), ylabel="share of steps")
    return figure


def frame_figure(frames: Any) -> Any:
    """Some observations as images."""
    columns = min(6, len(frames))
    rows = -(-len(frames) // columns)
    with styled_figure(1.25 * columns, 1.35 * rows) as figure:
        panels = np.atleast_1d(figure.subplots(rows, columns)).ravel()
        for panel, frame in zip(panels, frames, strict=False):
            shown = frame if frame.ndim == 2 or frame.shape[2] == 3 else frame[..., 0]
            panel.imshow(shown, cmap="grey", vmin=0, vmax=255)
        for panel in panels:
            panel.axis("off")
    return figure
