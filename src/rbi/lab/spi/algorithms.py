"""Safe policy improvement from logs: the field's algorithms and ours, for many datasets at once.

Nearly all of them are one policy iteration in an estimated world, inside a reroute set of the baseline: bounds
c_min <= pi/beta <= c_max on every action. Greedy RL has none, SPIBB frees what was tried often, the paper's reroute
bounds all alike, and count-aware reroute bounds each action by its count. Every improver takes `Evidence` and returns
policies `[W, D, S, A]`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rbi.lab.mdp import MDP, Floats, lookahead, q_values, values
from rbi.lab.spi.worlds import Logs, Problem, count, every_visit_monte_carlo, model
from rbi.rules.counts import count_bounds
from rbi.rules.linear import greedy, max_reroute
from rbi.statistics import student_lower_bound

MOST_ITERATIONS = 100
PRIOR = 10.0  # tries, of the cautious world (docs/count-aware.md)
SAME = 1e-9  # Q-values that differ by less are the same: the iteration has ended

Improve = Callable[[Floats, Floats, np.ndarray], Floats]  # Q-values, the policy, which datasets -> a new policy


@dataclass(frozen=True)
class Evidence:
    """What an algorithm may know: the baseline, the logs, and the world that they make most likely."""

    problem: Problem
    logs: Logs

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each successor followed each pair `[W, D, S, A, S + 1]`."""
        return count(self.logs)

    @cached_property
    def tries(self) -> np.ndarray:
        """How often each pair was tried `[W, D, S, A]`."""
        found: np.ndarray = self.counts.sum(-1)
        return found

    @cached_property
    def model(self) -> MDP:
        return model(self.problem, self.counts)

    @cached_property
    def beta(self) -> Floats:
        """The baseline, for each dataset `[W, D, S, A]`."""
        return np.broadcast_to(self.problem.beta, self.tries.shape)


def baseline(seen: Evidence) -> Floats:
    """The policy that wrote the logs."""
    return seen.beta


def basic_rl(seen: Evidence) -> Floats:
    """The optimal policy of the estimated world, as if it were the true one."""
    return iterate(seen.model, seen.beta, lambda q, pi, _: greedy(pi, q, check=False))


def pi_b_spibb(seen: Evidence, n_wedge: float) -> Floats:
    """Pi_b-SPIBB: pairs tried more than n_wedge times are free, all others keep the baseline's probability."""
    known = seen.tries > n_wedge
    return inside(seen.model, seen.beta, np.where(known, 0.0, 1.0), free(seen.beta, known))


def pi_le_b_spibb(seen: Evidence, n_wedge: float) -> Floats:
    """Pi_<=b-SPIBB: pairs tried more than n_wedge times are free, others may not exceed the baseline's probability."""
    return inside(seen.model, seen.beta, np.zeros(seen.beta.shape), free(seen.beta, seen.tries > n_wedge))


def soft_spibb(seen: Evidence, epsilon: float, delta: float = 1.0) -> Floats:
    """Approx-Soft-SPIBB: sum_a e(s,a) |pi - beta| <= epsilon, e = sqrt(2 ln(2 S A / delta) / n), infinite for 0."""
    _, _, S, A = seen.tries.shape
    tries = seen.tries.reshape(-1, S, A)
    errors = np.where(tries > 0, np.sqrt(2 * np.log(2 * S * A / delta) / np.maximum(tries, 1)), np.inf)
    beta = seen.beta.reshape(-1, S, A)

    def improve(q: Floats, pi: Floats, at: np.ndarray) -> Floats:
        new = soft_step(q, beta[at], errors[at], epsilon)
        better = (new * q).sum(-1) >= (pi * q).sum(-1)  # the step is approximate: keep what is better
        return np.where(better[..., None], new, pi)

    return iterate(seen.model, seen.beta, improve)


def soft_step(q: Floats, beta: Floats, errors: Floats, epsilon: float) -> Floats:
    """Move mass from the worst action up, to where it gains most a unit of error, while the budget of errors lasts.

    Half of what is left of the budget may go to either side of a move. (The published code looks at the worse side once
    only, before several moves, and so can spend more than there is.)
    """
    pi, left = beta.copy(), np.full(q.shape[:-1], float(epsilon))
    cost = np.where(np.isfinite(errors), errors, 0.0)  # nothing moves at an infinite error
    for worst in np.moveaxis(np.argsort(q, -1, kind="stable"), -1, 0):
        going = np.ones(left.shape, dtype=bool)
        gain = (q - pick(q, worst)[..., None]) / errors
        for best in np.moveaxis(np.argsort(-gain, -1, kind="stable"), -1, 0)[:-1]:
            going &= pick(gain, best) > 0  # from here on nothing gains
            affordable = left / (2 * np.maximum(pick(errors, worst), pick(errors, best)))
            moved = np.where(going, np.minimum(pick(pi, worst), affordable), 0.0)
            left = left - moved * (pick(cost, worst) + pick(cost, best))
            np.put_along_axis(pi, worst[..., None], (pick(pi, worst) - moved)[..., None], -1)
            np.put_along_axis(pi, best[..., None], (pick(pi, best) + moved)[..., None], -1)
    return pi


