"""The total order of actions (higher advantage first, then lower index), and handing out mass along it.

`fill` is the step that Max-Reroute, Max-TV and Max-PPO share: the while-loops of the paper, without the loop.
"""

from typing import Any

from rbi.rules.arrays import at_least, indices, numpy_xp, torch_xp


def fill(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Hand out `budget` `[..., 1]` in the total order, at most `room` `[..., A]` to each action.

    taken_i = sum_j room_j [j ranks before i],    given_i = min(max(budget - taken_i, 0), room_i)
    """
    if advantage.shape != room.shape:
        room, advantage = xp.broadcast_arrays(room, advantage)
    by = fill_by_pairs if prefers_pairs(xp, advantage) else fill_by_sorting
    return by(xp, budget, room, advantage)


def fill_by_pairs(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    """Compare every action with every other: no sort, `[..., A, A]` intermediate values (none once fused)."""
    mine, theirs = advantage[..., :, None], advantage[..., None, :]
    index = indices(xp, advantage)
    before = (theirs > mine) | ((theirs == mine) & (index[None, :] < index[:, None]))
    taken = xp.sum(xp.where(before, room[..., None, :], 0.0), axis=-1)
    return xp.minimum(at_least(xp, budget - taken, 0.0), room)


def fill_by_sorting(xp: Any, budget: Any, room: Any, advantage: Any) -> Any:
    order = xp.argsort(-advantage, axis=-1, stable=True)
    room = xp.take_along_axis(room, order, axis=-1)
    taken = room.cumsum(-1) - room
    given = xp.minimum(at_least(xp, budget - taken, 0.0), room)
    if xp is torch_xp:
        return xp.empty_like(given).scatter_(-1, order, given)
    return xp.take_along_axis(given, xp.argsort(order, axis=-1), axis=-1)


def prefers_pairs(xp: Any, advantage: Any) -> bool:
    """Which of the two is faster: measured by `benchmarks/rules.py`, see docs/decisions/002-fill.md."""
    actions = advantage.shape[-1]
    if xp is numpy_xp:
        return bool(advantage.size * actions <= 4096)
    if xp is torch_xp:
        return bool(actions <= (32 if advantage.device.type == "cuda" else 2))
    return bool(actions <= 32)


def first(xp: Any, advantage: Any, among: Any) -> Any:
    """True at the first action of the total order among the marked ones, False elsewhere. Shape `[..., A]`."""
    if among is None:
        at = xp.argmax(advantage, axis=-1, keepdims=True)
    else:
        top = xp.max(xp.where(among, advantage, -xp.inf), axis=-1, keepdims=True)
        at = xp.argmax(xp.astype(among & (advantage == top), xp.int8), axis=-1, keepdims=True)
    return indices(xp, advantage) == at
