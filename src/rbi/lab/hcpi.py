"""High-confidence policy improvement: deploy a candidate only if a test on held-out logs says that it is better."""

from dataclasses import replace

import numpy as np
from scipy import stats

from rbi.lab.improvers import Evidence, basic_rl
from rbi.lab.logs import Logs
from rbi.lab.mdp import Floats, lookahead, values

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
    expected = np.stack([lower_bound(gains(train, pi, train.logs), delta, held_out) for pi in candidates])
    chosen = np.take_along_axis(np.stack(candidates), expected.argmax(0)[None, ..., None, None], 0)[0]
    test = replace(pieces, steps=pieces.steps[..., n:])
    accepted = lower_bound(gains(train, chosen, test), delta, held_out) > 0
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


def lower_bound(samples: Floats, delta: float, size: int) -> Floats:
    """Student's lower bound at level delta on the mean of `size` samples `[...]`, with mean and spread from these."""
    mean = samples.mean(-1)
    if samples.shape[-1] < 2:
        return mean  # nothing is known of the spread: any candidate may be tried
    return mean - stats.t.isf(delta, size - 1) * samples.std(-1, ddof=1) / np.sqrt(size)
