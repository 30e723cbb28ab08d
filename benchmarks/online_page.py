"""Online RL in docs/results.md (engine speed, learning curves), and docs/breakout.md (ablations), from raw results."""

import json

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.tables import RESULTS, load, measured_on, table_row
from rbi.online.config import TrainConfig
from rbi.report import LINES, LOOK
from rbi.report.train import ALGORITHMS

SPEED_HEAD = """
## Speed of the training engine

Breakout, both networks of RBI learning, batch size 128, sampling and priority updates included. *Bare emulator*: the
same environments with random actions and nothing else, in the same run. *Learner alone*: updates without environments.
RBI's rows are from before its learner improved the policy of its target networks
([decision 033](decisions/033-improve-the-target-networks.md)).
"""

SPEED_AIM = """
**Aims {verdict}:** at least 0.9 of the bare emulator's steps/s together with 1,000 updates/s, and 2,000 updates/s of
the learner alone, with the preset unchanged. That is the first row; later measurements of it missed the ratio: the
second row, on a machine whose emulator is a fifth faster, and those under [start-up](#start-up). With half as many
environments a group steps for half as long, so more of the emulator's time is lost while actions are computed. The last
rows predate the kernels for preprocessing and bias gradients; they show the cost of layer norm and augmentation.
"""

START_UP_HEAD = """
### Start-up

Making and resetting {num_envs} environments: ale-py loads each game twice, the first time one after another. Worker
processes load them in parallel. The two variants took turns on one machine, four seconds each: their differences in
steps/s are noise. All ratios to the bare emulator are lower than the first one in the table above; the cause is
unknown.

| emulators in | seconds to make and reset | steps/s with updates | bare emulator, steps/s | ratio |
|---|--:|--:|--:|--:|"""

SCREENS_HEAD = """
### Screens that the GPU shrinks

Shrinking a screen of 210 x 160 pixels to 84 x 84 is a seventh of the emulators' work. Training on a GPU leaves it to
the GPU, which reads the screens where the worker processes put them: {gain}.
Both kinds took turns on one machine with {num_envs} environments; its speed changed between turns, so compare within a
turn ([why, what it changes, and an earlier measurement](decisions/029-whole-screens.md)). All other figures on this
page were measured without it, except for the cells of the Atari games from commit 52237e6 on.

| screens are shrunk by | seconds to make and reset | steps/s with updates | bare emulator, steps/s | ratio |
|---|--:|--:|--:|--:|"""

PEER_HEAD = """
### Compared with Stable-Baselines3 on 2 cores

Our Ape-X without double Q-learning against Stable-Baselines3's DQN: same game, batch size, states per update and
dueling network, in one run. The aim, 3 times its steps/s, is not reached on these cores.
"""

LEARNING_HEAD = """
## Learning Breakout

![score during training](figures/learning-breakout.png)

Score during training: mean over the last 100 episodes of the low-epsilon environments, quartiles shaded; the figure
shows the first {drawn} rows of the table. The last columns are the final policy, sampled without exploration: no-op
starts, no sticky actions, at most 108,000 frames.
"""

LEARNING_TEXT = """
One seed each, earlier presets. Seconds are counted after the environments were made, which took a minute for 512 then
([today](#start-up)). **Aim reached:** well above 100 within ten minutes. The preset `fast`, with its learning
rate decayed over {updates:,} updates, reaches 100 during training after {hundred:.0f} s; its policy after {seconds:.0f}
s scores {played:.0f}. The longest run, with 256 environments, reached 100 after {long_hundred:.0f} s, 300 after
{long_three_hundred:.0f} s and {long_last:.0f} at the end. At equal updates it was ahead ({long_at:.0f} after 120,000,
against {at:.0f} with 512 environments); the number of environments, states per update and learning-rate decay all
differ, so the cause is unknown. No run without augmentation reached 90. [What limited Breakout](breakout.md) has the
ablations.

**Compared with Ape-X** (same preset, budget and seed; no policy network, greedy actors, double Q-learning) RBI is
behind here: {played:.0f} ({played_low:.0f} to {played_high:.0f}) against {peer:.0f} ({peer_low:.0f} to {peer_high:.0f})
after {updates:,} updates. With today's preset RBI is ahead after 10 million frames (table of twelve games), also with
one seed each.

The policy of the longest run was evaluated on a CPU, since the run itself was stopped by its time limit.
"""

