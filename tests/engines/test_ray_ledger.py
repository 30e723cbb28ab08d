"""The books of the Ray engine: the ratio holds in whatever order things happen, and nothing counts backwards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbi.online.config import Schedule
from rbi.online.ray.config import ClusterConfig
from rbi.online.ray.supervisor import Ledger
from tests.engines.test_local import small_plan

EACH, TICKS, WORKERS = 4, 8, 3
BLOCK = EACH * TICKS
AHEAD = 2 * WORKERS * BLOCK
EVENTS = ("play", "land", "crash", "learn", "learned", "starved", "died")


class Bookkeeping:
    """Workers and a learner whose news come in any order; what the ledger allows is all that they do."""

    def __init__(self, ratio, publish, reveal):
        whole = small_plan(schedule={"states_per_update": ratio, "publish_interval": publish, "updates": 10_000},
                           replay={"release_interval": reveal})  # fmt: skip
        self.ledger, self.ratio, self.publish, self.reveal = Ledger(whole), ratio, publish, reveal
        self.blocks, self.rounds, self.paid_from = 0, [], None

    def happen(self, event):
        getattr(self, event)()

    def play(self):
        if self.ledger.may_play(BLOCK, AHEAD):
            self.ledger.take_off(BLOCK)
            self.blocks += 1

    def land(self):
        if self.blocks:
            self.blocks -= 1
            self.ledger.land(TICKS, EACH)
            if self.ledger.ready:
                self.ledger.started = True
                self.paid_from = self.ledger.states

    def crash(self):
        if self.blocks:
            self.blocks -= 1
            self.ledger.crash(BLOCK)

    def learn(self):
        if len(self.rounds) < 2 and (rounds := self.ledger.rounds_due()):
            begin = self.ledger.ask(rounds)
            self.inside_intervals(begin, begin + rounds * self.ledger.round)
            self.rounds.append(rounds)

    def learned(self):
        if self.rounds:
            rounds = self.rounds.pop(0)
            self.ledger.learned(rounds, self.ledger.updates + rounds * self.ledger.round)

    def starved(self):
        for rounds in self.rounds:  # the second were asked for at a count that the learner does not have
            self.ledger.learned(rounds, self.ledger.updates)
        self.rounds = []

    def died(self):
        if self.rounds:
            for rounds in self.rounds:
                self.ledger.unlearned(rounds)
            self.rounds = []
            self.ledger.fall_back(max(0, self.ledger.updates - 6))

    def inside_intervals(self, begin, end):
        for every in filter(None, (self.publish, self.reveal)):
            assert begin // every == (end - 1) // every


@st.composite
def runs(draw):
    """Settings, and long stretches of events in which some are much more frequent than others."""
    settings = [draw(st.sampled_from(choice)) for choice in ([1.5, 4.0, 10.0], [2, 6], [0, 10])]
    weights = np.array([draw(st.sampled_from([0.02, 1.0, 5.0])) for _ in EVENTS])
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return *settings, rng.choice(EVENTS, size=600, p=weights / weights.sum()).tolist()


@given(runs())
def test_updates_never_outrun_what_states_have_paid_for_nor_states_the_learner(run):
    *settings, events = run
    books = Bookkeeping(*settings)
    ledger = books.ledger
    for event in events:
        books.happen(event)
        paid = (ledger.states - books.paid_from) / books.ratio if ledger.started else 0
        assert ledger.updates + ledger.asked <= paid + 1e-6
        assert ledger.owed + ledger.updates + ledger.asked == pytest.approx(paid)
        assert ledger.flying == books.blocks * BLOCK
        unlearned = (paid - ledger.updates) * books.ratio + ledger.flying
        room = AHEAD + 2 * books.ratio + BLOCK + ledger.schedule.learning_starts
        assert unlearned <= room


@given(runs())
def test_counts_only_grow_and_something_can_always_be_done(run):
    *settings, events = run
    books = Bookkeeping(*settings)
    ledger = books.ledger
    for event in events:
        before = (ledger.updates, ledger.states, ledger.goal, ledger.lost.steps_in_flight, ledger.lost.updates)
        books.happen(event)
        after = (ledger.updates, ledger.states, ledger.goal, ledger.lost.steps_in_flight, ledger.lost.updates)
        assert all(b <= a for b, a in zip(before, after, strict=True))
        idle = not books.blocks and not books.rounds
        assert not idle or ledger.may_play(BLOCK, AHEAD) or ledger.rounds_due()


def test_a_restored_ledger_is_the_same_but_for_what_was_on_its_way():
    books = Bookkeeping(4.0, 2, 0)
    for event in ("play", "play", "crash", "play", "land", "land", "play", "land", "learn", "learned"):
        books.happen(event)
    copy = Ledger(small_plan(schedule={"states_per_update": 4.0}))
    copy.restore(books.ledger.state())
    assert copy.state() == books.ledger.state()
    assert copy.lost.steps_in_flight == BLOCK


@pytest.mark.parametrize(
    ("config", "players", "cpus", "workers"),
    [
        ({}, 16, 4, 2),  # three would find room beside the learner, but do not divide sixteen players
        ({}, 16, 1, 1),
        ({"actor_cpus": 0.5}, 16, 3, 4),
        ({"learner_cpus": 0}, 16, 64, 8),  # no more than there are players for
        ({"workers": 4}, 16, 1, 4),
        ({"lockstep": True}, 16, 64, 1),
        ({"shards": 2}, 16, 1, 2),
    ],
)
def test_workers_are_as_many_as_find_room_and_share_the_players(config, players, cpus, workers):
    assert ClusterConfig(**config).workers_for(Schedule(num_envs=players), cpus) == workers


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"workers": -1}, "cluster.workers = -1"),
        ({"shards": 0}, "cluster.shards = 0"),
        ({"actor_cpus": float("nan")}, "cluster.actor_cpus = nan"),
        ({"lockstep": True, "workers": 2}, "one worker and one shard"),
        ({"workers": 1, "shards": 2}, "cluster.shards = 2"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(config, told):
    with pytest.raises(ValueError, match=told):
        ClusterConfig(**config)
    with pytest.raises(ValueError, match="do not divide among them"):
        ClusterConfig(workers=3).workers_for(Schedule(num_envs=16), 8)
