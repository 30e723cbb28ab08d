"""The SPI study: parsing of names, independent repetitions, statistics, and agreement with published results."""

import numpy as np
import pytest
from pytest import approx

from rbi.lab.spi import study
from rbi.lab.spi.study import summarise

FEW = ("baseline", "basic_rl", "pi_b_spibb(10)", "pi_le_b_spibb(10)", study.COUNT_AWARE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("maze(0.5)", "unknown world maze"),
        ("random", "one number"),
        ("random(1.5)", "eta must be in"),
        ("chicken(0)", "epsilon must be in"),
        ("random(half)", "write it like"),
        ("random)(", "write it like"),
    ],
)
def test_invalid_worlds_are_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        study.parse_world(text)


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_invalid_algorithms_are_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        study.parse_algorithm(text)


def test_names_have_one_canonical_spelling():
    assert study.parse_algorithm(" pi_b_spibb( 10.0 ) ")[0] == "pi_b_spibb(10)"
    assert str(study.parse_world("random(0.90)")) == "random(0.9)"
    assert study.parse_algorithm("pi_b_spibb(1234567)")[0] == "pi_b_spibb(1234567)"  # exact, not 1.23457e+06
    for family in study.FAMILIES.values():
        assert [study.parse_algorithm(a)[0] for a in family.algorithms] == list(family.algorithms)


@pytest.mark.parametrize(
    "text", ["random(0.7)", "chicken(0.2)", "grid(0.7)", "gathering(0.5)", "large(0.5)", "two_goals(0.7)"]
)
def test_a_repetition_does_not_depend_on_its_block_and_the_baseline_has_its_score(text):
    world = study.parse_world(text)
    sizes = (20, 60)
    three = study.score_repetitions(world, FEW, sizes, 5, range(3))
    assert three.shape == (3, 2, len(FEW))
    assert study.score_repetitions(world, FEW, sizes, 5, range(2, 3)) == approx(three[2:], abs=1e-9)
    assert study.score_repetitions(world, FEW, sizes[:1], 5, range(3)) == approx(three[:, :1], abs=1e-9)
    assert three[..., 0] == approx(study.baseline_score(world))


def test_without_the_true_baseline_all_algorithms_get_the_same_estimate():
    world = study.parse_world("grid(0.7)")
    names = ("baseline", study.COUNT_AWARE, "hcpi(0.05)")
    known, estimated = (study.score_repetitions(world, names, (5,), 5, range(3), b) for b in ("known", "estimated"))
    assert (known != estimated).any(-1).all()
    assert abs(estimated[..., 0]).min() > 1e-6  # an estimate from five trajectories is not the baseline


def test_blocks_cover_all_repetitions_once():
    world = study.parse_world("random(0.9)")
    assert [i for block in study.split_blocks(world, 77) for i in block] == list(range(77))


@pytest.mark.slow
def test_random_mdps_agree_with_published_results():
    """eta = 0.9, 100 worlds against 300 of an independent implementation: means within four standard errors."""
    world = study.parse_world("random(0.9)")
    blocks = [study.score_repetitions(world, FEW, (50, 200), 0, b) for b in study.split_blocks(world, 100)]
    scores = np.concatenate(blocks)
    published = {"basic_rl": (-0.21, 0.21), "pi_b_spibb(10)": (0.05, 0.37), "pi_le_b_spibb(10)": (0.43, 0.75)}
    for name, means in published.items():
        own = scores[..., FEW.index(name)]
        error = own.std(0) * np.sqrt(1 / 100 + 1 / 300)
        assert (abs(own.mean(0) - means) < 4 * error + 0.005).all()  # published with two digits


def test_wet_chicken_agrees_with_published_results():
    """epsilon = 0.1, 300 datasets, against 1,000."""
    world = study.parse_world("chicken(0.1)")
    algorithms = ("basic_rl", "pi_b_spibb(7)")
    scores = np.concatenate(
        [study.score_repetitions(world, algorithms, (500, 2000), 0, b) for b in study.split_blocks(world, 300)]
    )
    for j, means in enumerate([(31.61, 31.32), (29.76, 32.80)]):
        error = scores[..., j].std(0) * np.sqrt(1 / 300 + 1 / 1000)
        assert (abs(scores[..., j].mean(0) - means) < 4 * error + 0.005).all()


def test_count_aware_with_much_data_is_far_above_the_baseline_and_never_below_it():
    world = study.parse_world("random(0.9)")
    scores = study.score_repetitions(world, (study.COUNT_AWARE,), (500,), 3, range(25))
    assert scores.mean() > 0.75
    assert scores.min() > 0


def test_intervals_have_their_coverage():
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        found = summarise(rng.standard_normal((60, 1, 1)), 0.0, [0], rng, resamples=300)
        low, high = found.mean_interval[:, 0, 0]
        hits += low <= 0 <= high
    assert 180 <= hits <= 199


def test_leads_are_paired():
    rng = np.random.default_rng(3)
    shared = 100 * rng.standard_normal((200, 1))
    scores = np.concatenate([shared, shared + 1 + 0.1 * rng.standard_normal((200, 1))], 1)[:, None, :]
    found = summarise(scores, 0.0, [1], rng, resamples=200)
    at, low, high = found.mean_lead[0, :, 0, 0]
    assert low < at < high
    assert at == approx(1, abs=0.05)
    assert high - low < 0.1  # unpaired it would be wider than 50
    assert found.mean_lead[0, :, 0, 1] == approx(0)
    assert found.cvar_lead[0, 0, 0, 0] == approx(found.cvar[0, 1] - found.cvar[0, 0])


def test_rounding_errors_do_not_count_as_below_the_baseline():
    scores = np.array([0.0, -1e-12, -0.1, 0.2])[:, None, None]
    assert summarise(scores, 0.0, [0], np.random.default_rng(0), 10).below[0, 0] == approx(0.25)


def test_the_study_runs_from_python_and_skips_finished_blocks():
    settings = dict(algorithms=["basic_rl"], sizes=[20], repetitions=60, resamples=20, workers=1, progress=False)
    blocks = []
    result = study.spi_study(["chicken(0.1)"], **settings, callback=blocks.append)
    (part,) = result.worlds
    assert part.algorithms == ("basic_rl", study.COUNT_AWARE)
    assert part.summary.mean.shape == (1, 2)
    assert [block["first"] for block in blocks] == [0, 50]
    assert "basic_rl" in repr(result)
    finished, again = {("chicken(0.1)", 0): blocks[0]["scores"]}, []
    resumed = study.spi_study(["chicken(0.1)"], **settings, finished=finished, callback=again.append)
    assert [block["first"] for block in again] == [50]
    assert (resumed.worlds[0].summary.cvar == part.summary.cvar).all()


@pytest.mark.parametrize(
    "changes", [dict(repetitions=1), dict(sizes=[0]), dict(sizes=[10**7]), dict(compare=[]), dict(baseline="guess")]
)
def test_invalid_settings_are_rejected(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        study.spi_study(["chicken(0.1)"], **changes)
