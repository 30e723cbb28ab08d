"""Help pages, suggestions, completion, --json and colour: what all commands share."""

import importlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

from rbi import cli
from rbi.cli import completion
from rbi.cli import help as pages


def command_class(name):
    module, attribute, _ = cli.COMMANDS[name]
    return getattr(importlib.import_module(module), attribute)


def tyro_names(cls, capsys):
    """The options that tyro accepts."""
    with pytest.raises(SystemExit):
        tyro.cli(cls, args=["--help"], prog="rbi")
    shown = capsys.readouterr().out
    return set(re.findall(r"^\W? *(?<!\w)(--[a-z][\w.-]+)(?= [{\[A-Z(\n]|, --)", shown, re.MULTILINE)) - {"--help"}


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_lists_exactly_the_options_that_are_accepted_each_with_a_text(name, capsys):
    cls = command_class(name)
    found = pages.options(cls)
    assert {each.name for each in found if not each.positional} == tyro_names(cls, capsys)
    assert [each.name for each in found if not each.summary] == []
    assert {f"--{each}" for each in cls.MAIN_OPTIONS} <= {each.name for each in found}
    silent = [each.name for each in found if not (each.is_flag or each.positional or "default" in each.text.lower())]
    assert [
        name for name in silent if "(required)" not in pages.field_docs(cls).get(name[2:].replace("-", "_"), "")
    ] == []


def test_help_is_short_and_help_all_is_complete(capsys):
    pages_shown = []
    for word in ("-h", "--help", "--help-all"):
        with pytest.raises(SystemExit) as stop:
            cli.main(["train", word])
        assert stop.value.code == 0
        pages_shown.append(capsys.readouterr().out)
    short, same, full = pages_shown
    assert short == same
    assert "--schedule.updates INT" in short
    assert "--cluster.workers" not in short
    assert "--cluster.workers INT" in full
    assert "How actors choose actions." in full
    assert "None" not in short
    assert len(short.splitlines()) < 50


