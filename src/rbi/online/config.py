"""Settings of a training run, in parts, its layout on a cluster, and the presets: `paper`, `fast` and `small`."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rbi.config import Checked, Ge, Interval, check_fields
from rbi.envs import has_numbered_states
from rbi.envs.types import EnvConfig, EnvFactory
from rbi.networks import MAX_HIDDEN_SIZE, AdvantageBaseline
from rbi.replay import ReplayConfig
from rbi.returns import ReturnConfig
from rbi.rules.types import Rule, parse_rule
from rbi.suggestions import nearest

Algorithm = Literal["rbi", "apex"]
Preset = Literal["paper", "fast", "small"]

GROUPS = 2
"""While one group of environments steps, the other group's actions are computed."""
BLOCK_STATES, MIN_BLOCK_STEPS, MAX_BLOCK_STEPS = 2048, 4, 16
"""Default size of the blocks that all rollout workers of a cluster make at a time: larger ones hold older weights."""
MAX_PUBLICATIONS = 4
"""Publications of weights in that time, at most."""
PAPER_MAX_FRAMES = 50_000
"""The paper's limit of an Atari episode in training; evaluation uses 108,000."""
ONLY_USED_BY: dict[Algorithm, tuple[str, ...]] = {
    "rbi": (
        "rule",
        "c_greedy",
        "improve_in",
        "policy_weighting",
        "policy_weight_exponent",
        "advantage_baseline",
        "bootstrap_policy",
        "improve_from",
    ),
    "apex": ("double_q",),
}
"""Settings that one of the algorithms has no use for."""
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
class ActorConfig(Checked):
    """How actors choose actions."""

    rule: str = "reroute(0.1,2)"
    """The policy-improvement rule that is applied in every state; `rbi rules` compares them. In Python a rule such as
    `rbi.Reroute(0.1, 2)` may stand for its text."""
    c_greedy: Annotated[float, Interval(ge=0, le=1)] = 0.1
    """Weight of the greedy policy that is mixed in after the rule, so that actions near probability 0 can return."""
    improve_in: Literal["actor", "learner", "both"] = "actor"
    """Where the rule is applied: in the actor, whose policy is stored and imitated (as in the paper); in the learner's
    targets, while actors follow the policy network; or in both: actors follow the rule, the learner applies it
    afresh."""
    epsilon_base: Annotated[float, Interval(ge=0, le=1)] = 0.4
    """Exploration of environment i of N: epsilon = base^(1 + exponent i / (N - 1)), as in Ape-X."""
    epsilon_exponent: Annotated[float, Ge(0)] = 7.0
    """Exponent of the exploration schedule over environments; 0 gives all of them the base."""
    exploration_fraction: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Part of the run during which epsilon falls linearly from 1 to the environment's own; 0 starts with its own."""
    max_repeat: Annotated[int, Interval(ge=1, le=10_000)] = 1
    """Longest repetition of a random action, in steps: a length k has probability ~ 1/k up to this, so that
    exploration goes far in one direction (epsilon-z-greedy, Dabney et al. 2021); 1 draws every random action anew."""
    repeat_episodes: Annotated[int, Ge(1)] = 25
    """Random actions are repeated until this many episodes of a group of environments have terminated. Where episodes
    only reach their time limit, short random walks find nothing; elsewhere repetition only costs."""
    priority_baseline: Literal["q", "v"] = "q"
    """What the n-step return is compared with for initial priorities: Q(s, a), or V(s) as in the paper's Algorithm."""
    clip_rewards: bool = True
    """Clip rewards to [-1, 1] for learning; turn it off where their size matters. Scores are never clipped."""
    reward_scale: Annotated[float, Interval(ge=0, le=1e30)] = 1.0
    """Size of typical rewards: networks learn them divided by it, since values far from 1 are learned slowly or not at
    all. Scores, rules and saved policies have the environment's own rewards. 0: the power of ten nearest to the median
    size of rewards other than 0, in 256 random steps before training."""

    def __post_init__(self) -> None:
        if isinstance(self.rule, Rule):
            object.__setattr__(self, "rule", str(self.rule))
        check_fields(self)
        parse_rule(self.rule)

    @property
    def reward_unit(self) -> float:
        """What rewards are divided by; 1 as long as `reward_scale` has not been measured."""
        return self.reward_scale or 1.0


