"""RBI and Ape-X on Atari games in docs/results.md, from the cells that `benchmarks.atari` has written."""

import math

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from benchmarks.atari import FRAME_SKIP, MILLION, OTHER_C_MINS, OTHER_POLICIES, SUITES, Cell, load_cells
from benchmarks.online_page import VARIANT_NAMES
from benchmarks.tables import load, measured_on, table_row
from rbi.evaluation.comparison import PUBLISHED
from rbi.online.config import PAPER_GAMES
from rbi.report import LINES, LOOK
from rbi.report.train import ALGORITHMS
from rbi.rules.types import parse_rule
from rbi.statistics import (
    bootstrap_runs,
    iqm_of_tasks,
    percentile_interval,
    performance_profile,
    probability_of_improvement,
)

MIN_SEEDS = 3  # fewer have no interval
PUBLISHED_COLUMNS = {
    "random": "random",
    "human": "human",
    "paper_rbi": "RBI, paper",
    "paper_apex": "Ape-X, paper",
    "rainbow": "Rainbow",
    "apex": "Ape-X, its authors",
    "r2d2": "R2D2",
}
MIN_GAMES = 8  # for a rank correlation over games
CAUSES = {  # of a lead, perhaps
    "pi_net_entropy": "the entropy of the policy network",
    "pi_entropy": "that of the actors' policy",
    "moved_mass": "the mass that the rule moves",
    "q": "the mean Q",
}
RBI, LATEST, PEER = ("rbi", "base"), ("rbi", "latest"), ("apex", "base")
PONG_ACTIONS, PONG_AIM = 6, 18

HEAD = """
## Atari games

RBI and Ape-X with the preset `fast` and its variants, the same number of frames and updates for all; the 200,000 frames
that are collected before learning starts come on top. A score is the mean over 32 episodes of the final policy: actions
sampled, no exploration, no-op starts, no sticky actions. Tables show means over seeds and, from three seeds on, their
95% bootstrap intervals over seeds; every run that was made is in them. An evaluation plays at most 35% of the frames of
training: in runs of 4 million frames an episode is truncated after 43,750 frames, in those of 10 million or more after
108,000. `python -m benchmarks.atari` runs what is missing.
"""
SECTIONS = {
    "twelve": """
### The paper's twelve games, {frames:g} million frames

{there} of {all} runs are done. *Latest networks*: the preset before
[decision 033](decisions/033-improve-the-target-networks.md), whose runs are not repeated. Published scores are for
orientation: the paper's RBI and Ape-X learned for 3,125,000 updates, Rainbow from 200 million frames, Ape-X and R2D2
from billions.
""",
    "tuning": """
### Settings, compared on four other games, {frames:g} million frames

{there} of {all} runs are done. The first row is the preset, chosen from these runs: reroute(0.1,10), and a learner
that imitates, and bootstraps with, the rule applied to its target networks
([decision 033](decisions/033-improve-the-target-networks.md)). *Latest networks*: applied to those of the last update
instead. *Stored policies*: the learner uses the policies that actors stored, as in the paper
(`--actor.improve-in actor --learner.bootstrap-policy stored --learner.improve-from latest`); the two options have not
been measured separately. reroute(0.1,2) is the paper's. What c_min and c_max do to the policy network:
[decision 032](decisions/032-what-the-bounds-do-online.md). Settings with the latest networks or
stored policies get no further runs; the figure shows the others, and the preset before.
""",
    "pong": """
### Pong, {frames:g} million frames

{there} of {all} runs are done. After 4 million frames the seeds of both algorithms are far apart; here they learn for
as long as in the twelve games. The aim is {aim} in every seed. Settings with the latest networks get no
further runs; the figure shows the others, and the preset before.
""",
    "long": """
### Three games, {frames:g} million frames

{there} of {all} runs are done.
""",
}
DIAGNOSTICS = """
The same runs at the end of training: entropy of the policy network and of the actors' policy, the probability mass that
the rule moves (how far the network is behind the rule), the mean Q of a batch, the score of the latest episodes during
training (environments that explore least), and the share of evaluation episodes that were truncated; where they were
evaluated, the scores of the policy's most probable actions in place of samples, of samples with another c_min, and of
the policy network without the rule. Each of the 512 environments plays some 500 steps per million frames; an episode
that is longer does not finish during training, so the two scores can disagree where policies survive for long.
"""
DIAGNOSTICS_AGAIN = """
The same runs at the end of training; the columns are explained above, at the twelve games:
"""

