"""Improvement rules with their parameters: frozen, comparable values that can be written as text and parsed back.

>>> rule = Reroute(0.5, 1.5)
>>> str(rule)
'reroute(0.5,1.5)'
>>> parse_rule("reroute(0.5,1.5)") == rule
True
"""

import math
import re
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, TypeVar, final

from rbi.rules.arrays import NUMBERS, check_exactly_one, check_positive, check_range
from rbi.rules.counts import count_bounds
from rbi.rules.kl import backward_kl, forward_kl
from rbi.rules.linear import bcq, behavior, greedy, max_ppo, max_reroute, max_tv
from rbi.suggestions import nearest

Array = TypeVar("Array")


@dataclass(frozen=True)
class Rule(ABC):
    """An improvement rule with its parameters: call it with `(beta, advantage)`, both `[..., A]`.

    A rule of your own is a frozen dataclass whose fields are numbers. `register_rule` gives it a name, with which it
    can be parsed from text and saved with a policy:

        @dataclass(frozen=True)
        class Softened(rbi.Rule):
            weight: float

            def __call__(self, beta, advantage, *, legal=None, check=True):
                return rbi.mix(beta, rbi.greedy(beta, advantage, legal=legal, check=check), self.weight, check=check)

        rbi.register_rule("softened", Softened)
        rbi.parse_rule("softened(0.1)")
    """

    name: ClassVar[str] = ""
    uses_counts: ClassVar[bool] = False
    """Whether it takes `counts=`, the visits `[..., A]` of each action in the state."""

    def __post_init__(self) -> None:
        """Store parameters as plain floats: NumPy's scalars compare equal but trace differently."""
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None or f.default is not None:  # None stands for a parameter that may be left out
                object.__setattr__(self, f.name, as_float(f.name, value))

    @property
    def is_closed_form(self) -> bool:
        """False if the rule solves an equation in every state, by iteration."""
        return True

    @abstractmethod
    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        """The improved policy pi, `[..., A]`. `check=False` skips validation and never synchronises a device."""

    def __str__(self) -> str:
        given = [(f, getattr(self, f.name)) for f in fields(self)]
        shown = [f"{f.name}={as_text(v)}" if f.kw_only else as_text(v) for f, v in given if v is not None]
        return f"{self.name or type(self).__name__}({','.join(shown)})" if shown else self.name or type(self).__name__


@final
@dataclass(frozen=True)
class Reroute(Rule):
    """The best policy whose ratio pi/beta stays within [c_min, c_max]."""

    name: ClassVar[str] = "reroute"
    c_min: float
    c_max: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("c_min", self.c_min, 0, 1)
        check_range("c_max", self.c_max, 1, math.inf)

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
        check_range("delta", self.delta, 0, 1)

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
        check_range("epsilon", self.epsilon, 0, math.inf)

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
        check_exactly_one(temperature=self.temperature, radius=self.radius)
        check_positive("temperature", self.temperature)
        check_range("radius", self.radius, 0, math.inf)

    @property
    def is_closed_form(self) -> bool:
        return self.radius is None

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
        check_range("radius", self.radius, 0, math.inf)

    @property
    def is_closed_form(self) -> bool:
        return False

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
    """Discrete BCQ's policy: the best action among those with beta(a) >= threshold max_a beta(a)."""

    name: ClassVar[str] = "bcq"
    threshold: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("threshold", self.threshold, 0, 1)

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return bcq(beta, advantage, self.threshold, legal=legal, check=check)


@final
@dataclass(frozen=True)
class CountAware(Rule):
    """The best policy within `count_bounds`: frequent actions may move far, an action that was never tried does not.

    `counts=` are the visits `[..., A]` of each action in the state. `rbi.improve` counts them if few of its states are
    different, and estimates pseudo-counts from the Q-network's features otherwise; its policies use more than three of
    them only where an action is significantly better than beta (`rbi.rules.counts.significant_counts`).
    """

    name: ClassVar[str] = "count_aware"
    uses_counts: ClassVar[bool] = True
    tau: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("tau", self.tau, 0, sys.float_info.max)

    def __call__(
        self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True, counts: Any = None
    ) -> Array:
        if counts is None:
            raise ValueError(f"{self}: takes the visits of each action in the state, counts=")
        c_min, c_max = count_bounds(beta, counts, self.tau, check=check)
        return max_reroute(beta, advantage, c_min, c_max, legal=legal, check=check)


