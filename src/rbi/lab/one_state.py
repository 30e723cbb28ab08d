"""Every rule on one state: what it does to beta, what it promises, and what estimation errors can cost it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rbi import measures
from rbi.rules import Rule


@dataclass(frozen=True)
class Step:
    """One rule's step from beta. `promise` is what it gains if the advantages are right, `risk` is one standard
    deviation of what errors in them can cost (independent errors, N_s visits: the paper's section 2.3)."""

    rule: str
    pi: tuple[float, ...]
    c_min: float
    c_max: float
    total_variation: float
    kl: float
    promise: float
    risk: float


def steps(
    rules: Sequence[Rule], beta: Sequence[float], advantage: Sequence[float], *, visits: int, return_std: float
) -> list[Step]:
    """The step of each rule, in the order given."""
    return [one_step(rule, np.asarray(beta, float), np.asarray(advantage, float), visits, return_std) for rule in rules]


def one_step(rule: Rule, beta: np.ndarray, advantage: np.ndarray, visits: int, return_std: float) -> Step:
    pi = rule(beta, advantage)
    ratio = measures.reroute_bounds(pi, beta)
    variance = measures.penalty_term(pi, beta).sum() * return_std**2 / visits
    return Step(
        rule=str(rule),
        pi=tuple(pi.tolist()),
        c_min=float(ratio.c_min),
        c_max=float(ratio.c_max),
        total_variation=float(measures.total_variation(pi, beta)),
        kl=float(measures.kl(pi, beta)),
        promise=float(measures.improvement_step(pi, advantage, beta=beta)),
        risk=float(np.sqrt(variance)),
    )
