"""The replay against a slow twin that keeps whole episodes in lists, and the prioritised draw."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pytest import approx
from scipy import stats

from rbi.observations import ObservationSpec
from rbi.online.stream import ExperienceBlock
from rbi.replay import PrioritySampler, Replay, ReplayConfig, Transition, bytes_needed, draw_by_priority
from rbi.returns import ReturnConfig
from tests.reference.histories import History
from tests.streams import RandomEnvs

CPU, ACTIONS, GAMMA = torch.device("cpu"), 3, 0.9
FRAMES = [(1,), (3,), (4,), (5, 5), (6, 8), (5, 6, 3)]  # floats and bytes, by words of eight bytes and not
few = settings(max_examples=40)


class Both:
    """A replay and its slow twins, one per environment, fed with the same transitions."""

    def __init__(self, seed, *, rows=12, each=2, groups=2, stack=3, steps=2, frame=(1,), masks=False, **config):
        self.rng = np.random.default_rng(seed)
        self.each, self.groups, self.num_envs = each, groups, each * groups
        obs_spec = ObservationSpec(frame, stack, ACTIONS, has_action_masks=masks)
        self.envs = [RandomEnvs(each, frame, self.rng, mask_size=obs_spec.mask_size) for _ in range(groups)]
        self.replay = Replay(
            ReplayConfig(capacity=rows * self.num_envs, **config), obs_spec, self.num_envs, groups,
            ReturnConfig(steps, GAMMA), CPU,
        )  # fmt: skip
        self.twins = [History(rows, stack, steps, GAMMA) for _ in range(self.num_envs)]

    def add(self, group):
        """The next transition of one group."""
        *shown, legal = self.envs[group].step()
        transition = Transition(
            *shown,
            legal=legal,
            action=torch.from_numpy(self.rng.integers(ACTIONS, size=self.each)),
            pi=torch.from_numpy(self.rng.dirichlet(np.ones(ACTIONS), self.each)).float(),
            td_error=torch.from_numpy(self.rng.uniform(0.05, 3, self.each)).float(),
        )
        self.replay.add(group, transition)
        for i in range(self.each):
            self.twins[group * self.each + i].add(*(column[i].numpy() for column in transition))
        return transition

    def turns(self, count):
        for _ in range(count):
            for group in range(self.groups):
                self.add(group)
        return self

    def truncate(self, group):
        self.replay.truncate(group)
        self.envs[group].reset()
        for i in range(self.each):
            self.twins[group * self.each + i].truncate()

    def release(self):
        self.replay.release()
        for twin in self.twins:
            twin.release(self.replay.config.store_at_episode_end)

    def cells(self):
        """(t, env) of all that can be drawn, by the twins."""
        return [(t, env) for env, twin in enumerate(self.twins) for t in twin.drawable()]


@st.composite
def pairs(draw, **config):
    """A replay and its twins of all small shapes, from empty to overwritten several times."""
    stack, steps = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows = stack + steps + 1 + draw(st.integers(0, 6))
    both = Both(
        draw(st.integers(0, 2**32)), rows=rows, stack=stack, steps=steps, each=draw(st.integers(1, 2)),
        groups=draw(st.integers(1, 2)), frame=draw(st.sampled_from(FRAMES)),
        masks=draw(st.booleans()), **config,
    )  # fmt: skip
    both.turns(draw(st.integers(0, 4 * rows)))
    if draw(st.booleans()):
        both.add(0)  # the groups take turns, so one may be ahead
    return both


def drawable(replay):
    """(row, env) of all that can be drawn, by the replay."""
    return {tuple(cell) for cell in replay.priority.nonzero().tolist()}


def cell_index(cells, rows):
    """Rows and environments of the states (t, env) in a table of `rows` rows."""
    return torch.tensor([t % rows for t, _ in cells]), torch.tensor([env for _, env in cells])


def read(both, cells):
    row, env = cell_index(cells, both.replay.rows)
    return both.replay.read(row, env, torch.ones(len(cells)))


def stacked(arrays):
    return torch.from_numpy(np.stack(arrays))


def assert_sums_are_right(replay):
    assert replay.mass.numpy() == approx(replay.priority.double().sum(1).numpy(), rel=1e-12)


@few
@given(pairs())
def test_a_state_can_be_drawn_once_its_return_is_complete_and_until_it_is_overwritten(both):
    rows = both.replay.rows
    assert drawable(both.replay) == {(t % rows, env) for t, env in both.cells()}
    assert_sums_are_right(both.replay)


@few
@given(pairs())
def test_batches_are_those_of_the_slow_twin(both):
    cells = both.cells()
    assume(cells)
    batch = read(both, cells)
    ahead = [both.twins[env].followed(t) for t, env in cells]
    assert torch.equal(batch.obs, stacked([both.twins[env].state(t) for t, env in cells]))
    assert torch.equal(batch.action, stacked([both.twins[env].actions[t] for t, env in cells]))
    assert torch.equal(batch.pi, stacked([both.twins[env].policies[t] for t, env in cells]))
    assert torch.equal(batch.legal, stacked([both.twins[env].masks[t] for t, env in cells]))
    assert batch.reward.tolist() == approx([reward for reward, _, _ in ahead], abs=1e-5)
    assert batch.discount.tolist() == approx([discount for _, discount, _ in ahead], abs=1e-6)
    for i, ((_, env), (_, discount, then)) in enumerate(zip(cells, ahead, strict=True)):
        if discount > 0:  # otherwise the return has ended and the next state does not count
            assert np.array_equal(batch.next_obs[i], both.twins[env].state(then))
            assert np.array_equal(batch.next_pi[i], both.twins[env].policies[then])
            assert np.array_equal(batch.next_legal[i], both.twins[env].masks[then])


@few
@given(pairs(priority_exponent=0.7))
def test_priorities_are_the_td_errors_given_n_steps_later_to_the_exponent(both):
    cells = both.cells()
    assume(cells)
    errors = np.array([both.twins[env].error(t) for t, env in cells])
    assert both.replay.priority[cell_index(cells, both.replay.rows)].numpy() == approx(errors**0.7, rel=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_the_final_frame_of_a_truncated_episode_is_bootstrapped_from_and_never_drawn(seed):
    both = Both(seed, rows=30).turns(60)
    cut_off = [
        (t, env)
        for t, env in both.cells()
        for _, discount, then in [both.twins[env].followed(t)]
        if then in both.twins[env].finals and discount > 0
    ]
    assert cut_off
    finals = [both.twins[env].state(both.twins[env].followed(t)[2]) for t, env in cut_off]
    assert torch.equal(read(both, cut_off).next_obs, stacked(finals))
    drawn = both.replay.sample(500, torch.Generator().manual_seed(0))
    assert not both.replay.final[drawn.row, drawn.env].any()


@few
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.data())
def test_rows_written_at_once_are_those_written_one_by_one(seed, stack, steps, delayed, data):
    config = {"store_at_episode_end": delayed, "priority_exponent": 0.7}
    one_by_one, at_once = (Both(seed, rows=stack + steps + 5, stack=stack, steps=steps, **config) for _ in range(2))
    for count in data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=4)):
        for group in range(2):
            rows = [one_by_one.add(group) for _ in range(count)]
            at_once.replay.add_rows(group, Transition(*(torch.stack(column) for column in zip(*rows, strict=True))))
        for replay in (one_by_one.replay, at_once.replay):
            replay.release()
        ours, theirs = at_once.replay.state(), one_by_one.replay.state()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        assert_sums_are_right(at_once.replay)


def test_a_stack_is_zero_before_its_episode():
    replay = Replay(ReplayConfig(capacity=20), ObservationSpec((1,), 3, 1), 1, 1, ReturnConfig(1, GAMMA), CPU)
    for frame, first in [(1, True), (2, False), (3, True), (4, False), (5, False), (6, False)]:
        values = [torch.tensor([x]) for x in ([float(frame)], first, 0.0, 0, 0, [1.0], 1.0)]
        replay.add(0, Transition(*values))
    stacks = replay.read(torch.arange(5), torch.zeros(5, dtype=torch.long), torch.ones(5)).obs
    assert stacks.flatten(1).tolist() == [[0, 0, 1], [0, 1, 2], [0, 0, 3], [0, 3, 4], [3, 4, 5]]


def test_stratified_draws_are_in_proportion_to_priorities_to_within_two():
    """Each of `size` equal parts of the mass gets one draw, so chance decides at the edges of a state only."""
    both, size = Both(0, rows=40).turns(100), 3000
    drawn = both.replay.sample(size, torch.Generator().manual_seed(0))
    counts = torch.zeros_like(both.replay.priority, dtype=torch.float64)
    counts.index_put_((drawn.row, drawn.env), torch.ones(size, dtype=torch.float64), accumulate=True)
    share = both.replay.priority.double() / both.replay.priority.double().sum()
    assert (counts - size * share).abs().max() < 2
    assert counts[share == 0].sum() == 0


def test_a_row_whose_sum_is_rounded_up_never_gives_an_item_of_priority_0():
    priority = torch.tensor([[1.0, 1.0, 0.0]])
    row, column = draw_by_priority(priority, torch.tensor([2.001], dtype=torch.float64), 10_000, seeded())
    assert set(row.tolist()) == {0}
    assert set(column.tolist()) == {0, 1}


def test_any_part_of_a_batch_is_a_fair_sample():
    both, generator = Both(1, rows=10).turns(30), torch.Generator().manual_seed(0)
    counts = torch.zeros_like(both.replay.priority)
    for _ in range(2000):
        part = both.replay.sample(12, generator).parts(4)[1]
        counts.index_put_((part.row, part.env), torch.ones(4), accumulate=True)
    alive = both.replay.priority > 0
    expected = both.replay.priority[alive].double() / both.replay.priority.double().sum() * counts.sum()
    statistic = ((counts[alive] - expected) ** 2 / expected).sum().item()
    assert counts[~alive].sum() == 0
    assert stats.chi2.sf(statistic, int(alive.sum()) - 1) > 1e-3


@pytest.mark.parametrize("exponent", [0.0, 0.4])
def test_a_batch_of_an_empty_replay_has_no_weight(exponent):
    replay = Both(1, importance_exponent=exponent).turns(1).replay
    assert not replay.mass.any()
    assert not replay.sample(5, torch.Generator().manual_seed(0)).weight.any()


def test_actions_are_kept_however_many_there_are():
    replay = Replay(ReplayConfig(capacity=20), ObservationSpec((1,), 1, 40_000), 1, 1, ReturnConfig(1, GAMMA), CPU)
    for action in (39_999, 0):
        zero, no = torch.zeros(1), torch.zeros(1, dtype=torch.bool)
        replay.add(0, Transition(zero[:, None], no, zero, no, torch.tensor([action]), torch.zeros(1, 40_000), zero))
    assert replay.sample(1, torch.Generator().manual_seed(0)).action.tolist() == [39_999]
    assert ExperienceBlock.empty(replay.obs_spec, 1, 1).action.dtype == np.int32


@pytest.mark.parametrize("exponent", [0.0, 0.4, 1.0])
def test_importance_weights_are_inverse_probabilities_to_the_exponent(exponent):
    """Of each replay's own draw, without a constant: a batch may come from several replays."""
    both = Both(2, rows=20, importance_exponent=exponent).turns(50)
    drawn = both.replay.sample(200, torch.Generator().manual_seed(0))
    priority = both.replay.priority[drawn.row, drawn.env].double()
    weight = (priority / both.replay.mass.sum()) ** -exponent
    assert drawn.weight.numpy() == approx(weight.numpy(), rel=1e-4)
    assert drawn.parts(50)[1].weight.numpy() == approx((weight[50:100] / weight[50:100].max()).numpy(), rel=1e-4)


