"""Breakout from RAM instead of images, and how fast convolutions learn to locate objects.

python -m benchmarks.ram_observations --seconds 1440       two runs, then nine networks; an hour or two on one core

With RAM observations ball, paddle and bricks are exact and a small network suffices; everything else is as with images.
Separately, the convolutional trunk is trained to regress the positions of ball and paddle from frame stacks.
"""

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from ale_py import ALEInterface, LoggerMode, roms
from torch import nn
from torch.nn import functional

from benchmarks.engine import VARIANTS
from benchmarks.timing import machine
from rbi.envs.types import TimeStep
from rbi.evaluation.scripted import breakout
from rbi.networks import NetworkConfig, Trunk, dense_relu
from rbi.observations import ObservationSpec
from rbi.online.config import GROUPS, PAPER_MAX_FRAMES, TrainConfig
from rbi.online.engine import LocalEngine
from rbi.steps import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED

RESULTS = Path(__file__).parent / "results"
SKIP = 4
BALL_X, BALL_Y, PADDLE, BRICKS = 99, 101, 72, 36  # RAM addresses; bricks are bits of the first bytes
RUNS = {"priorities": "base", "uniform": "uniform"}
NUM_ENVS, EVERY = 64, 60  # seconds between two reports
OBS_SPEC = ObservationSpec((84, 84), 4, 4)
NETWORKS, LEARNING_RATES = ("plain", "he", "layer norm"), (1e-4, 2.5e-4, 5e-4)
BATCHES, BATCH_SIZE, EVALUATIONS = 900, 64, 6
MIDDLE, SCALE = np.array([127, 110, 120], np.float32), 50  # regression targets: (position - middle) / scale


def game(seed):
    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path("breakout"))
    return ale


class RamBreakout:
    """Breakout with observations from RAM, as a `VectorEnv`."""

    obs_shape, frame_stack, num_actions, has_action_masks, pending = (BRICKS + 4,), 4, 4, False, False

    def __init__(self, num_envs, seed):
        self.rng = np.random.default_rng(seed)
        self.num_envs, self.games = num_envs, [game(int(s)) for s in self.rng.integers(2**31, size=num_envs)]
        self.moves = self.games[0].getMinimalActionSet()

    def start(self, ale):
        """A new game: up to 30 no-ops, then the serve."""
        ale.reset_game()
        for _ in range(int(self.rng.integers(1, 31))):
            ale.act(self.moves[0])
        ale.act(self.moves[1])

    def observe(self):
        ram = np.stack([ale.getRAM() for ale in self.games])
        ball = ram[:, BALL_Y] > 0
        x, y, paddle = (ram[:, at].astype(np.float32) for at in (BALL_X, BALL_Y, PADDLE))
        near = [ball * (x - 127) / 25, ball * (y - 110) / 25, ball, (paddle - 120) / 25]
        bricks = np.unpackbits(ram[:, :BRICKS, None], axis=2).sum(2) / 8
        return np.concatenate([np.stack(near, 1), bricks], 1).astype(np.float32)

    def reset(self, _seed):
        for ale in self.games:
            self.start(ale)
        self.lives, self.over = np.array([ale.lives() for ale in self.games]), np.zeros(self.num_envs, bool)
        self.first = np.ones(self.num_envs, bool)
        self.reward, self.end = np.zeros(self.num_envs, np.float32), np.full(self.num_envs, CONTINUES, np.uint8)
        return self.recv()

    def send(self, actions):
        self.pending, self.first = True, self.over.copy()
        self.reward, self.end = np.zeros(self.num_envs, np.float32), np.full(self.num_envs, CONTINUES, np.uint8)
        for i, ale in enumerate(self.games):
            if self.first[i]:
                self.start(ale)
            else:
                self.reward[i] = sum(ale.act(self.moves[actions[i]]) for _ in range(SKIP))
                self.end[i] = self.ended(ale, self.lives[i])
            self.lives[i] = ale.lives()
        self.over = np.isin(self.end, (TERMINATED, TRUNCATED))

    def ended(self, ale, lives):
        if ale.game_over():
            return TERMINATED
        if ale.getEpisodeFrameNumber() >= PAPER_MAX_FRAMES:
            return TRUNCATED
        return LIFE_LOST if ale.lives() < lives else CONTINUES

    def recv(self):
        self.pending = False
        return TimeStep(self.observe(), self.first, self.reward, self.end, np.ones((self.num_envs, 0), bool))


