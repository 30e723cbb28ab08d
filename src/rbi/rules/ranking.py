"""The total order of actions (higher advantage first, then lower index), and handing out mass along it.

`fill` is the step that Max-Reroute, Max-TV and Max-PPO share: the while-loops of the paper, without the loop.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

from rbi.arrays import at_least, at_most, descending, indices, numpy_xp, put, take, torch_xp

COLUMNS = 3  # actions; from four on PyTorch's sort is as fast
MANY = 2**13  # numbers from which on PyTorch's calls for columns pay
PAIRED_ACTIONS = 32
PAIRS = 2**28  # 1 GiB of float32 where nothing fuses them


def fill(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Hand out `budget` `[..., 1]` in the total order, at most `room` `[..., A]` to each action.

    taken_i = sum_j room_j [j ranks before i],    given_i = min(max(budget - taken_i, 0), room_i)
    """
    if not isinstance(budget, float) and budget.shape[:-1] != room.shape[:-1]:
        budget, room, advantage = xp.broadcast_arrays(budget, room, advantage)
    elif advantage.shape != room.shape:
        room, advantage = xp.broadcast_arrays(room, advantage)
    return way_to_fill(xp, advantage)(xp, budget, room, advantage)


def way_to_fill(xp: Any, advantage: Any) -> Callable[[Any, Any, Any, Any], Any]:
    """The fastest way for this library, device and size, as measured (docs/decisions/002-fill.md)."""
    actions = advantage.shape[-1]
    if xp is numpy_xp:
        return fill_by_columns if actions <= COLUMNS else fill_by_sorting
    if xp is torch_xp and advantage.device.type == "cpu":
        many = math.prod(advantage.shape) >= MANY
        return fill_by_columns if actions <= COLUMNS and many else fill_by_sorting
    few = actions <= PAIRED_ACTIONS and math.prod(advantage.shape) * actions <= PAIRS
    return fill_by_pairs if few else fill_by_sorting


def fill_by_pairs(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Compare every action with every other: no sort, `[..., A, A]` intermediate values (none once fused)."""
    mine, theirs = advantage[..., :, None], advantage[..., None, :]
    index = indices(xp, advantage)
    before = (theirs > mine) | ((theirs == mine) & (index[None, :] < index[:, None]))
    taken = xp.sum(xp.where(before, room[..., None, :], 0.0), axis=-1)
    return at_most(xp, at_least(xp, budget - taken, 0.0), room)


def fill_by_columns(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Compare two actions at a time over all states: neither a sort nor `[..., A, A]` values, for very few actions."""
    actions = range(advantage.shape[-1])
    taken = [xp.zeros_like(room[..., 0]) for _ in actions]
    for i, j in itertools.combinations(actions, 2):
        first = advantage[..., i] >= advantage[..., j]  # i < j: of equals i ranks first
        taken[j] = taken[j] + xp.where(first, room[..., i], 0.0)
        taken[i] = taken[i] + xp.where(first, 0.0, room[..., j])
    taken = xp.moveaxis(xp.stack(taken, axis=0), 0, -1)  # columns stay columns in memory
    return at_most(xp, at_least(xp, budget - taken, 0.0), room)


def fill_by_sorting(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Sort, add up along the order, put everything back."""
    order = descending(xp, advantage)
    room = take(xp, room, order)
    taken = room.cumsum(-1) - room
    return put(xp, order, at_most(xp, at_least(xp, budget - taken, 0.0), room))


def first(xp: Any, advantage: Any, among: Any) -> Any:
    """True at the first action of the total order among the marked ones, False elsewhere. Shape `[..., A]`."""
    if way_to_fill(xp, advantage) is fill_by_columns:  # whoever takes all of a budget of 1 is the first
        room = xp.ones_like(advantage) if among is None else xp.astype(among, advantage.dtype)
        return fill_by_columns(xp, 1.0, room, advantage) > 0
    if among is None:
        at = xp.argmax(advantage, axis=-1, keepdims=True)
    else:
        top = xp.max(xp.where(among, advantage, -xp.inf), axis=-1, keepdims=True)
        at = xp.argmax(xp.astype(among & (advantage == top), xp.int8), axis=-1, keepdims=True)
    return indices(xp, advantage) == at
