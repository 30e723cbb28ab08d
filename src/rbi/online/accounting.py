"""Accounting of a distributed run: states and updates are requested so that their ratio is the configured one.

The driver of a run counts what it requests, what arrives and what is lost; the counts only grow. Nothing here knows the
processes themselves.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from rbi.online.config import TrainConfig


@dataclass
class Faults:
    """What failures have cost so far."""

    steps_in_flight: int = 0
    """Steps that were requested and never reached the replay."""
    replay_states: int = 0
    """States of the replay that were lost with its process."""
    updates: int = 0
    """Updates that were repeated."""
    workers: int = 0
    """Deaths of rollout workers; below, of replay shards and learner workers."""
    shards: int = 0
    learners: int = 0


class Accounting:
    """New states make updates due at the configured ratio. Both counts only grow: updates that were lost with a learner
    stay counted, as `repeated_updates`, and the run does as many more.

                         updates_due     requested_updates
        states  ----------|---------------|------------>  updates
        in_flight         how far rollouts may run ahead of the learner
    """

    def __init__(self, config: TrainConfig, publish_interval: int = 0) -> None:
        """`publish_interval`: updates between publications, by default the schedule's."""
        self.schedule, self.publish_interval = config.schedule, publish_interval or config.schedule.publish_interval
        self.updates_per_sample = config.learner.updates_per_sample
        self.release_interval = config.replay.release_interval
        self.states = self.updates = self.repeated_updates = 0
        self.updates_due, self.learning_started = 0.0, False
        self.states_before_learning = config.schedule.learning_starts
        self.in_flight = 0  # states that were requested and are not in the replay yet
        self.requested_updates = 0  # updates that were requested and are not done yet
        self.faults = Faults()

    @property
    def total_updates(self) -> int:
        return self.schedule.updates + self.repeated_updates

    @property
    def can_start(self) -> bool:
        """Whether there are enough states to start learning."""
        return not self.learning_started and self.states >= self.states_before_learning

    def request_states(self, states: int) -> None:
        self.in_flight += states

    def receive_states(self, steps: int, envs_per_group: int) -> None:
        """A block of `steps` has reached the replay."""
        self.in_flight -= steps * envs_per_group
        for _ in range(steps):  # one by one, so that sums round as in the local engine
            self.states += envs_per_group
            if self.learning_started:
                self.updates_due += envs_per_group / self.schedule.states_per_update

    def lose_states(self, states: int) -> None:
        """A requested block will never arrive."""
        self.in_flight -= states
        self.faults.steps_in_flight += states

    def may_request(self, block: int, ahead: int) -> bool:
        """Whether a block may be requested, if rollouts may run `ahead` states in front of the learner."""
        if not self.learning_started:
            return (
                self.states >= self.states_before_learning or self.states + self.in_flight < self.states_before_learning
            )
        limit = ahead + self.updates_per_sample * self.schedule.states_per_update
        due = (self.updates_due + self.requested_updates) * self.schedule.states_per_update
        return due + self.in_flight + block <= limit

    def samples_due(self) -> int:
        """Samples that may be learned from without a pause: publishing and releasing happen at set counts."""
        expected = self.updates + self.requested_updates
        limits = [
            self.total_updates - expected,
            self.publish_interval - expected % self.publish_interval,
        ]
        if self.release_interval:
            if self.requested_updates and expected % self.release_interval == 0:
                return 0  # the requested updates come first, then the release
            limits.append(self.release_interval - expected % self.release_interval)
        return max(0, int(min(self.updates_due, *limits))) // self.updates_per_sample if self.learning_started else 0

    def request_updates(self, samples: int) -> int:
        """Count requested updates; returns the number of updates at which they start."""
        start = self.updates + self.requested_updates
        self.updates_due -= samples * self.updates_per_sample
        self.requested_updates += samples * self.updates_per_sample
        return start

    def complete_updates(self, samples: int, updates: int) -> None:
        """A request is over and the learner is at `updates`. What it could not do stays due."""
        done = max(0, updates - self.updates)
        self.requested_updates -= samples * self.updates_per_sample
        self.updates_due += samples * self.updates_per_sample - done
        self.updates += done

    def fail_updates(self, samples: int) -> None:
        """Requested updates were lost with the learner."""
        self.complete_updates(samples, self.updates)

    def rewind(self, saved: int) -> None:
        """The learner continues from a state saved at `saved` updates."""
        repeated = self.updates - saved
        self.repeated_updates += repeated
        self.faults.updates += repeated

    def refill_replay(self) -> None:
        """Nothing is left to sample: collect states before learning continues."""
        self.learning_started = False
        self.states_before_learning = self.states + self.schedule.learning_starts

    def steps_until_due(self, envs_per_group: int, most: int) -> int:
        """Steps of a single worker until learning starts or a sample is due."""
        if not self.learning_started:
            return min(most, max(1, math.ceil((self.states_before_learning - self.states) / envs_per_group)))
        due, steps = self.updates_due, 0
        while due < self.updates_per_sample and steps < most:
            due += envs_per_group / self.schedule.states_per_update
            steps += 1
        return max(1, steps)

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SAVED_COUNTERS} | {"faults": asdict(self.faults)}

    def restore(self, state: dict[str, Any]) -> None:
        for name in SAVED_COUNTERS:
            setattr(self, name, state[name])
        self.faults = Faults(**state["faults"])


SAVED_COUNTERS = (
    "updates", "states", "repeated_updates", "updates_due", "learning_started", "states_before_learning"
)  # fmt: skip
