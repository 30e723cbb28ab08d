"""The part of docs/results.md on iterative RL, from whatever results are there: engine speed, learning curves."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from rbi.online.config import plan
from rbi.report.style import LINES, LOOK
from rbi.report.train import NAMES

RESULTS = Path(__file__).parent / "results"

SPEED_HEAD = """
## Speed of the training engine

Breakout, both networks of RBI learning, batch 128, sampling and new priorities included. *Bare emulator* is the same
environments with random actions and nothing else to do, in the same run. *Alone* is the learner without environments.
"""

SPEED_AIM = """
**Aims {verdict}:** at least 0.9 of the bare emulator at 1,000 updates a second or more at the same time, and 2,000
updates a second alone, with the preset as it is (the first row). With half the players a group moves half as long, and
more of the emulator's time is lost while its actions are chosen. The last rows are of before looking at pictures and
the biases' sums had kernels of their own: what layer norm and shifts cost.
"""

PEER_HEAD = """
### Beside Stable-Baselines3 on 2 cores

Ape-X of ours without double Q-learning and DQN of Stable-Baselines3: same game, batch, states an update and duelling
network, in one run. The aim, 3 times its steps a second, is not reached on these cores.
"""

LEARNING_HEAD = """
## Learning Breakout

![score while learning](figures/learning-breakout.png)

Score while learning: mean of the last 100 episodes of the players that explore least, quartiles shadowed; the picture
has the first {drawn} rows of the table. The last columns are the final policy's, drawn from without exploration, no-op
starts, sticky actions 0, 108,000 frames at most.
"""

LEARNING_TELLS = """
One seed each; seconds are counted once the games are made, which takes a minute for 512. **Aim reached:** well above
100 within ten minutes. With `fast`, whose rate here falls over {updates:,} updates, RBI has 100 while learning after
{hundred:.0f} seconds, and its policy after {seconds:.0f} seconds scores {played:.0f}. The long run, with 256 players
and a slower engine, had 100 after {long_hundred:.0f} seconds, 300 after {long_three_hundred:.0f}, and {long_last:.0f}
at the end. By updates it was ahead: {long_at:.0f} after 120,000, where 512 players have {at:.0f}. Players, states an
update and how the rate falls differ, so that we do not know which of them it is. No run without shifted pictures got
to 90, whatever else it changed.

**Beside Ape-X** (the same preset, budget and seed; no pi-net, greedy actors, double Q-learning) RBI is behind in this
game: {played:.0f} ({played_low:.0f} to {played_high:.0f}) against {peer:.0f} ({peer_low:.0f} to {peer_high:.0f}) after
{updates:,} updates.

What was in the way took long to find, so it is told here.

- *Pictures learned by heart.* A network that sees a state again and again can tell what came of it by what is nowhere
  else: the score at the top, the bricks that are left. With layer norm and without shifts, after 159,000 updates, the
  error (three-step, mean absolute, drawn by priority) was 0.15 on the replay's states, and 0.31 on those of fresh games
  of the same policy; from its hidden layer a linear map found the ball's distance from the paddle as badly (19 pixels)
  as from that of a network that had learned nothing (17). Moving each drawn picture by up to 4 pixels at random
  (`--learner.shift 4`), as others do where data is short, makes it new each time. With it the two errors are 0.40 and
  0.42, and the distance is found to 14 pixels (all looked at once: 5,600 states, and 2,970 for the map). At 108,000
  updates the score is {shifted:.0f} with it (256 players), and was {unshifted:.0f} without (64). The last table shows
  it without RL. We have no run of shifts alone.
- *Layer norm* makes convolutions learn to see in a fraction of the batches: the table before the last. By itself it did
  not help: that network learns by heart as well.
- *It was not* how many steps a player has taken, as we thought when 256 and 512 players gave the same score at equal
  steps a player: 64 players learned no faster.
- *Adam's epsilon.* The paper's optimiser has 0.00015, but the gradients of a mean Huber loss on clipped rewards are far
  smaller (median of their root mean square 0.000003, looked at once after 100 updates), so that Adam becomes plain
  gradient descent with a tiny step. With 1e-8 RBI had two and a half to three times the score around 120,000 updates.
  `fast` takes 1e-8, `paper` keeps 0.00015.
