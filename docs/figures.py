"""Draws the figures of README and docs: `python docs/figures.py` (needs the repository's benchmarks/).

Every number is computed by the package, or is a measurement in benchmarks/results/.
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.path import Path as Line

import rbi
from rbi.evaluation.comparison import probability_below_over_seeds
from rbi.report import LOOK

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "figures"
CERTAIN = 0.95  # P(below) from which a policy counts as below, as in docs/results.md
BLUE, RED, GREEN, GREY, INK = "#1f5f99", "#b4462a", "#2b7a4b", "#9aa5ad", "#22303c"

# One state, in which five actions were tried 50, 25, 15, 7 and 3 times in 100 visits
BETA = np.array([0.50, 0.25, 0.15, 0.07, 0.03])
TRUE_Q = np.array([1.0, 1.3, 0.8, 0.6, 0.4])
VISITS, RETURN_STD = 100, 1.5
RULES = {
    "reroute(0.5,1.5)": BLUE,
    "ppo(0.5)": GREY,
    "tv(0.25)": GREY,
    "greedy": RED,
}


def estimated_q(rng, datasets):
    """Mean returns of the visits of each dataset, `[datasets, 5]`."""
    error = rbi.measures.value_standard_error(RETURN_STD, VISITS, BETA)
    return TRUE_Q + rng.normal(size=(datasets, len(BETA))) * error


def reroute_explained():
    """Noisy values, what rules make of them, and what that gains over 10,000 datasets."""
    q = estimated_q(np.random.default_rng(22), 1)[0]  # a log in which the rarest action looks best
    error = rbi.measures.value_standard_error(RETURN_STD, VISITS, BETA)
    actions = np.arange(len(BETA))
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1.25, 1.1])

    left.errorbar(actions, q, error, fmt="o", color=INK, capsize=3, label="estimate")
    left.plot(actions, TRUE_Q, "_", color=GREEN, markersize=16, markeredgewidth=2.5, label="truth")
    left.set_title("1  What the log says: rare actions\nhave the worst estimates")
    left.set_xticks(actions, [f"{round(VISITS * beta)}x" for beta in BETA])
    left.set_xlabel("how often each action was tried")
    left.set_ylabel("Q-value")
    left.legend(loc="lower left")

    reroute, greedy = rbi.max_reroute(BETA, q, 0.5, 1.5), rbi.greedy(BETA, q)
    middle.bar(actions, BETA, 0.72, color="#dde2e6", label="logged policy (beta)")
    middle.bar(
        actions, BETA, 0.72, bottom=0.5 * BETA, fill=False, edgecolor=BLUE, linestyle=":", label="0.5 to 1.5 times beta"
    )
    middle.plot(actions, reroute, "o", color=BLUE, markersize=8, label="reroute")
    middle.plot(actions, greedy, "X", color=RED, markersize=8, label="greedy")
    middle.set_title("2  Reroute stays within 0.5 to 1.5 times\nthe logged probability; greedy jumps")
    middle.set_xticks(actions, [f"{round(VISITS * beta)}x" for beta in BETA])
    middle.set_ylabel("probability")
    middle.set_ylim(0, 1.05)
    middle.legend(loc="upper center", bbox_to_anchor=(0.47, 1.02))

    many = estimated_q(np.random.default_rng(0), 10_000)
    beta = np.broadcast_to(BETA, many.shape)
    for place, (name, color) in enumerate(RULES.items()):
        gain = rbi.parse_rule(name)(beta, many) @ TRUE_Q - BETA @ TRUE_Q
        worst = np.sort(gain)[:100].mean()
        right.plot([worst, gain.mean()], [place, place], "-", color=color, linewidth=2)
        right.plot(gain.mean(), place, "o", color=color, markersize=8)
        right.plot(worst, place, "|", color=color, markersize=14, markeredgewidth=2.5)
        right.annotate(name, (gain.mean(), place), (8, 0), textcoords="offset points", va="center", color=INK)
    right.axvline(0, color=INK, linewidth=0.8)
    right.set_title("3  True gain over beta in 10,000 such logs:\nmean (dot) and worst 1% (bar)")
    right.set_yticks([])
    right.set_ylim(len(RULES) - 0.5, -0.5)
    right.set_xlim(right=right.get_xlim()[1] + 0.35)
    right.set_xlabel("true gain")
    return figure


def shown_populations():
    """One result per game: its strongest players."""
    by_game = {}
    for skill in ("weak", "mixed", "strong"):
        for path in (ROOT / "benchmarks/results").glob(f"offline-*-{skill}.json"):
            by_game[path.stem.split("-")[1]] = path
    return [by_game[game] for game in sorted(by_game)]


def atari_scores():
    """Four games learned from a recorded population: scores of rules and baselines next to the cloned behaviour."""
    rows = ["reroute(0.5,1.5)", "reroute(0,2)", "tv(0.25)", "ppo(0.5)", "greedy", "DQfD", "CQL(1)"]
    games, rng = [json.loads(path.read_text()) for path in shown_populations()], np.random.default_rng(0)
    rows = [name for name in rows if all(any(row["name"] == name for row in game["rows"]) for game in games)]
    figure = Figure(figsize=(10, 2.9), layout="constrained")
    for axes, game in zip(figure.subplots(1, len(games), sharey=True), games, strict=True):
        found = {row["name"]: row for row in game["rows"]}
        behavior = found["behavior"]["mean"]
        axes.axvline(behavior, color=INK, linewidth=1)
        for place, name in enumerate(rows):
            row = found[name]
            below = probability_below_over_seeds(row["scores"], found["behavior"]["scores"], rng)
            color = RED if below >= CERTAIN else BLUE if name.startswith("reroute") else GREY
            axes.plot(row["interval"], [place, place], "-", color=color, linewidth=2)
            axes.plot(row["mean"], place, "o", color=color, markersize=7)
        title = game["env"].removeprefix("ALE/").removesuffix("-v5")
        axes.set_title(f"{title}, {game['skill']}")
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    line = "score; the line is the cloned behaviour, red is below it with a probability of 95% over seeds and episodes"
    figure.supxlabel(f"{line};\nbars are 95% intervals of the seeds that were run", fontsize=9)
    return figure


def policy_sets():
    """The policies that each constraint allows, on the triangle of three actions."""
    corners = np.array([[0, 0], [1, 0], [0.5, np.sqrt(3) / 2]])
    x, y = np.meshgrid(np.linspace(-0.02, 1.02, 320), np.linspace(-0.02, 0.9, 280))
    third = y / corners[2, 1]
    pi = np.stack([1 - (x - third / 2) - third, x - third / 2, third], -1)
    outside = -pi.min(-1)  # positive outside the triangle
    safe = np.maximum(pi, 1e-9)
    figure = Figure(figsize=(9, 4), layout="constrained")
    figure.get_layout_engine().set(wspace=0.15)
    betas = {
        "all actions tried often": np.array([0.4, 0.35, 0.25]),
        "one action hardly ever tried": np.array([0.6, 0.37, 0.03]),
    }
    for axes, (title, beta) in zip(figure.subplots(1, 2), betas.items(), strict=True):
        base = np.broadcast_to(beta, safe.shape)
        ratio = rbi.measures.probability_ratio(safe, base)
        sets = {  # policies with negative numbers are allowed
            "reroute(0.5,1.5)": (BLUE, np.maximum(ratio - 1.5, 0.5 - ratio).max(-1)),
            "total variation 0.25": (RED, rbi.measures.total_variation(safe, base) - 0.25),
            "KL(pi || beta) 0.1": (GREEN, rbi.measures.kl(safe, base) - 0.1),
            "KL(beta || pi) 0.1": ("#8a5a9e", rbi.measures.kl(base, safe) - 0.1),
        }
        axes.fill(*corners.T, facecolor="#f6f7f8", edgecolor=INK)
        for name, (color, excess) in sets.items():
            drawn = np.maximum(excess, outside)
            if "reroute" in name:
                axes.contourf(x, y, drawn, [drawn.min() - 1, 0], colors=[color], alpha=0.25)
            for line in axes.contour(x, y, drawn, [0], colors=[color], linewidths=1.8).get_paths():
                line.codes[line.codes == Line.CLOSEPOLY] = Line.LINETO  # whether it is closed depends on the CPU
            axes.plot([], [], color=color, label=name)
        axes.plot(*(beta @ corners), "o", color=INK, label="beta")
        for corner, name, where in zip(corners, "abc", ("right", "left", "center"), strict=True):
            axes.annotate(
                f"always {name}", corner, (0, -12 if name != "c" else 5), textcoords="offset points", ha=where
            )
        axes.set_title(f"{title}: beta = ({', '.join(f'{p:g}' for p in beta)})", pad=18)
        axes.set_axis_off()
        axes.set_aspect("equal")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure


def cost_of_errors():
    """The standard deviation that estimation errors add, if a rule prefers an action with probability beta."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    rare = np.geomspace(0.002, 0.5, 60)
    beta, q = np.stack([1 - rare, rare], -1), np.broadcast_to([0.0, 1.0], (60, 2))
    for name, color in {"reroute(0.5,1.5)": BLUE, "tv(0.25)": GREEN, "greedy": RED}.items():
        pi = rbi.parse_rule(name)(beta, q)
        std = np.sqrt(rbi.measures.penalty_term(pi, beta).sum(-1) / VISITS)
        axes.loglog(rare, std, color=color, linewidth=1.8)
        down = -14 if "reroute" in name else 5
        axes.annotate(name, (rare[6], std[6]), (4, down), textcoords="offset points", color=color)
    axes.set_xlabel("logged probability of the action that looks best")
    axes.set_ylabel("penalty std (units of sigma, 100 visits)")
    return figure


