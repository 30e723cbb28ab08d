"""Section 4 of the paper on recorded populations: docs/populations.md and its summary in docs/results.md."""

import json
import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from rbi.evaluation.comparison import MARGIN, game_name, probability_below_over_seeds
from rbi.report import LINES, LOOK
from rbi.report.offline import NAMES, PAPER, between, number

RESULTS = Path(__file__).parent / "results"
SKILLS = ("weak", "mixed", "strong")  # in the order of the tables
POLICIES = (
    "reroute(0.5,1.5)",
    "reroute(0.25,1.75)",
    "reroute(0,2)",
    "tv(0.25)",
    "ppo(0.5)",
    "ppo(0.5) by ascent",
    "greedy",
    "DQfD",
    "bcq(1)",
)
DRAWN = ("behavior", "reroute(0.5,1.5)", "reroute(0,2)", "tv(0.25)", "greedy", "ppo(0.5) by ascent", "DQfD")
CLONES_MODE = "bcq(1)"  # only the most probable action of the clone has enough of its probability
LINEAR_RATIOS = 8  # a panel with larger ratios is logarithmic above 2
CERTAIN = 0.95  # P(below) from which a policy counts as below

SUMMARY_HEAD = """
## Learning from a population of players

The paper's section 4: beta and Q are learned from recorded players, each rule improves the clone, and all policies are
evaluated in the game. Each cell is the score relative to the cloned behaviour and, in brackets, P(below): the bootstrap
probability that the policy scores less than the clone, over seeds and episodes. Rows marked *paper* are its final
scores, learned from people in 1,562,500 updates. Our players are snapshots of a training run with perturbations and, in
weak and mixed populations, random policies. In Montezuma's Revenge they are scripted, and the clone scores a small part
of what they do: it mixes the actions of random players into a route that forgives few mistakes, so that ratios to its
score are uncertain. [Populations](populations.md) has the tables of single populations, curves, commands and machines.
"""

FRACTION_HEAD = """
### How much data is enough

The same with a part of the training episodes, drawn anew for each seed.
"""

PAGE_HEAD = f"""# Populations of players

Drawn by `make results` from the raw JSON in [benchmarks/results](../benchmarks/results); do not edit by hand. The
summary is in [results](results.md#learning-from-a-population-of-players).

Players are snapshots of a training run at several stages of it, each with its own perturbations (random actions, late
actions, abandoned episodes), and random policies. A *weak* population has early snapshots and random policies, a
*mixed* one all of them, a *strong* one late snapshots alone. In Montezuma's Revenge players are scripted: a third, two
thirds or all of them follow a route (`rbi data record climb`), and the others are random. In MsPacman, `--run` names
the [long run](results.md#a-long-run-stopped-and-resumed), whose snapshots after 2.5, 5, 50 and 60 million frames are
the players, with weights rounded to half precision; in Qbert and SpaceInvaders six snapshots, evenly spaced, of one of
the runs of 10 million frames (`python -m benchmarks.atari --games Qbert --algos rbi --seeds 1 --snapshots 6 --policies
FOLDER`).

Other populations than those below are not measured yet.

Intervals and verdicts of these tables are about the seeds that were run: *not below* means a loss of less than
{100 * MARGIN:.0f}%, *above* no loss, each with 95% confidence. The paper's players are people, its datasets are larger
and it trains for 1,562,500 updates, so only the ratios to the clone compare.

DQfD ends far below the clone in all four games of the paper; here it does with the strong players of SpaceInvaders,
whose score is that of the paper's people, and is above the clone in most other populations. Its policy is
deterministic, so it leaves out random actions of the players, which the clone imitates and every rule keeps to a part.
Where it was evaluated, the row *behaviour policy, most probable actions* shows what that is worth without any learned
value. Random actions are one of our players' faults, which favours such policies.
"""

GAME_HEAD = """
## {title}

![learning curves](figures/{file}.png)

{population[policies]} policies, {population[all_episodes]:,} episodes, {population[steps]:,} steps; {updates:,}
updates. Every row: {seeds}, {episodes} episodes in total; {protocol}. {points} points on the curves, each the mean of
{at_points} episodes{last}.
"""


