"""The command line: help, version, presets, run folders, and one line for each mistake."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import matplotlib.image
import numpy as np
import pytest
import tyro

from rbi import __version__, cli, runs
from rbi.cli import command
from rbi.cli.command import Command
from rbi.config import Ge
from rbi.lab.spi import study

ROOT = Path(__file__).parent.parent


def test_version_is_printed(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"rbi {__version__}\n"


def test_help_lists_every_command_without_importing_pytorch():
    code = "import sys; from rbi import cli\ntry: cli.main(['--help'])\nfinally: print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.endswith("False\n")
    for name in cli.COMMANDS:
        assert re.search(rf"\b{name.split()[0]}\b  ", shown), name


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_and_valid_defaults(name, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*name.split(), "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: rbi {name} " in shown
    assert "--out" in shown
    assert "--seed" in shown


@pytest.mark.parametrize("group", cli.GROUPS)
def test_groups_list_their_commands(group, capsys):
    with pytest.raises(SystemExit):
        cli.main([group, "--help"])
    shown = capsys.readouterr().out
    assert all(name.split()[1] in shown for name in cli.COMMANDS if name.startswith(f"{group} "))


@dataclasses.dataclass(frozen=True)
class Preset(Command):
    """A command whose defaults depend on a preset."""

    size: Annotated[int, Ge(1)] = 1
    preset: Literal["small", "large"] = "small"
    data: Annotated[Path | None, tyro.conf.Positional] = None

    def __post_init__(self):
        super().__post_init__()
        if self.size % 10 and self.preset == "large":
            raise ValueError(f"--size = {self.size}: must be a multiple of 10")

    @classmethod
    def defaults(cls, given):
        return cls(size=100, preset="large") if given.preset == "large" or given.data else None

    def run(self, argv):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("arguments", "size"),
    [
        ([], 1),
        (["--preset", "large"], 100),
        (["--preset=large", "--size", "30"], 30),
        (["--seed", "3", "logs"], 100),
        (["--size", "7"], 7),
    ],
    ids=str,
)
def test_presets_are_defaults_that_options_override(arguments, size):
    """The first reading is not checked: size 1 with preset large would be refused."""
    assert command.parse(Preset, arguments, "rbi preset").size == size


def test_help_shows_the_presets_values_and_mistakes_are_explained(capsys):
    with pytest.raises(SystemExit):
        command.parse(Preset, ["--preset", "large", "--help"], "rbi preset")
    assert "default: 100" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--preset huge: must be one of small, large"):
        command.parse(Preset, ["--preset", "huge"], "rbi preset")


@pytest.mark.parametrize("words", [["--out=~/run"], ["--out", "~/run"]])
def test_a_tilde_that_the_shell_left_is_the_home_directory(words, tmp_path, monkeypatch):
    """Shells leave it after an equals sign, and subprocess.run everywhere."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert cli.main(["rules", *words]) == 0
    assert runs.read(tmp_path / "home" / "run").result
    assert not (tmp_path / "~").exists()


