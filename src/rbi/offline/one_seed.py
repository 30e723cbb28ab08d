"""All that is learned from the data with one seed, and the policies that come of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rbi.data import Episodes, Sampler, SamplerConfig
from rbi.nets.from_logs import LogNetworks, networks_for
from rbi.offline.dqfd import Dqfd
from rbi.offline.fit import Fit
from rbi.offline.held_out import Answers, answers, diagnosis, split, step_taken
from rbi.offline.learning import LearnsFromLogs, frozen
from rbi.offline.plan import OfflineConfig, Peer, Row
from rbi.offline.ppo import PpoAscent
from rbi.offline.td import TemporalDifference
from rbi.policy import Policy
from rbi.sight import Sight

DRAWS = ("split", "fit", "dropout", "held", "dqfd", "bcq", "cql", "ppo")
ASKED = 4096  # held-out steps that a diagnosis looks at


class OneSeed:
    """Learners of one seed, on one device. Seeds that stand `beside` each other share the frames."""

    def __init__(
        self,
        config: OfflineConfig,
        peers: Sequence[Peer],
        data: Episodes,
        seed: int,
        device: torch.device,
        *,
        resident: bool = False,
        beside: "OneSeed | None" = None,
    ) -> None:
        self.config, self.seed, self.device, self.data = config, seed, device, data
        self.sight = Sight(data.spec.frame, data.spec.stack, data.spec.actions)
        self.resident = resident
        self.first: Sampler | None = None if beside is None else beside.sampler
        self.mine, self.out = split(len(data), config.held_out, np.random.default_rng([seed, DRAWS.index("split")]))
        self.sampler: Sampler = self.draws("fit", self.mine)
        self.held = self.draws("held", self.out, batch=512, draws_unfinished=False)
        networks = networks_for(self.sight, config.fit.nets, seed)
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
        settings = {"batch": self.config.batch, "steps": steps, "gamma": self.config.gamma} | changes
        settings.setdefault("draws_unfinished", steps is None)
        return Sampler(
            self.data,
            SamplerConfig(**settings),
            self.generator(of),
            device=self.device,
            which=which,
            resident=self.resident,
            beside=self.first if of == "fit" else self.sampler,
        )

    def peer(self, peer: Peer) -> LearnsFromLogs:
        """A learner of Q beside beta's own."""
        nets = getattr(self.config, peer).nets
        networks = networks_for(self.sight, nets, self.seed + DRAWS.index(peer), with_pi=False)
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
        networks: dict[str, LogNetworks] = {"fit": fitted}
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
                about=about | {"row": row.name},
            )
            for row in rows
        ]
