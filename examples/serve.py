"""Serve an exported policy over HTTP, and log every decision with its probability for the next `rbi improve`.

    python serve.py deploy/policy.onnx live.jsonl 8000

POST /decide {"segment": "new", "visits": 3} answers {"id": ..., "action": "discount", "action_prob": 0.3}. Once the
result is known, POST /outcome {"id": ..., "reward": 1} appends the decision to the log. Report rewards of 0, too: a
decision without an outcome is not logged. Dates are ISO texts. A policy with masks (rbi export --legal) also takes the
names of the possible actions, as in {"visits": 3, "legal": ["none", "bundle"]}.
"""

import json
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


def encode(column, value):
    if column["is_date"] and isinstance(value, str):  # days since 1970-01-01
        date = datetime.fromisoformat(value)
        value = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() / 86_400
    if not column["categories"]:
        if not isinstance(value, int | float | None):  # "3" would be logged as a text
            raise ValueError(f"{column['name']} {value!r} is not a number")
        return np.array([[np.nan if value is None else value]], np.float32)
    if (value or "") not in column["categories"]:
        raise ValueError(f"{column['name']} {value!r} is unknown")
    return np.array([[value or ""]], object)


def masks_of(legal, actions):
    """What is logged of the possible actions: a column of each action."""
    if odd := set(legal) - set(actions):
        raise ValueError(f"legal has {min(odd)!r}, which is no action")
    return {f"action_mask_{name}": int(name in legal) for name in actions}


def make_app(path, log):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = session.get_modelmeta().custom_metadata_map
    columns, actions = json.loads(about["columns"]), json.loads(about["actions"])
    if about["inputs"] != "columns" or about["behavior"] != "cloned":
        raise SystemExit(f"{path}: this example serves policies of a table that need no other system's probabilities")
    has_masks = "legal" in {given.name for given in session.get_inputs()}
    rng, waiting = np.random.default_rng(), {}

    async def decide(request):
        row = await request.json()
        if missing := [column["name"] for column in columns if column["name"] not in row]:
            raise ValueError(f"{missing[0]} is missing")
        given = {column["name"]: encode(column, row[column["name"]]) for column in columns}
        known = {name: row[name] for name in given}
        if has_masks:
            masks = masks_of(row["legal"], actions)
            known, given["legal"] = known | masks, np.array([[*masks.values()]], bool)
        probs = session.run(["probs"], given)[0][0].astype(np.float64)
        action = int(rng.choice(len(actions), p=probs / probs.sum()))  # a ValueError for a number that is missing
        decision = {"id": uuid.uuid4().hex, "action": actions[action], "action_prob": float(probs[action])}
        waiting[decision["id"]] = known | decision | {"policy": about["policy_digest"]}
        return JSONResponse(decision)

    async def outcome(request):
        given = await request.json()
        line = json.dumps(waiting[given["id"]] | {"reward": float(given["reward"])}, allow_nan=False)
        log.write(line + "\n")  # the file is line-buffered
        del waiting[given["id"]]
        return JSONResponse({"logged": True})

    async def refuse(_, error):
        return JSONResponse({"error": f"{type(error).__name__}: {error}"}, status_code=400)

    routes = [Route("/decide", decide, methods=["POST"]), Route("/outcome", outcome, methods=["POST"])]
    return Starlette(routes=routes, exception_handlers=dict.fromkeys((KeyError, TypeError, ValueError), refuse))


if __name__ == "__main__":
    policy, log, port = sys.argv[1:]
    with Path(log).open("a", buffering=1) as file:
        uvicorn.run(make_app(policy, file), port=int(port), access_log=False)