def from_ram(change, seconds):
    """Learning curve of RBI with the settings of `fast`, except for the size of the networks and the learning rate."""
    config = TrainConfig.preset("ALE/Breakout-v5", "rbi", "fast")
    schedule = replace(
        config.schedule, updates=600_000, num_envs=NUM_ENVS, hidden_size=256, learning_starts=20_000, norm="none"
    )
    config = replace(config, schedule=schedule, learner=replace(config.learner, final_lr_fraction=1.0))
    envs = [RamBreakout(NUM_ENVS // GROUPS, group) for group in range(GROUPS)]
    engine = LocalEngine(config.changed(**VARIANTS[change]), 0, torch.device("cpu"), envs)
    start, curve = time.perf_counter(), []
    for _ in engine.run():
        past = time.perf_counter() - start
        if past > EVERY * (len(curve) + 1):
            metrics = engine.metrics()
            curve.append({"seconds": round(past)} | {k: metrics[k] for k in ("updates", "states", "score", "q")})
            print(change, curve[-1], flush=True)
        if past > seconds:
            return curve
    return curve


def record(steps=1500, games=8):
    """Frames `[steps, games, 84, 84]`, positions of ball and paddle, and the age of each frame in its episode."""
    rng, all_games = np.random.default_rng(0), [game(seed) for seed in range(games)]
    high, wide = area_matrix(210, 84), area_matrix(160, 84)
    moves = all_games[0].getMinimalActionSet()
    frames, where = np.zeros((steps, games, 84, 84), np.uint8), np.zeros((steps, games, 3), np.float32)
    age = np.zeros((steps, games), int)
    for t in range(steps):
        chosen = breakout(frames[t - 2 : t].swapaxes(0, 1)) if t > 1 else np.ones(games, int)
        chosen = np.where(rng.random(games) < 0.15, rng.integers(4, size=games), chosen)
        for i, ale in enumerate(all_games):
            age[t, i] = 0 if ale.game_over() or t == 0 else age[t - 1, i] + 1
            if ale.game_over():
                ale.reset_game()
            shown = [(ale.act(moves[chosen[i]]), ale.getScreenGrayscale())[1] for _ in range(SKIP)]
            frames[t, i] = np.round(high @ np.maximum(*shown[-2:]).astype(np.float32) @ wide.T)
            where[t, i] = ale.getRAM()[[BALL_X, BALL_Y, PADDLE]]
    return frames, where, age


def area_matrix(size, to):
    """Area-averaging matrix from `size` to `to` pixels."""
    edges = np.arange(to + 1) * size / to
    low, high = edges[:-1, None], edges[1:, None]
    pixel = np.arange(size)
    return (np.clip(np.minimum(high, pixel + 1) - np.maximum(low, pixel), 0, None) * to / size).astype(np.float32)


class PositionNet(nn.Module):
    """The trunk of the online networks and a hidden layer, with three outputs."""

    def __init__(self, network):
        super().__init__()
        self.norm = "layer" if network == "layer norm" else "none"
        self.trunk = Trunk(OBS_SPEC, NetworkConfig(512, self.norm))
        self.hidden, self.out = nn.Linear(self.trunk.out_features, 512), nn.Linear(512, 3)
        if network == "he":
            for weight, bias in zip(
                (*(layer.weight for layer in self.trunk.layers), self.hidden.weight),
                (*self.trunk.biases, self.hidden.bias),
                strict=True,
            ):
                nn.init.kaiming_normal_(weight)
                nn.init.zeros_(bias)

    def forward(self, seen):
        return self.out(dense_relu(self.trunk(seen), self.hidden.weight, self.hidden.bias, self.norm))


def regress(network, learning_rate, recorded, batches):
    """Root mean square errors in pixels on a test game, at several points of training."""
    frames, where, age = recorded
    states = [(t, i) for t, i in np.argwhere(age >= 3) if where[t, i, 1] > 0]
    test = [k for k in states if k[1] == frames.shape[1] - 1][:1000]
    states = [k for k in states if k[1] != frames.shape[1] - 1]

    def examples(keys):
        stacks = np.stack([frames[t - 3 : t + 1, i] for t, i in keys])
        goal = np.stack([(where[t, i] - MIDDLE) / SCALE for t, i in keys])
        return OBS_SPEC.preprocess(torch.from_numpy(stacks), torch.float32), torch.from_numpy(goal)

    torch.manual_seed(0)
    net, rng, curve = PositionNet(network), np.random.default_rng(2), []
    adam, (held, goal_held) = torch.optim.Adam(net.parameters(), lr=learning_rate), examples(test)
    for batch in range(1, batches + 1):
        seen, goal = examples([states[k] for k in rng.integers(len(states), size=BATCH_SIZE)])
        adam.zero_grad()
        functional.mse_loss(net(seen), goal).backward()
        adam.step()
        if batch % (batches // EVALUATIONS) == 0:
            with torch.no_grad():
                off = torch.cat([net(part) for part in held.split(250)]) - goal_held
            x, y, paddle = (SCALE * off.square().mean(0).sqrt()).tolist()
            curve.append({"batches": batch, "ball_x": round(x, 1), "ball_y": round(y, 1), "paddle": round(paddle, 1)})
            print(network, learning_rate, curve[-1], flush=True)
    return {"network": network, "learning_rate": learning_rate, "curve": curve}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1440.0, help="of each run from RAM")
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result = {"command": f"python -m benchmarks.ram_observations --seconds {args.seconds:g}", "machine": machine()}
    result["from_ram"] = {name: from_ram(change, args.seconds) for name, change in RUNS.items()}
    recorded = record()
    result["regression"] = [
        regress(network, rate, recorded, args.batches) for network, rate in itertools.product(NETWORKS, LEARNING_RATES)
    ]
    (args.out / "ram-observations-breakout.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