FINDINGS = (
    (
        "memorised images",
        "**the cause.** Without augmentation networks fit the replay buffer and do not generalise; random "
        "shifts of up to 4 pixels (`--learner.augmentation 4`) fix it",
    ),
    (
        "Adam's epsilon",
        "the paper's 0.00015 exceeds typical gradients (median RMS 0.000003 after 100 updates, one "
        "measurement), so Adam degenerates to gradient descent with a tiny step. With 1e-8 RBI had 2.5 to 3 "
        "times the score around 120,000 updates. `fast` uses 1e-8, `paper` keeps 0.00015",
    ),
    (
        "advantage baseline",
        "subtracting the mean learns faster than subtracting the policy's expectation, as the paper does. "
        "`fast` uses the mean, `paper` the policy",
    ),
    (
        "layer norm",
        "speeds up learning from images (see below), but does not help without augmentation: that network "
        "memorises as well",
    ),
    (
        "replay capacity, target network, prioritisation, bootstrap policy, where the rule is applied, n, "
        "frames from before a lost life, learning rate",
        "no large effect (tables below)",
    ),
    (
        "number of environments",
        "no: 64 environments learned no faster than 256 or 512 at equal steps per environment",
    ),
    (
        "bfloat16",
        "no: it changes none of Q's greedy actions in 600 states",
    ),
    (
        "the policy's own randomness",
        "no: after 110,000 updates the policy scored 45, its mode 46, Q's greedy actions 42 (12 games each)",
    ),
)

BREAKOUT_HEAD = """# What limited the score on Breakout

Generated by `make results` from the raw JSON in [benchmarks/results](../benchmarks/results); do not edit by hand. Final
scores are in [results](results.md#learning-breakout). Every run here is one seed.

## Summary

{findings}

**Generalisation, measured once.** With layer norm and without augmentation, after 159,000 updates, the mean absolute
3-step TD error was 0.15 on the replay buffer and 0.31 on new games of the same policy (5,600 states). A linear
probe on the hidden layer located the ball relative to the paddle to 19 pixels, no better than on an untrained network
(17; 2,970 states). With augmentation the errors were 0.40 and 0.42 and the probe's error 14 pixels. At 108,000 updates
the score during training was {shifted:.0f} with augmentation (256 environments) and {unshifted:.0f} without (64). There
is no run with augmentation but without layer norm.

**DQN elsewhere.** Stable-Baselines3 reports 103 after 2.6 million states and 148 after 10 million (pull request 28,
with exploration), OpenAI Baselines 131 and RLlib 123 after 10 million (rl-baselines-zoo, issue 49); others report about
50 with prioritisation and dueling (rlpyt, issue 96).
"""

ABLATION_HEAD = """
## Ablations: {updates:,} updates

{base}. {num_envs} environments. Score during training at the end, and the entropy of the actors' policy.

| variant | score | quartiles | entropy |
|---|--:|--:|--:|"""

RAM_HEAD = """
## Learning from RAM instead of images

The same actors, learner and replay with ball, paddle and bricks read from the emulator's RAM (hidden layers of 256,
learning rate 0.00025), one core each: score during training.

| updates | million states | prioritised | uniform |
|--:|--:|--:|--:|"""

REGRESSION_HEAD = """
## How fast convolutions learn to locate objects

The convolutional trunk of `rbi train`, trained to regress the positions of ball and paddle on {batches} batches of 64
states: root mean square error on a test game, in pixels of the emulator's 160 x 210 screen.

| network | learning rate | ball x | ball y | paddle |
|---|--:|--:|--:|--:|"""
NETWORKS = {"plain": "default", "he": "He initialisation", "layer norm": "layer norm before each ReLU"}

MEMORISATION_HEAD = """
## Memorisation without RL

Networks are trained to predict returns on {games} games of a policy that had plateaued at 66 points: explained variance
(1 is perfect, 0 is the mean) on those games and on {test_games} test games, after {passes} passes over {states:,}
states (learning rate {learning_rate:g}).

| network | training games | test games |
|---|--:|--:|"""
NORMS = {"none": "no norm", "layer": "layer norm"}

