"""Episodes in the format of the Atari Grand Challenge, with their truth beside them.

    <root>/trajectories/<game>/<N>.txt
    <root>/screens/<game>/<N>/<frame>.png
    <root>/truth/<game>/<N>.json               what really happened, and what was put in on purpose (`Truth`)

Made as the collectors made theirs: someone plays, and the screens come from playing the same actions again. The action
that led to screen n and the points that came with it are those of frame n; screen 0 is there before anyone acts.
"""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rbi import runs
from rbi.data.episode import Array
from rbi.data.formats.agc import ENVS
from rbi.data.writers.agc import Rows, Version, write_episode
from rbi.envs.atari import FrameByFrame
from rbi.evaluation.colours import repainted
from rbi.evaluation.console_players import SKILLED, Player, Restless
from rbi.evaluation.defects import Defects, Injected, blank_icons, break_files, copy_episode, draw, drifted, wrong_score

QBERT_LIVES = 8  # where its memory counts them: 2, 1, 0, 255, and 254 when the game is over


@dataclass(frozen=True)
class Recording:
    """How episodes are recorded."""

    game: str
    """As the collectors call it."""
    seed: int = 0
    most_frames: int = 18_000
    """Who plays longer is taken for one who left: five minutes."""
    quits: float = 0.5
    """The share of players who leave before the game is over."""
    skilled: float = 0.5
    """The share of players who know what they are doing; the others press anything."""
    version: Version = 2
    defects: Defects = field(default_factory=Defects)

    def __post_init__(self) -> None:
        if self.game not in ENVS:
            raise ValueError(f"game = {self.game!r}: AGC has {', '.join(ENVS)}")
        if self.most_frames < 100:
            raise ValueError(f"most_frames = {self.most_frames}: must be at least 100")
        for name in ("quits", "skilled"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: a share must lie in [0, 1]")


@dataclass(frozen=True)
class Played:
    """What someone did in F frames. Frame 0 has no action and no points."""

    actions: Array
    """`[F]`: the one that led to each frame."""
    rewards: Array
    """`[F]`: the points that came with it."""
    over: bool
    """Whether the last frame ends the game."""

    def first(self, frames: int) -> "Played":
        """The same player, who left earlier."""
        return Played(self.actions[:frames], self.rewards[:frames], over=False)


@dataclass(frozen=True)
class Truth:
    """What really happened in an episode of F frames, and what was put in on purpose."""

    game: str
    number: int
    identity: int
    frames: int
    player: str
    abandoned: bool
    score: int
    """All points that were made."""
    screen_score: int
    """The points that the last screen shows."""
    text_score: int
    """The score of the last row."""
    life_losses: tuple[int, ...]
    """The frames at which the game counts a life less, and goes on."""
    lives_left: tuple[int, ...]
    """How many there are then, the one that begins included."""
    actions: tuple[int, ...]
    """`[F]`: the one that led to each frame."""
    rewards: tuple[int, ...]
    """`[F]`: the points that came with it."""
    injected: Injected
    copy_of: int | None = None
    """The number of the episode that this one repeats."""

    @property
    def usable(self) -> bool:
        """Whether a reader should take it. An episode that was copied is good; its copy is not."""
        return self.copy_of is None and self.injected.fatal in (None, "same_identity", "same_rows")

    @property
    def shows(self) -> bool:
        """Whether the files show what is wrong: a run that drifts and ends with the same score does not."""
        return not self.usable and (self.injected.fatal != "drift" or self.text_score != self.screen_score)


def play(game: FrameByFrame, player: Player, most_frames: int, rng: np.random.Generator) -> Played:
    """Let someone play until the game is over or it is enough."""
    actions, rewards, lives = [0], [0], lives_of(game)
    while len(actions) < most_frames and not game.over:
        if (action := player(game, rng)) is None:
            break
        points, before, lives = game.act(action), lives, lives_of(game)
        if restarted(game, before, lives):
            return Played(np.array(actions), np.array(rewards), over=True)
        actions.append(action)
        rewards.append(points)
    return Played(np.array(actions), np.array(rewards), game.over)


class Replayed:
    """Screens of a game that is played again; it remembers what the game knows about each."""

    def __init__(self, game: FrameByFrame, actions: Array) -> None:
        self.game, self.actions = game, actions
        self.score = 0
        self.lives: list[int] = []

    def __iter__(self) -> Iterator[FrameByFrame]:
        for frame, action in enumerate(self.actions.tolist()):
            if frame:
                self.score += self.game.act(action)
            self.lives.append(lives_of(self.game))
            yield self.game

    def life_losses(self) -> tuple[list[int], list[int]]:
        """Frames at which the game counts a life less and goes on, and how many there are then."""
        lives = np.array(self.lives)
        fell = np.flatnonzero(np.diff(lives) < 0) + 1
        fell = fell[fell < (len(lives) - 1 if self.game.over else len(lives))]
        return fell.tolist(), lives[fell].tolist()


def lives_of(game: FrameByFrame) -> int:
    """How many lives there are, the one being played included."""
    if game.id == ENVS["qbert"]:  # ale-py's own count goes from 2 to 0
        return int(game.memory()[QBERT_LIVES].astype(np.int8)) + 2
    return game.lives


def restarted(game: FrameByFrame, before: int, now: int) -> bool:
    """Whether Q*bert began anew: who fires while the last life ends gets a new game at once, and ale-py goes on."""
    return game.id == ENVS["qbert"] and before == 1 and now > 2


def record(root: Path, recording: Recording, index: int, player: tuple[str, Player] | None = None) -> list[Truth]:
    """Record an episode, the `index`-th of its kind; what is true of it, and of its copy if it has one.

    Without a player, with a name, one is drawn.
    """
    game, rng = recording.game, np.random.default_rng([recording.seed, index, list(ENVS).index(recording.game)])
    number, seed = 2 * index, int(rng.integers(2**30))  # odd numbers are for copies: numbers have gaps
    name, played = session(recording, seed, rng, player)
    injected = draw(recording.defects, game, played.rewards, rng)
    identity = 1_000_000 * (1 + list(ENVS).index(game)) + number
    rows = Rows.late(
        identity,
        played.rewards,
        played.actions,
        terminal=played.over,
        reward_offset=injected.reward_offset,
        action_offset=injected.action_offset,
    )
    if injected.fatal == "wrong_score":
        rows = wrong_score(rows, injected.frame, injected.points)
    shown = drifted(played.actions, injected.frame) if injected.fatal == "drift" else played.actions
    again = Replayed(FrameByFrame(ENVS[game], seed), shown)
    write_episode(root, game, number, rows, screens(again, game, injected), recording.version)
    break_files(root, game, number, injected)
    losses, left = again.life_losses()
    truth = Truth(
        game=game,
        number=number,
        identity=identity,
        frames=len(rows),
        player=name,
        abandoned=not played.over,
        score=int(played.rewards.sum()),
        screen_score=again.score,
        text_score=int(rows.scores[-1]),
        life_losses=tuple(losses),
        lives_left=tuple(left),
        actions=tuple(played.actions.tolist()),
        rewards=tuple(played.rewards.tolist()),
        injected=injected,
    )
    found = [truth, *copies(root, truth)]
    for one in found:
        write_truth(root, one)
    return found


def recorded(root: Path, recording: Recording, index: int, player: tuple[str, Player]) -> Truth:
    """The same, unless it was recorded before; without defects there are no copies."""
    if truth_file(root, recording.game, 2 * index).exists():
        return read_truth(root, recording.game, 2 * index)
    return record(root, recording, index, player)[0]


def session(
    recording: Recording, seed: int, rng: np.random.Generator, player: tuple[str, Player] | None
) -> tuple[str, Played]:
    """Someone plays, and perhaps leaves: who it is, and what they did."""
    env = ENVS[recording.game]
    if player is None:
        made = SKILLED.get(env, Restless) if rng.random() < recording.skilled else Restless
        player = made.__name__, made()
    name, plays = player
    played = play(FrameByFrame(env, seed), plays, recording.most_frames, rng)
    if rng.random() < recording.quits:
        played = played.first(int(rng.integers(len(played.actions) // 3, len(played.actions))))
    return name, played


def screens(again: Replayed, game: str, injected: Injected) -> Iterator[Array]:
    """The screens of an episode, with what is wrong with them."""
    for frame, moment in enumerate(again):
        picture = repainted(moment.colours()) if injected.palette else moment.screen()
        yield blank_icons(picture, game) if injected.flashing(frame) else picture


def copies(root: Path, truth: Truth) -> list[Truth]:
    """Put an episode there twice, if that is what is wrong with it."""
    if truth.injected.fatal not in ("same_identity", "same_rows"):
        return []
    new = truth.number + 1
    identity = truth.identity + (truth.injected.fatal == "same_rows")
    copy_episode(root, truth.game, truth.number, new, identity)
    return [dataclasses.replace(truth, number=new, identity=identity, copy_of=truth.number)]


def truth_file(root: Path, game: str, number: int) -> Path:
    return root / "truth" / game / f"{number}.json"


def write_truth(root: Path, truth: Truth) -> None:
    path = truth_file(root, truth.game, truth.number)
    path.parent.mkdir(parents=True, exist_ok=True)
    runs.atomic_write(path, lambda at: at.write_text(runs.to_json(truth) + "\n"))


def read_truth(root: Path, game: str, number: int) -> Truth:
    """The truth of an episode as `record` wrote it."""
    told: dict[str, Any] = json.loads(truth_file(root, game, number).read_text())
    injected = told.pop("injected")
    injected["flashes"] = tuple(tuple(flash) for flash in injected["flashes"])
    columns: dict[str, Any] = {
        name: tuple(told.pop(name)) for name in ("life_losses", "lives_left", "actions", "rewards")
    }
    return Truth(**told, **columns, injected=Injected(**injected))