def test_a_part_of_a_batch_is_a_view():
    drawn = Both(3).turns(20).replay.sample(12, torch.Generator().manual_seed(0))
    part = drawn.parts(4)[1]
    assert part.obs.data_ptr() == drawn.obs[4:].data_ptr()
    assert torch.equal(part.row, drawn.row[4:8])


def test_exponent_zero_samples_uniformly():
    both = Both(4, rows=20, priority_exponent=0.0).turns(50)
    alive = both.replay.priority > 0
    assert set(both.replay.priority[alive].tolist()) == {1.0}
    drawn = both.replay.sample(50, torch.Generator().manual_seed(0))
    assert (drawn.weight == drawn.weight[0]).all()


def test_a_state_with_zero_error_can_still_be_drawn():
    both = Both(5).turns(30)
    cells = both.replay.priority.nonzero(as_tuple=True)
    before = drawable(both.replay)
    both.replay.update_priorities(*cells, torch.zeros(len(cells[0])))
    assert drawable(both.replay) == before
    assert both.replay.sample(9, torch.Generator().manual_seed(0)).weight.isfinite().all()


@few
@given(pairs(priority_exponent=0.5))
def test_new_errors_change_priorities_but_never_revive_overwritten_states(both):
    replay = both.replay
    row, env = torch.cartesian_prod(torch.arange(replay.rows), torch.arange(both.num_envs)).T
    shuffled = torch.from_numpy(both.rng.permutation(len(row)))
    row, env = row[shuffled], env[shuffled]
    errors = torch.from_numpy(both.rng.normal(scale=3, size=len(row))).float()
    before = drawable(replay)
    replay.update_priorities(row, env, errors)
    assert drawable(replay) == before
    alive = replay.priority[row, env] > 0
    assert replay.priority[row, env][alive].numpy() == approx(errors[alive].abs().sqrt().numpy(), rel=1e-2, abs=2e-3)
    assert_sums_are_right(replay)