FAST = "Base: RBI, preset `fast` before it had layer norm and augmentation, learning rate 0.0001"
BASES = {
    30_000: "Base: RBI, advantages relative to the policy's expectation",
    40_000: FAST,
    56_000: FAST + ", 8 states per update instead of 16",
    110_000: FAST,
}
VARIANT_NAMES = {
    "base": "base",
    "cmax10": "reroute(0.1,10)",
    "cmax2": "reroute(0.1,2)",
    "latest": "latest networks",
    "latest-cmax2": "latest networks, reroute(0.1,2)",
    "latest-cmax2-greedy.01": "latest networks, reroute(0.1,2), c_greedy 0.01",
    "latest-cmin0": "latest networks, reroute(0,10)",
    "latest-cmin.01": "latest networks, reroute(0.01,10)",
    "stored": "stored policies",
    "stored-cmax2": "stored policies, reroute(0.1,2)",
    "bootstrap-rule": "bootstraps with the rule applied afresh",
    "bootstrap-net": "bootstraps with the policy network",
    "n5": "5-step returns",
    "target500": "target update interval 500",
    "target2000": "target update interval 2000",
    "rate5": "learning rate 0.0005",
    "unshifted": "no augmentation",
    "without-norm": "no layer norm",
    "plain": "no layer norm, no augmentation, constant learning rate 0.0001",
    "pi": "advantage baseline: policy",
    "replay250k": "replay capacity 250,000",
    "fresh": "64 states per update, batch size 256, learning rate 0.0005, replay capacity 250,000",
    "apex": "Ape-X",
    "mean": "advantage baseline: mean",
    "rate2.5": "learning rate 0.00025",
    "rate2.5-learner": "learning rate 0.00025, rule applied in the learner",
    "uniform": "uniform replay",
    "net": "bootstraps with the policy network",
    "apex-rate2.5": "Ape-X, learning rate 0.00025",
    "learner": "rule applied in the learner",
    "greedy.3": "c_greedy 0.3",
    "nowpi": "no policy weighting w^pi",
    "replay128k": "replay capacity 128,000",
    "target200": "target update interval 200",
    "target200-anneal": "target update interval 200, learning rate decayed from 0.0002 to 0.00001",
    "n10": "10-step returns",
    "lives": "frame stack reset at a lost life (not in the code)",
    "lives-n10-greedy.3": "frame stack reset at a lost life, 10-step returns, c_greedy 0.3",
}


def ablation(result):
    lines = [ABLATION_HEAD.format(base=BASES[result["updates"]], **result)]
    for name, curve in sorted(result["variants"].items(), key=lambda item: -item[1][-1]["score"]):
        last = curve[-1]
        cells = [VARIANT_NAMES[name], f"{last['score']:.1f}"]
        cells += [f"{last['score_low']:.1f} to {last['score_high']:.1f}" if "score_low" in last else ""]
        entropy = "" if last.get("pi_entropy") is None else f"{last['pi_entropy']:.2f}"
        lines.append(table_row([*cells, entropy]))
    return "\n".join([*lines, "", measured_on(result)])


def ram_observations(result):
    """RBI on observations from RAM, and how fast convolutions learn positions."""
    lines = [RAM_HEAD]
    pairs = list(zip(result["from_ram"]["priorities"], result["from_ram"]["uniform"], strict=True))
    for one, other in pairs[len(pairs) % 4 + 3 :: 4]:
        cells = [f"{one['updates']:,}", f"{one['states'] / 1e6:.2f}", f"{one['score']:.1f}", f"{other['score']:.1f}"]
        lines.append(table_row(cells))
    lines.append(REGRESSION_HEAD.format(batches=result["regression"][0]["curve"][-1]["batches"]))
    for row in result["regression"]:
        last = row["curve"][-1]
        errors = [f"{last[k]:.1f}" for k in ("ball_x", "ball_y", "paddle")]
        lines.append(table_row([NETWORKS[row["network"]], f"{row['learning_rate']:g}", *errors]))
    remark = f" ({result['remark']})" if "remark" in result else ""
    return "\n".join([*lines, "", measured_on(result) + remark])


def memorisation(result):
    """Explained variance on training and test games."""
    first = result["networks"][0]
    head = {"passes": first["curve"][-1]["passes"], "states": first["states"]}
    lines = [MEMORISATION_HEAD.format(**head, **{k: result[k] for k in ("games", "test_games", "learning_rate")})]
    for row in result["networks"]:
        last = row["curve"][-1]
        name = NORMS[row["norm"]]
        name += f", augmentation {row['augmentation']} pixels" if row["augmentation"] else ""
        lines.append(f"| {name} | {last['train']:.2f} | {last['test']:.2f} |")
    return "\n".join([*lines, "", measured_on(result)])


