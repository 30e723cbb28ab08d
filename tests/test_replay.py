"""The replay beside a slow twin that keeps whole lives in lists."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytest import approx
from scipy import stats

from rbi.observations import ObservationSpec
from rbi.replay import Replay, ReplayConfig, Transition, bytes_needed
from rbi.returns import ReturnConfig
from tests.reference.lanes import Lane
from tests.streams import Players

CPU, ACTIONS, GAMMA = torch.device("cpu"), 3, 0.9
FRAMES = [(1,), (3,), (4,), (5, 5), (6, 8), (5, 6, 3)]  # floats and bytes, by words of eight bytes and not
few = settings(max_examples=40)


class Both:
    """A replay and its slow twins, one a lane, fed with the same lives."""

    def __init__(self, seed, *, rows=12, each=2, groups=2, stack=3, steps=2, frame=(1,), **config):
        self.rng = np.random.default_rng(seed)
        self.each, self.groups, self.lanes = each, groups, each * groups
        self.players = [Players(each, frame, self.rng) for _ in range(groups)]
        self.replay = Replay(
            ReplayConfig(capacity=rows * self.lanes, **config),
            ObservationSpec(frame, stack, ACTIONS), self.lanes, groups, ReturnConfig(steps, GAMMA), CPU,
        )  # fmt: skip
        self.twins = [Lane(rows, stack, steps, GAMMA) for _ in range(self.lanes)]

    def add(self, group):
        """The next moment of one group."""
        moment = Transition(
            *self.players[group].show(),
            action=torch.from_numpy(self.rng.integers(ACTIONS, size=self.each)),
            pi=torch.from_numpy(self.rng.dirichlet(np.ones(ACTIONS), self.each)).float(),
            td_error=torch.from_numpy(self.rng.uniform(0.05, 3, self.each)).float(),
        )
        self.replay.add(group, moment)
        for i in range(self.each):
            self.twins[group * self.each + i].add(*(column[i].numpy() for column in moment))
        return moment

    def turns(self, count):
        for _ in range(count):
            for group in range(self.groups):
                self.add(group)
        return self

    def cut(self, group):
        self.replay.cut(group)
        self.players[group].start_afresh()
        for i in range(self.each):
            self.twins[group * self.each + i].cut()

    def reveal(self):
        self.replay.release()
        for twin in self.twins:
            twin.reveal(self.replay.config.store_at_episode_end)

    def cells(self):
        """(t, lane) of all that can be drawn, by the twins."""
        return [(t, lane) for lane, twin in enumerate(self.twins) for t in twin.drawable()]


@st.composite
def pairs(draw, **config):
    """A replay and its twins of all small shapes, from barely begun to written over several times."""
    stack, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows = stack + steps + 1 + draw(st.integers(0, 6))
    both = Both(
        draw(st.integers(0, 2**32)), rows=rows, stack=stack, steps=steps, each=draw(st.integers(1, 2)),
        groups=draw(st.integers(1, 2)), frame=draw(st.sampled_from(FRAMES)), **config,
    )  # fmt: skip
    both.turns(draw(st.integers(0, 4 * rows)))
    if draw(st.booleans()):
        both.add(0)  # the groups take turns, so one may be ahead
    return both


def living(replay):
    """(row, lane) of all that can be drawn, by the replay."""
    return {tuple(cell) for cell in replay.priority.nonzero().tolist()}


def places(cells, rows):
    """Where moments (t, lane) lie in a table of so many rows."""
    return torch.tensor([t % rows for t, _ in cells]), torch.tensor([lane for _, lane in cells])


def read(both, cells):
    row, lane = places(cells, both.replay.rows)
    return both.replay.read(row, lane, torch.ones(len(cells)))


def stacked(arrays):
    return torch.from_numpy(np.stack(arrays))


def assert_sums_are_right(replay):
    assert replay.mass.numpy() == approx(replay.priority.double().sum(1).numpy(), rel=1e-12)


@few
@given(pairs())
def test_a_moment_can_be_drawn_when_acted_on_complete_and_not_written_over(both):
    rows = both.replay.rows
    assert living(both.replay) == {(t % rows, lane) for t, lane in both.cells()}
    assert_sums_are_right(both.replay)


@few
@given(pairs())
def test_what_is_read_is_what_the_lives_say(both):
    cells = both.cells()
    assume(cells)
    batch = read(both, cells)
    ahead = [both.twins[lane].followed(t) for t, lane in cells]
    assert torch.equal(batch.obs, stacked([both.twins[lane].state(t) for t, lane in cells]))
    assert torch.equal(batch.action, stacked([both.twins[lane].actions[t] for t, lane in cells]))
    assert torch.equal(batch.pi, stacked([both.twins[lane].policies[t] for t, lane in cells]))
    assert batch.reward.tolist() == approx([reward for reward, _, _ in ahead], abs=1e-5)
    assert batch.discount.tolist() == approx([discount for _, discount, _ in ahead], abs=1e-6)
    for i, ((_, lane), (_, discount, then)) in enumerate(zip(cells, ahead, strict=True)):
        if discount > 0:  # elsewhere the return is over, and what is seen next does not count
            assert np.array_equal(batch.next_obs[i], both.twins[lane].state(then))
            assert np.array_equal(batch.next_pi[i], both.twins[lane].policies[then])


@few
@given(pairs(priority_exponent=0.7))
def test_priorities_are_the_errors_told_n_moments_later_to_the_exponent(both):
    cells = both.cells()
    assume(cells)
    errors = np.array([both.twins[lane].error(t) for t, lane in cells])
    assert both.replay.priority[places(cells, both.replay.rows)].numpy() == approx(errors**0.7, rel=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_final_frame_is_bootstrapped_from_when_time_runs_out_and_never_drawn(seed):
    both = Both(seed, rows=30).turns(60)
    cut_off = [
        (t, lane)
        for t, lane in both.cells()
        for _, discount, then in [both.twins[lane].followed(t)]
        if then in both.twins[lane].finals and discount > 0
    ]
    assert cut_off
    finals = [both.twins[lane].state(both.twins[lane].followed(t)[2]) for t, lane in cut_off]
    assert torch.equal(read(both, cut_off).next_obs, stacked(finals))
    drawn = both.replay.sample(500, torch.Generator().manual_seed(0))
    assert not both.replay.final[drawn.row, drawn.lane].any()


def test_a_stack_is_black_before_its_episode():
    replay = Replay(ReplayConfig(capacity=20), ObservationSpec((1,), 3, 1), 1, 1, ReturnConfig(1, GAMMA), CPU)
    for frame, first in [(1, True), (2, False), (3, True), (4, False), (5, False), (6, False)]:
        told = [torch.tensor([x]) for x in ([float(frame)], first, 0.0, 0, 0, [1.0], 1.0)]
        replay.add(0, Transition(*told))
    stacks = replay.read(torch.arange(5), torch.zeros(5, dtype=torch.long), torch.ones(5)).obs
    assert stacks.flatten(1).tolist() == [[0, 0, 1], [0, 1, 2], [0, 0, 3], [0, 3, 4], [3, 4, 5]]


def test_states_are_drawn_in_proportion_to_their_priorities_to_within_two():
    """The draws lie one in each of `size` equal strips of the mass, so a state is hit by chance at its edges only."""
    both, size = Both(0, rows=40).turns(100), 3000
    drawn = both.replay.sample(size, torch.Generator().manual_seed(0))
    counts = torch.zeros_like(both.replay.priority, dtype=torch.float64)
    counts.index_put_((drawn.row, drawn.lane), torch.ones(size, dtype=torch.float64), accumulate=True)
    share = both.replay.priority.double() / both.replay.priority.double().sum()
    assert (counts - size * share).abs().max() < 2
    assert counts[share == 0].sum() == 0


def test_any_part_of_a_draw_is_a_fair_draw():
    both, generator = Both(1, rows=10).turns(30), torch.Generator().manual_seed(0)
    counts = torch.zeros_like(both.replay.priority)
    for _ in range(2000):
        part = both.replay.sample(12, generator).part(4, 4)
        counts.index_put_((part.row, part.lane), torch.ones(4), accumulate=True)
    alive = both.replay.priority > 0
    expected = both.replay.priority[alive].double() / both.replay.priority.double().sum() * counts.sum()
    statistic = ((counts[alive] - expected) ** 2 / expected).sum().item()
    assert counts[~alive].sum() == 0
    assert stats.chi2.sf(statistic, int(alive.sum()) - 1) > 1e-3


@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0])
def test_importance_weights_undo_the_share_of_a_state_up_to_the_exponent(exponent):
    both = Both(2, rows=20, importance_exponent=exponent).turns(50)
    drawn = both.replay.sample(200, torch.Generator().manual_seed(0))
    priority = both.replay.priority[drawn.row, drawn.lane].double()
    chance, states = priority / both.replay.mass.sum(), len(both.cells())
    weight = (states * chance) ** -exponent
    assert (drawn.weight / drawn.weight.max()).numpy() == approx((weight / weight.max()).numpy(), rel=1e-4)
    assert drawn.part(50, 20).weight.numpy() == approx((weight[50:70] / weight[50:70].max()).numpy(), rel=1e-4)


def test_a_part_is_no_copy():
    drawn = Both(3).turns(20).replay.sample(12, torch.Generator().manual_seed(0))
    part = drawn.part(4, 4)
    assert part.obs.data_ptr() == drawn.obs[4:].data_ptr()
    assert torch.equal(part.row, drawn.row[4:8])


def test_exponent_zero_draws_uniformly_whatever_the_errors():
    both = Both(4, rows=20, priority_exponent=0.0).turns(50)
    alive = both.replay.priority > 0
    assert set(both.replay.priority[alive].tolist()) == {1.0}
    drawn = both.replay.sample(50, torch.Generator().manual_seed(0))
    assert (drawn.weight == drawn.weight[0]).all()


def test_a_state_without_error_can_still_be_drawn():
    both = Both(5).turns(30)
    cells = both.replay.priority.nonzero(as_tuple=True)
    before = living(both.replay)
    both.replay.update_priorities(*cells, torch.zeros(len(cells[0])))
    assert living(both.replay) == before
    assert both.replay.sample(9, torch.Generator().manual_seed(0)).weight.isfinite().all()


@few
@given(pairs(priority_exponent=0.5))
def test_new_errors_change_the_priorities_of_the_living_and_never_revive_the_dead(both):
    replay = both.replay
    row, lane = torch.cartesian_prod(torch.arange(replay.rows), torch.arange(both.lanes)).T
    shuffled = torch.from_numpy(both.rng.permutation(len(row)))
    row, lane = row[shuffled], lane[shuffled]
    errors = torch.from_numpy(both.rng.normal(scale=3, size=len(row))).float()
    before = living(replay)
    replay.update_priorities(row, lane, errors)
    assert living(replay) == before
    alive = replay.priority[row, lane] > 0
    assert replay.priority[row, lane][alive].numpy() == approx(errors[alive].abs().sqrt().numpy(), rel=1e-2, abs=2e-3)
    assert_sums_are_right(replay)


HOLDS = [dict(store_at_episode_end=True), dict(release_interval=5), dict(store_at_episode_end=True, release_interval=5)]


@pytest.mark.parametrize("config", HOLDS, ids=str)
@given(data=st.data())
@few
def test_what_is_held_back_can_be_drawn_from_the_next_reveal_on(config, data):
    both = data.draw(pairs(**config))
    assert not living(both.replay)
    rows = both.replay.rows
    for turns in data.draw(st.lists(st.integers(0, rows), max_size=3)):
        both.reveal()
        both.turns(turns)
        assert living(both.replay) == {(t % rows, lane) for t, lane in both.cells() if t in both.twins[lane].revealed}
        assert_sums_are_right(both.replay)


def test_only_finished_episodes_are_revealed_where_the_paper_stores_them_at_their_end():
    both = Both(6, rows=60, store_at_episode_end=True).turns(50)
    both.reveal()
    for lane, twin in enumerate(both.twins):
        shown = both.replay.priority[:, lane].nonzero().flatten().tolist()
        assert shown == [t for t in twin.drawable() if t < max(twin.finals)]


@pytest.mark.parametrize("config", HOLDS, ids=str)
def test_a_reveal_leaves_newer_priorities_alone(config):
    both = Both(7, rows=30, priority_exponent=1.0, **config).turns(25)
    both.reveal()
    cells = both.replay.priority.nonzero(as_tuple=True)
    both.replay.update_priorities(*cells, torch.full((len(cells[0]),), 7.0))
    both.turns(2).reveal()
    assert both.replay.priority[cells].tolist() == approx([7.0] * len(cells[0]))


@given(data=st.data(), config=st.sampled_from([{}, dict(store_at_episode_end=True)]))
@few
def test_a_cut_ends_episodes_as_a_time_limit_would(data, config):
    both = data.draw(pairs(**config))
    rows = both.replay.rows
    for turns in data.draw(st.lists(st.integers(1, rows), min_size=1, max_size=3)):
        both.turns(1)  # every lane has begun
        both.cut(data.draw(st.integers(0, both.groups - 1)))
        both.turns(turns)
        both.reveal()
        cells = [(t, lane) for t, lane in both.cells() if not config or t in both.twins[lane].revealed]
        assert living(both.replay) == {(t % rows, lane) for t, lane in cells}
        if cells:
            batch, ahead = read(both, cells), [both.twins[lane].followed(t) for t, lane in cells]
            assert batch.reward.tolist() == approx([reward for reward, _, _ in ahead], abs=1e-5)
            assert batch.discount.tolist() == approx([discount for _, discount, _ in ahead], abs=1e-6)
            assert torch.equal(batch.obs, stacked([both.twins[lane].state(t) for t, lane in cells]))


@pytest.mark.parametrize("config", [{}, *HOLDS], ids=str)
@pytest.mark.parametrize("turns", [5, 12, 31])
def test_a_replay_goes_on_from_its_saved_state_as_if_nothing_had_happened(config, turns):
    both = Both(8, frame=(6, 8), **config).turns(turns)
    both.add(0)
    saved = {name: tensor.clone() for name, tensor in both.replay.state().items()}
    restored = Both(9, frame=(6, 8), **config).replay
    restored.load(saved)
    for group in [1, 0, 1, 0, 1, 0, 1, 0]:
        restored.add(group, both.add(group))
    both.replay.release()
    restored.release()
    for name, column in both.replay.state().items():
        assert torch.equal(column, restored.state()[name]), name
    assert torch.equal(both.replay.mass, restored.mass)
    if both.replay.mass.sum() > 0:
        draws = [replay.sample(20, torch.Generator().manual_seed(1)) for replay in (both.replay, restored)]
        assert all(torch.equal(a, b) for a, b in zip(*draws, strict=True))


def test_a_saved_state_holds_no_rows_that_were_never_written():
    both = Both(10, rows=50).turns(7)
    assert {len(column) for name, column in both.replay.state().items() if name in ("action", "pi", "priority")} == {7}


def taken(replay):
    """Bytes of all tensors of a replay."""
    return sum(value.nbytes for value in vars(replay).values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("config", [{}, *HOLDS], ids=str)
@pytest.mark.parametrize("frame", FRAMES, ids=str)
def test_the_bytes_needed_are_the_bytes_taken_and_one_sum_for_each_row(frame, config):
    small, large = (Both(0, rows=rows, each=5, frame=frame, **config).replay for rows in (20, 120))
    needed = [bytes_needed(replay.config, replay.obs_spec) for replay in (small, large)]
    assert taken(large) - taken(small) == needed[1] - needed[0] + 100 * 8


def test_two_million_states_of_atari_take_less_than_twenty_gigabytes():
    atari = ObservationSpec((84, 84), 4, 18)
    for config in HOLDS:
        assert 2_000_000 * 84 * 84 < bytes_needed(ReplayConfig(capacity=2_000_000, **config), atari) < 20e9


def test_a_replay_too_small_for_its_players_is_refused_with_what_they_need():
    obs_spec, horizon = ObservationSpec((1,), 4, 2), ReturnConfig(3, GAMMA)
    with pytest.raises(ValueError, match=r"^capacity = 79: too few for 10 players, who need at least 80$"):
        Replay(ReplayConfig(capacity=79), obs_spec, 10, 2, horizon, CPU)
    both = Both(11, rows=8, each=5, stack=4, steps=3).turns(20)
    assert both.replay.mass.sum() > 0


BAD = [
    dict(capacity=0), dict(priority_exponent=-0.1), dict(priority_exponent=1.1), dict(importance_exponent=-1.0),
    dict(importance_exponent=2.0), dict(release_interval=-1),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_settings_that_make_no_sense_are_refused_by_name(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"^{name} = {value}"):
        ReplayConfig(**bad)