- *What advantages are centred by.* Centred by the policy, as the paper has it, Q learned slower than centred by their
  mean: the table below. `fast` takes the mean, `paper` the policy.
- *Nor was it*, by the tables below, the replay's size, the target network, the draw, the bootstrap's policy, the place
  of the improvement, the length of returns, frames from before a lost life, or the learning rate; nor bfloat16, which
  changes none of Q's favourite actions in 600 states, nor the policy's own noise (the policy 45, its favourite actions
  alone 46, those of Q 42, 12 games each, after 110,000 updates).
- *Beside DQN elsewhere:* Stable-Baselines3's is reported with 103 after 2.6 million states and 148 after 10 (its pull
  request 28, while exploring), OpenAI's with 131 and RLlib's with 123 after 10 (rl-baselines-zoo, issue 49); others are
  stuck near 50 with priorities and duelling (rlpyt, issue 96).

The long run was stopped by a limit on its time before its games were played; its policy's games, in the last columns,
were played on a processor.
"""

ABLATION_HEAD = """
### What changes it early: {updates:,} updates

{base}. Breakout, {players} players, one seed. Score while learning at the end, and the entropy
of the policy that actors follow.

| variant | score | quartiles | entropy |
|---|--:|--:|--:|"""

SIGHT_HEAD = """
### Memory in place of pictures, and how fast networks see

The same actors, learner and replay, shown ball, paddle and bricks from the emulator's memory in place of pictures
(hidden layers of 256, learning rate 0.00025), on a core each: score while learning.

| updates | million states | with priorities | uniform draw |
|--:|--:|--:|--:|"""

TAUGHT_HEAD = """
And convolutions as in `rbi train`, taught where ball and paddle are by {lessons} batches of 64 states: root mean square
errors in a game that was not shown, in the numbers that the emulator's memory has, about a pixel of its screen of
160 x 210 each. One seed each.

| network | learning rate | ball, across | ball, down | paddle |
|---|--:|--:|--:|--:|"""
KINDS = {"plain": "as it is", "he": "weights drawn as He et al. do", "layer norm": "layer norm before each relu"}

HEART_HEAD = """
### What held it: games learned by heart

{games} games of a policy that had stopped at 66 points, shown to networks as in `rbi train` that learn what came of
each moment: how much of its variance they explain (1: all; below 0: worse than the mean), in those games and in
{held_out} others, after {passes} passes over {states:,} states (learning rate {rate:g}). One seed each.

