"""`rbi certify`: exit status, run folder, and one line for bad input."""

import json

import numpy as np
import pytest
from pyarrow.csv import read_csv

import rbi
from rbi import runs
from rbi.cli import main
from rbi.data.episode import Feature
from rbi.data.formats import FormatSettings, TableConfig
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.rules.types import Behavior


@pytest.fixture
def policy(tmp_path):
    """A policy whose clone is about uniform and whose Q prefers one of two actions, whatever the state."""
    networks = make_networks(ObservationSpec((1,), 1, 2), NetworkConfig(4), 0)
    for parameter in networks.parameters():
        parameter.data.zero_()
    networks.q.advantage.bias.data[1] = 1.0
    Policy(networks, rbi.Reroute(0.5, 1.5)).save(tmp_path / "policy")
    return tmp_path / "policy"


def write_log(path, means, rows=800):
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, rows)
    reward = rng.random(rows) < np.array(means)[action]
    lines = [f"{x:.3f},{a},{int(r)},0.5" for x, a, r in zip(rng.random(rows), action, reward, strict=True)]
    path.write_text("\n".join(["obs_0,action,reward,action_prob", *lines]) + "\n")
    return path


def certify(policy, log, out, *options):
    named = ["--policy", str(policy), "--out", str(out)]
    return main(["certify", str(log), *named, "--table.one-step", "--return-range", "0", "1", *options])


def test_deploy_is_exit_status_0_and_the_folder_holds_the_certified_policy(policy, tmp_path, capsys):
    assert certify(policy, write_log(tmp_path / "log.csv", (0.3, 0.6)), tmp_path / "out") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("Deploy reroute(0.5,1.5): it gains at least 0.0")
    assert any(line.split()[0:1] == ["greedy"] for line in shown)
    run = runs.read(tmp_path / "out")
    assert run.finished()["status"] == "proved"
    assert [figure.name for figure in run.figures] == ["gains.png"]
    assert rbi.load_policy(tmp_path / "out").rule == rbi.Reroute(0.5, 1.5)


@pytest.mark.usefixtures("undrawn")
def test_python_writes_the_folder_that_the_command_writes(policy, tmp_path):
    log, settings = write_log(tmp_path / "log.csv", (0.3, 0.6)), FormatSettings(table=TableConfig(one_step=True))
    certify(policy, log, tmp_path / "command")
    options = {"return_range": (0, 1), "settings": settings, "out": tmp_path / "python"}
    found = rbi.certify(policy, log, **options)
    assert runs.read(tmp_path / "python").finished() == runs.read(tmp_path / "command").finished()
    assert rbi.load_policy(tmp_path / "python").rule == found.policy.rule
    assert rbi.write_report(tmp_path / "python", tmp_path / "report.html").stat().st_size > 0
    with pytest.raises(ValueError, match="overwrite"):
        rbi.certify(policy, log, **options)
    rbi.certify(policy, log, **options, overwrite=True)
    for call in (rbi.certify, rbi.evaluate):
        with pytest.raises(ValueError, match="belongs to the policy"):
            call(policy, log if call is rbi.certify else "CartPole-v1", out=policy, overwrite=True)
    with pytest.raises(ValueError, match="belongs to the policy"):
        rbi.monitor(log, old_value=0.1, return_range=(0, 1), policy=policy, out=policy, overwrite=True)
    assert rbi.load_policy(policy).rule == rbi.Reroute(0.5, 1.5)
    options["out"] = tmp_path / "live"
    watched = rbi.monitor(log, old_value=0.1, **options)
    assert runs.read(tmp_path / "live").finished()["outcome"] == watched.outcome


def test_keep_is_exit_status_3_and_the_folder_holds_the_behaviour_policy(policy, tmp_path, capsys):
    assert certify(policy, write_log(tmp_path / "log.csv", (0.6, 0.3)), tmp_path / "out", "--auto") == 3
    assert capsys.readouterr().out.startswith("Keep the current policy")
    assert rbi.load_policy(tmp_path / "out").rule == Behavior()


