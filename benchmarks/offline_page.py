"""Offline learning in docs/results.md, from raw results."""

import json
from pathlib import Path

import matplotlib.pyplot as plt

from rbi.evaluation.comparison import MARGIN
from rbi.report import LINES, LOOK
from rbi.report.offline import NAMES, PAPER, between, number

RESULTS = Path(__file__).parent / "results"

SPEED_HEAD = """
## Speed of offline learning

Updates/s at batch size 32 with the paper's networks (hidden size 1024, batch norm), sampling and Adam included.
"""

ROWS = {
    "beta": "beta alone",
    "q": "Q alone, Monte-Carlo",
    "beta_and_q": "beta and Q in each update",
    "dqfd": "DQfD",
    "bcq": "BCQ",
    "cql": "CQL",
    "all_four_at_once": "all four learners in parallel, each",
    "all_four_of_3_seeds_at_once": "all four learners of three seeds in parallel, each",
    "bc": "d3rlpy's DiscreteBC",
    "double_dqn": "d3rlpy's DoubleDQN",
}

GPU_AIM = 3000

FORWARD = [2 * m * k * n for m, k, n in ((400, 256, 32), (81, 512, 64), (49, 576, 64), (1, 3136, 1024))]
OPERATIONS = 3 * sum(FORWARD) - FORWARD[0]  # a sample: forward, and backward without the input's own gradient

GAMES_HEAD = f"""
## Learning from a population of players

The paper's table of section 4 on populations recorded here: snapshots of one Ape-X run at several stages of training,
each with its own perturbations, and random policies. *P(below)* is the probability that a policy's mean is below that
of the cloned behaviour; *not below*: it loses less than {100 * MARGIN:.0f}%; *above*: it loses nothing, each with 95%
confidence. The paper's players are people who score far higher, its data sets are larger and it trains for 1,562,500
updates, so only the ratios to the clone compare. In Montezuma's Revenge the policies are scripted: two thirds climb to
the first key from most starts (`rbi data record climb`) with occasional random actions, the rest are random; that run
was on 2 cores, with one seed and fewer updates and episodes.
"""

GAME_HEAD = """
### {title}

![learning curves](figures/{file}.png)

{population[policies]} policies, {population[all_episodes]} episodes, {population[steps]:,} steps; {updates:,} updates.
Every row: {seeds}, {episodes} episodes in total; {protocol}. Points of the curves are means of {at_points} episodes.
"""


def speed(results, measured_on):
    """One table per machine."""
    parts = [SPEED_HEAD]
    for result in results:
        lines = ["| | updates/s |", "|---|--:|"]
        for name, value in {**result["ours"], **result.get("d3rlpy", {})}.items():
            lines.append(f"| {ROWS[name]} | {value:,.1f} |" if value < 100 else f"| {ROWS[name]} | {value:,.0f} |")
        parts.append("\n".join(lines))
        parts.append(compare_with_d3rlpy(result) if "times" in result else on_gpu(result))
        parts.append(f"\n{measured_on(result)}\n")
    return parts


def on_gpu(result):
    """The result on the GPU compared with its aim."""
    beta, critic, both = (result["ours"][name] for name in ("beta", "q", "beta_and_q"))
    verdict = "reached" if min(beta, critic) >= GPU_AIM else "not reached"
    return (
        f"\n**Aim {verdict}:** {GPU_AIM:,} updates/s of each alone (beta {beta:,.0f}, Q {critic:,.0f}; both in one "
        f"update {both:,.0f}). {compared(result)}"
    )


def compared(result):
    """The same measurement of an earlier commit in the same call, if there was one."""
    if "previous_commit" not in result:
        return ""
    before = result["previous_commit"]
    rates = ", ".join(f"{ROWS[name]} {value:,.0f}" for name, value in before["ours"].items())
    return f"Commit {before['commit']} in the same call: {rates}."


def compare_with_d3rlpy(result):
    """The ratio to the peer, and the largest ratio that arithmetic allows."""
    beta, critic, both = (result["times"][name] for name in ("beta", "critic", "both"))
    monte_carlo = result["ours"]["q"] / result["d3rlpy"]["double_dqn"]
    limit = result["operations_limit"]
    most = limit / OPERATIONS / result["batch"]
    return (
        f"\nRatios to d3rlpy {result['d3rlpy_version']}: beta {beta:.1f} times DiscreteBC; Monte-Carlo Q, the paper's "
        f"critic, which evaluates no next state, {monte_carlo:.1f} times DoubleDQN; a critic with DoubleDQN's work and "
        f"CQL's penalty {critic:.1f} times; beta and Q in one update {both:.1f} times both of theirs in turn. **The "
        f"aim, 2 times each, is {'reached' if min(beta, critic) >= 2 else 'not reached by all'}.** Arithmetic is the "
        f"bound: {limit / 1e9:.0f} GFLOP/s in a large product and {OPERATIONS / 1e6:.0f} MFLOP per sample allow "
        f"{most:.0f} updates/s of one network, {most / result['d3rlpy']['bc']:.1f} times DiscreteBC."
    )


def game(result, measured_on):
    """The table of one game, with the paper's scores."""
    name = result["env"].removeprefix("ALE/").rsplit("-v", 1)[0]
    of_paper = PAPER.get(name, {})
    at_points = " and ".join(f"{point['episodes']:,}" for point in result["curve"])
    last = result["curve"][-1]
    seeds, episodes = len(last["means"]["behavior"]), last["episodes"]
    repetitions = f"{seeds} seed{'s' * (seeds > 1)}"
    lines = [
        GAME_HEAD.format(
            title=name + (f", {result['skill']} population" if "skill" in result else ""),
            at_points=at_points,
            seeds=repetitions,
            episodes=episodes,
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
    clone = next(row for row in result["rows"] if row["name"] == "behavior")
    ours, theirs = clone["mean"] / result["population"]["mean"], of_paper["behavior"] / of_paper["population"]
    return [
        f"\nThe clone has {ours:.2f} times the score of the population that it was cloned from (paper {theirs:.2f})."
    ]


def games():
    paths = [path for path in sorted(RESULTS.glob("offline-*.json")) if "speed" not in path.name]
    return [json.loads(path.read_text()) | {"file": path.stem} for path in paths]


def offline_part(load, measured_on):
    """The sections that were measured."""
    measured = [found for kind in ("cpu", "cuda") if (found := load(f"offline-speed-{kind}.json"))]
    parts = speed(measured, measured_on) if measured else []
    played = [game(result, measured_on) for result in games()]
    return [*parts, *([GAMES_HEAD] if played else []), *played]


def draw_games(folder):
    for result in games():
        with plt.rc_context(LOOK):
            figure = plt.figure(figsize=(5.6, 3.4), layout="constrained")
            panel = figure.subplots()
            shown = ("behavior", "reroute(0.5,1.5)", "reroute(0,2)", "tv(0.25)", "greedy", "ppo(0.5) by ascent", "DQfD")
            for look, row in zip(LINES, shown, strict=False):
                means = [sum(point["means"][row]) / len(point["means"][row]) for point in result["curve"]]
                updates = [point["updates"] / 1000 for point in result["curve"]]
                panel.plot(updates, means, label=NAMES.get(row, row), marker="o", markersize=3, **look)
            panel.set(xlabel="thousand updates", ylabel="score")
            panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
            figure.savefig(folder / f"{result['file']}.png", dpi=130)
            plt.close(figure)
