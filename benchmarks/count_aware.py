"""The rule count_aware with function approximation: rules of one `rbi.improve` on worlds whose states all differ.

python -m benchmarks.count_aware              runs what is missing of all worlds, sizes and seeds
python -m benchmarks.count_aware --seeds 2    only these seeds

The networks are fitted once per log; rules differ in the step from beta and Q to pi. Values are true: exact rewards of
new contexts, or episodes of the game. Visits are pseudo-counts (`rbi.data.visits.PseudoCounts`), since no state of a
log occurs twice, except in the world with 200 states: there they are counted with 5,000 rows.
"""

import argparse
import functools
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import rbi
from benchmarks.coverage import CARTPOLE_STEPS, PLAYERS, cartpole_step, draw_actions
from benchmarks.tables import load, measured_on
from benchmarks.timing import machine
from rbi import fileio
from rbi.data.dataset import Dataset

RESULT = Path(__file__).parent / "results" / "count-aware.json"
RULES = (
    "reroute(0.5,1.5)", "reroute(0,2)", "count_aware(0.1)", "count_aware(0.25)", "count_aware(0.5)", "greedy",
)  # fmt: skip
SEEDS = 10
TEST_STATES = 4000
EPISODES = 2000  # simulated for a value
GAMES = 40  # of Breakout for a value
EXAMPLES = Path(__file__).parents[1] / "examples"


def features(seed, n):
    """Five features, six actions with very unequal probabilities, normal noise as large as the spread of rewards."""
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=(5, 16)), rng.normal(size=(16, 6)) / 4
    weights, bias = rng.normal(size=(5, 6)) / 2, 2 * rng.normal(size=6)

    def mean(x):
        return np.tanh(x @ first) @ second

    def beta(x):
        logits = x @ weights + bias + 0.5 * mean(x)
        probs = np.exp(logits - logits.max(1, keepdims=True))
        return probs / probs.sum(1, keepdims=True)

    return contexts(rng, n, lambda size: rng.normal(size=(size, 5)), mean, beta)


def states(seed, n):
    """200 states by the bits of their numbers, three actions, binary rewards (as in the coverage table)."""
    rng = np.random.default_rng(seed)
    probs, means = rng.dirichlet(np.ones(3), 200), rng.random((200, 3))
    codes = (np.arange(200)[:, None] >> np.arange(8)) & 1

    def number(x):
        return (x @ (1 << np.arange(8))).astype(int)

    draw = lambda size: codes[rng.integers(0, 200, size)]  # noqa: E731
    return contexts(rng, n, draw, lambda x: means[number(x)], lambda x: probs[number(x)], binary=True)


def contexts(rng, n, draw, mean, beta, *, binary=False):
    """A log of one-step episodes, and the gain of a policy: exact rewards of new contexts."""
    x = draw(n).astype(np.float32)
    probs = beta(x)
    actions = draw_actions(rng, probs).clip(0, probs.shape[1] - 1)
    expected = mean(x)[np.arange(n), actions]
    rewards = rng.random(n) < expected if binary else expected + rng.normal(size=n)
    data = Dataset.from_arrays(x, actions, rewards, np.ones(n, bool), action_probs=probs[np.arange(n), actions])
    new = draw(TEST_STATES).astype(np.float32)
    old, best = float((beta(new) * mean(new)).sum(1).mean()), float(mean(new).max(1).mean())

    def gain(policy):
        return (float((policy.predict_proba(new) * mean(new)).sum(1).mean()) - old) / (best - old)

    return data, gain


def cartpole(seed, n):
    """CartPole for 30 steps by two players of different skill, neither of whose probabilities are logged."""
    rng = np.random.default_rng(seed)
    obs, actions, alive = play(rng, n, lambda state, player: good_push(state, PLAYERS[player]))
    rows = [(obs[:, i][alive[:, i]], actions[:, i][alive[:, i]]) for i in range(n)]
    ends = np.concatenate([np.arange(len(each)) == len(each) - 1 for _, each in rows])
    x, taken = (np.concatenate(column) for column in zip(*rows, strict=True))
    data = Dataset.from_arrays(x.astype(np.float32), taken, np.ones(len(taken)), ends)
    old = play(np.random.default_rng(0), EPISODES, lambda s, player: good_push(s, PLAYERS[player]))[2].sum(0).mean()

    def gain(policy):
        probs = lambda state, _: policy.predict_proba(state.astype(np.float32))[:, 1]  # noqa: E731
        new = play(np.random.default_rng(0), EPISODES, probs)[2].sum(0).mean()
        return float((new - old) / (CARTPOLE_STEPS - old))

    return data, gain


def good_push(state, probability):
    """The probability of pushing to the right where the push against the fall has a probability."""
    return np.where(state[..., 2] + 0.5 * state[..., 3] > 0, probability, 1 - probability)


