"""The study: names are understood, repetitions do not depend on company, and the published figures come out."""

import numpy as np
import pytest
from pytest import approx

from rbi.lab.spi import study as spi

FEW = ("baseline", "basic_rl", "pi_b_spibb(10)", "pi_le_b_spibb(10)", spi.OURS)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("maze(0.5)", "unknown world maze"),
        ("random", "one number"),
        ("random(1.5)", "eta must be in"),
        ("chicken(0)", "epsilon must be in"),
        ("random(half)", "write it like"),
        ("random)(", "write it like"),
    ],
)
def test_worlds_that_make_no_sense_are_refused(text, told):
    with pytest.raises(ValueError, match=told):
        spi.parse_world(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ppo(0.5)", "unknown algorithm ppo"),
        ("pi_b_spibb", "takes 1 number, not 0"),
        ("rbi_model(0)", "takes 2 numbers, not 1"),
        ("rbi_model(2,3)", "c_min <= 1 <= c_max"),
        ("soft_spibb(-1)", "must be in"),
        ("ramdp(nan)", "must be in"),
        ("hcpi(1)", "level of its test"),
        ("basic rl()x", "write it like"),
    ],
)
def test_algorithms_that_make_no_sense_are_refused(text, told):
    with pytest.raises(ValueError, match=told):
        spi.parse_algorithm(text)


def test_names_have_one_spelling():
    assert spi.parse_algorithm(" pi_b_spibb( 10.0 ) ")[0] == "pi_b_spibb(10)"
    assert str(spi.parse_world("random(0.90)")) == "random(0.9)"
    assert spi.parse_algorithm("pi_b_spibb(1234567)")[0] == "pi_b_spibb(1234567.0)"  # exact, not 1.23457e+06
    for family in spi.FAMILIES.values():
        assert [spi.parse_algorithm(a)[0] for a in family.algorithms] == list(family.algorithms)


@pytest.mark.parametrize("text", ["random(0.7)", "chicken(0.2)", "grid(0.7)"])
def test_a_repetition_is_the_same_in_any_block_and_the_baseline_scores_what_it_should(text):
    world = spi.parse_world(text)
    sizes = (20, 60)
    three = spi.numbered_block(world, FEW, sizes, 5, range(3))
    assert three.shape == (3, 2, len(FEW))
    assert spi.numbered_block(world, FEW, sizes, 5, range(2, 3)) == approx(three[2:], abs=1e-9)
    assert spi.numbered_block(world, FEW, sizes[:1], 5, range(3)) == approx(three[:, :1], abs=1e-9)
    assert three[..., 0] == approx(spi.baseline_score(world))


def test_blocks_cover_all_repetitions_once():
    world = spi.parse_world("random(0.9)")
    assert [i for block in spi.blocks(world, 77) for i in block] == list(range(77))


def test_random_mdps_agree_with_the_published_rows():
    """eta = 0.9, 100 worlds, against an independent implementation's 300: means within four standard errors of both."""
    world = spi.parse_world("random(0.9)")
    blocks = [spi.numbered_block(world, FEW, (50, 200), 0, b) for b in spi.blocks(world, 100)]
    scores = np.concatenate(blocks)
    published = {"basic_rl": (-0.21, 0.21), "pi_b_spibb(10)": (0.05, 0.37), "pi_le_b_spibb(10)": (0.43, 0.75)}
    for name, means in published.items():
        own = scores[..., FEW.index(name)]
        error = own.std(0) * np.sqrt(1 / 100 + 1 / 300)
        assert (abs(own.mean(0) - means) < 4 * error + 0.005).all()  # the rows have two digits


def test_wet_chicken_agrees_with_the_published_rows():
    """epsilon = 0.1, 300 datasets, against 1,000."""
    world = spi.parse_world("chicken(0.1)")
    algorithms = ("basic_rl", "pi_b_spibb(7)")
    scores = np.concatenate([spi.numbered_block(world, algorithms, (500, 2000), 0, b) for b in spi.blocks(world, 300)])
    for j, means in enumerate([(31.61, 31.32), (29.76, 32.80)]):
        error = scores[..., j].std(0) * np.sqrt(1 / 300 + 1 / 1000)
        assert (abs(scores[..., j].mean(0) - means) < 4 * error + 0.005).all()


def test_with_much_data_ours_is_far_above_the_baseline_and_never_below_it():
    world = spi.parse_world("random(0.9)")
    scores = spi.numbered_block(world, (spi.OURS,), (500,), 3, range(25))
    assert scores.mean() > 0.75
    assert scores.min() > 0