DELAYS = [
    dict(store_at_episode_end=True),
    dict(release_interval=5),
    dict(store_at_episode_end=True, release_interval=5),
]


@pytest.mark.parametrize("config", DELAYS, ids=str)
@given(data=st.data())
@few
def test_pending_states_can_be_drawn_from_the_next_release_on(config, data):
    both = data.draw(pairs(**config))
    assert not drawable(both.replay)
    rows = both.replay.rows
    for turns in data.draw(st.lists(st.integers(0, rows), max_size=3)):
        both.release()
        both.turns(turns)
        assert drawable(both.replay) == {(t % rows, env) for t, env in both.cells() if t in both.twins[env].released}
        assert_sums_are_right(both.replay)


def test_only_ended_episodes_are_released_when_stored_at_episode_end():
    both = Both(6, rows=60, store_at_episode_end=True).turns(50)
    both.release()
    for env, twin in enumerate(both.twins):
        shown = both.replay.priority[:, env].nonzero().flatten().tolist()
        assert shown == [t for t in twin.drawable() if t < max(twin.finals)]


@pytest.mark.parametrize("config", DELAYS, ids=str)
def test_a_release_keeps_updated_priorities(config):
    both = Both(7, rows=30, priority_exponent=1.0, **config).turns(25)
    both.release()
    cells = both.replay.priority.nonzero(as_tuple=True)
    both.replay.update_priorities(*cells, torch.full((len(cells[0]),), 7.0))
    both.turns(2).release()
    assert both.replay.priority[cells].tolist() == approx([7.0] * len(cells[0]))