| network | in games it was shown | in others |
|---|--:|--:|"""
NORMS = {"none": "as it is", "layer": "layer norm"}

FAST = "Base: RBI as in the preset `fast` before it had layer norm and shifts, learning rate 0.0001"
BASES = {
    30_000: "Base: RBI, advantages centred by the policy",
    40_000: FAST,
    56_000: FAST + ", but with 8 states an update in place of 16",
    110_000: FAST,
}
VARIANTS = {
    "base": "base",
    "unshifted": "pictures not shifted",
    "without-norm": "without layer norm",
    "plain": "neither, learning rate 0.0001 that stays",
    "pi": "advantages centred by the policy",
    "replay250k": "replay of 250,000 states",
    "fresh": "64 states an update, batch 256, learning rate 0.0005, replay of 250,000 states",
    "apex": "Ape-X",
    "mean": "advantages centred by their mean",
    "rate2.5": "learning rate 0.00025 in place of 0.0001",
    "rate2.5-learner": "learning rate 0.00025, improvement in the learner",
    "uniform": "uniform replay",
    "net": "bootstraps with the pi-net's policy",
    "apex-rate2.5": "Ape-X, learning rate 0.00025",
    "learner": "improvement in the learner",
    "greedy.3": "c_greedy 0.3",
    "nowpi": "without w^pi",
    "replay128k": "replay of 128,000 states",
    "target200": "target renewed every 200 updates",
    "target200-anneal": "the same, learning rate falling from 0.0002 to 0.00001",
    "n10": "returns of 10 steps",
    "lives": "stack begins anew at a lost life (not in the code)",
    "lives-n10-greedy.3": "stack begins anew, returns of 10 steps, c_greedy 0.3",
}


def ablation(result, measured_on):
    lines = [ABLATION_HEAD.format(base=BASES[result["updates"]], **result)]
    for name, curve in sorted(result["variants"].items(), key=lambda item: -item[1][-1]["score"]):
        last = curve[-1]
        cells = [VARIANTS[name], f"{last['score']:.1f}"]
        cells += [f"{last['score_low']:.1f} to {last['score_high']:.1f}" if "score_low" in last else ""]
        entropy = "" if last.get("pi_entropy") is None else f"{last['pi_entropy']:.2f}"
        lines.append("| " + " | ".join([*cells, entropy]) + " |")
    return "\n".join([*lines, "", measured_on(result)])


def obs_spec(result, measured_on):
    """RBI without the need to see, and how well convolutions see."""
    lines = [SIGHT_HEAD]
    pairs = list(zip(result["from_memory"]["priorities"], result["from_memory"]["uniform"], strict=True))
    for one, other in pairs[len(pairs) % 4 + 3 :: 4]:
        cells = [f"{one['updates']:,}", f"{one['states'] / 1e6:.2f}", f"{one['score']:.1f}", f"{other['score']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append(TAUGHT_HEAD.format(lessons=result["taught"][0]["curve"][-1]["lessons"]))
    for pupil in result["taught"]:
        last = pupil["curve"][-1]
        cells = [
            KINDS[pupil["kind"]],
            f"{pupil['rate']:g}",
            *(f"{last[k]:.1f}" for k in ("ball_x", "ball_y", "paddle")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"{measured_on(result)} ({result['remark']})"])


def by_heart(result, measured_on):
    """What networks understand of games, and what they only know."""
    first = result["taught"][0]
    head = {"passes": first["curve"][-1]["passes"], "states": first["states"]}
    lines = [HEART_HEAD.format(**head, **{k: result[k] for k in ("games", "held_out", "rate")})]
    for pupil in result["taught"]:
        last = pupil["curve"][-1]
        name = NORMS[pupil["norm"]] + (f", pictures shifted by up to {pupil['shift']} pixels" if pupil["shift"] else "")
        lines.append(f"| {name} | {last['shown']:.2f} | {last['held_out']:.2f} |")
    return "\n".join([*lines, "", measured_on(result)])


def engine_speed(results, measured_on):
    lines = ["| algorithm, otherwise than `fast` | players | states an update | steps/s | of the bare emulator |"]
    lines[0] += " updates/s | alone, updates/s |"
    lines += ["|---|--:|--:|--:|--:|--:|--:|"]
    for result in results:
        for r in result["rows"]:
            change = "" if r["variant"] == "base" else f", {VARIANTS[r['variant']]}"
            cells = [NAMES[r["algo"]] + change, str(r["players"]), f"{r['states_per_update']:g}"]
            cells += [f"{r['steps_per_second']:,.0f}", f"{of_the_bare_emulator(result, r):.2f}"]
            cells += [f"{r['updates_per_second']:,.0f}", f"{r['learner_alone_updates_per_second']:,.0f}"]
            lines.append("| " + " | ".join(cells) + " |")
    told = [
        f"\nBare emulator with {result['players']} players: {result['bare_emulator_steps_per_second']:,.0f} steps/s "
        f"before, {result['bare_emulator_again']:,.0f} after; ratios are to their mean. {measured_on(result)}"
        for result in results
    ]
    own = speed_of_preset(results)
    reached = own["of"] >= 0.9 and own["updates_per_second"] >= 1000 and own["learner_alone_updates_per_second"] >= 2000
    return "\n".join(
        [SPEED_HEAD, *lines, SPEED_AIM.rstrip().format(verdict="reached" if reached else "not reached"), *told]
    )


def speed_of_preset(results):
    """The row of the preset as it is."""
    pace = plan("fast", results[0]["game"], "rbi").schedule
    wanted = ("rbi", "base", pace.num_envs, pace.states_per_update)
    rows = [row | {"of": of_the_bare_emulator(result, row)} for result in results for row in result["rows"]]
    return next(r for r in rows if (r["algo"], r["variant"], r["players"], r["states_per_update"]) == wanted)


def of_the_bare_emulator(result, row):
    bare = (result["bare_emulator_steps_per_second"] + result["bare_emulator_again"]) / 2
    return row["steps_per_second"] / bare


def peer_speed(result, measured_on):
    lines = ["| states an update, batch | ours, steps/s | SB3, 1 environment | SB3, 8 | times SB3, 1 | times SB3, 8 |"]
    lines += ["|---|--:|--:|--:|--:|--:|"]
    for r in result["rows"]:
        cells = [f"{r['states_per_update']:g}, {r['batch']}", f"{r['steps_per_second']:,.0f}"]
        cells += [f"{r[f'sb3_{n}']['steps_per_second']:,.0f}" for n in (1, 8)]
        cells += [f"{r[f'times_sb3_{n}']:.1f}" for n in (1, 8)]
        lines.append("| " + " | ".join(cells) + " |")
    peak = result["rows"][0]["multiply_adds_limit"]
    limit = peak / dqn_operations() * result["rows"][0]["states_per_update"] / result["rows"][0]["batch"]
    told = (
        f"\nAt DQN's own ratio, 4 states and a batch of 32, the arithmetic alone bounds this: the cores do "
        f"{peak / 1e9:.0f} GFLOP/s in a large float32 product (they have no fast shorter format), and DQN's work is "
        f"{dqn_operations() / 1e6:.0f} MFLOP a sample, so that nothing can pass {limit:,.0f} steps/s there, "
        f"{limit / result['rows'][0]['sb3_1']['steps_per_second']:.1f} times Stable-Baselines3. "
    )
    return "\n".join([PEER_HEAD, *lines, told + measured_on(result)])


def dqn_operations():
    """Floating-point operations a sample of a DQN update with the duelling network: forward twice, backward once."""
    layers = [(400, 256, 32), (81, 512, 64), (49, 576, 64), (1, 3136, 1024)]
    forward = [2 * m * k * n for m, k, n in layers]
    return 2 * sum(forward) + 2 * sum(forward) - forward[0]  # the first layer needs no gradient of its input


def learned(results):
    lines = [
        "| algorithm | otherwise than `fast` | updates | million frames | seconds | while learning | mean | median |"
    ]
    lines += ["|---|---|--:|--:|--:|--:|--:|--:|"]
    for r in results:
        last, played = r["curve"][-1], r["evaluation"]
        cells = [f"{NAMES[r['algo']]}, seed {r['seed']}", ", ".join(otherwise(r)), f"{updates_of(r):,}"]
        cells += [f"{4 * last['states'] / 1e6:.1f}", f"{r['seconds']:,.0f}"]
        cells += [f"{last['score']:.1f}"]
        if played:
            low, high = played["interval"]
            cells += [f"{played['mean']:.1f} ({low:.1f} to {high:.1f})", f"{played['median']:.1f}"]
        else:
            cells += ["not played", ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def otherwise(result):
    """In what a run differs from the preset, in a few words each."""
    preset = plan("fast", result["env"], result["algo"])
    learner, pace = result["settings"]["learner"], result["settings"]["pace"]
    found = []
    if pace.get("norm", "none") != preset.schedule.norm:
        found.append("no norm")
    if learner.get("shift", 0) != preset.learner.augmentation:
        found.append("no shift")
    if learner["learning_rate"] != preset.learner.learning_rate:
        found.append(f"rate {learner['learning_rate']:g}")
    span = 0.0 if learner.get("final_rate", 1.0) == 1 else pace["updates"]
    if learner.get("shift") and span != preset.schedule.updates:
        found.append(f"rate falls over {span:,}")
    if learner["adam_epsilon"] != preset.learner.adam_epsilon:
        found.append(f"epsilon {learner['adam_epsilon']:g}")
    if result["algo"] == "rbi" and learner["centres"] != preset.learner.advantage_baseline:
        found.append("centred by the policy")
    if (states := result["settings"]["replay"]["states"]) != preset.replay.capacity:
        found.append(f"replay {states:,}")
    if pace["players"] != preset.schedule.num_envs:
        found.append(f"{pace['players']} players")
    if pace["states_per_update"] != preset.schedule.states_per_update:
        found.append(f"{pace['states_per_update']:g} states an update")
    return found


def as_preset(result):
    """Whether a run is the preset's, or a shorter one."""
    return all(change.startswith("rate falls") for change in otherwise(result))


