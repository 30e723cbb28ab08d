"""What a policy sees, among how many actions it chooses, and how networks look at it."""

from rbi.sight.shift import random_moves
from rbi.sight.sight import NATURE, SMALL, Layer, Sight, out_size

__all__ = ["NATURE", "SMALL", "Layer", "Sight", "out_size", "random_moves"]
