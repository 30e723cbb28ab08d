"""The figures in the docs are those in the raw results."""

import dataclasses
import json
import re
import runpy

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from pytest import approx

import benchmarks.spi
from benchmarks import (
    assumptions,
    atari,
    atari_page,
    certificate,
    coverage,
    monitor,
    online_page,
    population_page,
    results_page,
    spi_page,
)
from benchmarks.engine import VARIANTS
from benchmarks.population import step as record_population
from benchmarks.results_page import ROOT
from benchmarks.rules import short, states_a_second
from benchmarks.tables import load
from rbi.envs import action_names
from rbi.evaluation.comparison import PUBLISHED
from rbi.lab.spi import study as spi
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.online.config import TrainConfig
from rbi.policy import Policy
from rbi.rules.types import parse_rule

NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def test_the_results_pages_are_drawn_from_the_raw_results():
    for path, text in results_page.pages().items():
        assert path.read_text() == text, f"{path.name}: run `make results`"


def test_the_front_pages_speed_is_the_measured_one():
    cpu, cuda = states_a_second(load("rules-cpu.json")), states_a_second(load("rules-cuda.json"))
    eager, fused = cpu["rbi", 18, 2**20], cuda["rbi", 18, 2**20]
    text = " ".join((ROOT / "docs/index.md").read_text().split())
    assert f"handles {eager / 1e6:.1f} million states a second" in text
    assert f"some {eager / cpu['LP solver', 18, 2**20] / 1000:.1f}00 times".replace(".", ",") in text
    assert f"and {fused / 1e9:.1f} billion on one H200" in text
    assert f"{cuda['copy', 18, 2**20] / fused:.2f} times the time of copying" in text


def test_the_studys_settings_are_those_that_tuning_found():
    tuned = load("spi-tuning.json")
    assert tuned["ours"] == spi.COUNT_AWARE
    for family in ("random", "chicken", "grid"):
        best = {setting for key, setting in tuned["best"].items() if key.startswith(family)}
        assert best <= set(spi.FAMILIES[family].algorithms)
    assert not set(tuned["utility"]) & {*benchmarks.spi.REPORTED, *benchmarks.spi.HELD_OUT}  # tuned elsewhere


def test_the_tuning_table_is_the_measured_one():
    page = (ROOT / "docs" / "count-aware.md").read_text()
    utility = load("spi-tuning.json")["ours_utility"]
    assert "| utility | " + " | ".join(f"{x:.4f}" for x in utility.values()) + " |" in page


def test_the_count_aware_page_has_the_measured_failures():
    results, page = (" ".join((ROOT / "docs" / name).read_text().split()) for name in ("results.md", "count-aware.md"))
    found = re.findall(r"better in both in (\d+) of (\d+) cells by point estimates, and in (\d+) beyond", results)
    assert len(found) == 3
    failures = page.partition("## Results")[2]
    for by_estimate, cells, beyond in found:
        assert re.search(rf"{by_estimate} of {cells}\b[^.:]* {beyond}\b", failures)
    table = re.findall(r"\| `\w+` \| (\d+) \| (\d+) \| \d+ \| \d+ \| \d+ \| \d+ \|", results)
    least = min(int(better) / int(cells) for cells, better in table)
    assert len(table) == 13
    assert f"better in both than any single peer in {int(100 * least)}% of the cells or more" in failures


def test_the_summary_counts_peers_that_lead_in_both_and_names_the_best_in_hindsight():
    """Three algorithms at two sizes: one leads ours in both at the first, the other in the mean only."""
    lead = {"mean_lead": [[[[-0.1, -0.1, 0], [0.3, 0.2, 0]]] * 3], "cvar_lead": [[[[-0.1, 0.3, 0], [0.4, 0.4, 0]]] * 3]}
    part = {
        "world": "random(0.5)",
        "repetitions": 10,
        "sizes": [10, 20],
        "algorithms": ["basic_rl", "r_min(2)", "count_aware(0.25,1)"],
        "compared": ["count_aware(0.25,1)"],
        "summary": {
            "mean": [[0.6, 0.6, 0.5], [0.6, 0.7, 0.9]],
            "cvar": [[0.4, 0.0, 0.3], [0.3, 0.3, 0.7]],
            "below": [[0, 0, 0.25], [0, 0, 0]],
            **lead,
        },
    }
    assert spi_page.count_ahead(part) == (2, 1, 1)
    cells = [cell.strip() for cell in spi_page.summary_row(part).strip("|").split("|")]
    assert cells == [
        "random(0.5)", "10", "0.700 / 0.500", "`basic_rl`", "0.600 / 0.350", "1, 1 of 2", "1, 1", "0.250",
    ]  # fmt: skip


def test_the_front_pages_study_takes_the_measured_time():
    seconds = load("spi-speed.json")["rows"][0]["seconds"]
    assert f"took {seconds:.0f} seconds on 2 cores" in " ".join((ROOT / "docs/index.md").read_text().split())