@dataclass(frozen=True)
class LearnerConfig(Checked):
    """How the networks are trained."""

    batch_size: Annotated[int, Interval(ge=1, le=10_000_000)] = 128
    """States in a batch; with several learners, in the batch of all of them."""
    learning_rate: Annotated[float, Interval(gt=0, lt=1)] = 0.00025 / 4
    """Adam's learning rate, for both networks. Lower it if q_loss or the score becomes unstable."""
    final_lr_fraction: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Learning rate at the end of the run as a fraction of the initial one, decayed linearly; 1 keeps it constant."""
    adam_epsilon: Annotated[float, Interval(gt=0, lt=1)] = 1.5e-4
    """Adam's epsilon. The paper's 0.00015 exceeds typical gradients of clipped rewards, which slows learning; 1e-8 is
    Adam's usual value."""
    target_update_interval: Annotated[int, Ge(1)] = 2500
    """Updates between copies of the Q-network to the target network: fewer propagate rewards faster, more keep targets
    stable. With improve_from = target the policy network is copied, too: each copy is one improvement."""
    updates_per_sample: Annotated[int, Interval(ge=1, le=1_000_000)] = 1
    """Batches that are sampled at once, from the same priorities; all update intervals must be multiples of it."""
    q_loss: Literal["huber", "squared"] = "huber"
    """Loss of the Q-network: huber limits the gradients of large errors, for clipped rewards; squared does not, for
    rewards of any size."""
    policy_weighting: bool = True
    """Weight the policy loss by w^pi, the advantage variance."""
    policy_weight_exponent: Annotated[float, Ge(0)] = 0.5
    """The exponent alpha of w^pi."""
    advantage_baseline: AdvantageBaseline = "pi"
    """What the dueling head subtracts from advantages: their mean under the policy, so that V is its value, or their
    plain mean. Ape-X always uses the plain mean."""
    double_q: bool = True
    """Ape-X: double Q-learning, where the online network chooses the action that the target network evaluates."""
    augmentation: Annotated[int, Interval(ge=0, le=16)] = 0
    """Random-shift augmentation of images, in pixels (0 disables). Without it networks memorise the replay; use less
    where single pixels matter."""
    bootstrap_policy: Literal["stored", "net", "rule"] = "stored"
    """The policy in V at s_(i+n): the one that the actor stored there, the policy network's, or the rule applied
    afresh to the policy network (with improve_from = target, to its target network) and the target network."""
    improve_from: Literal["latest", "target"] = "latest"
    """The networks that the learner applies the rule to, where it does: the latest ones, so that every update imitates
    an improvement of the last one's result; or the target networks, so that the policy to imitate stays within c_min
    and c_max of the last target update's, but for the greedy mix."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.target_update_interval % self.updates_per_sample:
            raise ValueError(
                f"target_update_interval = {self.target_update_interval}: not a multiple of "
                f"updates_per_sample = {self.updates_per_sample}"
            )


@dataclass(frozen=True)
class Schedule(Checked):
    """Length of the run, number of environments, and how actors and learner keep step. Everything is counted in updates
    and states, never in seconds, so a run does not depend on the machine's speed."""

    updates: Annotated[int, Interval(ge=1, le=1_000_000_000_000)] = 3_125_000
    """Updates of the networks in total: the length of the run. Learning rate and exploration decay over it."""
    num_envs: Annotated[int, Interval(ge=2, le=65_536)] = 256
    """Parallel environments, in two groups that take turns. Fewer start sooner and make fewer steps a second."""
    states_per_update: Annotated[float, Interval(gt=0, le=1_000_000_000)] = 256.0
    """New states per update; a state is sampled about batch_size / states_per_update times. Lower it if the simulator
    is slow, raise it if networks overfit the replay."""
    publish_interval: Annotated[int, Ge(1)] = 100
    """Updates between two publications of the learner's weights. Fewer give actors newer weights and cost time."""
    refresh_interval: Annotated[int, Ge(1)] = 1000
    """Environment steps after which an actor loads the newest published weights."""
    learning_starts: Annotated[int, Ge(1)] = 50_000
    """States in the replay before the first update."""
    random_policy_updates: Annotated[int, Ge(0)] = 2500
    """Updates during which actors follow the uniform policy."""
    hidden_size: Annotated[int, Interval(ge=1, le=MAX_HIDDEN_SIZE)] = 512
    """Units of the networks' hidden layers."""
    norm: Literal["none", "layer", "hidden"] = "none"
    """Layer norm: layer, before each ReLU of the networks; hidden, in the hidden layer only, since in the first layer
    it would discard the length of a vector observation."""
    scale_observations: bool = False
    """Scale numbers of vector observations to [-1, 1] where the bounds of the observation space are narrower, such as
    MountainCar's velocity of at most 0.07."""
    precision: Literal["auto", "float32"] = "auto"
    """Precision of the networks. auto: bfloat16 where the hardware is fast at it, else float32; float32: always (TF32
    on a GPU)."""
    env_threads: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Emulator threads of each group; 0 shares the cores among the groups."""
    env_processes: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Worker processes of each group that step Gymnasium environments while the networks learn, for simulators whose
    steps take milliseconds. 0: the training process steps them one after the other, which is faster for small ones."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_envs % GROUPS:
            raise ValueError(f"num_envs = {self.num_envs}: must be even, since two groups take turns")


@dataclass(frozen=True)
class TrainConfig(Checked):
    """All settings of a training run.

    The defaults of its parts are the paper's numbers. `rbi.train` and `TrainConfig.preset` start from a preset, by
    default `fast` for Atari games and `small` for anything else.
    """

    env: EnvConfig
    algo: Algorithm = "rbi"
    """rbi: Rerouted Behavior Improvement; apex: the paper's baseline, a greedy policy with double Q-learning."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    returns: ReturnConfig = field(default_factory=ReturnConfig)
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        check_fields(self)
        per_sample = self.learner.updates_per_sample
        for name, value in (
            ("updates", self.schedule.updates),
            ("publish_interval", self.schedule.publish_interval),
            ("release_interval", self.replay.release_interval),
            ("random_policy_updates", self.schedule.random_policy_updates),
        ):
            if value % per_sample:
                raise ValueError(f"{name} = {value}: not a multiple of learner.updates_per_sample = {per_sample}")
        if self.schedule.learning_starts > self.replay.capacity // 2 and self.schedule.learning_starts > 1:
            raise ValueError(
                f"learning_starts = {self.schedule.learning_starts}: is more than half of the replay's capacity of "
                f"{self.replay.capacity} states; lower --schedule.learning-starts or raise --replay.capacity"
            )
        if self.schedule.env_processes and self.env.is_atari:
            processes = self.schedule.env_processes
            raise ValueError(f"env_processes = {processes}: Atari games have their own processes; set env_threads")
        if self.algo == "rbi" and self.learner.improve_from == "target":
            if self.actor.improve_in == "actor":
                raise ValueError(
                    "improve_from = target: needs improve_in = both or learner, where the learner improves; with "
                    "stored policies set --learner.improve-from latest"
                )
            if self.learner.bootstrap_policy != "rule":
                raise ValueError(
                    f"improve_from = target: needs bootstrap_policy = rule, not {self.learner.bootstrap_policy}: the "
                    "value that is learned is that of the improved policy of the target networks; otherwise set "
                    "--learner.improve-from latest"
                )
        sampled = self.learner.batch_size * per_sample
        if sampled > self.replay.capacity:
            raise ValueError(
                f"batch_size = {self.learner.batch_size}: {sampled:,} states are sampled at once, more than the "
                "replay's capacity"
            )
        held_back = self.replay.release_interval * self.schedule.states_per_update
        if held_back > self.replay.capacity:
            raise ValueError(
                f"release_interval = {self.replay.release_interval}: {held_back:,.0f} new states would come between "
                f"two releases and overwrite all {self.replay.capacity:,} of the replay"
            )

    @property
    def states(self) -> int:
        """Environment steps of the run, about."""
        return round(self.schedule.updates * self.schedule.states_per_update) + self.schedule.learning_starts

    @classmethod
    def preset(
        cls, env: str | EnvFactory | EnvConfig, algo: Algorithm = "rbi", preset: Preset | None = None, **changes: Any
    ) -> "TrainConfig":
        """The settings of a preset, by default the one that suits the environment; `changes` as in `changed`.

        >>> TrainConfig.preset("CartPole-v1", updates=400, batch_size=32).schedule.updates
        400
        """
        config = EnvConfig.of(env, max_frames=PAPER_MAX_FRAMES)
        return cls(config, algo, **preset_parts(config, preset)).changed(**changes)

    def changed(self, **changes: Any) -> "TrainConfig":
        """A copy with other settings: whole parts (`learner=LearnerConfig(...)`), parts as mappings
        (`learner={"batch_size": 32}`), or single settings by their own name (`batch_size=32`); `env` may be an id or a
        function that makes an environment, too."""
        parts = {part.name: getattr(self, part.name) for part in dataclasses.fields(self)}
        homes = {setting.name: part for part in ("env", *PARTS) for setting in dataclasses.fields(parts[part])}
        within: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            if name == "env" and not isinstance(value, EnvConfig | Mapping):
                named = EnvConfig.of(value)
                parts[name] = dataclasses.replace(self.env, id=named.id, factory=named.factory)
            elif name in parts and not isinstance(value, Mapping):
                parts[name] = value
            elif name in parts:
                within.setdefault(name, {}).update(value)
            elif name in homes:
                within.setdefault(homes[name], {})[name] = value
            else:
                raise unknown_setting(name, (*parts, *homes))
        unused = unused_settings(parts["algo"])
        for part, settings in within.items():
            names = [setting.name for setting in dataclasses.fields(parts[part])]
            if unknown := [name for name in settings if name not in names]:
                raise ValueError(f"{part}.{unknown[0]}: is not a setting; there are {', '.join(names)}")
            if ignored := [name for name in settings if name in unused]:
                raise ValueError(f"{ignored[0]}: has no effect on the algorithm {parts['algo']}")
            parts[part] = dataclasses.replace(parts[part], **settings)
        return TrainConfig(**parts)


