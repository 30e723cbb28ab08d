"""What held Breakout: networks learn games by heart, unless the pictures are shifted.

python -m benchmarks.by_heart runs/breakout        four networks after each other; half an hour on a core

The policy of a run plays games, and networks learn to tell from pictures what came of each moment. Some games are held
out. What a network tells of these it has understood; what it can tell of the others alone it knows by heart.
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
from rbi.networks import drawn
from rbi.observations import random_shifts
from rbi.returns import CONTINUES

RESULTS = Path(__file__).parent / "results"
GAMES, HELD_OUT, STEPS, SETTLED = 32, 8, 1000, 150  # returns of the last moments are not known in full
GAMMA, BATCH, LOOKS, TOLD = 0.99, 64, 4, 1000
PUPILS = (("none", 0), ("layer", 0), ("none", 4), ("layer", 4))  # norm and shift
RATE = 2.5e-4


def played(policy, steps, games):
    """Frames `[steps, games, ...]` of games that the policy plays, how old each is, and what came of it."""
    world, rng = make(EnvConfig(policy.env), games, 1, synchronous=True), np.random.default_rng(0)
    seen, stack = world.reset(0), np.zeros((games, policy.obs_spec.stack, *policy.obs_spec.shape), np.uint8)
    frames = np.zeros((steps, games, *policy.obs_spec.shape), np.uint8)
    age, reward, end = np.zeros((steps, games), int), np.zeros((steps + 1, games)), np.zeros((steps + 1, games), int)
    for t in range(steps):
        stack[seen.is_first] = 0
        stack = np.concatenate([stack[:, 1:], seen.obs[:, None]], 1)
        frames[t], age[t] = seen.obs, np.where(seen.is_first, 0, age[t - 1] + 1)
        world.send(policy.act(stack, rng))
        seen = world.recv()
        reward[t], end[t] = np.clip(seen.reward, -1, 1), seen.end
    world.close()
    returns = np.zeros((steps + 1, games))
    for t in range(steps - 1, -1, -1):
        returns[t] = reward[t] + GAMMA * np.where(end[t] == CONTINUES, returns[t + 1], 0)
    return frames, age, returns


def taught(obs_spec, shown, norm, shift, lessons):
    """How much of the returns' variance a network explains, in games that it was shown and in others, on the way."""
    frames, age, returns = shown
    states = [(t, i) for t, i in np.argwhere(age >= obs_spec.stack - 1) if t < len(frames) - SETTLED]
    known, held = [k for k in states if k[1] < GAMES - HELD_OUT], [k for k in states if k[1] >= GAMES - HELD_OUT]
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    pupil = drawn(obs_spec, 512, with_pi=False, seed=1, norm=norm).q
    adam = torch.optim.Adam(pupil.parameters(), lr=RATE)

    def look(keys):
        return torch.from_numpy(np.stack([frames[t - obs_spec.stack + 1 : t + 1, i] for t, i in keys]))

    def value(pictures, moves=None):
        return pupil(obs_spec.preprocess(pictures, torch.float32, moves))[1]

    def explained(keys):
        keys = [keys[k] for k in rng.choice(len(keys), TOLD, replace=False)]
        with torch.no_grad():
            told = torch.cat([value(look(keys[at : at + 250])) for at in range(0, TOLD, 250)]).numpy()
        goal = np.array([returns[k] for k in keys])
        return round(1 - float(np.square(goal - told).mean() / goal.var()), 3)

    curve, order = [], []
    for lesson in range(1, lessons + 1):
        if len(order) < BATCH:
            order = rng.permutation(len(known)).tolist()  # each state once, before any comes again
        keys = [known[order.pop()] for _ in range(BATCH)]
        moves = random_shifts(BATCH, shift, generator) if shift else None
        error = value(look(keys), moves) - torch.tensor([returns[k] for k in keys], dtype=torch.float32)
        adam.zero_grad()
        error.square().mean().backward()
        adam.step()
        if lesson % (lessons // LOOKS) == 0:
            passes = round(lesson * BATCH / len(known), 2)
            found = {"lessons": lesson, "passes": passes, "shown": explained(known), "held_out": explained(held)}
            curve.append(found)
            print(norm, shift, found, flush=True)
    return {"norm": norm, "shift": shift, "states": len(known), "curve": curve}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy", type=Path)
    parser.add_argument("--lessons", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    policy = rbi.load_policy(asked.policy)
    shown = played(policy, STEPS, GAMES)
    told = {"command": "python -m benchmarks.by_heart RUN", "machine": machine(), "policy": policy.about, "rate": RATE}
    told |= {"games": GAMES - HELD_OUT, "held_out": HELD_OUT}
    told["taught"] = [taught(policy.obs_spec, shown, *pupil, asked.lessons) for pupil in PUPILS]
    (asked.out / "by-heart-breakout.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
