"""Networks that learn to act: what they see, how they are made, and their weights as one vector."""

from rbi.nets.adam import Adam
from rbi.nets.networks import MOST_HIDDEN, NORMS, Networks, Norm, PiNet, QNet, drawn, duel
from rbi.nets.vectors import attach, computing_dtype, join, size, to_vector

__all__ = [
    "MOST_HIDDEN",
    "NORMS",
    "Adam",
    "Networks",
    "Norm",
    "PiNet",
    "QNet",
    "attach",
    "computing_dtype",
    "drawn",
    "duel",
    "join",
    "size",
    "to_vector",
]
