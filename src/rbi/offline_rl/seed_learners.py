"""The learners of one seed of the offline experiment: beta and Q, the baselines, and the policies made from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rbi.data.dataset import Dataset
from rbi.data.sampler import Sampler, SamplerConfig
from rbi.networks import Networks, make_networks
from rbi.observations import ObservationSpec
from rbi.offline_rl.bcq_cql import OfflineDQN
from rbi.offline_rl.behavior_q import BehaviorQ
from rbi.offline_rl.config import Baseline, OfflineConfig, PolicyRow
from rbi.offline_rl.dqfd import DQfD
from rbi.offline_rl.learner import OfflineLearner, frozen_copy
from rbi.offline_rl.ppo import PPOAscent
from rbi.offline_rl.validation import (
    Predictions,
    action_frequencies,
    diagnostics,
    predict,
    rule_statistics,
    split_episodes,
)
from rbi.policy import Policy

RANDOM_STREAMS = ("split", "fit", "dropout", "held", "dqfd", "bcq", "cql", "ppo")
DIAGNOSTIC_STEPS = 4096  # of the validation set


class SeedLearners:
    """All learners of one seed, on one device, and their policies. Seeds share the frames of the `first` one."""

    def __init__(
        self,
        config: OfflineConfig,
        baselines: Sequence[Baseline],
        data: Dataset,
        seed: int,
        device: torch.device,
        *,
        resident: bool = False,
        first: "SeedLearners | None" = None,
    ) -> None:
        self.config, self.seed, self.device, self.data, self.resident = config, seed, device, data, resident
        spec = data.spec
        self.obs_spec = ObservationSpec(
            spec.obs_shape, spec.frame_stack, spec.num_actions, has_action_masks=spec.has_action_masks
        )
        self.shared: Sampler | None = None if first is None else first.sampler
        rng = np.random.default_rng([seed, RANDOM_STREAMS.index("split")])
        train_episodes, self.validation_episodes = split_episodes(len(data), config.validation_fraction, rng)
        used = max(1, round(config.data_fraction * len(train_episodes)))
        self.train_episodes = np.sort(rng.choice(train_episodes, used, replace=False))
        self.sampler: Sampler = self.make_sampler("fit", self.train_episodes)
        self.validation = self.make_sampler("held", self.validation_episodes, batch_size=512, keep_incomplete=False)
        networks = make_networks(self.obs_spec, config.behavior_q.network, seed)
        self.behavior_q = BehaviorQ(config.behavior_q, networks, self.sampler, self.generator("dropout"))
        self.baselines: dict[str, Any] = {name: self.make_baseline(name) for name in baselines if name != "ppo"}
        self.temperature = 1.0
        self.diagnostics: dict[str, Any] = {}
        self.predictions: Predictions | None = None

    def generator(self, of: str, *more: int) -> torch.Generator:
        """An independent random stream for each purpose."""
        number = int(np.random.default_rng([self.seed, RANDOM_STREAMS.index(of), *more]).integers(2**62))
        at = self.device if self.resident or of == "dropout" else torch.device("cpu")
        return torch.Generator(at).manual_seed(number)

    def make_sampler(self, of: str, episodes: Any, n_step: int | None = None, **changes: Any) -> Sampler:
        """A sampler of some episodes: of Monte-Carlo returns, incomplete ones marked, or of n-step returns."""
        names = ("batch_size", "gamma", "max_missing_return")
        settings: dict[str, Any] = {name: getattr(self.config, name) for name in names}
        settings |= {"n_step": n_step, "keep_incomplete": n_step is None} | changes
        return Sampler(
            self.data,
            SamplerConfig(**settings),
            self.generator(of),
            device=self.device,
            episodes=episodes,
            frames_on_device=self.resident,
            share_frames_with=self.shared if of == "fit" else self.sampler,
        )

    def make_baseline(self, name: Baseline) -> OfflineLearner:
        network = getattr(self.config, name).network
        networks = make_networks(self.obs_spec, network, self.seed + RANDOM_STREAMS.index(name), with_policy=False)
        one_step = self.make_sampler(name, self.train_episodes, n_step=1)
        if name == "dqfd":
            n_step = self.make_sampler(name, self.train_episodes, n_step=self.config.dqfd.n_step)
            return DQfD(self.config.dqfd, networks, one_step, n_step)
        if name == "bcq":
            return OfflineDQN(self.config.bcq, networks, one_step, frozen_copy(self.behavior_q.networks).pi)
        return OfflineDQN(self.config.cql, networks, one_step, None)

    def learners(self) -> dict[str, OfflineLearner]:
        """All learners by name, for checkpoints."""
        found = {"behavior_q": self.behavior_q, **self.baselines}
        return {f"seed{self.seed}.{name}": learner for name, learner in found.items()}

    def validate(self) -> dict[str, Any]:
        """Diagnostics on the validation set; updates the temperature, and BCQ's copy of beta."""
        self.validation.generator.manual_seed(self.seed)  # the same steps each time
        self.predictions = predict(self.behavior_q.networks, self.validation, DIAGNOSTIC_STEPS)
        self.diagnostics = diagnostics(self.predictions, action_frequencies(self.sampler))
        # Departs from the paper: beta is calibrated by a temperature; the rules need its probabilities, not its argmax.
        self.temperature = self.diagnostics["temperature"]
        if "bcq" in self.baselines:
            beta = self.behavior_q.networks.pi
            assert beta is not None
            self.baselines["bcq"].beta.load_state_dict(beta.state_dict())
        return self.diagnostics

    def rule_statistics(self, rows: Sequence[PolicyRow]) -> dict[str, dict[str, float]]:
        """What each rule changes on the validation set."""
        assert self.predictions is not None
        return {
            row.name: rule_statistics(self.predictions, row.rule, self.temperature)
            for row in rows
            if row.learner == "behavior_q"
        }

    def make_ppo(self, evaluation: int) -> PPOAscent:
        """PPO by gradient ascent from the current beta."""
        sampler = self.make_sampler("ppo", self.train_episodes)
        sampler.generator = self.generator("ppo", evaluation)
        return PPOAscent(self.config.ppo, frozen_copy(self.behavior_q.networks), sampler, self.temperature)

    def policies(self, rows: Sequence[PolicyRow], ppo: PPOAscent | None, env: str) -> list[Policy]:
        """The current policy of every row; those of beta and Q share their networks."""
        behavior_q = frozen_copy(self.behavior_q.networks)
        networks: dict[str, Networks] = {"behavior_q": behavior_q}
        for name, learner in self.baselines.items():
            networks[name] = frozen_copy(learner.networks)
        if "bcq" in networks:
            networks["bcq"].pi = behavior_q.pi
        if ppo is not None:
            networks["ppo"] = ppo.policy_networks()
        metadata = {"learned": "offline", "seed": self.seed, "updates": self.behavior_q.updates}
        spec = self.behavior_q.sampler.data.spec
        return [
            Policy(
                networks[row.learner],
                row.rule,
                temperature=self.temperature if row.learner in ("behavior_q", "ppo") else 1.0,
                env=env,
                metadata=metadata | {"row": row.name},
                columns=spec.features,
                action_names=spec.action_names,
            )
            for row in rows
        ]