def load_results(folder=RESULTS):
    """All results, by game, skill and fraction of the data; each knows the name of its file."""
    paths = [path for path in folder.glob("offline-*.json") if "speed" not in path.name]
    found = [{"fraction": 1.0, "file": path.stem} | json.loads(path.read_text()) for path in paths]
    return sorted(found, key=lambda r: (game_name(r["env"]), SKILLS.index(r["skill"]), r["fraction"]))


def whole(results):
    """The results of whole populations."""
    return [result for result in results if result["fraction"] == 1]


def title(result):
    return f"{game_name(result['env'])}, {result['skill']}"


def rows_by_name(result):
    return {row["name"]: row for row in result["rows"]}


# The summary in docs/results.md


def below(result):
    """P(below) of each policy, over seeds and episodes."""
    rows, rng = rows_by_name(result), np.random.default_rng(0)
    return {
        name: probability_below_over_seeds(rows[name]["scores"], rows["behavior"]["scores"], rng)
        for name in POLICIES
        if name in rows
    }


def summary_part(all_results):
    """The table of all populations, the paper's rows between them, and what it says about each policy."""
    results = whole(all_results)
    if not results:
        return []
    lines, found = ratio_head("population | its score"), [below(result) for result in results]
    for i, result in enumerate(results):
        lines.append(ratio_row(f"{title(result)} | {number(result['population']['mean'])}", result, found[i]))
        game = game_name(result["env"])
        if game in PAPER and (i + 1 == len(results) or game_name(results[i + 1]["env"]) != game):
            lines.append(paper_row(game))
    figure = "![scores relative to the clone](figures/populations.png)"
    return [SUMMARY_HEAD, *lines, "", *answers(results, found), "", figure, *fraction_part(all_results)]


def ratio_head(first):
    names = [NAMES.get(name, name) for name in POLICIES]
    return [f"| {first} | clone | {' | '.join(names)} |", "|---|--:|--:|" + "--:|" * len(names)]


def ratio_row(first, result, found):
    """Scores relative to the clone, with P(below)."""
    clone = rows_by_name(result)["behavior"]["mean"]
    cells = [f"{times(ratio(result, name))} ({found[name]:.2f})" if name in found else "" for name in POLICIES]
    return f"| {first} | {number(clone)} | {' | '.join(cells)} |"


def fraction_part(results):
    """The same with a part of the data, next to the whole."""
    parts = [(r["env"], r["skill"]) for r in results if r["fraction"] < 1]
    if not parts:
        return []
    lines = ratio_head("population | data")
    for result in results:
        if (result["env"], result["skill"]) in parts:
            lines.append(ratio_row(f"{title(result)} | {result['fraction']:.0%}", result, below(result)))
    return [FRACTION_HEAD, *lines]


def paper_row(game):
    scores = PAPER[game]
    cells = ["" if np.isnan(value) else f"{value:.2f}" for value in paper_ratios(game)]
    return f"| {game}, *paper* | {scores['population']:,} | {scores['behavior']:,} | {' | '.join(cells)} |"


def answers(results, found):
    """For each policy, in how many populations it falls below the clone, and in how many it is certainly not."""
    lines = [
        f"Populations in which a policy is below the clone (P(below) at least {CERTAIN}), and not (at most "
        f"{1 - CERTAIN:.2f}):",
        "",
    ]
    lines += ["| policy | below | not below | neither | lowest score, relative to the clone |", "|---|--:|--:|--:|---|"]
    for name in POLICIES:
        known = [(of_one[name], result) for of_one, result in zip(found, results, strict=True) if name in of_one]
        if not known:
            continue
        worst = min(known, key=lambda pair: np.nan_to_num(ratio(pair[1], name), nan=math.inf))[1]
        counts = [sum(p >= CERTAIN for p, _ in known), sum(p <= 1 - CERTAIN for p, _ in known)]
        lines.append(
            f"| {NAMES.get(name, name)} | {counts[0]} of {len(known)} | {counts[1]} | {len(known) - sum(counts)} | "
            f"{times(ratio(worst, name))} ({title(worst)}) |"
        )
    return lines


