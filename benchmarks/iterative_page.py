"""The part of docs/results.md on iterative RL, from whatever results are there: engine speed, learning curves."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from rbi.report.style import LINES, LOOK
from rbi.report.train import NAMES

RESULTS = Path(__file__).parent / "results"

SPEED_HEAD = """
## Speed of the training engine

Breakout, both networks of RBI learning, batch 128, sampling and new priorities included. *Bare emulator* is the same
environments with random actions and nothing else to do, in the same run. *Alone* is the learner without environments.
"""

SPEED_AIM = """
Aims: at least 0.9 of the bare emulator at 1,000 updates a second or more at the same time, and 2,000 updates a second
alone. At 25 states an update the emulator of this machine cannot feed 1,000 updates a second; at 16, the preset's
number, it can.
"""

PEER_HEAD = """
### Beside Stable-Baselines3 on 2 cores

Ape-X of ours without double Q-learning and DQN of Stable-Baselines3: same game, batch, states an update and duelling
network, in one run. The aim, 3 times its steps a second, is not reached on these cores.
"""

LEARNING_HEAD = """
## Learning Breakout

![score while learning](figures/learning-breakout.png)

Score while learning: mean of the last 100 episodes of the players that explore least, quartiles shadowed. The last
columns are the final policy's, drawn from without exploration, no-op starts, sticky actions 0, 108,000 frames at most.
"""

LEARNING_TELLS = """
One seed each. **Aim not reached:** well above 100 within ten minutes. RBI's best are 86.9 (280,000 updates, small
replay) and 82.8 (490,000), and its score while learning stops rising between 50 and 75, whichever epsilon, centre or
replay is used; Ape-X is ahead of it at equal updates.

- *Adam's epsilon.* The paper's optimiser has 0.00015, but the gradients of a mean Huber loss on clipped rewards are far
  smaller (median of their root mean square 0.000003, looked at once after 100 updates), so that Adam becomes plain
  gradient descent with a tiny step. With 1e-8 RBI has two and a half to three times the score around 120,000 updates.
  `fast` takes 1e-8, `paper` keeps 0.00015.
- *What advantages are centred by.* Centred by the policy, as the paper has it, Q learns slower than centred by their
  mean: the table below. `fast` takes the mean, `paper` the policy.
- *The replay's lag* is not what holds it. With 250,000 states, which turn over in 16,000 updates (62,000 for a million;
  7,800 in the paper), it stops in the same place. Neither do the learning rate, the draw, the bootstrap's policy or the
  place of the improvement change the first 40,000 updates by much: the second table below. (These runs had their last
  layers in float32; it made no difference, and was taken back.)
- *Nor is it* the target network (renewed every 200 updates in place of 1,000: 43 against 49 after 110,000), a step
  that is too large late (falling to a twentieth: 31), the length of returns (10 steps in place of 3), or frames from
  before a lost life in the stack. The tables below.
- *Nor precision.* Of 600 states that the policy after 110,000 updates met, bfloat16 changes Q's favourite action in
  none (looked at once).
- *Nor the policy's own noise.* Drawn from, that policy scores 45; its favourite actions alone 46, those of Q 42 (12
  games each, a processor). Looked at in 38,000 states, Q is right on average (V 1.76, returns 1.91), but explains a
  quarter of the returns' variance, and still expects 0.8 four to seven steps before a life is lost.
- *It is how fast the networks learn to see,* as far as we know: from the emulator's memory RBI does not stop there, and
  convolutions that are taught the ball directly find it slowly with the step that most runs here take: the last table.
- *Beside DQN elsewhere.* No run here saw more than 7.8 million states, and the one that did has games of 400 beside a
  median of 51. DQN of Stable-Baselines3 is reported with 103 after 2.6 million states and 148 after 10 (its pull
  request 28, while exploring), that of OpenAI with 131 and of RLlib with 123 (rl-baselines-zoo, issue 49); others
  report to be stuck near 50 with priorities and duelling (rlpyt, issue 96). Stable-Baselines3 takes a step of 0.0001
  for every 32 samples; the long runs here take it for 128.
- *Next to try:* a whole ten minutes, in which the emulator gives 10 million states, with a step of 0.0005 that falls,
  and layer norm.
"""

ABLATION_HEAD = """
### What changes it early: {updates:,} updates

{base}. Breakout, {players} players, one seed. Score while learning at the end, and the entropy
of the policy that actors follow.

| variant | score | quartiles | entropy |
|---|--:|--:|--:|"""

SIGHT_HEAD = """
### What holds it: sight

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

