"""Draws docs/results.md and the pages beside it from benchmarks/results/: no number is typed by hand."""

import json
from pathlib import Path

import numpy as np

from benchmarks import (
    atari_page,
    classic,
    count_aware,
    coverage_page,
    data_page,
    offline_page,
    online_page,
    population_page,
    ray_page,
    spi_page,
)

ROOT = Path(__file__).parent.parent
PAGE, BREAKOUT, SAFE, POPULATIONS = (
    ROOT / "docs" / f"{name}.md" for name in ("results", "breakout", "safe-improvement", "populations")
)
FIGURES = ROOT / "docs" / "figures"
RESULTS = Path(__file__).parent / "results"

HEAD = """# Results

Drawn by `make results` from the raw JSON in [benchmarks/results](../benchmarks/results); do not edit by hand.
Commands are those of the commits beside them. Where a script was renamed or replaced since, today's is in brackets; its
options may differ.
"""

RULES_HEAD = """
## Speed of Max-Reroute

States/s, float32, c = (0.5, 1.5). *rbi*: `rbi.max_reroute(..., check=False)` in PyTorch; *checked*: with validation of
values; *compiled*: under `torch.compile`. *Sorting*, *columns* and *pairs* are three implementations of the fill step
([decision 002](decisions/002-fill.md)). *Paper's loop* is Algorithm Max-Reroute in Python, *LP solver* is HiGHS, both
one state at a time. *Copy* moves the bytes that the rule must read and write: the physical limit. A dash: too large to
run.
"""


CLASSIC_HEAD = """
## Small environments with the preset for a CPU

`rbi train ENV` untouched ([decision 016](decisions/016-the-small-preset.md)) beside Stable-Baselines3's DQN with
rl-baselines3-zoo's settings at equal environment steps (the zoo has no settings for FrozenLake and Taxi: those of
LunarLander). Mean scores of 100 episodes (FrozenLake: 1,000) for seeds 0, 1 and 2, and the training time of the slowest
seed in one thread, with other runs on all other cores. An optimal policy reaches 0.74 in FrozenLake.
"""

CLASSIC_END = """
Stable-Baselines3's cells were made in parts, on several machines. The zoo's settings for CartPole are for 50,000 steps,
after which it scores {zoo} (seeds 0, 1 and 2); with more steps it gets worse. On Acrobot it is ahead of both
of ours. Taxi says which actions are legal: ours take no others, and the DQN takes no masks. RBI and Ape-X have the same
scores there, episode by episode: a seed gives both the same starts, and both take shortest ways. Their runs on Taxi
shared two cores with other programs, so their times are too long.
"""

LATENCY_HEAD = """
## Latency of one decision

Microseconds for the action probabilities of a single state with reroute(0.5,1.5) on one thread: median / 99th
percentile in the quietest of ten rounds, since other programs ran beside it. *Eager* is `policy.predict_proba`, which
also checks its input; *compiled* is `torch.compile` of the same networks and rule on tensors; *ONNX* is the file of
`policy.export_onnx` in onnxruntime, called from Python. The aim is 100 microseconds in ONNX for a vector policy of
`rbi improve`.
"""

RENAMED = {  # or replaced, since some results were measured
    "ablation": "atari",
    "by_heart": "memorisation",
    "crowd": "population",
    "learning": "atari",
    "sight": "ram_observations",
}


def load(name):
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def measured_on(result):
    """The command, commit and machine of a result, and today's script where it was renamed or replaced."""
    m, command = result["machine"], result["command"]
    now = next((new for old, new in RENAMED.items() if f"benchmarks.{old} " in f"{command} "), None)
    renamed = f" (`benchmarks.{now}` today)" if now else ""
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    place = f"one {m['gpu']}, {m['cores']} cores" if m["gpu"] else f"{m['cores']} cores ({m['cpu']})"
    return f"`{command}`{renamed}, commit {m['commit']}, {place}; {versions}."