def test_the_front_pages_training_speed_is_the_measured_one():
    row = online_page.speed_of_preset(online_page.engine_results())
    text = " ".join((ROOT / "docs/index.md").read_text().split())
    assert f"at {row['of']:.2f} of the bare emulator's speed" in text
    assert f"{round(row['steps_per_second'], -2):,.0f} steps a second" in text
    assert f"take {round(row['updates_per_second'], -1):,.0f} updates a second" in text
    assert f"the learner alone takes {round(row['learner_alone_updates_per_second'], -1):,.0f}" in text


def test_the_front_pages_breakout_is_the_measured_one():
    run, long, *_ = online_page.learning_results()
    assert online_page.changes(run) == ["decay over 150,000 updates"]
    assert online_page.changes(long) == ["256 environments", "16 states per update"]
    assert 85 < online_page.reached(run, 100) < 100
    assert 410 < online_page.reached(long, 420) < 435
    text = " ".join((ROOT / "docs/index.md").read_text().split())
    assert (
        "at 100 points after a minute and a half of training; a longer run, with fewer environments, reached 420"
        in text
    )


def test_the_front_pages_ratios_to_the_bare_emulator_are_the_measured_ones():
    once = load("engine-cuda-512-faster-emulator.json")
    bare = (once["bare_emulator_steps_per_second"] + once["bare_emulator_again"]) / 2
    ratios = [once["rows"][0]["steps_per_second"] / bare]
    for name in ("engine-start-up.json", "engine-frames.json"):
        turns = [turn for kind in load(name)["kinds"].values() for turn in kind["turns"]]
        ratios += [turn["steps_per_second"] / turn["bare_emulator_steps_per_second"] for turn in turns]
    text = " ".join((ROOT / "docs/index.md").read_text().split())
    assert f"(later measurements: {min(ratios):.2f} to {max(ratios):.2f})" in text
    latest = [turn["steps_per_second"] for turn in load("engine-frames.json")["kinds"]["GPU"]["turns"]]
    assert f"had {round(min(latest), -2):,.0f} to {round(max(latest), -2):,.0f} steps a second" in text


def test_the_front_pages_speed_from_logs_is_the_measured_one():
    beta, q, both = (round(load("offline-speed-cuda.json")["ours"][name], -1) for name in ("beta", "q", "beta_and_q"))
    text = " ".join((ROOT / "docs/index.md").read_text().split())
    assert f"beta alone learns at {beta:,.0f} updates a second, Q at {q:,.0f}, both together at {both:,.0f}" in text


def test_a_run_is_described_by_its_changes_to_the_preset():
    whole = TrainConfig.preset("ALE/Breakout-v5", "rbi", "fast")
    changed = whole.changed(**VARIANTS["plain"], **VARIANTS["replay250k"], num_envs=64, states_per_update=16.0)
    parts = ("learner", "replay", "schedule")
    runs = [
        {"env": "ALE/Breakout-v5", "algo": "rbi"} | {"settings": {p: vars(getattr(w, p)) for p in parts}}
        for w in (whole, changed)
    ]
    assert online_page.changes(runs[0]) == []
    changes = ["no norm", "no augmentation", "learning rate 0.0001", "replay 250,000"]
    changes += ["64 environments", "16 states per update"]
    assert online_page.changes(runs[1]) == changes


def test_the_readmes_populations_are_the_measured_ones():
    results = population_page.whole(population_page.load_results())
    ratios = [population_page.ratio(result, "reroute(0.5,1.5)") for result in results]
    ahead = sum(population_page.ratio(result, "DQfD") > own for result, own in zip(results, ratios, strict=True))
    found = [population_page.below(result) for result in results]
    of = {
        name: sum(one[name] >= population_page.CERTAIN for one in found)
        for name in ("reroute(0.5,1.5)", "greedy", "DQfD")
    }
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"In all [{NUMBERS[len(results)]} populations]" in text
    assert of["reroute(0.5,1.5)"] == 0
    assert f"reroute(0.5,1.5) scores {min(ratios):.2f} to {max(ratios):.2f} times as much as the cloned" in text
    assert f"Greedy falls below the clone in {NUMBERS[of['greedy']]} of them, and DQfD" in text
    assert f"has no bound, in {NUMBERS[of['DQfD']]}. " in text
    assert f"DQfD scores more than reroute(0.5,1.5) in {NUMBERS[ahead]}: " in text
    modes = [
        (population_page.ratio(result, population_page.CLONES_MODE), own)
        for result, own in zip(results, ratios, strict=True)
        if population_page.CLONES_MODE in population_page.rows_by_name(result)
    ]
    more, evaluated = sum(mode > own for mode, own in modes), len(modes)
    said = (
        f"score more than reroute(0.5,1.5) in {NUMBERS[more]} of the {NUMBERS[evaluated]} populations where they were"
    )
    assert said in text
    paths = runpy.run_path(str(ROOT / "docs/figures.py"))["shown_populations"]()
    shown = [json.loads(path.read_text()) for path in paths]
    assert [result["skill"] for result in shown] == ["mixed", "strong", "strong", "strong"]
    assert "(mixed ones in Montezuma's Revenge)" in text


