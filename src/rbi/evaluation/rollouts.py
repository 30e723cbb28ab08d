"""How episodes are played: the protocol, what players see of them, which policies can."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch

from rbi import envs
from rbi.envs.types import EnvConfig, TimeStep, VectorEnv
from rbi.gpu.streams import Beside, warmed
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.returns import TERMINATED, TRUNCATED

Name = Literal["paper", "modern"]


@dataclass(frozen=True)
class Protocol:
    """How episodes are played. `str` says it in words, for every table."""

    name: Name
    epsilon: float = 0.0
    """Probability of a random action instead of the policy's."""
    max_frames: int = 108_000
    """Emulator frames after which an Atari episode is cut off."""

    def __post_init__(self) -> None:
        if self.max_frames < 1:
            raise ValueError(f"max_frames = {self.max_frames}: must be at least 1")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon = {self.epsilon}: must lie in [0, 1]")

    def world(self, env: str) -> EnvConfig:
        """The environment as the protocol wants it."""
        if self.name == "modern":
            return EnvConfig(env, max_frames=self.max_frames, repeat_action_probability=0.25, noop_max=0)
        return EnvConfig(env, max_frames=self.max_frames, repeat_action_probability=0.0, noop_max=30)

    def told(self, env: str) -> str:
        """One line for people."""
        draw = "actions drawn from the policy" + (f", random with probability {self.epsilon:g}" if self.epsilon else "")
        if not EnvConfig(env).is_atari:
            return f"{draw}; the environment's own limits"
        world = self.world(env)
        start = f"up to {world.noop_max} no-ops at the start" if world.noop_max else "no no-ops"
        return f"{draw}; {start}, sticky actions {world.repeat_action_probability:g}, {world.max_frames:,} frames at most, raw scores"


def black(obs_spec: ObservationSpec, players: int) -> np.ndarray[Any, Any]:
    """States `[N, stack, *frame]` in which nothing is seen yet."""
    return np.zeros((players, obs_spec.stack, *obs_spec.shape), np.uint8 if obs_spec.is_image else np.float32)


def stacked(states: np.ndarray[Any, Any], seen: TimeStep) -> np.ndarray[Any, Any]:
    """Move every player's stack of frames, `[N, stack, *frame]`, on by what was seen; new episodes begin in black."""
    states[:, :-1] = states[:, 1:]
    states[seen.is_first, :-1] = 0
    states[:, -1] = seen.obs
    return states


def fits(policy: Policy, world: VectorEnv, env: str) -> None:
    """Refuse a policy that was learned in another kind of world."""
    of_world = replace(policy.obs_spec, shape=world.obs_shape, stack=world.frame_stack, num_actions=world.num_actions)
    if policy.obs_spec != of_world:
        learned = f" ({policy.env})" if policy.env else ""
        raise ValueError(
            f"--env {env}: gives frames {world.obs_shape} and {world.num_actions} actions, but the policy{learned} sees "
            f"{policy.obs_spec.shape} and chooses among {policy.obs_spec.num_actions}"
        )


# ---- from rbi.evaluation.outcomes: Scores of episodes as they finish: raw rewards, summed from the first frame to the last.


@dataclass(frozen=True)
class EpisodeResult:
    """A finished episode of one player."""

    player: int
    score: float
    steps: int
    cut_off: bool
    """Whether time ran out."""


class EpisodeScores:
    """Adds up the rewards of players side by side."""

    def __init__(self, players: int) -> None:
        self.score = np.zeros(players)
        self.steps = np.zeros(players, dtype=np.int64)

    def see(self, seen: TimeStep) -> list[EpisodeResult]:
        """Count a step of every player; the episodes that it ended."""
        self.score = np.where(seen.is_first, 0.0, self.score + seen.reward)
        self.steps = np.where(seen.is_first, 0, self.steps + 1)
        over = (seen.end == TERMINATED) | (seen.end == TRUNCATED)
        if not over.any():
            return []
        return [
            EpisodeResult(int(i), float(self.score[i]), int(self.steps[i]), bool(seen.end[i] == TRUNCATED))
            for i in np.flatnonzero(over)
        ]


