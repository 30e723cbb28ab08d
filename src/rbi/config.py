"""Configs that refuse nonsense when they are made: bounds stand in the field's type, one checker reads them.

    @dataclass(frozen=True)
    class ActorConfig(Checked):
        c_greedy: Annotated[float, Interval(ge=0, le=1)] = 0.1

The bounds are those of `annotated_types` (Ge, Gt, Le, Lt, Interval, MultipleOf), which command lines and editors know.
A config with rules that tie several fields together defines `__post_init__` itself and calls `check_fields` first.
"""

import functools
import math
import numbers
import operator
import types
import typing
from dataclasses import fields
from typing import Any, Literal, Union

from annotated_types import Ge, Gt, Interval, Le, Lt, MultipleOf

__all__ = ["Checked", "Ge", "Gt", "Interval", "Le", "Lt", "MultipleOf", "check_fields"]


class Checked:
    """A frozen dataclass whose fields are checked against their annotations."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(config: Any, prefix: str = "") -> None:
    """Raise ValueError for a value outside the bounds or the choices that its field declares.

    With `prefix="--"` the message names the option of the command line instead of the field.

    >>> from dataclasses import dataclass
    >>> from typing import Annotated
    >>> @dataclass(frozen=True)
    ... class Step(Checked):
    ...     size: Annotated[float, Interval(gt=0, le=1)] = 0.1
    >>> Step(2.0)
    Traceback (most recent call last):
    ...
    ValueError: size = 2.0: must be greater than 0 and at most 1
    """
    hints = _hints(config.__class__)
    for field in fields(config):
        name = f"{prefix}{field.name.replace('_', '-')}" if prefix else field.name
        _check(name, getattr(config, field.name), hints[field.name])


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Type hints with their bounds, read once a class."""
    return typing.get_type_hints(cls, include_extras=True)


def _check(name: str, value: Any, hint: Any) -> None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return
        arguments = tuple(a for a in arguments if a is not type(None))
        if len(arguments) == 1:
            _check(name, value, arguments[0])
    elif origin is Literal:
        if value not in arguments:
            raise ValueError(f"{name} = {value!r}: must be one of {', '.join(map(str, arguments))}")
    elif origin is typing.Annotated:
        _check(name, value, arguments[0])
        bounds = [bound for bound in arguments[1:] if isinstance(bound, Ge | Gt | Le | Lt | Interval | MultipleOf)]
        if bounds and not all(_holds(value, bound) for bound in bounds):
            raise ValueError(f"{name} = {value}: must be {' and '.join(_words(bound) for bound in bounds)}")
    elif hint is float and isinstance(value, int | float) and math.isnan(value):
        raise ValueError(f"{name} = {value}: must be a number")


def _limits(bound: Any) -> list[tuple[str, str, Any]]:
    """The comparisons of a bound: attribute, words, limit."""
    words = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
    return [(k, w, getattr(bound, k)) for k, w in words.items() if getattr(bound, k, None) is not None]


def _holds(value: Any, bound: Any) -> bool:
    if isinstance(bound, MultipleOf):
        return bool(value % bound.multiple_of == 0)
    if not isinstance(value, numbers.Real) or value in (math.inf, -math.inf):
        return False
    return all(getattr(operator, k)(value, limit) for k, _, limit in _limits(bound))


def _words(bound: Any) -> str:
    if isinstance(bound, MultipleOf):
        return f"a multiple of {bound.multiple_of}"
    return " and ".join(f"{words} {limit:,}" for _, words, limit in _limits(bound))
