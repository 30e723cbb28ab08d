"""The command line as a user meets it: help, version, a run, and one line for each mistake."""

import json
import shutil
import subprocess
import sys
import time

import matplotlib.image
import numpy as np
import pytest

from rbi import __version__, cli, runs


def rbi(*arguments):
    return subprocess.run([sys.executable, "-m", "rbi", *arguments], capture_output=True, text=True, timeout=120)


def test_help_lists_the_commands_and_version_prints_it():
    shown = rbi("--help")
    assert shown.returncode == 0
    assert "rules" in shown.stdout
    assert "without making things worse" in shown.stdout
    assert rbi("--version").stdout == f"rbi {__version__}\n"


def test_rules_writes_a_run_folder_and_shows_its_table(tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(["rules", "--out", str(out), "--beta", "0.5", "0.5", "--advantage", "-1", "1", "--seed", "3"]) == 0
    run = runs.read(out)
    assert run.config["command"] == "rules"
    assert run.config["seed"] == 3
    assert run.config["settings"]["advantage"] == [-1, 1]
    steps = {step["rule"]: step for step in run.result["steps"]}
    assert steps["reroute(0.5,1.5)"]["pi"] == pytest.approx([0.25, 0.75])
    assert steps["reroute(0.5,1.5)"]["promise"] == pytest.approx(0.5)
    assert steps["reroute(0.5,1.5)"]["risk"] == pytest.approx((2 * 0.125 / 100) ** 0.5)
    assert [m["rule"] for m in run.metrics] == list(steps)
    shown = capsys.readouterr().out
    assert "0.25 0.75" in shown
    assert str(out) in shown


def test_rules_draws_a_picture_that_can_be_opened(tmp_path):
    assert cli.main(["rules", "--out", str(tmp_path / "run")]) == 0
    png, pdf = tmp_path / "run" / "figures" / "rules.png", tmp_path / "run" / "figures" / "rules.pdf"
    picture = matplotlib.image.imread(png)
    assert picture.shape[0] > 500
    assert picture[..., :3].std() > 0.05  # something is drawn
    assert pdf.read_bytes().startswith(b"%PDF")
    assert runs.read(tmp_path / "run").figures == [png]


def test_the_same_command_gives_the_same_result(tmp_path):
    for name in ("a", "b"):
        cli.main(["rules", "--out", str(tmp_path / name)])
    assert (tmp_path / "a" / "result.json").read_bytes() == (tmp_path / "b" / "result.json").read_bytes()
    assert (tmp_path / "a" / "figures" / "rules.png").read_bytes() == (tmp_path / "b/figures/rules.png").read_bytes()


def test_without_out_a_new_folder_is_made_under_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["rules", "--rules", "greedy"]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.endswith("-rules")
    assert json.loads((made / "config.json").read_text())["settings"]["rules"] == ["greedy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["rules", "--beta", "0.6", "0.5", "--advantage", "0", "1"],
            "rbi: the sum of beta = 1.1: must be 1 within 0.0001",
        ),
        (["rules", "--beta", "0.5", "0.5"], "rbi: advantage has 5 actions (shape (5,)), beta has 2 (shape (2,))"),
        (["rules", "--rules", "rerute(1,2)"], "rbi: rule 'rerute(1,2)' is not known: give one of reroute(c_min,c_max)"),
        (["rules", "--visits", "0"], "rbi: --visits = 0: must be at least 1 (see rbi --help)"),
        (["rules", "--visits", "many"], "rbi: Error parsing --visits: invalid literal for int()"),
        (["rules", "--return-std", "nan"], "rbi: --return-std = nan"),
        (["rules", "--visits", "1" + "0" * 400], "rbi: "),
        (["rules", "--rules", *["greedy"] * 9], "rbi: --rules: give 1 to 8 of them, not 9"),
        (["rules", "--bogus", "1"], "rbi: Unrecognized options: --bogus"),
        (["bandit", "regret", "--means", "1", "-1"], "rbi: --means 1 -1: the second arm must be the better one"),
        (["bandit", "regret", "--samples", "0"], "rbi: --samples 0: must be above 0"),
        (["bandit", "regret", "--seed", "-1"], "rbi: --seed = -1: must be at least 0"),
        (["bandit", "learn", "--workers", "-1"], "rbi: --workers = -1: must be at least 0"),
        (["bandit", "learn", "--stds", "1"], "rbi: --stds 1: means (-1.0, 1.0) and stds (1.0,): need one of each per arm"),
        (["bandit", "learn", "--learning-rates", "2"], "rbi: --learning-rates 2: must be 1/n or a number in (0, 1]"),
        (["bandit", "learn", "--floor", "0.6"], "rbi: --floor = 0.6: must be in [0, 1/2]"),
        (["bandit", "learn", "--steps", "0"], "rbi: --steps = 0: must be at least 1"),
        (["rulez"], "rbi: "),
        ([], "rbi: "),
    ],
)
def test_a_mistake_gives_one_line_status_2_and_no_folder(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bandit_regret_draws_figure_1_and_compares_it_with_a_simulation(tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(["bandit", "regret", "--out", str(out), "--points", "11", "--monte-carlo", "4000"]) == 0
    result = runs.read(out).finished()
    assert len(result["curves"]) == 6 * 2 * 3
    scores = np.array(result["simulated_minus_exact_in_standard_errors"])
    assert len(scores) > 100
    assert (abs(scores) < 2).mean() > 0.9
    assert abs(scores).max() < 5
    assert matplotlib.image.imread(out / "figures" / "regret.png").shape[1] > 1000
    assert "reroute(0.5,2)" in capsys.readouterr().out


def test_rules_may_be_spelled_freely_and_are_shown_in_full(tmp_path, capsys):
    rules = ["reroute(.5, 1.5)", "forward_kl( radius=.1)"]
    assert cli.main(["bandit", "regret", "--points", "5", "--rules", *rules, "--out", str(tmp_path / "a")]) == 0
    assert cli.main(["rules", "--rules", *rules, "--out", str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "reroute(0.5,1.5)" in shown
    assert "forward_kl(radius=0.1)" in shown
    assert "…" not in shown


def test_bandit_learn_gives_the_same_curves_whatever_the_number_of_workers(tmp_path, capsys):
    for workers in ("1", "2"):
        arguments = ["bandit", "learn", "--repetitions", "20", "--steps", "50", "--workers", workers, "--seed", "5"]
        assert cli.main([*arguments, "--out", str(tmp_path / workers), "--rules", "greedy", "tv(0.25)"]) == 0
    assert (tmp_path / "1" / "result.json").read_bytes() == (tmp_path / "2" / "result.json").read_bytes()
    assert (tmp_path / "1" / "figures" / "learning.pdf").exists()
    assert "t=50" in capsys.readouterr().out


def test_bandit_learn_takes_more_arms(tmp_path):
    arguments = ["bandit", "learn", "--means", "0", "1", "2", "--stds", "1,1,1", "--learning-rates", "0.1", "--rules", "greedy"]
    assert cli.main([*arguments, "--repetitions", "10", "--steps", "20", "--out", str(tmp_path / "run")]) == 0
    assert runs.read(tmp_path / "run").finished()["curves"][0]["stds"] == "1,1,1"


def test_an_occupied_folder_is_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert cli.main(["rules", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_brackets_in_a_path_are_no_markup(tmp_path, capsys):
    assert cli.main(["rules", "--rules", "greedy", "--out", str(tmp_path / "[/x]")]) == 0
    assert "[/x]" in capsys.readouterr().out


def test_advantages_of_minus_infinity_are_shown_without_a_warning(tmp_path, capsys):
    assert cli.main(["rules", "--advantage", "-inf", "0", "1", "-1", "2", "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().err == ""
    assert "nan" not in (tmp_path / "run" / "result.json").read_text()


def test_an_unwritable_place_is_named(capsys):
    assert cli.main(["rules", "--out", "/proc/nowhere/run"]) == 2
    assert "/proc/nowhere" in capsys.readouterr().err


SMALL = ("spi", "--worlds", "chicken(0.1)", "grid(0.7)", "--sizes", "20", "60", "--repetitions", "60")
FEW = ("--algorithms", "basic_rl", "pi_b_spibb(7)", "--resamples", "50", "--workers", "1")


def test_spi_writes_scores_tables_and_a_figure_a_world(tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main([*SMALL, *FEW, "--out", str(out)]) == 0
    run = runs.read(out)
    river, grid = run.finished()["worlds"]
    assert river["algorithms"] == ["basic_rl", "pi_b_spibb(7)", "count_aware(0.25)", "count_aware_draining(0.25)"]
    assert river["baseline"] == pytest.approx(29.750, abs=5e-4)
    assert np.shape(grid["summary"]["mean"]) == (2, 4)
    assert np.shape(grid["summary"]["cvar_lead"]) == (2, 3, 2, 4)
    assert {p.name for p in run.figures} == {"chicken-0.1.png", "grid-0.7.png"}
    shown = capsys.readouterr().out
    assert "Wet Chicken, epsilon = 0.1, 60 repetitions" in shown
    assert f"{river['summary']['mean'][0][0]:.2f}/{river['summary']['cvar'][0][0]:.2f}" in shown


def test_spi_stopped_at_any_block_resumes_to_the_same_result(tmp_path, capsys):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert cli.main([*SMALL, *FEW, "--out", str(whole)]) == 0
    shutil.copytree(whole, broken)
    (broken / "result.json").unlink()
    lines = (broken / "metrics.jsonl").read_bytes().split(b"\n")
    assert len(lines) > 4
    (broken / "metrics.jsonl").write_bytes(b"\n".join(lines[:2]) + b"\n" + lines[2][:100])  # killed while writing
    assert cli.main([*SMALL, *FEW, "--out", str(broken), "--resume"]) == 0
    assert (broken / "result.json").read_bytes() == (whole / "result.json").read_bytes()
    assert "2 of 5 blocks were finished before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--worlds", "maze(1)"), "unknown world maze"),
        (("--algorithms", "spibb(3)"), "unknown algorithm spibb"),
        (("--repetitions", "1"), "--repetitions = 1: must be at least 2"),
        (("--sizes", "0"), "sizes (0,): must be at least 1"),
        (("--resume",), "name the stopped study with --out"),
        (("--worlds", "grid(0.1)"), "eta must be in [0.5, 0.999]"),
        (("--sizes", "100000000000000"), "at most 1,000,000"),
    ],
)
def test_spi_refuses_in_one_line(tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["spi", *arguments]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_spi_resumes_only_what_it_began(tmp_path, capsys):
    out = str(tmp_path / "run")
    assert cli.main([*SMALL, *FEW, "--out", out]) == 0
    assert cli.main([*SMALL, *FEW, "--out", out, "--resume", "--seed", "4"]) == 2
    assert "was started with seed = 0, not 4" in capsys.readouterr().err
    (tmp_path / "run" / "metrics.jsonl").write_text('{"a": 1}\n')
    assert cli.main([*SMALL, *FEW, "--out", out, "--resume"]) == 2
    assert "metrics.jsonl, line 1: is no block of scores" in capsys.readouterr().err
    cli.main(["rules", "--out", str(tmp_path / "rules")])
    assert cli.main([*SMALL, *FEW, "--out", str(tmp_path / "rules"), "--resume"]) == 2
    assert "is a run of 'rules', not of 'spi'" in capsys.readouterr().err
    assert cli.main([*SMALL, *FEW, "--out", str(tmp_path / "none"), "--resume"]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_workers_leave_with_their_parent_and_a_stopped_study_resumes(tmp_path):
    """SIGKILL gives no time to tidy up: the workers themselves must notice."""
    out = tmp_path / "run"
    arguments = ["spi", "--worlds", "chicken(0.1)", "--sizes", "2000", "--repetitions", "400", "--workers", "2"]
    process = subprocess.Popen([sys.executable, "-m", "rbi", *arguments, "--out", str(out)], stdout=subprocess.PIPE)
    while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").stat().st_size:
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.communicate(timeout=60)  # ends only once no worker holds the pipe any more
    assert cli.main([*arguments, "--out", str(out), "--resume"]) == 0
    assert len(runs.read(out).metrics) == 8


def test_sigterm_stops_a_run_like_an_interrupt(tmp_path):
    arguments = ["spi", "--worlds", "chicken(0.1)", "--sizes", "2000", "--repetitions", "2000", "--workers", "1"]
    command = [sys.executable, "-m", "rbi", *arguments, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    assert process.communicate(timeout=60)[1] == "rbi: interrupted\n"
    assert process.returncode == cli.INTERRUPTED