LONG_RUNS = """
### A long run, stopped and resumed

`rbi train` with the preset `fast`, in parts that end with Ctrl-C. *Minutes*: of all parts, with making environments,
checkpoints that contain the replay, and the evaluation at the end. Published times for 200 million frames, on other
machines: PQN about an hour (one A40 and a CPU with 32 cores, no replay), BTR 12 hours (a desktop PC).
"""

SNAPSHOTS = """
Snapshots of this run (`--train=--save-snapshots=24`), on another machine and with weights rounded to half precision:
the scores of actions that are sampled from the policy, as in all tables, and of its most probable actions, with 95%
intervals over episodes.
"""

FEW_SEEDS = "With fewer than three seeds there are no intervals, and none of these differences is established."


def has_intervals(suite, done):
    """Whether RBI and Ape-X have enough seeds for an interval in every game that they have results in."""
    entries = rbi_entry(suite, done), PEER
    counts = [len(scores_of(suite, entry, game, done)) for entry in entries for game in suite.games]
    return min(count for count in counts if count) >= MIN_SEEDS


def rbi_entry(suite, done):
    """The entry to compare with Ape-X: the preset or, as long as that has results in fewer games, the one before."""
    return max(RBI, LATEST, key=lambda entry: len(shared_games(suite, entry, done)))


def entries_of(suite, done):
    """The (algorithm, variant) pairs of a suite that have results, in the suite's order."""
    entries = (*suite.entries, *suite.ended)
    return [entry for entry in entries if any(scores_of(suite, entry, game, done) for game in suite.games)]


def results_of(suite, entry, game, done):
    """The results of all seeds of a game that are there."""
    names = [Cell(game, *entry, seed, suite.frames).name for seed in suite.seeds]
    return [done[name] for name in names if name in done]


def runs_of(suite, done):
    """The results of all runs of a suite, with those of pairs that have ended."""
    return [
        run for entry in entries_of(suite, done) for game in suite.games for run in results_of(suite, entry, game, done)
    ]


def scores_of(suite, entry, game, done):
    return [result["evaluation"]["mean"] for result in results_of(suite, entry, game, done)]


def label(entry):
    algo, variant = entry
    return ALGORITHMS[algo] + ("" if variant == "base" else f", {VARIANT_NAMES[variant]}")


def seeds_text(scores):
    """Mean over seeds, with its bootstrap interval or, for few seeds, their number."""
    if not scores:
        return "-"
    mean = number(np.mean(scores))
    if len(scores) < MIN_SEEDS:
        return f"{mean} ({len(scores)} seed{'s' * (len(scores) > 1)})"
    low, high = interval(lambda runs: np.mean(runs[0]), [np.array(scores)])
    return f"{mean} ({number(low)} to {number(high)})"


