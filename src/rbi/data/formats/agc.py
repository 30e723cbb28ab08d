"""Atari Grand Challenge, versions 1 and 2: games that people played in a browser.

    <root>/trajectories/<game>/<N>.txt         a row a frame, 60 a second
    <root>/screens/<game>/<N>/<frame>.png      160 x 210, RGB

Row n and screen n belong together, but for the offsets: the text comes from the session, the screens from playing it
again. Corrected by them, row n has the action that led to screen n and the reward that came with it. A step is four
frames, as everywhere: it starts at a frame that is seen, its action is that of the first frame after, its reward the
sum over the four. A game that is over ends `terminated`; otherwise the player left, and the last step is `truncated`
with `quit`. Lives that end on the screen end returns; the last one of a player who left never ends, and the sampler
leaves out the steps whose return it cuts off too early (`SamplerConfig.unfinished`).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from PIL import Image

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, DatasetSpec, Episode
from rbi.data.formats.agc_settings import AgcConfig, Game
from rbi.data.formats.agc_text import ACTIONS, FIRST_ROW, EpisodeError, Trajectory, identity_of, parse
from rbi.data.formats.seam import EpisodeSummary
from rbi.data.repair.lives import losses
from rbi.data.repair.movement import onsets
from rbi.data.repair.offsets import USUAL, action_offset, reward_offset
from rbi.data.repair.scores import COUNTERS
from rbi.data.repair.screens import HEIGHT, SIZE, WIDTH, shrink
from rbi.data.repair.watch import Watch

SKIP = 4
BLOCK = 64
"""Frames in memory at once, in colour."""
GAMES: tuple[str, ...] = get_args(Game)
DAMAGED = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises over files that are cut short or damaged."""
ENVS = {
    "spaceinvaders": "ALE/SpaceInvaders-v5",
    "qbert": "ALE/Qbert-v5",
    "mspacman": "ALE/MsPacman-v5",
    "pinball": "ALE/VideoPinball-v5",
    "revenge": "ALE/MontezumaRevenge-v5",
}


def recognises(path: Path) -> bool:
    root, game, _ = place(path)
    return any((root / "trajectories" / name).is_dir() for name in ([game] if game else GAMES))


def place(path: Path) -> tuple[Path, str | None, str | None]:
    """The root, the game and the file that a path means; the last two may be all that there are."""
    path = path.resolve()
    if path.suffix == ".txt" and path.parent.parent.name == "trajectories":
        return path.parents[2], path.parent.name, path.name
    if path.parent.name in ("trajectories", "screens") and path.name in GAMES:
        return path.parents[1], path.name, None
    if path.name in ("trajectories", "screens"):
        return path.parent, None, None
    return path, None, None


def open_reader(path: Path, settings: Any) -> "AgcReader":
    return AgcReader(path, settings.agc, settings.overrides)


