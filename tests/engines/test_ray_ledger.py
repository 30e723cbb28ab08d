"""The books of the Ray engine: the ratio holds in whatever order things happen, and nothing counts backwards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbi.online.config import Schedule
from rbi.online.ray.config import RayConfig
from rbi.online.ray.supervisor import Accounting
from tests.engines.test_local import small_plan

EACH, TICKS, WORKERS = 4, 8, 3
BLOCK = EACH * TICKS
AHEAD = 2 * WORKERS * BLOCK
EVENTS = ("play", "land", "crash", "learn", "learned", "starved", "died")


class Bookkeeping:
    """Workers and a learner whose news come in any order; what the accounting allows is all that they do."""

    def __init__(self, ratio, publish, reveal):
        whole = small_plan(schedule={"states_per_update": ratio, "publish_interval": publish, "updates": 10_000},
                           replay={"release_interval": reveal})  # fmt: skip
        self.accounting, self.ratio, self.publish, self.reveal = Accounting(whole), ratio, publish, reveal
        self.blocks, self.rounds, self.paid_from = 0, [], None

    def happen(self, event):
        getattr(self, event)()

    def play(self):
        if self.accounting.may_request(BLOCK, AHEAD):
            self.accounting.request_states(BLOCK)
            self.blocks += 1

    def receive_states(self):
        if self.blocks:
            self.blocks -= 1
            self.accounting.receive_states(TICKS, EACH)
            if self.accounting.ready:
                self.accounting.started = True
                self.paid_from = self.accounting.states

    def lose_states(self):
        if self.blocks:
            self.blocks -= 1
            self.accounting.lose_states(BLOCK)

    def learn(self):
        if len(self.rounds) < 2 and (rounds := self.accounting.samples_due()):
            begin = self.accounting.ask(rounds)
            self.inside_intervals(begin, begin + rounds * self.accounting.round)
            self.rounds.append(rounds)

    def learned(self):
        if self.rounds:
            rounds = self.rounds.pop(0)
            self.accounting.learned(rounds, self.accounting.updates + rounds * self.accounting.round)

    def starved(self):
        for rounds in self.rounds:  # the second were asked for at a count that the learner does not have
            self.accounting.learned(rounds, self.accounting.updates)
        self.rounds = []

    def died(self):
        if self.rounds:
            for rounds in self.rounds:
                self.accounting.fail_updates(rounds)
            self.rounds = []
            self.accounting.rewind(max(0, self.accounting.updates - 6))

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
    accounting = books.accounting
    for event in events:
        books.happen(event)
        paid = (accounting.states - books.paid_from) / books.ratio if accounting.started else 0
        assert accounting.updates + accounting.asked <= paid + 1e-6
        assert accounting.owed + accounting.updates + accounting.asked == pytest.approx(paid)
        assert accounting.in_flight == books.blocks * BLOCK
        fail_updates = (paid - accounting.updates) * books.ratio + accounting.in_flight
        room = AHEAD + 2 * books.ratio + BLOCK + accounting.schedule.learning_starts
        assert fail_updates <= room


@given(runs())
def test_counts_only_grow_and_something_can_always_be_done(run):
    *settings, events = run
    books = Bookkeeping(*settings)
    accounting = books.accounting
    for event in events:
        before = (accounting.updates, accounting.states, accounting.goal, accounting.lost.steps_in_flight, accounting.lost.updates)
        books.happen(event)
        after = (accounting.updates, accounting.states, accounting.goal, accounting.lost.steps_in_flight, accounting.lost.updates)
        assert all(b <= a for b, a in zip(before, after, strict=True))
        idle = not books.blocks and not books.rounds
        assert not idle or accounting.may_request(BLOCK, AHEAD) or accounting.samples_due()


def test_a_restored_ledger_is_the_same_but_for_what_was_on_its_way():
    books = Bookkeeping(4.0, 2, 0)
    for event in ("play", "play", "crash", "play", "land", "land", "play", "land", "learn", "learned"):
        books.happen(event)
    copy = Accounting(small_plan(schedule={"states_per_update": 4.0}))
    copy.restore(books.accounting.state())
    assert copy.state() == books.accounting.state()
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
    assert RayConfig(**config).workers_for(Schedule(num_envs=players), cpus) == workers


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
        RayConfig(**config)
    with pytest.raises(ValueError, match="do not divide among them"):
        RayConfig(workers=3).workers_for(Schedule(num_envs=16), 8)
