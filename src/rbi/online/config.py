"""All settings of a training run, in parts, and the presets."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rbi.envs.types import EnvConfig
from rbi.networks import MAX_HIDDEN_SIZE
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
    num_envs: int = 256
    """Environments side by side, in two groups that take turns."""
    states_per_update: float = 256.0
    """New states for each update."""
    publish_interval: int = 100
    """The learner publishes its weights every so many updates."""
    refresh_interval: int = 1000
    """A player takes the newest published weights every so many of its steps."""
    learning_starts: int = 50_000
    """Learning starts when so many states are there."""
    random_policy_updates: int = 2500
    """Players act at random until so many updates are done."""
    hidden_size: int = 512
    """Size of the networks' hidden layers."""
    norm: Literal["none", "layer"] = "none"
    """What the networks' layers are normalised by before relu: nothing, or layer norm, each position by itself."""
    precision: Literal["auto", "float32"] = "auto"
    """What networks compute in: bfloat16 where the hardware multiplies it fast, or float32 (TF32 on a GPU)."""
    env_threads: int = 0
    """Emulator threads of each group; 0: the groups share the cores."""

    def __post_init__(self) -> None:
        for name in ("updates", "num_envs", "publish_interval", "refresh_interval", "learning_starts", "hidden_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")
        if self.num_envs % GROUPS:
            raise ValueError(f"num_envs = {self.num_envs}: must be even, since two groups take turns")
        if not 0 < self.states_per_update < math.inf:
            raise ValueError(f"states_per_update = {self.states_per_update}: must be positive")
        for name in ("random_policy_updates", "env_threads"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 0")
        if self.hidden_size > MAX_HIDDEN_SIZE:
            raise ValueError(f"hidden_size = {self.hidden_size}: must be at most {MAX_HIDDEN_SIZE:,}")
        if self.norm not in ("none", "layer"):
            raise ValueError(f"norm = {self.norm!r}: must be one of none, layer")


@dataclass(frozen=True)
class TrainConfig:
    """A training run, whole."""

    env: EnvConfig
    algo: Algorithm = "rbi"
    """rbi: both networks and the improvement step; apex: the same with a greedy policy and double Q-learning."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    returns: ReturnConfig = field(default_factory=ReturnConfig)
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        round_ = self.learner.updates_per_sample
        for name, value in (
            ("updates", self.schedule.updates),
            ("publish_interval", self.schedule.publish_interval),
            ("release_interval", self.replay.release_interval),
            ("random_policy_updates", self.schedule.random_policy_updates),
        ):
            if value % round_:
                raise ValueError(f"{name} = {value}: not a multiple of updates_per_sample = {round_}")
        if self.schedule.learning_starts > self.replay.capacity // 2 and self.schedule.learning_starts > 1:
            raise ValueError(
                f"learning_starts = {self.schedule.learning_starts}: learning would wait for more than half of the replay's "
                f"{self.replay.capacity} states; give a smaller --schedule.learning-starts or a larger --replay.capacity"
            )
        drawn = self.learner.batch_size * round_
        if drawn > self.replay.capacity:
            raise ValueError(
                f"batch_size = {self.learner.batch_size}: {drawn:,} states a round, and the replay holds fewer"
            )
        unseen = self.replay.release_interval * self.schedule.states_per_update
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
        "returns": ReturnConfig(),
        "schedule": Schedule(),
    },
    # one GPU and minutes: ten batches share a look at the priorities, weights travel at once, and networks learn to see
    # before they learn games by heart (docs/decisions/007)
    "fast": {
        "actor": ActorConfig(),
        "learner": LearnerConfig(
            learning_rate=0.00025,
            final_lr_fraction=0.1,
            adam_epsilon=1e-8,
            updates_per_sample=10,
            target_update_interval=1000,
            advantage_baseline="mean",
            augmentation=4,
        ),
        "replay": ReplayConfig(capacity=1_000_000),
        "returns": ReturnConfig(),
        "schedule": Schedule(
            updates=400_000,
            num_envs=512,
            states_per_update=14.0,
            norm="layer",
            publish_interval=10,
            refresh_interval=4,
            learning_starts=50_000,
            random_policy_updates=0,
        ),
    },
    # a processor and minutes: light environments and small networks
    "small": {
        "actor": ActorConfig(),
        "learner": LearnerConfig(learning_rate=0.002, updates_per_sample=4, target_update_interval=20),
        "replay": ReplayConfig(capacity=50_000, priority_exponent=0.0),
        "returns": ReturnConfig(),
        "schedule": Schedule(
            updates=6000,
            num_envs=16,
            states_per_update=8.0,
            publish_interval=4,
            refresh_interval=4,
            learning_starts=1000,
            random_policy_updates=0,
            hidden_size=128,
        ),
    },
}
PAPER_FRAMES = 50_000  # an episode's cap in training; 108,000 in evaluation


def plan(preset: Preset, env: str, algo: Algorithm, **changes: Any) -> TrainConfig:
    """The preset's plan for an environment; `changes` are whole parts."""
    whole = TrainConfig(env=EnvConfig(env, max_frames=PAPER_FRAMES), algo=algo, **PRESETS[preset])
    return replace(whole, **changes)
