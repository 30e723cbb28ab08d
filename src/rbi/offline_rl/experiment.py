"""All settings of learning from a crowd, in parts; its presets; and the rows of its table.

(paper: section 4, tables of the appendix)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from rbi.data.dataset import Dataset
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.networks import Networks, make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl.bcq_cql import TdConfig, TemporalDifference
from rbi.offline_rl.behavior_q import Fit, FitConfig, LearnsFromLogs, frozen
from rbi.offline_rl.dqfd import Dqfd, DqfdConfig
from rbi.offline_rl.ppo import AscentConfig, PpoAscent
from rbi.offline_rl.validation import Answers, answers, diagnosis, split, step_taken
from rbi.policy import Policy
from rbi.rules.types import BCQ, Behavior, Greedy, Rule, parse_rule

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
        "bcq": (f"BCQ({config.bcq.familiar:g})", BCQ(config.bcq.familiar)),
        "cql": (f"CQL({config.cql.conservative:g})", Greedy()),
    }
    return found + [Row(of_peers[peer][0], peer, of_peers[peer][1]) for peer in peers]


def with_latent(latent: int, target_updates: int, learning_rate: float, ascent: int) -> dict[str, Any]:
    """The learners' settings for smaller networks that learn faster from vectors."""
    plain = offline_network(latent, 0.0, 0.0)
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


# ---- from rbi.offline_rl.one_seed: All that is learned from the data with one seed, and the policies that come of it.

DRAWS = ("split", "fit", "dropout", "held", "dqfd", "bcq", "cql", "ppo")
ASKED = 4096  # held-out steps that a diagnosis looks at


class OneSeed:
    """Learners of one seed, on one device. Seeds that stand `beside` each other share the frames."""

    def __init__(
        self,
        config: OfflineConfig,
        peers: Sequence[Peer],
        data: Dataset,
        seed: int,
        device: torch.device,
        *,
        resident: bool = False,
        beside: "OneSeed | None" = None,
    ) -> None:
        self.config, self.seed, self.device, self.data = config, seed, device, data
        self.obs_spec = ObservationSpec(data.spec.obs_shape, data.spec.frame_stack, data.spec.num_actions)
        self.resident = resident
        self.first: Sampler | None = None if beside is None else beside.sampler
        self.mine, self.out = split(len(data), config.held_out, np.random.default_rng([seed, DRAWS.index("split")]))
        self.sampler: Sampler = self.draws("fit", self.mine)
        self.held = self.draws("held", self.out, batch=512, keep_incomplete=False)
        networks = make_networks(self.obs_spec, config.fit.nets, seed)
        self.fit = Fit(config.fit, networks, self.sampler, self.generator("dropout"))
        self.peers: dict[str, Any] = {peer: self.peer(peer) for peer in peers if peer != "ppo"}
        self.temperature = 1.0
        self.told: dict[str, Any] = {}
        self.answered: Answers | None = None

    def generator(self, of: str, *more: int) -> torch.Generator:
        """A source of random numbers of its own for everything that draws."""
        number = int(np.random.default_rng([self.seed, DRAWS.index(of), *more]).integers(2**62))
        at = self.device if self.resident or of == "dropout" else torch.device("cpu")
        return torch.Generator(at).manual_seed(number)

    def draws(self, of: str, which: Any, steps: int | None = None, **changes: Any) -> Sampler:
        """A sampler of some episodes: Monte-Carlo, with what was cut off too early marked, or n-step."""
        settings = {"batch_size": self.config.batch, "n_step": steps, "gamma": self.config.gamma} | changes
        settings.setdefault("keep_incomplete", steps is None)
        return Sampler(
            self.data,
            SamplerConfig(**settings),
            self.generator(of),
            device=self.device,
            episodes=which,
            frames_on_device=self.resident,
            share_frames_with=self.first if of == "fit" else self.sampler,
        )

    def peer(self, peer: Peer) -> LearnsFromLogs:
        """A learner of Q beside beta's own."""
        nets = getattr(self.config, peer).nets
        networks = make_networks(self.obs_spec, nets, self.seed + DRAWS.index(peer), with_policy=False)
        one_step = self.draws(peer, self.mine, steps=1)
        if peer == "dqfd":
            return Dqfd(self.config.dqfd, networks, one_step, self.draws(peer, self.mine, steps=self.config.dqfd.steps))
        if peer == "bcq":
            return TemporalDifference(self.config.bcq, networks, one_step, frozen(self.fit.networks).pi)
        return TemporalDifference(self.config.cql, networks, one_step, None)

    def learners(self) -> dict[str, LearnsFromLogs]:
        """Everything that is saved, by name."""
        return {f"seed{self.seed}.{name}": learner for name, learner in {"fit": self.fit, **self.peers}.items()}

    def diagnose(self) -> dict[str, Any]:
        """Look at held-out steps: beta gets its temperature, and BCQ the beta that it goes by."""
        self.held.generator.manual_seed(self.seed)  # the same steps each time
        self.answered = answers(self.fit.networks, self.held, ASKED)
        self.told = diagnosis(self.answered)
        self.temperature = self.told["temperature"]
        if "bcq" in self.peers:
            beta = self.fit.networks.pi
            assert beta is not None
            self.peers["bcq"].beta.load_state_dict(beta.state_dict())
        return self.told

    def steps_taken(self, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
        """What each rule does to beta in the held-out steps."""
        assert self.answered is not None
        return {row.name: step_taken(self.answered, row.rule, self.temperature) for row in rows if row.learner == "fit"}

    def ascent(self, point: int) -> PpoAscent:
        """PPO's ascent from beta as it is now."""
        sampler = self.draws("ppo", self.mine)
        sampler.generator = self.generator("ppo", point)
        return PpoAscent(self.config.ppo, frozen(self.fit.networks), sampler, self.temperature)

    def policies(self, rows: Sequence[Row], ascent: PpoAscent | None, env: str) -> list[Policy]:
        """The policy of every row as it is now; those on top of beta and Q share their networks."""
        fitted = frozen(self.fit.networks)
        networks: dict[str, Networks] = {"fit": fitted}
        for name, learner in self.peers.items():
            networks[name] = frozen(learner.networks)
        if "bcq" in networks:
            networks["bcq"].pi = fitted.pi
        if ascent is not None:
            networks["ppo"] = ascent.networks()
        about = {"learned": "offline", "seed": self.seed, "updates": self.fit.updates}
        return [
            Policy(
                networks[row.learner],
                row.rule,
                temperature=self.temperature if row.learner in ("fit", "ppo") else 1.0,
                env=env,
                metadata=about | {"row": row.name},
            )
            for row in rows
        ]
