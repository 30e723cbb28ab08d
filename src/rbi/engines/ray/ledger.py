"""The books of a run: what was played, what it pays for, what is on its way, what was lost. Nothing here knows Ray."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from rbi.online.plan import Plan


@dataclass
class Lost:
    """What faults have cost so far."""

    steps_in_flight: int = 0
    """Steps that were asked for and never came to a shard."""
    replay_states: int = 0
    """States that shards held when they died."""
    updates: int = 0
    """Updates that were done again."""
    workers: int = 0
    """Deaths of workers, and of the others below."""
    shards: int = 0
    learners: int = 0


class Ledger:
    """States pay for updates at the set ratio. Both counts only grow: updates that died with a learner stay counted,
    as `gone`, and are done again.

                         owed            asked
        states  ----------|---------------|------------>  updates
        flying            room: how far workers may run ahead of the learner
    """

    def __init__(self, plan: Plan) -> None:
        self.pace, self.round, self.reveals = plan.pace, plan.learner.round_updates, plan.replay.reveal_updates
        self.states = self.updates = self.gone = 0
        self.owed, self.started, self.refill = 0.0, False, plan.pace.start_states
        self.flying = 0  # states that workers were asked for and shards do not have yet
        self.asked = 0  # updates that the learner was asked for and has not done yet
        self.lost = Lost()

    @property
    def goal(self) -> int:
        return self.pace.updates + self.gone

    @property
    def ready(self) -> bool:
        """Whether there are states enough to begin to learn."""
        return not self.started and self.states >= self.refill

    def take_off(self, states: int) -> None:
        self.flying += states

    def land(self, ticks: int, each: int) -> None:
        """A block of so many ticks, with so many states each, has come to its shard."""
        self.flying -= ticks * each
        for _ in range(ticks):  # one by one, so that sums round as the local engine's do
            self.states += each
            if self.started:
                self.owed += each / self.pace.states_per_update

    def crash(self, states: int) -> None:
        """A block will never come."""
        self.flying -= states
        self.lost.steps_in_flight += states

    def may_play(self, block: int, ahead: int) -> bool:
        """Whether a worker may be asked for a block, if workers together may run `ahead` of the learner."""
        if not self.started:
            return self.states >= self.refill or self.states + self.flying < self.refill
        room = ahead + self.round * self.pace.states_per_update
        return (self.owed + self.asked) * self.pace.states_per_update + self.flying + block <= room

    def rounds_due(self) -> int:
        """Rounds that are paid for and may be done at a stretch: weights are published, and states are revealed, at
        set counts."""
        expected = self.updates + self.asked
        stops = [self.goal - expected, self.pace.publish_updates - expected % self.pace.publish_updates]
        if self.reveals:
            if self.asked and expected % self.reveals == 0:
                return 0  # what was asked for comes first, then the reveal
            stops.append(self.reveals - expected % self.reveals)
        return max(0, int(min(self.owed, *stops))) // self.round if self.started else 0

    def ask(self, rounds: int) -> int:
        """Ask for rounds; the count of updates at which they begin."""
        begin = self.updates + self.asked
        self.owed -= rounds * self.round
        self.asked += rounds * self.round
        return begin

    def learned(self, rounds: int, updates: int) -> None:
        """Rounds that were asked for are over; the learner stands at `updates`. What it could not do stays owed."""
        done = max(0, updates - self.updates)
        self.asked -= rounds * self.round
        self.owed += rounds * self.round - done
        self.updates += done

    def unlearned(self, rounds: int) -> None:
        """Rounds that were asked for died with the learner."""
        self.learned(rounds, self.updates)

    def fall_back(self, saved: int) -> None:
        """The learner goes on from what was saved at `saved` updates."""
        again = self.updates - saved
        self.gone += again
        self.lost.updates += again

    def starve(self) -> None:
        """There is nothing to draw any more: fill the replay again before learning goes on."""
        self.started, self.refill = False, self.states + self.pace.start_states

    def ticks_until_due(self, each: int, most: int) -> int:
        """Ticks of one worker until something is due: the start of learning, or a round."""
        if not self.started:
            return min(most, max(1, math.ceil((self.refill - self.states) / each)))
        owed, ticks = self.owed, 0
        while owed < self.round and ticks < most:
            owed += each / self.pace.states_per_update
            ticks += 1
        return max(1, ticks)

    def state(self) -> dict[str, Any]:
        names = ("updates", "states", "gone", "owed", "started", "refill")
        return {name: getattr(self, name) for name in names} | {"lost": asdict(self.lost)}

    def restore(self, state: dict[str, Any]) -> None:
        for name in ("updates", "states", "gone", "owed", "started", "refill"):
            setattr(self, name, state[name])
        self.lost = Lost(**state["lost"])
