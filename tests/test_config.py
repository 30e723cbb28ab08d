"""Config dataclasses are checked against the limits and choices that their fields declare."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
import torch

from rbi.config import Checked, Ge, Gt, Interval, Lt, MultipleOf, check_fields, choose_device, parse_env


@dataclass(frozen=True)
class Settings(Checked):
    share: Annotated[float, Interval(ge=0, le=1)] = 0.5
    rate: Annotated[float, Gt(0), Lt(10)] = 0.1
    batch_size: Annotated[int, Ge(1), MultipleOf(4)] = 32
    rounds: int = 3
    mode: Literal["actor", "learner"] = "actor"
    limit: Annotated[int, Ge(1)] | None = None
    sizes: tuple[Annotated[int, Ge(1)], ...] = (1, 2)
    scale: float = 1.0
    name: str = ""
    exact: bool = False
    weight: Annotated[float, Ge(0)] = 0.0
    span: tuple[float, int] = (0.0, 1)


def test_valid_settings_are_accepted():
    Settings(share=0, rate=9, batch_size=np.int64(8), limit=5, sizes=(), scale=float("inf"), name="x")
    Settings(share=1, limit=None, scale=np.float32(2))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share", -0.1), ("share", 1.1), ("share", float("nan")), ("share", "0.5"),
        ("rate", 0), ("rate", 10), ("rate", float("inf")),
        ("batch_size", 0), ("batch_size", 6), ("batch_size", 8.0),
        ("rounds", 2.5), ("rounds", "3"), ("rounds", True),
        ("mode", "both"),
        ("limit", 0), ("limit", 1.5),
        ("sizes", (1, 0)),
        ("scale", float("nan")), ("scale", None), ("scale", False),
        ("exact", 1), ("exact", "no"), ("exact", None),
        ("weight", -1.0), ("weight", float("inf")),
        ("span", (0.5, 1.5)), ("span", "0"), ("span", 1), ("span", (1,)), ("span", (0.5, 1, 2)),
    ],
)  # fmt: skip
def test_invalid_values_are_errors_that_name_field_and_value(field, value):
    with pytest.raises(ValueError, match=rf"^{field} = ") as error:
        Settings(**{field: value})
    assert str(value[-1] if isinstance(value, tuple) else value) in str(error.value)


def test_messages_say_what_is_allowed():
    with pytest.raises(ValueError, match=r"must be at least 0 and at most 1$"):
        Settings(share=2)
    with pytest.raises(ValueError, match=r"must be one of actor, learner$"):
        Settings(mode="both")
    with pytest.raises(ValueError, match=r"inf: must be finite and at least 0$"):
        Settings(weight=float("inf"))
    with pytest.raises(ValueError, match=r"^span = 1: must be 2 values$"):
        Settings(span=1)
    with pytest.raises(ValueError, match="a multiple of 4"):
        Settings(batch_size=6)


def test_a_huge_integer_is_compared_and_not_converted():
    with pytest.raises(ValueError, match="rate"):
        Settings(rate=10**400)
    assert Settings(scale=10**400).scale == 10**400


@dataclass(frozen=True)
class Window:
    start: Annotated[int, Ge(0)] = 0
    frames_end: Annotated[int, Ge(0)] = 1

    def __post_init__(self) -> None:
        check_fields(self, prefix="--")
        if self.frames_end <= self.start:
            raise ValueError("--frames-end: must be greater than --start")


def test_a_config_may_add_conditions_on_several_fields_and_name_options():
    with pytest.raises(ValueError, match=r"^--frames-end = -1: must be at least 0$"):
        Window(frames_end=-1)
    with pytest.raises(ValueError, match="must be greater than --start"):
        Window(start=3, frames_end=2)


def test_the_device_is_the_gpu_if_there_is_one():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device(torch.device("cpu")) == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="no GPU"):
            choose_device("cuda")
    with pytest.raises(ValueError, match=r"device = 'gpu': must be one of auto, cpu, cuda; did you mean cuda\?"):
        choose_device("gpu")


@pytest.mark.parametrize(
    "text", ["A-v0(x=1)(y=2)", "A-v0(x=1).b(y=2)", "A-v0(1)", "A-v0(**{})", "A-v0(x=1", "A-v0(x=f())"]
)
def test_an_environment_has_one_list_of_named_literal_arguments(text):
    assert parse_env("A-v0(x=1, y='b')") == ("A-v0", {"x": 1, "y": "b"})
    with pytest.raises(ValueError, match="must be an id, or an id with arguments"):
        parse_env(text)
