"""Offline learning from a fixed dataset: the experiment of section 4 of the paper, and `rbi.improve` for logs."""