def number(value):
    """Three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def interval(statistic, *algorithms):
    return percentile_interval(bootstrap_runs(statistic, np.random.default_rng(0), *algorithms)).tolist()


def score_table(suite, done):
    """One row per game or, where there are more settings than games, one per setting."""
    entries = entries_of(suite, done)
    games = [game for game in suite.games if any(scores_of(suite, entry, game, done) for entry in entries)]
    columns = [name for name in PUBLISHED_COLUMNS if any(getattr(PUBLISHED[g], name) is not None for g in games)]
    rows = [["game", *map(label, entries), *(PUBLISHED_COLUMNS[name] for name in columns)]]
    for game in games:
        cells = [seeds_text(scores_of(suite, entry, game, done)) for entry in entries]
        published = [getattr(PUBLISHED[game], name) for name in columns]
        rows.append([game, *cells, *("" if value is None else number(value) for value in published)])
    if len(entries) > len(games):
        rows = list(zip(*rows, strict=True))
        rows[0] = "setting", *rows[0][1:]
    lines = [table_row(row) for row in rows]
    lines.insert(1, "|---|" + "--:|" * (len(rows[0]) - 1))
    return "\n".join(lines)


def normalised_runs(suite, entry, games, done):
    """Human-normalised scores: one array per game, one score per seed."""
    return [
        (np.array(scores_of(suite, entry, game, done)) - PUBLISHED[game].random)
        / (PUBLISHED[game].human - PUBLISHED[game].random)
        for game in games
    ]


def shared_games(suite, entry, done):
    """The games in which both an algorithm and Ape-X have results."""
    return [g for g in suite.games if scores_of(suite, entry, g, done) and scores_of(suite, PEER, g, done)]


def aggregate_table(suite, done):
    """Interquartile means and probabilities of improvement over Ape-X, in the games that both have."""
    heads = "| algorithm | games | runs | IQM, human-normalised | Ape-X in these games | P(improvement over Ape-X) |"
    lines = [heads, "|---|--:|--:|--:|--:|--:|"]
    for entry in entries_of(suite, done):
        if entry == PEER or not (games := shared_games(suite, entry, done)):
            continue
        runs, theirs = (normalised_runs(suite, e, games, done) for e in (entry, PEER))
        cells = [label(entry), str(len(games)), str(sum(map(len, runs)))]
        cells += [with_interval(iqm_of_tasks, tasks) for tasks in (runs, theirs)]
        cells.append(with_interval(probability_of_improvement, runs, theirs))
        lines.append(table_row(cells))
    return "\n".join(lines)


def lead_text(suite, done):
    """The games in which RBI leads and trails Ape-X and, where there are enough seeds, those where that is certain."""
    rbi = rbi_entry(suite, done)
    games = shared_games(suite, rbi, done)
    runs = {game: [np.array(scores_of(suite, entry, game, done)) for entry in (rbi, PEER)] for game in games}
    ahead = {game: np.mean(a) - np.mean(b) for game, (a, b) in runs.items()}
    leads, trails = [game for game in games if ahead[game] > 0], [game for game in games if ahead[game] < 0]
    text = f"{label(rbi)} leads {label(PEER)} in {games_text(leads)} and trails it in {games_text(trails)}."
    if not has_intervals(suite, done):
        return f"{text} {FEW_SEEDS}"
    intervals = {
        game: interval(lambda a, b: np.mean(a[0]) - np.mean(b[0]), *([r] for r in runs[game])) for game in games
    }
    certain = [game for game, (low, high) in intervals.items() if low > 0 or high < 0]
    return f"{text} The 95% interval of the difference excludes 0 in {games_text(certain)}."


def games_text(games):
    """The number of games, and their names."""
    count = f"{len(games)} game{'s' * (len(games) != 1)}"
    return f"{count} ({', '.join(games)})" if games else "no game"


def aggregate_row(name):
    """For the summary of the results: RBI beside Ape-X in the games of a suite."""
    suite, done = SUITES[name], load_cells()
    rbi = rbi_entry(suite, done)
    games = shared_games(suite, rbi, done)
    runs = [normalised_runs(suite, entry, games, done) for entry in (rbi, PEER)]
    count = sum(len(of_game) for tasks in runs for of_game in tasks)
    what = f"{len(games)} Atari games, {suite.frames / MILLION:g} million frames, {count} runs: IQM of "
    iqms = " and ".join(with_interval(iqm_of_tasks, tasks) for tasks in runs)
    chance = with_interval(probability_of_improvement, *runs)
    return f"{what}{label(rbi)}, and of Ape-X", f"{iqms} human-normalised; P(improvement) {chance}"


def with_interval(statistic, *algorithms):
    """The statistic and, where every game has enough seeds, its interval."""
    text = f"{float(statistic(*algorithms)):.2f}"
    if min(len(of_game) for runs in algorithms for of_game in runs) < MIN_SEEDS:
        return text
    low, high = interval(statistic, *algorithms)
    return f"{text} ({low:.2f} to {high:.2f})"


def diagnostics_table(suite, done):
    """Means over seeds at the end of training."""
    names = ("pi_net_entropy", "pi_entropy", "moved_mass", "q", "score")
    heads = ["game", "algorithm", "entropy, network", "entropy, actors", "mass moved", "Q", "training score"]
    heads += ["truncated"]
    others = {key: head for key, head in OTHER_POLICIES.items() if any(key in run for run in runs_of(suite, done))}
    heads += others.values()
    lines = [table_row(heads), "|---|---|" + "--:|" * (len(heads) - 2)]
    for game in suite.games:
        for entry in entries_of(suite, done):
            if not (results := results_of(suite, entry, game, done)):
                continue
            last = [[result["curve"][-1].get(name) for result in results] for name in names]
            cells = ["" if None in values else f"{np.mean(values):.2f}" for values in last[:-1]]
            truncated = [result["evaluation"]["truncated"] / result["evaluation"]["episodes"] for result in results]
            cells += [number(np.mean(last[-1])), f"{100 * np.mean(truncated):.0f}%"]
            for key in others:
                means = [result[key]["mean"] for result in results if key in result]
                cells.append(number(np.mean(means)) if means else "")
            lines.append(table_row([game, label(entry), *cells]))
    return "\n".join(lines)


def reasons_text(suite, done):
    """What the runs say about the reasons for a lead: its rank correlations over games, and what sampling costs."""
    rbi = rbi_entry(suite, done)
    games = shared_games(suite, rbi, done)
    if len(games) < MIN_GAMES:
        return []
    results = {game: results_of(suite, rbi, game, done) for game in games}
    both = [normalised_runs(suite, entry, games, done) for entry in (rbi, PEER)]
    leads = [np.mean(a) - np.mean(b) for a, b in zip(*both, strict=True)]
    found = []
    for name, text in CAUSES.items():
        values = [np.mean([result["curve"][-1][name] for result in of_game]) for of_game in results.values()]
        found.append(f"{text} ({spearmanr(leads, values).statistic:.2f})")
    runs = [run for of_game in results.values() for run in of_game]
    text = (
        f"Rank correlation of the lead of {label(rbi)}, in human-normalised score over {len(games)} games, with "
        f"{', '.join(found)}; "
        f"by chance alone, one in 20 is beyond about +-{1.96 / math.sqrt(len(games) - 1):.1f}. {ahead_of_samples(runs)}"
    )
    return [text, ""]


def pong_text(suite, done):
    """What improving from the target networks changes in Pong, and what c_min costs samples without it."""
    runs, latest = (results_of(suite, entry, "Pong", done) for entry in (RBI, LATEST))
    missed = min(run["evaluation"]["mean"] for run in runs) < PONG_AIM
    means = {
        key: range_text([run[key]["mean"] for run in latest]) for key in ("evaluation", "deterministic", "c_min_0")
    }
    entropies, moved = (
        [np.mean([run["curve"][-1][name] for run in of_entry]) for of_entry in (runs, latest)]
        for name in ("pi_net_entropy", "moved_mass")
    )
    actor, others = latest[0]["settings"]["actor"], PONG_ACTIONS - 1
    c_min = parse_rule(actor["rule"]).c_min
    kept = (1 - actor["c_greedy"]) * c_min * others / PONG_ACTIONS
    return (
        f"RBI scored {range_text([run['evaluation']['mean'] for run in runs])}: the aim is "
        f"{'missed' if missed else 'reached'}. With the latest networks, the preset before, it scored "
        f"{means['evaluation']}, and the same policies {means['deterministic']} with their most probable actions and "
        f"{means['c_min_0']} with c_min = 0. There the policy network's entropy was {entropies[1]:.2f} at the end, "
        f"that of uniform choice {math.log(PONG_ACTIONS):.2f}: of a uniform policy, c_min = {c_min:g} leaves "
        f"{kept:.1%} of the probability to the {others} actions that look worse. Improved from the target networks, it "
        f"is {entropies[0]:.2f}, and the rule moves {moved[0]:.0%} of the probability, not {moved[1]:.0%}. Ape-X is "
        "evaluated with its best action alone."
    )


def range_text(values):
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def repeats_text():
    """How far two runs of one command are apart."""
    done, again = load_cells(), load("atari-repeated.json")
    found = [
        f"{label((run['algo'], run['variant']))} with seed {run['seed']} "
        f"{number(done[name]['evaluation']['mean'])} and {number(run['evaluation']['mean'])}"
        for name, run in again.items()
    ]
    return f"Two runs of one command differ too: {'; '.join(found)}."


def ahead_of_samples(runs):
    """In how many runs the most probable actions, and samples with another c_min, score more than samples of the
    policy."""
    found, samples = [], {key: f"samples with {OTHER_POLICIES[key]}" for key in OTHER_C_MINS}
    for key, what in ({"deterministic": "the most probable actions"} | samples).items():
        both = [run for run in runs if key in run]
        ahead = sum(run[key]["mean"] > run["evaluation"]["mean"] for run in both)
        if both:
            found.append(f"{what} in {ahead} of {len(both)}")
    return f"Compared with samples of the policy in the same runs, scores are higher for {' and for '.join(found)}."


def sources(name, suite, done):
    """The command, commits and machine of a suite's cells, and how long they took."""
    results = runs_of(suite, done)
    commits = ", ".join(dict.fromkeys(result["machine"]["commit"] for result in results))
    about = results[0]["machine"]
    versions = ", ".join(f"{key} {value}" for key, value in about["versions"].items())
    speeds = [result["steps_per_second"] for result in results if not result.get("shared")]
    shared = len(results) - len(speeds)
    speed = f"{min(speeds):,.0f} to {max(speeds):,.0f} steps/s while learning. " if speeds else ""
    if shared:
        speed += f"This leaves out {shared} run{'s' * (shared > 1)} that shared the machine with other programs. "
    return (
        f"{speed}"
        f"`python -m benchmarks.atari --suite {name}`, commits {commits}, one {about['gpu']}, {about['cores']} cores; "
        f"{versions}."
    )


