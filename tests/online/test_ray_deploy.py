"""The example cluster files fit their schemas; without a cloud nothing more can be tested."""

import json
from pathlib import Path

import pytest

from rbi import cli

yaml = pytest.importorskip("yaml")
ray = pytest.importorskip("ray")
jsonschema = pytest.importorskip("jsonschema")

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}  # also numbers, as in rayStartParams
COUNT = {"type": "integer", "minimum": 0}
RESOURCES = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}


def exactly(required, optional=None):
    """An object with these fields and no others: a field that is misspelt is not ignored."""
    fields = required | (optional or {})
    return {"type": "object", "required": list(required), "properties": fields, "additionalProperties": False}


CONTAINER = exactly(
    {"name": {"type": "string"}, "image": {"type": "string"}},
    {
        "resources": exactly({}, {"limits": RESOURCES, "requests": RESOURCES}),
        "volumeMounts": {
            "type": "array",
            "items": exactly({"name": {"type": "string"}, "mountPath": {"type": "string"}}),
        },
    },
)
CLAIM = exactly({"claimName": {"type": "string"}})
VOLUMES = {"type": "array", "items": exactly({"name": {"type": "string"}, "persistentVolumeClaim": CLAIM})}
PODS = exactly({"containers": {"type": "array", "items": CONTAINER, "minItems": 1}}, {"volumes": VOLUMES})
GROUP = {"rayStartParams": TEXTS, "template": exactly({"spec": PODS})}
REPLICAS = {"groupName": {"type": "string"}, "minReplicas": COUNT, "maxReplicas": COUNT}
CLUSTER = exactly(
    {"headGroupSpec": exactly(GROUP)},
    {
        "rayVersion": {"type": "string"},
        "authOptions": exactly({"mode": {"enum": ["disabled", "token"]}}),
        "enableInTreeAutoscaling": {"type": "boolean"},
        "workerGroupSpecs": {"type": "array", "items": exactly(GROUP | REPLICAS, {"replicas": COUNT})},
    },
)
RAY_JOB = exactly(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": exactly({"name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,46}[a-z0-9])?$"}}),
        "spec": exactly(
            {"entrypoint": {"type": "string"}, "rayClusterSpec": CLUSTER},
            {"backoffLimit": COUNT, "shutdownAfterJobFinishes": {"type": "boolean"}},
        ),
    }
)
"""The fields of KubeRay's RayJob that the file uses, with their types and which of them are required (ray.io/v1)."""


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


def test_the_kubernetes_manifest_fits_the_schema_of_a_ray_job():
    job = read("kuberay.yaml")
    jsonschema.validate(job, RAY_JOB)
    for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    mounts = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    for damage in ({"entrypoin": "rbi"}, {"backoffLimit": "5"}, {"rayClusterSpec": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(job | {"spec": job["spec"] | damage}, RAY_JOB)


def test_the_command_in_the_manifest_parses():
    words = read("kuberay.yaml")["spec"]["entrypoint"].split("rbi ", 1)[1].split("$(")[0].split()
    command = cli.parse([word.replace("$at", "/runs/breakout") for word in words])
    assert command.engine == "ray"
    assert command.cluster.workers == 32
    assert command.schedule.publish_interval == 100
