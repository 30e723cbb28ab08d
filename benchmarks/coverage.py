"""How often lower bounds of the gain exceed the truth, and how often "deploy" is said: rightly, and unsafely.

Worlds with a known truth draw logs again and again; each cell is one world, one number of episodes and one confidence.
"missed": share of repetitions in which the lower bound exceeds the true gain, which must stay below 1 - confidence.
"deploy": share in which it exceeds 0: the power where there is a gain, an error where there is none.

    python -m benchmarks.coverage                # all cells, 1,000 repetitions each: about 15 minutes on 2 cores
    python -m benchmarks.coverage --quick        # 200 repetitions, up to 1,000 episodes
    python -m benchmarks.coverage --widths       # widths of proved bounds side by side
    python -m benchmarks.coverage --players      # players whose gains differ, with episodes or players as the unit
    python -m benchmarks.coverage --speed        # time of a decision about a million one-step episodes
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

import rbi
from benchmarks.timing import machine
from rbi.certification import bounds
from rbi.certification.monitor import difference_over_time
from rbi.lab.spi import worlds as spi_worlds
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec

RESULTS = Path(__file__).parent / "results"
SIZES, CONFIDENCES, REPETITIONS = (100, 1000, 5000, 10_000, 100_000), (0.9, 0.95), 1000
NUMBERS_AT_ONCE = 2_000_000
MOST_STEPS, LEAST_REPETITIONS = 100_000_000, 100  # of a cell; more steps have fewer repetitions
BCA_DRAWS, BCA_RESAMPLES = 30_000_000, 300  # indices of all repetitions of a cell; samples of each
WIDTHS = 20  # repetitions whose betting bound is searched, for its width
GAIN = rbi.Reroute(0.5, 1.5)


@dataclass(frozen=True)
class World:
    """Draws terms of an estimate of the gain `[repetitions, episodes]`, with their stated limits and true mean."""

    name: str
    draw: Callable
    truth: float
    floor: float
    ceiling: float = math.inf
    spread: float = 0.25
    steps: int = 1
    """Of the longest episodes."""
    known: bool = True
    """Whether probabilities are logged; if not, they are estimated from as many other episodes."""
    logs: Callable | None = None
    """Draws weights and rewards of one-step episodes, `[2, repetitions, episodes]`, for bounds of the value itself."""
    value: float = math.nan
    """The true value of the new policy."""
    weights: tuple[float, float] = (0.0, math.inf)
    """Smallest and largest possible weight."""
    most_reward: float = 1.0


def draw_actions(rng, probs):
    return (rng.random((*probs.shape[:-1], 1)) > probs.cumsum(-1)).sum(-1)


def bernoulli(rng, means):
    return (rng.random(means.shape) < means).astype(float)


HEAVY_SIGMA, HEAVY_LIMIT = 1.5, 25.0


def heavy(rng, means):
    """Lognormal with these means, cut off at 50 times 0.5 (rewards up to 25; the means lie below)."""
    drift = HEAVY_SIGMA**2 / 2
    return np.minimum(means * np.exp(HEAVY_SIGMA * rng.normal(size=means.shape) - drift), HEAVY_LIMIT)


def heavy_means(means):
    """The means of `heavy`: E[min(Y, c)] for the lognormal Y of each mean."""
    z = (np.log(HEAVY_LIMIT / means) + HEAVY_SIGMA**2 / 2) / HEAVY_SIGMA
    return means * stats.norm.cdf(z - HEAVY_SIGMA) + HEAVY_LIMIT * stats.norm.sf(z)


def bandit(name, means, beta, rule=GAIN, *, robust=False, q=None, reward=bernoulli, high=1.0):
    """One-step episodes in equally likely states, with logged probabilities.

    Terms are (W - 1) r, or the doubly robust ones with Q = q and a beta that is known for all actions.
    """
    means, beta = np.array(means, float), np.array(beta, float)
    q = means if q is None else np.array(q, float)
    pi = rule(beta, q)
    true_means = heavy_means(means) if reward is heavy else means

    def draw(rng, shape):
        x = rng.integers(0, len(beta), shape)
        a = draw_actions(rng, beta[x])
        r, w = reward(rng, means[x, a]), (pi / beta)[x, a]
        return ((pi - beta) * q).sum(1)[x] + (w - 1) * (r - q[x, a]) if robust else (w - 1) * r

    def logs(rng, shape):
        x = rng.integers(0, len(beta), shape)
        a = draw_actions(rng, beta[x])
        return np.stack([(pi / beta)[x, a], reward(rng, means[x, a])])

    truth = float(((pi - beta) * true_means).sum(1).mean())
    value, limits = float((pi * true_means).sum(1).mean()), (float((pi / beta).min()), float((pi / beta).max()))
    reach = 0.75 * high if robust else high  # reroute(0.5,1.5): |W - 1| <= 0.5, total variation <= 0.25
    more = {"logs": logs, "value": value, "weights": limits, "most_reward": high}
    return World(name, draw, truth, -reach, reach if robust else math.inf, high / 4, **more)


def confounded(*, known):
    """A hidden cause, seen by the logging policy, drives actions and rewards; the action itself does harm."""
    share, beta = np.array([0.5, 0.5]), np.array([[0.8, 0.2], [0.2, 0.8]])
    means = np.array([[0.3, 0.2], [0.7, 0.6]])  # of the hidden cause and the action
    seen, q = share @ beta, (share[:, None] * beta * means).sum(0) / (share @ beta)
    pi = GAIN(seen, q)

    def draw(rng, shape):
        u = rng.integers(0, 2, shape)
        a = draw_actions(rng, beta[u])
        r = bernoulli(rng, means[u, a])
        return (pi[a] / beta[u, a] - 1) * r if known else ((pi - seen) * q).sum() + (pi[a] / seen[a] - 1) * (r - q[a])

    value = (share[:, None] * means).sum(0)
    truth = float(pi @ value - (share[:, None] * beta * means).sum())
    name = f"hidden cause, probabilities {'logged' if known else 'estimated'}"
    return World(name, draw, truth, -1.0 if known else -0.75, math.inf if known else 0.75, known=known)


def cloned_bandit(name, means, beta, states):
    """A bandit whose beta is estimated by counting in as many other episodes; few visits of each state."""
    means, beta = np.array(means, float), np.array(beta, float)
    pi = GAIN(beta, means)

    def draw(rng, shape):
        rows, n = shape
        terms = np.empty(shape)
        for row in range(rows):
            x, other = rng.integers(0, states, (2, n))
            taken = draw_actions(rng, beta[other])
            counts = np.bincount(other * beta.shape[1] + taken, minlength=beta.size).reshape(beta.shape) + 1.0
            clone = counts / counts.sum(1, keepdims=True)
            a = draw_actions(rng, beta[x])
            r = bernoulli(rng, means[x, a])
            terms[row] = ((pi - clone) * means)[x].sum(1) + (pi / clone - 1)[x, a] * (r - means[x, a])
        return terms

    truth = float(((pi - beta) * means).sum(1).mean())
    return World(name, draw, truth, -math.inf, math.inf, known=False)


def episodes_of(name, mdp, beta, pi, horizon, high, gamma=1.0):
    """Episodes of a tabular MDP, with per-decision terms; rewards are not negative."""
    transitions, rewards = mdp.transitions.cumsum(-1), mdp.rewards
    v = {"pi": np.zeros(len(beta)), "beta": np.zeros(len(beta))}
    for _ in range(horizon):
        v = {key: (p * (rewards + gamma * mdp.transitions @ v[key])).sum(1) for key, p in (("pi", pi), ("beta", beta))}
    truth = float(mdp.start @ (v["pi"] - v["beta"]))
    ratio = np.divide(pi, beta, out=np.zeros_like(pi), where=beta > 0)

    def draw(rng, shape):
        s = np.searchsorted(mdp.start.cumsum(), rng.random(shape), side="right").clip(0, len(beta) - 1)
        weight, terms, alive = np.ones(shape), np.zeros(shape), np.ones(shape, bool)
        for t in range(horizon):
            a = draw_actions(rng, beta[s]).clip(0, beta.shape[1] - 1)
            weight = weight * np.where(alive, ratio[s, a], 1.0)
            terms += alive * gamma**t * (weight - 1) * rewards[s, a]
            u = rng.random(shape)
            following = (u[..., None] > transitions[s, a]).sum(-1)
            alive &= following < len(beta)
            s = np.minimum(following, len(beta) - 1)
        return terms

    return World(name, draw, truth, -high, math.inf, high / 4, horizon)


CARTPOLE_STEPS = 30
PLAYERS = np.array([0.9, 0.6])
"""CartPole's two players: the probability with which each pushes to the side where the pole falls."""


