"""Measurements, in processes that hold their memory as those of the command `rbi` do."""

import rbi.memory  # noqa: F401 - before PyTorch, which reads what it sets