def ramdp(seen: Evidence, kappa: float) -> Floats:
    """Reward-adjusted MDP: every step costs kappa / sqrt(n), and a pair never tried as much as nothing can repay."""
    world = seen.model
    tries = np.where(seen.tries > 0, seen.tries, 1e-5)
    cautious = MDP(world.transitions, world.rewards - kappa / np.sqrt(tries), world.start, world.discount)
    return iterate(cautious, seen.beta, lambda q, pi, _: greedy(pi, q, check=False))


def rbi_monte_carlo(seen: Evidence, c_min: float, c_max: float) -> Floats:
    """The paper's step: Max-Reroute with Monte-Carlo Q-values of the baseline."""
    return max_reroute(seen.beta, every_visit_monte_carlo(seen.problem, seen.logs), c_min, c_max, check=False)


def rbi_model(seen: Evidence, c_min: float, c_max: float) -> Floats:
    """The same step with the baseline's Q-values in the estimated world."""
    return max_reroute(seen.beta, q_values(seen.model, seen.beta), c_min, c_max, check=False)


def rbi_iterated(seen: Evidence, c_min: float, c_max: float) -> Floats:
    """Policy iteration inside the reroute set of the baseline."""
    shape = seen.beta.shape
    return inside(seen.model, seen.beta, np.full(shape, c_min), np.full(shape, c_max))


def count_aware(seen: Evidence, tau: float) -> Floats:
    """Policy iteration inside the count-aware reroute set, in a cautious world. `docs/count-aware.md` derives it."""
    c_min, c_max = count_bounds(seen.beta, seen.tries, tau, check=False)
    return inside(cautious_model(seen), seen.beta, c_min, c_max)


def count_aware_draining(seen: Evidence, tau: float) -> Floats:
    """The same, but actions never tried may lose probability: what keeping theirs costs, and not a safe method."""
    c_min, c_max = count_bounds(seen.beta, seen.tries, tau, check=False)
    return inside(cautious_model(seen), seen.beta, np.zeros_like(c_min), c_max)


def cautious_model(seen: Evidence) -> MDP:
    """The estimated world, seen with PRIOR tries more of every pair that went as the baseline goes in that state.

    A pair never tried is then worth what its state is worth, not nothing. The less its own tries say, the more a step
    costs: the prior's share of them times sigma / (tries in all), with sigma the spread of r + gamma V(s') that all
    pairs share.
    """
    world, tries = seen.model, seen.tries
    weight = seen.beta * (tries > 0)
    weight = weight / np.maximum(weight.sum(-1, keepdims=True), 1e-12)
    usual_transitions = weight[..., None, :] @ world.transitions  # [W, D, S, 1, S]
    usual_rewards = (weight * world.rewards).sum(-1, keepdims=True)
    doubt = PRIOR / (tries + PRIOR)
    transitions = (1 - doubt)[..., None] * world.transitions + doubt[..., None] * usual_transitions
    cost = spread(seen)[..., None, None] * doubt / (tries + PRIOR)
    rewards = (1 - doubt) * world.rewards + doubt * usual_rewards - cost
    return MDP(transitions, rewards, world.start, world.discount)


def spread(seen: Evidence) -> Floats:
    """The pooled standard deviation `[W, D]` of r + gamma V^beta(s') around its mean of each pair."""
    v = values(seen.model, seen.beta)
    targets = seen.problem.arrival + seen.model.discount * np.concatenate([v, np.zeros_like(v[..., :1])], -1)
    total = seen.counts @ targets[..., None, :, None]
    squares = seen.counts @ (targets**2)[..., None, :, None]
    tries = seen.tries
    within = squares[..., 0] - total[..., 0] ** 2 / np.maximum(tries, 1)
    freedom = np.maximum(tries - 1, 0).sum((-2, -1))
    return np.sqrt(np.maximum(within.sum((-2, -1)), 0) / np.maximum(freedom, 1))


def inside(world: MDP, beta: Floats, c_min: Floats, c_max: Floats) -> Floats:
    """Policy iteration in an estimated world, inside the reroute set c_min <= pi/beta <= c_max `[W, D, S, A]`."""
    _, _, S, A = beta.shape
    base, low, high = (x.reshape(-1, S, A) for x in (beta, c_min, c_max))
    return iterate(world, beta, lambda q, _, at: max_reroute(base[at], q, low[at], high[at], check=False))


def iterate(world: MDP, beta: Floats, improve: Improve) -> Floats:
    """Evaluate, improve, until Q stays: from the baseline, all datasets together, each as long as it needs."""
    *_, S, A = beta.shape
    transitions, rewards = world.transitions.reshape(-1, S, A, S), world.rewards.reshape(-1, S, A)
    pi = beta.reshape(-1, S, A).copy()
    at, before = np.arange(len(pi)), np.full(rewards.shape, np.inf)
    for _ in range(MOST_ITERATIONS):
        part = transitions if at.size == len(pi) else transitions[at]
        q = evaluate(part, rewards[at], world.discount, pi[at])
        moving = abs(q - before).max((1, 2)) > SAME
        at, before = at[moving], q[moving]
        if not at.size:
            break
        pi[at] = improve(before, pi[at], at)
    return pi.reshape(beta.shape)


