"""The worlds of the safe-policy-improvement study: small, and every policy in them can be scored exactly."""

import numpy as np

from rbi.lab.mdp import MDP, Floats, optimal_policy, performance, q_values

CHICKEN_SIZE = 5
CHICKEN_MOVES = ((0, 0), (-1, 0), (-2, 0), (0, -1), (0, 1))  # drift, hold, paddle back, left, right


def wet_chicken() -> MDP:
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


def random_world(rng: np.random.Generator, states: int = 50, actions: int = 4, branches: int = 4) -> MDP:
    """A random MDP with one goal, as hard to reach as discounting allows: reward 1 and the end on entering it.

    Every pair has `branches` successors, with the gaps of sorted uniforms as probabilities. Of all goals the one with
    the smallest optimal value at state 0 is taken that is still above discount^states.
    """
    discount = 0.95
    transitions = np.zeros((states, actions, states))
    for s, a in np.ndindex(states, actions):
        cuts = np.sort(rng.random(branches - 1))
        gaps = np.diff(np.concatenate([[0.0], cuts, [1.0]]))
        transitions[s, a, rng.choice(states, branches, replace=False)] = gaps
    goals = np.arange(1, states)
    worlds = with_goals(transitions, goals, discount)
    value = performance(worlds, optimal_policy(worlds))
    chosen = goals[np.argmin(np.where(value > discount**states, value, np.inf))]
    one = with_goals(transitions, np.array([chosen]), discount)
    return MDP(one.transitions[0], one.rewards[0], one.start, discount)


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


def baseline(mdp: MDP, quality: float, rng: np.random.Generator) -> Floats:
    """A stochastic policy whose value stands `quality` of the way from the uniform policy's to the optimal one's.

    First the softmax of optimal Q-values, cooled less and less until it stands at (1 + quality)/2; then, state by state
    at random, the best action becomes rarer by a tenth until the target is met.
    """
    q = q_values(mdp, optimal_policy(mdp))
    uniform = np.full(q.shape, 1 / q.shape[-1])
    worst, best = performance(mdp, uniform), performance(mdp, optimal_policy(mdp))
    coldness = 2e6
    pi = softmax(coldness * q)
    while performance(mdp, pi) > worst + (1 + quality) / 2 * (best - worst):
        coldness *= 0.9
        pi = softmax(coldness * q)
    while performance(mdp, pi) > worst + quality * (best - worst):
        state = rng.integers(len(pi))
        pi[state, q[state].argmax()] *= 0.9
        pi[state] /= pi[state].sum()
    return pi


def softmax(x: Floats) -> Floats:
    weight = np.exp(x - x.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)
