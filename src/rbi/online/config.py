"""All settings of a training run, in parts, and the presets."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rbi.envs.types import EnvConfig
from rbi.networks import MOST_HIDDEN, NORMS, Norm
from rbi.online.rbi import ActorConfig, LearnerConfig
from rbi.replay import ReplayConfig
from rbi.returns import ReturnConfig

Algorithm = Literal["rbi", "apex"]
Preset = Literal["paper", "fast", "small"]
GROUPS = 2  # while one group of environments moves, the other's actions are computed

PAPER_GAMES = (
    "Asterix",
    "Berzerk",
    "Breakout",
    "Enduro",
    "Freeway",
    "Frostbite",
    "IceHockey",
    "Kangaroo",
    "MsPacman",
    "Qbert",
    "Seaquest",
    "SpaceInvaders",
)


@dataclass(frozen=True)
class Schedule:
    """How actors and learner keep step: counted, never an accident of speed."""

    updates: int = 3_125_000
    """Updates of the networks in all."""
    players: int = 256
    """Environments side by side, in two groups that take turns."""
    states_per_update: float = 256.0
    """New states for each update."""
    publish_updates: int = 100
    """The learner publishes its weights every so many updates."""
    refresh_steps: int = 1000
    """A player takes the newest published weights every so many of its steps."""
    start_states: int = 50_000
    """Learning starts when so many states are there."""
    random_updates: int = 2500
    """Players act at random until so many updates are done."""
    hidden: int = 512
    """Size of the networks' hidden layers."""
    norm: Norm = "none"
    """What the networks' layers are normalised by before relu: nothing, or layer norm, each position by itself."""
    precision: Literal["auto", "float32"] = "auto"
    """What networks compute in: bfloat16 where the hardware multiplies it fast, or float32 (TF32 on a GPU)."""
    threads: int = 0
    """Emulator threads of each group; 0: the groups share the cores."""

    def __post_init__(self) -> None:
        for name in ("updates", "players", "publish_updates", "refresh_steps", "start_states", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.players % GROUPS:
            raise ValueError(f"players = {self.players}: must be even, since two groups take turns")
        if not 0 < self.states_per_update < math.inf:
            raise ValueError(f"states_per_update = {self.states_per_update}: must be positive")
        for name in ("random_updates", "threads"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 0")
        if self.hidden > MOST_HIDDEN:
            raise ValueError(f"hidden = {self.hidden}: must be at most {MOST_HIDDEN:,}")
        if self.norm not in NORMS:
            raise ValueError(f"norm = {self.norm!r}: must be one of {', '.join(NORMS)}")


@dataclass(frozen=True)
class TrainConfig:
    """A training run, whole."""

    world: EnvConfig
    algo: Algorithm = "rbi"
    """rbi: both networks and the improvement step; apex: the same with a greedy policy and double Q-learning."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    horizon: ReturnConfig = field(default_factory=ReturnConfig)
    pace: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        round_ = self.learner.round_updates
        for name, value in (
            ("updates", self.pace.updates),
            ("publish_updates", self.pace.publish_updates),
            ("release_interval", self.replay.release_interval),
            ("random_updates", self.pace.random_updates),
        ):
            if value % round_:
                raise ValueError(f"{name} = {value}: not a multiple of round_updates = {round_}")
        if self.pace.start_states > self.replay.capacity // 2 and self.pace.start_states > 1:
            raise ValueError(
                f"start_states = {self.pace.start_states}: learning would wait for more than half of the replay's "
                f"{self.replay.capacity} states; give a smaller --pace.start-states or a larger --replay.capacity"
            )
        drawn = self.learner.batch * round_
        if drawn > self.replay.capacity:
            raise ValueError(f"batch = {self.learner.batch}: {drawn:,} states a round, and the replay holds fewer")
        unseen = self.replay.release_interval * self.pace.states_per_update
        if unseen > self.replay.capacity:
            raise ValueError(
                f"release_interval = {self.replay.release_interval}: {unseen:,.0f} new states would come between two "
                f"reveals and write over all {self.replay.capacity:,} of the replay"
            )

    @property
    def learns_policy(self) -> bool:
        return self.algo == "rbi"


PRESETS: dict[Preset, dict[str, Any]] = {
    # every number of the paper and, where it gives none, of docs/decisions/007
    "paper": {
        "actor": ActorConfig(),
        "learner": LearnerConfig(),
        "replay": ReplayConfig(store_at_episode_end=True, release_interval=5000),
        "horizon": ReturnConfig(),
        "pace": Schedule(),
    },
    # one GPU and minutes: ten batches share a look at the priorities, weights travel at once, and networks learn to see
    # before they learn games by heart (docs/decisions/007)
    "fast": {
        "actor": ActorConfig(),
        "learner": LearnerConfig(
            learning_rate=0.00025,
            final_rate=0.1,
            adam_epsilon=1e-8,
            round_updates=10,
            target_updates=1000,
            centres="mean",
            shift=4,
        ),
        "replay": ReplayConfig(capacity=1_000_000),
        "horizon": ReturnConfig(),
        "pace": Schedule(
            updates=400_000,
            players=512,
            states_per_update=14.0,
            norm="layer",
            publish_updates=10,
            refresh_steps=4,
            start_states=50_000,
            random_updates=0,
        ),
    },
    # a processor and minutes: light environments and small networks
    "small": {
        "actor": ActorConfig(),
        "learner": LearnerConfig(learning_rate=0.002, round_updates=4, target_updates=20),
        "replay": ReplayConfig(capacity=50_000, priority_exponent=0.0),
        "horizon": ReturnConfig(),
        "pace": Schedule(
            updates=6000,
            players=16,
            states_per_update=8.0,
            publish_updates=4,
            refresh_steps=4,
            start_states=1000,
            random_updates=0,
            hidden=128,
        ),
    },
}
PAPER_FRAMES = 50_000  # an episode's cap in training; 108,000 in evaluation


def plan(preset: Preset, env: str, algo: Algorithm, **changes: Any) -> TrainConfig:
    """The preset's plan for an environment; `changes` are whole parts."""
    whole = TrainConfig(world=EnvConfig(env, max_frames=PAPER_FRAMES), algo=algo, **PRESETS[preset])
    return replace(whole, **changes)