def states_a_second(result):
    return {(r["method"], r["actions"], r["batch"]): r["batch"] / r["seconds"] for r in result["rows"]}


def short(number):
    """Three digits and a unit: 2.87 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def rules_table(result):
    found = states_a_second(result)
    methods = list(dict.fromkeys(r["method"] for r in result["rows"]))
    sizes = sorted({(r["actions"], r["batch"]) for r in result["rows"]})
    lines = ["| actions | batch | " + " | ".join(methods) + " |", "|" + "--:|" * (len(methods) + 2)]
    for actions, batch in sizes:
        cells = [short(found[m, actions, batch]) if (m, actions, batch) in found else "-" for m in methods]
        lines.append(f"| {actions} | {batch:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rules_highlights(cpu, cuda):
    """What the rules should reach, and what they do."""
    lines = ["| aim | reached |", "|---|---|"]
    if cpu:
        found = states_a_second(cpu)
        eager, lp = found["rbi", 18, 2**20], found["LP solver", 18, 2**20]
        lines.append(f"| 2 cores, 18 actions, PyTorch eager: 1 M states a second | {short(eager)} |")
        lines.append(f"| 2 cores, 18 actions: 2,000 times the LP solver | {eager / lp:,.0f} times |")
        single = 1e6 / found["rbi, NumPy", 18, 1]
        lines.append(f"| one state of 18 actions in NumPy: 50 microseconds | {single:.0f} microseconds |")
    if cuda:
        found = states_a_second(cuda)
        ratio = found["copy", 18, 2**20] / found["rbi", 18, 2**20]
        lines.append(f"| {cuda['machine']['gpu']}, 18 actions, 2^20 states: 2 times a copy | {ratio:.2f} times |")
    return "\n".join(lines)


def latency(result):
    """One row per policy, one column per method."""
    if not result:
        return []
    methods = list(dict.fromkeys(row["method"] for row in result["rows"]))
    lines = ["| policy | " + " | ".join(methods) + " |", "|---|" + "--:|" * len(methods)]
    for policy in dict.fromkeys(row["policy"] for row in result["rows"]):
        rows = {row["method"]: row for row in result["rows"] if row["policy"] == policy}
        cells = [f"{rows[method]['median']:,.0f} / {rows[method]['p99']:,.0f}" for method in methods]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    largest = max(row["difference"] for row in result["rows"])
    note = f"Probabilities differ from PyTorch's by {largest:.1g} at most. Load of the machine at the start:"
    return [LATENCY_HEAD, *lines, "", f"{note} {result['load']:g}.", "", measured_on(result)]


def small_environments():
    """One row per environment, one column per algorithm: all seeds' mean scores and the time of the slowest."""
    done = classic.current_cells(classic.RESULTS)
    if not done:
        return []
    names = {"rbi": "RBI", "apex": "Ape-X", "sb3": "Stable-Baselines3"}
    lines = [f"| environment | steps | aim | {' | '.join(names.values())} |", "|---|--:|--:|" + "--:|" * len(names)]
    for env, aim in classic.AIMS.items():
        cells = []
        for algo in names:
            found = [result for result in done.values() if (result["env"], result["algo"]) == (env, algo)]
            scores = ", ".join(f"{result['evaluation']['mean']:.{0 if abs(aim) > 10 else 2}f}" for result in found)
            slowest = max((result["seconds"]["training"] for result in found), default=0)
            cells.append(f"{scores} ({slowest:.0f} s)" if found else "-")
        lines.append(f"| {env} | {classic.steps_of(env):,} | {aim} | {' | '.join(cells)} |")
    machines = {}  # cells of one machine were made at several commits
    for about in (result["machine"] for result in done.values()):
        place = measured_on({"command": "python -m benchmarks.classic", "machine": about | {"commit": "{}"}})
        machines.setdefault(place, {})[about["commit"]] = None
    zoo = ", ".join(f"{np.mean(run['scores']):.0f}" for run in load("classic-zoo.json")["runs"])
    end = CLASSIC_END.format(zoo=zoo)
    return [CLASSIC_HEAD, *lines, end, *(f"{text.format(', '.join(c))}\n" for text, c in machines.items())]


