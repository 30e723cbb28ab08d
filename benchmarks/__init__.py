"""Measurements, in processes that hold their memory as those of the command `rbi` do."""

import rbi  # noqa: F401 - before PyTorch, which reads an environment variable that rbi sets
