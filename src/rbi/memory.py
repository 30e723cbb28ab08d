"""How the process holds its memory. Imported before PyTorch, whose allocator reads this once.

On ARM processors PyTorch comes with mimalloc, which gives memory back to the system after 10 milliseconds. An update
of a network takes longer than that, so each one would ask for its memory page by page again: a tenth to a sixth of its
time (measured on two Neoverse-N1 cores with the network of DQN). A second is long enough to keep it.
"""

import os

TOLD = "MIMALLOC_PURGE_DELAY"
os.environ.setdefault(TOLD, "1000")
