"""Atari Grand Challenge, versions 1 and 2: games that people played in a browser.

    <root>/trajectories/<game>/<N>.txt         one row per frame, 60 frames a second
    <root>/screens/<game>/<N>/<frame>.png      160 x 210, RGB; numbered from 0 or from 1

The text of an episode:

    db traj id : 1234
    frame,reward,score,terminal,action
    0,0,0,0,0
    ...

Version 1 puts spaces around fields and writes `True` and `False` in the terminal column; both versions are read.

Row n and screen n belong together except for the offsets: the text comes from the play session, the screens from a
later re-emulation. After correcting the offsets, row n has the action that led to screen n and the reward that came
with it. A step is four frames: it starts at an observed frame, its action is that of the first frame after it, and its
reward is the sum over the four. A finished game ends `terminated`; otherwise the player left, and the last step is
`truncated` and the episode `abandoned`. Lost lives are read off the screens (`agc_repair`). The last life of an
abandoned episode never ends; the sampler excludes the steps whose return is cut off too early
(`SamplerConfig.max_missing_return`).
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np

from rbi.config import Checked, Interval, check_fields
from rbi.data.episode import Array, DatasetSpec, Episode, RejectedEpisode
from rbi.data.formats.agc_repair import (
    COUNTERS,
    DEFAULT_OFFSET,
    HEIGHT,
    MAX_OFFSET,
    SIZE,
    WIDTH,
    ScreenReadings,
    estimate_action_offset,
    estimate_reward_offset,
    find_life_losses,
    movement_onsets,
    resize,
)
from rbi.data.formats.reader import SpecOverrides, end_flags, placeholder_observations

SKIP = 4
Game = Literal["spaceinvaders", "qbert", "mspacman", "pinball", "revenge"]
GAMES: tuple[str, ...] = get_args(Game)
ENVS = {
    "spaceinvaders": "ALE/SpaceInvaders-v5",
    "qbert": "ALE/Qbert-v5",
    "mspacman": "ALE/MsPacman-v5",
    "pinball": "ALE/VideoPinball-v5",
    "revenge": "ALE/MontezumaRevenge-v5",
}
FIELDS = ("frame", "reward", "score", "terminal", "action")
FIRST_ROW = 3
"""Line number of the first frame's row."""
ACTIONS = 18
BLOCK = 64
"""Colour screens in memory at once."""


@dataclass(frozen=True)
class AgcConfig(Checked):
    """Settings of the Atari Grand Challenge reader."""

    game: Game | None = None
    """The game to read if the folder holds several (default: the only one)."""
    reward_offset: Annotated[int, Interval(ge=0, le=MAX_OFFSET)] | None = DEFAULT_OFFSET
    """Delay in frames of the text's rewards relative to the screens. None estimates it per episode from the score on
    the screens (2 if the score never changes)."""
    action_offset: Annotated[int, Interval(ge=0, le=MAX_OFFSET)] | None = DEFAULT_OFFSET
    """Delay in frames of the text's actions relative to their effect on the screens. None estimates it per episode from
    the figure's movements (2 if there are too few)."""
    phase: Annotated[int, Interval(ge=0, le=SKIP - 1)] = 0
    """The first observed frame of every four. Emulators differ in it: import with each of 0 to 3, fit a policy to each,
    and keep the phase whose policy scores best."""
    check_scores: bool = True
    """Reject episodes whose final score differs from the one on their last screens."""
    find_lives: bool = True
    """Detect lost lives on the screens."""
    duplicates: bool = False
    """Keep duplicate episodes."""

    def __post_init__(self) -> None:
        check_fields(self, "--agc.")


class EpisodeError(Exception):
    """An unusable episode: the reason, and the line of its text."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason


@dataclass(frozen=True)
class Trajectory:
    """The text of an episode of F frames."""

    identity: int
    """Its id in the collectors' database."""
    rewards: Array
    """`[F]`"""
    scores: Array
    """`[F]`"""
    actions: Array
    """`[F]`, of 18"""
    terminal: bool
    """Whether the last frame ends the game; otherwise the player abandoned it."""

    def __len__(self) -> int:
        return len(self.actions)


