"""Serve an exported policy over HTTP, and log every decision with its probability for the next `rbi improve`.

    python serve.py deploy/policy.onnx live.jsonl --port 8000

POST /decide {"segment": "new", "visits": 3} answers {"id": ..., "action": "discount", "action_prob": 0.3}. Once the
result is known, POST /outcome {"id": ..., "reward": 1} appends the decision to the log. Report rewards of 0, too: a
decision without an outcome is not logged.
"""

import argparse
import json
import uuid
from pathlib import Path

import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


def make_app(path, log):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    columns, actions = json.loads(about["columns"]), json.loads(about["actions"])
    if about["inputs"] != "columns" or about["behavior"] != "cloned":
        raise SystemExit(f"{path}: this example serves policies of a table that need no other system's probabilities")
    rng, waiting = np.random.default_rng(), {}

    def encode(column, value):
        if not column["categories"]:
            return np.array([[np.nan if value is None else value]], np.float32)
        if (value or "") not in column["categories"]:
            raise ValueError(f"{column['name']} {value!r} is unknown")
        return np.array([[value or ""]], object)

    async def decide(request):
        try:
            row = await request.json()
            given = {column["name"]: encode(column, row[column["name"]]) for column in columns}
            probs = session.run(["probs"], given)[0][0].astype(np.float64)
            if not np.isfinite(probs).all():
                raise ValueError("a number is missing or not finite")
            probs /= probs.sum()
        except (KeyError, TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        action = int(rng.choice(len(actions), p=probs))
        decision = {"id": uuid.uuid4().hex, "action": actions[action], "action_prob": float(probs[action])}
        waiting[decision["id"]] = {name: row[name] for name in given} | decision | {"policy": about["policy_digest"]}
        return JSONResponse(decision)

    async def outcome(request):
        try:
            given = await request.json()
            line = json.dumps(waiting[given["id"]] | {"reward": float(given["reward"])}, allow_nan=False)
        except (KeyError, TypeError, ValueError) as error:
            return JSONResponse({"error": f"unknown decision or reward: {error}"}, status_code=400)
        log.write(line + "\n")  # the file is line-buffered
        del waiting[given["id"]]
        return JSONResponse({"logged": True})

    return Starlette(routes=[Route("/decide", decide, methods=["POST"]), Route("/outcome", outcome, methods=["POST"])])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy")
    parser.add_argument("log")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    for path in (Path(arguments.policy), Path(arguments.log).parent):
        if not path.exists():
            parser.error(f"{path} does not exist")
    with Path(arguments.log).open("a", buffering=1) as file:
        uvicorn.run(make_app(arguments.policy, file), port=arguments.port, access_log=False)
