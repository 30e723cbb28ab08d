"""DQN Replay: everything that five DQN agents saw on each of sixty Atari games, as Dopamine logged it.

    <Game>/<run>/replay_logs/$store$_{observation,action,reward,terminal}_ckpt.<N>.gz    a million rows each
    <Game>/<run>/replay_logs/add_count_ckpt.<N>.gz                                       rows so far, when N was written

The path may be a game, a run or its replay_logs; a run's number is the player. Row t holds what was seen, done and got
at step t, with rewards clipped to [-1, 1]; the observation after the last step is not there. Files are read as streams:
in memory are the small columns of one file, and the pictures of one or two episodes.

What the logs are like, from the program that wrote them:

- Before each episode stand three rows of zeros (they padded the stacks of four frames). They are dropped.
- A file is a ring buffer, written when only its last slot was not new. So the last slot of file N + 1 holds the row
  that comes after the last but one of file N and before the first of file N + 1. Where the add_counts of both files
  show that nothing else lies between them, it is put there; else it is left out, and an episode that goes over from one
  file to the next lacks one step. The last file was written before its ring was full again: its add_count says how many
  rows are new.
- The agents' limit of 27,000 steps was logged as an end of the game. An episode of just so many steps is `truncated`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import MOST_ACTIONS, DatasetSpec, Episode
from rbi.data.formats.dqn_replay_log import (
    LIMIT,
    OBSERVATION,
    PADDING,
    Fault,
    Piece,
    Walk,
    add_count,
    file_of,
    numbers,
    padding,
)
from rbi.data.formats.gzipped_array import GzippedArray
from rbi.data.formats.observations import unseen
from rbi.data.formats.seam import EpisodeSummary, SpecOverrides, summarize

LOGS = "replay_logs"
GAME = re.compile(r"[A-Z][A-Za-z0-9]*")


def recognises(path: Path) -> bool:
    try:
        return any(numbers(logs) for logs in runs_at(path))
    except OSError:
        return False


def open_reader(path: Path, settings: Any) -> "DqnReplayReader":
    return DqnReplayReader(path, settings.overrides)


def runs_at(path: Path) -> list[Path]:
    """The folders of logs that a path means."""
    if not path.is_dir():
        return []
    if (path / LOGS).is_dir():
        return [path / LOGS]
    found = [run / LOGS for run in path.iterdir() if run.name.isdecimal() and (run / LOGS).is_dir()]
    return sorted(found, key=lambda logs: int(logs.parent.name)) or [path]


class DqnReplayReader:
    """Episodes of runs; a part is a run's folder of logs."""

    parallel = False  # a run is far too large to be sent from one process to another

    def __init__(self, path: Path, overrides: SpecOverrides) -> None:
        self.path = path
        self.runs = [logs for logs in runs_at(path) if numbers(logs)]
        if not self.runs:
            raise ValueError(f"{path}: holds no files like {file_of(Path(), OBSERVATION, 0)}")
        self.spec = DatasetSpec(
            frame_of(self.runs, path),
            overrides.num_actions
            or 1 + max(largest_action(logs, number) for logs in self.runs for number in numbers(logs)),
            frame_stack=overrides.frame_stack or 4,
            env=overrides.env or env_of(self.runs[0]),
        )

    def parts(self) -> Sequence[Path]:
        return self.runs

    def read(self, part: Path) -> Iterator[Episode | RejectedEpisode]:
        for item in Walk(part, look=True).items():
            yield self.told(item) if isinstance(item, Fault) else self.episode(part, item, self.spec)

    def summaries(self, part: Path) -> Iterator[EpisodeSummary | RejectedEpisode]:
        blind = replace(self.spec, obs_shape=(1,))
        for item in Walk(part, look=False).items():
            found = self.told(item) if isinstance(item, Fault) else self.episode(part, item, blind)
            yield found if isinstance(found, RejectedEpisode) else summarize(found)

    def episode(self, logs: Path, pieces: list[Piece], spec: DatasetSpec) -> Episode | RejectedEpisode:
        """The pieces put together, without the padding before them."""
        pieces = without_padding(pieces)
        actions, rewards, terminal = (
            np.concatenate([piece.column(name) for piece in pieces]) for name in ("action", "reward", "terminal")
        )
        frames = [piece.frames for piece in pieces if piece.frames is not None]
        seen = unseen(len(actions)) if not frames else frames[0] if len(frames) == 1 else np.concatenate(frames)
        seen.flags.writeable = False  # nobody else has it: an episode need not copy it
        ended = terminal != 0
        try:
            episode = Episode(
                observations=seen,
                actions=actions,
                rewards=rewards,
                terminated=ended & (len(ended) != LIMIT),
                truncated=ended & (len(ended) == LIMIT),
                player=logs.parent.name if logs.parent.name.isdecimal() else "",
                source=self.source(pieces[0].file),
                line=pieces[0].first + 1,
            )
            episode.fits(spec)
            return episode
        except ValueError as error:
            return RejectedEpisode(self.source(pieces[0].file), pieces[0].first + 1, str(error))

    def told(self, fault: Fault) -> RejectedEpisode:
        return RejectedEpisode(self.source(fault.file), fault.row + 1, fault.reason)

    def source(self, file: Path) -> str:
        return str(file.relative_to(self.path))


def without_padding(pieces: list[Piece]) -> list[Piece]:
    """An episode from its first own row on. Its padding, too, may lie in two files."""
    left = PADDING
    for number, piece in enumerate(pieces):
        drop = min(left, padding(piece))
        left -= drop
        if drop < piece.rows:
            frames = None if piece.frames is None else piece.frames[drop:]
            return [Piece(piece.log, piece.first + drop, piece.rows - drop, frames), *pieces[number + 1 :]]
    return []


def frame_of(runs: Sequence[Path], path: Path) -> tuple[int, ...]:
    """The shape of a picture, as the first file says it that can be opened."""
    fault: Exception | None = None
    for logs in runs:
        for number in numbers(logs):
            try:
                with GzippedArray(file_of(logs, OBSERVATION, number)) as array:
                    return tuple(array.shape[1:])
            except (OSError, ValueError) as error:
                fault = fault or error
    raise ValueError(f"{path}: no file of observations can be read: {fault}")


def largest_action(logs: Path, number: int) -> int:
    """The largest action of a file. Slots that were never filled may hold anything, so they are left out."""
    try:
        with GzippedArray(file_of(logs, "action", number)) as array:
            count = add_count(logs, number, len(array), last=number == numbers(logs)[-1])
            actions = array.rows(len(array) - 1 if count is None else count % len(array))
    except (OSError, ValueError):
        return 0  # told when the file is read
    return int(np.max(actions, initial=0, where=(actions >= 0) & (actions < MOST_ACTIONS)))


def env_of(logs: Path) -> str:
    """The environment, by the name of the game's folder."""
    run = logs.resolve().parent
    game = run.parent.name
    return f"ALE/{game}-v5" if run.name.isdecimal() and GAME.fullmatch(game) else ""