def parse_identity(first_line: bytes) -> int:
    """The number in `db traj id : 1234`."""
    found = re.fullmatch(rb"\s*db traj id\s*:\s*(\d{1,18})\s*", first_line)
    if found is None:
        raise EpisodeError(1, f"{first_line[:40]!r} is not a line such as 'db traj id : 1234'")
    return int(found[1])


def parse(written: bytes) -> Trajectory:
    """Parse and validate the text of an episode."""
    if not written.strip():
        raise EpisodeError(1, "is empty")
    lines = written.rstrip().split(b"\n")
    identity = parse_identity(lines[0])
    header = lines[1].replace(b" ", b"").strip().split(b",") if len(lines) > 1 else []
    if header != [name.encode() for name in FIELDS]:
        raise EpisodeError(2, f"the columns must be {','.join(FIELDS)}")
    if len(lines) < FIRST_ROW:
        raise EpisodeError(FIRST_ROW, "has no frames")
    rows = parse_rows(lines[FIRST_ROW - 1 :])
    frame, reward, score, terminal, action = rows.T
    check(frame != np.arange(len(rows)), frame, "frame {}: frames must be consecutive from 0")
    check((terminal != 0) & (terminal != 1), terminal, "terminal {}: must be 0 or 1")
    check((action < 0) | (action >= ACTIONS), action, f"action {{}}: must lie in 0 to {ACTIONS - 1}")
    check(terminal[:-1] == 1, terminal, "terminal {}: the game is over, and the file goes on")
    return Trajectory(identity, reward, score, action, bool(terminal[-1]))


def parse_rows(lines: list[bytes]) -> Array:
    """`[F, 5]` int64: the fields of each line."""
    fields = [line.replace(b"True", b"1").replace(b"False", b"0").split(b",") for line in lines]
    counts = np.fromiter(map(len, fields), np.int64, len(fields))
    check(counts != len(FIELDS), counts, f"{{}} fields: must be {len(FIELDS)}")
    try:
        found = [int(field) for row in fields for field in row]
        return np.array(found, np.int64).reshape(-1, len(FIELDS))
    except (ValueError, OverflowError):
        line, field = next((i, f) for i, row in enumerate(fields) for f in row if not is_integer(f))
        raise EpisodeError(line + FIRST_ROW, f"{field[:40].decode(errors='replace')!r} is not a whole number") from None


def is_integer(field: bytes) -> bool:
    try:
        return abs(int(field)) < 2**63
    except ValueError:
        return False


def check(bad: Array, values: Array, reason: str) -> None:
    """Raise for the first bad value, naming its line."""
    where = np.flatnonzero(bad)
    if len(where):
        raise EpisodeError(int(where[0]) + FIRST_ROW, reason.format(values[where[0]]))


def recognises(path: Path) -> bool:
    root, game, _ = locate(path)
    return any((root / "trajectories" / name).is_dir() for name in ([game] if game else GAMES))