def cartpole_step(state, push):
    """One step of Gymnasium's CartPole for states `[..., 4]`; True where the pole still stands."""
    x, v, angle, spin = np.moveaxis(state, -1, 0)
    force, sin, cos = np.where(push, 10.0, -10.0), np.sin(angle), np.cos(angle)
    inner = (force + 0.05 * spin**2 * sin) / 1.1
    turn = (9.8 * sin - cos * inner) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    push_back = inner - 0.05 * turn * cos / 1.1
    state = np.stack([x + 0.02 * v, v + 0.02 * push_back, angle + 0.02 * spin, spin + 0.02 * turn], -1)
    return state, (np.abs(state[..., 0]) < 2.4) & (np.abs(state[..., 2]) < 0.2095)


def cartpole_episodes(rng, shape, probs, new):
    """Terms with each player's probabilities, terms with their mixture, and returns `[...]`.

    Each player takes the good push with its entry of `probs`, the new policy with probability `new`.
    """
    player = rng.integers(0, 2, shape)
    state, alive = rng.uniform(-0.05, 0.05, (*shape, 4)), np.ones(shape, bool)
    weight, clone_weight, terms, clone_terms, returns = (np.zeros(shape) + start for start in (1.0, 1.0, 0.0, 0.0, 0.0))
    mean = PLAYERS.mean()
    for _ in range(CARTPOLE_STEPS):
        good = rng.random(shape) < probs[player]
        ratio = np.where(good, new / PLAYERS[player], (1 - new) / (1 - PLAYERS[player]))
        clone_ratio = np.where(good, new / mean, (1 - new) / (1 - mean))
        weight, clone_weight = (w * np.where(alive, r, 1.0) for w, r in ((weight, ratio), (clone_weight, clone_ratio)))
        terms += alive * (weight - 1)
        clone_terms += alive * (clone_weight - 1)
        returns += alive
        state, stands = cartpole_step(state, good == (state[..., 2] + 0.5 * state[..., 3] > 0))
        alive &= stands
    return terms, clone_terms, returns


