"""Small data sets written by the real d3rlpy, for tests/data/test_d3rlpy.py; runs in its own environment.

pip install d3rlpy     into .venv-peers
.venv-peers/bin/python benchmarks/peers/d3rlpy_files.py tests/data/files
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

KINDS = {  # the shapes of observations; several where they have several parts
    "vectors": [(np.float32, (3,))],
    "images": [(np.uint8, (1, 5, 4))],
    "colours": [(np.uint8, (3, 5, 4))],
    "parts": [(np.float32, (2,)), (np.float32, (3,))],
}
LENGTHS, ACTIONS = (4, 2, 3), 5  # d3rlpy drops an episode of one step that is not terminated


class Made(NamedTuple):
    """An episode before d3rlpy sees it."""

    observations: list[np.ndarray]
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool


def episodes(kind: str) -> list[Made]:
    """The same every time, with no package but NumPy."""
    rng = np.random.default_rng(list(kind.encode()))
    return [
        Made(
            [
                rng.integers(0, 256, (length, *shape)).astype(dtype) if dtype is np.uint8
                else rng.normal(size=(length, *shape)).astype(dtype)
                for dtype, shape in KINDS[kind]
            ],
            np.append(rng.integers(0, ACTIONS, length - 1), ACTIONS - 1)[:, None],
            rng.normal(size=(length, 1)).astype(np.float32),
            number != 1,
        )
        for number, length in enumerate(LENGTHS)
    ]  # fmt: skip


def main(folder: Path) -> None:
    from d3rlpy.dataset import Episode, InfiniteBuffer, ReplayBuffer

    for kind in KINDS:
        buffer = ReplayBuffer(
            InfiniteBuffer(),
            episodes=[
                Episode(made.observations[0] if len(made.observations) == 1 else made.observations, *made[1:])
                for made in episodes(kind)
            ],
        )
        with (folder / f"d3rlpy-{kind}.h5").open("w+b") as file:
            buffer.dump(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