@given(data=st.data(), config=st.sampled_from([{}, dict(store_at_episode_end=True)]))
@few
def test_truncate_ends_episodes_as_a_time_limit_would(data, config):
    both = data.draw(pairs(**config))
    rows = both.replay.rows
    for turns in data.draw(st.lists(st.integers(1, rows), min_size=1, max_size=3)):
        both.turns(1)  # every environment has begun
        both.truncate(data.draw(st.integers(0, both.groups - 1)))
        both.turns(turns)
        both.release()
        cells = [(t, env) for t, env in both.cells() if not config or t in both.twins[env].released]
        assert drawable(both.replay) == {(t % rows, env) for t, env in cells}
        if cells:
            batch, ahead = read(both, cells), [both.twins[env].followed(t) for t, env in cells]
            assert batch.reward.tolist() == approx([reward for reward, _, _ in ahead], abs=1e-5)
            assert batch.discount.tolist() == approx([discount for _, discount, _ in ahead], abs=1e-6)
            assert torch.equal(batch.obs, stacked([both.twins[env].state(t) for t, env in cells]))


@pytest.mark.parametrize("config", [{}, *DELAYS], ids=str)
@pytest.mark.parametrize("turns", [5, 12, 31])
def test_a_restored_replay_continues_exactly(config, turns):
    both = Both(8, frame=(6, 8), **config).turns(turns)
    both.add(0)
    saved = {name: tensor.clone() for name, tensor in both.replay.state().items()}
    restored = Both(9, frame=(6, 8), **config).replay
    restored.restore(saved)
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


