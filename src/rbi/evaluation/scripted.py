"""Scripted policies, which need no training: random, paddle games, Freeway, the first rooms of Montezuma's Revenge."""

import re
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from rbi.envs.atari import emulators
from rbi.envs.types import EnvConfig
from rbi.evaluation.comparison import game_name
from rbi.statistics import Array

MAX_RESETS = 1000  # until four games start after 1 to 4 frames
NO_OP, FIRE, RIGHT, LEFT = range(4)  # the first actions of both paddle games; in Pong right is up and left is down


class ActionModel(Protocol):
    """Anything that predicts action probabilities `[B, A]` in states `[B, stack, *frame]`; every `rbi.Policy` does."""

    def predict_proba(self, states: Any) -> Array: ...


class RandomPolicy:
    """The uniform policy."""

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions

    def predict_proba(self, states: Any) -> Array:
        return np.full((len(states), self.num_actions), 1 / self.num_actions)


class FollowBallPolicy:
    """Breakout and Pong: moves the paddle to where the ball will be, computed from the two newest 84 x 84 frames."""

    def __init__(self, env: str, num_actions: int) -> None:
        game = game_name(env)
        if game not in PADDLE_GAMES:
            raise ValueError(f"follow: plays {' and '.join(PADDLE_GAMES)}, not {env}")
        self.choose, self.num_actions = PADDLE_GAMES[game], num_actions

    def predict_proba(self, states: Any) -> Array:
        return np.eye(self.num_actions)[self.choose(np.asarray(states)[:, -2:])]


class CrossRoadPolicy:
    """Freeway: always moves up."""

    UP = 1

    def __init__(self, env: str, num_actions: int) -> None:
        if game_name(env) != "Freeway":
            raise ValueError(f"cross: plays Freeway, not {env}")
        self.num_actions = num_actions

    def predict_proba(self, states: Any) -> Array:
        return np.tile(np.eye(self.num_actions)[self.UP], (len(states), 1))


