"""Worlds of the safe-policy-improvement study: small MDPs, baseline policies of a stated quality, and logged data.

A task is W worlds and the baseline policy that is logged in each. Random worlds (Random MDPs) and random baselines (the
gridworld) have one generator each, so that world i is the same in every study with its seed.

W worlds have D datasets each: transitions `[W, 1, S, A, S]`, baselines `[W, 1, S, A]`, counts and models `[W, D, ...]`.
This covers many worlds with one dataset (Random MDPs) and one world with many datasets (Wet Chicken).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rbi.lab.mdp import MDP, Floats, optimal_policy, performance, q_values, visitation

CHICKEN_SIZE = 5
CHICKEN_MOVES = ((0, 0), (-1, 0), (-2, 0), (0, -1), (0, 1))  # drift, hold, paddle back, left, right
GRID_SIZE = 5
GRID_MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right
GRID_SWAMPS = ((1, 1), (1, 3), (2, 2), (3, 3), (4, 1))


@dataclass(frozen=True)
class Task:
    """W worlds `[W, 1, S, A, S]`, their baselines `[W, 1, S, A]`, and the reward for entering each state.

    `arrival` is `[S + 1]`: the last entry is the reward for termination. The axis of length 1 is for datasets.
    """

    mdp: MDP
    arrival: Floats
    beta: Floats

    def __post_init__(self) -> None:
        shape = self.beta.shape
        if len(shape) != 4 or shape[1] != 1 or self.mdp.transitions.shape != (*shape, shape[2]):
            raise ValueError(f"transitions {self.mdp.transitions.shape} and beta {shape} must be [W, 1, S, A, ...]")
        if self.arrival.shape != (shape[2] + 1,):
            raise ValueError(f"arrival has shape {self.arrival.shape}: must be [{shape[2] + 1}]")

    @property
    def continuing(self) -> bool:
        """Whether episodes never terminate."""
        return bool((self.mdp.transitions.sum(-1) > 1 - 1e-9).all())


def random_mdps(quality: float, rngs: Sequence[np.random.Generator], states: int = 50, actions: int = 4) -> Task:
    """Random MDPs, one per generator, with baselines of this quality."""
    worlds = [random_mdp(rng, states, actions) for rng in rngs]
    mdp = MDP(np.stack([w.transitions for w in worlds]), np.stack([w.rewards for w in worlds]), worlds[0].start, 0.95)
    beta = baselines(mdp, quality, child_generators(rngs))
    arrival = np.eye(mdp.start.size + 1)[-1]  # termination is the goal
    return Task(with_dataset_axis(mdp), arrival, beta[:, None])


def with_second_goal(task: Task, rngs: Sequence[np.random.Generator]) -> Task:
    """Random MDPs with one more goal each, a random state, that the baseline was made without."""
    transitions, rewards = task.mdp.transitions.copy(), task.mdp.rewards.copy()
    for i, rng in enumerate(rngs):
        ordinary = np.flatnonzero(transitions[i, 0].any((-2, -1)))  # not the first goal
        second = rng.choice(ordinary[ordinary > 0])
        rewards[i, 0] += transitions[i, 0, :, :, second]
        transitions[i, 0, :, :, second] = 0  # entering the goal terminates
        transitions[i, 0, second] = rewards[i, 0, second] = 0
    return replace(task, mdp=MDP(transitions, rewards, task.mdp.start, task.mdp.discount))


def random_mdp(rng: np.random.Generator, states: int = 50, actions: int = 4, branches: int = 4) -> MDP:
    """A random MDP with one goal state that is hard to reach: entering it gives reward 1 and terminates the episode.

    Every state-action pair has `branches` successors, with the gaps between sorted uniform numbers as probabilities.
    The goal is the state with the smallest optimal value at state 0 that is still above discount^states.
    """
    discount = 0.95
    cuts = np.sort(rng.random((states, actions, branches - 1)))
    gaps = np.diff(cuts, prepend=0.0, append=1.0)
    successors = np.sort(rng.random((states, actions, states)).argpartition(branches - 1)[..., :branches])
    transitions = np.zeros((states, actions, states))
    np.put_along_axis(transitions, successors, gaps, -1)
    value = values_of_reaching(transitions, discount)[0]
    value[0] = np.inf  # the start is no goal
    return with_goal(transitions, int(np.argmin(np.where(value > discount**states, value, np.inf))), discount)


def with_goal(transitions: Floats, goal: int, discount: float) -> MDP:
    """The MDP in which entering the goal gives reward 1 and terminates the episode."""
    rewards, transitions = transitions[..., goal].copy(), transitions.copy()
    transitions[..., goal] = 0  # entering the goal terminates
    transitions[goal] = rewards[goal] = 0
    return MDP(transitions, rewards, np.eye(len(transitions))[0], discount)


def values_of_reaching(transitions: Floats, discount: float, sweeps: int = 40) -> Floats:
    """Optimal values `[S, S]` of states (rows) for goals (columns): reward 1 for entering a goal, then termination.

    The transitions are the same for all goals if each goal has the value 1/discount, so that entering it is worth 1.
    Policy iteration for all of them at once, after a few sweeps of value iteration, which are cheaper than solutions.
    """
    S, A, _ = transitions.shape
    states, one = np.arange(S), np.eye(S)

    def lookahead(v: Floats) -> Floats:
        return discount * (transitions.reshape(S * A, S) @ v).reshape(S, A, S)

    v = one / discount
    for _ in range(sweeps):
        v = np.where(one, 1 / discount, lookahead(v).max(1))
    while True:
        q = lookahead(v)
        if (q.max(1) <= v + 1e-12).all():
            return v
        bellman = one - discount * transitions[states, q.argmax(1).T]  # [goals, S, S]
        bellman[states, states] = one
        v = np.linalg.solve(bellman, one[..., None] / discount)[..., 0].T


def wet_chicken(epsilon: float) -> Task:
    """Wet Chicken, one world, with the heuristic baseline that takes a random action with probability epsilon."""
    arrival = np.append(np.arange(CHICKEN_SIZE**2) // CHICKEN_SIZE, 0.0)
    river = wet_chicken_river()
    return Task(
        with_dataset_axis(MDP(river.transitions[None], river.rewards[None], river.start, river.discount)),
        arrival,
        wet_chicken_baseline(epsilon)[None, None],
    )


def wet_chicken_river() -> MDP:
    """Wet Chicken: a canoe gets more reward the closer it is to a waterfall (x); if it falls, it restarts.

    State 5x + y on a 5x5 river, reward x after the step, discount .95, no termination. The stream v = 3y/5 and a
    turbulence uniform in (3.5 - v) [-1, 1] move x; the result is rounded, so each x' has the probability of an interval
    of length 1.
    """
    n = CHICKEN_SIZE
    transitions, rewards = np.zeros((n * n, 5, n * n)), np.zeros((n * n, 5))
    for x, y, action in np.ndindex(n, n, 5):
        dx, dy = CHICKEN_MOVES[action]
        stream = 3 * y / n
        middle, reach = x + dx + stream, 3.5 - stream
        row = np.clip(y + dy, 0, n - 1)
        for landing in range(-12, 16):
            low, high = max(landing - 0.5, middle - reach), min(landing + 0.5, middle + reach)
            if low < high:
                at = (0, 0) if landing >= n else (max(landing, 0), row)
                probability = (high - low) / (2 * reach)
                transitions[n * x + y, action, n * at[0] + at[1]] += probability
                rewards[n * x + y, action] += probability * at[0]
    return MDP(transitions, rewards, np.eye(n * n)[0], 0.95)


def wet_chicken_baseline(epsilon: float) -> Floats:
    """Heuristic baseline: hold the middle of the river two cells above the fall; random with probability epsilon."""
    drift, hold, paddle, left, right = range(5)
    pi = np.zeros((CHICKEN_SIZE**2, 5))
    for x, y in np.ndindex(CHICKEN_SIZE, CHICKEN_SIZE):
        if x > 2:
            action = paddle
        elif y != 2:
            action = right if y < 2 else left
        else:
            action = (drift, hold, paddle)[x]
        pi[CHICKEN_SIZE * x + y, action] = 1
    return (1 - epsilon) * pi + epsilon / 5


def gridworlds(quality: float, rngs: Sequence[np.random.Generator]) -> Task:
    """The gridworld, with one random baseline of this quality per generator."""
    grid = gridworld()
    W = len(rngs)
    mdp = MDP(np.tile(grid.transitions, (W, 1, 1, 1)), np.tile(grid.rewards, (W, 1, 1)), grid.start, grid.discount)
    return Task(with_dataset_axis(mdp), grid_arrival(), baselines(mdp, quality, child_generators(rngs))[:, None])


def gridworld() -> MDP:
    """A slippery 5x5 gridworld: start in one corner, goal in the opposite one, swamps between them.

    Four moves; with probability .2 the move slips to one side; moves into the border stay. Entering the goal gives
    reward 1 and terminates the episode, entering a swamp gives -.5. Discount .95.
    """
    n = GRID_SIZE
    goal = n * n - 1
    arrival = grid_arrival()
    transitions, rewards = np.zeros((n * n, 4, n * n)), np.zeros((n * n, 4))
    for x, y, action in np.ndindex(n, n, 4):
        state = n * x + y
        if state == goal:
            continue
        for (dx, dy), probability in ((GRID_MOVES[action], 0.8), *((side, 0.1) for side in sideways(action))):
            landing = n * int(np.clip(x + dx, 0, n - 1)) + int(np.clip(y + dy, 0, n - 1))
            if landing == goal:
                rewards[state, action] += probability * arrival[-1]
            else:
                transitions[state, action, landing] += probability
                rewards[state, action] += probability * arrival[landing]
    return MDP(transitions, rewards, np.eye(n * n)[0], 0.95)


def resource_gatherings(quality: float, rngs: Sequence[np.random.Generator]) -> Task:
    """Resource Gathering, with one random baseline of this quality per generator."""
    world, arrival = resource_gathering()
    W = len(rngs)
    mdp = MDP(np.tile(world.transitions, (W, 1, 1, 1)), np.tile(world.rewards, (W, 1, 1)), world.start, world.discount)
    return Task(with_dataset_axis(mdp), arrival, baselines(mdp, quality, child_generators(rngs))[:, None])


def resource_gathering() -> tuple[MDP, Floats]:
    """Resource Gathering (Barrett and Narayanan 2008) as one continuing task, and the reward for entering each state.

    A 5x5 grid with four moves. Gold and a gem are picked up where they lie; every resource brought home gives reward 1.
    In the two cells with an enemy the agent is killed with probability .1: reward -1, and it starts again at home with
    nothing. States are 4 cell + 2 gold + gem, and the last one is "killed", which is home. Discount .95.
    """
    n, home, gold, gem, enemies = GRID_SIZE, 22, 2, 9, (3, 7)
    states = 4 * n * n + 1
    arrival = np.zeros(states + 1)
    arrival[4 * home : 4 * home + 4] = (0, 1, 1, 2)
    arrival[states - 1] = -1.0
    transitions = np.zeros((states, 4, states))
    for state, (action, (dx, dy)) in itertools.product(range(states), enumerate(GRID_MOVES)):
        cell, carried = (home, 0) if state == states - 1 else divmod(state, 4)
        carried = 0 if cell == home else carried  # brought home
        x, y = np.clip(cell // n + dx, 0, n - 1), np.clip(cell % n + dy, 0, n - 1)
        landing = int(n * x + y)
        carried |= 2 * (landing == gold) | (landing == gem)
        survives = 0.9 if landing in enemies else 1.0
        transitions[state, action, 4 * landing + carried] = survives
        transitions[state, action, states - 1] += 1 - survives
    start = np.eye(states)[4 * home]
    return MDP(transitions, transitions @ arrival[:-1], start, 0.95), arrival


def sideways(action: int) -> tuple[tuple[int, int], ...]:
    """The two moves perpendicular to an action."""
    return GRID_MOVES[2:] if action < 2 else GRID_MOVES[:2]


def grid_arrival() -> Floats:
    """Reward for entering each cell; the last entry is termination at the goal."""
    arrival = np.zeros(GRID_SIZE**2 + 1)
    arrival[-1] = 1.0
    for x, y in GRID_SWAMPS:
        arrival[GRID_SIZE * x + y] = -0.5
    return arrival


def child_generators(rngs: Sequence[np.random.Generator]) -> list[np.random.Generator]:
    """Separate generators for the baselines, so that their draws do not shift the logged data drawn afterwards."""
    return [rng.spawn(1)[0] for rng in rngs]


def with_dataset_axis(mdp: MDP) -> MDP:
    """Add the axis for datasets: W worlds `[W, ...]` to `[W, 1, ...]`."""
    return MDP(mdp.transitions[:, None], mdp.rewards[:, None], mdp.start, mdp.discount)


# Baseline policies

BLOCK = 256  # states drawn at once
MAX_DRAWS = 200  # per state, on average; .9^200 is negligible


def baselines(mdp: MDP, quality: float, rngs: Sequence[np.random.Generator]) -> Floats:
    """Stochastic baselines `[W, S, A]` with value V_uniform + quality (V_optimal - V_uniform) at the start.

    First a softmax of the optimal Q-values whose temperature rises until the quality is (1 + quality)/2; then the
    optimal action of random states loses a tenth of its probability at a time until the target is met. Each world has
    its own generator, so that its baseline does not depend on the other worlds.
    """
    optimal = optimal_policy(mdp)
    q = q_values(mdp, optimal)
    worst, best = performance(mdp, np.full(q.shape, 1 / q.shape[-1])), performance(mdp, optimal)
    pi = softmax_with_value(mdp, q, worst + (1 + quality) / 2 * (best - worst))
    return perturb(mdp, pi, q.argmax(-1), worst + quality * (best - worst), rngs)


def softmax_with_value(mdp: MDP, q: Floats, target: Floats) -> Floats:
    """softmax(q / T) `[W, S, A]` with the first 1/T = 2e6 * 0.9^k whose value is not above the target."""
    inverse_temperature = np.full(len(q), 2e6)
    pi = softmax(inverse_temperature[:, None, None] * q)
    above = np.flatnonzero(performance(mdp, pi) > target)
    while above.size:
        inverse_temperature[above] *= 0.9
        pi[above] = softmax(inverse_temperature[above, None, None] * q[above])
        part = MDP(mdp.transitions[above], mdp.rewards[above], mdp.start, mdp.discount)
        above = above[performance(part, pi[above]) > target[above]]
    return pi


def perturb(mdp: MDP, pi: Floats, best: np.ndarray, target: Floats, rngs: Sequence[np.random.Generator]) -> Floats:
    """Reduce the probability of the optimal action in random states until no value is above its target.

    A change in one state changes one row of I - gamma P^pi, so the inverse is updated by the Sherman-Morrison formula.
    """
    pi, inverse = pi.copy(), visitation(mdp, pi)
    rewards = (pi * mdp.rewards).sum(-1)
    start = np.argmax(mdp.start)
    above = np.flatnonzero((inverse[:, start] * rewards).sum(-1) > target)
    step = 0
    while above.size:
        if step == MAX_DRAWS * pi.shape[1]:
            raise ValueError(
                "no baseline of this quality: it is better even without optimal actions; choose a higher one"
            )
        if step % BLOCK == 0:
            draws = np.stack([rng.integers(pi.shape[1], size=BLOCK) for rng in rngs])
        state = draws[above, step % BLOCK]
        step += 1
        row = pi[above, state].copy()
        row[np.arange(above.size), best[above, state]] *= 0.9
        row /= row.sum(-1, keepdims=True)
        change = row - pi[above, state]
        pi[above, state] = row
        rewards[above, state] += (change * mdp.rewards[above, state]).sum(-1)
        moved = -mdp.discount * (change[:, :, None] * mdp.transitions[above, state]).sum(1)
        column = inverse[above, :, state]
        across = (moved[:, None, :] @ inverse[above])[:, 0]
        scale = 1 + (moved * column).sum(-1, keepdims=True)
        inverse[above] -= column[:, :, None] * (across / scale)[:, None, :]
        above = above[(inverse[above, start] * rewards[above]).sum(-1) > target[above]]
    return pi


def softmax(x: Floats) -> Floats:
    """Softmax over the last axis."""
    weight = np.exp(x - x.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


# Logged data


@dataclass(frozen=True)
class Logs:
    """Logged steps `[T, W, D, N]` of N trajectories per dataset: (s, a, s') as one integer, -1 after the end.

    Data sizes count trajectories, or with `by_steps` the steps of the only trajectory.
    """

    steps: np.ndarray
    states: int
    actions: int
    by_steps: bool

    @property
    def pairs(self) -> np.ndarray:
        """Index s*A + a of each step; -1 stays -1."""
        return self.steps // (self.states + 1)

    def first(self, size: int) -> "Logs":
        """The first `size` trajectories or steps, so that smaller datasets are parts of larger ones."""
        return replace(self, steps=self.steps[:size] if self.by_steps else self.steps[..., :size])


def collect_logs(task: Task, uniforms: Floats) -> Logs:
    """Logs of the baseline; one uniform number per step (`[T, W, D, N]`) samples action and successor together.

    All outcomes of all states are in one table of cumulative probabilities, in which state i occupies [i, i+1).
    """
    W, _, S, A = task.beta.shape
    transitions, beta = task.mdp.transitions[:, 0], task.beta[:, 0]
    ending = np.maximum(1 - transitions.sum(-1, keepdims=True), 0)
    outcomes = beta[..., None] * np.concatenate([transitions, np.where(ending > 1e-12, ending, 0)], -1)
    outcomes = outcomes.reshape(W * S, A * (S + 1))
    row, code = np.nonzero(outcomes)
    table = np.cumsum(outcomes, -1)
    table = (np.arange(W * S)[:, None] + table / table[:, -1:])[row, code]
    table[np.flatnonzero(np.diff(row, append=W * S))] = np.arange(1, W * S + 1)  # each ends where the next begins
    following = row - row % S + code % (S + 1)
    following = np.where(code % (S + 1) == S, -1, following).astype(np.int32)
    code = (row % S * A * (S + 1) + code).astype(np.int32)

    first = np.argmax(task.mdp.start) + S * np.arange(W)[:, None, None]
    state = np.broadcast_to(first, uniforms.shape[1:]).astype(np.int32).reshape(-1)
    steps = np.full((len(uniforms), state.size), -1, dtype=np.int32)
    alive = np.arange(state.size)
    for t, uniform in enumerate(uniforms.reshape(len(uniforms), -1)):
        drawn = np.searchsorted(table, state + uniform[alive].astype(float), side="right")
        steps[t, alive] = code[drawn]
        state = following[drawn]
        if (state < 0).any():
            alive, state = alive[state >= 0], state[state >= 0]
    return Logs(steps.reshape(uniforms.shape), S, A, task.continuing)


def count_transitions(logs: Logs) -> np.ndarray:
    """Counts of (s, a, s'), `[W, D, S, A, S + 1]`; the last successor is termination."""
    _, W, D, _ = logs.steps.shape
    S, A = logs.states, logs.actions
    size = S * A * (S + 1)
    offsets = size * np.arange(W * D).reshape(W, D, 1)
    happened = logs.steps >= 0
    found = np.bincount((logs.steps + offsets)[happened], minlength=W * D * size)
    return found.reshape(W, D, S, A, S + 1)


def estimate_model(task: Task, counts: np.ndarray) -> MDP:
    """Maximum-likelihood MDP: empirical transitions and true rewards; an untried pair terminates with reward 0."""
    tries = np.maximum(counts.sum(-1, keepdims=True), 1)
    frequencies = counts / tries
    return MDP(frequencies[..., :-1], frequencies @ task.arrival, task.mdp.start, task.mdp.discount)


def every_visit_monte_carlo(task: Task, logs: Logs) -> Floats:
    """Every-visit Monte-Carlo Q of the baseline `[W, D, S, A]`; 0 for untried pairs.

    In continuing worlds the rewards after the last step are replaced by the mean reward of the data.
    """
    T, W, D, N = logs.steps.shape
    happened = logs.steps >= 0
    rewards = np.where(happened, task.arrival[logs.steps % (logs.states + 1)], 0.0)
    discount = task.mdp.discount
    following = np.zeros((W, D, N))
    if task.continuing:
        following = following + rewards.mean((0, -1), keepdims=True)[0] / (1 - discount)
    returns = np.empty_like(rewards)
    for t in reversed(range(T)):
        following = rewards[t] + discount * following
        returns[t] = following
    size = logs.states * logs.actions
    where = (logs.pairs + size * np.arange(W * D).reshape(W, D, 1))[happened]
    total = np.bincount(where, returns[happened], W * D * size)
    visits = np.bincount(where, minlength=W * D * size)
    return (total / np.maximum(visits, 1)).reshape(W, D, logs.states, logs.actions)