class RecentScores:
    """The newest finished episodes of the players that explore least, and of all: two a player, 20 to 100 in all."""

    def __init__(self, careful_players: int) -> None:
        window = max(20, min(100, 2 * careful_players))
        self.of_all: deque[float] = deque(maxlen=window)
        self.of_careful: deque[float] = deque(maxlen=window)
        self.episodes = 0

    def add(self, episode: EpisodeResult, *, careful: bool) -> None:
        self.episodes += 1
        self.of_all.append(episode.score)
        if careful:
            self.of_careful.append(episode.score)

    def metrics(self) -> dict[str, Any]:
        """Mean scores, and quartiles of the careful players'; None until an episode has finished."""
        low, high = np.percentile(self.of_careful, [25, 75]).tolist() if self.of_careful else (None, None)
        return {
            "score": float(np.mean(self.of_careful)) if self.of_careful else None,
            "score_low": low,
            "score_high": high,
            "score_all": float(np.mean(self.of_all)) if self.of_all else None,
            "episodes": self.episodes,
        }

    def state(self) -> dict[str, Any]:
        return {"of_all": list(self.of_all), "of_careful": list(self.of_careful), "episodes": self.episodes}

    def restore(self, state: dict[str, Any]) -> None:
        self.of_all.extend(state["of_all"])
        self.of_careful.extend(state["of_careful"])
        self.episodes = state["episodes"]


# ---- from rbi.evaluation.deciding: What many policies do in the states of many players, as one graph on a GPU.
#
# Ten policies of three seeds are some two thousand small kernels a step; launched one by one they take longer than the
# games. Captured, they are one launch, in which groups are asked side by side, and only the newest frames travel.

Array = np.ndarray[Any, Any]


class Group(NamedTuple):
    """Policies that share what their networks say, and the players who wait for them."""

    players: Array
    """Their numbers, one policy's after another's."""
    parts: list[tuple[Policy, slice]]
    """The policies, and which of `players` are whose."""

    def probs(self, states: torch.Tensor) -> torch.Tensor:
        """Probabilities `[players, A]` in states `[players, stack, *frame]`, on the networks' device."""
        beta, q = self.parts[0][0].believed(states)
        return torch.cat([policy.step(beta[part], q[part]) for policy, part in self.parts])


def groups(policies: Sequence[Policy], policy_of: Array, active: Array) -> list[Group]:
    """The active players, by who shares networks and temperature; `policy_of` says whose player each is, `[N]`."""
    alike: dict[tuple[int, float], list[int]] = {}
    for number in np.unique(policy_of[active]).tolist():
        policy = policies[number]
        alike.setdefault((id(policy.networks), policy.temperature), []).append(number)
    found = []
    for numbers in alike.values():
        players = [np.flatnonzero(active & (policy_of == number)) for number in numbers]
        ends = np.cumsum([len(own) for own in players]).tolist()
        parts = [
            (policies[number], slice(end - len(own), end))
            for number, own, end in zip(numbers, players, ends, strict=True)
        ]
        found.append(Group(np.concatenate(players), parts))
    return found