def cartpole(*, known):
    """Two players of CartPole, and reroute(0.9,1.1) of their mixture beta-bar, which prefers the good push.

    Products of pi / beta-bar are no valid weights of a trajectory, and V(beta-bar) is not the mean return.
    """
    mean = PLAYERS.mean()
    new = float(rbi.Reroute(0.9, 1.1)(np.array([mean, 1 - mean]), np.array([1.0, 0.0]))[0])
    rng, chunks = np.random.default_rng(0), 20
    played = (np.full(2, new), PLAYERS)
    values = [cartpole_episodes(rng, (20_000,), probs, new)[2].mean() for probs in played for _ in range(chunks)]
    truth = float(np.mean(values[:chunks]) - np.mean(values[chunks:]))

    def draw(rng, shape):
        return cartpole_episodes(rng, shape, PLAYERS, new)[0 if known else 1]

    name = f"CartPole, two players, {'their probabilities logged' if known else 'mixture as clone'}"
    return World(name, draw, truth, -float(CARTPOLE_STEPS), math.inf, CARTPOLE_STEPS / 8, CARTPOLE_STEPS, known=known)


def small_mdp(seed=0):
    """Three states, three actions, rewards in [0, 1]."""
    rng = np.random.default_rng(seed)
    transitions, rewards = rng.dirichlet(np.ones(3), (3, 3)), rng.random((3, 3))
    return spi_worlds.MDP(transitions, rewards, np.array([1.0, 0, 0]), 0.9), rng.dirichlet(np.full(3, 2.0), 3)


