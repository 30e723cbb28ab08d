"""The worlds of the safe-policy-improvement study: small, and every policy in them can be scored exactly.

A problem is W worlds with the baseline that is logged in each. Where worlds differ by chance (Random MDPs), or only
their baselines do (the gridworld), each has its own generator, so that world i is the same in every study of its seed.
"""

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
class Problem:
    """W worlds `[W, 1, S, A, S]`, their baselines `[W, 1, S, A]`, and what arriving in each state earns.

    `arrival` is `[S + 1]`: the last entry is what the end earns. The axis of length 1 is for datasets.
    """

    mdp: MDP
    arrival: Floats
    beta: Floats

    def __post_init__(self) -> None:
        shape = self.beta.shape
        if len(shape) != 4 or shape[1] != 1 or self.mdp.transitions.shape != (*shape, shape[2]):
            raise ValueError(f"transitions {self.mdp.transitions.shape} and beta {shape} must be [W, 1, S, A, ...]")
        if self.arrival.shape != (shape[2] + 1,):
            raise ValueError(f"arrival has shape {self.arrival.shape}: must be [{shape[2] + 1}], states and the end")

    @property
    def continuing(self) -> bool:
        """True where no step ever ends an episode."""
        return bool((self.mdp.transitions.sum(-1) > 1 - 1e-9).all())


def random_mdps(quality: float, rngs: Sequence[np.random.Generator]) -> Problem:
    """Random MDPs, one a generator, with baselines of this quality."""
    worlds = [random_world(rng) for rng in rngs]
    mdp = MDP(np.stack([w.transitions for w in worlds]), np.stack([w.rewards for w in worlds]), worlds[0].start, 0.95)
    beta = baselines(mdp, quality, own(rngs))
    arrival = np.eye(mdp.start.size + 1)[-1]  # the end is the goal
    return Problem(one_dataset(mdp), arrival, beta[:, None])


def random_world(rng: np.random.Generator, states: int = 50, actions: int = 4, branches: int = 4) -> MDP:
    """A random MDP with one goal, as hard to reach as discounting allows: reward 1 and the end on entering it.

    Every pair has `branches` successors, with the gaps of sorted uniforms as probabilities. Of all goals the one with
    the smallest optimal value at state 0 is taken that is still above discount^states.
    """
    discount = 0.95
    cuts = np.sort(rng.random((states, actions, branches - 1)))
    gaps = np.diff(cuts, prepend=0.0, append=1.0)
    successors = np.sort(rng.random((states, actions, states)).argpartition(branches - 1)[..., :branches])
    transitions = np.zeros((states, actions, states))
    np.put_along_axis(transitions, successors, gaps, -1)
    goals = np.arange(1, states)
    worlds = with_goals(transitions, goals, discount)
    value = performance(worlds, optimal_policy(worlds))
    chosen = int(np.argmin(np.where(value > discount**states, value, np.inf)))
    return MDP(worlds.transitions[chosen], worlds.rewards[chosen], worlds.start, discount)


def with_goals(transitions: Floats, goals: np.ndarray, discount: float) -> MDP:
    """One MDP a goal `[G, S, A, S]`: entering the goal earns 1 and ends the episode."""
    entering = np.moveaxis(transitions[..., goals], -1, 0)
    worlds = np.tile(transitions, (len(goals), 1, 1, 1))
    which = np.arange(len(goals))
    worlds[which, :, :, goals] = 0  # what would enter the goal ends instead
    worlds[which, goals] = 0
    rewards = entering.copy()
    rewards[which, goals] = 0
    return MDP(worlds, rewards, np.eye(transitions.shape[0])[0], discount)