def test_what_processes_gain_for_a_slow_simulator_is_the_measured_one():
    found = load("env-processes.json")
    here, there = (
        round(np.mean([row["steps_per_second"] for row in found["rows"] if row["processes"] == processes]), -1)
        for processes in (0, 1)
    )
    for page, words in (
        ("docs/howto/train.md", f"at {there:.0f} steps/s in place of {here:.0f}"),
        (
            "docs/decisions/008-the-local-engine.md",
            f"{there:.0f} steps/s with one process per group, {here:.0f} without",
        ),
    ):
        assert words in " ".join((ROOT / page).read_text().split()), page


def test_the_page_says_where_the_clones_most_probable_actions_are_best():
    def population(game, mode, dqfd, rule):
        rows = {"bcq(1)": mode, "DQfD": dqfd, "reroute(0,2)": rule}
        rows = [{"name": name, "mean": mean} for name, mean in rows.items() if mean is not None]
        return {"env": f"ALE/{game}-v5", "skill": "mixed", "rows": rows}

    found = [population("Pong", 3, 2, 1), population("Qbert", 1, 2, 3), population("Alien", 2, 1, 3)]
    found += [population("Boxing", 5, 2, 1), population("Freeway", None, 1, 2)]
    assert population_page.most_probable_text(found) == (
        "The clone's most probable actions score more than DQfD and every rule in Pong (mixed), Boxing (mixed); "
        "more than DQfD alone in Alien (mixed); less than DQfD in Qbert (mixed)."
    )
    assert population_page.most_probable_text(found[-1:]) == ""


def test_the_certified_gains_of_the_concept_page_are_the_measured_ones():
    found = load("certificate.json")
    lower = {int(size): np.array(bounds) for size, bounds in found["lower"].items()}
    assert tuple(lower) == certificate.SIZES
    assert {len(bounds) for bounds in lower.values()} == {certificate.LOGS}
    text = " ".join((ROOT / "docs/concepts/certificates.md").read_text().split())
    assert f"{np.mean([bounds > found['true_gain'] for bounds in lower.values()]):.1%} of the bounds are above" in text
    assert np.mean(lower[250] > 0) < 0.3
    assert np.mean(lower[2500] > 0) > 0.9


def test_the_shares_of_wrong_decisions_where_assumptions_fail_are_the_measured_ones():
    found = load("assumptions.json")
    text = " ".join((ROOT / "docs/concepts/certificates.md").read_text().split())
    _, unlike, few, many = (row["deployed"] / found["logs"] for row in found["customers"][:4])
    assert unlike < 0.07  # 5%, but for chance
    assert f"{few:.0%} of the logs of 20 customers with 100 rows each said *deploy* ({many:.0%} with 200" in text
    _, ordered, shuffled = (f"{row['decided'] / found['logs']:.0%}" for row in found["groups"])
    assert f"in {ordered} of the comparisons of equal policies ({shuffled} with the rows in random order)" in text
    shares = {(row["known"], row["stated_range"]): row["deployed"] / found["logs"] for row in found["rare_losses"]}
    assert f"on {shares['taken', False]:.0%} of the logs of 1,000 decisions without" in text
    assert f"({shares['all', False]:.0%} with the probabilities of all actions)" in text
    assert f"and on {shares['taken', True]:.0%} and {shares['all', True]:.0%} with it" in text
    commits = [machine["commit"][:7] for machine in found["machines"].values()]
    assert f"{found['command']}`, commit {commits[0]}" in text
    assert f"the comparisons of groups: `--only groups`, commit {commits[1]}" in text


def test_the_bounds_with_players_as_the_unit_are_the_measured_ones():
    found = load("coverage-players.json")
    rows = {(row["world"], row["players"], row["unit"], row["bound"]): row for row in found["rows"]}
    note, page = (
        " ".join((ROOT / "docs" / name).read_text().split())
        for name in ("decisions/031-players-as-the-unit.md", "concepts/certificates.md")
    )
    bounds = ("episode", "betting"), ("player", "betting"), ("player", "student")
    for world in coverage.POPULATIONS:
        for players in coverage.PLAYER_NUMBERS:
            shown = [rows[world, players, *bound] for bound in bounds]
            keys = ("missed", "deploy") if np.dot(*coverage.POPULATIONS[world]) > 1e-9 else ("missed",)
            cells = " | ".join(" / ".join(f"{row[key]:.1%}" for key in keys) for row in shown)
            assert f"| {world} | {players} | {cells} |" in note
    by_episode, proved, student = (rows["each gains or loses 0.1", 20, *bound]["missed"] for bound in bounds)
    assert f"{by_episode:.0%} of the proved bounds by episode were above the true mean gain" in page
    assert f"and {proved:.0%} of those by player; Student's t by player {student:.0%}" in page
    _, proved, student = (rows["half of them gain 0.1", 50, *bound]["deploy"] for bound in bounds)
    assert f"it finds this in {proved:.0%} of the logs, and in all of them with 200" in page
    assert f"in {student:.0%} with 50" in page
    assert rows["half of them gain 0.1", 200, "player", "betting"]["deploy"] == 1
    assert all(row["holds"] for row in found["rows"] if row["must_hold"])
    growing, by_episode = (
        " and ".join(f"{row[key]:,}" for row in found["groups"]) for key in ("player_growing", "episode")
    )
    assert f"{growing} of 1,000 comparisons of equal policies named a better one" in note
    assert f"by episode, players one after the other, {by_episode} did" in note
    most = max(row["missed"] for row in found["rows"] if row["bound"] == "bca" and row["unit"] == "player")
    assert f"BCa misses up to {most:.1%} with 10 players" in note
    assert f"`{found['command']}`, commit {found['machine']['commit'][:7]}" in note


