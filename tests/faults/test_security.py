"""Files of unknown origin: nothing in them runs code, reaches other files, or takes memory that it does not have."""

import json
import sys

import h5py
import numpy as np
import pytest

import rbi
from rbi import cli
from rbi.data.formats import open_reader
from rbi.envs import id_from_file
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy

ROWS = {
    "observations": np.linspace(0, 1, 18).reshape(6, 3).astype(np.float32),
    "actions": np.array([0, 1, 0, 1, 0, 1]),
    "rewards": np.arange(6.0),
    "terminals": np.array([0, 0, 1, 0, 0, 1]),
}


def write_hdf5(path, rewards=None):
    """A d3rlpy file; `rewards` adds that column in some other way."""
    with h5py.File(path, "w") as file:
        for name, values in ROWS.items():
            if name != "rewards" or rewards is None:
                file[name] = values
        if rewards is not None:
            rewards(file)


def external_link(file):
    file["rewards"] = h5py.ExternalLink("secret.h5", "rewards")


def soft_link(file):
    file["rewards"] = h5py.SoftLink("/actions")


def external_storage(file):
    file.create_dataset("rewards", (6,), "f8", external=[("secret.bin", 0, 48)])


def virtual(file):
    layout = h5py.VirtualLayout((6,), "f8")
    layout[:] = h5py.VirtualSource("secret.h5", "rewards", shape=(6,))
    file.create_virtual_dataset("rewards", layout)


def never_written(file):
    file.create_dataset("rewards", (10**12,), "f8", chunks=(1000,))


@pytest.mark.parametrize("rewards", [external_link, soft_link, external_storage, virtual, never_written])
def test_hdf5_files_do_not_reach_beyond_themselves(rewards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_hdf5("secret.h5")
    ROWS["rewards"].tofile("secret.bin")
    write_hdf5("log.h5", rewards)
    found = rbi.load_episodes("log.h5")
    assert len(found) == 0
    assert "rewards" in str(found.rejected[0])
    assert len(rbi.load_episodes("secret.h5")) == 2


@pytest.mark.parametrize("rewards", [external_link, soft_link, external_storage, virtual])
def test_minari_datasets_do_not_reach_beyond_themselves(rewards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = rbi.Dataset.from_arrays(*ROWS.values())
    from rbi.data.formats.minari import write_minari

    write_minari(iter(data), data.spec, "log-v0")
    monkeypatch.chdir(tmp_path / "log-v0" / "data")
    write_hdf5("secret.h5")
    ROWS["rewards"].tofile("secret.bin")
    with h5py.File("main_data.hdf5", "a") as file:
        del file["episode_1"]["rewards"]
        rewards(file["episode_1"])
    reader = open_reader(tmp_path / "log-v0")
    for found in (list(reader.read(1)), list(reader.summaries(1))):
        assert "rewards" in found[0].reason
    assert len(next(reader.read(0))) == 3


def test_promised_episodes_are_counted_before_they_are_read(tmp_path):
    with h5py.File(tmp_path / "log.h5", "w") as file:
        file["columns"], file["num_episodes"], file["version"] = ["observations"], 10**12, "2.1"
    with pytest.raises(ValueError, match="promises 1,000,000,000,000 episodes"):
        open_reader(tmp_path / "log.h5")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that leaves a trace when it is imported."""
    (tmp_path / "chosen_by_a_file.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield "chosen_by_a_file"
    sys.modules.pop("chosen_by_a_file", None)


def save_policy(path, env):
    networks = make_networks(ObservationSpec((4,), 1, 2), NetworkConfig(8), 0)
    Policy(networks, rbi.Greedy(), env=env).save(path)


@pytest.mark.parametrize("command", ["evaluate", "record"])
def test_a_policy_file_cannot_import_a_module_by_its_environment(command, module, tmp_path, capsys):
    save_policy(tmp_path / "policy", f"{module}:CartPole-v1")
    options = {"evaluate": ["evaluate"], "record": ["data", "record"]}[command] + [str(tmp_path / "policy")]
    assert cli.main([*options, "--episodes", "1", "--out", str(tmp_path / "out")]) == 2
    assert f"names the environment '{module}:CartPole-v1', which imports a module" in capsys.readouterr().err
    assert module not in sys.modules
    with pytest.raises(ValueError, match="imports a module"):
        rbi.evaluate(tmp_path / "policy", episodes=1)


@pytest.mark.parametrize(
    "env",
    [
        "m:CartPole-v1(size=3)",
        "CartPole-v1(wrappers=['m:Own'])",
        "CartPole-v1(wrappers=[['m:Own', {'size': 3}]])",
        "CartPole-v1(wrappers=[['Own', {'env': {'m:Other': 3}}]])",
        "CartPole-v1(options={'entry': ('m:Other', b'')})",
        "CartPole-v1(options={b'm:Other'})",
        "CartPole-v1(size=3),m:CartPole-v1(size=3)",
    ],
)
def test_a_module_is_refused_wherever_a_files_environment_names_it(env):
    with pytest.raises(ValueError, match="imports a module"):
        id_from_file(env, "policy.json")


def test_a_file_cannot_make_a_wrapper_write_files():
    with pytest.raises(ValueError, match="writes files"):
        id_from_file("CartPole-v1(wrappers=[['RecordVideo', {'video_folder': 'x'}]])", "policy.json")


def test_arguments_of_wrappers_import_nothing(tmp_path):
    env = "CartPole-v1(wrappers=[['TimeLimit', {'max_episode_steps': 5}]])"
    save_policy(tmp_path / "policy", env)
    assert rbi.evaluate(tmp_path / "policy", episodes=2, progress=False).mean <= 5
    assert id_from_file("FrozenLake-v1(is_slippery=False),Acrobot-v1", "config.json")  # of a sweep


def test_an_environment_with_a_module_that_the_user_typed_is_made(module, tmp_path):
    save_policy(tmp_path / "policy", "")
    rbi.evaluate(tmp_path / "policy", f"{module}:CartPole-v1", episodes=1, progress=False)
    assert module in sys.modules


@pytest.mark.parametrize("in_python", [True, False])
def test_a_run_folder_cannot_import_a_module_when_it_is_resumed(in_python, module, tmp_path, capsys):
    out = tmp_path / "run"
    rbi.train("CartPole-v1", out=out, updates=4, learning_starts=16, eval_episodes=0, progress=False)
    config = json.loads((out / "config.json").read_text())
    config["settings"]["env"] = f"{module}:CartPole-v1"
    (out / "config.json").write_text(json.dumps(config))
    if in_python:
        with pytest.raises(ValueError, match="imports a module"):
            rbi.train(out=out, resume=True, progress=False)
    else:
        assert cli.main(["train", "--resume", "--out", str(out)]) == 2
        message = f"it names the environment '{module}:CartPole-v1', which imports a module; if you trust it, name it"
        assert message in capsys.readouterr().err
    assert module not in sys.modules


def test_data_cannot_import_a_module_by_its_environment(module, tmp_path, capsys):
    data = rbi.Dataset.from_arrays(*ROWS.values(), env=f"{module}:CartPole-v1")
    from rbi.data.store import StoreWriter

    with StoreWriter.create(tmp_path / "store", data.spec) as writer:
        for episode in data:
            writer.append(episode)
    assert cli.main(["offline", str(tmp_path / "store"), "--out", str(tmp_path / "out")]) == 2
    assert "imports a module" in capsys.readouterr().err
    assert cli.main(["data", "export", str(tmp_path / "store"), "--to", "minari", "--out", str(tmp_path / "m")]) == 0
    assert module not in sys.modules
