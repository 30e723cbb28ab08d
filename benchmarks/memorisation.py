"""Do networks memorise the images of a fixed set of games, and does random-shift augmentation prevent it?

python -m benchmarks.memorisation runs/breakout        four networks in turn; half an hour on one core

The policy of a run plays some games. Networks are trained to predict the return from the images; some games are a
test set. Explained variance on the test games is generalisation, what is higher on the training games is memorised.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import rbi
from benchmarks.timing import machine
from rbi.envs import make
from rbi.envs.types import EnvConfig
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import random_shifts
from rbi.steps import CONTINUES

RESULTS = Path(__file__).parent / "results"
GAMES, TEST_GAMES, STEPS, TAIL = 32, 8, 1000, 150  # the last steps are not used: their returns are incomplete
GAMMA, BATCH_SIZE, EVALUATIONS, EVALUATED_STATES = 0.99, 64, 4, 1000
NETWORKS = (("none", 0), ("layer", 0), ("none", 4), ("layer", 4))  # norm, augmentation in pixels
LEARNING_RATE = 2.5e-4


def play(policy, steps, games):
    """Frames `[steps, games, ...]` of games that the policy plays, their age in the episode, and their returns."""
    env, rng = make(EnvConfig(policy.env), games, 1, synchronous=True), np.random.default_rng(0)
    now, stack = env.reset(0), np.zeros((games, policy.obs_spec.stack, *policy.obs_spec.shape), np.uint8)
    frames = np.zeros((steps, games, *policy.obs_spec.shape), np.uint8)
    age, reward, end = np.zeros((steps, games), int), np.zeros((steps + 1, games)), np.zeros((steps + 1, games), int)
    for t in range(steps):
        stack[now.is_first] = 0
        stack = np.concatenate([stack[:, 1:], now.obs[:, None]], 1)
        frames[t], age[t] = now.obs, np.where(now.is_first, 0, age[t - 1] + 1)
        env.send(policy.act(stack, rng))
        now = env.recv()
        reward[t], end[t] = np.clip(now.reward, -1, 1), now.end
    env.close()
    returns = np.zeros((steps + 1, games))
    for t in range(steps - 1, -1, -1):
        returns[t] = reward[t] + GAMMA * np.where(end[t] == CONTINUES, returns[t + 1], 0)
    return frames, age, returns


def train(obs_spec, played, norm, augmentation, batches):
    """The explained variance of the returns, in training and in test games, at a few points of training."""
    frames, age, returns = played
    states = [(t, i) for t, i in np.argwhere(age >= obs_spec.stack - 1) if t < len(frames) - TAIL]
    training = [k for k in states if k[1] < GAMES - TEST_GAMES]
    test = [k for k in states if k[1] >= GAMES - TEST_GAMES]
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    network = make_networks(obs_spec, NetworkConfig(512, norm), 1, with_policy=False).q
    adam = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)

    def stacks(keys):
        return torch.from_numpy(np.stack([frames[t - obs_spec.stack + 1 : t + 1, i] for t, i in keys]))

    def value(images, shifts=None):
        return network(obs_spec.preprocess(images, torch.float32, shifts))[1]

    def explained_variance(keys):
        keys = [keys[k] for k in rng.choice(len(keys), EVALUATED_STATES, replace=False)]
        with torch.no_grad():
            predicted = torch.cat(
                [value(stacks(keys[at : at + 250])) for at in range(0, EVALUATED_STATES, 250)]
            ).numpy()
        target = np.array([returns[k] for k in keys])
        return round(1 - float(np.square(target - predicted).mean() / target.var()), 3)

    curve, order = [], []
    for batch in range(1, batches + 1):
        if len(order) < BATCH_SIZE:
            order = rng.permutation(len(training)).tolist()  # every state once per pass
        keys = [training[order.pop()] for _ in range(BATCH_SIZE)]
        shifts = random_shifts(BATCH_SIZE, augmentation, generator) if augmentation else None
        error = value(stacks(keys), shifts) - torch.tensor([returns[k] for k in keys], dtype=torch.float32)
        adam.zero_grad()
        error.square().mean().backward()
        adam.step()
        if batch % (batches // EVALUATIONS) == 0:
            passes = round(batch * BATCH_SIZE / len(training), 2)
            scores = {"train": explained_variance(training), "test": explained_variance(test)}
            curve.append({"batches": batch, "passes": passes, **scores})
            print(norm, augmentation, curve[-1], flush=True)
    return {"norm": norm, "augmentation": augmentation, "states": len(training), "curve": curve}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", type=Path)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    policy = rbi.load_policy(args.policy)
    played = play(policy, STEPS, GAMES)
    result = {
        "command": "python -m benchmarks.memorisation RUN",
        "machine": machine(),
        "policy": policy.metadata,
        "learning_rate": LEARNING_RATE,
        "games": GAMES - TEST_GAMES,
        "test_games": TEST_GAMES,
        "networks": [train(policy.obs_spec, played, *network, args.batches) for network in NETWORKS],
    }
    (args.out / "memorisation-breakout.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