def test_the_episodes_that_monitor_needs_are_the_measured_ones():
    found = load("monitor.json")
    rows = {(row["bound"], row["against"], row["drop"]): row for row in found["detection"]}
    guide, note = (
        (ROOT / "docs" / name).read_text() for name in ("howto/certify.md", "decisions/028-confidence-sequences.md")
    )
    for drop in monitor.DROPS:
        ours, before = (
            [rows[name, s, drop] for s in monitor.SETTINGS] for name in ("upper_bound", "plug_in_upper_bound")
        )
        cells = " | ".join(f"{row['median']:,} ({row['90%']:,})" for row in ours)
        assert f"| {monitor.RATE - drop:.0%} | {cells} |" in guide
        cells = " | ".join(f"{a['median']:,} ({b['median']:,})" for a, b in zip(ours, before, strict=True))
        assert f"| {monitor.RATE - drop:.0%} | {cells} |" in note
    equal = found["false_alarms"]
    alarms, count = (sum(row[key] for row in equal) for key in ("alarms", "comparisons"))
    assert f"Of {count} comparisons of equal policies over 3,000 live episodes {alarms} gave an alarm" in " ".join(
        guide.split()
    )
    for text in (guide, note):
        assert f"`{found['command']}`, commit {found['machine']['commit'][:7]}" in text


def test_the_widths_of_confidence_sequences_are_the_measured_ones():
    found = load("monitor.json")
    width = {(row["shape"], row["episodes"], row["method"]): row["width"] for row in found["widths"]}
    note = (ROOT / "docs/decisions/028-confidence-sequences.md").read_text()
    for shape in monitor.SHAPES:
        cells = [f"{width[shape, n, 'ours'] / width[shape, n, 'plug_in']:.2f}" for n in monitor.REPETITIONS]
        assert f"| {shape} | {' | '.join(cells)} |" in note
        cells = [f"{row['width'] / row['plug_in']:.2f}" for row in found["groups"] if row["shape"] == shape]
        assert f"| {shape} | {' | '.join(cells)} |" in note
    shares = [row[side] / row["samples"] for row in found["coverage"] for side in ("lower_misses", "upper_misses")]
    assert max(shares) < monitor.ALPHA
    assert f"at most {max(shares):.1%} excluded the true mean at some time" in note


def test_rare_losses_are_those_that_were_measured():
    assert assumptions.rare_losses("all", stated=True, logs=3) == 0
    assert assumptions.rare_losses("all", stated=False, logs=3) > 0


@pytest.mark.slow
def test_the_certified_gains_are_measured_again():
    """Training differs a little between CPUs, so bounds are compared roughly."""
    found = load("certificate.json")
    policy, gain = certificate.improved_policy()
    assert gain == approx(found["true_gain"], abs=0.005)
    again = [certificate.lower_bound(policy, 2500, log) for log in range(3)]
    assert again == approx(found["lower"]["2500"][:3], abs=0.01)


def test_a_policy_agrees_with_the_paper_where_both_say_that_it_is_below_or_both_that_it_is_not():
    names = ("reroute(0.5,1.5)", "tv(0.25)", "DQfD", "reroute(0,2)", "greedy")
    verdicts = dict(zip(names, ("not below", "above", "below", "open", "below"), strict=True))
    rows = [{"name": "behavior", "mean": 100.0, "verdict": None}]
    rows += [{"name": name, "mean": 50.0, "verdict": verdict} for name, verdict in verdicts.items()]
    of_paper = {"behavior": 200, "reroute(0.5,1.5)": 195, "tv(0.25)": 180, "DQfD": 20, "reroute(0,2)": 300}
    (said,) = population_page.compare_with_paper(rows, of_paper)
    assert "As in the paper: reroute(0.5,1.5) (0.50, paper 0.97), DQfD (0.50, paper 0.10)." in said
    assert "Not as in the paper: tv(0.25) (0.50, paper 0.90)." in said
    assert "Open with this many episodes: reroute(0,2) (0.50, paper 1.50)." in said
    assert population_page.compare_with_paper(rows, {}) == []


