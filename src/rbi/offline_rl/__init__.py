"""Learning from a fixed data set of many players: the paper's section 4."""
