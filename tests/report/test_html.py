"""The HTML report: its numbers are the run's, nothing in the data becomes markup, files are not lost."""

import json
from dataclasses import asdict

import numpy as np
import pytest

import rbi
from rbi import runs
from rbi.cli import main
from rbi.online.distributed import Faults
from rbi.report import train
from rbi.report.collect import collect
from rbi.report.html import MAX_BYTES, render
from rbi.report.run_panels import offline_curves
from rbi.report.train import fault_rows
from tests.report.pages import episodes_log, page_data, panel, training_line, training_run, write_run

ATTACK = "</script><script>alert(1)</script>"


def report(*paths, **options):
    """The data of the page about some runs."""
    return page_data(rbi.write_report(paths, paths[0].parent / "page.html", overwrite=True, **options))


def test_a_learning_curve_holds_the_numbers_of_the_metrics_on_every_axis(tmp_path):
    chart = panel(report(training_run(tmp_path / "run"))["runs"][0], "Learning curve")
    axes = {axis["name"]: axis["lines"][0] for axis in chart["axes"]}
    assert axes["updates"]["x"] == [10, 20, 30]
    assert axes["steps"]["x"] == [80, 160, 240]
    assert axes["hours"]["x"] == pytest.approx([5 / 3600, 10 / 3600, 15 / 3600], rel=1e-5)
    for line in axes.values():
        assert (line["y"], line["low"], line["high"]) == ([10, 20, 40], [9, 19, 39], [12, 22, 42])


def test_the_faults_of_a_run_on_a_cluster_are_rows_of_its_table():
    faults = {"steps_in_flight": 1200, "replay_states": 0, "updates": 30, "workers": 2, "shards": 0, "learners": 1}
    assert set(faults) == set(asdict(Faults()))
    found = {"faults": faults, "resumed": {"times": 1, "repeated_updates": 5}}
    assert list(fault_rows(found).items()) == [
        ("restarted", "2 workers, 1 learner"),
        ("lost", "1,200 steps in flight"),
        ("repeated", "35 updates"),
        ("resumed", "once"),
    ]


def test_seeds_become_a_median_with_quartiles(tmp_path):
    paths = [training_run(tmp_path / str(n), (n, 10.0 * n, 100.0 * n), seed=n) for n in range(1, 6)]
    comparison = report(*paths)["comparison"]
    (line,) = next(axis for axis in comparison[0]["axes"] if axis["name"] == "updates")["lines"]
    assert (line["y"][0], line["low"][0], line["high"][0]) == (3, 2, 4)
    assert (line["y"][-1], line["low"][-1], line["high"][-1]) == (300, 200, 400)
    table = comparison[-1]
    assert table["rows"] == [["seed", "1", "2", "3", "4", "5"]]


def test_the_note_counts_only_seeds_that_have_a_score(tmp_path):
    unscored = [training_line(10, 0.0) | {"score": None}]
    none = [write_run(tmp_path / f"none{n}", "train", metrics=unscored, seed=n) for n in range(2)]
    some = [training_run(tmp_path / f"some{n}", seed=2 + n) for n in range(2)]
    assert "median over 2 seeds" in report(*none, *some)["comparison"][0]["note"]
    assert report(*none, some[0])["comparison"][0]["note"].startswith("Lines: mean of the latest episodes")
    (panel,) = train.learning_curves([runs.read(path) for path in (*none, *some)]).axes
    assert [line.get_label() for line in panel.get_lines()] == ["RBI, 2 seeds"]


@pytest.mark.parametrize(
    ("command", "contents"), [("train", {"metrics": [{"score": 1.0}]}), ("certify", {"result": {"chosen": {}}})]
)
def test_a_run_that_cannot_be_shown_is_compared_by_its_settings_only(tmp_path, command, contents):
    paths = [write_run(tmp_path / str(seed), command, seed=seed, **contents) for seed in range(2)]
    (table,) = report(*paths)["comparison"]
    assert table["rows"] == [["seed", "0", "1"]]