def population(game, skill, ratios, fraction=1.0, seeds=3):
    """A result as `benchmarks.population` writes it, with what the tables read; the clone scores 100."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (seeds, 20))
    rows = [{"name": name, "scores": (100 * by + noise).tolist()} for name, by in {"behavior": 1.0, **ratios}.items()]
    rows = [row | {"mean": float(np.mean(row["scores"]))} for row in rows]
    names = ("log_likelihood_calibrated", "log_likelihood_of_frequencies", "temperature", "q_explained_variance")
    after = {1000: (-1.25, -1.75, 1.5, 0.5), 2000: (-1.75, -1.75, 15.0, 0.5)}  # beta overfits
    found = {n: dict(zip(names, values, strict=True)) | {"log_likelihood": -2.0} for n, values in after.items()}
    validated = [
        {"updates": updates, "seed": seed, "validation": found[updates]} for updates in after for seed in range(seeds)
    ]
    return {
        "env": f"ALE/{game}-v5", "skill": skill, "fraction": fraction, "rows": rows, "population": {"mean": 120.0},
        "validation": [found[2000]] * seeds, "validated": validated,
    }  # fmt: skip


def test_the_summary_of_populations_counts_where_each_policy_is_below():
    results = [
        population("Qbert", "weak", {"reroute(0.5,1.5)": 1.2, "greedy": 0.5}),
        population("Qbert", "strong", {"reroute(0.5,1.5)": 0.9, "greedy": 0.3}, 0.05),
        population("Qbert", "strong", {"reroute(0.5,1.5)": 1.1, "greedy": 1.5}),
    ]
    text = "\n".join(population_page.summary_part(results))
    weak, strong, paper = (line for line in text.splitlines() if line.startswith("| Qbert") and "%" not in line)
    assert "| Qbert, weak | 120.0 | 100" in weak
    assert ("1.20 (0.00)" in weak, "0.50 (1.00)" in weak) == (True, True)
    assert "1.10 (0.00)" in strong
    assert paper.startswith("| Qbert, *paper* | 3,401 | 8,562 | 1.42 |")
    assert "| reroute(0.5,1.5) | 0 of 2 | 2 | 0 | 1.10 (Qbert, strong) |" in text
    assert "| greedy | 1 of 2 | 1 | 0 | 0.50 (Qbert, weak) |" in text
    part, whole, *clones = (line for line in text.splitlines() if "%" in line and line.startswith("| Qbert"))
    assert (part.split(" | ")[1], whole.split(" | ")[1]) == ("5%", "100%")
    assert "0.90 (1.00)" in part
    likelihoods = "| -1.750 | -1.750 | 15.0 | 0.83 |"
    assert clones == [f"| Qbert, strong | {of} {likelihoods}" for of in ("5%", "100%")]
    said = " ".join(text.split())
    assert "With 5% of Qbert, strong, beta overfits: its calibrated log-likelihood" in said
    assert "was -1.250 after 1,000 updates and is -1.750 after 2,000 (-2.000 without calibration; action" in said


def test_numbers_are_shortened_to_three_digits():
    assert [short(x) for x in (12_656_624_554, 2_872_430, 999.4, 48.7)] == ["12.7 G", "2.87 M", "999", "48.7"]


# The table of Atari runs


def atari_result(cell, score, commit="c", **seconds):
    """A result as `benchmarks.atari` writes it, with what the page and the planning read."""
    times = {"environments": 0.0, "start": 3.0, "training": 40.0, "evaluation": 10.0} | seconds
    about = {"gpu": "GPU", "cores": 16, "commit": commit, "versions": {}}
    evaluation = {"mean": score, "episodes": 32, "truncated": 0}
    curve = [{"states": 100, "score": score, "q": 1.0}]
    settings = {"game": cell.game, "frames": cell.frames, "machine": about, "seconds": times, "steps_per_second": 1e4}
    return settings | {"evaluation": evaluation, "curve": curve}


SMALL = atari.Suite(("Assault", "Phoenix"), atari.BOTH, (0, 1, 2), 4 * atari.MILLION)


def all_done(scores):
    """Results of the small suite: scores by algorithm, game and seed."""
    return {cell.name: atari_result(cell, scores[cell.algo][cell.game][cell.seed]) for cell in SMALL.cells()}


def test_a_cell_takes_as_long_as_the_slowest_alike_and_environments_count_once():
    cell = SMALL.cells()[0]
    about, other = {"gpu": "GPU", "cores": 16}, {"gpu": None, "cores": 2}
    done = {
        "first": atari_result(cell, 1.0, environments=20.0),
        "later": atari_result(cell, 1.0, training=60.0),
    }
    assert atari.expected_seconds(cell, done, about) == approx(1.1 * (23 + 70))
    assert atari.expected_seconds(cell, done, about, opened=True) == approx(1.1 * (3 + 70))
    longer = dataclasses.replace(cell, frames=2 * cell.frames)
    assert atari.expected_seconds(longer, done, about, opened=True) == approx(1.1 * (3 + 140))
    as_long = {"as long": atari_result(longer, 1.0, training=80.0)}  # the evaluation of a longer run takes no longer
    assert atari.expected_seconds(longer, done | as_long, about) == approx(1.1 * (3 + 90))
    shared = {"other": {**next(iter(done.values())), "shared": True, "seconds": {}}}
    assert atari.expected_seconds(cell, done | shared, about) == atari.expected_seconds(cell, done, about)
    assert atari.expected_seconds(cell, done, other) == atari.expected_seconds(cell, {}, about)  # nothing is known


def test_cells_that_do_not_fit_are_passed_over_and_a_fast_machine_runs_more(tmp_path, monkeypatch):
    """100 s of training for each of the first game's cells as measured so far, 30 s for the second's, and 10 s of
    evaluation: a machine that trains in half the time runs more of them, and an evaluation takes as long as before."""
    clock, ran, about = [0.0], [], {"gpu": "GPU", "cores": 16}
    training = {"Assault": 100.0, "Phoenix": 30.0}

    def run(cell, *_):
        result = atari_result(cell, 1.0, start=0.0, training=pace * training[cell.game])
        clock[0] += sum(result["seconds"].values())
        ran.append(cell.game)
        return result

    monkeypatch.setattr(atari, "run_cell", run)
    monkeypatch.setattr(atari, "report", lambda *_: None)
    monkeypatch.setattr(atari, "STARTED", 0.0)
    monkeypatch.setattr(atari.time, "monotonic", lambda: clock[0])
    cells = SMALL.cells()
    for pace, games in ((1, ["Assault", "Assault", "Phoenix"]), (0.5, ["Assault"] * 4 + ["Phoenix"] * 2)):
        clock[0] = 0.0
        ran.clear()
        out = tmp_path / str(pace)
        for cell in cells[4:6] + cells[10:]:  # of the third seed
            atari.save_cell(out, cell, atari_result(cell, 1.0, start=0.0, training=training[cell.game]))
        args = atari.argparse.Namespace(
            out=out, minutes=300 / 60, episodes=1, policy_net=False, other_c_mins=False, num_envs=None, updates=None,
            slowdown=1, snapshots=0, policies=None,
        )  # fmt: skip
        atari.run_cells([cell for cell in cells if cell.seed < 2], args, torch.device("cpu"), about)
        assert ran == games


def test_a_short_evaluation_is_no_sign_of_a_fast_machine():
    """As with Breakout: its first policies were evaluated for longer than they were trained."""
    cell = SMALL.cells()[0]
    about = {"gpu": "GPU", "cores": 16}
    done = {"before": atari_result(cell, 1.0, training=100.0, evaluation=150.0)}
    now = atari_result(cell, 1.0, training=90.0, evaluation=10.0)
    assert atari.relative_training_time(now, done, about) == approx(0.9)
    assert atari.relative_training_time(now, {}, about) == 1


def test_cells_run_game_by_game_those_with_the_fewest_results_first():
    done = {cell.name: atari_result(cell, 1.0) for cell in SMALL.cells() if cell.game == "Assault" and not cell.seed}
    missing = [cell for cell in SMALL.cells() if cell.name not in done]
    games = [cell.game for cell in atari.in_order(missing, done)]
    assert games == ["Phoenix"] * 6 + ["Assault"] * 4


def test_a_cell_is_written_as_a_whole_and_found_again(tmp_path):
    cell = SMALL.cells()[0]
    atari.save_cell(tmp_path / "cells", cell, atari_result(cell, 7.0))
    assert list(atari.load_cells(tmp_path / "cells")) == [cell.name]
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [f"{cell.name}.json"]


def test_settings_that_have_ended_are_shown_and_get_no_further_runs():
    suite = dataclasses.replace(SMALL, ended=(("rbi", "stored"),))
    stored = atari.Cell("Phoenix", "rbi", "stored", 0, suite.frames)
    done = {cell.name: atari_result(cell, 1.0) for cell in (*SMALL.cells(), stored)}
    assert suite.cells() == SMALL.cells()
    head, _, *rows = atari_page.score_table(suite, done).splitlines()
    assert head == "| setting | Assault | Phoenix |"  # more settings than games
    assert "| RBI, stored policies | - | 1.0 (1 seed) |" in rows
    assert atari_page.has_intervals(suite, done)  # RBI and Ape-X have all their seeds


def test_until_the_preset_has_results_in_as_many_games_the_one_before_is_compared():
    suite = dataclasses.replace(SMALL, ended=(("rbi", "latest"),))
    before = [atari.Cell(game, "rbi", "latest", 0, suite.frames) for game in suite.games]
    apex = [cell for cell in suite.cells() if cell.algo == "apex"]
    done = {cell.name: atari_result(cell, 100.0 * (cell.algo == "rbi")) for cell in (*apex, *before)}
    assert atari_page.lead_text(suite, done).startswith("RBI, latest networks leads Ape-X in 2 games")
    for cell in suite.cells():
        if cell.algo == "rbi" and cell.game == "Assault":
            done[cell.name] = atari_result(cell, 200.0)
    assert atari_page.rbi_entry(suite, done) == ("rbi", "latest")
    for cell in suite.cells():
        if cell.algo == "rbi":
            done[cell.name] = atari_result(cell, 200.0)
    assert atari_page.lead_text(suite, done).startswith("RBI leads Ape-X in 2 games")


def test_another_c_min_changes_the_rule_and_keeps_the_greedy_mix():
    networks = make_networks(ObservationSpec((3,), 1, 4), NetworkConfig(16), 0)
    policy, obs = Policy(networks, parse_rule("reroute(0.1,10)"), c_greedy=0.1), np.eye(3, dtype=np.float32)
    other = atari.with_c_min(policy, 0.01)
    assert (str(other.rule), other.c_greedy) == ("reroute(0.01,10)", 0.1)
    assert (other.predict_proba(obs).min(1) < policy.predict_proba(obs).min(1)).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_is_a_valid_change_of_the_preset(variant):
    assert TrainConfig.preset("ALE/Breakout-v5", "rbi", "fast", **VARIANTS[variant]).algo == "rbi"


def test_a_cell_has_as_many_updates_as_its_frames_allow():
    config = atari.Cell("Breakout", "rbi", "stored", 0, 10 * atari.MILLION).config()
    assert config.actor.improve_in == "actor"
    assert abs(config.schedule.updates * config.schedule.states_per_update * 4 - 10 * atari.MILLION) < 1000


def test_most_probable_actions_are_a_policy_of_their_own():
    networks = make_networks(ObservationSpec((3,), 1, 4), NetworkConfig(16), 0)
    policy, obs = Policy(networks, parse_rule("reroute(0.1,10)"), c_greedy=0.1), np.eye(3, dtype=np.float32)
    assert np.array_equal(atari.most_probable(policy).predict_proba(obs), np.eye(4)[policy.mode(obs)])


def test_scores_of_seeds_become_means_intervals_and_probabilities():
    random, human = PUBLISHED["Assault"].random, PUBLISHED["Assault"].human
    scores = {
        "rbi": {"Assault": [human, human, human], "Phoenix": [100.0, 100.0, 400.0]},
        "apex": {"Assault": [random, random, random], "Phoenix": [100.0, 200.0, 300.0]},
    }
    done = all_done(scores)
    table = atari_page.score_table(SMALL, done).splitlines()
    assert "| Assault | 742 (742 to 742) | 222 (222 to 222) |" in table[2]
    assert "| Phoenix | 200 (100 to 400) | 200 (" in table[3]
    ours = atari_page.normalised_runs(SMALL, ("rbi", "base"), ("Assault",), done)
    assert np.concatenate(ours) == approx(np.ones(3))
    improved = (1 + (2 * (0.5 + 0 + 0) + 3) / 9) / 2
    assert f"| {improved:.2f} (" in atari_page.aggregate_table(SMALL, done)
    assert atari_page.has_intervals(SMALL, done)
    leads = "RBI leads Ape-X in 1 game (Assault) and trails it in no game."
    assert (
        atari_page.lead_text(SMALL, done)
        == f"{leads} The 95% interval of the difference excludes 0 in 1 game (Assault)."
    )
    del done[SMALL.cells()[0].name]
    assert not atari_page.has_intervals(SMALL, done)
    assert "742 (2 seeds)" in atari_page.score_table(SMALL, done)
    assert atari_page.lead_text(SMALL, done) == f"{leads} {atari_page.FEW_SEEDS}"


def test_the_reasons_of_a_lead_are_rank_correlations_over_games():
    """The further the network is behind the rule the smaller the lead, and its entropy is in no order."""
    suite, done = dataclasses.replace(SMALL, games=atari.PAPER_GAMES[:8], seeds=(0,)), {}
    for cell in suite.cells():
        number, published = suite.games.index(cell.game), PUBLISHED[cell.game]
        ahead = number / 10 if cell.algo == "rbi" else 0
        done[cell.name] = atari_result(cell, published.random + ahead * (published.human - published.random))
        entropy = (4, 1, 6, 3, 0, 5, 2, 7)[number]
        done[cell.name]["curve"][0] |= {
            "pi_net_entropy": entropy,
            "pi_entropy": number,
            "moved_mass": -number,
            "q": 1 + number,
        }
    done[suite.cells()[0].name] |= {"deterministic": {"mean": 1e6}}
    text, _ = atari_page.reasons_text(suite, done)
    assert "over 8 games, with the entropy of the policy network (0.24), that of the actors' policy (1.00)," in text
    assert "the rule moves (-1.00)" in text
    assert text.endswith("in the same runs, scores are higher for the most probable actions in 1 of 1.")
    assert atari_page.reasons_text(dataclasses.replace(suite, games=suite.games[:7]), done) == []


def test_the_text_on_pong_compares_both_presets_and_names_the_mass_that_c_min_keeps():
    suite, done = dataclasses.replace(SMALL, games=("Pong",), seeds=(0,), ended=(("rbi", "latest"),)), {}
    for variant, score, entropy, moved in (("base", 18.0, 0.85, 0.4), ("latest", 17.0, 1.5, 0.74)):
        cell = atari.Cell("Pong", "rbi", variant, 0, suite.frames)
        done[cell.name] = atari_result(cell, score) | {
            "settings": {"actor": {"rule": "reroute(0.2,10)", "c_greedy": 0.1}},
            "deterministic": {"mean": 20.0},
            "c_min_0": {"mean": 21.0},
        }
        done[cell.name]["curve"][0] |= {"pi_net_entropy": entropy, "moved_mass": moved}
    uniform, q = np.full(6, 1 / 6), np.arange(6.0)
    pi = 0.9 * parse_rule("reroute(0.2,10)")(uniform, q) + 0.1 * np.eye(6)[5]
    text = atari_page.pong_text(suite, done)
    assert f"c_min = 0.2 leaves {pi[:5].sum():.1%} of the probability to the 5 actions that look worse" in text
    assert "RBI scored 18.0: the aim is reached" in text
    assert "scored 17.0, and the same policies 20.0 with their most probable actions and 21.0 with c_min = 0" in text
    assert "entropy was 1.50 at the end, that of uniform choice 1.79" in text
    assert "it is 0.85, and the rule moves 40% of the probability, not 74%" in text
    done[suite.cells()[0].name]["evaluation"]["mean"] = 17.0
    assert "RBI scored 17.0: the aim is missed" in atari_page.pong_text(suite, done)
    assert len(action_names("ALE/Pong-v5", atari_page.PONG_ACTIONS)) == atari_page.PONG_ACTIONS


@pytest.mark.slow
def test_the_committed_plots_are_drawn_from_the_raw_results(tmp_path, monkeypatch):
    """Pixels of the same size that hardly differ: text and lines may be smoothed differently."""
    version = matplotlib.__version__
    monkeypatch.setattr(results_page, "FIGURES", tmp_path)
    results_page.draw_figures()
    drawn = sorted(path.name for path in tmp_path.glob("*.png"))
    assert len(drawn) > 5
    for name in drawn:
        with (
            Image.open(results_page.ROOT / "docs" / "figures" / name) as committed,
            Image.open(tmp_path / name) as fresh,
        ):
            if f"version{version}," not in committed.info.get("Software", ""):
                pytest.skip(f"{name}: drawn by another version than Matplotlib {version}")
            assert committed.size == fresh.size, f"{name}: run `make results`"
            first, second = (np.asarray(image.convert("L"), float) for image in (committed, fresh))
        assert np.abs(first - second).mean() < 0.1, f"{name}: run `make results`"


def test_a_long_run_shows_the_time_of_all_its_parts():
    """20 million frames in 10 minutes are 200 million in 100."""
    result = {
        "game": "Breakout",
        "algo": "rbi",
        "frames": 20_000_000,
        "seconds": 600.0,
        "parts": 2,
        "result": {"evaluation": {"mean": 412.4}},
        "command": "python -m benchmarks.long_run Breakout",
        "machine": {"gpu": "GPU", "cores": 16, "commit": "c", "versions": {"rbi": "1"}},
    }
    *_, row, _, _, _, source = atari_page.long_run_rows([result])
    assert row == "| Breakout | RBI | 20.0 | 2 | 10.0 | 8,333 | 1.67 | 412 |"
    assert source == "`python -m benchmarks.long_run Breakout`, commit c, one GPU, 16 cores; rbi 1."


def test_a_populations_folder_is_reused_only_for_the_same_command(tmp_path):
    words, out = ("data", "record", "random", "--env", "CartPole-v1", "--episodes"), tmp_path / "data-12.5percent"
    took = record_population(*words, 1, out=out)
    assert took > 0
    assert record_population(*words, 1, out=out) == took
    with pytest.raises(SystemExit, match=r"was made by rbi data .*--episodes 1, not rbi data .*--episodes 2"):
        record_population(*words, 2, out=out)


def test_a_population_whose_clone_scores_nothing_or_that_lacks_policies_is_drawn(tmp_path):
    found = next(result for result in population_page.load_results() if "DQfD" in population_page.rows_by_name(result))
    result = json.loads(json.dumps(found))
    result["rows"] = [row for row in result["rows"] if row["name"] != "tv(0.25)"]
    for point in result["curve"]:
        del point["means"]["tv(0.25)"]
    for row in result["rows"]:
        row["mean"] *= row["name"] != "behavior"
    assert population_page.times(population_page.ratio(result, "DQfD")) == "-"
    assert "| - (" in "\n".join(population_page.summary_part([result]))
    population_page.draw([result], tmp_path)
    assert (tmp_path / "populations.png").exists()
