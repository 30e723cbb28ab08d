"""Pictures that are shown moved by a few pixels."""

import pytest
import torch

from rbi.nets.shift import shifted
from rbi.sight import Sight
from tests.test_sight import frames_of


@pytest.mark.parametrize("frame", [(6, 7), (5, 8, 3)], ids=str)
def test_a_shifted_state_is_one_of_its_crops_with_repeated_edges_the_same_for_all_its_frames(frame):
    frames, most = frames_of(Sight(frame, 3, 2), batch=40), 2
    moved = shifted(frames, most, torch.Generator().manual_seed(1))
    height, width = frame[:2]
    seen_from = set()
    for state, after in zip(frames, moved, strict=True):
        rows, columns = ([min(max(k, 0), size - 1) for k in range(-most, size + most)] for size in (height, width))
        larger = state[:, rows][:, :, columns]
        places = {
            (down, right)
            for down in range(2 * most + 1)
            for right in range(2 * most + 1)
            if torch.equal(larger[:, down : down + height, right : right + width], after)
        }
        assert len(places) == 1
        seen_from |= places
    assert {down for down, _ in seen_from} == {right for _, right in seen_from} == set(range(2 * most + 1))


def test_the_generator_alone_decides_how_pictures_are_shifted():
    frames = frames_of(Sight((6, 7), 2, 2), batch=8)
    first, again, other = (shifted(frames, 3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(shifted(frames, 0, torch.Generator().manual_seed(0)), frames)


@pytest.mark.gpu
@pytest.mark.parametrize("frame", [(84, 84), (20, 36, 3)], ids=str)
def test_the_kernel_moves_pictures_as_a_processor_does(frame, monkeypatch):
    frames = frames_of(Sight(frame, 4, 2), batch=300).to("cuda")
    ours = shifted(frames, 4, torch.Generator("cuda").manual_seed(3))
    monkeypatch.setattr("rbi.nets.shift.kernel", lambda: None)
    assert torch.equal(ours, shifted(frames, 4, torch.Generator("cuda").manual_seed(3)))