def play(rng, n, right):
    """Observations, actions and whether the pole stands, `[T, N, ...]`, of a policy's probability of the right push."""
    player, state, stands = rng.integers(0, 2, n), rng.uniform(-0.05, 0.05, (n, 4)), np.ones(n, bool)
    seen = []
    for _ in range(CARTPOLE_STEPS):
        push = rng.random(n) < right(state, player)
        seen.append((state, push.astype(np.int64), stands))
        following, still = cartpole_step(state, push)
        stands = stands & still
        state = np.where(stands[:, None], following, state)
    return [np.stack(column) for column in zip(*seen, strict=True)]


@functools.cache
def breakout_scores():
    """Mean scores of the four players of examples/breakout.py together, and of one that never acts at random."""
    game = breakout_example()
    env, rng = game.gymnasium.make("BreakoutPositions-v0"), np.random.default_rng(SEEDS)
    scores = [
        np.mean([game.record_episode(env, epsilon, rng).score for epsilon in epsilons * (GAMES // len(epsilons))])
        for epsilons in (game.EPSILONS, (0.0,))
    ]
    env.close()
    return scores


def breakout_example():
    """The module that Gymnasium imports to make its environment."""
    sys.path[:0] = [str(EXAMPLES)] * (str(EXAMPLES) not in sys.path)
    import breakout

    return breakout


def breakout(seed, n):
    """Atari's Breakout by four players who follow the ball, and act at random with probabilities from 0.2 to 0.6."""
    game, folder = breakout_example(), tempfile.TemporaryDirectory()
    game.main(f"{folder.name}/population", n, seed)
    old, best = breakout_scores()

    def gain(policy, _data=folder):  # which is there as long as this function
        score = rbi.evaluate(policy, game.ENV, episodes=GAMES, seed=seed, device="cpu", progress=False).mean
        return float((score - old) / (best - old))

    return f"{folder.name}/population", gain


WORLDS = {
    "five features, six actions": (features, (300, 1000, 3000)),
    "200 states, three actions": (states, (300, 1000, 5000)),
    "CartPole, two players": (cartpole, (10, 30, 100)),
    "Atari's Breakout, four players": (breakout, (12,)),
}


def run(name, n, seed):
    """The gain of every rule on one log, as a share of what the best policy gains."""
    world, _ = WORLDS[name]
    data, gain = world(seed, n)
    start = time.process_time()
    policy = rbi.improve(data, "count_aware(0.1)", seed=seed, progress=False, device="cpu").policy
    gains = {rule: gain(policy.with_rule(rbi.parse_rule(rule, counts=True))) for rule in RULES}
    return {"world": name, "n": n, "seed": seed, "gains": gains, "seconds": time.process_time() - start}


PAGE = """
## Count-aware reroute with function approximation

`rbi improve` on worlds whose values are known, or measured in the game ({games} episodes per policy); rules on the same
networks. Each cell: mean gain over the logs as a share of what the best policy gains over beta (in Breakout: a player
that always follows the ball), the worst log's, and the share of logs in which the policy is worse than beta. In all
worlds but the second no state occurs twice, so that visits are
[pseudo-counts](count-aware.md#beyond-tables-pseudo-counts); in the second they are counted with 5,000 rows and
pseudo-counts with fewer.

| world | rows or episodes | logs | {rules} |
|---|--:|--:|{columns}|"""


def page_part():
    """The section of docs/results.md, if it was measured."""
    result = load(RESULT.name)
    if not result:
        return []
    rules = " | ".join(f"`{rule}`" for rule in RULES)
    lines = [PAGE.format(games=GAMES, rules=rules, columns="--:|" * (len(RULES) - 1) + "--:")]
    for name, (_, sizes) in WORLDS.items():
        for n in sizes:
            gains = [row["gains"] for row in result["rows"] if (row["world"], row["n"]) == (name, n)]
            if not gains:
                continue
            cells = [np.array([gain[rule] for gain in gains]) for rule in RULES]
            shown = [f"{cell.mean():.2f} ({cell.min():.2f}, {(cell < -1e-9).mean():.0%})" for cell in cells]
            lines.append(f"| {name} | {n:,} | {len(gains)} | " + " | ".join(shown) + " |")
    return ["\n".join([*lines, "", measured_on(result), ""])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    for seed in range(args.seeds):
        for name in args.worlds:
            for n in WORLDS[name][1]:
                if any((row["world"], row["n"], row["seed"]) == (name, n, seed) for row in rows):
                    continue
                rows.append(run(name, n, seed))
                found = {"command": "python -m benchmarks.count_aware", "machine": machine(), "rows": rows}
                RESULT.write_text(fileio.to_json(found, indent=1) + "\n")
                gains = ", ".join(f"{rule} {gain:.3f}" for rule, gain in rows[-1]["gains"].items())
                print(f"{name}, {n}, seed {seed}: {gains}", flush=True)


if __name__ == "__main__":
    main()