FAST = "Base: RBI as in the preset `fast`"
BASES = {
    30_000: "Base: RBI, advantages centred by the policy",
    40_000: FAST,
    56_000: FAST + ", but with 8 states an update in place of 16",
    110_000: FAST,
}
VARIANTS = {
    "base": "base",
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


def sight(result, measured_on):
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


def engine_speed(result, measured_on):
    bare = result["bare_emulator_steps_per_second"]
    lines = [
        "| algorithm | players | states an update | steps/s | of the bare emulator | updates/s | alone, updates/s |"
    ]
    lines += ["|---|--:|--:|--:|--:|--:|--:|"]
    for r in result["rows"]:
        cells = [NAMES[r["algo"]], str(r["players"]), f"{r['states_per_update']:g}", f"{r['steps_per_second']:,.0f}"]
        cells += [f"{r['of_the_bare_emulator']:.2f}", f"{r['updates_per_second']:,.0f}"]
        cells += [f"{r['learner_alone_updates_per_second']:,.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    again = result["bare_emulator_again"]
    told = f"\nBare emulator: {bare:,.0f} steps/s before, {again:,.0f} after. {measured_on(result)}"
    return "\n".join([SPEED_HEAD, *lines, SPEED_AIM.rstrip(), told])


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
        "| algorithm | updates | million frames | seconds | Adam's epsilon | centre | thousand states | score while "
        "learning | mean | median |"
    ]
    lines += ["|---|--:|--:|--:|--:|---|--:|--:|--:|--:|"]
    for r in results:
        last, played = r["curve"][-1], r["evaluation"]
        low, high = played["interval"]
        cells = [f"{NAMES[r['algo']]}, seed {r['seed']}", f"{updates_of(r):,}"]
        cells += [
            f"{4 * last['states'] / 1e6:.1f}",
            f"{r['seconds']:,.0f}",
            f"{r['settings']['learner']['adam_epsilon']:g}",
            centre_of(r),
            f"{r['settings']['replay']['states'] / 1000:,.0f}",
        ]
        cells += [f"{last['score']:.1f}", f"{played['mean']:.1f} ({low:.1f} to {high:.1f})", f"{played['median']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def updates_of(result):
    return result.get("updates", result["settings"]["pace"]["updates"])


def centre_of(result):
    return "policy" if result["algo"] == "rbi" and result["settings"]["learner"]["centres"] == "pi" else "mean"


def states_of(result):
    return f"{result['settings']['replay']['states'] / 1e6:g} M"


def learning_results():
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("learning-breakout-*.json"))]
    return sorted(found, key=lambda r: (r["algo"] != "rbi", -updates_of(r), r["seed"]))


def iterative_part(load, measured_on):
    """Markdown of everything that has been measured."""
    parts = []
    if cuda := load("engine-cuda.json"):
        parts.append(engine_speed(cuda, measured_on))
    if cpu := load("engine-cpu.json"):
        parts.append(peer_speed(cpu, measured_on))
    if results := learning_results():
        commands = "\n".join(f"- {measured_on(r)}" for r in results)
        parts += [LEARNING_HEAD, learned(results), LEARNING_TELLS, commands]
    for size in ("", "-40k", "-56k", "-110k"):
        name = f"ablation-breakout{size}.json"
        if variants := load(name):
            parts.append(ablation(variants, measured_on))
    if seen := load("sight-breakout.json"):
        parts.append(sight(seen, measured_on))
    return parts


def draw_learning(path):
    with plt.rc_context(LOOK):
        figure = plt.figure(figsize=(5.6, 3.2), layout="constrained")
        panel = figure.subplots()
        for look, r in zip(LINES, learning_results(), strict=False):
            points = [p for p in r["curve"] if p["score"] is not None]
            frames = np.array([4 * p["states"] / 1e6 for p in points])
            epsilon = r["settings"]["learner"]["adam_epsilon"]
            name = f"{NAMES[r['algo']]}, {epsilon:g}, {centre_of(r)}, {states_of(r)}"
            panel.plot(frames, [p["score"] for p in points], label=name, **look)
            low, high = ([p[k] for p in points] for k in ("score_low", "score_high"))
            panel.fill_between(frames, low, high, color=look["color"], alpha=0.13, linewidth=0)
        panel.set(xlabel="million frames", ylabel="score while learning")
        told = "algorithm, Adam's epsilon, centre of the advantages, states of the replay"
        panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, title=told)
        figure.savefig(path, dpi=130)
        plt.close(figure)