@final
@dataclass(frozen=True)
class Behavior(Rule):
    """beta, unchanged."""

    name: ClassVar[str] = "behavior"

    def __call__(self, beta: Array, advantage: Array, *, legal: Any = None, check: bool = True) -> Array:
        return behavior(beta, advantage, legal=legal, check=check)


BUILT_IN: tuple[type[Rule], ...] = (Reroute, TotalVariation, PPO, ForwardKL, BackwardKL, Greedy, BCQ, Behavior)
WITH_COUNTS: tuple[type[Rule], ...] = (CountAware,)
_registered: dict[str, type[Rule]] = {rule.name: rule for rule in BUILT_IN + WITH_COUNTS}


def register_rule(name: str, rule: type[Rule]) -> type[Rule]:
    """Register a rule of your own by name, so that `parse_rule`, commands and saved policies know it.

    `rule` is a frozen dataclass derived from `Rule` whose fields are numbers. A program that loads a policy with this
    rule has to register it first. Registering a class again, as notebooks do, replaces it.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"rule name {name!r}: must be letters, digits and underscores, as in my_rule")
    if not (isinstance(rule, type) and issubclass(rule, Rule) and is_dataclass(rule)):
        raise ValueError(f"rule {name!r}: must be a dataclass derived from rbi.Rule, not {rule!r}")
    taken = _registered.get(name)
    if taken in BUILT_IN + WITH_COUNTS or (taken is not None and taken.__qualname__ != rule.__qualname__):
        raise ValueError(f"rule name {name!r}: is taken by {taken}")
    rule.name = name
    _registered[name] = rule
    return rule


def parse_rule(text: str, *, counts: bool = False) -> Rule:
    """The rule that a text describes, as `str(rule)` writes it. `counts`: allow rules that take visit counts.

    >>> parse_rule("forward_kl(radius=0.1)")
    ForwardKL(temperature=None, radius=0.1)
    """
    text = str(text)  # a function or a class in its place is no known rule either
    match = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", text)
    if match is None or match[1] not in _registered:
        known = ", ".join(usage(rule) for rule in _registered.values() if counts or not rule.uses_counts)
        meant = nearest(match[1] if match else text, _registered)
        raise ValueError(f"rule {text!r} is not known: give one of {known}{meant}")
    rule = _registered[match[1]]
    if rule.uses_counts and not counts:
        raise ValueError(f"rule {text!r} takes visit counts, which only rbi improve and rbi certify have")
    words = [word.strip() for word in match[2].split(",")] if match[2] and match[2].strip() else []
    try:
        positional = [float(word) for word in words if "=" not in word]
        named = {name.strip(): float(value) for name, value in (w.split("=", 1) for w in words if "=" in w)}
        return rule(*positional, **named)
    except TypeError:
        raise ValueError(f"rule {text!r} has the wrong parameters: write {usage(rule)}") from None
    except ValueError as error:
        raise ValueError(f"rule {text!r}: {error}") from None


def uses_counts(rule: Any) -> bool:
    """Whether a rule, or a function in its place, takes visit counts."""
    return bool(getattr(rule, "uses_counts", False))


def usage(rule: type[Rule]) -> str:
    """The text of a rule with the names of its parameters: `reroute(c_min,c_max)`."""
    join = " | ".join if rule is ForwardKL else ",".join
    names = join(f"{f.name}=" if f.kw_only else f.name for f in fields(rule))
    return f"{rule.name}({names})" if names else rule.name


def as_text(value: float) -> str:
    """The shortest text that parses back to the same number: 0.5, 2, inf."""
    return repr(float(value)).removesuffix(".0")


def as_float(name: str, value: Any) -> float:
    """The value as a float; arrays are for the functions, not for rules."""
    if isinstance(value, bool) or not isinstance(value, NUMBERS):
        raise ValueError(f"{name} = {value!r}: must be a number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} = {value}: is too large for a number") from None