def evaluate(transitions: Floats, rewards: Floats, discount: float, pi: Floats) -> Floats:
    """Q^pi `[M, S, A]`, as `q_values` has it, without looking at the world first: for the inner loop."""
    M, S, A = rewards.shape
    bellman = np.eye(S) - discount * (pi[:, :, None, :] @ transitions)[:, :, 0]
    v = np.linalg.solve(bellman, (pi * rewards).sum(-1)[..., None])
    return rewards + discount * (transitions.reshape(M, S * A, S) @ v).reshape(M, S, A)


def free(beta: Floats, known: np.ndarray) -> Floats:
    """c_max that lets known actions take all mass, and no other exceed beta."""
    return np.where(known & (beta > 0), 1 / np.where(beta > 0, beta, 1.0), 1.0)


def pick(x: Floats, index: np.ndarray) -> Floats:
    """x[..., index] for one index a row."""
    return np.take_along_axis(x, index[..., None], -1)[..., 0]


# ---- from rbi.lab.hcpi: High-confidence policy improvement: deploy a candidate only if a test on held-out logs says that it is better.

TRAINING = 0.2  # share of the trajectories that make the candidate; the others judge it
MIXTURES = np.arange(1, 11) / 10  # how much of the greedy policy a candidate has
PIECE = 50  # steps: a trajectory without end is cut into pieces of this length


def hcpi(seen: Evidence, delta: float) -> Floats:
    """The candidate where a t-test at level `delta` says that it beats the baseline, elsewhere the baseline.

    Candidates mix the baseline with the greedy policy of the training part's model; the training part also chooses
    among them, by the lower bound it expects of the test. Both parts are judged by doubly robust estimates of what a
    candidate earns more than the baseline, trajectory by trajectory, with the training part's model. Only the choice is
    tested, so the bound is a true one. In a world that goes on for ever, pieces of its one trajectory are the samples.
    """
    pieces = cut(seen.logs)
    trajectories = pieces.steps.shape[-1]
    n = training_part(trajectories)
    train = Evidence(seen.problem, pieces.first(n))
    best = basic_rl(train)
    held_out = trajectories - n
    if held_out < 2:
        return seen.beta
    candidates = [(1 - w) * seen.beta + w * best for w in MIXTURES]
    expected = np.stack([student_lower_bound(gains(train, pi, train.logs), delta, held_out) for pi in candidates])
    chosen = np.take_along_axis(np.stack(candidates), expected.argmax(0)[None, ..., None, None], 0)[0]
    test = replace(pieces, steps=pieces.steps[..., n:])
    accepted = student_lower_bound(gains(train, chosen, test), delta, held_out) > 0
    return np.where(accepted[..., None, None], chosen, seen.beta)


def training_part(trajectories: int) -> int:
    """How many trajectories make the candidate: a fifth of them, at least one."""
    return max(1, int(TRAINING * trajectories))


def cut(logs: Logs) -> Logs:
    """Trajectories as they are; an endless one in pieces `[PIECE, W, D, T/PIECE]`, the rest of it left out."""
    T, W, D, _ = logs.steps.shape
    if not logs.by_steps or T < 2 * PIECE:
        return replace(logs, by_steps=False)
    whole = T // PIECE
    steps = logs.steps[: whole * PIECE].reshape(whole, PIECE, W, D)
    return replace(logs, steps=np.moveaxis(steps, 0, -1), by_steps=False)


def gains(train: Evidence, pi: Floats, logs: Logs) -> Floats:
    """What pi earns more than beta on each trajectory `[W, D, N]`, by doubly robust estimates of both.

        DR = V(s) + pi/beta (r + gamma DR' - Q(s, a)),    backwards

    After the end comes 0. Where the logs break off, both go on as the baseline would: the model's value of a candidate
    that was made to look good in it would let every candidate pass.
    """
    return doubly_robust(train, pi, logs) - doubly_robust(train, train.beta, logs)


def doubly_robust(train: Evidence, pi: Floats, logs: Logs) -> Floats:
    T, W, D, N = logs.steps.shape
    S, A = logs.states, logs.actions
    v = values(train.model, pi)
    q = lookahead(train.model, v).reshape(W * D, S * A)
    ratio = (pi / np.where(train.beta > 0, train.beta, 1.0)).reshape(W * D, S * A)
    v = v.reshape(W * D, S)
    afterwards = np.append(values(train.model, train.beta).reshape(W * D, S), np.zeros((W * D, 1)), -1)
    row = np.arange(W * D)[:, None]
    steps = logs.steps.reshape(T, W * D, N)
    following = afterwards[row, steps[-1] % (S + 1)]
    for step in steps[::-1]:
        happened = step >= 0
        pair, reached = step // (S + 1), step % (S + 1)
        after = np.where(reached == S, 0.0, following)
        gained = train.problem.arrival[reached] + train.model.discount * after - q[row, pair]
        following = np.where(happened, v[row, pair // A] + ratio[row, pair] * gained, following)
    return following.reshape(W, D, N)