def ratio(result, name):
    """The score of a policy relative to the clone; not a number for a clone that scores 0."""
    rows = rows_by_name(result)
    clone = rows["behavior"]["mean"]
    return rows[name]["mean"] / clone if clone else math.nan


def times(value):
    return "-" if math.isnan(value) else f"{value:.2f}"


# docs/populations.md


def page(results, measured_on):
    """The table of every population."""
    parts = (population_part(result, measured_on) for result in whole(results))
    return "\n".join([PAGE_HEAD, most_probable_text(whole(results)), *parts]) + "\n"


def most_probable_text(results):
    """How the clone's most probable actions compare with DQfD, which is deterministic too, and with the rules."""
    places = {"more than DQfD and every rule": [], "more than DQfD alone": [], "less than DQfD": []}
    for result in results:
        means = {name: row["mean"] for name, row in rows_by_name(result).items()}
        if {CLONES_MODE, "DQfD"} <= means.keys():
            best, ahead = means[CLONES_MODE] == max(means.values()), means[CLONES_MODE] > means["DQfD"]
            name = f"{game_name(result['env'])} ({result['skill']})"
            places[list(places)[0 if best else 1 if ahead else 2]].append(name)
    said = [f"{kind} in {', '.join(names)}" for kind, names in places.items() if names]
    return f"The clone's most probable actions score {'; '.join(said)}." if said else ""


def population_part(result, measured_on):
    """The table of one population, with the paper's scores."""
    of_paper = PAPER.get(game_name(result["env"]), {})
    *curve, last = result["curve"]
    seeds, episodes = len(last["means"]["behavior"]), last["episodes"]
    at_points = curve[0]["episodes"] if curve else episodes
    lines = [
        GAME_HEAD.format(
            title=title(result),
            points=len(result["curve"]),
            at_points=at_points,
            last="" if at_points == episodes else f", the last of {episodes:,}",
            seeds=f"{seeds} seed{'s' * (seeds > 1)}",
            episodes=f"{episodes:,}",
            **result,
        )
    ]
    lines += ["| policy | mean | 95% | IQM | median | quartiles | P(below) | verdict | paper |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|---|--:|"]
    for row in [result["population"] | {"name": "population"}, *result["rows"]]:
        compared = row.get("below") is not None
        cells = [NAMES.get(row["name"], row["name"]), number(row["mean"]), between(row["interval"])]
        cells += [number(row["iqm"]) if "iqm" in row else "", number(row["median"]), between(row["quartiles"])]
        cells += [f"{row['below']:.2f}" if compared else "", row["verdict"] if compared else ""]
        cells += [f"{of_paper[row['name']]:,}" if row["name"] in of_paper else ""]
        lines.append("| " + " | ".join(cells) + " |")
    compared_with = compare_with_paper(result["rows"], of_paper) + compare_clone_with_population(result, of_paper)
    return "\n".join([*lines, *compared_with, f"\n{measured_on(result)}"])


def compare_with_paper(rows, of_paper):
    """Ratios to the cloned behaviour, next to the paper's where it has them."""
    clone = next(row for row in rows if row["name"] == "behavior")
    groups = {"agrees": [], "differs": [], "open": []}
    for row in rows:
        if row["name"] not in of_paper or row is clone or row.get("verdict") is None:
            continue
        ours, theirs = row["mean"] / clone["mean"], of_paper[row["name"]] / of_paper["behavior"]
        says = NAMES.get(row["name"], row["name"])
        holds = row["verdict"] in ("above", "not below")
        kind = "open" if row["verdict"] == "open" else "agrees" if holds == (theirs > 1 - MARGIN) else "differs"
        groups[kind].append(f"{says} ({ours:.2f}, paper {theirs:.2f})")
    if not any(groups.values()):
        return []
    heads = {"agrees": "As in the paper", "differs": "Not as in the paper", "open": "Open with this many episodes"}
    sentences = [f"{heads[kind]}: {', '.join(names)}." for kind, names in groups.items() if names]
    return [f"\nRatios to the cloned behaviour's score. {' '.join(sentences)}"]