def setting_names() -> list[str]:
    """The names that `TrainConfig.changed` takes: parts, and single settings."""
    parts: tuple[Any, ...] = (TrainConfig, EnvConfig, *(type(part) for part in PRESETS["paper"].values()))
    return [setting.name for part in parts for setting in dataclasses.fields(part)]


def unknown_setting(name: str, known: Collection[str]) -> ValueError:
    """The error for a setting that does not exist, with the one that is meant of those `known`."""
    meant = nearest(name, known) or "; rbi.TrainConfig has them all"
    return ValueError(f"{name}: is not a setting of training{meant}")


def unused_settings(algo: Algorithm) -> set[str]:
    """The settings that an algorithm has no use for."""
    return {name for other, names in ONLY_USED_BY.items() if other != algo for name in names}


@dataclass(frozen=True)
class ClusterConfig(Checked):
    """The layout of a run on a Ray cluster (--engine ray)."""

    workers: Annotated[int, Interval(ge=0, le=65_536)] = 0
    """Rollout workers, which share the environments. Workers that do not fit wait for a node to join. 0: as many as fit
    when the run starts."""
    replay: Literal["learner", "shards"] = "learner"
    """Where the replay is: in the learner's process, in GPU memory if it has a GPU, which is fastest; or in shards,
    processes of their own that may be on other machines, for a replay that does not fit there."""
    shards: Annotated[int, Interval(ge=1, le=4096)] = 1
    """Replay shards. A single shard is placed on the learner's node; several are spread over the nodes."""
    learners: Annotated[int, Interval(ge=1, le=4096)] = 1
    """Learner workers. Several hold equal parts of the environments' replay and of every batch and average their
    gradients; one update is the same as that of a single learner on the whole batch."""
    inference_workers: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Processes that compute actions for several rollout workers at once, on a GPU if they have one. 0: rollout workers
    compute their own."""
    block_steps: Annotated[int, Interval(ge=0, le=1_000_000)] = 0
    """Steps of every environment in one block of experience: more need fewer calls, and act with older weights. 0:
    as many as give 2,048 states of all environments together, from 4 to 16."""
    prefetch: Annotated[int, Interval(ge=0, le=10_000)] = 2
    """Samples from the replay that are requested ahead of the learner."""
    lockstep: bool = False
    """Alternate rollouts and updates as the local engine does, so that a run repeats to the last bit; one worker."""
    evaluation_interval: Annotated[int, Ge(0)] = 0
    """Updates between two evaluations during training; 0: a twentieth of the run."""
    evaluation_episodes: Annotated[int, Interval(ge=0, le=1_000_000)] = 10
    """Episodes of each evaluation during training; 0 disables it."""
    worker_cpus: Annotated[float, Ge(0)] = 1.0
    """CPUs that Ray reserves for a rollout worker."""
    worker_gpus: Annotated[float, Ge(0)] = 0.0
    """GPUs of a rollout worker, fractions allowed; with 0 it computes on the CPU."""
    learner_cpus: Annotated[float, Ge(0)] = 1.0
    """CPUs of the learner worker."""
    learner_gpus: Annotated[float, Ge(0)] | None = None
    """GPUs of the learner worker; by default one if the cluster has any."""
    inference_cpus: Annotated[float, Ge(0)] = 1.0
    """CPUs of an inference worker."""
    inference_gpus: Annotated[float, Ge(0)] = 0.0
    """GPUs of an inference worker, fractions allowed; with 0 it computes on the CPU."""
    shard_cpus: Annotated[float, Ge(0)] = 0.0
    """CPUs of a replay shard; its work is short and comes in bursts."""
    evaluator_cpus: Annotated[float, Ge(0)] = 0.0
    """CPUs of an evaluation, which runs at low priority."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.lockstep and (self.workers > 1 or self.replays > 1 or self.inference_workers):
            raise ValueError("lockstep: needs one worker, one learner or shard, and no inference worker")
        for name, count in (("shards", self.shards), ("learners", self.learners)):
            if self.workers and count > self.workers:
                raise ValueError(f"{name} = {count}: more than workers = {self.workers}")
        if self.shards > 1 and self.replay != "shards":
            raise ValueError(f"shards = {self.shards}: needs replay = shards; the replay is in the learner")
        if self.learners > 1 and self.replay != "learner":
            raise ValueError(f"learners = {self.learners}: needs replay = learner; each holds a part of it")

    @property
    def replays(self) -> int:
        """Processes that hold a part of the replay."""
        return self.shards if self.replay == "shards" else self.learners

    def gpus_per_learner(self, gpus: float) -> float:
        """GPUs of each learner on a cluster that has `gpus`."""
        return float(gpus >= self.learners) if self.learner_gpus is None else self.learner_gpus

    def fitting_workers(self, cpus: float, gpus: float) -> int:
        """How many workers fit next to the other processes on a cluster; 0 if those do not fit either."""
        shards = self.shards * self.shard_cpus if self.replay == "shards" else 0
        inference = self.inference_workers * self.inference_cpus
        free_cpus = cpus - self.learners * self.learner_cpus - shards - inference - self.evaluator_cpus
        free_gpus = gpus - self.learners * self.gpus_per_learner(gpus) - self.inference_workers * self.inference_gpus
        if min(free_cpus, free_gpus) < -1e-9:
            return 0
        limits = [(free_cpus, self.worker_cpus), (free_gpus, self.worker_gpus)]
        return min((int(free / each + 1e-9) for free, each in limits if each), default=max(1, int(cpus)))

    def num_workers(self, schedule: Schedule, cpus: float, gpus: float) -> int:
        """The number of rollout workers of a run; the environments must divide evenly among them."""
        if self.workers or self.lockstep:
            workers = self.workers or 1
            if schedule.num_envs % (GROUPS * workers):
                raise ValueError(
                    f"workers = {workers}: num_envs = {schedule.num_envs} does not divide among them, in {GROUPS} "
                    "groups each"
                )
            return workers
        most = max(1, self.replays, min(self.fitting_workers(cpus, gpus), schedule.num_envs // GROUPS))
        divisors = [workers for workers in range(self.replays, most + 1) if schedule.num_envs % (GROUPS * workers) == 0]
        if not divisors:
            raise ValueError(f"num_envs = {schedule.num_envs}: does not divide among {self.replays} workers or more")
        return divisors[-1]

    def steps_per_block(self, schedule: Schedule) -> int:
        """Steps of every environment in one block."""
        return self.block_steps or min(max(BLOCK_STATES // schedule.num_envs, MIN_BLOCK_STEPS), MAX_BLOCK_STEPS)

    def publish_interval(self, schedule: Schedule, workers: int) -> int:
        """Updates between publications of weights. Workers load them at the start of a block, so it is at least the
        updates of one block, and of a quarter of all blocks that workers make at a time; in lockstep the schedule's."""
        states = self.steps_per_block(schedule) * schedule.num_envs / min(workers, MAX_PUBLICATIONS)
        times = 1 if self.lockstep else math.ceil(states / schedule.states_per_update / schedule.publish_interval)
        return max(1, times) * schedule.publish_interval


PARTS = ("actor", "learner", "replay", "returns", "schedule")

PRESETS: dict[Preset, dict[str, Any]] = {
    # the paper's numbers and, where it gives none, those of docs/decisions/007
    "paper": {
        "actor": ActorConfig(),
        "learner": LearnerConfig(),
        "replay": ReplayConfig(store_at_episode_end=True, release_interval=5000),
        "returns": ReturnConfig(),
        "schedule": Schedule(),
    },
    # one GPU and minutes (docs/decisions/007, 017, 033)
    # Departs from the paper: ten batches per sample and transitions released as they come, weights published at once, a
    # higher and decayed learning rate, advantages centred by their plain mean, layer norm and random shifts; the rule
    # applied to the target networks instead of policies that actors stored, and c_max = 10 instead of 2.
    "fast": {
        "actor": ActorConfig(rule="reroute(0.1,10)", improve_in="both"),
        "learner": LearnerConfig(
            learning_rate=0.00025,
            final_lr_fraction=0.1,
            adam_epsilon=1e-8,
            updates_per_sample=10,
            target_update_interval=1000,
            advantage_baseline="mean",
            bootstrap_policy="rule",
            improve_from="target",
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
    # a CPU and minutes: light environments and small networks (docs/decisions/016)
    "small": {
        "actor": ActorConfig(
            improve_in="both", exploration_fraction=0.25, max_repeat=100, clip_rewards=False, reward_scale=0.0
        ),
        "learner": LearnerConfig(
            batch_size=256,
            learning_rate=0.001,
            final_lr_fraction=0.0,
            adam_epsilon=1e-8,
            updates_per_sample=4,
            target_update_interval=100,
            q_loss="squared",
            advantage_baseline="mean",
            bootstrap_policy="rule",
            improve_from="target",
        ),
        "replay": ReplayConfig(capacity=200_000, priority_exponent=0.0),
        "returns": ReturnConfig(),
        "schedule": Schedule(
            updates=30_000,
            num_envs=64,
            states_per_update=16.0,
            publish_interval=4,
            refresh_interval=1,
            learning_starts=1000,
            random_policy_updates=0,
            hidden_size=128,
            norm="hidden",
            scale_observations=True,
            precision="float32",  # networks this small gain nothing from bfloat16, and learn worse in it
        ),
    },
}


NUMBERED_STATES: dict[str, dict[str, Any]] = {
    "actor": {"exploration_fraction": 0.5, "max_repeat": 1},
    "learner": {"batch_size": 128},
    "returns": {"n_step": 1},
    "schedule": {"updates": 20_000, "num_envs": 32, "states_per_update": 8.0},
}
"""How `small` differs where observations are the numbers of states (docs/decisions/016)."""


def preset_parts(env: EnvConfig, preset: Preset | None = None) -> dict[str, Any]:
    """The settings of a preset for an environment, by default of the preset that suits it."""
    preset = preset or default_preset(env)
    if preset not in PRESETS:
        raise ValueError(f"preset = {preset!r}: must be one of {', '.join(PRESETS)}{nearest(str(preset), PRESETS)}")
    parts = dict(PRESETS[preset])
    if preset == "small" and has_numbered_states(env):
        parts |= {name: dataclasses.replace(parts[name], **changes) for name, changes in NUMBERED_STATES.items()}
    return parts


def saved_parts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The parts in the settings of a run folder, perhaps of another version: a setting that they lack has the default
    of its class, and one that no longer exists is left out, for `rbi.runs.check_resumable` to name it."""
    parts: dict[str, Any] = {}
    for name, part in PRESETS["paper"].items():
        names, saved = {setting.name for setting in dataclasses.fields(part)}, settings.get(name, {})
        parts[name] = type(part)(**{key: value for key, value in saved.items() if key in names})
    return parts


def default_preset(env: EnvConfig) -> Preset:
    """`fast` for Atari games, `small` for anything else; never the paper's 3,125,000 updates."""
    return "fast" if env.is_atari else "small"