def all_worlds(*, simulated=True):
    """Every world of the table. `simulated`: also those whose truth takes seconds to simulate."""
    uniform = [[0.5, 0.5]]
    three = [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]]
    paid = [[0.2, 0.3, 0.5], [0.6, 0.3, 0.2]]
    rare = [[0.98, 0.02]]
    found = [
        bandit("gain of 10% of 0.5, taken actions logged", [[0.4, 0.6]], uniform),
        bandit("gain of 10% of 0.5, all actions logged", [[0.4, 0.6]], uniform, robust=True),
        bandit("gain of 10% of 0.1, taken actions logged", [[0.08, 0.12]], uniform),
        bandit("gain of 10% of 0.1, all actions logged", [[0.08, 0.12]], uniform, robust=True),
        bandit("binary rewards", paid, three),
        bandit("nothing to gain, taken actions logged", [[0.3, 0.3]], uniform, q=[[0.0, 1.0]]),
        bandit("nothing to gain, all actions logged", [[0.3, 0.3]], uniform, robust=True, q=[[0.2, 0.4]]),
        bandit("worse by 1%", [[0.306, 0.294]], uniform, q=[[0.0, 1.0]]),
        bandit("heavy-tailed rewards, nothing to gain", [[0.5, 0.5]], uniform, q=[[0.0, 1.0]], reward=heavy, high=25.0),
        bandit("rare lucky action, greedy, worse", [[0.3, 0.28]], rare, rbi.Greedy(), q=[[0.0, 1.0]]),
        bandit("rare lucky action, greedy, nothing to gain", [[0.02, 0.02]], rare, rbi.Greedy(), q=[[0.0, 1.0]]),
        confounded(known=True),
        confounded(known=False),
        cloned_bandit("beta counted, 2 states", paid, three, 2),
    ]
    rng = np.random.default_rng(1)
    many = rng.dirichlet(np.ones(3), 200), rng.random((200, 3))
    found.append(cloned_bandit("beta counted, 200 states", many[1], many[0], 200))
    mdp, beta = small_mdp()
    q = mdp.rewards
    for horizon in (5, 50):
        found.append(episodes_of(f"episodes of {horizon} steps", mdp, beta, GAIN(beta, q), horizon, float(horizon)))
    found.append(episodes_of("episodes of 5 steps, worse", mdp, beta, GAIN(beta, -q), 5, 5.0))
    river = spi_worlds.wet_chicken_river()
    baseline = spi_worlds.wet_chicken_baseline(0.3)
    top = float(river.rewards.max())
    better = GAIN(baseline, river.rewards)
    found.append(episodes_of("Wet Chicken, 10 steps", river, baseline, better, 10, 10 * top))
    found += [cartpole(known=True), cartpole(known=False)] if simulated else []
    random = spi_worlds.random_mdp(np.random.default_rng(2), 20, 4, 4)
    beta = np.random.default_rng(3).dirichlet(np.full(4, 2.0), len(random.start))
    better = GAIN(beta, random.rewards)
    found.append(
        episodes_of("random MDP, 10 steps", random, beta, better, 10, 10 * float(max(1.0, random.rewards.max())))
    )
    return found


