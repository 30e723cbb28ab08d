"""Scores of RBI and Ape-X on Atari games: a table of cells (game, algorithm, variant, seed), one JSON file each.

python -m benchmarks.atari --minutes 9                   runs cells of the twelve games that are missing and fit in
python -m benchmarks.atari --suite tuning --seeds 0 1    the games that settings are chosen on
python -m benchmarks.atari --suite pong tuning           one after the other: short cells fill what is left of the time
python -m benchmarks.atari --status                      shows which cells are there

A cell is written when it is complete, so any number of short runs add up. Environments are made once per game.
"""

import argparse
import dataclasses
import gc
import itertools
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.engine import VARIANTS, drain
from benchmarks.timing import machine
from rbi import envs, fileio
from rbi.evaluation.comparison import human_normalised
from rbi.evaluation.rollouts import Protocol, VectorEvaluator
from rbi.online.config import GROUPS, PAPER_GAMES, PARTS, TrainConfig
from rbi.online.engine import LocalEngine
from rbi.rules.types import Behavior, Reroute
from rbi.statistics import describe

RESULTS = Path(__file__).parent / "results" / "atari"
POINTS = 40  # of a learning curve
EPISODES = 32
OTHER_C_MINS = {"c_min_0": 0.0, "c_min_0.01": 0.01}  # that RBI's policies are evaluated with, if asked for
MAX_IDLE_FRAMES = 18_000  # five minutes of play without a reward: such an episode is over
OTHER_POLICIES = {  # of the same run, as result files name them, and what they are
    "deterministic": "most probable actions",
    **{name: f"c_min = {c_min:g}" for name, c_min in OTHER_C_MINS.items()},
    "policy_net": "policy network alone",
}
EVAL_SHARE = 0.35  # evaluation plays at most this share of the frames of training
FRAME_SKIP, MILLION = 4, 1_000_000
START_SECONDS, SECONDS_PER_MILLION = 30, 20  # of a cell, where none was measured yet
MARGIN = 1.1  # of estimated durations
STARTED = time.monotonic()


@dataclass(frozen=True)
class Cell:
    """One training run and the evaluation of its policy."""

    game: str
    algo: str
    variant: str
    seed: int
    frames: int

    @property
    def name(self):
        return f"{self.game}-{self.frames / MILLION:g}m-{self.algo}-{self.variant}-seed{self.seed}"

    @property
    def command(self):
        cell = f"--games {self.game} --algos {self.algo} --variants {self.variant} --seeds {self.seed}"
        return f"python -m benchmarks.atari {cell} --frames {self.frames / MILLION:g}"

    def config(self, **changes):
        """The preset `fast` with the variant's settings, for as many updates as there are frames."""
        base = TrainConfig.preset(f"ALE/{self.game}-v5", self.algo, "fast", **VARIANTS[self.variant], **changes)
        per_sample = base.learner.updates_per_sample
        updates = self.frames / FRAME_SKIP / base.schedule.states_per_update
        return base.changed(updates=max(1, round(updates / per_sample)) * per_sample)


@dataclass(frozen=True)
class Suite:
    """Games, (algorithm, variant) pairs and seeds that are compared at one number of frames."""

    games: tuple[str, ...]
    entries: tuple[tuple[str, str], ...]
    seeds: tuple[int, ...]
    frames: int
    ended: tuple[tuple[str, str], ...] = ()
    """Pairs that are shown and get no further runs: an earlier preset, and settings that lost."""

    def cells(self):
        """All runs of the suite, without those of pairs that have ended."""
        return [
            Cell(game, algo, variant, seed, self.frames)
            for game, seed, (algo, variant) in itertools.product(self.games, self.seeds, self.entries)
        ]


BOTH = (("rbi", "base"), ("apex", "base"))
FROM_LATEST = tuple(("rbi", f"latest{rest}") for rest in ("", "-cmin0", "-cmin.01", "-cmax2-greedy.01"))
SUITES = {
    "twelve": Suite(PAPER_GAMES, BOTH, (0, 1, 2), 10 * MILLION, ended=(("rbi", "latest"),)),
    "tuning": Suite(
        ("Assault", "Phoenix", "BeamRider", "Pong"),  # none of them is among the twelve
        (*BOTH, ("rbi", "cmax2"), ("apex", "n5")),
        (0, 1, 2),
        4 * MILLION,
        ended=(*FROM_LATEST, ("rbi", "latest-cmax2"), ("rbi", "stored"), ("rbi", "stored-cmax2")),
    ),
    "pong": Suite(("Pong",), (*BOTH, ("rbi", "cmax2")), (0, 1, 2), 10 * MILLION, ended=FROM_LATEST),
    "long": Suite(("Breakout", "Seaquest", "SpaceInvaders"), BOTH, (0,), 50 * MILLION),
}