def locate(path: Path) -> tuple[Path, str | None, str | None]:
    """The root, game and text file that a path denotes; game and file are None for all of them."""
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
    """Episodes of one game; a part is an episode's number."""

    parallel = True
    knows_lives = False

    def __init__(self, path: Path, config: AgcConfig, overrides: SpecOverrides) -> None:
        self.path, self.config = path, config
        self.root, game, only = locate(path)
        if game and config.game not in (None, game):
            raise ValueError(f"{path}: holds {game}, not {config.game}; leave out --agc.game")
        self.game = select_game(self.root, game or config.game)
        folder = self.root / "trajectories" / self.game
        self.numbers = episode_numbers([folder / only] if only else folder.glob("*.txt"))
        if not self.numbers:
            raise ValueError(f"{path if only else folder}: is not an episode, and holds none (files such as 12.txt)")
        sources = [] if config.duplicates else [self.file_of(number) for number in self.numbers]
        self.duplicates = find_duplicates(self.root, sources)
        if overrides.num_actions not in (None, ACTIONS):
            raise ValueError(f"--num-actions = {overrides.num_actions}: AGC has {ACTIONS}")
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

    def summaries(self, part: int) -> Iterator[Episode | RejectedEpisode]:
        """From the text alone: without lost lives, and with default offsets where they would be estimated."""
        try:
            text = self.text(part)
            action, reward = (DEFAULT_OFFSET if offset is None else offset for offset in self.offsets)
            actions, rewards = StepGrid(len(text), self.config.phase).fold(text, action, reward)
            yield Episode(
                observations=placeholder_observations(len(actions)),
                actions=actions,
                rewards=rewards,
                **end_flags(len(actions), terminated=text.terminal),
                abandoned=not text.terminal,
                source=self.file_of(part),
                line=1,
            )
        except EpisodeError as fault:
            yield RejectedEpisode(self.file_of(part), fault.line, fault.reason)

    @property
    def offsets(self) -> tuple[int | None, int | None]:
        """Configured offsets of actions and rewards."""
        return self.config.action_offset, self.config.reward_offset

    def text(self, number: int) -> Trajectory:
        """The text of an episode."""
        source = self.file_of(number)
        if source in self.duplicates:
            raise EpisodeError(1, f"is the same episode as {self.duplicates[source]}")
        try:
            return parse((self.root / source).read_bytes())
        except OSError as error:
            raise EpisodeError(1, f"cannot be read ({error.strerror})") from None

    def episode(self, number: int) -> Episode:
        """Build an episode from its text and screens."""
        text, frames, readings = self.load(number)
        steps = StepGrid(len(text), self.config.phase)
        actions, rewards = steps.fold(text, *self.resolve_offsets(text, readings))
        lost = np.zeros(0, np.int64)
        if readings and self.config.find_lives:
            lost = find_life_losses(self.game, readings.lives)
        ends = end_flags(len(actions), terminated=text.terminal)
        return Episode(
            observations=frames[: len(actions) + 1],
            actions=actions,
            rewards=rewards,
            **ends,
            life_lost=steps.contain(lost, len(actions)) & ~ends["terminated"],
            abandoned=not text.terminal,
            source=self.file_of(number),
            line=1,
        )

    def load(self, number: int) -> tuple[Trajectory, Array, ScreenReadings | None]:
        """An episode's text, its observed frames `[T + 1, 84, 84]`, and the readings of all its screens."""
        text = self.text(number)
        steps = StepGrid(len(text), self.config.phase)
        frames = np.empty((len(steps.observed), SIZE, SIZE), np.uint8)
        readings = ScreenReadings(self.game) if self.game in COUNTERS and self.repairs else None
        folder = self.root / "screens" / self.game / str(number)
        needs_colour = bool(readings) and self.config.action_offset is None
        for start, grey, colour in blocks(folder, len(text), colour=needs_colour):
            which = steps.within(start, len(grey) - 1)
            at = steps.observed[which] - start + 1
            frames[which] = resize(np.maximum(grey[at - 1], grey[at]))
            if readings:
                readings.add(grey, colour)
        return text, frames, readings

    @property
    def repairs(self) -> bool:
        """Whether any repair needs the screens."""
        return self.config.check_scores or self.config.find_lives or None in self.offsets

    def resolve_offsets(self, text: Trajectory, readings: ScreenReadings | None) -> tuple[int, int]:
        """The offsets of actions and rewards, estimated if configured so; rejects a contradicted score."""
        action, reward = self.offsets
        if readings and reward is None:
            reward = estimate_reward_offset(self.game, readings.scores, text.scores)
        if readings and action is None:
            onsets = movement_onsets(self.game, np.concatenate(readings.places))
            action = estimate_action_offset(self.game, onsets, text.actions)
        action, reward = (DEFAULT_OFFSET if offset is None else offset for offset in (action, reward))
        if readings and self.config.check_scores:
            mismatch = COUNTERS[self.game].contradiction(readings.scores, text.scores, reward)
            if mismatch:
                reason = f"the score is {mismatch[0]} in the text and {mismatch[1]} on the screen"
                raise EpisodeError(len(text) + FIRST_ROW - 1, reason)
        return action, reward


