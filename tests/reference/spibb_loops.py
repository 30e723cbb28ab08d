"""Published safe-policy-improvement algorithms as their papers write them: slow references for the tests."""

import numpy as np
from scipy.optimize import linprog


def best_first(q):
    """Actions by descending Q, ties by index."""
    return sorted(range(len(q)), key=lambda a: (-q[a], a))


def pi_b_spibb(beta, q, known):
    """Unknown actions keep beta; the best known one gets the rest."""
    pi = np.where(known, 0.0, beta)
    for a in best_first(q):
        if known[a]:
            pi[a] = 1 - np.where(known, 0.0, beta).sum()
            return pi
    return beta.copy()


def pi_le_b_spibb(beta, q, known):
    """In descending order of Q: unknown actions get at most beta, the first known one the rest."""
    pi, left = np.zeros_like(beta), 1.0
    for a in best_first(q):
        pi[a] = left if known[a] else min(beta[a], left)
        left -= pi[a]
    return pi


def soft_spibb(beta, q, errors, epsilon):
    """Approx-Soft-SPIBB: mass moves from the worst actions to the largest gain per unit of error."""
    pi, left = beta.copy(), epsilon
    for worst in sorted(range(len(q)), key=lambda a: (q[a], a)):
        for best in best_first((q - q[worst]) / errors):
            if q[best] <= q[worst] or np.isinf(errors[best]):
                break  # later actions do not gain either
            if np.isfinite(errors[worst]):
                moved = min(pi[worst], left / (2 * errors[worst]), left / (2 * errors[best]))
                pi[worst] -= moved
                pi[best] += moved
                left -= moved * (errors[worst] + errors[best])
    return pi


def lower_soft_spibb(beta, q, errors, epsilon):
    """Lower-Approx-Soft-SPIBB: only added probability costs."""
    pi, left = beta.copy(), epsilon
    for worst in sorted(range(len(q)), key=lambda a: (q[a], a)):
        for best in best_first((q - q[worst]) / errors):
            if q[best] <= q[worst] or np.isinf(errors[best]):
                break
            moved = min(pi[worst], left / errors[best])
            pi[worst] -= moved
            pi[best] += moved
            left -= moved * errors[best]
    return pi


def adv_soft_spibb(beta, q, errors, epsilon, q_beta):
    """Adv-Approx-Soft-SPIBB: a move that loses by q_beta is paid from what earlier moves gained."""
    pi, left, gained = beta.copy(), epsilon, 0.0
    for worst in sorted(range(len(q)), key=lambda a: (q[a], a)):
        for best in best_first((q - q[worst]) / errors):
            if q[best] <= q[worst] or np.isinf(errors[best]):
                break
            if np.isfinite(errors[worst]):
                moved = min(pi[worst], left / (2 * errors[worst]), left / (2 * errors[best]))
                gain = q_beta[best] - q_beta[worst]
                if gain < 0:
                    moved = min(moved, gained / -gain)
                gained = max(gained + gain * moved, 0.0)
                pi[worst] -= moved
                pi[best] += moved
                left -= moved * (errors[worst] + errors[best])
    return pi


def exact_soft_spibb(beta, q, errors, epsilon):
    """The linear program of Exact-Soft-SPIBB, in pi and |pi - beta|; actions with infinite errors keep beta."""
    A, finite = len(q), np.isfinite(errors)
    one = np.eye(A)
    rows = np.vstack(
        [np.hstack([one, -one]), np.hstack([-one, -one]), np.append(np.zeros(A), np.where(finite, errors, 0))]
    )
    limits = np.concatenate([beta, -beta, [epsilon]])
    fixed = np.hstack([one, np.zeros((A, A))])[~finite]
    equal = np.vstack([np.append(np.ones(A), np.zeros(A)), fixed])
    found = linprog(np.append(-q, np.zeros(A)), rows, limits, equal, np.append(1.0, beta[~finite]))
    return found.x[:A]


def r_min(counts, arrival, discount, n_wedge):
    """R-MIN by value iteration; counts `[S, A, S + 1]` with termination last. Returns Q."""
    S, A, _ = counts.shape
    q = np.zeros((S, A))
    for _ in range(400):
        after = arrival + discount * np.append(q.max(1), 0)
        for s, a in np.ndindex(S, A):
            n = counts[s, a].sum()
            q[s, a] = counts[s, a] @ after / n if n > n_wedge else arrival.min() / (1 - discount)
    return q