def test_runs_with_other_settings_are_lines_named_by_what_differs(tmp_path):
    one = training_run(tmp_path / "one")
    other = training_run(
        tmp_path / "two", settings={"algo": "rbi", "env": "CartPole-v1", "learner": {"batch_size": 64}}
    )
    chart = report(one, other)["comparison"][0]
    assert [line["label"] for line in chart["axes"][0]["lines"]] == ["batch_size 32", "batch_size 64"]


def test_a_long_run_is_thinned_but_keeps_its_ends(tmp_path):
    chart = panel(report(training_run(tmp_path / "run", np.arange(1000.0)))["runs"][0], "Learning curve")
    line = chart["axes"][1]["lines"][0]
    assert len(line["x"]) <= 300
    assert (line["y"][0], line["y"][-1]) == (0, 999)


@pytest.mark.parametrize("evaluations", [1, 2])
def test_a_single_evaluation_is_no_learning_curve(tmp_path, evaluations):
    scores = {"behavior": [[1.0, 2.0]], "greedy": [[3.0, 4.0]]}
    lines = [{"kind": "evaluated", "updates": n, "seconds": n, "scores": scores} for n in range(1, evaluations + 1)]
    rows = [{"name": name, "learner": "behavior_q"} for name in scores]
    path = write_run(tmp_path / "run", "offline", metrics=lines, result={"rows": rows, "population": {"median": 1.0}})
    titles = [curve.title for curve in offline_curves(runs.read(path))]
    assert titles == (["Learning curves: rules on beta and Q"] if evaluations > 1 else [])


def test_the_decision_is_drawn_with_the_bounds_of_the_run(tmp_path):
    candidates = [
        {"rule": "reroute(0.5,1.5)", "estimate": 0.2, "lower": 0.1, "upper": 0.3},
        {"rule": "greedy", "estimate": 0.4, "lower": -np.inf, "upper": 0.9},
    ]
    weights = {"effective_sample_size": 50.0}
    chosen = candidates[0] | {"estimates": {"per_decision": 0.2}, "weights": weights}
    result = {
        "verdict": "deploy", "headline": "Deploy.", "rule": "reroute(0.5,1.5)", "lower": 0.1, "estimate": 0.2,
        "baseline": 1.0, "status": "proved", "confidence": 0.95, "episodes": 100, "reasons": ["because"],
        "assumptions": ["independent episodes"], "tested": ["reroute(0.5,1.5)"], "chosen": chosen,
        "candidates": candidates,
    }  # fmt: skip
    section = report(write_run(tmp_path / "run", "certify", result=result))["runs"][0]
    gains = panel(section, "Gain over")
    assert gains["reference"] == 0
    assert [(r["label"], r["value"], r["low"], r["high"], r["tone"]) for r in gains["rows"]] == [
        ("reroute(0.5,1.5)", 0.2, 0.1, 0.3, "good"),
        ("greedy", 0.4, -np.inf, 0.9, "plain"),
    ]
    assert section["panels"][0]["verdict"] == "deploy"


def test_nothing_in_the_data_becomes_markup(tmp_path):
    settings = {"algo": "rbi", "env": ATTACK, ATTACK: "<img src=x onerror=alert(1)>&amp;"}
    folder = training_run(tmp_path / ATTACK.replace("/", "_"), settings=settings)
    page = rbi.write_report(folder, tmp_path / "page.html", title=ATTACK)
    assert page.read_text().count("<script") == 2
    assert "<img" not in page.read_text()
    found = page_data(page)
    assert found["title"] == ATTACK
    assert [ATTACK, "<img src=x onerror=alert(1)>&amp;"] in found["runs"][0]["settings"]


def test_the_page_allows_no_connection_and_only_its_own_script(tmp_path):
    text = rbi.write_report(training_run(tmp_path / "run")).read_text()
    policy = text.split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0]
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert len(text.encode()) < MAX_BYTES


def test_settings_versions_and_the_command_to_run_it_again_are_there(tmp_path):
    section = report(training_run(tmp_path / "my run"))["runs"][0]
    assert section["command_line"] == f"rbi train --out '{tmp_path}/my run'"
    assert ["learner.batch_size", "32"] in section["settings"]
    assert ["rbi", rbi.__version__] in section["versions"]