class StepGrid:
    """Maps F frames to steps: every fourth frame from `phase` on is observed, and the last one."""

    def __init__(self, frames: int, phase: int) -> None:
        self.frames = frames
        self.observed = np.append(np.arange(phase, frames - 1, SKIP), frames - 1)

    def within(self, start: int, count: int) -> slice:
        """The observed frames within a block."""
        first, last = np.searchsorted(self.observed, (start, start + count))
        return slice(int(first), int(last))

    def contain(self, frames: Array, count: int) -> Array:
        """`[count]` booleans: the steps that contain these frames; later frames count for the last step."""
        which = np.searchsorted(self.observed, frames) - 1
        return np.isin(np.arange(count), which[which >= 0].clip(max=count - 1))

    def fold(self, text: Trajectory, action_offset: int, reward_offset: int) -> tuple[Array, Array]:
        """Actions and rewards of the steps. A step whose action lies beyond the text is dropped."""
        firsts = self.observed[:-1] + 1
        firsts = firsts[firsts + action_offset < self.frames]
        if not len(firsts):
            raise EpisodeError(FIRST_ROW, f"{self.frames} frames are too few for a step")
        rewards = text.rewards[reward_offset:]
        inside = firsts[firsts < len(rewards)]
        sums = np.add.reduceat(rewards, inside) if len(inside) else np.zeros(0)
        return text.actions[firsts + action_offset], np.append(sums, np.zeros(len(firsts) - len(inside)))


def blocks(folder: Path, frames: int, *, colour: bool) -> Iterator[tuple[int, Array, Array | None]]:
    """Blocks of B screens: `start`, grey `[1 + B, 210, 160]` with the previous screen in front, and optionally the
    same in colour `[B, 3, 210, 160]`."""
    before, first = None, first_screen(folder, frames)
    for start in range(0, frames, BLOCK):
        images = [screen(folder, frame, first) for frame in range(start, min(start + BLOCK, frames))]
        new = np.stack([np.asarray(image.convert("L")) for image in images])
        grey = np.concatenate([new[:1] if before is None else before, new])
        before = new[-1:]
        yield start, grey, np.array([[*map(np.asarray, image.split())] for image in images]) if colour else None


def first_screen(folder: Path, frames: int) -> int:
    """The number of the first screen: 1 if there is no screen 0, and one after the number of the last row."""
    return int(not (folder / "0.png").exists() and (folder / f"{frames}.png").exists())


def screen(folder: Path, frame: int, first: int = 0) -> Any:
    """Decode one screen as an RGB image of Pillow."""
    from PIL import Image

    number = frame + first
    name = "/".join((*folder.parts[-3:], f"{number}.png"))
    try:
        with Image.open(folder / f"{number}.png", formats=("PNG",)) as image:
            if image.size != (WIDTH, HEIGHT):
                wrong = f"{name}: is {image.size[0]} x {image.size[1]}, not {WIDTH} x {HEIGHT}"
                raise EpisodeError(frame + FIRST_ROW, wrong)
            image.load()
            return image if image.mode == "RGB" else image.convert("RGB")
    except FileNotFoundError:
        raise EpisodeError(frame + FIRST_ROW, f"{name}: no such screen") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # truncated or damaged
        raise EpisodeError(frame + FIRST_ROW, f"{name}: is a damaged image; download it again") from None


def select_game(root: Path, game: str | None) -> str:
    """The requested game, or the only one present."""
    there = [name for name in GAMES if (root / "trajectories" / name).is_dir()]
    if game is None and len(there) > 1:
        raise ValueError(f"{root}: holds {', '.join(there)}; choose one with --agc.game")
    if game is None and not there:
        raise ValueError(f"{root}: holds no game of AGC (trajectories/{', trajectories/'.join(GAMES)})")
    if game is not None and game not in there:
        raise ValueError(f"{root}: holds no trajectories/{game}; it has {', '.join(there) or 'no game of AGC'}")
    return game or there[0]


def episode_numbers(files: Iterable[Path]) -> list[int]:
    """The sorted numbers of the episode files."""
    return sorted(int(file.stem) for file in files if file.stem.isdecimal())


def find_duplicates(root: Path, sources: list[str]) -> dict[str, str]:
    """Maps duplicates to the first episode with the same database id or the same rows."""
    first: dict[Any, str] = {}
    found: dict[str, str] = {}
    for source in sources:
        try:
            with (root / source).open("rb") as file:
                identity = parse_identity(file.readline(100))
                rows = hashlib.sha256(file.read()).digest()
        except (OSError, EpisodeError):
            continue  # reported when it is read
        earlier = first.get(identity) or first.get(rows)
        if earlier:
            found[source] = earlier
        for key in (identity, rows):
            first.setdefault(key, source)
    return found
