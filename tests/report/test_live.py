"""`rbi report --live`: two routes on loopback, new metrics at once, no file beyond them."""

import http.client
import json
import os
import signal
import subprocess
import sys

import pytest

from rbi import runs
from rbi.report.live import LiveServer
from tests.report.pages import serving, training_line, training_run


@pytest.fixture
def server(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    with serving(training_run(tmp_path / "run")) as found:
        yield found


def get(server, path, method="GET", **headers):
    """Status and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def scores(server):
    status, text = get(server, "/data.json")
    assert status == 200
    return json.loads(text)["runs"][0]["panels"][0]["axes"][0]["lines"][0]["y"]


def test_new_metrics_are_served_at_once(server, tmp_path):
    assert scores(server) == [10, 20, 40]
    with runs.Writer.reopen(tmp_path / "run") as writer:
        writer.log(**training_line(40, 80.0))
    assert scores(server) == [10, 20, 40, 80]


def test_the_page_is_the_same_and_may_ask_its_own_server_only(server):
    status, text = get(server, "/")
    assert status == 200
    assert "connect-src 'self'" in text
    assert '"live": true' in text


@pytest.mark.parametrize(
    "path",
    ["/config.json", "/run/metrics.jsonl", "/../secret.txt", "/%2e%2e/secret.txt", "//etc/passwd", "/data.json/.."],
)
def test_nothing_else_is_served(server, path):
    status, text = get(server, path)
    assert status == 404
    assert "secret" not in text
    assert get(server, "/", method="POST")[0] == 501


def test_it_listens_on_loopback_and_answers_only_under_its_own_name(server):
    assert server.server_address[0] == "127.0.0.1"
    assert get(server, "/data.json", Host="evil.example:80")[0] == 403
    assert get(server, "/data.json", Host="localhost:80")[0] == 200


def test_a_run_that_disappears_is_an_answer_and_no_crash(server, tmp_path):
    (tmp_path / "run" / "config.json").unlink()
    status, text = get(server, "/data.json")
    assert status == 503
    assert "is not a run folder" in text


def test_a_port_in_use_is_refused_in_one_line(server, tmp_path):
    with pytest.raises(ValueError, match=r"cannot listen on 127.0.0.1:\d+ \(Address already in use\)"):
        LiveServer([tmp_path / "run"], port=server.server_address[1])


@pytest.mark.slow  # starts Python and imports PyTorch
def test_control_c_ends_the_command_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "rbi", "report", str(training_run(tmp_path / "run")), "--live", "--port", "0"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout.readline().startswith("live report: http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