def engine_speed(results):
    lines = ["| algorithm, changes to `fast` | environments | states per update | steps/s | of the bare emulator |"]
    lines[0] += " updates/s | learner alone, updates/s |"
    lines += ["|---|--:|--:|--:|--:|--:|--:|"]
    for result in results:
        for r in result["rows"]:
            change = "" if r["variant"] == "base" else f", {VARIANT_NAMES[r['variant']]}"
            cells = [ALGORITHMS[r["algo"]] + change, str(r["num_envs"]), f"{r['states_per_update']:g}"]
            cells += [f"{r['steps_per_second']:,.0f}", f"{of_the_bare_emulator(result, r):.2f}"]
            cells += [f"{r['updates_per_second']:,.0f}", f"{r['learner_alone_updates_per_second']:,.0f}"]
            lines.append(table_row(cells))
    notes = [
        f"\nBare emulator with {result['num_envs']} environments: {result['bare_emulator_steps_per_second']:,.0f} "
        f"steps/s before, {result['bare_emulator_again']:,.0f} after; ratios are to their mean.{compared(result)} "
        f"{measured_on(result)}"
        for result in results
    ]
    own = speed_of_preset(results)
    reached = own["of"] >= 0.9 and own["updates_per_second"] >= 1000 and own["learner_alone_updates_per_second"] >= 2000
    return "\n".join(
        [SPEED_HEAD, *lines, SPEED_AIM.rstrip().format(verdict="reached" if reached else "not reached"), *notes]
    )


def rows_of_turns(result):
    """A row for each kind of environments, of which two took turns."""
    lines = []
    for kind, row in result["kinds"].items():
        seconds = row.get("make_and_reset_seconds") or row["make_seconds"] + row["reset_seconds"]
        bare, steps = (
            [turn[name] for turn in row["turns"]] for name in ("bare_emulator_steps_per_second", "steps_per_second")
        )
        cells_of_row = [kind, f"{seconds:.0f}", *(", ".join(f"{v:,.0f}" for v in values) for values in (steps, bare))]
        cells_of_row.append(", ".join(f"{s / b:.2f}" for s, b in zip(steps, bare, strict=True)))
        lines.append(table_row(cells_of_row))
    return lines


def screens(result):
    """Screens shrunk by the emulators' cores and by the GPU."""
    before, after = ([turn["steps_per_second"] for turn in kind["turns"]] for kind in result["kinds"].values())
    gains = [f"{new / old:.2f}" for old, new in zip(before, after, strict=True)]
    gain = f"{sum(after) / sum(before):.2f} times the steps/s ({min(gains)} to {max(gains)} in single turns)"
    head = SCREENS_HEAD.format(gain=gain, num_envs=result["num_envs"])
    return "\n".join([head, *rows_of_turns(result), "", measured_on(result)])


def start_up(result, cells):
    """Emulators in one process and in worker processes, and how long training takes to start."""
    lines = [START_UP_HEAD.format(**result), *rows_of_turns(result)]
    note = f" ({result['remark']})" if "remark" in result else ""
    timed = [c["seconds"] for c in cells if c["seconds"]["environments"] and not c.get("shared")]
    times = [seconds["environments"] + seconds["start"] for seconds in timed]
    if times:
        span = f"{min(times):.0f} to {max(times):.0f}" if round(max(times)) > round(min(times)) else f"{times[0]:.0f}"
        note += (
            f" In the runs of the [Atari games](#atari-games) that made environments the first update came {span} s "
            "after the program's imports: environments, CUDA graphs, and 50,000 states to learn from."
        )
    return "\n".join([*lines, "", measured_on(result) + note])


def compared(result):
    """The same measurement of an earlier commit in the same call, if there was one."""
    if "previous_commit" not in result:
        return ""
    before, row = result["previous_commit"], result["previous_commit"]["rows"][0]
    return (
        f" Commit {before['commit']} in the same call: {row['steps_per_second']:,.0f} steps/s with "
        f"{row['updates_per_second']:,.0f} updates/s, learner alone {row['learner_alone_updates_per_second']:,.0f}."
    )


def speed_of_preset(results):
    """The row of the unchanged preset."""
    schedule = TrainConfig.preset(results[0]["game"], "rbi", "fast").schedule
    wanted = ("rbi", "base", schedule.num_envs, schedule.states_per_update)
    rows = [row | {"of": of_the_bare_emulator(result, row)} for result in results for row in result["rows"]]
    return next(r for r in rows if (r["algo"], r["variant"], r["num_envs"], r["states_per_update"]) == wanted)


