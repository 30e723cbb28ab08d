"""Experience: episodes, the store that keeps them on disk, batches drawn from them, and every format they come in."""

from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode, Feature, RejectedEpisode
from rbi.data.sampler import Batch, Sampler, SamplerConfig
from rbi.data.store import Store, StoreWriter

__all__ = [
    "Batch",
    "Dataset",
    "DatasetSpec",
    "Episode",
    "Feature",
    "RejectedEpisode",
    "Sampler",
    "SamplerConfig",
    "Store",
    "StoreWriter",
]