def mbie(counts, arrival, discount, delta):
    """MDP-MBIE by value iteration; the worst transitions of each pair are found one successor at a time."""
    S, A, _ = counts.shape
    q = np.zeros((S, A))
    for _ in range(250):
        after = arrival + discount * np.append(q.max(1), 0)
        order = np.argsort(-after, kind="stable")
        worst = order[-1]
        for s, a in np.ndindex(S, A):
            n = counts[s, a].sum()
            radius = np.sqrt(2 * np.log(2 * S * A * (2.0**S - 2) / delta) / n) if n else 2.0
            p = counts[s, a] / max(n, 1)
            added = min(min(radius, 2.0) / 2, 1 - p[worst])
            p[worst] += added
            for better in order[:-1]:  # an untried pair reaches the worst successor
                taken = min(added, p[better])
                p[better] -= taken
                added -= taken
            q[s, a] = p @ after
    return q


def duipi(p, var_p, arrival, discount, tried, xi, sweeps, tolerance):
    """DUIPI with loops over pairs: P and Var P `[S, A, S + 1]`, termination last."""
    S, A = tried.shape
    pi, q, var_q = np.full((S, A), 1 / A), np.zeros((S, A)), np.zeros((S, A))
    for t in range(1, sweeps + 1):
        v, var_v = np.append((pi * q).sum(1), 0), np.append((pi**2 * var_q).sum(1), 0)
        after, before = arrival + discount * v, q.copy()
        for s, a in np.ndindex(S, A):
            q[s, a] = p[s, a] @ after
            var_q[s, a] = (discount * p[s, a]) ** 2 @ var_v + var_p[s, a] @ after**2
        score = np.where(tried, q - xi * np.sqrt(var_q), -np.inf)
        for s in range(S):
            best = score[s].argmax()
            step = min(1 / t, 1 - pi[s, best])
            rest = 1 - pi[s, best]
            for a in range(A):
                if a != best:
                    pi[s, a] *= (rest - step) / rest if rest > step else 0.0
            pi[s, best] += step
        if np.linalg.norm(q - before) <= tolerance:
            break
    return pi


def learned_prior(counts, beta, arrival, discount, v):
    """The learned prior of count-aware reroute with loops: advantages `[S, A]`, variances `[S]`, worth in samples."""
    S, A = beta.shape
    targets = arrival + discount * np.append(v, 0.0)
    variance = state_variances(counts, targets)
    x, a, m, noise, scale = (np.zeros((S, A)) for _ in range(5))
    for s in range(S):
        n = counts[s].sum(-1)
        tried = [b for b in range(A) if n[b] > 0]
        if not tried:
            continue
        share = {b: beta[s, b] / beta[s, tried].sum() for b in tried}
        mean = {b: counts[s, b] @ targets / n[b] for b in tried}
        for b in range(A):
            x[s, b] = np.log(beta[s, b]) - sum(share[c] * np.log(beta[s, c]) for c in tried)
            m[s, b] = min(n[b], 10) / variance[s]
            if b in tried:
                a[s, b] = mean[b] - sum(share[c] * mean[c] for c in tried)
                weights = {c: (c == b) - share[c] for c in tried}
                noise[s, b] = variance[s] * sum(weights[c] ** 2 / n[c] for c in tried)
                scale[s, b] = variance[s] * sum(weights[c] ** 2 for c in tried)
    temperature = max((m * x * a).sum() / (m * x**2).sum(), 0.0)
    spread = (m * ((a - temperature * x) ** 2 - noise)).sum() / (m * scale).sum()
    samples = 10.0 if spread <= 0.1 else max(1 / spread, 0.5)
    return temperature * x, variance, samples


def state_variances(counts, targets):
    """Variance of the targets around the mean of each pair, by state, with five pseudo-samples of the pooled one."""
    squares, freedom = np.zeros(len(counts)), np.zeros(len(counts))
    for s, b in np.ndindex(counts.shape[:2]):
        sample = np.repeat(targets, counts[s, b])
        squares[s] += ((sample - sample.mean()) ** 2).sum() if sample.size else 0.0
        freedom[s] += max(sample.size - 1, 0)
    return (squares + 5 * squares.sum() / freedom.sum()) / (freedom + 5)