def told_of(results):
    """What came of the preset, beside its peer, and what was found on the way to it."""
    own, peer = (next(r for r in results if r["algo"] == algo and as_preset(r)) for algo in ("rbi", "apex"))
    unshifted = next(r for r in results if r["algo"] == "rbi" and otherwise(r)[:1] == ["no shift"])
    long = max((r for r in results if r["settings"]["learner"].get("shift")), key=updates_of)
    assert updates_of(own) == updates_of(peer)
    return LEARNING_TELLS.format(
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
        shifted=score_at(long, 108_000),
        unshifted=score_at(unshifted, 108_000),
    )


def played(result, name):
    """The final policy's mean and its interval."""
    low, high = result["evaluation"]["interval"]
    return {name: result["evaluation"]["mean"], f"{name}_low": low, f"{name}_high": high}


def score_at(result, updates):
    """The score while learning nearest to so many updates."""
    return min(result["curve"], key=lambda p: abs(p["updates"] - updates))["score"]


def reached(result, score):
    """Seconds until the score while learning was so high."""
    return next(p["seconds"] for p in result["curve"] if (p["score"] or 0) >= score)


def updates_of(result):
    return result.get("updates", result["settings"]["pace"]["updates"])


def learning_results():
    """The preset's own run first, then those that differ, the longest first."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("learning-breakout-*.json"))]
    return sorted(found, key=lambda r: (r["algo"] != "rbi", len(otherwise(r)), -updates_of(r), r["seed"]))


def engine_results(load):
    return [found for kind in ("512", "256", "256-variants") if (found := load(f"engine-cuda-{kind}.json"))]


def iterative_part(load, measured_on):
    """Markdown of everything that has been measured."""
    parts = []
    if cuda := engine_results(load):
        parts.append(engine_speed(cuda, measured_on))
    if cpu := load("engine-cpu.json"):
        parts.append(peer_speed(cpu, measured_on))
    if results := learning_results():
        commands = "\n".join(f"- {measured_on(r)}" for r in results)
        parts += [
            LEARNING_HEAD.format(drawn=min(len(LINES), len(results))),
            learned(results),
            told_of(results),
            commands,
        ]
    for size in ("", "-40k", "-56k", "-110k"):
        name = f"ablation-breakout{size}.json"
        if variants := load(name):
            parts.append(ablation(variants, measured_on))
    if seen := load("sight-breakout.json"):
        parts.append(obs_spec(seen, measured_on))
    if known := load("by-heart-breakout.json"):
        parts.append(by_heart(known, measured_on))
    return parts


def draw_learning(path):
    with plt.rc_context(LOOK):
        figure = plt.figure(figsize=(6.6, 4.8), layout="constrained")
        panel = figure.subplots()
        for look, r in zip(LINES, learning_results(), strict=False):
            points = [p for p in r["curve"] if p["score"] is not None]
            frames = np.array([4 * p["states"] / 1e6 for p in points])
            name = ": ".join(filter(None, [NAMES[r["algo"]], ", ".join(otherwise(r))]))
            panel.plot(frames, [p["score"] for p in points], label=name, **look)
            low, high = ([p[k] for p in points] for k in ("score_low", "score_high"))
            panel.fill_between(frames, low, high, color=look["color"], alpha=0.13, linewidth=0)
        panel.set(xlabel="million frames", ylabel="score while learning")
        panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), title="preset fast, and what differs from it")
        figure.savefig(path, dpi=130)
        plt.close(figure)