class RoutePolicy:
    """Montezuma's Revenge: follows a known route through the first rooms, which is worth 3,500 to 6,700 points.

    The game draws no random numbers, so a start differs from another one only in the frames that it has waited. There
    is a route for each remainder of their number by the frame skip, which first waits until all starts are alike. The
    policy remembers where each row of its batch is (rows must keep their order), and goes on to the frame of the route
    that looks most like the newest one among the next few; if none does, as after a random action or a lost life, among
    all. After the end of a route actions are uniform, and wherever the policy does not get on.
    """

    ROUTES = (  # actions a to r and how often, by frames waited modulo 4; found by a search over emulator states
        "a8q7h11bmn5d5q13g2j5p4q3e4a13q4hn14j2rdj8o2e8j2g4c11k2e7m5h7m2k12qb5d3f3e6hofg5b2a11pgi3dn9p8q7r6on3m4l13m"
        "4b3i7c2g2o2nri4l12r2q3k4q3rc5ad21p2i3arf6p7k3c4h15om3g4d2j8k3h2f9g3o4q7o16g12n9a3e4f20g3d12l2h2ad2ho12i14g"
        "a9bk6p7f21n3kf5j2r2l7c7o5i3bka8k2or3n12q8jo8qo8eq4e2lom2l6g6i3l2c8p4of14c5f4i10r2i2c6bql6i6n3p2n6g9d10o3a2"
        "b2f3o5j4o7g16l9r2j3p4",
        "a8ca4iqi13p9e4pid4eo7p2j21b12j10i11ql2pd3n9h2j12q3b6k3pf9m6h12e19f3q2p11n2k8b9cn3r3d2h25j4l4o4c10j2l3k8m5b"
        "5p9d2gfhn2f2g7e5f7eb4g3b2o3l7i5p3l5n3o2r2d3ng3qf3o4c7i6k7h19c7b2jl3h3p3a13p2m2c12rh2d2m12bpk4d5q3cf3o2p5n3"
        "d3m2i9o4dn17dl2k3o14f5dr5i2c4f8g3b13o2h6n12f4a8f2na8jf3mh2j19ph4g8l2j6q9d10g8m3c8o12h3l7o7b3i3on6f12p18d14"
        "q2ig2b6f8r8f3o5m2l6j4f3d8fa2i7kc2r13i5l6a2i17ho2i2r6b3d5l3g5q4m5j7d7o2h2cf3k3cef3n4ke4d16r3l6i2fdn6pj3f5jh"
        "3a11r2b2j8q2d11f3h5i10f6o2f7b2ei14l16i18k3c6f3q6d3m2j3ic2m7f5mk",
        "a8qi12qk13g2f3l4j3n10o5a12pcd3b22p3n5e4g7e9o3b4g4e8p7cn6j13k14p11g6r2f3l4a4f12q2m11r3m9a5l5bl11m2g2d2f6o4q"
        "d6c9m2a7m4hr7fq2ch2c7ac3j3kq10f2c5f7q3h2f16q4d4i2q4il2g14n5d7ca2f8e5o3fg7a11q4n8ojd13i4p7d10q10f3h3q13r5f9"
        "pq3h8e6b2cr2d8g12i5h3bi14mp5gq3riq8dg10l3f8cm4n23fgm3b5c3g16fq6rnd9o4i2c3l2b5lnd2kefk8r8a12d4h4i8l4c5e2l3a"
        "3b4n5r2e5p3i10j6i5c14l2r2ho2p8q2h5k14e2k2ph4f5k2b2h3p2d5n37q12n9oa15l3gq7o4h2d8apid7ol11h6l8c4d7l2c4d3qj10"
        "o2m6b4h9m3e9dr30ah13mf3m11jqo8h15e3p17gq17j5k10o6c2k8i2g15e9k4l10h4k4dg2m3c2d17c2i19c7d3g2j12of5r6d3jn2fd7"
        "kb4dmpgk6c4fl7k16m6r11k12md2p7h2f8i4f14e4i2d2q2a7l10pg2b3",
        "a8ca4iqi13p9e4pid4eo7p2j21b12j10i11ql2pd3n9h2j12q3b6k3pf9m6h12e19f3q2p11n2k8b9cn3r3d2h25j4l4o4c10j2l3k8m5b"
        "5p9d2gfhn2f2g7e5f7eb4g3b2o3l7i5p3l5n3o2r2d3ng3qf3o4c7i6k7h19c7b2jl3h3p3a13p2m2c12rh2d2m12bpk4q4h2m2j3mc15r"
        "7h21e4o3c6p8l4oek17f2h2n8o6rgl13n3m4rn21g3j2h4n18l12a13n4i7qi6b2n4q2i3bf20i8og6l2r4c4j10pm8e6r2n17h3n2q6n8"
        "f8ah2o4ei15q7g4pr2d5l3a2hl9o10q4h4d6k2h5o3l4n4g3r5p11h11m6e9rg2kj4h4r2a14g3en6m2jhb16e7m3g5j9q11o12k2o6r2p"
        "7i5c27d7m3b6p5ma2f3p10i2h3q2re8p8cp8r14j4pqd16i4o5ph3c4k4m12lf6kc33i2jkb3r3b8rbnl3na7m14k9qc4k5i9c2k12l5m7"
        "j6r3i",
    )
    WAIT = 8  # steps until all starts are alike
    AHEAD = np.arange(-1, 6)  # steps of a route that are compared with the newest frame
    LOST = 30_000.0  # squared distance from which a frame is another place
    MAX_VISITS = 12  # of one place of a route in an episode; the policy is stuck after that

    def __init__(self, env: str, num_actions: int) -> None:
        if game_name(env) != "MontezumaRevenge":
            raise ValueError(f"climb: plays Montezuma's Revenge, not {env}")
        routes = [
            [
                ord(action) - ord("a")
                for action, times in re.findall(r"([a-r])(\d*)", route)
                for _ in range(int(times or 1))
            ]
            for route in self.ROUTES
        ]
        frames, self.scores = self.rollout(env, routes)
        self.frames = np.concatenate([half_size(of_route) for of_route in frames])
        self.squares = np.square(self.frames).sum(1)
        one_hot, self.uniform = np.eye(num_actions), np.full((1, num_actions), 1 / num_actions)
        self.probs = np.concatenate(
            [
                np.concatenate([one_hot[route[-len(seen) + 1 :]], self.uniform])
                for route, seen in zip(routes, frames, strict=True)
            ]
        )
        self.waits = np.concatenate([np.arange(len(seen)) <= self.WAIT for seen in frames])
        self.places = np.zeros(0, np.int64)
        self.visits = np.zeros((0, len(self.frames)), np.int32)

    @staticmethod
    def rollout(env: str, routes: list[list[int]]) -> tuple[list[Array], list[float]]:
        """The frames of each route, one more than it has steps, and its score."""
        games = emulators(EnvConfig(env, noop_max=5), 4)
        obs, info = games.reset(seed=12)  # waits 1, 3, 2 and 4 frames
        for _ in range(MAX_RESETS):
            if sorted(waited := info["episode_frame_number"]) == [1, 2, 3, 4]:
                break
            obs, info = games.reset()  # a version with other random numbers
        else:
            raise ValueError(f"climb: no starts after 1 to 4 frames in this version of ale-py; the last: {waited}")
        plans = [routes[frames % 4][frames // 4 :] for frames in waited]
        seen, scores = [obs[:, 0].copy()], np.zeros(4)
        for step in range(max(map(len, plans))):
            runs = np.array([step < len(plan) for plan in plans])
            actions = np.array([plan[step] if step < len(plan) else NO_OP for plan in plans])
            obs, rewards, *_ = games.step(actions)
            seen.append(obs[:, 0].copy())
            scores += rewards * runs
        games.close()
        order = np.argsort(waited % 4)
        return [np.stack(seen)[: len(plans[i]) + 1, i] for i in order], [float(scores[i]) for i in order]

    def predict_proba(self, states: Any) -> Array:
        states = np.asarray(states)
        newest, starts = half_size(states[:, -1]), ~states[:, :-1].any((1, 2, 3))
        if len(self.places) != len(states):
            self.places, starts = np.zeros(len(states), np.int64), np.ones(len(states), bool)
            self.visits = np.zeros((len(states), len(self.frames)), np.int32)
        near = np.clip(self.places[:, None] + self.AHEAD, 0, len(self.frames) - 1)
        distances = np.square(self.frames[near] - newest[:, None]).sum(2) + 1e-3 * np.abs(self.AHEAD - 1)
        self.places, distance = near[np.arange(len(near)), distances.argmin(1)], distances.min(1)
        lost, waiting = distance > self.LOST, self.waits[self.places] & (distance > 1)
        for rows, among in ((lost, np.ones(len(self.frames), bool)), (starts | waiting, self.waits)):
            if rows.any():
                self.places[rows] = self.nearest(newest[rows], among)
        self.visits[starts] = 0
        every = np.arange(len(states))
        self.visits[every, self.places] += 1
        stuck = self.visits[every, self.places] > self.MAX_VISITS
        found: Array = np.where(stuck[:, None], self.uniform, self.probs[self.places])
        return found

    def nearest(self, frames: Array, among: Array) -> Array:
        """The places of the routes that look most like some frames."""
        distances = self.squares - 2 * frames @ self.frames.T  # squared, without |frames|^2, which all share
        found: Array = np.where(among, distances, np.inf).argmin(1)
        return found


def half_size(frames: Array) -> Array:
    """Frames `[N, H, W]` with the means of 2 x 2 pixels, flat."""
    sums = frames[:, ::2, ::2].astype(np.uint16)
    for rows, columns in ((0, 1), (1, 0), (1, 1)):
        sums += frames[:, rows::2, columns::2]
    means: Array = sums.reshape(len(frames), -1).astype(np.float32) / 4
    return means


def breakout(frames: Any) -> Array:
    """Actions for Breakout: the ball is the bright spot between bricks and paddle; if there is none, fire."""
    field = frames[:, :, 38:75, 5:79] > 0  # [B, 2, 37, 74]: inside the walls
    seen: Array = field.any((2, 3))
    x, y = centre(field.any(2)), centre(field.any(3))
    paddle = centre(frames[:, 1, 76, 5:79] > 0)
    fall = y[:, 1] - y[:, 0]
    falls = seen.all(1) & (fall > 0.2)
    ahead = np.where(falls, (37 - y[:, 1]) / np.maximum(fall, 0.2), 0.0) * (x[:, 1] - x[:, 0])
    goal = 74 - np.abs(np.abs(x[:, 1] + ahead) % 148 - 74)  # it bounces off the walls
    chosen = towards(goal - paddle, RIGHT, LEFT)
    return np.where(seen[:, 1], chosen, FIRE)


def pong(frames: Any) -> Array:
    """Actions for Pong: the ball is the brightest spot between the paddles."""
    field, paddle = frames[:, 1, 14:77, 12:73] > 200, frames[:, 1, 14:77, 74] > 120
    chosen = towards(centre(field.any(2)) - centre(paddle), LEFT, RIGHT)
    return np.where(field.any((1, 2)), chosen, NO_OP)


def towards(gap: Array, more: int, less: int) -> Array:
    """The action that reduces a gap; no-op where it is at most two pixels."""
    return np.where(gap > 2, more, np.where(gap < -2, less, NO_OP))


def centre(seen: Any) -> Array:
    """Mean index of the true values along the last axis; the middle of the axis where there are none."""
    count = seen.sum(-1)
    return np.where(count > 0, (seen * np.arange(seen.shape[-1])).sum(-1) / np.maximum(count, 1), seen.shape[-1] / 2)


PADDLE_GAMES: dict[str, Callable[[Array], Array]] = {"Breakout": breakout, "Pong": pong}

SCRIPTED: dict[str, Callable[[str, int], ActionModel]] = {
    "random": lambda _, num_actions: RandomPolicy(num_actions),
    "follow": FollowBallPolicy,
    "cross": CrossRoadPolicy,
    "climb": RoutePolicy,
}
"""Scripted policies by name; each is made from an environment's id and its number of actions."""
