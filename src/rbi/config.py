"""Config dataclasses that validate themselves: limits are declared in the field types and checked at construction.

    @dataclass(frozen=True)
    class ActorConfig(Checked):
        c_greedy: Annotated[float, Interval(ge=0, le=1)] = 0.1
        improve_in: Literal["actor", "learner"] = "actor"

Limits are those of `annotated_types` (Ge, Gt, Le, Lt, Interval, MultipleOf). A config with conditions on several fields
defines its own `__post_init__` and calls `check_fields(self)` first. Checked are choices (Literal), limits, booleans,
whether numbers are integers or NaN, also inside `X | None` and tuples; nested configs check themselves.
"""

import ast
import functools
import math
import numbers
import operator
import types
import typing
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, Union

from annotated_types import Ge, Gt, Interval, Le, Lt, MultipleOf

from rbi.suggestions import Suggesting, nearest

if TYPE_CHECKING:
    import torch

__all__ = [
    "Checked", "Device", "Ge", "Gt", "Interval", "Le", "Lt", "MultipleOf", "check_callback", "check_fields",
    "check_kind", "check_seed", "check_value", "choose_device", "env_text", "parse_env",
]  # fmt: skip

Device = Literal["auto", "cpu", "cuda"]
MAX_SEED = 2**63
NUMPY_BOOLEANS = ("bool", "bool_")  # since version 2, and before; this module does not import it


class Checked(Suggesting):
    """Base class of dataclasses whose fields are checked against their annotations."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(config: Any, prefix: str = "") -> None:
    """Raise ValueError for a field outside its declared limits or choices.

    With `prefix="--"` the message names the command-line option instead of the field.

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
        check_value(name, getattr(config, field.name), hints[field.name])


def check_seed(seed: Any) -> int:
    """A seed as an integer of Python. Raises ValueError unless it is an integer from 0 to 2^63 - 1."""
    found = int(seed) if isinstance(seed, numbers.Integral) and not isinstance(seed, bool) else -1
    if not 0 <= found < MAX_SEED:
        raise ValueError(f"seed = {seed!r}: must be an integer, at least 0 and less than 2**63")
    return found


def check_kind(name: str, value: Any, kind: type) -> None:
    """Raise TypeError unless a value is of a class, or None."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} is of type {type(value).__name__}: must be a {kind.__module__}.{kind.__name__}")


def check_callback(callback: Any) -> None:
    """Raise TypeError unless a callback is a function, or None."""
    if callback is not None and not callable(callback):
        raise TypeError(f"callback is of type {type(callback).__name__}: must be a function that takes a dictionary")


def choose_device(device: "Device | torch.device" = "auto") -> "torch.device":
    """The device to compute on: "auto" is the GPU if there is one. Raises ValueError if there is no GPU for "cuda"."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        known = typing.get_args(Device)
        meant = nearest(str(device), known)
        raise ValueError(f"device = {device!r}: must be one of {', '.join(known)}{meant}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device = {device}: PyTorch finds no GPU")
    return found


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Type hints with their limits, evaluated once per class."""
    return typing.get_type_hints(cls, include_extras=True)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise ValueError unless a value is what an annotation says, as those of fields.

    >>> check_value("seeds", 0.5, int)
    Traceback (most recent call last):
    ...
    ValueError: seeds = 0.5: must be an integer
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return
        options = [a for a in arguments if a is not type(None)]
        if len(options) == 1:
            check_value(name, value, options[0])
    elif origin is Literal:
        if value not in arguments:
            known = [str(each) for each in arguments]
            raise ValueError(f"{name} = {value!r}: must be one of {', '.join(known)}{nearest(str(value), known)}")
    elif origin is typing.Annotated:
        check_value(name, value, arguments[0])
        _check_limits(name, value, arguments[1:])
    elif origin is tuple:
        _check_tuple(name, value, arguments)
    else:
        _check_number(name, value, hint)


def _check_limits(name: str, value: Any, limits: tuple[Any, ...]) -> None:
    bounds = [bound for bound in limits if isinstance(bound, Ge | Gt | Le | Lt | Interval | MultipleOf)]
    if bounds and not all(_holds(value, bound) for bound in bounds):
        finite = ["finite"] * (value in (math.inf, -math.inf))
        raise ValueError(f"{name} = {value}: must be {' and '.join([*finite, *map(_words, bounds)])}")


def _check_tuple(name: str, value: Any, hints: tuple[Any, ...]) -> None:
    try:
        hints = hints[:1] * len(value) if hints[1:] == (Ellipsis,) else hints
        items = list(zip(value, hints, strict=True))
    except (TypeError, ValueError):
        raise ValueError(f"{name} = {value!r}: must be {len(hints)} values") from None
    for item, hint in items:
        check_value(name, item, hint)


def _check_number(name: str, value: Any, hint: Any) -> None:
    if hint is int and (not isinstance(value, numbers.Integral) or isinstance(value, bool)):
        raise ValueError(f"{name} = {value!r}: must be an integer")
    if hint is bool and not isinstance(value, bool) and type(value).__name__ not in NUMPY_BOOLEANS:
        raise ValueError(f"{name} = {value!r}: must be True or False")
    if hint is float and (not isinstance(value, numbers.Real) or isinstance(value, bool) or value != value):
        raise ValueError(f"{name} = {value!r}: must be a number")


def _limits(bound: Any) -> list[tuple[str, str, Any]]:
    """The comparisons of a bound: operator, words, limit."""
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


# Environments as text: a Gymnasium id, optionally with arguments of `gymnasium.make`


def env_text(id_: str, arguments: dict[str, Any]) -> str:
    """An environment and its arguments as one text, which `parse_env` reads.

    >>> env_text("FrozenLake-v1", {"is_slippery": False})
    'FrozenLake-v1(is_slippery=False)'
    """
    if not arguments:
        return id_
    return f"{id_}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def parse_env(text: str) -> tuple[str, dict[str, Any]]:
    """Gymnasium id and arguments of an environment. Arguments are Python literals; nothing is evaluated.

    >>> parse_env("FrozenLake-v1(is_slippery=False, max_episode_steps=50)")
    ('FrozenLake-v1', {'is_slippery': False, 'max_episode_steps': 50})
    """
    id_, has_arguments, rest = text.partition("(")
    if not has_arguments:
        return text, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        match call:
            case ast.Call(func=ast.Name(), args=[], keywords=words) if all(word.arg for word in words):
                return id_, {str(word.arg): ast.literal_eval(word.value) for word in words}
        raise ValueError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ValueError(f"--env {text}: must be an id, or an id with arguments such as Id-v0(size=3)") from None