def long_run_rows(results):
    """One row a run of `benchmarks.long_run`."""
    lines = ["| game | algorithm | million frames | parts | minutes | steps/s | 200 million frames, hours | score |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|")
    for result in results:
        pace = result["frames"] / result["seconds"]
        score = number(result["result"]["evaluation"]["mean"])
        lines.append(
            f"| {result['game']} | {ALGORITHMS[result['algo']]} | {result['frames'] / MILLION:.1f} | "
            f"{result['parts']} | {result['seconds'] / 60:.1f} | {pace / FRAME_SKIP:,.0f} | "
            f"{200 * MILLION / pace / 3600:.2f} | {score} |"
        )
    return [LONG_RUNS, *lines, "", "![learning curve](figures/long-runs.png)", "", *map(measured_on, results)]


def snapshot_rows(result):
    """What sampling costs at several stages of a long run."""
    lines = ["| million frames | sampled actions | most probable actions |", "|--:|--:|--:|"]
    for row in result["rows"]:
        cells = [
            f"{number(row[kind]['mean'])} ({number(row[kind]['interval'][0])} to {number(row[kind]['interval'][1])})"
            for kind in ("sampled", "deterministic")
        ]
        lines.append(f"| {row['million_frames']:g} | {' | '.join(cells)} |")
    return [SNAPSHOTS, *lines, "", measured_on(result)]