@pytest.mark.parametrize(
    ("line", "message"),
    [("0.1,1,1,1.5", "line 802"), ("0.1,1,1,0", "line 802"), ("0.1,1,7,0.5", "return 7 is outside the stated range")],
)
def test_bad_rows_are_named_and_nothing_is_decided(policy, tmp_path, capsys, line, message):
    log = write_log(tmp_path / "log.csv", (0.3, 0.6))
    log.write_text(log.read_text() + line + "\n")
    assert certify(policy, log, tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_table_is_read_with_the_columns_categories_and_actions_of_the_policy(tmp_path, capsys):
    """The log lacks one category and one action, and has its columns in another order."""
    columns = (Feature("segment", ("a", "new", "old")), Feature("age"))
    networks = make_networks(ObservationSpec((4,), 1, 3), NetworkConfig(4), 0)
    policy = Policy(networks, rbi.Reroute(0.5, 1.5), columns=columns, action_names=("call", "mail", "none"))
    policy.save(tmp_path / "policy")
    rng = np.random.default_rng(0)
    rows = [
        f"{rng.choice(['mail', 'call'])},{rng.integers(2)},0.5,{rng.integers(18, 80)},{rng.choice(['new', 'old'])}"
        for _ in range(81)
    ]
    (tmp_path / "log.csv").write_text("\n".join(["offer,paid,propensity,age,segment", *rows]) + "\n")
    options = ["--table.action", "offer", "--table.reward", "paid"]
    assert certify(tmp_path / "policy", tmp_path / "log.csv", tmp_path / "out", *options) in (0, 3)
    assert runs.read(tmp_path / "out").finished()["episodes"] == 81
    (tmp_path / "log.csv").write_text("offer,paid,propensity,age,segment\nfax,1,0.5,30,new\n")
    assert certify(tmp_path / "policy", tmp_path / "log.csv", tmp_path / "out2", *options) == 2
    assert "log.csv, line 2" in capsys.readouterr().err


def test_texts_that_the_training_data_has_not_are_evaluated_as_the_policy_sees_them_and_reported(tmp_path, capsys):
    networks = make_networks(ObservationSpec((2,), 1, 2), NetworkConfig(4), 0)
    policy = Policy(networks, rbi.Reroute(0.5, 1.5), columns=[Feature("segment", ("new", "old"))])
    policy.save(tmp_path / "policy")
    rng = np.random.default_rng(0)
    lines = [f"{s},{a},{r},0.5" for s, a, r in zip(["new", "old"] * 200, *rng.integers(0, 2, (2, 400)), strict=True)]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(["segment,action,reward,action_prob", *lines, "odd,1,1,0.5"]) + "\n")
    assert certify(tmp_path / "policy", log, tmp_path / "out") in (0, 3)
    assert "1 of 401 steps have no text in 'segment' that the training data has" in capsys.readouterr().out
    log.write_text(log.read_text().replace("new", "other").replace("odd", "other"))
    assert certify(tmp_path / "policy", log, tmp_path / "out2") == 2
    assert "201 of 401 steps have no text in 'segment'" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_the_table_is_read_as_the_one_that_trained_the_policy_unless_columns_are_named(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name in ("log", "later"):
        rows = [f"{rng.choice(['mail', 'call'])},{rng.integers(2)},0.5,{rng.integers(18, 80)}" for _ in range(90)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["offer,paid,chance,the age", *rows]) + "\n")
    options = {"action": "offer", "reward": "paid", "action_prob": "chance", "observations": ("the age",)}
    settings = FormatSettings(table=TableConfig(one_step=True, **options))
    rbi.improve(tmp_path / "log.csv", out=tmp_path / "run", updates=2, settings=settings, progress=False)
    capsys.readouterr()
    command = ["certify", str(tmp_path / "later.csv"), "--policy", str(tmp_path / "run"), "--return-range", "0", "1"]
    assert main([*command, "--out", str(tmp_path / "out")]) in (0, 3)
    said = f"the table is read like the one that trained {tmp_path / 'run'}: "
    roles = "--table.action offer --table.reward paid --table.action-prob chance --table.one-step"
    assert said + roles in capsys.readouterr().out.splitlines()
    assert runs.read(tmp_path / "out").finished()["evidence"]["known"] != "estimated"
    live = ["monitor", *command[1:], "--old-value", "0.5", "--out", str(tmp_path / "live")]
    assert main(live) == 0
    assert said + roles in capsys.readouterr().out.splitlines()
    (tmp_path / "other.csv").write_text((tmp_path / "later.csv").read_text().replace("offer,paid", "mailed,paid", 1))
    command[1] = str(tmp_path / "other.csv")
    assert main(command) == 2
    assert f"no column 'offer' (--table.action, as in {tmp_path / 'run'})" in capsys.readouterr().err
    assert main([*command, "--table.action", "mailed", "--out", str(tmp_path / "other")]) in (0, 3)
    assert f"is read like {tmp_path / 'run'}: --table.reward paid" in capsys.readouterr().err