class AgcReader:
    """Episodes of one game; a part is the number of one."""

    parallel = True

    def __init__(self, path: Path, config: AgcConfig, overrides: Any) -> None:
        self.path, self.config = path, config
        self.root, game, only = place(path)
        if game and config.game not in (None, game):
            raise ValueError(f"{path}: holds {game}, not {config.game}; leave out --agc.game")
        self.game = chosen(self.root, game or config.game)
        folder = self.root / "trajectories" / self.game
        self.numbers = numbered([folder / only] if only else folder.glob("*.txt"))
        if not self.numbers:
            raise ValueError(f"{path if only else folder}: is no episode, or holds none (files such as 12.txt)")
        self.repeated = {} if config.duplicates else repeats(self.root, [self.file_of(n) for n in self.numbers])
        if overrides.num_actions not in (None, ACTIONS):
            raise ValueError(f"--actions = {overrides.num_actions}: AGC has {ACTIONS}")
        self.spec = DatasetSpec((SIZE, SIZE), ACTIONS, overrides.frame_stack or 4, overrides.env or ENVS[self.game])

    def file_of(self, number: int) -> str:
        return f"trajectories/{self.game}/{number}.txt"

    def parts(self) -> Sequence[int]:
        return self.numbers

    def read(self, part: int) -> Iterator[Episode | RejectedEpisode]:
        try:
            yield self.episode(part)
        except EpisodeError as fault:
            yield RejectedEpisode(self.file_of(part), fault.line, fault.reason)

    def summaries(self, part: int) -> Iterator[EpisodeSummary | RejectedEpisode]:
        """What the text alone tells: without lost lives, and with the usual offsets where they are to be found."""
        try:
            text = self.text(part)
            action, reward = (USUAL if offset is None else offset for offset in self.offsets)
            actions, rewards = Steps(len(text), self.config.phase).fold(text, action, reward)
            yield EpisodeSummary(
                actions, rewards, text.terminal, not text.terminal, None, False, "", self.file_of(part), 1
            )
        except EpisodeError as fault:
            yield RejectedEpisode(self.file_of(part), fault.line, fault.reason)

    @property
    def offsets(self) -> tuple[int | None, int | None]:
        """Of actions and of rewards, as overrides for."""
        return self.config.action_offset, self.config.reward_offset

    def text(self, number: int) -> Trajectory:
        """An episode's text."""
        source = self.file_of(number)
        if source in self.repeated:
            raise EpisodeError(1, f"is the same episode as {self.repeated[source]}")
        try:
            return parse((self.root / source).read_bytes())
        except OSError as error:
            raise EpisodeError(1, f"cannot be read ({error.strerror})") from None

    def episode(self, number: int) -> Episode:
        """An episode, from its text and its screens."""
        text, frames, watch = self.watched(number)
        steps = Steps(len(text), self.config.phase)
        actions, rewards = steps.fold(text, *self.found_offsets(text, watch))
        last = np.arange(len(actions)) == len(actions) - 1
        lost = losses(self.game, watch.lives) if watch and self.config.find_lives else np.zeros(0, np.int64)
        return Episode(
            observations=frames[: len(actions) + 1],
            actions=actions,
            rewards=rewards,
            terminated=last & text.terminal,
            truncated=last & (not text.terminal),
            life_lost=steps.holding(lost, len(actions)) & ~(last & text.terminal),
            abandoned=not text.terminal,
            source=self.file_of(number),
            line=1,
        )

    def watched(self, number: int) -> tuple[Trajectory, Array, Watch | None]:
        """An episode's text, the frames that are seen `[T + 1, 84, 84]`, and what all screens show beside the game."""
        text = self.text(number)
        steps = Steps(len(text), self.config.phase)
        frames = np.empty((len(steps.seen), SIZE, SIZE), np.uint8)
        watch = Watch(self.game) if self.game in COUNTERS and self.repairs else None
        folder = self.root / "screens" / self.game / str(number)
        for start, grey, colour in blocks(folder, len(text), colour=bool(watch) and self.config.action_offset is None):
            which = steps.within(start, len(grey) - 1)
            at = steps.seen[which] - start + 1
            frames[which] = shrink(np.maximum(grey[at - 1], grey[at]))
            if watch:
                watch.look(grey, colour)
        return text, frames, watch

    @property
    def repairs(self) -> bool:
        """Whether anything has to be read off the screens."""
        return self.config.check_scores or self.config.find_lives or None in self.offsets

    def found_offsets(self, text: Trajectory, watch: Watch | None) -> tuple[int, int]:
        """The offsets of actions and rewards, found if they are not given. Refuses a score that the screens deny."""
        action, reward = self.offsets
        if watch and reward is None:
            reward = reward_offset(self.game, watch.scores, text.scores)
        if watch and action is None:
            action = action_offset(self.game, onsets(self.game, np.concatenate(watch.places)), text.actions)
        action, reward = (USUAL if offset is None else offset for offset in (action, reward))
        if watch and self.config.check_scores:
            denied = COUNTERS[self.game].contradiction(watch.scores, text.scores, reward)
            if denied:
                raise EpisodeError(
                    len(text) + FIRST_ROW - 1, f"the score is {denied[0]} in the text and {denied[1]} on the screen"
                )
        return action, reward