def test_a_replay_that_was_saved_before_there_were_masks_has_no_illegal_actions():
    both = Both(10, masks=True).turns(9)
    saved = both.replay.state()
    assert not saved.pop("legal").all()
    restored = Both(10, masks=True).replay
    restored.restore(saved)
    assert restored.sample(20, torch.Generator().manual_seed(1)).legal.all()


def test_the_saved_state_holds_written_rows_only():
    both = Both(10, rows=50).turns(7)
    assert {len(column) for name, column in both.replay.state().items() if name in ("action", "pi", "priority")} == {7}


def taken(replay):
    """Bytes of all tensors of a replay."""
    return sum(value.nbytes for value in vars(replay).values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("config", [{}, *DELAYS], ids=str)
@pytest.mark.parametrize("frame", FRAMES, ids=str)
@pytest.mark.parametrize("masks", [False, True])
def test_bytes_needed_are_the_bytes_of_all_tensors(masks, frame, config):
    small, large = (Both(0, rows=rows, each=5, frame=frame, masks=masks, **config).replay for rows in (20, 120))
    needed = [bytes_needed(replay.config, replay.obs_spec) for replay in (small, large)]
    assert taken(large) - taken(small) == needed[1] - needed[0] + 100 * 8


def test_two_million_states_of_atari_take_less_than_twenty_gigabytes():
    atari = ObservationSpec((84, 84), 4, 18)
    for config in DELAYS:
        assert 2_000_000 * 84 * 84 < bytes_needed(ReplayConfig(capacity=2_000_000, **config), atari) < 20e9


def test_a_replay_too_small_for_its_environments_is_refused():
    obs_spec, returns = ObservationSpec((1,), 4, 2), ReturnConfig(3, GAMMA)
    with pytest.raises(ValueError, match=r"^capacity = 79: too small for 10 environments, which need 80$"):
        Replay(ReplayConfig(capacity=79), obs_spec, 10, 2, returns, CPU)
    both = Both(11, rows=8, each=5, stack=4, steps=3).turns(20)
    assert both.replay.mass.sum() > 0


BAD = [
    dict(capacity=0), dict(priority_exponent=-0.1), dict(priority_exponent=1.1), dict(importance_exponent=-1.0),
    dict(importance_exponent=2.0), dict(release_interval=-1),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_invalid_settings_are_refused_by_name(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"^{name} = {value}"):
        ReplayConfig(**bad)


# PrioritySampler


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def uneven(count, *, importance=0.6, exponent=0.4, seed=0):
    """A sampler with errors between 0 and 10, and its priorities as a list."""
    errors = np.random.default_rng(seed).uniform(0, 10, count) ** 2 / 10
    found = PrioritySampler(count, exponent, importance, 0.001, CPU)
    found.update(torch.arange(count), torch.as_tensor(errors, dtype=torch.float32))
    return found, [(abs(e) + 0.001) ** exponent for e in errors]


def test_sampler_starts_uniform_with_weights_of_one():
    count = PrioritySampler.ROW + 3
    found = PrioritySampler(count, 0.4, 0.6, 0.001, CPU)
    positions, weights = found.draw(count, seeded())
    assert (weights == 1).all()
    assert torch.equal(positions, torch.arange(count))  # stratified: one draw per item


@pytest.mark.parametrize("count", [1, 5, PrioritySampler.ROW, PrioritySampler.ROW + 1, 3 * PrioritySampler.ROW + 100])
def test_a_draw_is_the_item_where_the_cumulative_sum_passes_the_point(count):
    found, priorities = uneven(count)
    positions, _ = found.draw(200, seeded(1))
    uniform = torch.rand(200, dtype=torch.float64, generator=seeded(1))
    total = sum(priorities)
    for i, position in enumerate(positions.tolist()):
        point, passed, expected = (i + float(uniform[i])) / 200 * total, 0.0, -1
        while passed <= point:
            expected += 1
            passed += priorities[expected]
        assert position == expected or min(abs(passed - point), abs(passed - priorities[expected] - point)) < 1e-5


def test_items_are_drawn_in_proportion_to_their_priority():
    count = 2 * PrioritySampler.ROW + 7
    found, priorities = uneven(count)
    generator, drawn = seeded(), np.zeros(count)
    for _ in range(400):
        drawn += np.bincount(found.draw(512, generator)[0], minlength=count)
    expected = np.array(priorities) / np.sum(priorities) * drawn.sum()
    assert (np.abs(drawn - expected) < 6 * np.sqrt(expected)).all()
    assert np.corrcoef(drawn, expected)[0, 1] > 0.97


@pytest.mark.parametrize("importance", [0.0, 0.6, 1.0])
def test_sampler_weights_are_inverse_probabilities_to_the_exponent_over_the_largest(importance):
    count = PrioritySampler.ROW + 50
    found, priorities = uneven(count, importance=importance)
    positions, weights = found.draw(64, seeded())
    raw = [(1 / (count * priorities[i] / sum(priorities))) ** importance for i in positions.tolist()]
    np.testing.assert_allclose(weights, np.array(raw) / max(raw), rtol=1e-5)


def test_sampler_with_exponent_zero_is_uniform():
    found, _ = uneven(100, exponent=0.0)
    positions, weights = found.draw(100, seeded())
    assert torch.equal(positions, torch.arange(100))
    assert (weights == 1).all()


def test_an_update_changes_the_given_items_only_and_the_larger_of_two_errors_counts():
    count = 3 * PrioritySampler.ROW - 5
    found, priorities = uneven(count)
    rng = np.random.default_rng(1)
    for _ in range(20):
        positions, errors = rng.integers(count, size=40), rng.normal(size=40).astype(np.float32)
        positions[1] = positions[0]
        found.update(torch.as_tensor(positions), torch.as_tensor(errors))
        for i in set(positions.tolist()):
            priorities[i] = max(
                (abs(float(e)) + 0.001) ** 0.4 for j, e in zip(positions, errors, strict=True) if j == i
            )
    np.testing.assert_allclose(found.priority.flatten()[:count], priorities, rtol=1e-5)
    assert (found.priority.flatten()[count:] == 0).all()
    assert torch.equal(found.mass, found.priority.sum(1, dtype=torch.float64))


def test_padding_is_never_drawn():
    found = PrioritySampler(PrioritySampler.ROW + 1, 1.0, 0.6, 1e-6, CPU)
    found.update(torch.arange(PrioritySampler.ROW), torch.full((PrioritySampler.ROW,), 1e-6))
    found.update(torch.tensor([PrioritySampler.ROW]), torch.tensor([1e6]))
    positions, _ = found.draw(4096, seeded())
    assert int(positions.max()) == PrioritySampler.ROW


def test_a_restored_sampler_draws_the_same():
    found, _ = uneven(2 * PrioritySampler.ROW)
    other = PrioritySampler(2 * PrioritySampler.ROW, 0.4, 0.6, 0.001, CPU)
    for name, tensor in other.state().items():
        tensor.copy_(found.state()[name])
    for mine, its in zip(found.draw(50, seeded(3)), other.draw(50, seeded(3)), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize(
    "changes", [dict(count=0), dict(exponent=1.5), dict(importance=-0.1), dict(constant=0.0), dict(constant=torch.inf)]
)
def test_invalid_sampler_settings_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        PrioritySampler(**(dict(count=5, exponent=0.4, importance=0.6, constant=0.001, device=CPU) | changes))
