"""Recording: players act in many environments at once, and their episodes are kept as they end.

slot 0   player a   f0 f1 f2 f3 | f0 f1 ...       each slot is one environment and one player
slot 1   player a   f0 f1 | f0 f1 f2 f3 ...       players who share a mind decide in one batch
slot 2   player b   f0 f1 f2 f3 f4 f5 ...
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rbi.data.episode import Array, DatasetSpec, Episode
from rbi.envs.types import TimeStep, VectorEnv
from rbi.evaluation.rollouts import black, stacked
from rbi.evaluation.scripted import Mind
from rbi.observations import ObservationSpec
from rbi.returns import LIFE_LOST, TERMINATED, TRUNCATED

MOST_DELAY = 60


@dataclass(frozen=True)
class Player:
    """Someone who plays: what decides, and how well it is carried out."""

    name: str
    mind: Mind
    epsilon: float = 0.0
    """Probability of a random action instead of the mind's."""
    delay: int = 0
    """An action is carried out so many steps after it was decided; until then the first action, doing nothing."""
    quits: float = 0.0
    """Probability, in every step, of leaving the game."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "quits"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must lie in [0, 1]")
        if not 0 <= self.delay <= MOST_DELAY:
            raise ValueError(f"delay = {self.delay}: must lie in [0, {MOST_DELAY}] steps")


class Slot:
    """What one environment's player has seen and done in the episode that is going on."""

    def __init__(self, player: Player) -> None:
        self.player, self.played, self.watching = player, 0, False
        self.begin(np.zeros(0))

    def begin(self, frame: Array) -> None:
        self.frames = [frame]
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.ends: list[int] = []
        self.probs: list[float] = []
        self.pending: deque[tuple[int, float]] = deque([(0, 1.0)] * self.player.delay)
        self.watching = True

    def episode(self, spec: DatasetSpec, source: str, line: int, *, quits: bool) -> Episode:
        """What was recorded since `begin`, as an episode."""
        self.played, self.watching = self.played + 1, False
        ends = np.array(self.ends)
        cut = ends == TRUNCATED
        cut[-1] |= ends[-1] != TERMINATED
        return Episode(
            observations=np.stack(self.frames).astype(spec.dtype, copy=False),
            actions=np.array(self.actions),
            rewards=np.array(self.rewards),
            terminated=ends == TERMINATED,
            truncated=cut,
            life_lost=ends == LIFE_LOST,
            action_probs=np.array(self.probs),
            quit=quits,
            player=self.player.name,
            source=source,
            line=line,
        )


