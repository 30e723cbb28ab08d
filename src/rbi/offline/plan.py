"""All settings of learning from a crowd, in parts; its presets; and the rows of its table.

(paper: section 4, tables of the appendix)
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from rbi.nets.from_logs import LogNetConfig
from rbi.offline.dqfd import DqfdConfig
from rbi.offline.fit import FitConfig
from rbi.offline.ppo import AscentConfig
from rbi.offline.td import TdConfig
from rbi.rules import Behavior, Familiar, Greedy, Rule, parse_rule

Preset = Literal["paper", "fast", "quick", "small"]
Peer = Literal["ppo", "dqfd", "bcq", "cql"]
PEERS: tuple[Peer, ...] = ("ppo", "dqfd", "bcq", "cql")
RULES = (
    "reroute(0.5,1.5)",
    "reroute(0.25,1.75)",
    "reroute(0,2)",
    "tv(0.25)",
    "forward_kl(radius=0.125)",  # the radius within which Pinsker's inequality promises a total variation of 0.25
    "ppo(0.5)",
    "greedy",
)
BEHAVIOR = "behavior"


@dataclass(frozen=True)
class OfflineConfig:
    """What is learned from the data, and with how much work."""

    updates: int = 1_562_500
    """Batches that every learner gets: beta with Q, DQfD, BCQ, CQL."""
    batch: int = 32
    """States in a batch."""
    gamma: float = 0.99
    """What a reward one step later counts."""
    held_out: float = 0.1
    """Share of the episodes that is not learned from: temperature and diagnostics come from them."""
    fit: FitConfig = field(default_factory=FitConfig)
    ppo: AscentConfig = field(default_factory=AscentConfig)
    dqfd: DqfdConfig = field(default_factory=DqfdConfig)
    bcq: TdConfig = field(default_factory=lambda: TdConfig(familiar=0.3))
    cql: TdConfig = field(default_factory=lambda: TdConfig(conservative=1.0))

    def __post_init__(self) -> None:
        for name, least in (("updates", 1), ("batch", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least {least}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma = {self.gamma}: must lie in [0, 1]")
        if not 0 < self.held_out <= 0.5:
            raise ValueError(f"held_out = {self.held_out}: must be positive, and at most 0.5")


@dataclass(frozen=True)
class Row:
    """One policy of the table: what is learned, and the rule on top of it."""

    name: str
    learner: Literal["fit", "ppo", "dqfd", "bcq", "cql"]
    rule: Rule


def rows(rules: tuple[str, ...], peers: tuple[Peer, ...], config: OfflineConfig) -> list[Row]:
    """Behaviour first, then the rules on top of it, then what is learned otherwise."""
    found = [Row(BEHAVIOR, "fit", Behavior())]
    found += [Row(text, "fit", parse_rule(text)) for text in rules]
    of_peers: dict[Peer, tuple[str, Rule]] = {
        "ppo": (f"ppo({config.ppo.epsilon:g}) by ascent", Behavior()),
        "dqfd": ("DQfD", Greedy()),
        "bcq": (f"BCQ({config.bcq.familiar:g})", Familiar(config.bcq.familiar)),
        "cql": (f"CQL({config.cql.conservative:g})", Greedy()),
    }
    return found + [Row(of_peers[peer][0], peer, of_peers[peer][1]) for peer in peers]


def with_latent(latent: int, target_updates: int, learning_rate: float, ascent: int) -> dict[str, Any]:
    """The learners' settings for smaller networks that learn faster from vectors."""
    plain = LogNetConfig(latent, 0.0, 0.0)
    td: dict[str, Any] = {"learning_rate": learning_rate, "target_updates": target_updates, "nets": plain}
    return {
        "fit": FitConfig(learning_rate=learning_rate, nets=plain),
        "ppo": AscentConfig(updates=ascent, learning_rate=learning_rate),
        "dqfd": DqfdConfig(**td),
        "bcq": TdConfig(familiar=0.3, **td),
        "cql": TdConfig(conservative=1.0, **td),
    }


PRESETS: dict[Preset, OfflineConfig] = {
    # every number of the paper's appendix
    "paper": OfflineConfig(),
    # one GPU and minutes
    "fast": OfflineConfig(
        updates=40_000,
        ppo=AscentConfig(updates=4000),
        dqfd=DqfdConfig(target_updates=1000),
        bcq=TdConfig(familiar=0.3, target_updates=1000),
        cql=TdConfig(conservative=1.0, target_updates=1000),
    ),
    # a processor and minutes, for pictures: what is large and moves, not what is small and rare
    "quick": OfflineConfig(updates=400, held_out=0.2, **with_latent(256, 100, 0.0005, 40)),
    # a processor and a minute, for vectors
    "small": OfflineConfig(updates=2000, batch=128, **with_latent(128, 200, 0.001, 500)),
}