def of_the_bare_emulator(result, row):
    bare = (result["bare_emulator_steps_per_second"] + result["bare_emulator_again"]) / 2
    return row["steps_per_second"] / bare


def peer_speed(result):
    lines = ["| states per update, batch size | rbi, steps/s | SB3, 1 environment | SB3, 8 | ratio, 1 | ratio, 8 |"]
    lines += ["|---|--:|--:|--:|--:|--:|"]
    for r in result["rows"]:
        cells = [f"{r['states_per_update']:g}, {r['batch']}", f"{r['steps_per_second']:,.0f}"]
        cells += [f"{r[f'sb3_{n}']['steps_per_second']:,.0f}" for n in (1, 8)]
        cells += [f"{r[f'times_sb3_{n}']:.1f}" for n in (1, 8)]
        lines.append(table_row(cells))
    peak = result["rows"][0]["multiply_adds_limit"]
    limit = peak / dqn_operations() * result["rows"][0]["states_per_update"] / result["rows"][0]["batch"]
    bound = (
        f"\nAt DQN's ratio, 4 states per update and batch size 32, arithmetic is the bound: these cores reach "
        f"{peak / 1e9:.0f} GFLOP/s in a large float32 product and have no faster short format; DQN needs "
        f"{dqn_operations() / 1e6:.0f} MFLOP per sample. The limit is {limit:,.0f} steps/s, "
        f"{limit / result['rows'][0]['sb3_1']['steps_per_second']:.1f} times Stable-Baselines3. "
    )
    return "\n".join([PEER_HEAD, *lines, bound + measured_on(result)])


def dqn_operations():
    """Floating-point operations a sample of a DQN update with the duelling network: forward twice, backward once."""
    layers = [(400, 256, 32), (81, 512, 64), (49, 576, 64), (1, 3136, 1024)]
    forward = [2 * m * k * n for m, k, n in layers]
    return 2 * sum(forward) + 2 * sum(forward) - forward[0]  # the first layer needs no gradient of its input


def learned(results):
    lines = ["| algorithm | changes to `fast` | updates | million frames | seconds | training score | mean | median |"]
    lines += ["|---|---|--:|--:|--:|--:|--:|--:|"]
    for r in results:
        last, played = r["curve"][-1], r["evaluation"]
        cells = [f"{ALGORITHMS[r['algo']]}, seed {r['seed']}", ", ".join(changes(r)), f"{updates_of(r):,}"]
        cells += [f"{4 * last['states'] / 1e6:.1f}", f"{r['seconds']:,.0f}", f"{last['score']:.1f}"]
        if played:
            low, high = played["interval"]
            cells += [f"{played['mean']:.1f} ({low:.1f} to {high:.1f})", f"{played['median']:.1f}"]
        else:
            cells += ["not evaluated", ""]
        lines.append(table_row(cells))
    return "\n".join(lines)


def changes(result):
    """The settings in which a run differs from the preset `fast`, in words."""
    preset = TrainConfig.preset(result["env"], result["algo"], "fast")
    learner, schedule = result["settings"]["learner"], result["settings"]["schedule"]
    found = []
    if schedule.get("norm", "none") != preset.schedule.norm:
        found.append("no norm")
    if learner.get("augmentation", 0) != preset.learner.augmentation:
        found.append("no augmentation")
    if learner["learning_rate"] != preset.learner.learning_rate:
        found.append(f"learning rate {learner['learning_rate']:g}")
    decay = 0 if learner.get("final_lr_fraction", 1.0) == 1 else schedule["updates"]
    if learner.get("augmentation") and decay != preset.schedule.updates:
        found.append(f"decay over {decay:,} updates")
    if learner["adam_epsilon"] != preset.learner.adam_epsilon:
        found.append(f"Adam epsilon {learner['adam_epsilon']:g}")
    if result["algo"] == "rbi" and learner["advantage_baseline"] != preset.learner.advantage_baseline:
        found.append("advantage baseline: policy")
    if (capacity := result["settings"]["replay"]["capacity"]) != preset.replay.capacity:
        found.append(f"replay {capacity:,}")
    if schedule["num_envs"] != preset.schedule.num_envs:
        found.append(f"{schedule['num_envs']} environments")
    if schedule["states_per_update"] != preset.schedule.states_per_update:
        found.append(f"{schedule['states_per_update']:g} states per update")
    return found


def is_preset(result):
    """True for the preset itself or a shorter run of it."""
    return all(change.startswith("decay over") for change in changes(result))