class OnDevice:
    """Every player's stack of frames on a device, and the draw of its action. On a GPU all of it is one graph."""

    def __init__(self, asked: Sequence[Group], players: int, device: torch.device) -> None:
        obs_spec = asked[0].parts[0][0].obs_spec
        dtype = torch.uint8 if obs_spec.is_image else torch.float32
        self.device = device
        self.asked = [(group, torch.from_numpy(group.players).to(device)) for group in asked]
        self.states = torch.zeros((players, obs_spec.stack, *obs_spec.shape), dtype=dtype, device=device)
        inputs = (
            torch.zeros((players, *obs_spec.shape), dtype=dtype),
            torch.zeros(players, dtype=torch.bool),
            torch.zeros((players, 1), dtype=torch.float64),
        )
        on_gpu = device.type == "cuda"
        self.host = [tensor.pin_memory() if on_gpu else tensor for tensor in inputs]
        self.frame, self.first, self.draw = (tensor.to(device) if on_gpu else tensor for tensor in self.host)
        self.chosen = torch.zeros(players, dtype=torch.int64, device=device)
        self.stream = torch.cuda.Stream(device) if on_gpu else None
        self.besides = [Beside(device) for _ in asked]
        self.graph = None if self.stream is None else warmed(self.decide, self.stream, [], [self.states, self.chosen])

    def only(self, asked: Sequence[Group]) -> None:
        """Ask no longer for players who are done. A graph goes on as it was captured."""
        if self.graph is None:
            self.asked = [(group, torch.from_numpy(group.players).to(self.device)) for group in asked]

    def decide(self) -> None:
        """Move the stacks on and draw from every policy."""
        mask = ~self.first.view(-1, *[1] * (self.states.dim() - 1))
        self.states[:, :-1] = self.states[:, 1:] * mask
        self.states[:, -1] = self.frame
        for beside, (group, players) in zip(self.besides, self.asked, strict=False):
            with beside.overlapping():
                probs = group.probs(self.states.index_select(0, players)).double()
                drawn = (self.draw.index_select(0, players) >= probs.cumsum(1)).sum(1)
                self.chosen.index_copy_(0, players, drawn.clamp(max=probs.shape[1] - 1))
        for beside in self.besides:
            beside.join()

    def actions(self, seen: TimeStep, draw: Array) -> Array:
        """Actions `[N]` in what is seen, by uniform draws `[N, 1]`."""
        for buffer, array in zip(self.host, (seen.obs, seen.is_first, draw), strict=True):
            np.copyto(buffer.numpy(), array)
        if self.stream is None or self.graph is None:
            self.decide()
        else:
            with torch.cuda.stream(self.stream):
                for buffer, given in zip(self.host, (self.frame, self.first, self.draw), strict=True):
                    given.copy_(buffer, non_blocking=True)
                self.graph.replay()
            self.stream.synchronize()
        found: Array = self.chosen.cpu().numpy()
        return found


# ---- from rbi.evaluation.arena: Policies at play: any number of them side by side, in worlds that are made once.

MOST_PLAYERS = 64


def play(
    policy: Policy,
    protocol: Protocol,
    env: str,
    episodes: int,
    seed: int,
    make: Callable[[EnvConfig, int], VectorEnv] = envs.make,
) -> Iterator[EpisodeResult]:
    """Finished episodes of one policy, exactly as many as asked for, each counted in full."""
    at_least_one("episodes", episodes)
    with Arena(protocol, env, min(episodes, MOST_PLAYERS), make) as arena:
        for _, outcome in arena.play([policy], episodes, np.random.default_rng(seed)):
            yield outcome