def compare_clone_with_population(result, of_paper):
    """The clone's score relative to its data, as in the paper."""
    if "population" not in of_paper:
        return []
    clone = rows_by_name(result)["behavior"]
    ours, theirs = clone["mean"] / result["population"]["mean"], of_paper["behavior"] / of_paper["population"]
    return [
        f"\nThe clone has {ours:.2f} times the score of the population that it was cloned from (paper {theirs:.2f})."
    ]


# Figures


def draw(results, folder):
    """The curves of every population, and all final scores next to the paper's."""
    results = whole(results)
    for result in results:
        draw_curves(result, folder / f"{result['file']}.png")
    if results:
        draw_ratios(results, folder / "populations.png")


def draw_curves(result, path):
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        panel = figure.subplots()
        updates = [point["updates"] / 1000 for point in result["curve"]]
        there = [row for row in DRAWN if row in result["curve"][0]["means"]]
        for look, row in zip(LINES, there, strict=False):
            means = [float(np.mean(point["means"][row])) for point in result["curve"]]
            panel.plot(updates, means, label=NAMES.get(row, row), marker="o", markersize=3, **look)
        panel.axhline(result["population"]["mean"], color="#2a2f36", linewidth=0.6, label="the population")
        panel.set(xlabel="thousand updates", ylabel="score")
        panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        figure.savefig(path, dpi=130)


def draw_ratios(results, path):
    """One panel per game: the score of every policy relative to the clone, for each population and in the paper."""
    games = list(dict.fromkeys(game_name(result["env"]) for result in results))
    kinds = [*(skill for skill in SKILLS if any(result["skill"] == skill for result in results)), "paper"]
    offsets = dict(zip(kinds, np.linspace(-0.24, 0.24, len(kinds)), strict=True))
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(1.6 + 2.1 * len(games), 3.6), layout="constrained")
        panels = figure.subplots(1, len(games), sharey=True, squeeze=False)[0]
        for panel, game in zip(panels, games, strict=True):
            of_game = {result["skill"]: result for result in results if game_name(result["env"]) == game}
            for look, (kind, offset) in zip(LINES, offsets.items(), strict=False):
                if kind == "paper":
                    ratios = paper_ratios(game)
                elif kind in of_game:
                    rows = rows_by_name(of_game[kind])
                    ratios = [ratio(of_game[kind], name) if name in rows else np.nan for name in POLICIES]
                else:
                    continue
                marker, color = ("x", "#2a2f36") if kind == "paper" else ("o", look["color"])
                panel.plot(ratios, np.arange(len(POLICIES)) + offset, marker, color=color, markersize=4.5, label=kind)
            panel.axvline(1, color="#808a94", linewidth=0.8)
            if panel.get_xlim()[1] > LINEAR_RATIOS:
                panel.set_xscale("symlog", linthresh=2, linscale=2, base=2)
                panel.set_xticks(ticks := [0, 1, 2, 4, 8, 16, 32], [str(tick) for tick in ticks])
            panel.set(title=game, xlabel="score / clone's score", xlim=(-0.05, None))
        panels[0].set_yticks(range(len(POLICIES)), [NAMES.get(name, name).replace(", m", ",\nm") for name in POLICIES])
        panels[0].invert_yaxis()
        handles = {text: line for p in panels for line, text in zip(*p.get_legend_handles_labels(), strict=True)}
        shown = [kind for kind in kinds if kind in handles]
        figure.legend([handles[kind] for kind in shown], shown, loc="outside lower center", ncols=len(shown))
        figure.savefig(path, dpi=130)


def paper_ratios(game):
    """The paper's scores relative to its clone, NaN where it has none."""
    scores = PAPER.get(game, {})
    return [scores[name] / scores["behavior"] if name in scores else np.nan for name in POLICIES]
