"""Experience: episodes, the store that keeps them on disk, batches drawn from them, and every format they come in."""

from rbi.data.episode import Episode, Spec
from rbi.data.episodes import Episodes, Problem
from rbi.data.sampler import Batch, Sampler, SamplerConfig
from rbi.data.store import Store, StoreWriter

__all__ = ["Batch", "Episode", "Episodes", "Problem", "Sampler", "SamplerConfig", "Spec", "Store", "StoreWriter"]