class Arena:
    """Players of one world, who are made once, since games are slow to make, and start afresh for each evaluation.

    They sit at `tables`: while the games of one move, decisions are made at the next. That pays where they are made on
    a GPU. Players who are left over when tables are filled evenly are not made.
    """

    def __init__(
        self,
        protocol: Protocol,
        env: str,
        players: int,
        make: Callable[[EnvConfig, int], VectorEnv] = envs.make,
        *,
        tables: int = 1,
    ) -> None:
        self.protocol, self.env = protocol, env
        self.at_a_table = at_least_one("players", players) // at_least_one("tables", tables)
        self.worlds = [make(protocol.world(env), at_least_one("players", self.at_a_table)) for _ in range(tables)]
        self.seeded = False

    def play(
        self, policies: Sequence[Policy], episodes: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, EpisodeResult]]:
        """So many episodes of every policy: its number, and an episode of it that has finished.

        Every policy has equally many players. No more episodes of it are begun than are asked for, and all that are
        begun are counted, so long ones are not left out for being late. More policies than players at a table take
        turns. What an earlier call left unfinished is dropped: exhaust one before the next.
        """
        at_least_one("episodes", episodes)
        if not policies:
            raise ValueError("policies: none to play; give at least one")
        for policy in policies:
            fits(policy, self.worlds[0], self.env)
        for start in range(0, len(policies), self.at_a_table):
            for number, outcome in self.turn(policies[start : start + self.at_a_table], episodes, rng):
                yield start + number, outcome

    def turn(
        self, policies: Sequence[Policy], episodes: int, rng: np.random.Generator
    ) -> Iterator[tuple[int, EpisodeResult]]:
        """`play` of no more policies than there are players at a table, from new games on."""
        each = self.at_a_table // len(policies)
        to_begin = np.full(len(policies), max(0, episodes - each * len(self.worlds)))
        tables = [
            Table(world, policies, episodes - each * number, self.protocol.epsilon, rng)
            for number, world in enumerate(self.worlds)
        ]
        for table, seed in zip(tables, rng.integers(2**30, size=len(tables)).tolist(), strict=True):
            table.begin(None if self.seeded else seed)
        self.seeded = EnvConfig(
            self.env
        ).is_atari  # a game is as slow to seed as to make: it goes on with its random numbers
        while going := [(number, table) for number, table in enumerate(tables) if table.active.any()]:
            for number, table in going:
                for policy, outcome in table.finished():
                    yield policy, replace(outcome, player=outcome.player + number * self.at_a_table)
                    if to_begin[policy]:
                        to_begin[policy] -= 1
                    else:
                        table.leave(outcome.player)
                table.move()

    def close(self) -> None:
        """Give the games back."""
        for world in self.worlds:
            world.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Table:
    """Games that move together, and whose players they are: policy 0's first, then policy 1's, ..."""

    def __init__(
        self, world: VectorEnv, policies: Sequence[Policy], episodes: int, epsilon: float, rng: np.random.Generator
    ) -> None:
        """The first of each policy's players, as many as there are `episodes` to begin, are active."""
        self.world, self.policies, self.epsilon, self.rng = world, policies, epsilon, rng
        self.policy_of, place = np.divmod(np.arange(world.num_envs), world.num_envs // len(policies))
        self.active = (place < episodes) & (self.policy_of < len(policies))  # players to spare have a number beyond
        if self.active.any():
            self.deciding = OnDevice(self.groups(), world.num_envs, policies[0].device)

    def groups(self) -> list[Group]:
        return groups(self.policies, self.policy_of, self.active)

    def begin(self, seed: int | None) -> None:
        """New games, and their first move; a move that was left unanswered is waited for."""
        if self.world.pending:
            self.world.recv()
        self.scores, self.seen = EpisodeScores(self.world.num_envs), self.world.reset(seed)
        self.move()

    def move(self) -> None:
        """Send actions: draws of the policies; at random for those that explore, and for players who have left. Where
        all have, nobody moves."""
        if not self.active.any():
            return
        players = self.world.num_envs
        chosen = self.deciding.actions(self.seen, self.rng.random((players, 1)))
        follows = self.active & (self.rng.random(players) >= self.epsilon)
        self.world.send(np.where(follows, chosen, self.rng.integers(self.world.num_actions, size=players)))

    def finished(self) -> Iterator[tuple[int, EpisodeResult]]:
        """Wait for what the actions brought: the episodes that have ended, and whose they are."""
        self.seen = self.world.recv()
        for outcome in self.scores.see(self.seen):
            if self.active[outcome.player]:
                yield int(self.policy_of[outcome.player]), outcome

    def leave(self, player: int) -> None:
        """A player has no more episodes to play."""
        self.active[player] = False
        if self.active.any():
            self.deciding.only(self.groups())


def at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} = {value}: must be at least 1")
    return value