def wet_chicken(epsilon: float) -> Problem:
    """Wet Chicken, one world, with the heuristic canoeist who acts at random with probability epsilon."""
    arrival = np.append(np.arange(CHICKEN_SIZE**2) // CHICKEN_SIZE, 0.0)
    river = wet_chicken_river()
    return Problem(
        one_dataset(MDP(river.transitions[None], river.rewards[None], river.start, river.discount)),
        arrival,
        wet_chicken_baseline(epsilon)[None, None],
    )


def wet_chicken_river() -> MDP:
    """A canoe above a waterfall: the nearer (x), the better the reward, and the sooner it falls and starts anew.

    State 5x + y on a 5x5 river, reward x after the step, discount .95, no end. The stream v = 3y/5 and a turbulence
    uniform in (3.5 - v) [-1, 1] move x; it is rounded, so each x' has the probability of an interval of length 1.
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
    """The heuristic canoeist, who holds the middle of the river two fields above the fall; at random at times."""
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


def gridworlds(quality: float, rngs: Sequence[np.random.Generator]) -> Problem:
    """The gridworld, with as many different baselines of this quality as there are generators."""
    grid = gridworld()
    W = len(rngs)
    mdp = MDP(np.tile(grid.transitions, (W, 1, 1, 1)), np.tile(grid.rewards, (W, 1, 1)), grid.start, grid.discount)
    return Problem(one_dataset(mdp), grid_arrival(), baselines(mdp, quality, own(rngs))[:, None])


def gridworld() -> MDP:
    """Five by five fields with swamps between the start in one corner and the goal in the other, and slippery ground.

    Four moves; one in five slips to either side; the border holds. The goal earns 1 and ends the episode, a swamp costs
    half of that each time it is entered. Discount .95.
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


def sideways(action: int) -> tuple[tuple[int, int], ...]:
    """The two moves across."""
    return GRID_MOVES[2:] if action < 2 else GRID_MOVES[:2]


def grid_arrival() -> Floats:
    """What entering each field earns, and at last the end, which is the goal."""
    arrival = np.zeros(GRID_SIZE**2 + 1)
    arrival[-1] = 1.0
    for x, y in GRID_SWAMPS:
        arrival[GRID_SIZE * x + y] = -0.5
    return arrival


def own(rngs: Sequence[np.random.Generator]) -> list[np.random.Generator]:
    """Generators for the baselines: how many numbers one takes must not shift the data that are drawn afterwards."""
    return [rng.spawn(1)[0] for rng in rngs]


def one_dataset(mdp: MDP) -> MDP:
    """W worlds `[W, ...]` with an axis for datasets, `[W, 1, ...]`."""
    return MDP(mdp.transitions[:, None], mdp.rewards[:, None], mdp.start, mdp.discount)


# ---- from rbi.lab.baselines: Baseline policies of a stated quality, for many worlds at once.

BLOCK = 256  # states drawn at a time
PATIENCE = 200  # times that each state may be drawn, on average; .9^200 is nothing


def baselines(mdp: MDP, quality: float, rngs: Sequence[np.random.Generator]) -> Floats:
    """Stochastic policies `[W, S, A]` whose values stand `quality` of the way from the uniform to the optimal policy's.

    First the softmax of optimal Q-values, cooled less and less until it stands at (1 + quality)/2; then, state by state
    at random, the best action becomes rarer by a tenth until the target is met. Each world (`[W, ...]`) has its own
    generator, so its baseline does not depend on the company.
    """
    optimal = optimal_policy(mdp)
    q = q_values(mdp, optimal)
    worst, best = performance(mdp, np.full(q.shape, 1 / q.shape[-1])), performance(mdp, optimal)
    pi = warmest_softmax(mdp, q, worst + (1 + quality) / 2 * (best - worst))
    return perturbed(mdp, pi, q.argmax(-1), worst + quality * (best - worst), rngs)


def warmest_softmax(mdp: MDP, q: Floats, target: Floats) -> Floats:
    """softmax(coldness * q) `[W, S, A]`, with coldness 2e6 times a power of 0.9: the first that is not above target."""
    coldness = np.full(len(q), 2e6)
    pi = softmax(coldness[:, None, None] * q)
    above = np.flatnonzero(performance(mdp, pi) > target)
    while above.size:
        coldness[above] *= 0.9
        pi[above] = softmax(coldness[above, None, None] * q[above])
        part = MDP(mdp.transitions[above], mdp.rewards[above], mdp.start, mdp.discount)
        above = above[performance(part, pi[above]) > target[above]]
    return pi


def perturbed(mdp: MDP, pi: Floats, best: np.ndarray, target: Floats, rngs: Sequence[np.random.Generator]) -> Floats:
    """Make the best action of one random state after the other rarer, until no value is above its target.

    A change in one state changes one row of I - gamma P^pi, so the inverse follows by Sherman and Morrison's formula.
    """
    pi, inverse = pi.copy(), visitation(mdp, pi)
    rewards = (pi * mdp.rewards).sum(-1)
    start = np.argmax(mdp.start)
    above = np.flatnonzero((inverse[:, start] * rewards).sum(-1) > target)
    step = 0
    while above.size:
        if step == PATIENCE * pi.shape[1]:
            raise ValueError("no baseline of this quality: even without best actions one is better; ask for a higher")
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
    weight = np.exp(x - x.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


# ---- from rbi.lab.logs: Logged experience of a baseline in many finite worlds at once: recording, counting, models and Monte-Carlo values.
#
# W worlds have D datasets each: transitions `[W, 1, S, A, S]`, baseline `[W, 1, S, A]`, counts and models `[W, D, ...]`.
# Many worlds with one dataset (Random MDPs) and one world with many datasets (Wet Chicken) are the same to it.


@dataclass(frozen=True)
class Logs:
    """Steps `[T, W, D, N]` of N trajectories a dataset: state, action and successor in one number, -1 after the end.

    Data sizes count trajectories, or the steps of the only one.
    """

    steps: np.ndarray
    states: int
    actions: int
    by_steps: bool

    @property
    def pairs(self) -> np.ndarray:
        """The number s*A + a of each step; -1 stays -1."""
        return self.steps // (self.states + 1)

    def first(self, size: int) -> "Logs":
        """The first `size` trajectories or steps: smaller logs lie inside larger ones."""
        return replace(self, steps=self.steps[:size] if self.by_steps else self.steps[..., :size])


def record(problem: Problem, uniforms: Floats) -> Logs:
    """Let the baseline act: one uniform number a step (`[T, W, D, N]`) draws the action and the successor together.

    All outcomes of all states stand in one table of cumulated probabilities, where state i has the stretch [i, i+1).
    """
    W, _, S, A = problem.beta.shape
    transitions, beta = problem.mdp.transitions[:, 0], problem.beta[:, 0]
    ending = np.maximum(1 - transitions.sum(-1, keepdims=True), 0)
    outcomes = beta[..., None] * np.concatenate([transitions, np.where(ending > 1e-12, ending, 0)], -1)
    outcomes = outcomes.reshape(W * S, A * (S + 1))
    row, code = np.nonzero(outcomes)
    table = np.cumsum(outcomes, -1)
    table = (np.arange(W * S)[:, None] + table / table[:, -1:])[row, code]
    table[np.flatnonzero(np.diff(row, append=W * S))] = np.arange(1, W * S + 1)  # a stretch ends where the next begins
    following = row - row % S + code % (S + 1)
    following = np.where(code % (S + 1) == S, -1, following).astype(np.int32)
    code = (row % S * A * (S + 1) + code).astype(np.int32)

    first = np.argmax(problem.mdp.start) + S * np.arange(W)[:, None, None]
    state = np.broadcast_to(first, uniforms.shape[1:]).astype(np.int32).reshape(-1)
    steps = np.full((len(uniforms), state.size), -1, dtype=np.int32)
    alive = np.arange(state.size)
    for t, uniform in enumerate(uniforms.reshape(len(uniforms), -1)):
        drawn = np.searchsorted(table, state + uniform[alive].astype(float), side="right")
        steps[t, alive] = code[drawn]
        state = following[drawn]
        if (state < 0).any():
            alive, state = alive[state >= 0], state[state >= 0]
    return Logs(steps.reshape(uniforms.shape), S, A, problem.continuing)


def count(logs: Logs) -> np.ndarray:
    """How often each successor followed each pair, `[W, D, S, A, S + 1]`; the last successor is the end."""
    _, W, D, _ = logs.steps.shape
    S, A = logs.states, logs.actions
    size = S * A * (S + 1)
    offsets = size * np.arange(W * D).reshape(W, D, 1)
    happened = logs.steps >= 0
    found = np.bincount((logs.steps + offsets)[happened], minlength=W * D * size)
    return found.reshape(W, D, S, A, S + 1)


def model(problem: Problem, counts: np.ndarray) -> MDP:
    """The maximum-likelihood world: relative frequencies and true rewards; a pair never tried leads nowhere, for 0."""
    tries = np.maximum(counts.sum(-1, keepdims=True), 1)
    frequencies = counts / tries
    return MDP(frequencies[..., :-1], frequencies @ problem.arrival, problem.mdp.start, problem.mdp.discount)


def every_visit_monte_carlo(problem: Problem, logs: Logs) -> Floats:
    """Q `[W, D, S, A]` of the baseline as mean returns after each visit; 0 where there is none.

    Where the world goes on for ever, what lies behind the last step is filled in with the mean reward of the data.
    """
    T, W, D, N = logs.steps.shape
    happened = logs.steps >= 0
    rewards = np.where(happened, problem.arrival[logs.steps % (logs.states + 1)], 0.0)
    discount = problem.mdp.discount
    following = np.zeros((W, D, N))
    if problem.continuing:
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
