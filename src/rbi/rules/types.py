"""Rules with their parameters, as values: frozen, comparable, written as text and read back.

>>> rule = Reroute(0.5, 1.5)
>>> str(rule)
'reroute(0.5,1.5)'
>>> parse_rule("reroute(0.5,1.5)") == rule
True
"""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, final

from rbi.rules import arrays as checks
from rbi.rules.arrays import NUMBERS
from rbi.rules.kl import backward_kl, forward_kl
from rbi.rules.linear import bcq, behavior, greedy, max_ppo, max_reroute, max_tv

Array = TypeVar("Array")


@dataclass(frozen=True)
class Rule(ABC):
    """An improvement rule with its parameters: call it with `(beta, advantage)`, both `[..., A]`."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Parameters are kept as plain floats: NumPy's numbers compare alike but do not trace alike."""
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None:
                object.__setattr__(self, f.name, real(f.name, value))

    @abstractmethod
    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        """The improved policy pi, `[..., A]`. `check=False` skips validation and so never waits for a device."""

    def __str__(self) -> str:
        given = [(f, getattr(self, f.name)) for f in fields(self)]
        told = [f"{f.name}={number(v)}" if f.kw_only else number(v) for f, v in given if v is not None]
        return f"{self.name}({','.join(told)})" if told else self.name


@final
@dataclass(frozen=True)
class Reroute(Rule):
    """The best policy whose ratio pi/beta stays within [c_min, c_max]."""

    name: ClassVar[str] = "reroute"
    c_min: float
    c_max: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between("c_min", self.c_min, 0, 1)
        checks.between("c_max", self.c_max, 1, math.inf)

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return max_reroute(beta, advantage, self.c_min, self.c_max, legal=legal, check=check)


@final
@dataclass(frozen=True)
class TotalVariation(Rule):
    """The best policy within total variation delta of beta."""

    name: ClassVar[str] = "tv"
    delta: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between("delta", self.delta, 0, 1)

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return max_tv(beta, advantage, self.delta, legal=legal, check=check)


@final
@dataclass(frozen=True)
class PPO(Rule):
    """The paper's maximiser of the PPO objective."""

    name: ClassVar[str] = "ppo"
    epsilon: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between("epsilon", self.epsilon, 0, math.inf)

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return max_ppo(beta, advantage, self.epsilon, legal=legal, check=check)


@final
@dataclass(frozen=True)
class ForwardKL(Rule):
    """beta exp(A / temperature), normalised; or the best policy with KL(pi || beta) <= radius."""

    name: ClassVar[str] = "forward_kl"
    temperature: float | None = None
    radius: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.exactly_one(temperature=self.temperature, radius=self.radius)
        checks.positive("temperature", self.temperature)
        checks.between("radius", self.radius, 0, math.inf)

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return forward_kl(beta, advantage, self.temperature, radius=self.radius, legal=legal, check=check)


@final
@dataclass(frozen=True)
class BackwardKL(Rule):
    """The best policy with KL(beta || pi) <= radius."""

    name: ClassVar[str] = "backward_kl"
    radius: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between("radius", self.radius, 0, math.inf)

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return backward_kl(beta, advantage, self.radius, legal=legal, check=check)


@final
@dataclass(frozen=True)
class Greedy(Rule):
    """All probability on the best action."""

    name: ClassVar[str] = "greedy"

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return greedy(beta, advantage, legal=legal, check=check)


@final
@dataclass(frozen=True)
class BCQ(Rule):
    """All probability on the best action among those that beta takes often enough: the policy of discrete BCQ."""

    name: ClassVar[str] = "bcq"
    threshold: float

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.between("threshold", self.threshold, 0, 1)

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return bcq(beta, advantage, self.threshold, legal=legal, check=check)


@final
@dataclass(frozen=True)
class Behavior(Rule):
    """beta, unchanged."""

    name: ClassVar[str] = "behavior"

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return behavior(beta, advantage, legal=legal, check=check)


RULES: tuple[type[Rule], ...] = (Reroute, TotalVariation, PPO, ForwardKL, BackwardKL, Greedy, BCQ, Behavior)


def parse_rule(text: str) -> Rule:
    """The rule that `str(rule)` wrote.

    >>> parse_rule("forward_kl(radius=0.1)")
    ForwardKL(temperature=None, radius=0.1)
    """
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    kinds = {rule.name: rule for rule in RULES}
    if match is None or match[1] not in kinds:
        known = ", ".join(usage(rule) for rule in RULES)
        raise ValueError(f"rule {text!r} is not known: give one of {known}")
    words = [word.strip() for word in match[2].split(",")] if match[2] and match[2].strip() else []
    try:
        positional = [float(word) for word in words if "=" not in word]
        named = {name.strip(): float(value) for name, value in (w.split("=", 1) for w in words if "=" in w)}
        return kinds[match[1]](*positional, **named)
    except TypeError:
        raise ValueError(f"rule {text!r} has other parameters: it is written {usage(kinds[match[1]])}") from None
    except ValueError as error:
        raise ValueError(f"rule {text!r}: {error}") from None


def usage(rule: type[Rule]) -> str:
    """How a rule is written, with the names of its parameters."""
    names = " | ".join if rule is ForwardKL else ",".join
    told = names(f"{f.name}=" if f.kw_only else f.name for f in fields(rule))
    return f"{rule.name}({told})" if told else rule.name


def number(value: float) -> str:
    """The shortest text that reads back as the same number: 0.5, 2, inf."""
    return repr(float(value)).removesuffix(".0")


def real(name: str, value: Any) -> float:
    """The value as a float, if it is a number; arrays belong to the functions."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise ValueError(f"{name} = {value!r}: must be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} = {value}: is too large for a number") from None