def long_runs():
    """The results of `benchmarks.long_run` that are there."""
    found = [load(f"long-{game.lower()}-{algo}.json") for game in PAPER_GAMES for algo in ALGORITHMS]
    return [result for result in found if result]


def atari_part():
    """The section of docs/results.md."""
    done, parts = load_cells(), [HEAD.rstrip()]
    for name, suite in SUITES.items():
        if not entries_of(suite, done):
            continue
        there = sum(cell.name in done for cell in suite.cells())
        head = SECTIONS[name].format(frames=suite.frames / MILLION, there=there, all=len(suite.cells()), aim=PONG_AIM)
        parts += [head, score_table(suite, done), "", f"![learning curves](figures/atari-{name}.png)", ""]
        parts += [aggregate_table(suite, done), "", lead_text(suite, done)]
        if has_profile(suite, done):
            parts += ["", f"![performance profile](figures/atari-{name}-profile.png)"]
        parts += [DIAGNOSTICS_AGAIN if DIAGNOSTICS in parts else DIAGNOSTICS, diagnostics_table(suite, done), ""]
        parts += [*reasons_text(suite, done)]
        if name == "pong":
            parts += [pong_text(suite, done), "", repeats_text(), ""]
        parts.append(sources(name, suite, done))
    if runs := long_runs():
        parts += long_run_rows(runs)
        names = [f"snapshots-{run['game'].lower()}-{run['algo']}.json" for run in runs]
        parts += [line for name in names if (found := load(name)) for line in snapshot_rows(found)]
    return parts if len(parts) > 1 else []


