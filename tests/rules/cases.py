"""The rules that most tests are parametrised with, and conversions between array libraries."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import rbi

RULES = [
    rbi.Reroute(0.5, 1.5),
    rbi.Reroute(0.1, 2),
    rbi.Reroute(0, np.inf),
    rbi.TotalVariation(0.25),
    rbi.PPO(0.5),
    rbi.ForwardKL(1.0),
    rbi.ForwardKL(radius=0.1),
    rbi.BackwardKL(0.1),
    rbi.Greedy(),
    rbi.BCQ(0.3),
    rbi.Behavior(),
]
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor, "jax": jnp.asarray}
JAX_RULES = [rbi.Reroute(0.5, 1.5), rbi.TotalVariation(0.25), rbi.ForwardKL(radius=0.1)]
"""One rule for each piece of shared array code: JAX compiles anew for each rule and shape."""
LIBRARIES_AND_RULES = [
    pytest.param(library, rule, id=f"{library}-{rule}")
    for library in LIBRARIES
    for rule in (JAX_RULES if library == "jax" else RULES)
]
DTYPES = ["float16", "bfloat16", "float32", "float64"]


def array(library, values, dtype="float64"):
    """The values as an array of a library; NumPy's bfloat16 is ml_dtypes', which JAX brings."""
    if library == "torch":
        return torch.tensor(np.asarray(values)).to(getattr(torch, dtype))
    made = jnp.asarray(values, dtype=dtype)
    return made if library == "jax" else np.asarray(made)


def numbers(x):
    """Back to NumPy float64, whatever it was."""
    return x.detach().to(torch.float64).cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x).astype(float)


def rounding(dtype):
    """The relative rounding error of a dtype."""
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dtype]


def random_states(batch, actions, seed=0):
    """beta and advantage `[*batch, actions]` in float64: many actions rare, some never taken."""
    rng = np.random.default_rng(seed)
    beta = rng.dirichlet(np.full(actions, 0.5), size=batch).reshape(*batch, actions)
    beta = np.where(beta < 0.02 / actions, 0, beta)
    return beta / beta.sum(-1, keepdims=True), rng.normal(size=(*batch, actions))