@pytest.mark.parametrize(
    ("command", "result", "warning"),
    [
        ("train", {"last": 3}, "result.json: is damaged, or of another version"),
        ("improve", {"rule": "greedy"}, "lacks 'decision'"),
        ("improve", None, "not complete"),
        ("dance", {}, "runs of 'dance' have no charts"),
    ],
)
def test_a_run_that_cannot_be_shown_says_why_and_shows_its_settings(tmp_path, capsys, command, result, warning):
    section = report(write_run(tmp_path / "run", command, result=result))["runs"][0]
    assert warning in section["warnings"][0]
    assert section["settings"]
    assert warning in capsys.readouterr().err


def test_a_damaged_metric_line_is_named_and_the_others_are_shown(tmp_path):
    folder = training_run(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("{broken\n")
    section = report(folder)["runs"][0]
    assert "metrics.jsonl, line 4: is not JSON" in section["warnings"][0]
    assert panel(section, "Learning curve")["axes"][0]["lines"][0]["y"] == [10, 20, 40]


def test_the_folder_of_a_sweep_stands_for_its_runs(tmp_path):
    write_run(tmp_path / "sweep", "train", settings={"envs": ["CartPole-v1"]}, result={"rows": []})
    for seed in range(2):
        training_run(tmp_path / "sweep" / "runs" / f"seed{seed}", seed=seed)
    assert [section["name"] for section in report(tmp_path / "sweep")["runs"]] == ["seed0", "seed1"]
    write_run(tmp_path / "new", "train", settings={"envs": ["CartPole-v1"]})
    assert report(tmp_path / "new")["runs"][0]["warnings"] == ["none of the sweep's runs has begun"]


def test_every_number_is_json_that_a_browser_reads(tmp_path):
    found = collect([training_run(tmp_path / "run", (1.0, float("nan"), float("inf")))])
    data = render(found).decode().split('id="data">')[1].split("</script>")[0]
    assert "NaN" not in data
    json.loads(data, parse_constant=lambda name: pytest.fail(name))


def test_titles_spell_the_names_of_data_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    episodes_log(tmp_path / "logs", episodes=10)
    for command, *options in (["data", "info"], ["improve", "--updates", "2"]):
        assert main([command, *options, "logs", "--format", "csv", "--out", command, "--overwrite"]) == 0
    page = json.dumps(report(tmp_path / "data", tmp_path / "improve"))
    assert "Episodes of logs (csv)" in page
    assert "beta and Q on test episodes of logs" in page
    assert "Logs" not in page


# The command


def test_the_command_writes_the_page_into_the_run_folder_and_never_over_another_file(tmp_path, capsys):
    folder = training_run(tmp_path / "run")
    assert main(["report", str(folder)]) == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    assert main(["report", str(folder)]) == 2
    assert "exists; choose another file or pass --overwrite" in capsys.readouterr().err
    assert main(["report", str(folder), "--overwrite"]) == 0
    (tmp_path / "thesis.html").write_text("<html>mine</html>")
    assert main(["report", str(folder), "--out", str(tmp_path / "thesis.html"), "--overwrite"]) == 2
    assert (tmp_path / "thesis.html").read_text() == "<html>mine</html>"
    assert not [each for each in tmp_path.iterdir() if each.suffix == ".tmp"]


def test_a_run_with_a_report_can_still_be_overwritten(tmp_path):
    folder = training_run(tmp_path / "run")
    rbi.write_report(folder)
    runs.Writer.create(folder, command="train", settings={}, seed=0, argv=[], overwrite=True).close()


@pytest.mark.parametrize("name", ["missing", "file.txt", "empty"])
def test_what_is_not_a_run_folder_is_refused_in_one_line(tmp_path, capsys, name):
    (tmp_path / "file.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / name), "--out", str(tmp_path / "page.html")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(tmp_path / name) in error
    assert not (tmp_path / "page.html").exists()