def summary(cpu, cuda):
    """The main numbers of the page, one line each."""
    engine = online_page.speed_of_preset(online_page.engine_results(load))
    own, *_ = online_page.learning_results()
    offline_speed = load("offline-speed-cuda.json")["ours"]
    rows = [
        ("Max-Reroute, 18 actions, one H200", f"{short(states_a_second(cuda)['rbi', 18, 2**20])} states/s"),
        ("Max-Reroute, 18 actions, 2 cores", f"{short(states_a_second(cpu)['rbi', 18, 2**20])} states/s"),
        (
            "training engine, Breakout, one H200",
            f"{engine['steps_per_second']:,.0f} steps/s ({engine['of']:.2f} of the bare emulator) with "
            f"{engine['updates_per_second']:,.0f} updates/s; alone {engine['learner_alone_updates_per_second']:,.0f}",
        ),
        ("Breakout, 100 points during training", f"{online_page.reached(own, 100):.0f} s (one seed)"),
        ("offline learning, one H200", f"beta {offline_speed['beta']:,.0f}, Q {offline_speed['q']:,.0f} updates/s"),
    ]
    for run in atari_page.long_runs(load):
        what = f"{run['game']}, {run['frames'] / 1e6:.0f} million frames in {run['parts']} parts, one H200"
        rows.append((what, f"{run['seconds'] / 60:.1f} minutes, score {run['result']['evaluation']['mean']:,.0f}"))
    for result in population_page.whole(population_page.load_results()):
        ratios = (f"{name} {population_page.ratio(result, name):.2f}" for name in ("reroute(0.5,1.5)", "greedy"))
        rows.append((f"{population_page.title(result)}, score relative to the cloned behaviour", ", ".join(ratios)))
    return "\n".join(["", "| what | measured |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)])


def page():
    cpu, cuda = load("rules-cpu.json"), load("rules-cuda.json")
    parts = [HEAD.rstrip(), summary(cpu, cuda)]
    parts += atari_page.atari_part(load, measured_on)
    parts += population_page.summary_part(population_page.load_results())
    parts += [RULES_HEAD, rules_highlights(cpu, cuda)]
    for result in (cpu, cuda):
        if result:
            parts += [f"\n{measured_on(result)}\n", rules_table(result)]
    parts += spi_page.spi_part(load, measured_on)
    parts += count_aware.page_part(load, measured_on)
    parts += coverage_page.coverage_part(load, measured_on)
    parts += latency(load("latency.json"))
    parts += small_environments()
    parts += online_page.online_part(load, measured_on)
    parts += ray_page.gpu_part(load, measured_on)
    parts += ray_page.ray_part(load, measured_on)
    parts += offline_page.offline_part(load, measured_on)
    parts += data_page.data_part(load, measured_on)
    return "\n".join(parts) + "\n"


def draw_figures():
    FIGURES.mkdir(exist_ok=True)
    spi_page.draw(load("spi.json"), FIGURES)
    atari_page.draw(load, FIGURES)
    online_page.draw_learning(FIGURES / "learning-breakout.png")
    population_page.draw(population_page.load_results(), FIGURES)


def pages():
    """The text of every page."""
    return {
        PAGE: page(),
        BREAKOUT: online_page.breakout_page(load, measured_on),
        SAFE: spi_page.summary_page(load, measured_on),
        POPULATIONS: population_page.page(population_page.load_results(), measured_on),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
    draw_figures()
    print("wrote", *(path.relative_to(ROOT) for path in (PAGE, BREAKOUT, SAFE, POPULATIONS, FIGURES)))