@pytest.mark.usefixtures("undrawn")
def test_rules_writes_a_run_folder_and_shows_its_table(tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(["rules", "--out", str(out), "--beta", "0.5", "0.5", "--advantage", "-1", "1", "--seed", "3"]) == 0
    run = runs.read(out)
    assert run.config["command"] == "rules"
    assert run.config["seed"] == 3
    assert run.config["settings"]["advantage"] == [-1, 1]
    steps = {step["rule"]: step for step in run.result["steps"]}
    assert steps["reroute(0.5,1.5)"]["pi"] == pytest.approx([0.25, 0.75])
    assert steps["reroute(0.5,1.5)"]["improvement"] == pytest.approx(0.5)
    assert steps["reroute(0.5,1.5)"]["penalty_std"] == pytest.approx((2 * 0.125 / 100) ** 0.5)
    assert [m["rule"] for m in run.metrics] == list(steps)
    shown = capsys.readouterr().out
    assert "0.25 0.75" in shown
    assert str(out) in shown


def test_rules_shows_improvements_of_any_size(tmp_path, capsys):
    for scale, improvement in (("0.001", "0.0005"), ("1e300", "5e+299")):
        options = ["--beta", "0.5", "0.5", "--advantage", f"-{scale}", scale, "--rules", "reroute(0.5,1.5)"]
        cli.main(["rules", "--out", str(tmp_path / scale), *options])
        assert re.search(rf"0\.25 +{re.escape(improvement)} +0\.05", capsys.readouterr().out)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of `rbi rules` without options."""
    out = tmp_path_factory.mktemp("rules") / "run"
    assert cli.main(["rules", "--out", str(out)]) == 0
    return out


def test_rules_writes_its_figure_as_png_and_pdf(compared):
    png, pdf = compared / "figures" / "rules.png", compared / "figures" / "rules.pdf"
    image = matplotlib.image.imread(png)
    assert image.shape[0] > 500
    assert image[..., :3].std() > 0.05  # something is drawn
    assert pdf.read_bytes().startswith(b"%PDF")
    assert runs.read(compared).figures == [png]


def test_the_same_command_gives_the_same_result(compared, tmp_path):
    cli.main(["rules", "--out", str(tmp_path / "run")])
    for name in ("result.json", "figures/rules.png"):
        assert (tmp_path / "run" / name).read_bytes() == (compared / name).read_bytes()


def test_without_out_a_new_folder_is_made_under_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["rules", "--rules", "greedy"]) == 0
    (made,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-rules-[0-9a-f]{6}", made.name)
    assert json.loads((made / "config.json").read_text())["settings"]["rules"] == ["greedy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rules", "--beta", "0.6", "0.5", "--advantage", "0", "1"], "the sum of beta = 1.1"),
        (["rules", "--beta", "0.5", "0.5"], "advantage has 5 actions"),
        (["rules", "--rules", "rerute(1,2)"], "rule 'rerute(1,2)' is not known"),
        (["rules", "--visits", "0"], "--visits = 0"),
        (["rules", "--visits", "many"], "--visits"),
        (["rules", "--visits", "1" + "0" * 400], ""),
        (["rules", "--return-std", "nan"], "--return-std = nan"),
        (["rules", "--rules", *["greedy"] * 9], "--rules: give 1 to 8"),
        (["rules", "--bogus", "1"], "--bogus"),
        (["rules", "--seed", "-1"], "--seed = -1"),
        (
            ["train", "--engine", "ray", "--cluster.block-steps", "-1"],
            "block_steps = -1: must be at least 0 and at most 1,000,000",
        ),
        (["bandit", "regret", "--means", "1", "-1"], "--means 1 -1"),
        (["bandit", "learn", "--learning-rates", "2"], "--learning-rates 2"),
        (["bandit"], "regret, learn"),
        (["bandit", "regrets"], "regrets"),
        (["rulez"], "rulez"),
    ],
)
def test_a_mistake_gives_one_line_status_2_and_no_folder(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith("rbi: ")
    assert message in line
    assert line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bandit_regret_draws_figure_1_and_compares_it_with_a_simulation(tmp_path, capsys):
    out = tmp_path / "run"
    assert cli.main(["bandit", "regret", "--out", str(out), "--points", "11", "--monte-carlo", "4000"]) == 0
    result = runs.read(out).finished()
    assert len(result["curves"]) == 6 * 2 * 3
    scores = np.array(result["simulation_deviations"])
    assert len(scores) > 100
    assert (abs(scores) < 2).mean() > 0.9
    assert abs(scores).max() < 5
    assert matplotlib.image.imread(out / "figures" / "regret.png").shape[1] > 1000
    assert "reroute(0.5,2)" in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_rules_are_shown_in_their_canonical_spelling(tmp_path, capsys):
    rules = ["reroute(.5, 1.5)", "forward_kl( radius=.1)"]
    assert cli.main(["bandit", "regret", "--points", "5", "--rules", *rules, "--out", str(tmp_path / "a")]) == 0
    assert cli.main(["rules", "--rules", *rules, "--out", str(tmp_path / "b")]) == 0
    shown = capsys.readouterr().out
    assert "reroute(0.5,1.5)" in shown
    assert "forward_kl(radius=0.1)" in shown
    assert "…" not in shown


@pytest.mark.usefixtures("undrawn")
def test_bandit_learn_gives_the_same_curves_whatever_the_number_of_workers(tmp_path, capsys):
    for workers in ("1", "2"):
        arguments = ["bandit", "learn", "--repetitions", "20", "--steps", "50", "--workers", workers, "--seed", "5"]
        assert cli.main([*arguments, "--out", str(tmp_path / workers), "--rules", "greedy", "tv(0.25)"]) == 0
    assert (tmp_path / "1" / "result.json").read_bytes() == (tmp_path / "2" / "result.json").read_bytes()
    assert (tmp_path / "1" / "figures" / "learning.pdf").exists()
    assert "t=50" in capsys.readouterr().out


def test_bandit_learn_takes_more_arms(tmp_path):
    arguments = [
        "bandit",
        "learn",
        "--means",
        "0",
        "1",
        "2",
        "--stds",
        "1,1,1",
        "--learning-rates",
        "0.1",
        "--rules",
        "greedy",
    ]
    assert cli.main([*arguments, "--repetitions", "10", "--steps", "20", "--out", str(tmp_path / "run")]) == 0
    assert runs.read(tmp_path / "run").finished()["curves"][0]["stds"] == "1,1,1"


def test_a_folder_with_other_files_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert cli.main(["rules", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.usefixtures("undrawn")
def test_brackets_in_a_path_are_not_markup(tmp_path, capsys):
    assert cli.main(["rules", "--rules", "greedy", "--out", str(tmp_path / "[/x]")]) == 0
    assert "[/x]" in capsys.readouterr().out


def test_advantages_of_minus_infinity_are_shown_without_a_warning(tmp_path, capsys):
    assert cli.main(["rules", "--advantage", "-inf", "0", "1", "-1", "2", "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().err == ""
    assert "nan" not in (tmp_path / "run" / "result.json").read_text()


def test_a_folder_that_cannot_be_written_is_named(capsys):
    assert cli.main(["rules", "--out", "/proc/nowhere/run"]) == 2
    assert "/proc/nowhere" in capsys.readouterr().err


SMALL = ("spi", "--worlds", "chicken(0.1)", "grid(0.7)", "--sizes", "20", "60", "--repetitions", "60")
FEW = ("--algorithms", "basic_rl", "pi_b_spibb(7)", "--resamples", "50", "--workers", "1")


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """The folder of a study, and what the command printed."""
    out, shown = tmp_path_factory.mktemp("study") / "run", io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert cli.main([*SMALL, *FEW, "--out", str(out)]) == 0
    return out, shown.getvalue()


def test_spi_writes_scores_tables_and_a_figure_a_world(studied):
    out, shown = studied
    run = runs.read(out)
    river, grid = run.finished()["worlds"]
    assert river["algorithms"] == ["basic_rl", "pi_b_spibb(7)", study.COUNT_AWARE]
    assert river["baseline"] == pytest.approx(29.750, abs=5e-4)
    assert np.shape(grid["summary"]["mean"]) == (2, 3)
    assert np.shape(grid["summary"]["cvar_lead"]) == (1, 3, 2, 3)
    assert {p.name for p in run.figures} == {"chicken-0.1.png", "grid-0.7.png"}
    assert "Wet Chicken, epsilon = 0.1, 60 repetitions" in shown
    assert f"{river['summary']['mean'][0][0]:.2f}/{river['summary']['cvar'][0][0]:.2f}" in shown


@pytest.mark.usefixtures("undrawn")
def test_spi_stopped_at_any_block_resumes_to_the_same_result(studied, tmp_path, capsys):
    (whole, _), broken = studied, tmp_path / "broken"
    shutil.copytree(whole, broken)
    (broken / "result.json").unlink()
    lines = (broken / "metrics.jsonl").read_bytes().split(b"\n")
    assert len(lines) > 4
    (broken / "metrics.jsonl").write_bytes(b"\n".join(lines[:2]) + b"\n" + lines[2][:100])  # killed while writing
    assert cli.main([*SMALL, *FEW, "--out", str(broken), "--resume"]) == 0
    assert (broken / "result.json").read_bytes() == (whole / "result.json").read_bytes()
    assert "2 of 5 blocks were finished before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--worlds", "maze(1)"), "unknown world maze"),
        (("--algorithms", "spibb(3)"), "unknown algorithm spibb"),
        (("--repetitions", "1"), "--repetitions = 1: must be at least 2"),
        (("--sizes", "0"), "sizes 0: must be in [1, 1000000]"),
        (("--resume",), "name the stopped study with --out"),
        (("--worlds", "grid(0.1)"), "eta must be in [0.5, 0.999]"),
        (("--sizes", "100000000000000"), "must be in [1, 1000000]"),
    ],
)
def test_invalid_spi_options_give_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["spi", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("undrawn")
def test_spi_resumes_only_a_study_with_the_same_settings(studied, tmp_path, capsys):
    out = str(tmp_path / "run")
    shutil.copytree(studied[0], out)
    assert cli.main([*SMALL, *FEW, "--out", out, "--resume", "--seed", "4"]) == 2
    assert "was started with seed = 0, not 4" in capsys.readouterr().err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["settings"]["baseline"]  # as of a version without this setting
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    for line in ("continues with baseline = known\n", ""):
        assert cli.main([*SMALL, *FEW, "--out", out, "--resume"]) == 0
        assert line in capsys.readouterr().err
    assert runs.read(tmp_path / "run").config["settings"]["baseline"] == "known"
    (tmp_path / "run" / "metrics.jsonl").write_text('{"a": 1}\n')
    assert cli.main([*SMALL, *FEW, "--out", out, "--resume"]) == 2
    assert "metrics.jsonl, line 1: is not a block of scores" in capsys.readouterr().err
    cli.main(["rules", "--rules", "greedy", "--out", str(tmp_path / "rules")])
    assert cli.main([*SMALL, *FEW, "--out", str(tmp_path / "rules"), "--resume"]) == 2
    assert "is a run of 'rules', not of 'spi'" in capsys.readouterr().err
    assert cli.main([*SMALL, *FEW, "--out", str(tmp_path / "none"), "--resume"]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.slow
def test_workers_exit_with_their_parent_and_the_study_resumes(tmp_path):
    """SIGKILL leaves no time to clean up: the workers have to notice themselves."""
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


def test_an_interrupt_while_a_dataclass_is_made_has_the_status_of_any_other(tmp_path):
    """Python then ends itself by the signal, also if the interrupt was caught."""
    lines = (
        "import signal",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",  # a shell's background jobs ignore it
        "signal.raise_signal(signal.SIGINT)",
    )
    (tmp_path / "tyro.py").write_text(f"exec({chr(10).join(lines)!r})")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "rbi", "rules"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "rbi: interrupted\n")


@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_a_closed_terminal_interrupt_a_run(number, tmp_path):
    arguments = ["spi", "--worlds", "chicken(0.1)", "--sizes", "2000", "--repetitions", "2000", "--workers", "1"]
    command = [sys.executable, "-m", "rbi", *arguments, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    assert process.communicate(timeout=60)[1] == "rbi: interrupted; continue with the same command and --resume\n"
    assert process.returncode == cli.INTERRUPTED


@pytest.mark.parametrize(
    ("module", "then"),
    [
        ("rbi.cli", "pass"),
        ("signal", "pass"),
        ("rich", "pass"),
        ("tyro", "raise RuntimeError('Error calling __set_name__') from interrupt"),  # as Python 3.11 does in a class
        ("rbi.rules.types", "pass"),
    ],
)
def test_ctrl_c_during_the_imports_prints_one_line(module, then, tmp_path):
    """From the console script's first line on; --out is not written."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["rbi"]
    code = f"""
import importlib, sys
import _signal as signal  # always loaded; `signal` is not

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it

class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as interrupt:
                {then}
                raise

sys.meta_path.insert(0, Interrupt())
module, function = {entry!r}.split(":")
sys.exit(getattr(importlib.import_module(module), function)())
"""
    command = [sys.executable, "-c", code, "rules", "--out", str(tmp_path / "run")]
    stopped = subprocess.run(command, capture_output=True, text=True)
    assert (stopped.returncode, stopped.stderr) == (cli.INTERRUPTED, "rbi: interrupted\n")
    assert not (tmp_path / "run").exists()


RBI = shlex.join([sys.executable, "-m", "rbi"])


def bash(command, folder):
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)


