"""Episodes to test with: made at random, every kind of end among them."""

import numpy as np
from hypothesis import strategies as st

from rbi.data.episode import Episode


def episode(rng, steps, *, frame=(3,), actions=4, end="terminated", final=True, lives=False, probs=False, legal=False):
    """An episode of so many steps that ends as told."""
    count = steps + final
    images = rng.integers(0, 256, (count, *frame), dtype=np.uint8)
    taken = rng.integers(actions, size=steps)
    last = np.arange(steps) == steps - 1
    lost = (rng.random(steps) < 0.2) & ~last if lives else np.zeros(steps, dtype=bool)
    masks = rng.random((steps, actions)) < 0.5
    masks[np.arange(steps), taken] = True
    return Episode(
        observations=images if len(frame) > 1 else rng.normal(size=(count, *frame)).astype(np.float32),
        actions=taken,
        rewards=rng.normal(size=steps).astype(np.float32),
        terminated=last & (end == "terminated"),
        truncated=last & (end != "terminated"),
        life_lost=lost,
        action_probs=rng.uniform(0.1, 1, steps) if probs else None,
        action_masks=masks if legal else None,
        abandoned=end == "abandoned",
        player=f"player {rng.integers(3)}",
        source=f"source {rng.integers(3)}",
        line=int(rng.integers(1, 100)),
    )


@st.composite
def some_episodes(draw, frames=((3,), (5, 4), (2, 3, 2)), most=6):
    """A few episodes of one kind."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    frame = draw(st.sampled_from(frames))
    probs, legal = draw(st.booleans()), draw(st.booleans())
    ends = draw(st.lists(st.sampled_from(["terminated", "truncated", "abandoned"]), min_size=1, max_size=most))
    return [
        episode(
            rng,
            int(rng.integers(1, 9)),
            frame=frame,
            end=end,
            final=bool(rng.integers(2)),
            lives=bool(rng.integers(2)),
            probs=probs,
            legal=legal,
        )
        for end in ends
    ]


COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated", "life_lost", "action_probs", "action_masks")


def assert_same(one, other, *, but=""):
    """Equal in every field, except for one column if it is named."""
    for name in COLUMNS:
        if name == but:
            continue
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        if a is not None:
            np.testing.assert_array_equal(a, b, err_msg=name)
            assert a.dtype == b.dtype, name
    for name in ("abandoned", "player", "source", "line"):
        assert getattr(one, name) == getattr(other, name), name
