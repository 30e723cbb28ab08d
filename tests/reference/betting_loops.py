"""Betting bounds value by value, as the papers write them."""

import math

from scipy import stats


def star_log_capital(values, m, floor, alpha, spread, max_stake):
    """The largest log capital of bets that aim at 1 / alpha after the last value, recalculated before each value."""
    capital, best, n = 1.0, 1.0, len(values)
    for t, x in enumerate(values):
        before = values[:t]
        mean = sum(before) / max(1, t)
        sigma = math.sqrt((spread**2 + sum((y - mean) ** 2 for y in before)) / (t + 1))
        z = stats.norm.isf(min(alpha * capital, 1 - 1e-12))
        hazard = stats.norm.pdf(z) / stats.norm.sf(z)
        bet = min(hazard / (sigma * math.sqrt(n - t)), max_stake / (m - floor))
        if best >= 1 / alpha or (2 * t < n and len(set(before)) < 2):
            bet = 0.0
        capital *= 1 + bet * (x - m)
        best = max(best, capital)
    return math.log(best)


def mixture_capitals(values, m, floor, spread, sizes, max_stake):
    """K_t(m) for every t, of bets of several sizes, each with its share of the capital."""
    capitals, found = list(sizes), []
    for t, x in enumerate(values):
        before = values[:t]
        mean = sum(before) / max(1, t)
        sigma = math.sqrt((spread**2 + sum((y - mean) ** 2 for y in before)) / (t + 1))
        bets = [min(size / sigma, max_stake / (m - floor)) for size in sizes]
        capitals = [capital * (1 + bet * (x - m)) for capital, bet in zip(capitals, bets, strict=True)]
        found.append(sum(capitals))
    return found


def plug_in_log_capitals(values, m, floor, alpha, spread, max_stake):
    """log K_t(m) for every t, with the predictable plug-in bets of Waudby-Smith and Ramdas."""
    found, log_capital = [], 0.0
    for t, x in enumerate(values, 1):
        before = values[: t - 1]
        mean = sum(before) / max(1, t - 1)
        variance = (spread**2 + sum((y - mean) ** 2 for y in before)) / t
        bet = math.sqrt(2 * math.log(1 / alpha) / (variance * t * math.log(1 + t)))
        log_capital += math.log(1 + min(bet, max_stake / (m - floor)) * (x - m))
        found.append(log_capital)
    return found
