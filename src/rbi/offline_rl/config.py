"""Hyperparameters, presets and policies of the offline experiment.      (paper: section 4, tables of the appendix)"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rbi.config import Checked, Ge, Interval
from rbi.evaluation.rollouts import ProtocolName
from rbi.networks import offline_network
from rbi.offline_rl.bcq_cql import OfflineDQNConfig
from rbi.offline_rl.behavior_q import BehaviorQConfig
from rbi.offline_rl.dqfd import DQfDConfig
from rbi.offline_rl.ppo import PPOAscentConfig
from rbi.rules.types import BCQ, Behavior, Greedy, Rule, parse_rule

Preset = Literal["paper", "fast", "quick", "small"]
Baseline = Literal["ppo", "dqfd", "bcq", "cql"]
BASELINES: tuple[Baseline, ...] = ("ppo", "dqfd", "bcq", "cql")
RULES = (
    "reroute(0.5,1.5)",
    "reroute(0.25,1.75)",
    "reroute(0,2)",
    "tv(0.25)",
    "forward_kl(radius=0.125)",  # by Pinsker's inequality its total variation is at most 0.25
    "ppo(0.5)",
    "greedy",
)
BEHAVIOR = "behavior"
DEFAULT_MAX_FRAMES = 108_000


@dataclass(frozen=True)
class OfflineConfig(Checked):
    """Hyperparameters of all learners of the offline experiment."""

    updates: Annotated[int, Interval(ge=1, le=1_000_000_000_000)] = 1_562_500
    """Updates of every learner: beta with Q, DQfD, BCQ, CQL. Raise it while the learning curves still rise."""
    batch_size: Annotated[int, Interval(ge=2, le=10_000_000)] = 32
    """States per batch."""
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.99
    """Discount factor: rewards more than about 1 / (1 - gamma) steps away hardly count."""
    validation_fraction: Annotated[float, Interval(gt=0, le=0.5)] = 0.1
    """Fraction of the episodes held out for validation (temperature, diagnostics)."""
    data_fraction: Annotated[float, Interval(gt=0, le=1)] = 1.0
    """Fraction of the other episodes to learn from, drawn anew for each seed: how much data is enough?"""
    max_missing_return: Annotated[float, Interval(ge=0, le=1)] = 0.05
    """Q ignores steps of truncated episodes if more than this share of the return, gamma^steps, is missing (1: uses
    all)."""
    behavior_q: BehaviorQConfig = field(default_factory=BehaviorQConfig)
    ppo: PPOAscentConfig = field(default_factory=PPOAscentConfig)
    dqfd: DQfDConfig = field(default_factory=DQfDConfig)
    bcq: OfflineDQNConfig = field(default_factory=lambda: OfflineDQNConfig(bcq_threshold=0.3))
    cql: OfflineDQNConfig = field(default_factory=lambda: OfflineDQNConfig(cql_alpha=1.0))


@dataclass(frozen=True)
class EvaluationConfig(Checked):
    """How the policies of the offline experiment are evaluated."""

    episodes: Annotated[int, Interval(ge=1, le=1_000_000)] = 100
    """Episodes per policy and seed in the final evaluation."""
    evaluations: Annotated[int, Interval(ge=1, le=10_000)] = 4
    """Evaluations during training, evenly spaced, the final one included: the learning curve."""
    curve_episodes: Annotated[int, Interval(ge=1, le=1_000_000)] = 12
    """Episodes per policy and seed in the evaluations before the final one."""
    margin: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    """A policy is "not below" the behaviour policy if, with 95% confidence, it loses less than this share of its
    score."""
    protocol: ProtocolName = "paper"
    """Atari games only. paper: up to 30 no-ops at the start, no sticky actions; modern: sticky actions with probability
    0.25."""
    max_frames: Annotated[int, Ge(1)] = DEFAULT_MAX_FRAMES
    """Emulator frames after which an Atari episode is truncated."""
    max_idle_frames: Annotated[int, Ge(0)] = 0
    """Emulator frames without a reward after which an Atari episode counts as truncated with its score so far (0:
    never). A policy that gets stuck otherwise takes most of an evaluation's time."""
    num_envs: Annotated[int, Interval(ge=0, le=65_536)] = 0
    """Parallel environments (0: 64 on a CPU, 312 with a GPU)."""


def small_learners(
    hidden_size: int, target_update_interval: int, learning_rate: float, ppo_updates: int
) -> dict[str, Any]:
    """Learner configs with smaller networks, without dropout, that train faster."""
    network = offline_network(hidden_size, 0.0, 0.0)
    td: dict[str, Any] = {
        "learning_rate": learning_rate,
        "target_update_interval": target_update_interval,
        "network": network,
    }
    return {
        "behavior_q": BehaviorQConfig(learning_rate=learning_rate, network=network),
        "ppo": PPOAscentConfig(updates=ppo_updates, learning_rate=learning_rate),
        "dqfd": DQfDConfig(**td),
        "bcq": OfflineDQNConfig(bcq_threshold=0.3, **td),
        "cql": OfflineDQNConfig(cql_alpha=1.0, **td),
    }


PRESETS: dict[Preset, OfflineConfig] = {
    # all hyperparameters of the paper's appendix
    "paper": OfflineConfig(),
    # minutes on one GPU
    "fast": OfflineConfig(
        updates=40_000,
        ppo=PPOAscentConfig(updates=4000),
        dqfd=DQfDConfig(target_update_interval=1000),
        bcq=OfflineDQNConfig(bcq_threshold=0.3, target_update_interval=1000),
        cql=OfflineDQNConfig(cql_alpha=1.0, target_update_interval=1000),
    ),
    # images, minutes on a CPU: learns what is large and moves, not what is small and rare
    "quick": OfflineConfig(updates=400, validation_fraction=0.2, **small_learners(256, 100, 0.0005, 40)),
    # vectors, minutes on a CPU
    "small": OfflineConfig(updates=2000, batch_size=128, **small_learners(128, 200, 0.001, 500)),
}


def preset_for(*, is_image: bool) -> Preset:
    """The default preset of a dataset."""
    return "fast" if is_image else "small"


@dataclass(frozen=True)
class PolicyRow:
    """A policy of the table: the learner that provides its networks, and the rule applied to them."""

    name: str
    learner: Literal["behavior_q", "ppo", "dqfd", "bcq", "cql"]
    rule: Rule


def policy_rows(rules: Sequence[str], baselines: Sequence[Baseline], config: OfflineConfig) -> list[PolicyRow]:
    """The rows of the table: the behaviour policy, the rules applied to it, and the baselines."""
    found = [PolicyRow(BEHAVIOR, "behavior_q", Behavior())]
    found += [PolicyRow(text, "behavior_q", parse_rule(text)) for text in rules if text != BEHAVIOR]
    of_baseline: dict[Baseline, tuple[str, Rule]] = {
        "ppo": (f"ppo({config.ppo.epsilon:g}) by ascent", Behavior()),
        "dqfd": ("DQfD", Greedy()),
        "bcq": (f"BCQ({config.bcq.bcq_threshold:g})", BCQ(config.bcq.bcq_threshold)),
        "cql": (f"CQL({config.cql.cql_alpha:g})", Greedy()),
    }
    return found + [PolicyRow(of_baseline[name][0], name, of_baseline[name][1]) for name in baselines]