def measure(world, n, repetitions, seed=0, confidences=CONFIDENCES):
    """A row per bound and confidence, on the same draws."""
    rng, found = np.random.default_rng([seed, n]), {c: Cell(world, n, 1 - c) for c in confidences}
    for done in range(0, repetitions, max(1, NUMBERS_AT_ONCE // n)):
        x = world.draw(rng, (min(max(1, NUMBERS_AT_ONCE // n), repetitions - done), n))
        for cell in found.values():
            cell.add(x, rng, repetitions)
    return [
        cell_row(world, n, confidence, method, np.concatenate(over), cell.widths[method])
        for confidence, cell in found.items()
        for method, over in cell.over.items()
    ]


class Cell:
    """Whether each bound exceeds the truth and 0 in each repetition, and how far it lies below the mean."""

    def __init__(self, world, n, alpha):
        self.world, self.n, self.alpha = world, n, alpha
        self.at = np.array([world.truth, 0.0])
        self.over, self.widths, self.searched, self.resampled = {}, {}, 0, 0

    def add(self, x, rng, repetitions):
        world, n, alpha, log = self.world, self.n, self.alpha, math.log(2 / self.alpha)
        mean, error = x.mean(1), x.std(1, ddof=1) / math.sqrt(n)
        self.keep("student", mean, stats.t.isf(alpha, n - 1) * error)
        if math.isfinite(world.ceiling):
            reach = 7 * (world.ceiling - world.floor) * log / (3 * (n - 1))
            self.keep("empirical_bernstein", mean, math.sqrt(2 * log) * error + reach)
        if math.isfinite(world.floor):
            rejects = [bounds.betting_rejects(x, np.full(len(x), m), world.floor, alpha, world.spread) for m in self.at]
            self.over.setdefault("betting", []).append(np.stack(rejects, 1))
            for values in x[: max(0, WIDTHS - self.searched)]:
                lower = bounds.betting_lower_bound(values, world.floor, alpha, world.spread)
                self.widths.setdefault("betting", []).append(values.mean() - lower)
                self.searched += 1
        some = min(repetitions, BCA_DRAWS // (BCA_RESAMPLES * min(n, bounds.BCA_VALUES))) - self.resampled
        if some > 0:
            lower = np.array([bounds.bca_lower_bound(values, alpha, rng, BCA_RESAMPLES) for values in x[:some]])
            self.keep("bca", mean[: len(lower)], mean[: len(lower)] - lower)
            self.resampled += len(lower)

    def keep(self, method, mean, width):
        self.over.setdefault(method, []).append((mean - width)[:, None] > self.at)
        self.widths.setdefault(method, []).extend(width.tolist())


def cell_row(world, n, confidence, method, over, widths):
    missed, deployed = (int(count) for count in over.sum(0))
    proved = world.known and bounds.STATUS[method] == "proved"
    return {
        "world": world.name,
        "episodes": n,
        "confidence": confidence,
        "bound": method,
        "status": bounds.STATUS[method] if world.known else "heuristic",
        "truth": world.truth,
        "repetitions": len(over),
        "missed": missed / len(over),
        "missed_interval": interval(missed, len(over)),
        "deploy": deployed / len(over),
        "deploy_interval": interval(deployed, len(over)),
        "unsafe": world.truth <= 0,
        "width": float(np.mean(widths)),
        "holds": bool(stats.binomtest(missed, len(over), 1 - confidence, "greater").pvalue > 1e-3),
        "must_hold": proved,
    }


def interval(count, total):
    """95% Clopper-Pearson interval of a share."""
    return list(stats.binomtest(count, total).proportion_ci(method="exact"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions, nothing is written unless --out is given"
    )
    parser.add_argument("--only", default="", help="worlds whose name contains this")
    parser.add_argument("--sizes", type=int, nargs="+", help=f"numbers of episodes (default: {SIZES})")
    parser.add_argument("--repetitions", type=int, help=f"of each cell (default: {REPETITIONS}; quick: 200)")
    parser.add_argument(
        "--out", type=Path, help="JSON file (default: benchmarks/results/coverage.json); cells are added"
    )
    parser.add_argument("--widths", action="store_true", help="only compare the widths of proved bounds")
    parser.add_argument("--players", action="store_true", help="only players whose gains differ")
    parser.add_argument("--speed", action="store_true", help="only time rbi.certify on a million one-step episodes")
    args = parser.parse_args()
    if args.speed:
        found = measure_speed()
        head = {"command": "python -m benchmarks.coverage --speed", "machine": machine()}
        (args.out or RESULTS / "coverage-speed.json").write_text(json.dumps(head | found, indent=1) + "\n")
        print(json.dumps(found))
        return 0
    if args.widths:
        out = args.out or RESULTS / "coverage-widths.json"
        head = {"benchmark": "coverage", "command": "python -m benchmarks.coverage --widths", "machine": machine()}
        out.write_text(json.dumps(head | {"rows": measure_widths()}, indent=1) + "\n")
        return 0
    if args.players:
        out = args.out or RESULTS / "coverage-players.json"
        head = {"benchmark": "coverage", "command": "python -m benchmarks.coverage --players", "machine": machine()}
        some = args.repetitions or REPETITIONS
        found = {"rows": measure_players(some), "groups": [measure_groups(players, some) for players in GROUPS]}
        out.write_text(json.dumps(head | found, indent=1) + "\n")
        return 0
    repetitions = args.repetitions or (200 if args.quick else REPETITIONS)
    out = args.out or (None if args.quick else RESULTS / "coverage.json")
    rows = json.loads(out.read_text())["rows"] if out is not None and out.exists() else []
    sizes = args.sizes or (SIZES[:2] if args.quick else SIZES)
    done = {(r["world"], r["episodes"]): r["repetitions"] for r in rows if r["bound"] == "student"}
    worlds = all_worlds()
    for n in sizes:
        for world in worlds:
            some = min(repetitions, max(LEAST_REPETITIONS, MOST_STEPS // (n * world.steps)))
            if args.only not in world.name or done.get((world.name, n), 0) >= some:
                continue
            start = time.perf_counter()
            rows = [r for r in rows if (r["world"], r["episodes"]) != (world.name, n)] + measure(world, n, some)
            print(f"{cell_text(rows, world, n)} ({time.perf_counter() - start:.1f} s)", flush=True)
            if out is not None:
                head = {"benchmark": "coverage", "command": "python -m benchmarks.coverage", "machine": machine()}
                out.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")
    broken = [r for r in rows if r["must_hold"] and not r["holds"]]
    print(f"{len(rows)} rows; proved bounds that do not hold: {len(broken)}")
    return 1 if broken else 0


# Players whose gains differ


POPULATIONS = {
    "all players alike": ((0.0,), (1.0,)),
    "each gains or loses 0.1": ((-0.1, 0.1), (0.5, 0.5)),
    "one in ten loses 0.09, others gain 0.01": ((-0.09, 0.01), (0.1, 0.9)),
    "half of them gain 0.1": ((0.0, 0.1), (0.5, 0.5)),
}
"""Gains of players, and how frequent each is."""
PLAYER_NUMBERS, PLAYER_EPISODES = (10, 20, 50, 200), (10, 30, 80)
GROUPS, AVERAGES, PLAYER_LOOKS = (20, 50), 0.2, 4
"""Players of each group of a live test, standard deviation of their mean returns, and looks at a growing log."""


def population(name, counts):
    """Terms (W - 1) r `[repetitions, episodes]` of players with these numbers of episodes, one after the other.

    Actions 0 and 1 are equally likely, and reroute(0.5,1.5) moves a quarter to action 1.
    """
    gains, shares = POPULATIONS[name]

    def draw(rng, repetitions):
        gain = rng.choice(gains, (repetitions, len(counts)), p=shares)
        a = rng.integers(0, 2, (repetitions, counts.sum()))
        return (a - 0.5) * bernoulli(rng, 0.5 + 4 * np.repeat(gain, counts, axis=1) * (a - 0.5))

    return World(name, draw, float(np.dot(gains, shares)), -1.0, spread=0.5)


def measure_players(repetitions, numbers=PLAYER_NUMBERS, names=tuple(POPULATIONS), alpha=0.05):
    """How often bounds of the gain of a random player exceed it, with episodes and with players as the unit."""
    rows = []
    for name in names:
        for players in numbers:
            counts = np.resize(PLAYER_EPISODES, players)
            world, rng = population(name, counts), np.random.default_rng(players)
            at_once = NUMBERS_AT_ONCE // counts.sum()
            cells = {"episode": Cell(world, counts.sum(), alpha), "player": Cell(world, players, alpha)}
            for done in range(0, repetitions, at_once):
                x = world.draw(rng, min(at_once, repetitions - done))
                cells["episode"].add(rng.permuted(x, axis=1), rng, repetitions)  # as `bounds.lower_bound` does
                cells["player"].add(np.add.reduceat(x, counts.cumsum() - counts, axis=1) / counts, rng, repetitions)
            for unit, cell in cells.items():
                size = {"unit": unit, "players": players, "episodes": int(counts.sum())}
                found = [
                    cell_row(world, cell.n, 1 - alpha, method, np.concatenate(over), cell.widths[method])
                    for method, over in cell.over.items()
                ]
                rows += [row | size | {"must_hold": unit == "player" and row["must_hold"]} for row in found]
                shown = [f"{row['bound']} missed {row['missed']:.3f} deploy {row['deploy']:.3f}" for row in found]
                print(f"{name}, {players} players, by {unit}: {'; '.join(shown)}", flush=True)
    return rows


def measure_groups(players, repetitions, alpha=0.05):
    """How often `rbi.monitor` names a better one of two groups under the same policy: by episode and by player after
    the last episode, and by player at any of several looks while all players have further episodes."""
    rng, counts = np.random.default_rng(players), np.resize(PLAYER_EPISODES, players)
    found = {"players": players, "repetitions": repetitions, "episode": 0, "player": 0, "player_growing": 0}
    for _ in range(repetitions):
        groups = []
        for _ in range(2):
            average = rng.normal(0.5, AVERAGES, players).clip(0, 1)
            groups.append([bernoulli(rng, np.full(n, p)) for n, p in zip(counts, average, strict=True)])
        found["episode"] += decided([np.concatenate(group) for group in groups], alpha)
        looks = [
            decided(
                [np.array([x[: -(-len(x) * look // PLAYER_LOOKS)].mean() for x in group]) for group in groups], alpha
            )
            for look in range(1, PLAYER_LOOKS + 1)
        ]
        found["player"] += looks[-1]
        found["player_growing"] += any(looks)
    print(found, flush=True)
    return found


def decided(samples, alpha):
    """Whether the difference of two means of values in [0, 1] is proved to be above or below 0."""
    lower, upper = difference_over_time(samples, (0.0, 1.0), alpha, [np.array([len(x)]) for x in samples])
    return bool(lower[-1] > 0 or upper[-1] < 0)


# Proved bounds side by side


def plug_in_bound(x, floor, alpha, spread):
    """Waudby-Smith and Ramdas's predictable plug-in bets for a fixed sample size, by bisection."""
    bets = np.sqrt(2 * math.log(1 / alpha) / len(x)) / bounds.predictable_std(x, np.arange(len(x)), spread)
    low, high = floor, float(x.mean())
    for _ in range(40):
        middle = (low + high) / 2
        stakes = np.minimum(bets, bounds.MAX_STAKE / max(middle - floor, np.finfo(float).tiny))
        rejected = np.log1p(stakes * (x - middle)).cumsum().max() >= -math.log(alpha)
        low, high = (middle, high) if rejected else (low, middle)
    return low


def anderson_bound(x, floor, alpha):
    """Anderson's bound by the Dvoretzky-Kiefer-Wolfowitz inequality, the other one that needs a floor only."""
    mass = np.maximum(0.0, 1 - np.arange(len(x)) / len(x) - math.sqrt(math.log(1 / alpha) / (2 * len(x))))
    return floor + float(np.diff(np.concatenate([[floor], np.sort(x)])) @ mass)


def proved_widths(world, n, alpha=0.05, repetitions=WIDTHS):
    """Mean distance of each proved bound below the sample mean, and of Student's for comparison."""
    x = world.draw(np.random.default_rng(n), (repetitions, n))
    found = {"student (asymptotic)": [float(stats.t.isf(alpha, n - 1) * row.std(ddof=1) / math.sqrt(n)) for row in x]}
    lower = {
        "betting, ours": lambda row: bounds.betting_lower_bound(row, world.floor, alpha, world.spread),
        "betting, plug-in": lambda row: plug_in_bound(row, world.floor, alpha, world.spread),
        "Anderson": lambda row: anderson_bound(row, world.floor, alpha),
    }
    if math.isfinite(world.ceiling):
        lower["empirical Bernstein"] = lambda row: bounds.empirical_bernstein_lower_bound(
            row, world.floor, world.ceiling, alpha
        )
        reach = (world.ceiling - world.floor) * math.sqrt(math.log(1 / alpha) / (2 * n))
        lower["Hoeffding"] = lambda row: row.mean() - reach
    found |= {name: [float(row.mean() - bound(row)) for row in x] for name, bound in lower.items()}
    return {"world": world.name, "episodes": n, **{name: float(np.mean(width)) for name, width in found.items()}}


def measure_widths():
    """The widths at 1,000, 10,000 and 100,000 episodes in the worlds with logged probabilities."""
    rows = []
    for world in all_worlds():
        for n in (1000, 10_000, 100_000):
            if world.known and n * world.steps <= MOST_STEPS // WIDTHS:
                rows.append(proved_widths(world, n))
                numbers = [f"{name} {value:.5f}" for name, value in rows[-1].items() if isinstance(value, float)]
                print(f"{world.name}, {n:,}: {', '.join(numbers)}", flush=True)
    return rows


def measure_speed(rows=1_000_000, actions=5):
    """Seconds of `rbi.certify` with all candidates, for a million one-step episodes and networks of 128 units."""
    rng = np.random.default_rng(0)
    beta = rng.dirichlet(np.full(actions, 2.0), rows)
    taken = draw_actions(rng, beta).clip(0, actions - 1)
    paid = bernoulli(rng, 0.2 + 0.05 * taken)
    obs = rng.normal(size=(rows, 5))
    data = rbi.Dataset.from_arrays(obs, taken, paid, np.ones(rows, bool), behavior_probs=beta)
    networks = make_networks(ObservationSpec((5,), 1, actions), offline_network(128, 0.0, 0.0), 0)
    policy = rbi.Policy(networks, GAIN, behavior="logged", training_digests=np.zeros((1, 2), np.uint64))
    start, cpu = time.perf_counter(), time.process_time()
    decision = rbi.certify(policy, data, return_range=(0, 1))
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    return {"rows": rows, "candidates": len(decision.candidates), "seconds": seconds, "cpu_seconds": cpu_seconds}


def cell_text(rows, world, n):
    """One line about a cell at 95%."""
    shown = [r for r in rows if r["world"] == world.name and r["episodes"] == n and r["confidence"] == 0.95]
    parts = [f"{r['bound']} missed {r['missed']:.3f} deploy {r['deploy']:.3f} width {r['width']:.4f}" for r in shown]
    return f"{world.name} (gain {world.truth:+.4f}), {n:,}: {'; '.join(parts)}"


if __name__ == "__main__":
    raise SystemExit(main())