class Steps:
    """How F frames make steps: which ones are seen, from the phase on every fourth, and the last one."""

    def __init__(self, frames: int, phase: int) -> None:
        self.frames = frames
        self.seen = np.append(np.arange(phase, frames - 1, SKIP), frames - 1)

    def within(self, start: int, count: int) -> slice:
        """Which of the frames seen lie within a block."""
        first, last = np.searchsorted(self.seen, (start, start + count))
        return slice(int(first), int(last))

    def holding(self, frames: Array, count: int) -> Array:
        """`[count]` booleans: the steps in which these frames lie; what comes later counts for the last one."""
        which = np.searchsorted(self.seen, frames) - 1
        return np.isin(np.arange(count), which[which >= 0].clip(max=count - 1))

    def fold(self, text: Trajectory, action_offset: int, reward_offset: int) -> tuple[Array, Array]:
        """Actions and rewards of the steps. A step whose action is no longer in the text is left out."""
        firsts = self.seen[:-1] + 1
        firsts = firsts[firsts + action_offset < self.frames]
        if not len(firsts):
            raise EpisodeError(FIRST_ROW, f"{self.frames} frames are too few for a step")
        rewards = text.rewards[reward_offset:]
        inside = firsts[firsts < len(rewards)]
        sums = np.add.reduceat(rewards, inside) if len(inside) else np.zeros(0)
        return text.actions[firsts + action_offset], np.append(sums, np.zeros(len(firsts) - len(inside)))


def blocks(folder: Path, frames: int, *, colour: bool) -> Iterator[tuple[int, Array, Array | None]]:
    """Screens from `start` on, B at a time: `start`, `[1 + B, 210, 160]` grey ones with the one before them in front,
    and if overrides for the same in colour `[B, 3, 210, 160]`."""
    before = None
    for start in range(0, frames, BLOCK):
        images = [screen(folder, frame) for frame in range(start, min(start + BLOCK, frames))]
        new = np.stack([np.asarray(image.convert("L")) for image in images])
        grey = np.concatenate([new[:1] if before is None else before, new])
        before = new[-1:]
        yield start, grey, np.array([[*map(np.asarray, image.split())] for image in images]) if colour else None


def screen(folder: Path, frame: int) -> Image.Image:
    """A screen, decoded."""
    name = "/".join((*folder.parts[-3:], f"{frame}.png"))
    try:
        with Image.open(folder / f"{frame}.png", formats=("PNG",)) as image:
            if image.size != (WIDTH, HEIGHT):
                raise EpisodeError(
                    frame + FIRST_ROW, f"{name}: is {image.size[0]} x {image.size[1]}, not {WIDTH} x {HEIGHT}"
                )
            image.load()
            return image if image.mode == "RGB" else image.convert("RGB")
    except FileNotFoundError:
        raise EpisodeError(frame + FIRST_ROW, f"{name}: no such screen") from None
    except DAMAGED:
        raise EpisodeError(frame + FIRST_ROW, f"{name}: is not a whole picture; get it again") from None


def chosen(root: Path, game: str | None) -> str:
    """The game that is overrides for, or the only one there."""
    there = [name for name in GAMES if (root / "trajectories" / name).is_dir()]
    if game is None and len(there) > 1:
        raise ValueError(f"{root}: holds {', '.join(there)}; choose one with --agc.game")
    if game is None and not there:
        raise ValueError(f"{root}: holds no game of AGC (trajectories/{', trajectories/'.join(GAMES)})")
    if game is not None and game not in there:
        raise ValueError(f"{root}: holds no trajectories/{game}; it has {', '.join(there) or 'no game of AGC'}")
    return game or there[0]


def numbered(files: Iterable[Path]) -> list[int]:
    """The numbers of the files that are episodes, in order."""
    return sorted(int(file.stem) for file in files if file.stem.isdecimal())


def repeats(root: Path, sources: list[str]) -> dict[str, str]:
    """Episodes that came before under another name: with the same number in the data base, or the same rows."""
    first: dict[Any, str] = {}
    found: dict[str, str] = {}
    for source in sources:
        try:
            with (root / source).open("rb") as file:
                identity = identity_of(file.readline(100))
                rows = hashlib.sha256(file.read()).digest()
        except (OSError, EpisodeError):
            continue  # reading it will say what is wrong
        earlier = first.get(identity) or first.get(rows)
        if earlier:
            found[source] = earlier
        for key in (identity, rows):
            first.setdefault(key, source)
    return found