# Results


def load_cells(folder=RESULTS):
    """The results of all cells that are complete, by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def save_cell(folder, cell, result):
    """Write a result atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    fileio.atomic_write(folder / f"{cell.name}.json", lambda at: at.write_text(fileio.to_json(result) + "\n"))


def in_order(missing, done):
    """Missing cells, game by game: those games first of which the fewest cells are there."""
    count = {cell.game: sum(result["game"] == cell.game for result in done.values()) for cell in missing}
    games = list(count)
    return sorted(missing, key=lambda cell: (count[cell.game], games.index(cell.game)))


def measured_alike(done, about):
    """Results of such a machine, which was not shared."""
    kind = about["gpu"], about["cores"]
    return [r for r in done.values() if not r.get("shared") and (r["machine"]["gpu"], r["machine"]["cores"]) == kind]


def expected_seconds(cell, done, about, *, opened=False, training_time=1.0):
    """How long a cell takes: as the slowest measured on such a machine in this game, or nearly the slowest in others.

    Evaluation does not grow with the frames: where runs of the game had as many frames, only they count.
    `opened`: whether the environments of the game are there already; `training_time`: that of this machine, relative to
    the slowest that was measured.
    """
    alike = measured_alike(done, about)
    alike = [r for r in alike if r["game"] == cell.game] or alike
    alike = [r for r in alike if r["frames"] == cell.frames] or alike
    if not alike:
        return START_SECONDS + SECONDS_PER_MILLION * cell.frames / MILLION
    choose = min if opened else max
    starts = choose(r["seconds"]["environments"] + r["seconds"]["start"] for r in alike)
    paces = sorted((training_time * r["seconds"]["training"] + r["seconds"]["evaluation"]) / r["frames"] for r in alike)
    pace = paces[-1 if alike[0]["game"] == cell.game else math.ceil(0.9 * (len(paces) - 1))]
    return MARGIN * (starts + pace * cell.frames)


def relative_training_time(result, done, about):
    """Of a run: its training time relative to that of the slowest run of its game on such a machine; 1 if none is."""
    same = [r for r in measured_alike(done, about) if r["game"] == result["game"]]
    paces = [r["seconds"]["training"] / r["frames"] for r in (result, *same)]
    return paces[0] / max(paces[1:], default=paces[0])


# Running


