"""Draws go by priority, weights undo it, and the sums stay those of what they sum."""

import numpy as np
import pytest
import torch

from rbi.offline_rl.dqfd import ROW, Priorities

CPU = torch.device("cpu")


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def uneven(count, *, importance=0.6, exponent=0.4, seed=0):
    """Priorities of errors between 0 and 10, and the same as a list."""
    errors = np.random.default_rng(seed).uniform(0, 10, count) ** 2 / 10
    found = Priorities(count, exponent, importance, 0.001, CPU)
    found.update(torch.arange(count), torch.as_tensor(errors, dtype=torch.float32))
    return found, [(abs(e) + 0.001) ** exponent for e in errors]


def test_all_positions_begin_equal_and_every_draw_weighs_one():
    count = ROW + 3
    found = Priorities(count, 0.4, 0.6, 0.001, CPU)
    positions, weights = found.draw(count, seeded())
    assert (weights == 1).all()
    assert torch.equal(positions, torch.arange(count))  # one a share of the mass, and every share is a position


@pytest.mark.parametrize("count", [1, 5, ROW, ROW + 1, 3 * ROW + 100])
def test_a_draw_is_the_position_where_the_running_sum_passes_the_point(count):
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


def test_positions_are_drawn_in_proportion_to_their_priority():
    count = 2 * ROW + 7
    found, priorities = uneven(count)
    generator, drawn = seeded(), np.zeros(count)
    for _ in range(400):
        drawn += np.bincount(found.draw(512, generator)[0], minlength=count)
    expected = np.array(priorities) / np.sum(priorities) * drawn.sum()
    assert (np.abs(drawn - expected) < 6 * np.sqrt(expected)).all()
    assert np.corrcoef(drawn, expected)[0, 1] > 0.97


@pytest.mark.parametrize("importance", [0.0, 0.6, 1.0])
def test_weights_are_the_inverse_probabilities_to_the_exponent_over_the_largest(importance):
    count = ROW + 50
    found, priorities = uneven(count, importance=importance)
    positions, weights = found.draw(64, seeded())
    raw = [(1 / (count * priorities[i] / sum(priorities))) ** importance for i in positions.tolist()]
    np.testing.assert_allclose(weights, np.array(raw) / max(raw), rtol=1e-5)


def test_the_exponent_0_draws_uniformly_whatever_the_errors():
    found, _ = uneven(100, exponent=0.0)
    positions, weights = found.draw(100, seeded())
    assert torch.equal(positions, torch.arange(100))
    assert (weights == 1).all()


def test_renewing_changes_what_was_named_alone_and_of_a_position_that_comes_twice_the_larger_error_counts():
    count = 3 * ROW - 5
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


def test_nothing_behind_the_last_position_is_ever_drawn():
    found = Priorities(ROW + 1, 1.0, 0.6, 1e-6, CPU)
    found.update(torch.arange(ROW), torch.full((ROW,), 1e-6))
    found.update(torch.tensor([ROW]), torch.tensor([1e6]))
    positions, _ = found.draw(4096, seeded())
    assert int(positions.max()) == ROW


def test_the_state_put_into_another_draws_the_same():
    found, _ = uneven(2 * ROW)
    other = Priorities(2 * ROW, 0.4, 0.6, 0.001, CPU)
    for name, tensor in other.state().items():
        tensor.copy_(found.state()[name])
    for mine, its in zip(found.draw(50, seeded(3)), other.draw(50, seeded(3)), strict=True):
        assert torch.equal(mine, its)


@pytest.mark.parametrize(
    "changes", [dict(count=0), dict(exponent=1.5), dict(importance=-0.1), dict(constant=0.0), dict(constant=torch.inf)]
)
def test_nonsense_is_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        Priorities(**(dict(count=5, exponent=0.4, importance=0.6, constant=0.001, device=CPU) | changes))