@pytest.mark.parametrize("roles", [{"action": 3}, {"colour": "red"}, {"observations": "age"}, ["offer"]])
def test_roles_of_columns_that_are_none_are_refused(policy, tmp_path, capsys, roles):
    config = json.loads((policy / "policy.json").read_text())
    (policy / "policy.json").write_text(json.dumps(config | {"metadata": {"table": roles}}))
    log = write_log(tmp_path / "log.csv", (0.3, 0.6))
    assert main(["certify", str(log), "--policy", str(policy), "--return-range", "0", "1"]) == 2
    assert "must name the columns of a table" in capsys.readouterr().err


def test_a_policy_of_a_dataframe_knows_the_columns_of_a_file(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [f"{rng.choice(['mail', 'call'])},{rng.integers(2)},0.5,{rng.integers(18, 80)}" for _ in range(180)]
    for name, part in (("log", rows[:90]), ("later", rows[90:])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["offer,paid,chance,age", *part]) + "\n")
    columns = {"observations": ["age"], "action": "offer", "action_prob": "chance", "reward": "paid"}
    data = rbi.Dataset.from_frame(read_csv(tmp_path / "log.csv"), **columns)
    policy = rbi.improve(data, updates=2, progress=False).policy
    policy.save(tmp_path / "policy")
    command = ["certify", str(tmp_path / "later.csv"), "--policy", str(tmp_path / "policy"), "--return-range", "0", "1"]
    assert main([*command, "--out", str(tmp_path / "out")]) in (0, 3)
    assert "--table.action offer --table.reward paid" in capsys.readouterr().out
    in_memory, saved = (
        rbi.certify(of, tmp_path / "later.csv", return_range=(0, 1)) for of in (policy, tmp_path / "policy")
    )
    assert in_memory.lower == saved.lower


@pytest.mark.usefixtures("undrawn")
def test_our_own_parquet_export_is_read_as_it_is_encoded(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    asked = ["--table.one-step", "--table.observations", "segment", "visits"]
    for name, like in (("log", []), ("later", ["--table.features-of", str(tmp_path / "log")]), ("other", [])):
        texts = ["new", "odd"] if name == "other" else ["new", "old"]
        rows = [f"{rng.choice(texts)},{rng.integers(9)},{a},{r},0.5" for a, r in rng.integers(0, 2, (90, 2))]
        table, store = tmp_path / f"{name}.csv", tmp_path / name
        table.write_text("\n".join(["segment,visits,action,reward,action_prob", *rows]) + "\n")
        assert main(["data", "import", str(table), "--out", str(store), *asked, *like]) == 0
        assert main(["data", "export", str(store), "--out", str(tmp_path / f"{name}-parquet")]) == 0
    rbi.improve(tmp_path / "log-parquet", out=tmp_path / "run", updates=2, progress=False)
    command = ["--policy", str(tmp_path / "run"), "--return-range", "0", "1", "--out", str(tmp_path / "out")]
    assert main(["certify", str(tmp_path / "later-parquet"), *command]) in (0, 3)
    assert runs.read(tmp_path / "out").finished()["episodes"] == 90
    assert (
        main(["improve", str(tmp_path / "log.csv"), *asked, "--updates", "2", "--out", str(tmp_path / "of-csv")]) == 0
    )
    assert main(["certify", str(tmp_path / "later-parquet"), "--policy", str(tmp_path / "of-csv"), *command[2:5]]) in (
        0,
        3,
    )
    assert main(["certify", str(tmp_path / "other-parquet"), *command, "--overwrite"]) == 2
    assert "are not those of" in capsys.readouterr().err