class Games:
    """The environments of one game at a time, for training and for evaluation."""

    def __init__(self, device, episodes=EPISODES, *, policy_net=False, other_c_mins=False):
        """`policy_net`, `other_c_mins`: whether RBI's policy is evaluated without the rule, and with other c_min."""
        self.device, self.episodes, self.policy_net, self.other_c_mins = device, episodes, policy_net, other_c_mins
        self.key, self.training, self.evaluator = None, [], None

    def open(self, config, protocol):
        """Make the environments, unless they are there; returns the seconds that took."""
        start, key = time.monotonic(), (config.env, config.schedule.num_envs, protocol)
        if key == self.key:
            return 0.0
        self.close()
        on_cpu = self.device.type == "cpu"
        threads = max(1, (os.cpu_count() or 1) // (1 if on_cpu else GROUPS))
        num_envs = config.schedule.num_envs // GROUPS
        kind = {"synchronous": on_cpu, "for_gpu": not on_cpu}
        self.training = [envs.make(config.env, num_envs, threads, **kind) for _ in range(GROUPS)]
        for group in self.training:
            group.reset = seeded_once(group.reset)
        policies = 2 + len(OTHER_C_MINS) * self.other_c_mins + self.policy_net
        self.evaluator = VectorEvaluator(protocol, config.env, self.episodes * policies)
        self.key = key
        return time.monotonic() - start

    def close(self):
        drain(self.training)
        for group in self.training:
            group.close()
        if self.evaluator is not None:
            self.evaluator.close()
        self.key, self.training, self.evaluator = None, [], None


def seeded_once(reset):
    """A reset that seeds the first time only: seeding Atari games is as slow as making them."""
    seeds = []

    def reset_again(seed):
        seeds.append(seed)
        return reset(seed if len(seeds) == 1 else None)

    return reset_again


def run_cell(cell, config, games, deadline=math.inf, snapshots=0, policies=None):
    """Train and evaluate; returns the result, or None if the deadline came first.

    As many `snapshots` of the policy as asked for are saved in the folder `policies`, as those of `rbi train`.
    """
    frames = cell.frames if config.schedule.updates == cell.config().schedule.updates else frames_of(config)
    max_frames = int(min(108_000, max(4000, EVAL_SHARE * frames / games.episodes)))
    protocol = Protocol("paper", max_frames=max_frames, max_idle_frames=MAX_IDLE_FRAMES)
    seconds = {"environments": games.open(config, protocol)}
    begin = time.monotonic()
    engine, curve = LocalEngine(config, cell.seed, games.device, games.training), []
    every = max(1, config.schedule.updates // POINTS)
    due = [round(config.schedule.updates * (i + 1) / snapshots) for i in range(snapshots)]
    for _ in engine.run():
        now = time.monotonic()
        if engine.updates and "start" not in seconds:
            seconds["start"] = now - begin
        if now > deadline:
            drain(games.training)
            return None
        if engine.updates >= every * (len(curve) + 1):
            curve.append(engine.metrics() | {"seconds": now - begin})
        if len(due) > 1 and engine.updates >= due[0]:
            engine.policy().save(snapshot_folder(policies, cell, due.pop(0)))
    engine.synchronize()
    trained = time.monotonic()
    seconds["training"] = trained - begin - seconds["start"]
    drain(games.training)
    policy = engine.policy()
    if due:
        policy.save(snapshot_folder(policies, cell, due[-1]))
    states, updates = engine.states, engine.updates
    del engine
    scores = evaluate(policy, config, cell.seed, games)
    seconds["evaluation"] = time.monotonic() - trained
    return {
        **dataclasses.asdict(cell),
        "env": config.env.id,
        "frames": frames,
        "updates": updates,
        "states": states,
        "seconds": rounded(seconds),
        "steps_per_second": rounded(states / seconds["training"]),
        "settings": {part: getattr(config, part) for part in PARTS},
        "protocol": protocol.describe(config.env),
        **scores,
        "curve": rounded(curve),
    }


def snapshot_folder(policies, cell, updates):
    return policies / cell.name / f"policies/updates-{updates:08}"


def frames_of(config):
    return round(config.schedule.updates * config.schedule.states_per_update * FRAME_SKIP)


def evaluate(policy, config, seed, games):
    """Scores of the final policy; for RBI, whose policy is stochastic, also of its most probable actions and, if asked
    for, of the rule with other c_min and of its policy network without the rule. All are evaluated side by side."""
    policies = {"evaluation": policy}
    if config.algo == "rbi":
        policies["deterministic"] = most_probable(policy)
        if games.other_c_mins and isinstance(policy.rule, Reroute):
            others = {name: c_min for name, c_min in OTHER_C_MINS.items() if c_min != policy.rule.c_min}
            policies |= {name: with_c_min(policy, c_min) for name, c_min in others.items()}
        if games.policy_net and config.actor.improve_in != "learner":
            policies["policy_net"] = policy.with_rule(Behavior())
    for each in policies.values():
        each.to(games.device)
    found = {name: [] for name in policies}
    names, rng = list(policies), np.random.default_rng(seed)
    for number, episode in games.evaluator.evaluate(list(policies.values()), games.episodes, rng):
        found[names[number]].append(episode)
    return {name: summary(config.env.id, played, seed) for name, played in found.items()}


def most_probable(policy):
    """The deterministic policy that takes a policy's most probable actions."""

    def rule(beta, q, *, legal=None, **_):
        probs = policy.improve(beta, q, legal)
        return torch.zeros_like(probs).scatter_(1, probs.argmax(1, keepdim=True), 1)

    return policy.with_rule(rule)


def with_c_min(policy, c_min):
    """The policy with another c_min: what it costs a policy that no longer has to explore, or what it saves one that
    gets stuck."""
    found = policy.with_rule(dataclasses.replace(policy.rule, c_min=c_min))
    found.c_greedy = policy.c_greedy
    return found


def summary(env, played, seed):
    scores = [episode.score for episode in played]
    statistics = describe(scores, seed)
    return {
        **statistics,
        "human_normalised": human_normalised(env, statistics["mean"]),
        "truncated": sum(episode.truncated for episode in played),
        "mean_steps": float(np.mean([episode.steps for episode in played])),
        "scores": scores,
    }


def rounded(value):
    """Five significant digits, to keep the files small."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def run_cells(cells, args, device, about):
    """Run missing cells that can end in time; the first ones show how fast this machine is."""
    deadline = STARTED + 60 * args.minutes
    games = Games(device, args.episodes, policy_net=args.policy_net, other_c_mins=args.other_c_mins)
    changes = {name: getattr(args, name) for name in ("num_envs",) if getattr(args, name)}
    if args.updates:
        changes |= {"learning_starts": 1000, "capacity": 10_000}
    done, times = load_cells(args.out), []
    for cell in in_order([cell for cell in cells if cell.name not in done], done):
        opened = games.key is not None and games.key[0].id == f"ALE/{cell.game}-v5"
        training_time = min(1, MARGIN * max(times, default=1))
        expected = args.slowdown * expected_seconds(
            cell, load_cells(args.out), about, opened=opened, training_time=training_time
        )
        left = deadline - time.monotonic()
        if expected > left:
            print(f"{cell.name}: needs about {expected:.0f} s, {max(0, left):.0f} s are left", flush=True)
            continue  # another may need less
        config = cell.config(**changes)
        config = config.changed(updates=args.updates) if args.updates else config
        result = run_cell(cell, config, games, deadline, args.snapshots, args.policies)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if result is None:
            print(f"{cell.name}: not complete in time", flush=True)
            break
        shared = {"shared": True} if args.slowdown != 1 else {}
        save_cell(args.out, cell, {"command": cell.command, "machine": about} | shared | result)
        times.append(relative_training_time(result, done, about) / args.slowdown)
        report(cell, result)
    games.close()


def report(cell, result):
    more = "".join(f", {name} {result[key]['mean']:,.1f}" for key, name in OTHER_POLICIES.items() if key in result)
    times = ", ".join(f"{name} {value:.1f}" for name, value in result["seconds"].items())
    print(
        f"{cell.name}: {result['evaluation']['mean']:,.1f}{more}; {result['steps_per_second']:,.0f} steps/s; "
        f"seconds: {times}",
        flush=True,
    )


def show_status(suites, done, about):
    """One line per game and entry of each suite: mean scores of the seeds that are there."""
    for name, suite in suites.items():
        missing = [cell for cell in suite.cells() if cell.name not in done]
        hours = sum(expected_seconds(cell, done, about) for cell in missing) / 3600
        there = len(suite.cells()) - len(missing)
        print(f"{name}: {there} of {len(suite.cells())} cells, the others need about {hours:.1f} hours")
        for game, (algo, variant) in itertools.product(suite.games, suite.entries):
            cells = [Cell(game, algo, variant, seed, suite.frames).name for seed in suite.seeds]
            scores = [done[cell]["evaluation"]["mean"] for cell in cells if cell in done]
            if scores:
                print(f"  {game:15} {algo:5} {variant:15} " + " ".join(f"{score:10,.1f}" for score in scores))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=["twelve"], help="in this order")
    parser.add_argument("--games", nargs="+", help="only these games")
    parser.add_argument("--algos", nargs="+", choices=["rbi", "apex"], help="only these algorithms")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        help="only these variants; others than the suite's for each algorithm",
    )
    parser.add_argument("--seeds", nargs="+", type=int, help="only these seeds")
    parser.add_argument("--frames", type=float, help="million frames of a cell")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no cell that would end later")
    parser.add_argument(
        "--slowdown",
        type=float,
        default=1.0,
        help="how many times as long cells take because other programs share the machine; their speed then counts for "
        "nothing",
    )
    parser.add_argument("--status", action="store_true", help="show which cells are there, and run none")
    parser.add_argument("--num-envs", type=int, help="environments, for a quick trial")
    parser.add_argument("--episodes", type=int, default=EPISODES, help="evaluation episodes of every cell")
    parser.add_argument("--policy-net", action="store_true", help="evaluate RBI's policy network alone, too")
    parser.add_argument("--other-c-mins", action="store_true", help="evaluate RBI with c_min = 0 and 0.01, too")
    parser.add_argument("--updates", type=int, help="updates of every cell, for a quick trial")
    parser.add_argument("--snapshots", type=int, default=0, help="policies saved during every cell")
    parser.add_argument("--policies", type=Path, help="their folder, for benchmarks.population --run FOLDER/CELL")
    parser.add_argument("--commit", help="the commit, on a machine without the repository's history")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.snapshots and args.policies is None:
        parser.error("--snapshots: name a folder for them with --policies")
    if not args.slowdown >= 1:
        parser.error(f"--slowdown {args.slowdown:g}: must be at least 1")
    for name in ("frames", "episodes", "updates", "num_envs"):
        if (value := getattr(args, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} {value:g}: must be greater than 0")
    trial = args.updates is not None or args.num_envs is not None or args.episodes != EPISODES
    if trial and args.out == RESULTS:
        parser.error("--updates, --num-envs and --episodes make trials: name a folder for them with --out")
    about = machine(args.commit)
    if args.status:
        show_status(SUITES, load_cells(args.out), about)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for name in args.suite:
        run_cells(chosen(SUITES[name], args).cells(), args, device, about)


def chosen(suite, args):
    """A suite with the games, algorithms, variants, seeds and frames that are asked for."""
    entries = [entry for entry in suite.entries if not args.variants or entry[1] in args.variants]
    entries = entries or list(itertools.product(("rbi", "apex"), args.variants))
    return Suite(
        tuple(args.games or suite.games),
        tuple(entry for entry in entries if not args.algos or entry[0] in args.algos),
        tuple(suite.seeds if args.seeds is None else args.seeds),
        round(args.frames * MILLION) if args.frames else suite.frames,
    )


if __name__ == "__main__":
    main()
