"""The example cluster files fit their schemas; without a cloud nothing more can be tested."""

import json
from pathlib import Path

import pytest

from rbi import cli

yaml = pytest.importorskip("yaml")
ray = pytest.importorskip("ray")
jsonschema = pytest.importorskip("jsonschema")

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def read(name):
    return yaml.safe_load((DEPLOY / name).read_text())


def test_the_autoscaler_file_fits_rays_schema():
    config = read("ray-aws.yaml")
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    assert config["head_node_type"] in config["available_node_types"]
    starts = config["head_start_ray_commands"] + config["worker_start_ray_commands"]
    assert all("RAY_AUTH_MODE=token" in command for command in starts if " start " in command)


def test_the_kubernetes_manifest_is_a_job_that_requires_a_token():
    job = read("kuberay.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == ray.__version__
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for pod in pods:
        (container,) = pod["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]


def test_the_command_in_the_manifest_parses():
    words = read("kuberay.yaml")["spec"]["entrypoint"].split("rbi ", 1)[1].split("$(")[0].split()
    command = cli.parse([word.replace("$at", "/runs/breakout") for word in words])
    assert command.engine == "ray"
    assert command.cluster.workers == 32
    assert command.schedule.publish_interval == 100