def test_options_of_several_learners_are_listed_once_with_their_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main(["offline", "--preset", "fast", "--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("Dropout of the hidden layer") == shown.count("Weight of CQL's penalty") == 1
    heads = re.findall(r"--(?:\{([\w,-]+)\}\.)?([\w.-]+)", shown)
    named = {f"--{part}.{name}" if part else f"--{name}" for parts, name in heads for part in parts.split(",")}
    assert {each.name for each in pages.options(command_class("offline")) if not each.positional} <= named
    assert "--{behavior-q,dqfd,bcq,cql}.network.norm {none,layer,hidden,batch} Normalisation" in shown
    assert "(default: behavior-q: 0.5, dqfd: 0.0, bcq: 0.0, cql: 0.0)" in shown


@pytest.mark.parametrize("words", [["evaluate"], ["data", "record"], ["offline"]], ids=" ".join)
def test_the_protocol_is_said_to_be_that_of_atari_games(words, capsys):
    with pytest.raises(SystemExit):
        cli.main([*words, "--help-all"])
    assert re.search(r"protocol \{paper,modern\} Atari games only\. paper: ", " ".join(capsys.readouterr().out.split()))


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_examples_fit_into_80_columns_as_a_shell_reads_them(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    line = command_class(name).EXAMPLE
    shown = pages.example(line)
    assert all(len(part) <= 80 for part in shown)
    assert shlex.split("\n".join(shown).replace("\\\n", "")) == ["example:", *shlex.split(line)]


def test_rbi_alone_shows_where_to_start(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    for line, _ in pages.START:
        assert line in shown
    listed = {name for names in pages.SECTIONS.values() for name in names}
    assert listed == {name.split()[0] for name in cli.COMMANDS} | {"completion"}


@pytest.mark.parametrize("line", [line for line, _ in pages.START])
def test_the_commands_to_start_from_are_accepted(line):
    assert cli.parse(line.split()[1:])


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("trian", "train"),
        ("data imprt", "import"),
        ("train --schedule.update 3", "--schedule.updates"),
        ("train --total-timesteps 3", "--schedule.updates, which counts batches, not environment steps"),
        ("train --n-envs 3", "--schedule.num-envs"),
        ("train --num-envs 3", "--schedule.num-envs"),
        ("train -o runs/cart", "--out"),
        ("train --device gpu", "cuda"),
        ("train --track", "--out, whose tensorboard folder has the curves"),
        ("evaluate --model runs/cart", "PATH, without --model"),
        ("offline --dataset runs/store", "DATA, without --dataset"),
        ("improve logs.csv --action offer", "--table.action"),
        ("certify logs.csv --alpha 0.05", "--confidence, which is 1 - alpha"),
        ("fit logs.csv", "improve, for logs, or train, for an environment"),
        ("data convert runs/store", "export"),
        ("train --max-episode-steps 9", "--env, as in CartPole-v1(max_episode_steps=100)"),
        ("improve logs.csv --lr 0.1", "--learning-rate"),
        ("train --algo=apx", "apex"),
        ("train --preset smal", "small"),
        ("offline data --baselines dqfd bqc", "bcq"),
        ("improve logs.csv --rule rerout", "reroute"),
        ("report runs/cartpol", "cartpole"),
        ("spi --algorithms soft_spib(1)", "soft_spibb"),
        ("data info log.csv --table.action ofer", "offer"),
    ],
)
def test_a_mistake_suggests_the_nearest_name(line, meant, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "cartpole").mkdir(parents=True)
    (tmp_path / "log.csv").write_text("offer,reward\n1,0\n")
    assert cli.main(line.split()) == 2
    assert f"did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train --schedule.updates 1e5", "--schedule.updates 1e5: must be a whole number"),
        ("improve logs.csv --gamma high", "--gamma high: must be a number"),
        ("improve logs.csv --updates 1e5", "--updates 1e5: must be a whole number"),
        ("improve logs.csv --holdout-fraction half", "--holdout-fraction half: must be a number"),
        ("improve logs.csv --return-range 0,1", "--return-range 0,1: must be two numbers"),
        ("certify later.csv runs/better", "unexpected argument: runs/better"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_in_plain_words(line, message, capsys):
    assert cli.main(line.split()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("line", ["train --verbose", "train --gamble 3", "evaluate runs/cart --num-envs 3"])
def test_an_option_like_none_of_ours_gets_no_suggestion(line, capsys):
    """`--` and what stands before a dot do not make options alike."""
    assert cli.main(line.split()) == 2
    assert re.search(r"--[\w-]+: no such option \(see rbi", capsys.readouterr().err)


def test_a_first_word_is_refused_beside_the_option_that_it_stands_for(capsys):
    for given in (["--env", "CartPole-v1"], ["--env=CartPole-v1"]):
        assert cli.main(["train", "dqn", *given]) == 2
        assert capsys.readouterr().err == "rbi: dqn: stands for --env dqn, but --env is given\n"


@pytest.mark.parametrize("argv", [["report"], ["rules", "--rules", "rerout(0.5,1.5)"]])
def test_the_name_of_a_command_is_not_taken_for_a_path(argv, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("report.html", "rules.csv", "runs"):
        Path(name).touch()
    assert cli.main(argv) == cli.USAGE_ERROR
    assert not re.search(r"mean (report.html|rules.csv|runs)", capsys.readouterr().err)


def test_a_number_is_not_taken_for_a_path(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("e3").touch()
    assert cli.main(["train", "CartPole-v1", "--schedule.num-envs", "3"]) == cli.USAGE_ERROR
    assert "did you mean" not in capsys.readouterr().err


def test_a_name_that_is_too_long_is_refused_in_one_line(capsys):
    assert cli.main(["data", "info", "x" * 300]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_first_word_of_train_is_the_environment():
    assert cli.parse(["train", "CartPole-v1", "--seed", "3"]).env == "CartPole-v1"


def test_json_is_all_that_standard_output_gets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["rules", "--json", "--rules", "greedy"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["status"] == 0
    assert found["command"] == "rules"
    assert found["result"] == json.loads((tmp_path / found["run"] / "result.json").read_text())
    assert "greedy" in shown.err
    assert cli.main(["report", found["run"], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (tmp_path / report["report"]).stat().st_size == report["bytes"]
    assert cli.main(["rules", "--json", "--rules", "gredy"]) == 2
    failed = json.loads(capsys.readouterr().out)
    assert failed["status"] == 2
    assert "did you mean greedy?" in failed["error"]


def test_json_has_no_constants_that_parsers_refuse(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["rules", "--json", "--beta", "1", "0", "--advantage", "0", "1", "--rules", "greedy"]) == 0

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["result"]["steps"][0]["c_max"] == math.inf


@pytest.mark.parametrize("how", ["", "stopped; continue with --resume"])
def test_an_interrupted_command_says_how_to_continue_in_one_line_and_as_json(how, monkeypatch, capsys):
    def interrupt(_command, _argv):
        raise KeyboardInterrupt(how)

    monkeypatch.setattr("rbi.cli.rules.Rules.run", interrupt)
    assert cli.main(["rules", "--json"]) == 130
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"status": 130, "error": how or "interrupted"}
    assert shown.err == f"rbi: {how or 'interrupted'}\n"


def test_json_names_no_folder_for_a_run_to_resume(capsys):
    assert cli.main(["improve", "log.csv", "--resume", "--json"]) == 2
    assert "name the stopped run with --out" in json.loads(capsys.readouterr().out)["error"]


def test_json_is_no_setting_of_the_run():
    assert "json" not in cli.parse(["rules", "--json"]).settings()


@pytest.mark.parametrize("arguments", [["--help"], ["rules", "--help-all"], ["rules", "--out", "run"], ["rulez"]])
def test_there_is_no_colour_without_a_terminal(arguments, tmp_path):
    env = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    done = subprocess.run(
        [sys.executable, "-m", "rbi", *arguments], cwd=tmp_path, env=env, capture_output=True, timeout=120, check=False
    )
    assert done.stdout or done.stderr
    assert b"\x1b" not in done.stdout + done.stderr


def complete_in_bash(script, words):
    """Calls the function that the script defines."""
    quoted = " ".join(f"'{word}'" for word in ["rbi", *words])
    return f"""source {script}
COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _rbi; printf "%s\\n" "${{COMPREPLY[@]}}"
"""


def complete_in_fish(script, words):
    return f"source {script}\ncomplete -C {shlex.quote(' '.join(['rbi', *words]))}\n"


def complete_in_zsh(script, words):
    """zsh completes only what is typed, in a pseudo-terminal: Ctrl-D lists the candidates, Ctrl-E marks the end.

    The terminal has its size before the shell starts, and the shell is ready when its line editor starts: before that,
    Ctrl-D would end the terminal's input.
    """
    typed = shlex.quote(" ".join(["rbi", *words]))
    return f"""zmodload zsh/zpty
zpty shell 'stty columns 300 rows 1000; PS1= zsh --no-rcs --interactive'
zpty -w shell 'LISTMAX=9999; autoload -Uz compinit && compinit -u -D'
zpty -w shell 'finish() {{ zle -M "end_""of_list" }}; zle -N finish; bindkey "^E" finish; source {script}'
zpty -w shell 'zle-line-init() {{ zle -M "is_""ready" }}; zle -N zle-line-init'
zpty -r -m shell line '*is_ready*'
zpty -w -n shell {typed}$'\\C-d'$'\\C-e'
zpty -r -m shell line '*end_of_list*'
zpty -d shell
print -r -- "${{line#*{typed}}}"
"""


COMPLETE = {"bash": complete_in_bash, "fish": complete_in_fish, "zsh": complete_in_zsh}


@pytest.mark.parametrize("shell", COMPLETE)
@pytest.mark.parametrize(
    ("words", "expected", "others"),
    [
        (["tr"], {"train"}, {"improve"}),
        (["data", ""], {"import", "record"}, {"train"}),
        (["completion", ""], {"bash", "zsh", "fish"}, {"train"}),
        (["train", "--schedule.up"], {"--schedule.updates"}, {"--out"}),
        (["train", "--algo", ""], {"rbi", "apex", "both"}, {"--out"}),
        (["data", "record", "--pop"], {"--population"}, {"--out"}),
        (["export", "--to", ""], {"onnx"}, {"parquet"}),
        (["data", "export", "--to", ""], {"parquet"}, {"onnx"}),
    ],
)
def test_shells_complete_commands_options_and_choices(shell, tmp_path, words, expected, others):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine (apt-get install {shell})")
    (tmp_path / "script").write_text(completion.script(shell, cli.COMMANDS, cli.GROUPS))
    (tmp_path / "ask").write_text(COMPLETE[shell](tmp_path / "script", words))
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    home = {**os.environ, "HOME": str(tmp_path), "TERM": "xterm"}
    command = [shell, *options, str(tmp_path / "ask")]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=home)
    assert shown.stderr == ""
    listed = set(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", shown.stdout).split())
    assert expected <= listed
    assert not others & listed


def test_completion_says_how_to_install_it(capsys):
    with pytest.raises(SystemExit):
        cli.main(["completion", "--help"])
    shown = capsys.readouterr().out
    assert all(line in shown for line in completion.INSTALL.values())
    assert Path("~/.config") in Path(completion.INSTALL["fish"].split()[-1]).parents