# Figures


def has_profile(suite, done):
    """Whether there are enough games and seeds for a performance profile."""
    return len(suite.games) > 1 and len(profile_entries(suite, done)) > 1


def profile_entries(suite, done):
    """The pairs with at least two seeds in every game."""
    return [e for e in entries_of(suite, done) if min(len(scores_of(suite, e, g, done)) for g in suite.games) >= 2]


def draw(folder):
    """Learning curves of every suite that has cells and of long runs; performance profiles of complete suites."""
    done = load_cells()
    for name, suite in SUITES.items():
        if entries_of(suite, done):
            draw_curves(suite, done, folder / f"atari-{name}.png")
            if has_profile(suite, done):
                draw_profile(suite, done, folder / f"atari-{name}-profile.png")
    if runs := long_runs():
        draw_long_runs(runs, folder / "long-runs.png")


def draw_long_runs(results, path):
    """Score while training over frames, one panel per game; the dot is the evaluation at the end."""
    games = list(dict.fromkeys(result["game"] for result in results))
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(1.2 + 3.7 * len(games), 3.2), layout="constrained")
        for panel, game in zip(figure.subplots(1, len(games), squeeze=False)[0], games, strict=True):
            for look, result in zip(LINES, (r for r in results if r["game"] == game), strict=False):
                points = [point for point in result["curve"] if point["score"] is not None]
                frames = [FRAME_SKIP * point["states"] / MILLION for point in points]
                panel.plot(frames, [p["score"] for p in points], label=ALGORITHMS[result["algo"]], **look)
                end = result["frames"] / MILLION, result["result"]["evaluation"]["mean"]
                panel.plot(*end, "o", color=look["color"], markersize=5)
            panel.set(title=game, xlabel="million frames", ylabel="score in training; dot: evaluation", xlim=(0, None))
            panel.legend()
        figure.savefig(path, dpi=130)


def draw_curves(suite, done, path):
    """Score while training over frames, one panel per game: the settings that go on, and the preset before."""
    entries = [entry for entry in entries_of(suite, done) if entry in (*suite.entries, LATEST)]
    games = [g for g in suite.games if any(scores_of(suite, entry, g, done) for entry in entries)]
    columns = min(len(games), 2 if len(games) <= 4 else 3)  # labels stay readable at the width of a page
    rows = math.ceil(len(games) / columns)
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(8.6 if columns > 1 else 5.2, 0.8 + 2.2 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, game in zip(panels, games, strict=False):
            for look, entry in zip(LINES, entries, strict=False):
                for i, result in enumerate(results_of(suite, entry, game, done)):
                    points = [p for p in result["curve"] if p["score"] is not None]
                    frames = [FRAME_SKIP * p["states"] / MILLION for p in points]
                    panel.plot(frames, [p["score"] for p in points], label=None if i else label(entry), **look)
                    end = FRAME_SKIP * result["states"] / MILLION
                    panel.plot(end, result["evaluation"]["mean"], "o", color=look["color"], markersize=5)
            panel.set(title=game, xlabel="million frames", xlim=(0, None))
        for panel in panels[len(games) :]:
            panel.set_visible(False)
        panels[0].set_ylabel("score in training; dots: evaluation")
        handles = {text: line for p in panels for line, text in zip(*p.get_legend_handles_labels(), strict=True)}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=8)
        figure.savefig(path, dpi=130)


def draw_profile(suite, done, path):
    entries = profile_entries(suite, done)
    runs = [normalised_runs(suite, entry, suite.games, done) for entry in entries]
    thresholds = np.linspace(0, max(of_game.max() for tasks in runs for of_game in tasks), 200)
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        panel = figure.subplots()
        for look, entry, tasks in zip(LINES, entries, runs, strict=False):
            panel.plot(thresholds, performance_profile(tasks, thresholds), label=label(entry), **look)
            low, high = interval(lambda tasks: performance_profile(tasks, thresholds), tasks)
            panel.fill_between(thresholds, low, high, color=look["color"], alpha=0.15, linewidth=0)
        panel.set(xlabel="human-normalised score", ylabel="share of runs above it")
        panel.legend()
        figure.savefig(path, dpi=130)