def shifted_and_unshifted(results):
    """The longest run with augmentation, and the run that differs by its absence."""
    long = max((r for r in results if r["settings"]["learner"].get("augmentation")), key=updates_of)
    return long, next(r for r in results if r["algo"] == "rbi" and changes(r)[:1] == ["no augmentation"])


def learning_text(results):
    """The preset's result, compared with Ape-X and the longest run."""
    own, peer = (next(r for r in results if r["algo"] == algo and is_preset(r)) for algo in ("rbi", "apex"))
    long, _ = shifted_and_unshifted(results)
    assert updates_of(own) == updates_of(peer)
    return LEARNING_TEXT.format(
        hundred=reached(own, 100),
        seconds=own["seconds"],
        updates=updates_of(own),
        **played(own, "played"),
        **played(peer, "peer"),
        long_hundred=reached(long, 100),
        long_three_hundred=reached(long, 300),
        long_last=long["curve"][-1]["score"],
        long_at=score_at(long, 120_000),
        at=score_at(own, 120_000),
    )


def played(result, name):
    """The final policy's mean and its interval."""
    low, high = result["evaluation"]["interval"]
    return {name: result["evaluation"]["mean"], f"{name}_low": low, f"{name}_high": high}


def score_at(result, updates):
    """The training score nearest to a number of updates."""
    return min(result["curve"], key=lambda p: abs(p["updates"] - updates))["score"]


def reached(result, score):
    """Seconds until the training score reached a value."""
    return next(p["seconds"] for p in result["curve"] if (p["score"] or 0) >= score)


def updates_of(result):
    return result.get("updates", result["settings"]["schedule"]["updates"])


def learning_results():
    """The preset's run first, then the variants, longest first."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("learning-breakout-*.json"))]
    return sorted(found, key=lambda r: (r["algo"] != "rbi", len(changes(r)), -updates_of(r), r["seed"]))


def engine_results():
    return [
        found
        for kind in ("512", "512-faster-emulator", "256", "256-variants")
        if (found := load(f"engine-cuda-{kind}.json"))
    ]


def online_part():
    """The sections of docs/results.md."""
    parts = []
    if cuda := engine_results():
        parts.append(engine_speed(cuda))
    if started := load("engine-start-up.json"):
        cells = [json.loads(path.read_text()) for path in sorted((RESULTS / "atari").glob("*.json"))]
        parts.append(start_up(started, cells))
    if turns := load("engine-frames.json"):
        parts.append(screens(turns))
    if cpu := load("engine-cpu.json"):
        parts.append(peer_speed(cpu))
    if results := learning_results():
        commands = "\n".join(f"- {measured_on(r)}" for r in results)
        head = LEARNING_HEAD.format(drawn=min(len(LINES), len(results)))
        parts += [head, learned(results), learning_text(results), commands]
    return parts


def breakout_page():
    """docs/breakout.md."""
    long, unshifted = shifted_and_unshifted(learning_results())
    scores = {"shifted": score_at(long, 108_000), "unshifted": score_at(unshifted, 108_000)}
    findings = ["| suspect | finding |", "|---|---|", *(f"| {suspect} | {finding} |" for suspect, finding in FINDINGS)]
    parts = [BREAKOUT_HEAD.format(**scores, findings="\n".join(findings)).rstrip()]
    parts.append(memorisation(load("memorisation-breakout.json")))
    parts += [ablation(load(f"ablation-breakout{size}.json")) for size in ("", "-40k", "-56k", "-110k")]
    parts.append(ram_observations(load("ram-observations-breakout.json")))
    return "\n".join(parts) + "\n"


def draw_learning(path):
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(8.6, 6.4), layout="constrained")
        panel = figure.subplots()
        for look, r in zip(LINES, learning_results(), strict=False):
            points = [p for p in r["curve"] if p["score"] is not None]
            frames = np.array([4 * p["states"] / 1e6 for p in points])
            name = ": ".join(filter(None, [ALGORITHMS[r["algo"]], ", ".join(changes(r))]))
            panel.plot(frames, [p["score"] for p in points], label=name, **look)
            low, high = ([p[k] for p in points] for k in ("score_low", "score_high"))
            panel.fill_between(frames, low, high, color=look["color"], alpha=0.13, linewidth=0)
        panel.set(xlabel="million frames", ylabel="score during training")
        figure.legend(loc="outside lower center", fontsize=7.5, title="preset fast and its variants", title_fontsize=8)
        figure.savefig(path, dpi=130)
