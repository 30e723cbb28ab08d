"""Pictures that are shown moved by a few pixels."""

import pytest
import torch

from rbi.observations import ObservationSpec, random_shifts, shift_images
from tests.sight.test_sight import PICTURES, frames_of


@pytest.mark.parametrize("frame", [(6, 7), (5, 8, 3)], ids=str)
def test_a_shifted_state_is_one_of_its_crops_with_repeated_edges_the_same_for_all_its_frames(frame):
    frames, most = frames_of(ObservationSpec(frame, 3, 2), batch=40), 2
    after_all = shift_images(frames, random_shifts(40, most, torch.Generator().manual_seed(1)))
    height, width = frame[:2]
    seen_from = set()
    for state, after in zip(frames, after_all, strict=True):
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
    first, again, other = (random_shifts(8, 3, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_networks_look_at_what_was_moved():
    obs_spec, generator = ObservationSpec((39, 50), 3, 2), torch.Generator().manual_seed(0)
    frames, moves = frames_of(obs_spec, batch=9), random_shifts(9, 4, generator)
    assert torch.equal(
        obs_spec.preprocess(frames, torch.float32, moves),
        obs_spec.preprocess(shift_images(frames, moves), torch.float32),
    )
    still = torch.zeros(2, 9, dtype=torch.int64)
    assert torch.equal(obs_spec.preprocess(frames, torch.float32, still), obs_spec.preprocess(frames, torch.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("frame", PICTURES, ids=str)
def test_the_kernel_looks_as_a_processor_does(frame, shifted, dtype):
    obs_spec = ObservationSpec(frame, 4, 2)
    frames = frames_of(obs_spec, batch=300)
    moves = random_shifts(300, 4, torch.Generator().manual_seed(3)) if shifted else None
    on_gpu = obs_spec.preprocess(frames.cuda(), dtype, moves if moves is None else moves.cuda())
    assert torch.equal(on_gpu.cpu(), obs_spec.preprocess(frames, dtype, moves))