def count_aware():
    """The most probability that each rule gives an action with beta = 0.1, by how often it was tried."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    counts = np.arange(61)
    beta = np.full(61, 0.1)
    upper = [rbi.count_bounds(np.array([0.1, 0.9]), np.array([n, 1000]), 0.1)[1][0] * 0.1 for n in counts]
    axes.plot(counts, 2 * beta, color=GREEN, linestyle="-.", linewidth=1.6)
    axes.plot(counts, upper, color=BLUE, linewidth=2)
    axes.plot(counts, np.where(counts > 10, 1.0, 0.1), drawstyle="steps-mid", color=RED, linestyle="--", linewidth=1.6)
    axes.annotate("reroute(0,2)", (61, 0.2), color=GREEN, va="center")
    axes.annotate("count_aware(0.1)", (61, upper[-1]), color=BLUE, va="center")
    axes.annotate("Pi_b-SPIBB(10)", (61, 1.0), color=RED, va="center")
    axes.axhline(0.1, color=INK, linewidth=0.8)
    axes.annotate("beta", (61, 0.1), (0, -11), textcoords="offset points")
    axes.set_xlim(0, 82)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("how often the action was tried")
    axes.set_ylabel("largest probability allowed")
    return figure


def certificate():
    """The certified gain of one policy by the number of later decisions, next to the true gain."""
    found = json.loads((ROOT / "benchmarks/results/certificate.json").read_text())
    truth, sizes, lower = found["true_gain"], [int(size) for size in found["lower"]], list(found["lower"].values())
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.fill_between(sizes, *np.quantile(lower, [0.05, 0.95], axis=1), color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(sizes, np.median(lower, axis=1), "o-", color=BLUE)
    axes.annotate("certified", (sizes[-3], np.median(lower[-3])), (6, -16), textcoords="offset points", color=BLUE)
    axes.axhline(truth, color=GREEN, linewidth=1.8)
    axes.annotate("true gain", (sizes[0], truth), (0, 4), textcoords="offset points", color=GREEN)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.annotate("above 0: deploy", (sizes[-1], 0), (-78, -13), textcoords="offset points", color=INK)
    axes.set_xscale("log")
    axes.set_ylim(-0.06, truth + 0.02)
    axes.set_xlabel("logged decisions that the policy has never seen")
    axes.set_ylabel("gain per decision, 95% lower bound")
    return figure


FIGURES = {
    "reroute": reroute_explained,
    "atari-scores": atari_scores,
    "policy-sets": policy_sets,
    "cost-of-errors": cost_of_errors,
    "count-aware": count_aware,
    "certificate": certificate,
}


def draw(name, file):
    """Write a figure as SVG, the same bytes every time."""
    exact = {"svg.hashsalt": "rbi", "path.simplify": False}  # what a path is simplified to depends on the CPU
    with mpl.rc_context({**LOOK, **exact, "font.size": 10, "axes.titlesize": 10}):
        FIGURES[name]().savefig(file, format="svg", metadata={"Date": None}, facecolor="white")


def main(names):
    for name in names or FIGURES:
        path = FOLDER / f"{name}.svg"
        draw(name, path)
        print(path.relative_to(ROOT), f"{path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