def test_a_reader_that_leaves_changes_no_exit_status_and_ends_no_run(tmp_path):
    done = bash(f"{RBI} rules --out run 2>&1 | true; echo ${{PIPESTATUS[0]}}; {RBI} --help | true; echo $?", tmp_path)
    assert (done.stdout, done.stderr) == ("0\n0\n", "")
    assert runs.read(tmp_path / "run").result


def test_closed_standard_streams_are_no_error_and_their_numbers_go_to_no_file(tmp_path):
    done = bash(f"{RBI} rules --out run <&- >&- 2>&-; echo $?", tmp_path)
    assert (done.stdout, done.stderr) == ("0\n", "")
    assert runs.read(tmp_path / "run").result
    code = "import os; from rbi import cli; cli.main(['--version']); exit(os.open('file', os.O_CREAT))"
    assert bash(f"{shlex.join([sys.executable, '-c', code])} <&- >&- 2>&-", tmp_path).returncode > 2


def test_output_in_an_encoding_without_the_dots_of_a_cut_cell_is_no_error(tmp_path):
    rows = "".join(f"{e},0,{e % 2},{e},1,0.5\n" for e in range(100))
    (tmp_path / "log.csv").write_text("episode_id,t,action,reward,terminated,obs_0\n" + rows)
    done = bash(f"PYTHONIOENCODING=latin-1 {RBI} data info log.csv --out info", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert runs.read(tmp_path / "info").result


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_for_which_there_is_no_space_is_an_error_of_one_line_and_messages_are_none(tmp_path):
    done = bash(f"{RBI} --version > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (2, "rbi: [Errno 28] No space left on device\n")
    assert bash(f"{RBI} rules --out run --json 2> /dev/full | wc -l", tmp_path).stdout.strip() == "1"


def test_names_from_files_reach_the_terminal_escaped_and_without_markup(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "a\x1b[31m[red]b[/red] :smile:\u202e"
    header = "episode_id,t,action,reward,terminated,obs_0,player\n"
    Path("log.csv").write_text(header + f"e,0,0,1,0,0.5,{name}\ne,1,1,1,1,0.5,{name}\n")
    assert cli.main(["data", "info", "log.csv", "--out", "info"]) == 0
    assert cli.main(["data", "info", f"{name}.csv"]) == 2
    captured = capsys.readouterr()
    shown = "a\\x1b[31m[red]b[/red] :smile:\\u202e"
    assert shown in captured.out
    assert f"rbi: {shown}.csv: no such file" in captured.err
    assert not {"\x1b", "\u202e"} & set(captured.out + captured.err)
