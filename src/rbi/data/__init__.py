"""Experience: episodes, the store that keeps them on disk, batches drawn from them, and every format they come in.

The sampler, which alone needs PyTorch, is imported when it is first used: reading data takes none.
"""

from typing import TYPE_CHECKING

from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, Episode, Feature, RejectedEpisode
from rbi.data.store import Store, StoreWriter

if TYPE_CHECKING:
    from rbi.data.sampler import Batch, Sampler, SamplerConfig

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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rbi.data import sampler

    return getattr(sampler, name)
