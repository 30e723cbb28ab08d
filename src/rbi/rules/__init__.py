"""Improvement rules: from a behaviour policy beta and its advantages to a better policy, state by state.

`linear.py` and `kl.py` hold the rules as functions, `types.py` as values with parameters, `counts.py` bounds from visit
counts, and `arrays.py` the shared array code.
"""