class Recorder:
    """Plays and keeps. `episodes()` yields whole episodes; what an unfinished one would be is not."""

    def __init__(
        self, worlds: VectorEnv, players: Sequence[Player], spec: DatasetSpec, source: str, rng: np.random.Generator
    ) -> None:
        if len(players) != worlds.num_envs:
            raise ValueError(f"{len(players)} players for {worlds.num_envs} environments")
        self.worlds, self.spec, self.source, self.rng = worlds, spec, source, rng
        self.slots = [Slot(player) for player in players]
        self.epsilon = np.array([player.epsilon for player in players])[:, None]
        self.leaves = np.array([player.quits for player in players])
        minds = {id(player.mind): player.mind for player in players}
        self.minds = [
            (mind, np.flatnonzero([id(player.mind) == key for player in players])) for key, mind in minds.items()
        ]
        self.states = black(ObservationSpec(spec.frame, spec.stack, spec.actions), len(players))
        self.steps = self.kept = 0

    def episodes(self, wanted: int | None, steps: int | None, share: Sequence[int] | None = None) -> Iterator[Episode]:
        """So many episodes, every slot its `share` of them so that long ones count in full; or so many steps, where the
        episodes that are going on at the end are cut off. Players who have played their share play on unrecorded."""
        count = len(self.slots)
        each = np.full(count, np.iinfo(np.int64).max) if wanted is None else np.asarray(share or shares(wanted, count))
        seen = self.worlds.reset(int(self.rng.integers(2**30)))
        for slot, frame in zip(self.slots, seen.obs, strict=True):
            slot.begin(frame.copy())
        left = each.copy()
        while left.any():
            decided, probs = self.decide(seen)
            carried_out = self.carry_out(decided, probs)
            self.worlds.send(carried_out)
            seen = self.worlds.recv()
            leaving = self.rng.random(count) < self.leaves
            for i in np.flatnonzero(left):
                if episode := self.keep(int(i), seen, leaving=bool(leaving[i])):
                    left[i] -= 1
                    yield episode
            if steps is not None and self.steps >= steps:
                yield from self.cut_off()
                return

    def decide(self, seen: TimeStep) -> tuple[Array, Array]:
        """Every player's action, and the probability that it had."""
        stacked(self.states, seen)
        probs = np.empty((len(self.slots), self.spec.actions))
        for mind, which in self.minds:
            probs[which] = mind.predict_proba(self.states[which])
        probs = (1 - self.epsilon) * probs + self.epsilon / self.spec.actions
        drawn = (self.rng.random((len(probs), 1)) * probs.sum(1, keepdims=True) >= probs.cumsum(1)).sum(1)
        chosen = np.minimum(drawn, self.spec.actions - 1)
        return chosen, probs[np.arange(len(probs)), chosen]

    def carry_out(self, decided: Array, probs: Array) -> Array:
        """What is done now: the decisions, each after its player's delay; games that nobody plays end by themselves."""
        done = self.rng.integers(self.spec.actions, size=len(decided))
        for i, slot in enumerate(self.slots):
            if slot.watching:
                slot.pending.append((int(decided[i]), float(probs[i])))
                action, prob = slot.pending.popleft()
                done[i] = action
                slot.actions.append(action)
                slot.probs.append(prob)
        return done

    def keep(self, i: int, seen: TimeStep, *, leaving: bool) -> Episode | None:
        """Add what slot i saw; its episode, if that was the end of it."""
        slot = self.slots[i]
        if seen.is_first[i]:
            slot.begin(seen.obs[i].copy())
            return None
        if not slot.watching:
            return None
        slot.frames.append(seen.obs[i].copy())
        slot.rewards.append(float(seen.reward[i]))
        slot.ends.append(int(seen.end[i]))
        self.steps += 1
        over = seen.end[i] in (TERMINATED, TRUNCATED)
        if not over and not leaving:
            return None
        self.kept += 1
        return slot.episode(self.spec, self.source, self.kept, quits=leaving and not over)

    def cut_off(self) -> Iterator[Episode]:
        """The episodes that are going on, ended here."""
        for slot in self.slots:
            if slot.watching and slot.actions:
                self.kept += 1
                yield slot.episode(self.spec, self.source, self.kept, quits=False)


def shares(episodes: int, players: int) -> list[int]:
    """How many episodes each of the players plays.

    >>> shares(7, 3)
    [3, 2, 2]
    """
    return [episodes // players + (i < episodes % players) for i in range(players)]


# ---- from rbi.evaluation.crowd: A crowd of players of mixed skill: the stand-in for people, where there are none.
#
# Every player has one mind (a policy of some age, or a script) and a manner of its own: how often it presses something
# at random, how late its actions come, how readily it leaves. docs/guide.md says how this differs from people.


@dataclass(frozen=True)
class Perturbation:
    """How different the players of a crowd are."""

    epsilon: float = 0.3
    """Random actions: each player's probability is drawn between 0 and this, small ones more often."""
    delay: int = 2
    """Actions come late by 0 to so many steps."""
    quits: float = 0.0005
    """Half of the players may leave, with a probability in each step of up to this."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "quits"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"--manners.{name} {getattr(self, name)}: must lie in [0, 1]")
        if not 0 <= self.delay <= MOST_DELAY:
            raise ValueError(f"--manners.delay {self.delay}: must lie in [0, {MOST_DELAY}]")

    def crowd(self, players: int, minds: Sequence[tuple[str, Mind]], rng: np.random.Generator) -> list[Player]:
        """So many players; minds take turns, so that each has as many players as the others."""
        found = []
        for number in range(players):
            name, mind = minds[number % len(minds)]
            epsilon = round(self.epsilon * float(rng.random()) ** 2, 4)
            delay = int(rng.integers(self.delay + 1))
            quits = round(self.quits * float(rng.random()), 6) if rng.random() < 0.5 else 0.0
            told = f"{number:03} {name}, random {epsilon:g}, late {delay}, leaves {quits:g}"
            found.append(Player(told, mind, epsilon, delay, quits))
        return found
